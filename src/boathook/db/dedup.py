"""Dedup keys, shared by events and batches: deletes keys whose retention has ended."""

from collections.abc import Sequence
from uuid import UUID

from boathook.db.database import Connection
from boathook.db.statements import load

SQL = load(__file__)


async def delete_expired_keys(connection: Connection, keys: Sequence[UUID]) -> None:
    """Delete those of *keys* that have expired."""
    await connection.execute(SQL["forget_expired"], keys)
