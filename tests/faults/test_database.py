"""PostgreSQL stops, hangs, refuses to write, has no connection left, or dies with the gateway; senders notice nothing."""

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import psutil
import psycopg
import pytest

from boathook.telemetry.crashpoints import POINTS
from tests.acceptance.conftest import BoathookProcess
from tests.crash_schedule import CrashSchedule
from tests.databases import with_database
from tests.faults.rig import bank
from tests.faults.rig.environment import Host, Lab
from tests.faults.rig.mutants import Twin
from tests.faults.rig.outages import NO_SPOOL, RATE, Repeatedly, ride_out, tell
from tests.faults.rig.postgres import OwnServer
from tests.faults.rig.scenario import scenario
from tests.faults.rig.senders import Letter, make_letter
from tests.support import until

TARGET = "0 signed requests without 2xx, order kept, drained by itself"
LONG_TARGET = f"{TARGET}, at 5 times the arrivals; p99 meanwhile 50 ms"
PATIENT = replace(bank.LIMITS, quiet_s=180.0)
MINUTE = int(60 * RATE)


@scenario(fault="PostgreSQL stopped for 4 s: it refuses connections", target=TARGET, twin=NO_SPOOL)
def test_stopped(it: Lab) -> None:
    it.start()
    ride_out(it, "PostgreSQL is stopped", it.server.stop)


@scenario(fault="PostgreSQL stopped for 60 s", target=LONG_TARGET, twin=NO_SPOOL, limits=PATIENT, tier="soak")
def test_stopped_for_a_minute(it: Lab) -> None:
    it.start()
    ride_out(it, "PostgreSQL is stopped", it.server.stop, events=MINUTE, drains=5)


@scenario(fault="PostgreSQL hung for 4 s (SIGSTOP of all its processes)", target=TARGET, twin=NO_SPOOL, tier="extended")
def test_hung(it: Lab) -> None:
    it.start()
    ride_out(it, "PostgreSQL hangs", it.server.freeze)


@scenario(fault="PostgreSQL hung for 60 s", target=LONG_TARGET, twin=NO_SPOOL, limits=PATIENT, tier="soak")
def test_hung_for_a_minute(it: Lab) -> None:
    it.start()
    ride_out(it, "PostgreSQL hangs", it.server.freeze, events=MINUTE, drains=5)


def _letters(begin: int, count: int = 30) -> list[Letter]:
    numbers = range(begin, begin + count)
    return [make_letter(f"evt_{number}", "move.made", f"a{number % 10:02}", "a19", number) for number in numbers]


@scenario(
    fault="copies before, during and after an outage, the gateway killed in the middle of it",
    target="one row and one effect each, every copy answered 2xx",
    twin=Twin("drains_as_new", breaks=frozenset({"C3"})),
    tier="extended",
)
def test_copies_around_an_outage(it: Lab) -> None:
    it.start()
    before, spooled, after_death = _letters(0), _letters(30), _letters(60)

    def send(*groups: list[Letter]) -> None:
        for group in groups:
            it.send(*group)
        it.expect("C1", it.outside.settle(60), "a copy was not accepted")

    send(before)
    it.fault("PostgreSQL is stopped")
    it.server.stop()
    send(before, spooled)
    it.fault("the gateway is killed")
    it.host.kill("gateway")
    send(before, spooled, after_death)
    waiting = len(it.spooled())
    it.heal()
    send(before, spooled, after_death)
    it.quiesce()
    rows = it.ask("select count(*) from boathook.event")[0][0]
    it.expect("C3", rows == 90, f"90 events have made {rows} rows")
    it.figure("copies in the spool", waiting - 60)


@scenario(
    fault="newer events of the same keys arrive while those of an outage are drained, slowly",
    target="effects in the order of acceptance",
    twin=Twin("overtakes_the_spool", breaks=frozenset({"C6"})),
    tier="extended",
)
def test_newer_events_go_behind_the_spool(it: Lab) -> None:
    host = it.start(roles="gateway", is_wired=True, settings={"database": {"intake_batch": 16}})
    hands = it.start(roles="worker,keeper")
    assert host.wire is not None
    it.begin(rate=RATE, accounts=5)
    it.wait_row("select from bank.effect", timeout_s=90)
    it.fault("PostgreSQL is stopped")
    it.server.stop()
    it.outside.wait_events(200)
    waiting = len(it.spooled())
    host.wire.set(
        is_refusing=True
    )  # until the worker is back: it is to meet events in the order in which they are drained
    it.server.restart()
    until(lambda: "postgresql_back" in hands.log(), timeout=60)
    it.heal()
    host.wire.set(latency_s=0.03)
    it.warm(90, timeout_s=60)
    host.wire.heal()
    it.quiesce()
    tell(it, waiting)


SPOOL_POINTS = [point for point in POINTS if point.startswith(("spool.", "drain."))]


@scenario(
    fault=f"the gateway killed at each of {', '.join(SPOOL_POINTS)}",
    target="0 lost, order kept, drained by itself",
    twin=Twin("answers_before_write", breaks=frozenset({"C1"})),
    tier="extended",
)
def test_gateway_dies_at_every_point_of_the_spool(it: Lab) -> None:
    writing = CrashSchedule(it.folder, {point: 10 for point in SPOOL_POINTS if point.startswith("spool.")})
    draining = CrashSchedule(it.folder, {point: 1 for point in SPOOL_POINTS if point.startswith("drain.")})
    both = CrashSchedule(it.folder, {**writing.hits, **draining.hits})
    it.start(**both.environment)
    it.begin(rate=RATE)
    it.warm(30)
    it.fault("PostgreSQL is stopped")
    it.server.stop()
    writing.wait()
    it.warm(30)
    waiting = len(it.spooled())
    it.heal()
    draining.wait()
    it.warm(30)
    it.figure("deaths", len(SPOOL_POINTS))
    it.figure("spooled", waiting)


@scenario(
    fault="boathook stopped and started again while PostgreSQL is away",
    target="0 lost; workers start by themselves once it is back, and all is drained",
    twin=Twin("adopts_nothing", breaks=frozenset({"C11"})),
    tier="soak",
)
def test_started_without_postgresql(it: Lab) -> None:
    host = it.start()
    it.begin(rate=RATE)
    it.warm(30)
    it.fault("PostgreSQL is stopped")
    it.server.stop()
    it.outside.wait_events(120)
    it.expect("C11", host.stop() == 0, "it did not stop well while PostgreSQL was away")
    host.start(wait=False)
    it.warm(120, timeout_s=60)
    waiting = len(it.spooled())
    it.expect("C11", not host.children("worker"), "workers run without PostgreSQL")
    it.heal()
    it.warm(30)
    until(lambda: host.children("worker"), timeout=60)
    it.quiesce()
    it.figure("spooled", waiting)


@scenario(
    fault="PostgreSQL takes no writes (default_transaction_read_only = on)", target=TARGET, twin=NO_SPOOL, tier="soak"
)
def test_read_only(it: Lab) -> None:
    it.start()
    ride_out(
        it,
        "PostgreSQL only reads",
        lambda: it.server.set(default_transaction_read_only="on"),
        end=lambda: it.server.set(default_transaction_read_only="off"),
    )


@scenario(
    fault="PostgreSQL in recovery as a standby, promoted later; another boathook started meanwhile",
    target=f"{TARGET}; who was started while it was down stays, and its workers start",
    twin=NO_SPOOL,
    tier="soak",
)
def test_standby(it: Lab) -> None:
    it.start()
    late: list[Host] = []

    def become_standby() -> None:
        it.server.stop("fast")
        late.append(it.start(roles="gateway", wait=False))
        until(lambda: '"journal_away"' in late[0].log() or not late[0].is_running())
        (it.server.data / "standby.signal").touch()
        it.server.restart()

    ride_out(it, "PostgreSQL becomes a standby", become_standby, end=lambda: it.ask("select pg_promote()"), events=360)
    it.expect("C11", it.is_twin or late[0].is_running(), "who was started meanwhile has ended by itself")


def _crash(server: OwnServer) -> int:
    """Kill the process that writes PostgreSQL's log: all connections end, and it recovers. Return how many were killed."""
    killed = 0
    for writer in _writers(server):
        with suppress(ProcessLookupError):
            os.kill(writer, signal.SIGKILL)
            killed += 1
    return killed


def _writers(server: OwnServer) -> list[int]:
    found = []
    with suppress(psutil.Error):
        for child in psutil.Process(server.server.pid()).children():
            with suppress(psutil.Error):
                found += [child.pid] if "walwriter" in " ".join(child.cmdline()) else []
    return found


@scenario(
    fault="PostgreSQL recovers again and again: a backend is killed every 0.2 s",
    target=TARGET,
    twin=NO_SPOOL,
    tier="soak",
)
def test_crash_loop(it: Lab) -> None:
    it.start()
    it.begin(rate=RATE)
    it.warm(30)
    it.fault("PostgreSQL crashes again and again")
    with Repeatedly(partial(_crash, it.server), every_s=0.2) as crashes:
        it.outside.wait_events(300, timeout_s=60)
    it.heal()
    it.warm(30, timeout_s=60)
    it.quiesce()
    tell(it)
    it.figure("crashes", crashes.count)


class Stranger:
    """Takes every connection that PostgreSQL has, from whoever has one."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._open = ExitStack()

    def take_all(self) -> None:
        """Cut boathook's connections and take what becomes free, until none is left to it."""
        admin = self._take()
        assert admin is not None
        until(lambda: self._cut_others(admin) == 0)

    def _cut_others(self, admin: psycopg.Connection[object]) -> int:
        """Cut all there are and take what can be had; return how many they had before."""
        others = "from pg_stat_activity where application_name like 'boathook:%'"
        cut = admin.execute(f"select pg_terminate_backend(pid) {others}").rowcount
        while self._take() is not None:
            pass
        return cut

    def _take(self) -> "psycopg.Connection[object] | None":
        try:
            one = psycopg.connect(self._url, autocommit=True, application_name="stranger")
        except psycopg.OperationalError:
            return None
        return self._open.enter_context(one)

    def leave(self) -> None:
        self._open.close()


@scenario(
    fault="a stranger takes every connection PostgreSQL has, and cuts boathook's",
    target=TARGET,
    twin=NO_SPOOL,
    tier="soak",
)
def test_no_connection_left(it: Lab) -> None:
    it.server.set(max_connections="40")
    it.server.stop("fast")
    it.server.restart()
    stranger = Stranger(it.server.url)
    it.start()
    ride_out(it, "a stranger takes every connection", stranger.take_all, end=stranger.leave)


CROWD = int(os.environ.get("BOATHOOK_TEST_CROWD", "20000"))
"""How many events of 4 kB are to wait in the spool."""


@scenario(
    fault=f"{CROWD:,} events of 4 kB wait in the spool",
    target="the gateway's memory 1.5 times that of an idle one, at most",
    twin=Twin("hoards_what_it_spools", breaks=frozenset({"C14"})),
    limits=PATIENT,
    tier="soak",
)
def test_memory_of_a_full_spool(it: Lab) -> None:
    host = it.start(roles="gateway")
    gateway = host.children("gateway")[0]
    noise = {"noise.made": 1.0}
    it.begin(rate=200, kinds=noise)
    it.warm(300)
    it.outside.stop()
    it.outside.settle()
    idle = gateway.memory_info().rss
    it.fault("PostgreSQL is stopped")
    it.server.stop()
    it.begin(
        rate=2_000,
        count=CROWD,
        most_at_once=32,
        copies=0.0,
        conflicts=0.0,
        forgeries=0.0,
        kinds=noise,
        more={"text": "x" * 4_000},
    )
    it.warm(CROWD, timeout_s=400)
    waiting, full = len(it.spooled()), gateway.memory_info().rss
    it.heal()
    until(lambda: not any(host.data.glob("spool/*/*.seg")), timeout=120)
    drained = gateway.memory_info().rss
    most = max(full, drained)
    it.expect("C14", most <= 1.5 * idle, f"the gateway grew from {idle >> 20} to {most >> 20} MiB")
    it.figure("waiting", waiting)
    it.figure("memory, waiting and drained", f"{full / idle:.2f} and {drained / idle:.2f} times that when idle")


def _without_database(server: OwnServer) -> str:
    return with_database(server.url, "no_such_database")


def _without_password(server: OwnServer) -> str:
    with psycopg.connect(server.url, autocommit=True) as admin:
        rules = Path(admin.execute("show hba_file").fetchone()[0])
        rules.write_text("local all all scram-sha-256\n")
        admin.execute("select pg_reload_conf()")
    until(lambda: _is_refused(server.url))
    return server.url


def _is_refused(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return True
    return False


def _as_standby(server: OwnServer) -> str:
    server.stop("fast")
    (server.data / "standby.signal").touch()
    server.restart()
    return server.url


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_without_database, "PostgreSQL refuses database.url: "),
        (_without_password, "PostgreSQL refuses database.url: "),
        (_as_standby, "database.url names a standby"),
    ],
)
def test_a_wrong_address_ends_the_start_and_is_no_outage(
    spoil: Callable[[OwnServer], str], told: str, own_server: OwnServer, tmp_path: Path
):
    running = BoathookProcess(tmp_path, spoil(own_server), roles="gateway,worker,keeper")
    try:
        running.start(wait=False)
        assert running.process is not None
        assert running.process.wait(60) == 1
    finally:
        running.kill_all()
    assert told in running.log()
    assert not list(tmp_path.glob("data/spool/*/*"))
