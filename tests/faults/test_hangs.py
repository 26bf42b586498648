"""PostgreSQL hangs, or is cut off: it answers nothing and refuses nothing, as no stopped server does."""

import asyncio
import contextlib
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import asyncpg
import psycopg
import pytest

from boathook.config import load
from boathook.dispatch import keeper
from boathook.domain.errors import JournalUnavailable
from boathook.domain.policy import RetryPolicy
from boathook.handlers.api import Boathook, Event, Transaction
from boathook.journal import pulse
from boathook.journal.database import Connection, Database
from boathook.journal.deliveries import keeper_seat
from boathook.journal.schema import migrate
from tests.faults.rig.postgres import OwnServer
from tests.faults.rig.proxy import Proxy
from tests.handling import accept, attempts, settled, working
from tests.support import eventually

WITHIN_S = 0.5
LATE_S = 1.5
"""What a busy machine may add to a time that is up; a wait for the server would take as long as the test."""
DETECTED_S = 5.0
FULL = r"too many clients|reserved"
BACK_S = 5.0


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    """One server for all of this file; each test leaves it as it has found it."""
    one = OwnServer()
    yield one
    one.close()


@contextmanager
def frozen(server: OwnServer) -> Iterator[None]:
    """Stop every process of the server where it stands, and let them all go on at the end of the block."""
    server.freeze()
    try:
        yield
    finally:
        server.thaw()


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
    server: OwnServer, use, is_connected: bool
):
    async with opened(server.url) as database:
        if is_connected:
            await database.fetchval("select 1")
        before = asyncio.all_tasks()
        with frozen(server):
            began = time.monotonic()
            with pytest.raises(JournalUnavailable, match=r"did not answer within 0\.5 s"):
                async with database.acquire(within_s=WITHIN_S) as connection:
                    await use(connection)
            assert time.monotonic() - began < WITHIN_S + LATE_S
            await asyncio.sleep(0)
            assert asyncio.all_tasks() == before
        assert await database.fetchval("select 1") == 1


# Found out without a limit of one's own


@pytest.fixture
def is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life come five times as often, and are waited for a third of the time."""
    monkeypatch.setattr(pulse, "BEAT_S", 0.2)
    monkeypatch.setattr(pulse, "PATIENCE_S", 0.5)


async def is_watched(database: Database) -> None:
    """Wait until the pulse has its connection."""
    name = "select count(*) from pg_stat_activity where application_name = 'boathook:hang:pulse'"
    await eventually(lambda: database.fetchval(name))


async def use(database: Database, what: Callable[[Connection], Awaitable[object]]) -> None:
    async with database.acquire() as connection:
        await what(connection)


async def find_out(database: Database, within_s: float = 3 * DETECTED_S) -> float:
    """Return how long those waited who asked a server that has just fallen silent, in every way there is."""
    began = time.monotonic()
    waiting = [
        asyncio.create_task(database.fetchval("select 1")),
        asyncio.create_task(use(database, ask_in_transaction)),
        asyncio.create_task(database.execute("select 1")),  # there are but two connections
    ]
    done, late = await asyncio.wait(waiting, timeout=within_s)
    took_s = time.monotonic() - began
    for one in late:
        one.cancel()
    assert not late, f"{len(late)} still wait"
    for one in done:
        assert isinstance(
            one.exception(), JournalUnavailable | asyncpg.InterfaceError | asyncpg.PostgresConnectionError
        )
    began = time.monotonic()
    with pytest.raises(JournalUnavailable):
        await database.fetchval("select 1")
    assert time.monotonic() - began < LATE_S / 3, "who asks a server known to be away is told at once"
    return took_s


async def answers_again(database: Database) -> None:
    async def answer() -> bool:
        with contextlib.suppress(JournalUnavailable):
            return await database.fetchval("select 1") == 1
        return False

    await eventually(answer, timeout=BACK_S)


async def test_a_hang_is_found_out_within_five_seconds_and_its_end_as_well(server: OwnServer):
    async with opened(server.url) as database:
        await is_watched(database)
        with frozen(server):
            assert await find_out(database) < DETECTED_S
        await answers_again(database)


async def test_without_a_pulse_those_who_wait_for_a_hung_server_would_go_on_waiting(
    server: OwnServer, is_quick: None, monkeypatch: pytest.MonkeyPatch
):
    """Sabotage twin of the test above: it can fail."""
    monkeypatch.setattr(pulse.Pulse, "_miss", lambda _pulse, _error: None)
    async with opened(server.url) as database:
        await is_watched(database)
        with frozen(server), pytest.raises(AssertionError, match="3 still wait"):
            await find_out(database, 4)


async def test_a_stopped_server_is_found_out_at_once(server: OwnServer, is_quick: None):
    async with opened(server.url) as database:
        await is_watched(database)
        await asyncio.to_thread(server.stop)
        assert await find_out(database) < 2
        await asyncio.to_thread(server.restart)
        await answers_again(database)


async def test_a_long_statement_is_no_hang(server: OwnServer, is_quick: None):
    async with opened(server.url) as database:
        await is_watched(database)
        assert await database.fetchval("select 1 from pg_sleep(2)") == 1


async def test_a_process_that_stood_still_does_not_blame_the_server(server: OwnServer, is_quick: None):
    async with opened(server.url) as database:
        await is_watched(database)
        asked = asyncio.create_task(database.fetchval("select 1 from pg_sleep(2)"))
        for _ in range(3):
            await asyncio.sleep(0.1)
            time.sleep(0.6)  # noqa: ASYNC251 - it is the event loop that is to stand still
        assert await asked == 1


# Cut off


@pytest.fixture
def wire(server: OwnServer) -> Iterator[Proxy]:
    """A proxy in front of the server."""
    with Proxy(server.socket) as proxy:
        yield proxy


CUTS = {
    "silent": {"is_stalled": True},
    "deaf server": {"deaf": "up"},
    "deaf client": {"deaf": "down"},
}


@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
async def test_a_cut_network_is_found_out(server: OwnServer, wire: Proxy, cut: dict[str, bool | str], is_quick: None):
    async with opened(server.wired(wire.port)) as database:
        await is_watched(database)
        wire.set(**cut)
        assert await find_out(database) < DETECTED_S
        wire.heal()
        await answers_again(database)


async def test_connections_that_are_reset_are_made_anew(server: OwnServer, wire: Proxy, is_quick: None):
    async with opened(server.wired(wire.port)) as database:
        await is_watched(database)
        assert wire.reset() >= 2
        await answers_again(database)
        wire.set(is_refusing=True)
        wire.reset()
        await eventually(lambda: database.pulse.is_away)
        wire.heal()
        await answers_again(database)


@pytest.mark.parametrize("cut", [{"is_stalled": True}, {"deaf": "up"}, {"deaf": "down"}, {}], ids=[*CUTS, "reset"])
async def test_a_listener_hears_again_after_its_connection_was_cut(server: OwnServer, wire: Proxy, cut, is_quick):
    heard: list[str] = []
    async with opened(server.wired(wire.port)) as database, opened(server.url) as other:
        await database.listen("news", heard.append)
        await is_watched(database)
        if cut:
            wire.set(**cut)
            await eventually(lambda: database.pulse.is_away, timeout=DETECTED_S)
            wire.heal()
        else:
            wire.reset()

        async def is_heard() -> bool:
            await other.execute("select pg_notify('news', 'again')")
            return "again" in heard

        await eventually(is_heard, timeout=BACK_S, every=0.1)


async def test_a_slow_network_is_not_taken_for_a_cut_one(server: OwnServer, wire: Proxy, is_quick: None):
    async with opened(server.wired(wire.port)) as database:
        await is_watched(database)
        missed: list[bool] = []
        database.pulse.share(lambda: missed.append(True))
        wire.set(latency_s=0.2, jitter_s=0.05)
        for _ in range(6):
            assert await database.fetchval("select 1") == 1
        assert missed == []


async def test_a_server_without_a_connection_to_spare_is_not_away_and_gives_one_when_it_can(
    server: OwnServer, is_quick: None
):
    async with opened(server.url) as database:
        async with taken(server, all_but=0):
            with pytest.raises(JournalUnavailable, match=FULL):
                await database.fetchval("select 1")
            await asyncio.sleep(2 * pulse.BEAT_S)
            assert not database.pulse.is_away
        await answers_again(database)


RELAY = """
import asyncio, sys

async def pump(reader, writer):
    while chunk := await reader.read(65536):
        writer.write(chunk)
        await writer.drain()
    writer.close()

async def take(reader, writer):
    far_reader, far_writer = await asyncio.open_unix_connection(sys.argv[1])
    await asyncio.gather(pump(reader, far_writer), pump(far_reader, writer), return_exceptions=True)

async def serve():
    server = await asyncio.start_server(take, sys.argv[2], 5432)
    print("ready", flush=True)
    await server.serve_forever()

asyncio.run(serve())
"""


class Island:
    """A network namespace with the server's port in it, reached by one cable that can be pulled."""

    def __init__(self, server: OwnServer) -> None:
        self.name = f"bh{uuid.uuid4().hex[:8]}"
        number = int(self.name[2:4], 16)
        self.host, here = f"10.231.{number}.2", f"10.231.{number}.1"
        cable = (f"{self.name}a", f"{self.name}b")
        self.url = f"postgresql://boathook@{self.host}:5432/boathook?sslmode=disable"
        _ip("netns", "add", self.name)
        try:
            _ip("link", "add", cable[0], "type", "veth", "peer", "name", cable[1], "netns", self.name)
            _ip("addr", "add", f"{here}/30", "dev", cable[0])
            _ip("link", "set", cable[0], "up")
            for words in (("addr", "add", f"{self.host}/30", "dev", cable[1]), ("link", "set", cable[1], "up")):
                _ip("-n", self.name, *words)
            self._relay = subprocess.Popen(
                ["ip", "netns", "exec", self.name, sys.executable, "-c", RELAY, server.socket, self.host],
                stdout=subprocess.PIPE,
            )
        except BaseException:
            _ip("netns", "del", self.name)
            raise
        assert self._relay.stdout is not None
        self._relay.stdout.readline()

    def pull(self) -> None:
        """Take the far end of the cable out: what is sent is lost without a word, and here nobody sees why."""
        _ip("-n", self.name, "link", "set", f"{self.name}b", "down")

    def plug(self) -> None:
        """Put it in again."""
        _ip("-n", self.name, "link", "set", f"{self.name}b", "up")

    def close(self) -> None:
        with self._relay:
            self._relay.kill()
        _ip("netns", "del", self.name)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


@pytest.fixture
def island(server: OwnServer) -> Iterator[Island]:
    if shutil.which("ip") is None:
        pytest.skip("there is no program ip: install iproute2")
    try:
        one = Island(server)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace may be made here: {error.stderr.decode().strip()}")
    yield one
    one.close()


async def test_a_pulled_cable_is_found_out_within_five_seconds(island: Island):
    async with opened(island.url) as database:
        await is_watched(database)
        island.pull()
        assert await find_out(database) < DETECTED_S
        island.plug()
        await answers_again(database)


async def test_the_system_gives_up_a_connection_that_nobody_acknowledges(
    island: Island, monkeypatch: pytest.MonkeyPatch
):
    """A single connection may be cut while others are not, as by a router that forgets it; no pulse tells of that."""
    monkeypatch.setattr(pulse.Pulse, "_miss", lambda _pulse, _error: None)
    async with opened(island.url) as database:
        await database.fetchval("select 1")
        island.pull()
        began = time.monotonic()
        async with asyncio.timeout(4 * DETECTED_S):
            with pytest.raises(JournalUnavailable):
                await database.fetchval("select 1")
        assert time.monotonic() - began < 1.4 * DETECTED_S
        island.plug()
        await answers_again(database)


async def test_without_the_systems_watch_such_a_connection_would_be_waited_for(
    island: Island, monkeypatch: pytest.MonkeyPatch
):
    """Sabotage twin of the test above: it can fail."""
    monkeypatch.setattr(pulse.Pulse, "_miss", lambda _pulse, _error: None)
    monkeypatch.setattr(pulse, "_SOCKET", ())
    async with opened(island.url) as database:
        await database.fetchval("select 1")
        island.pull()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5 * DETECTED_S), database.acquire(within_s=3 * DETECTED_S) as connection:
                await connection.fetchval("select 1")


# Under handlers, keepers and pools that are too small


@pytest.fixture
async def shop(server: OwnServer) -> AsyncIterator[Database]:
    """A journal on the server that may hang, beside a table of the user's own; empty at each test's end."""
    await migrate(server.url)
    async with opened(server.url, size=10) as database:
        await database.execute("create table if not exists deed (n int)")
        yield database
        await database.execute("truncate deed, boathook.event, boathook.delivery, boathook.outcome, boathook.attempt")


@pytest.mark.parametrize("moment", ["before the effect", "after the effect", "before the settle"])
async def test_a_handler_caught_in_a_hang_longer_than_its_lease_takes_effect_once(
    server: OwnServer, shop: Database, is_quick: None, moment: str
):
    hook, hanging = Boathook(), []

    async def hang(now: str, event: Event) -> None:
        if moment == now and event.attempt == 1:
            server.freeze()
            hanging.append(asyncio.create_task(thaw()))

    async def thaw() -> None:
        try:
            await eventually(lambda: shop.pulse.is_away)
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

    await is_watched(shop)
    async with working(shop, hook, lease_s=1.0), working(shop, hook, worker_id="w2", lease_s=1.0):
        await accept(shop, {})
        await eventually(lambda: hanging and hanging[0].done())
        await eventually(lambda: not shop.pulse.is_away)
        await settled(shop, succeeded=1)
    assert await shop.fetchval("select count(*) from deed") == 1


async def test_more_long_handlers_than_connections_all_have_their_turn(server: OwnServer, shop: Database):
    """Fifty more than there are connections, and so few are left by strangers that not all of these can be had."""
    hook, running, most = Boathook(), 0, 0

    @hook.on("shop", retry=RetryPolicy(max_attempts=1))
    async def note(event: Event, tx: Transaction) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await tx.execute("insert into deed values (1)")
        await asyncio.sleep(0.2)
        running -= 1

    async with working(shop, hook, concurrency=66), taken(server, all_but=8):
        await accept(shop, *({"n": n} for n in range(66)))
        await settled(shop, succeeded=66)
        assert most < 16
    assert await shop.fetchval("select count(*) from deed") == 66
    assert await attempts(shop) == [(1, "succeeded", None)] * 66


@asynccontextmanager
async def taken(server: OwnServer, *, all_but: int) -> AsyncIterator[None]:
    """Have a stranger hold all connections of the server but so many."""
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


async def test_a_keeper_whose_server_hung_is_the_keeper_no_more_until_it_is_elected_again(
    server: OwnServer, shop: Database, is_quick: None, monkeypatch: pytest.MonkeyPatch
):
    seats: list[str] = []

    @asynccontextmanager
    async def noted_seat(database: Database) -> AsyncIterator[Connection | None]:
        async with keeper_seat(database) as seat:
            seats.append("none" if seat is None else "ours")
            try:
                yield seat
            finally:
                seats.append("left")

    monkeypatch.setattr(keeper, "keeper_seat", noted_seat)
    stop = asyncio.Event()
    settings = load(None, {"database.url": server.url})
    keeping = asyncio.create_task(keeper.run_keeper(settings, stop=stop, beat=lambda: None))
    await eventually(lambda: seats == ["ours"])
    await is_watched(shop)
    with frozen(server):
        await eventually(lambda: seats == ["ours", "left"], timeout=DETECTED_S)
        assert not keeping.done()
    await eventually(lambda: seats[-1] == "ours", timeout=BACK_S + LATE_S)
    stop.set()
    await keeping
