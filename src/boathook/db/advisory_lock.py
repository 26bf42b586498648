"""Advisory locks: at most one process at a time, over all hosts, holds the lock of a name."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from boathook.db.database import Connection, Database, translate_errors
from boathook.db.statements import load

SQL = load(__file__)


@asynccontextmanager
async def try_advisory_lock(database: Database, name: str) -> AsyncIterator[Connection | None]:
    """Acquire the lock of *name* and yield the connection that holds it, or None if another process holds the lock.

    The lock lasts as long as the connection.

    Raises:
        DatabaseError: PostgreSQL is unavailable or aborted the statement.
    """
    async with database.acquire() as connection:
        with translate_errors():
            is_ours = await connection.fetchval(SQL["try_lock"], name)
        yield connection if is_ours else None
