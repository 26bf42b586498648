"""Idempotency keys of API requests: a response is kept, encrypted, in the transaction of its request's effect.

A second request with the same key waits for the first one's transaction (`db/idempotency.py`), so a response is kept
exactly when the effect is.
"""

import base64
from dataclasses import dataclass
from typing import Final

import msgspec

from boathook.db import idempotency
from boathook.domain.errors import AlreadyExists
from boathook.service.unit_of_work import UnitOfWork

KEY_REUSED_CODE: Final = "idempotency_key_reused"


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """What identifies a request that may be sent twice."""

    key: bytes
    """32 bytes, made of whose it is and what they may do, the client's key, and the route."""
    fingerprint: bytes
    """32 bytes, made of the query and the body as they are written: all that older versions compare."""
    canonical: bytes
    """32 bytes, made of all that decides what the request does."""

    @property
    def context(self) -> str:
        """What binds an encrypted response to its key."""
        return f"idempotency:{self.key.hex()}"


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """The response of a request, as it is given to each repetition of it."""

    status: int
    body: bytes
    content_type: str


class _Content(msgspec.Struct):
    """What of a response is encrypted."""

    body: str
    type: str


async def claim(work: UnitOfWork, key: IdempotencyKey) -> StoredResponse | None:
    """Claim a key for this transaction; return the response of the earlier request that has it, if any.

    Raises:
        AlreadyExists: the earlier request was another one.
    """
    earlier = await idempotency.claim(work.connection, key.key, key.fingerprint, key.canonical)
    if earlier is None:
        return None
    # An older version kept no canonical form.
    is_same = (
        earlier.fingerprint == key.fingerprint if earlier.canonical is None else earlier.canonical == key.canonical
    )
    if not is_same:
        raise key_reused()
    content = work.app_context.secret_box.open(earlier.encrypted_response, key.context)
    kept = msgspec.json.decode(content, type=_Content)
    return StoredResponse(earlier.status, base64.b64decode(kept.body), kept.type)


async def save(work: UnitOfWork, key: IdempotencyKey, response: StoredResponse) -> None:
    """Keep the response of the request that claimed *key*."""
    content = _Content(base64.b64encode(response.body).decode(), response.content_type)
    encrypted = work.app_context.secret_box.encrypt(msgspec.json.encode(content).decode(), key.context)
    await idempotency.save(work.connection, key.key, response.status, encrypted)


def key_reused() -> AlreadyExists:
    """Return the error for a key that came with another request."""
    return AlreadyExists("this Idempotency-Key came with another request before", kind=KEY_REUSED_CODE)
