"""PostgreSQL hangs: it takes connections and statements, answers nothing and refuses nothing, as no stopped server does."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import asyncpg
import psycopg
import pytest

from boathook.config import load
from boathook.db import server_monitor
from boathook.db.connection import time_limit
from boathook.db.database import Connection, Database
from boathook.db.deliveries import elect_keeper
from boathook.db.migrations import migrate
from boathook.delivery import keeper
from boathook.domain.errors import DatabaseUnavailable
from boathook.domain.policy import RetryPolicy
from boathook.handlers.api import Boathook, Event, Transaction
from boathook.service.database import open_database as database_of_a_command
from tests.faults.frozen_server import (
    DETECTED_S,
    ask,
    ask_in_transaction,
    frozen,
    open_database,
    time_to_fail,
    wait_for_heartbeat,
    wait_until_available,
)
from tests.faults.rig.postgres import OwnServer
from tests.support import eventually, sampled
from tests.worker_harness import accept_events, attempts, running_worker, wait_for_states

WITHIN_S = 0.5
FULL = r"too many clients|reserved"


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    """One server for all of this file; each test leaves it as it has found it."""
    one = OwnServer()
    yield one
    one.close()


async def wait_for_something_else(connection: Connection) -> None:
    assert not connection.is_closed()
    await asyncio.sleep(3_600)


@pytest.mark.extended("waits for intervals and deadlines of the product")
@pytest.mark.parametrize("is_connected", [True, False], ids=["kept", "new"])
@pytest.mark.parametrize("with_connection", sampled([ask, ask_in_transaction, wait_for_something_else], keep=1))
async def test_a_call_with_a_timeout_ends_in_time_during_a_hang(server: OwnServer, with_connection, is_connected: bool):
    async with open_database(server.url) as database:
        if is_connected:
            await database.fetchval("select 1")
        before = asyncio.all_tasks()
        with frozen(server):
            with pytest.raises(DatabaseUnavailable, match=r"did not answer within 0\.5 s"):
                async with database.acquire(within_s=WITHIN_S) as connection:
                    await with_connection(connection)
            await asyncio.sleep(0)
            assert asyncio.all_tasks() == before
        assert await database.fetchval("select 1") == 1


async def test_a_proxy_closing_each_connection_counts_as_an_outage(monkeypatch: pytest.MonkeyPatch):
    """Like a proxy whose server is gone; servers cause the same error."""
    monkeypatch.setattr(server_monitor, "HEARTBEAT_INTERVAL_S", 0.01)
    was_unavailable: list[bool] = []

    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)  # all of the first message, as the connection would be reset otherwise
        writer.close()

    async def dial() -> Connection:
        was_unavailable.append(monitor.is_unavailable)
        host, port = proxy.sockets[0].getsockname()
        return await asyncpg.connect(host=host, port=port, user="x", database="x", ssl=False)

    async with await asyncio.start_server(close, "127.0.0.1") as proxy:
        monitor = server_monitor.ServerMonitor(dial, purpose="test", max_connect_s=60)
        monitor.start()
        await eventually(lambda: len(was_unavailable) > 4)
        await monitor.stop()
    assert was_unavailable[:5] == [False, True, True, True, True]


# Found out without a limit of one's own


@pytest.fixture
def is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life come five times as often, and are waited for a third of the time."""
    monkeypatch.setattr(server_monitor, "HEARTBEAT_INTERVAL_S", 0.2)
    monkeypatch.setattr(server_monitor, "MIN_TIMEOUT_S", 0.5)


async def test_a_hang_and_its_end_are_detected(server: OwnServer):
    async with open_database(server.url) as database:
        await wait_for_heartbeat(database)
        with frozen(server):
            await time_to_fail(database)
        await wait_until_available(database)


@pytest.mark.extended("is judged by the clock")
async def test_a_hang_is_detected_within_five_seconds(server: OwnServer):
    async with open_database(server.url) as database:
        await wait_for_heartbeat(database)
        with frozen(server):
            assert await time_to_fail(database) < DETECTED_S


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
async def test_without_the_heartbeat_callers_of_a_hung_server_keep_waiting(
    server: OwnServer, is_quick: None, monkeypatch: pytest.MonkeyPatch
):
    """Mutant of the test above, which shows that it can fail."""
    monkeypatch.setattr(server_monitor.ServerMonitor, "_mark_unavailable", lambda _pulse, _error: None)
    async with open_database(server.url) as database:
        await wait_for_heartbeat(database)
        with frozen(server), pytest.raises(AssertionError, match="3 still wait"):
            await time_to_fail(database, 4)


async def test_a_stopped_server_is_detected_at_once(server: OwnServer, is_quick: None):
    async with open_database(server.url) as database:
        await wait_for_heartbeat(database)
        await asyncio.to_thread(server.stop)
        await time_to_fail(database)
        await asyncio.to_thread(server.restart)
        await wait_until_available(database)


@pytest.mark.extended("waits for intervals and deadlines of the product")
async def test_a_long_statement_is_no_hang(server: OwnServer, is_quick: None):
    async with open_database(server.url) as database:
        await wait_for_heartbeat(database)
        assert await database.fetchval("select 1 from pg_sleep(2)") == 1


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
async def test_a_suspended_process_does_not_report_an_outage(server: OwnServer, is_quick: None):
    async with open_database(server.url) as database:
        await wait_for_heartbeat(database)
        asked = asyncio.create_task(database.fetchval("select 1 from pg_sleep(2)"))
        for _ in range(3):
            await asyncio.sleep(0.1)
            time.sleep(0.6)  # noqa: ASYNC251 - it is the event loop that is to stand still
        assert await asked == 1


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
async def test_a_server_out_of_connections_is_not_an_outage(server: OwnServer, is_quick: None):
    async with open_database(server.url) as database:
        async with taken(server, all_but=0):
            with pytest.raises(DatabaseUnavailable, match=FULL):
                await database.fetchval("select 1")
            await asyncio.sleep(2 * server_monitor.HEARTBEAT_INTERVAL_S)
            assert not database.monitor.is_unavailable
        await wait_until_available(database)


# Under handlers, keepers and pools that are too small


@pytest.fixture
async def shop(server: OwnServer) -> AsyncIterator[Database]:
    """A database on the server that may hang, with a user table; emptied after each test."""
    await migrate(server.url)
    async with open_database(server.url, size=10) as database:
        await database.execute("create table if not exists deed (n int)")
        yield database
        await database.execute(
            "truncate deed, boathook.event, boathook.delivery, boathook.delivery_archive, boathook.attempt"
        )


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
@pytest.mark.parametrize("moment", ["before the effect", "after the effect", "before the settle"])
async def test_a_handler_in_a_hang_longer_than_its_lease_has_one_effect(
    server: OwnServer, shop: Database, is_quick: None, moment: str
):
    hook, hanging = Boathook(), []

    async def hang(now: str, event: Event) -> None:
        if moment == now and event.attempt == 1:
            server.freeze()
            hanging.append(asyncio.create_task(thaw()))

    async def thaw() -> None:
        try:
            await eventually(lambda: shop.monitor.is_unavailable)
            await asyncio.sleep(1.0)  # the lease is over
        finally:
            server.thaw()

    @hook.on("shop", retry=RetryPolicy(max_attempts=1))
    async def note(event: Event, tx: Transaction) -> None:
        await hang("before the effect", event)
        await tx.execute("insert into deed values (1)")
        await hang("after the effect", event)
        await tx.fetchval("select 1")
        await hang("before the settle", event)

    await wait_for_heartbeat(shop)
    async with running_worker(shop, hook, lease_s=1.0), running_worker(shop, hook, worker_id="w2", lease_s=1.0):
        await accept_events(shop, {})
        await eventually(lambda: hanging and hanging[0].done())
        await eventually(lambda: not shop.monitor.is_unavailable)
        await wait_for_states(shop, succeeded=1)
    assert await shop.fetchval("select count(*) from deed") == 1


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
async def test_more_long_handlers_than_connections_all_run(server: OwnServer, shop: Database):
    """Fifty more than there are connections, while other clients leave too few of them."""
    hook, running, most = Boathook(), 0, 0

    @hook.on("shop", retry=RetryPolicy(max_attempts=1))
    async def note(event: Event, tx: Transaction) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await tx.execute("insert into deed values (1)")
        await asyncio.sleep(0.2)
        running -= 1

    async with running_worker(shop, hook, concurrency=66), taken(server, all_but=8):
        await accept_events(shop, *({"n": n} for n in range(66)))
        await wait_for_states(shop, succeeded=66)
        assert most < 16
    assert await shop.fetchval("select count(*) from deed") == 66
    assert await attempts(shop) == [(1, "succeeded", None)] * 66


@asynccontextmanager
async def taken(server: OwnServer, *, all_but: int) -> AsyncIterator[None]:
    """Let another client hold all connections of the server except *free* ones."""
    held = await asyncio.to_thread(take_all, server.url)
    try:
        for one in held[:all_but]:
            one.close()
        yield
    finally:
        for one in held:
            one.close()


def take_all(url: str) -> list[psycopg.Connection]:
    held = []
    with contextlib.suppress(psycopg.OperationalError):
        while True:
            held.append(psycopg.connect(url))
    return held


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
async def test_a_keeper_is_re_elected_after_a_hang(
    server: OwnServer, shop: Database, is_quick: None, monkeypatch: pytest.MonkeyPatch
):
    seats: list[str] = []

    @asynccontextmanager
    async def recorded_seat(database: Database) -> AsyncIterator[Connection | None]:
        async with elect_keeper(database) as seat:
            seats.append("none" if seat is None else "ours")
            try:
                yield seat
            finally:
                seats.append("left")

    monkeypatch.setattr(keeper, "elect_keeper", recorded_seat)
    stop = asyncio.Event()
    settings = load(None, {"database.url": server.url})
    keeping = asyncio.create_task(keeper.run_keeper(settings, stop=stop, beat=lambda: None))
    await eventually(lambda: seats == ["ours"])
    await wait_for_heartbeat(shop)
    with frozen(server):
        await eventually(lambda: seats == ["ours", "left"])
        assert not keeping.done()
    await eventually(lambda: seats[-1] == "ours")
    stop.set()
    await keeping


async def test_a_command_waits_longer_for_a_busy_server_than_a_gateway(
    server: OwnServer, monkeypatch: pytest.MonkeyPatch
):
    limits: list[float | None] = []

    def recording(seconds: float | None) -> AbstractAsyncContextManager[list[Connection]]:
        limits.append(seconds)
        return time_limit(seconds)

    monkeypatch.setattr(server_monitor, "time_limit", recording)
    settings = load(None, {"database.url": server.url, "database.connect_timeout_s": 60.0})
    async with database_of_a_command(settings, purpose="hang") as database:
        await wait_for_heartbeat(database)
        await eventually(lambda: len(limits) > 1)
    assert set(limits) == {60.0}
