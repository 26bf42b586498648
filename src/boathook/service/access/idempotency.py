"""Idempotency keys of API requests: the response is stored, encrypted, in the transaction of the request.

A second request with the same key waits for the first one's transaction (`db/idempotency.py`). A response is therefore
stored if and only if the request took effect.
"""

import base64
from typing import Final

import msgspec

from boathook.db import idempotency
from boathook.domain.errors import AlreadyExists
from boathook.domain.model import IdempotencyKey
from boathook.service.unit_of_work import UnitOfWork

KEY_REUSED_CODE: Final = "idempotency_key_reused"


class StoredResponse(msgspec.Struct, frozen=True):
    """The response of a request, returned to each repetition of it."""

    status: int
    body: bytes
    content_type: str


class _Content(msgspec.Struct):
    """The encrypted part of a response."""

    body: str
    type: str


async def claim(work: UnitOfWork, key: IdempotencyKey) -> StoredResponse | None:
    """Claim a key for this transaction; return the response of an earlier request with this key, if any.

    Raises:
        AlreadyExists: the earlier request was a different one.
    """
    earlier = await idempotency.claim(work.connection, key.key, key.request_sha256)
    if earlier is None:
        return None
    if earlier.request_sha256 != key.request_sha256:
        raise key_reused()
    content = work.app_context.secret_box.open(earlier.encrypted_response, key.context)
    earlier_content = msgspec.json.decode(content, type=_Content)
    return StoredResponse(earlier.status, base64.b64decode(earlier_content.body), earlier_content.type)


async def save(work: UnitOfWork, key: IdempotencyKey, response: StoredResponse) -> None:
    """Store the response of the request that claimed *key*."""
    content = _Content(base64.b64encode(response.body).decode(), response.content_type)
    encrypted = work.app_context.secret_box.encrypt(msgspec.json.encode(content).decode(), key.context)
    await idempotency.save(work.connection, key.key, response.status, encrypted)


def key_reused() -> AlreadyExists:
    """Return the error for a key that was used with a different request."""
    return AlreadyExists("this Idempotency-Key was used with another request", kind=KEY_REUSED_CODE)
