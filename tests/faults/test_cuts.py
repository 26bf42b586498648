"""The network to PostgreSQL is cut: silently, in one direction, with a reset, or by a cable that is pulled."""

import asyncio
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import pytest

from boathook.db import connection as connection_module
from boathook.db import server_monitor
from boathook.domain.errors import DatabaseUnavailable
from tests.faults.frozen_server import (
    DETECTED_S,
    open_database,
    time_to_fail,
    wait_for_heartbeat,
    wait_until_available,
)
from tests.faults.rig.postgres import OwnServer
from tests.faults.rig.proxy import Proxy
from tests.support import eventually, sampled


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    """One server for all of this file; each test leaves it as it has found it."""
    one = OwnServer()
    yield one
    one.close()


@pytest.fixture
def is_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Signs of life come five times as often, and are waited for a third of the time."""
    monkeypatch.setattr(server_monitor, "HEARTBEAT_INTERVAL_S", 0.2)
    monkeypatch.setattr(server_monitor, "MIN_TIMEOUT_S", 0.5)


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


@pytest.mark.parametrize("cut", sampled(CUTS.values(), keep=1), ids=CUTS)
async def test_a_cut_network_is_detected(server: OwnServer, wire: Proxy, cut: dict[str, bool | str], is_quick: None):
    async with open_database(server.wired(wire.port)) as database:
        await wait_for_heartbeat(database)
        wire.set(**cut)
        await time_to_fail(database)
        wire.heal()
        await wait_until_available(database)


async def test_reset_connections_are_reopened(server: OwnServer, wire: Proxy, is_quick: None):
    async with open_database(server.wired(wire.port)) as database:
        await wait_for_heartbeat(database)
        assert wire.reset() >= 2
        await wait_until_available(database)
        wire.set(is_refusing=True)
        wire.reset()
        await eventually(lambda: database.monitor.is_unavailable)
        wire.heal()
        await wait_until_available(database)


@pytest.mark.parametrize(
    "cut", sampled([{"is_stalled": True}, {"deaf": "up"}, {"deaf": "down"}, {}], keep=1), ids=[*CUTS, "reset"]
)
async def test_a_listener_reconnects_after_a_cut(server: OwnServer, wire: Proxy, cut, is_quick):
    heard: list[str] = []
    async with open_database(server.wired(wire.port)) as database, open_database(server.url) as other:
        await database.listen("news", heard.append)
        await wait_for_heartbeat(database)
        if cut:
            wire.set(**cut)
            await eventually(lambda: database.monitor.is_unavailable)
            wire.heal()
        else:
            wire.reset()

        async def is_heard() -> bool:
            await other.execute("select pg_notify('news', 'again')")
            return "again" in heard

        await eventually(is_heard, every=0.1)


@pytest.mark.soak
async def test_a_slow_network_is_not_taken_for_a_cut_one(server: OwnServer, wire: Proxy, is_quick: None):
    async with open_database(server.wired(wire.port)) as database:
        await wait_for_heartbeat(database)
        missed: list[bool] = []
        database.monitor.add_outage_callback(lambda: missed.append(True))
        wire.set(latency_s=0.2, jitter_s=0.05)
        for _ in range(6):
            assert await database.fetchval("select 1") == 1
        assert missed == []


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
        """Unplug the far end of the cable: sent packets are lost without a local error."""
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


@pytest.mark.extended("waits for intervals and deadlines of the product")
async def test_a_pulled_cable_is_detected_within_five_seconds(island: Island):
    async with open_database(island.url) as database:
        await wait_for_heartbeat(database)
        island.pull()
        assert await time_to_fail(database) < DETECTED_S
        island.plug()
        await wait_until_available(database)


@pytest.mark.extended("waits for intervals and deadlines of the product")
async def test_the_kernel_closes_an_unacknowledged_connection(island: Island, monkeypatch: pytest.MonkeyPatch):
    """One connection may be cut without the others, unseen by the heartbeat."""
    monkeypatch.setattr(server_monitor.ServerMonitor, "_mark_unavailable", lambda _pulse, _error: None)
    async with open_database(island.url) as database:
        await database.fetchval("select 1")
        island.pull()
        began = time.monotonic()
        async with asyncio.timeout(4 * DETECTED_S):
            with pytest.raises(DatabaseUnavailable):
                await database.fetchval("select 1")
        assert time.monotonic() - began < 1.4 * DETECTED_S
        island.plug()
        await wait_until_available(database)


@pytest.mark.soak
async def test_without_socket_timeouts_such_a_connection_hangs(island: Island, monkeypatch: pytest.MonkeyPatch):
    """Mutant of the test above, which shows that it can fail."""
    monkeypatch.setattr(server_monitor.ServerMonitor, "_mark_unavailable", lambda _pulse, _error: None)
    monkeypatch.setattr(connection_module, "SOCKET_OPTIONS", ())
    async with open_database(island.url) as database:
        await database.fetchval("select 1")
        island.pull()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.5 * DETECTED_S), database.acquire(within_s=3 * DETECTED_S) as connection:
                await connection.fetchval("select 1")
