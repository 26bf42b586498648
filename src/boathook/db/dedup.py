"""Dedup keys, shared by events and batches: deletes expired ones."""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from boathook.db.database import Connection
from boathook.db.statements import load

SQL = load(__file__)


async def delete_expired(connection: Connection, keys: Sequence[UUID], at: datetime | None = None) -> None:
    """Delete those *keys* that have expired by now, or by *at* if that is later."""
    await connection.execute(SQL["forget_expired"], keys, at)
