"""Idempotency keys: a POST with a key seen before gets the first answer, whatever process gave it.

The key is claimed in the transaction of the request's effect (`journal/idempotency.py`), so a second request waits for
the first one, and an answer is kept exactly when the effect is. Only 2xx answers are kept, for 12 hours. The same key
with another query or body is refused with 409 ``idempotency_key_reused``.
"""

import base64
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from boathook.admin.api.auth import Principal
from boathook.admin.api.errors import ApiError
from boathook.journal import idempotency
from boathook.journal.database import Connection
from boathook.journal.vault import Vault


@dataclass(frozen=True, slots=True)
class IdempotencyKey:
    """What identifies a request that may be sent twice."""

    key: bytes
    """32 bytes, made of whose it is and what they may do, the client's key, and the route."""
    fingerprint: bytes
    """32 bytes, made of all else that decides what the request does."""

    @property
    def context(self) -> str:
        """What binds a sealed answer to its place."""
        return f"idempotency:{self.key.hex()}"


class _Kept(msgspec.Struct):
    """An answer as it is kept."""

    body: str
    type: str


def read_key(request: Request, principal: Principal, body: bytes) -> IdempotencyKey | None:
    """Return the key of a request that brings one."""
    word = request.headers.get("idempotency-key")
    if not word:
        return None
    # Answers hold secrets, so only whoever may do the same is given them.
    rights = None if principal.capabilities is None else sorted(principal.capabilities)
    whose = f"{principal.organization}\x00{principal.application_id or ''}\x00{rights}"
    route = f"{request.method} {request.url.path}"
    return IdempotencyKey(
        key=_hash(whose.encode(), route.encode(), word.encode("utf-8", "surrogateescape")),
        fingerprint=_hash(request.url.query.encode(), body),
    )


def _hash(*parts: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(len(part).to_bytes(8, "big") + part)
    return digest.digest()


async def once(
    connection: Connection, vault: Vault, key: IdempotencyKey, work: Callable[[], Awaitable[Response]]
) -> Response:
    """Return the answer of *work*, done in this transaction unless an earlier request with the key has done it.

    Raises:
        ApiError: 409, the earlier request was another one.
    """
    earlier = await idempotency.claim(connection, key.key, key.fingerprint)
    if earlier is not None:
        check_same(earlier.fingerprint, key)
        kept = msgspec.json.decode(vault.open(earlier.sealed_response, key.context), type=_Kept)
        return Response(base64.b64decode(kept.body), earlier.status, {"idempotent-replayed": "true"}, kept.type or None)
    response = await work()
    kept = _Kept(base64.b64encode(bytes(response.body)).decode(), response.headers.get("content-type", ""))
    sealed = vault.seal(msgspec.json.encode(kept).decode(), key.context)
    await idempotency.save(connection, key.key, response.status_code, sealed)
    return response


def check_same(fingerprint: bytes, key: IdempotencyKey) -> None:
    """Refuse a key that came with another request. Raises ApiError 409."""
    if fingerprint != key.fingerprint:
        raise ApiError(409, "idempotency_key_reused", "this Idempotency-Key came with another request before")
