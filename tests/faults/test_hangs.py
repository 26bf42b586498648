"""PostgreSQL hangs: it takes connections and statements and answers nothing, as no stopped server does."""

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from boathook.domain.errors import JournalUnavailable
from boathook.journal.database import Connection, Database
from boathook.journal.events import EventStore
from tests.faults.conftest import OwnServer

WITHIN_S = 0.5
LATE_S = 1.5
"""What a busy machine may add to a time that is up; a wait for the server would take as long as the test."""


def family(pid: int) -> list[int]:
    """Return a process and all that descends from it; each backend of PostgreSQL has a process group of its own."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in family(int(child)))]


@contextmanager
def frozen(server: OwnServer) -> Iterator[None]:
    """Stop every process of the server where it stands, and let them all go on at the end of the block."""
    pid = server.server.pid()
    assert pid is not None
    stopped = family(pid)
    for one in stopped:  # the postmaster first, so that none is born meanwhile
        os.kill(one, signal.SIGSTOP)
    try:
        yield
    finally:
        for one in reversed(stopped):
            os.kill(one, signal.SIGCONT)


@asynccontextmanager
async def opened(url: str, size: int = 2, **options: float) -> AsyncIterator[Database]:
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


async def wait_for_something_else(connection: Connection) -> None:
    assert not connection.is_closed()
    await asyncio.sleep(60)


@pytest.mark.parametrize("is_connected", [True, False], ids=["kept", "new"])
@pytest.mark.parametrize("use", [ask, ask_in_transaction, wait_for_something_else])
async def test_a_use_with_a_limit_ends_when_it_is_over_though_the_server_hangs(
    own_server: OwnServer, use, is_connected: bool
):
    async with opened(own_server.url) as database:
        if is_connected:
            await database.fetchval("select 1")
        before = asyncio.all_tasks()
        with frozen(own_server):
            began = time.monotonic()
            with pytest.raises(JournalUnavailable, match="did not answer within 0.5 s"):
                async with database.acquire(within_s=WITHIN_S) as connection:
                    await use(connection)
            assert time.monotonic() - began < WITHIN_S + LATE_S
            await asyncio.sleep(0)
            assert asyncio.all_tasks() == before
        assert await database.fetchval("select 1") == 1
