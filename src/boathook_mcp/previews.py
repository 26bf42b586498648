"""Stores previews of replays, and the results of those that were run.

A preview freezes the ids that a replay may touch. It is stored like the response to an API request with an idempotency
key, encrypted, under a key that contains the caller: no other token finds it. Its replay is stored under another
key in the transaction of its effect, so a repeated call gets the first result and replays nothing.
"""

import hashlib
import secrets
from datetime import datetime, timedelta
from typing import Final, TypeVar

import msgspec

from boathook.domain.errors import InvalidState, NotFound
from boathook.domain.model import IdempotencyKey
from boathook.service.access import idempotency
from boathook.service.access.idempotency import StoredResponse
from boathook.service.operating import operations
from boathook.service.unit_of_work import UnitOfWork

LIFETIME: Final = timedelta(minutes=15)
"""How long a preview can be replayed."""
PREFIX: Final = "prv_"
_TYPE: Final = "application/json"
_PREVIEW: Final = "preview"
_RESULT: Final = "result"

Stored = TypeVar("Stored", bound=msgspec.Struct)


class Preview(msgspec.Struct, frozen=True, kw_only=True):
    """The dead letters that one replay may touch."""

    created_at: datetime
    deliveries: tuple[str, ...]


class ReplayResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay did."""

    replayed: int
    skipped: int
    """Dead letters of the preview that were not replayed."""


async def save(work: UnitOfWork, preview: Preview) -> str:
    """Store a preview of the caller, and return its reference."""
    reference = PREFIX + secrets.token_hex(10)
    key = _key(_PREVIEW, work.actor, reference)
    await idempotency.claim(work, key)
    await _save(work, key, preview)
    return reference


async def load(work: UnitOfWork, reference: str) -> Preview:
    """Return a preview of the caller.

    Raises:
        NotFound: the caller has no such preview.
        InvalidState: it has expired.
    """
    preview = await _claim(work, _key(_PREVIEW, work.actor, reference), Preview)
    if preview is None:  # this transaction has claimed the key; the error undoes that
        raise NotFound("there is no such preview of yours; call preview_replay first")
    if preview.created_at < await operations.read_clock(work.connection) - LIFETIME:
        raise InvalidState("this preview has expired; call preview_replay again", "preview_expired")
    return preview


async def claim_result(work: UnitOfWork, reference: str) -> ReplayResult | None:
    """Return the result of the caller's replay of a preview; if there is none yet, claim it for this transaction.

    A second call waits until the transaction of the first one ends.
    """
    return await _claim(work, _key(_RESULT, work.actor, reference), ReplayResult)


async def save_result(work: UnitOfWork, reference: str, result: ReplayResult) -> None:
    """Store the result of a replay, in its transaction."""
    await _save(work, _key(_RESULT, work.actor, reference), result)


async def _claim(work: UnitOfWork, key: IdempotencyKey, kind: type[Stored]) -> Stored | None:
    response = await idempotency.claim(work, key)
    return None if response is None else msgspec.json.decode(response.body, type=kind)


async def _save(work: UnitOfWork, key: IdempotencyKey, value: msgspec.Struct) -> None:
    await idempotency.save(work, key, StoredResponse(200, msgspec.json.encode(value), _TYPE))


def _key(kind: str, actor: str, reference: str) -> IdempotencyKey:
    digest = hashlib.sha256(f"mcp {kind}\0{actor}\0{reference}".encode()).digest()
    return IdempotencyKey(key=digest, request_sha256=hashlib.sha256(kind.encode()).digest())
