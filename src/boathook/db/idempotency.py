"""Stores the idempotency keys of API requests, each in the transaction of its request's effect.

The unique index makes a second request with the same key wait until the first one's transaction ends. After a commit
it reads the stored response; after a rollback it claims the key itself. This holds over any number of processes.
"""

from datetime import timedelta
from typing import Final

import msgspec

from boathook.db.database import Connection
from boathook.db.statements import load

SQL = load(__file__)
RETENTION: Final = timedelta(hours=12)
"""How long answers are stored; those of messages are not: see `boathook.handlers.outbox`."""


class StoredResponse(msgspec.Struct, frozen=True):
    """An earlier request with the same key."""

    request_sha256: bytes
    status: int
    encrypted_response: bytes


async def claim(connection: Connection, key: bytes, request_sha256: bytes) -> StoredResponse | None:
    """Claim a key for this transaction; return the earlier request that has it, if any.

    Args:
        key: 32 bytes, like the next one.
        request_sha256: hash of the request's canonical form.
    """
    if await connection.fetchval(SQL["claim_key"], key, request_sha256, RETENTION):
        return None
    row = await connection.fetchrow(SQL["find_answer"], key)
    if row is None:
        return await claim(connection, key, request_sha256)  # it has expired and was deleted in between
    return StoredResponse(row["request_sha256"], row["status"], row["encrypted_response"])


async def save(connection: Connection, key: bytes, status: int, encrypted_response: bytes) -> None:
    """Store the response of the request that claimed *key*."""
    await connection.execute(SQL["save_answer"], key, status, encrypted_response)
