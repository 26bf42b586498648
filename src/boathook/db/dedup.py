"""Dedup memory as events and batches share it: keys are freed when their memory ends."""

from collections.abc import Sequence
from uuid import UUID

from boathook.db.database import Connection
from boathook.db.statements import load

SQL = load(__file__)


async def delete_expired_keys(connection: Connection, keys: Sequence[UUID]) -> None:
    """Free those of *keys* whose memory has run out."""
    await connection.execute(SQL["forget_expired"], keys)
