"""Turns: what is called by one name is done by one process at once, over all hosts."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from boathook.journal.database import Connection, Database, translated
from boathook.journal.statements import load

SQL = load(__file__)


@asynccontextmanager
async def turn(database: Database, name: str) -> AsyncIterator[Connection | None]:
    """Lend the turn at *name* for as long as the connection lives that comes with it, or None where another has it.

    Raises:
        JournalError: PostgreSQL cannot be reached, or gives up.
    """
    async with database.acquire() as connection:
        with translated():
            is_ours = await connection.fetchval(SQL["take_turn"], name)
        yield connection if is_ours else None
