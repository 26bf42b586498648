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

from boathook.observability.failpoints import FAILPOINTS
from tests.acceptance.conftest import BoathookProcess
from tests.crash_schedule import CrashSchedule
from tests.databases import with_database
from tests.faults.rig import bank
from tests.faults.rig.environment import Environment, Host
from tests.faults.rig.mutants import Mutant
from tests.faults.rig.outages import NO_SPOOL, RATE, Repeatedly, report_outage, run_outage
from tests.faults.rig.postgres import OwnServer
from tests.faults.rig.scenario import scenario
from tests.faults.rig.senders import SignedEvent, make_event
from tests.support import until

TARGET = "0 signed requests without 2xx, order kept, drained by itself"
LONG_TARGET = f"{TARGET}, at 5 times the arrivals; p99 meanwhile 50 ms"
PATIENT = replace(bank.LIMITS, quiet_s=180.0)
MINUTE = int(60 * RATE)


@scenario(fault="PostgreSQL stopped for 4 s: it refuses connections", target=TARGET, mutant=NO_SPOOL)
def test_stopped(env: Environment) -> None:
    env.start()
    run_outage(env, "PostgreSQL is stopped", env.server.stop)


@scenario(fault="PostgreSQL stopped for 60 s", target=LONG_TARGET, mutant=NO_SPOOL, limits=PATIENT, tier="soak")
def test_stopped_for_a_minute(env: Environment) -> None:
    env.start()
    run_outage(env, "PostgreSQL is stopped", env.server.stop, events=MINUTE, drains=5)


@scenario(
    fault="PostgreSQL hung for 4 s (SIGSTOP of all its processes)", target=TARGET, mutant=NO_SPOOL, tier="extended"
)
def test_hung(env: Environment) -> None:
    env.start()
    run_outage(env, "PostgreSQL hangs", env.server.freeze)


@scenario(fault="PostgreSQL hung for 60 s", target=LONG_TARGET, mutant=NO_SPOOL, limits=PATIENT, tier="soak")
def test_hung_for_a_minute(env: Environment) -> None:
    env.start()
    run_outage(env, "PostgreSQL hangs", env.server.freeze, events=MINUTE, drains=5)


def _events(begin: int, count: int = 30) -> list[SignedEvent]:
    numbers = range(begin, begin + count)
    return [make_event(f"evt_{number}", "move.made", f"a{number % 10:02}", "a19", number) for number in numbers]


@scenario(
    fault="copies before, during and after an outage, the gateway killed in the middle of it",
    target="one row and one effect each, every copy answered 2xx",
    mutant=Mutant("drains_as_new", breaks=frozenset({"C3"})),
    tier="extended",
)
def test_copies_around_an_outage(env: Environment) -> None:
    env.start()
    before, spooled, after_death = _events(0), _events(30), _events(60)

    def send(*groups: list[SignedEvent]) -> None:
        for group in groups:
            env.send(*group)
        env.expect("C1", env.outside.settle(60), "a copy was not accepted")

    send(before)
    env.fault("PostgreSQL is stopped")
    env.server.stop()
    send(before, spooled)
    env.fault("the gateway is killed")
    env.host.kill("gateway")
    send(before, spooled, after_death)
    waiting = len(env.spooled())
    env.heal()
    send(before, spooled, after_death)
    env.quiesce()
    rows = env.ask("select count(*) from boathook.event")[0][0]
    env.expect("C3", rows == 90, f"90 events have made {rows} rows")
    env.figure("copies in the spool", waiting - 60)


@scenario(
    fault="newer events of the same keys arrive while those of an outage are drained, slowly",
    target="effects in the order of acceptance",
    mutant=Mutant("overtakes_the_spool", breaks=frozenset({"C6"})),
    tier="extended",
)
def test_newer_events_queue_behind_the_spool(env: Environment) -> None:
    host = env.start(roles="gateway", is_wired=True, settings={"database": {"ingest_batch_size": 16}})
    hands = env.start(roles="worker,keeper")
    assert host.wire is not None
    env.begin(rate=RATE, accounts=5)
    env.wait_row("select from bank.effect", timeout_s=90)
    env.fault("PostgreSQL is stopped")
    env.server.stop()
    env.outside.wait_events(200)
    waiting = len(env.spooled())
    host.wire.set(
        is_refusing=True
    )  # until the worker is back: it is to meet events in the order in which they are drained
    env.server.restart()
    until(lambda: "postgresql_back" in hands.log())
    env.heal()
    host.wire.set(latency_s=0.03)
    env.warm(90, timeout_s=60)
    host.wire.heal()
    env.quiesce()
    report_outage(env, waiting)


SPOOL_POINTS = [point for point in FAILPOINTS if point.startswith(("spool.", "drain."))]


@scenario(
    fault=f"the gateway killed at each of {', '.join(SPOOL_POINTS)}",
    target="0 lost, order kept, drained by itself",
    mutant=Mutant("answers_before_write", breaks=frozenset({"C1"})),
    tier="extended",
)
def test_gateway_dies_at_every_point_of_the_spool(env: Environment) -> None:
    writing = CrashSchedule(env.folder, {point: 10 for point in SPOOL_POINTS if point.startswith("spool.")})
    draining = CrashSchedule(env.folder, {point: 1 for point in SPOOL_POINTS if point.startswith("drain.")})
    both = CrashSchedule(env.folder, {**writing.hits, **draining.hits})
    env.start(**both.environment)
    env.begin(rate=RATE)
    env.warm(30)
    env.fault("PostgreSQL is stopped")
    env.server.stop()
    writing.wait()
    env.warm(30)
    waiting = len(env.spooled())
    env.heal()
    draining.wait()
    env.warm(30)
    env.figure("deaths", len(SPOOL_POINTS))
    env.figure("spooled", waiting)


@scenario(
    fault="boathook stopped and started again while PostgreSQL is away",
    target="0 lost; workers start by themselves once it is back, and all is drained",
    mutant=Mutant("adopts_nothing", breaks=frozenset({"C11"})),
    tier="soak",
)
def test_started_without_postgresql(env: Environment) -> None:
    host = env.start()
    env.begin(rate=RATE)
    env.warm(30)
    env.fault("PostgreSQL is stopped")
    env.server.stop()
    env.outside.wait_events(120)
    env.expect("C11", host.stop() == 0, "it did not stop well while PostgreSQL was away")
    host.start(wait=False)
    env.warm(120, timeout_s=60)
    waiting = len(env.spooled())
    env.expect("C11", not host.children("worker"), "workers run without PostgreSQL")
    env.heal()
    env.warm(30)
    until(lambda: host.children("worker"))
    env.quiesce()
    env.figure("spooled", waiting)


@scenario(
    fault="PostgreSQL takes no writes (default_transaction_read_only = on)", target=TARGET, mutant=NO_SPOOL, tier="soak"
)
def test_read_only(env: Environment) -> None:
    env.start()
    run_outage(
        env,
        "PostgreSQL only reads",
        lambda: env.server.set(default_transaction_read_only="on"),
        end=lambda: env.server.set(default_transaction_read_only="off"),
    )


@scenario(
    fault="PostgreSQL in recovery as a standby, promoted later; another boathook started meanwhile",
    target=f"{TARGET}; who was started while it was down stays, and its workers start",
    mutant=NO_SPOOL,
    tier="soak",
)
def test_standby(env: Environment) -> None:
    env.start()
    late: list[Host] = []

    def become_standby() -> None:
        env.server.stop("fast")
        late.append(env.start(roles="gateway", wait=False))
        until(lambda: '"spooling_started"' in late[0].log() or not late[0].is_running())
        (env.server.data / "standby.signal").touch()
        env.server.restart()

    run_outage(
        env, "PostgreSQL becomes a standby", become_standby, end=lambda: env.ask("select pg_promote()"), events=360
    )
    env.expect("C11", env.is_mutant or late[0].is_running(), "who was started meanwhile has ended by itself")


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
    mutant=NO_SPOOL,
    tier="soak",
)
def test_crash_loop(env: Environment) -> None:
    env.start()
    env.begin(rate=RATE)
    env.warm(30)
    env.fault("PostgreSQL crashes again and again")
    with Repeatedly(partial(_crash, env.server), every_s=0.2) as crashes:
        env.outside.wait_events(300, timeout_s=60)
    env.heal()
    env.warm(30, timeout_s=60)
    env.quiesce()
    report_outage(env)
    env.figure("crashes", crashes.count)


class ConnectionHog:
    """Takes all connections of PostgreSQL, including those that are in use."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._open = ExitStack()

    def take_all(self) -> None:
        """Cut boathook's connections and take what becomes free, until none is left to it."""
        admin = self._take()
        assert admin is not None
        until(lambda: self._cut_others(admin) == 0)

    def _cut_others(self, admin: psycopg.Connection[object]) -> int:
        """Cut all connections and take every free one; return how many boathook had before."""
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
    mutant=NO_SPOOL,
    tier="soak",
)
def test_no_connection_left(env: Environment) -> None:
    env.server.set(max_connections="40")
    env.server.stop("fast")
    env.server.restart()
    hog = ConnectionHog(env.server.url)
    env.start()
    run_outage(env, "a stranger takes every connection", hog.take_all, end=hog.leave)


FLOOD = int(os.environ.get("BOATHOOK_TEST_CROWD", "20000"))
"""How many events of 4 kB are to wait in the spool."""


@scenario(
    fault=f"{FLOOD:,} events of 4 kB wait in the spool",
    target="the gateway's memory 1.5 times that of an idle one, at most",
    mutant=Mutant("hoards_what_it_spools", breaks=frozenset({"C14"})),
    limits=PATIENT,
    tier="soak",
)
def test_memory_of_a_full_spool(env: Environment) -> None:
    host = env.start(roles="gateway")
    gateway = host.children("gateway")[0]
    noise = {"noise.made": 1.0}
    env.begin(rate=200, kinds=noise)
    env.warm(300)
    env.outside.stop()
    env.outside.settle()
    idle = gateway.memory_info().rss
    env.fault("PostgreSQL is stopped")
    env.server.stop()
    env.begin(
        rate=2_000,
        count=FLOOD,
        most_at_once=32,
        copies=0.0,
        conflicts=0.0,
        forgeries=0.0,
        kinds=noise,
        more={"text": "x" * 4_000},
    )
    env.warm(FLOOD, timeout_s=400)
    waiting, full = len(env.spooled()), gateway.memory_info().rss
    env.heal()
    until(lambda: not any(host.data.glob("spool/*/*.seg")))
    drained = gateway.memory_info().rss
    most = max(full, drained)
    env.expect("C14", most <= 1.5 * idle, f"the gateway grew from {idle >> 20} to {most >> 20} MiB")
    env.figure("waiting", waiting)
    env.figure("memory, waiting and drained", f"{full / idle:.2f} and {drained / idle:.2f} times that when idle")


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


REPEATED = pytest.mark.extended("repeats what stays with other values")


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_without_database, "PostgreSQL rejects database.url: "),
        pytest.param(_without_password, "PostgreSQL rejects database.url: ", marks=REPEATED),
        pytest.param(_as_standby, "database.url names a standby", marks=REPEATED),
    ],
)
def test_a_wrong_address_ends_the_start_and_is_no_outage(
    spoil: Callable[[OwnServer], str], told: str, own_server: OwnServer, tmp_path: Path
):
    running = BoathookProcess(tmp_path, spoil(own_server), roles="gateway,worker,keeper")
    try:
        running.start(wait=False)
        assert running.process is not None
        assert running.process.wait(300) == 1
    finally:
        running.kill_all()
    assert told in running.log()
    assert not list(tmp_path.glob("data/spool/*/*"))
