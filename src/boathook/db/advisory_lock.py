"""Turns: what is called by one name is done by one process at once, over all hosts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from boathook.db.database import Connection, Database, translate_errors
from boathook.db.statements import load

SQL = load(__file__)


@asynccontextmanager
async def try_advisory_lock(database: Database, name: str) -> AsyncIterator[Connection | None]:
    """Lend the turn at *name* for as long as the connection lives that comes with it, or None where another has it.

    Raises:
        DatabaseError: PostgreSQL cannot be reached, or gives up.
    """
    async with database.acquire() as connection:
        with translate_errors():
            is_ours = await connection.fetchval(SQL["take_turn"], name)
        yield connection if is_ours else None
