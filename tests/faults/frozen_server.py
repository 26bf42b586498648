"""Freezes a PostgreSQL server, and measures how long its clients wait for an error."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import asyncpg
import pytest

from boathook.db.database import Connection, Database
from boathook.domain.errors import DatabaseUnavailable
from tests.faults.rig.postgres import OwnServer
from tests.support import eventually

LATE_S = 120.0
"""Tolerance for a busy machine; a client that really waits for the server takes as long as the test."""
DETECTED_S = 5.0
"""What is promised, on a quiet machine."""
BACK_S = 300.0


@contextmanager
def frozen(server: OwnServer) -> Iterator[None]:
    """Stop every process of the server with SIGSTOP, and resume them at the end of the block."""
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


@asynccontextmanager
async def open_database(url: str, size: int = 2, **options: float) -> AsyncIterator[Database]:
    database = await Database.open(url, purpose="hang", size=size, **options)
    try:
        yield database
    finally:
        await database.close()


async def ask(connection: Connection) -> None:
    await connection.fetchval("select 1")


async def ask_in_transaction(connection: Connection) -> None:
    async with connection.transaction():
        await connection.execute("select 1")


async def wait_for_heartbeat(database: Database) -> None:
    """Wait until the heartbeat has its connection."""
    name = "select count(*) from pg_stat_activity where application_name = 'boathook:hang:monitor'"
    await eventually(lambda: database.fetchval(name))


async def with_connection(database: Database, what: Callable[[Connection], Awaitable[object]]) -> None:
    async with database.acquire() as connection:
        await what(connection)


async def time_to_fail(database: Database, within_s: float = LATE_S) -> float:
    """Return how long clients wait for an error after the server has stopped responding."""
    began = time.monotonic()
    waiting = [
        asyncio.create_task(database.fetchval("select 1")),
        asyncio.create_task(with_connection(database, ask_in_transaction)),
        asyncio.create_task(database.execute("select 1")),  # there are only two connections
    ]
    done, late = await asyncio.wait(waiting, timeout=within_s)
    took_s = time.monotonic() - began
    for one in late:
        one.cancel()
    assert not late, f"{len(late)} still wait"
    for one in done:
        assert isinstance(
            one.exception(), DatabaseUnavailable | asyncpg.InterfaceError | asyncpg.PostgresConnectionError
        )
    with pytest.raises(DatabaseUnavailable):  # clients of a server known to be away fail at once
        async with asyncio.timeout(LATE_S):
            await database.fetchval("select 1")
    return took_s


async def wait_until_available(database: Database) -> None:
    async def answer() -> bool:
        with contextlib.suppress(DatabaseUnavailable):
            return await database.fetchval("select 1") == 1
        return False

    await eventually(answer, timeout=BACK_S)
