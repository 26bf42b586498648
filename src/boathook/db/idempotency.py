"""Idempotency keys of API requests, each stored in the transaction of its request's effect.

The unique index makes a second request with the same key wait until the first one's transaction ends: after a commit
it reads the answer, after a rollback it takes the first one's place. That holds over any number of processes.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from boathook.db.database import Connection
from boathook.db.statements import load

SQL = load(__file__)
RETENTION: Final = timedelta(hours=12)


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """An earlier request with the same key."""

    fingerprint: bytes
    canonical: bytes | None
    """None where an older version answered it."""
    status: int
    encrypted_response: bytes


async def claim(connection: Connection, key: bytes, fingerprint: bytes, canonical: bytes) -> StoredResponse | None:
    """Claim a key for this transaction; returns the earlier request that has it, if any.

    Args:
        key: 32 bytes, as the next two.
        fingerprint: of the request as it is written, for older versions that look at the same rows.
        canonical: of the request as it is understood.
    """
    if await connection.fetchval(SQL["claim_key"], key, fingerprint, canonical, RETENTION):
        return None
    row = await connection.fetchrow(SQL["find_answer"], key)
    if row is None:
        return await claim(connection, key, fingerprint, canonical)  # it expired and was deleted in between
    return StoredResponse(row["fingerprint"], row["canonical"], row["status"], row["encrypted_response"])


async def save(connection: Connection, key: bytes, status: int, encrypted_response: bytes) -> None:
    """Keep the answer of the request that claimed *key*."""
    await connection.execute(SQL["save_answer"], key, status, encrypted_response)
