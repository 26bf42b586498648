"""Disks that fail, fill up, lose or change data, and processes out of descriptors."""

import contextlib
import json
import os
import re
import resource
import socket
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import psycopg

from boathook.spool.segment import read_segment
from boathook.spool.segment_store import DAMAGED_SUFFIX, DONE_SUFFIX, PENDING_SUFFIX
from tests.faults.rig import bank
from tests.faults.rig.disks import (
    SmallDisk,
    cannot_mount,
    cannot_trace,
    copy_server,
    in_memory,
    server_on_small_disk,
    small_disk,
)
from tests.faults.rig.environment import Environment, Host
from tests.faults.rig.history import Answered, Sent
from tests.faults.rig.invariants import is_ok
from tests.faults.rig.mutants import Mutant
from tests.faults.rig.postgres import OwnServer
from tests.faults.rig.scenario import scenario
from tests.faults.rig.senders import PATH, SignedEvent, make_event, signature
from tests.faults.rig.syscalls import Call, Trace
from tests.support import until

PLAIN = {"copies": 0.0, "conflicts": 0.0, "forgeries": 0.0}
LONG = {f"field{number}": 1.5 for number in range(80)}
"""Makes an event longer than a kilobyte."""
PATIENT_S = 90.0


def start_without_postgresql(env: Environment, **settings: object) -> Host:
    """Start a host, and take PostgreSQL away from it, so that all goes into the spool."""
    host = env.start(is_wired=True, settings=settings)
    env.fault("PostgreSQL is unavailable")
    cut_off(host)
    return host


def cut_off(host: Host) -> None:
    """Refuse every connection of a host to PostgreSQL."""
    assert host.wire is not None
    host.wire.set(is_refusing=True)
    host.wire.reset()


def refused(env: Environment) -> int:
    """Return how many requests were answered 5xx or 429."""
    return sum(fact.status == 429 or fact.status >= 500 for fact in env.history() if isinstance(fact, Answered))


def wait_refused(env: Environment, more: int = 10) -> None:
    """Wait until this many more requests were rejected."""
    goal = refused(env) + more
    until(lambda: refused(env) >= goal, timeout=PATIENT_S)


def post(env: Environment, host: Host, event: SignedEvent, timeout_s: float = 20.0) -> httpx.Response:
    """Send one event."""
    headers = {"content-type": "application/json", "stripe-signature": signature(env.load(), event)}
    return httpx.post(f"http://{host.address}{PATH}", content=event.body, headers=headers, timeout=timeout_s)


def is_soon(host: Host, name: str, value: float) -> bool:
    """Return whether a metric of the gateway's gets this value."""
    with contextlib.suppress(AssertionError):
        until(lambda: metric(host, name) == value, timeout=PATIENT_S)
        return True
    return False


def metric(host: Host, name: str) -> float:
    """Return a metric of the gateway's, added up over its labels; the page may be up to a second old."""
    page = httpx.get(f"{host.base}/metrics", timeout=20).text
    return sum(float(line.split()[-1]) for line in page.splitlines() if re.match(rf"{name}[ {{]", line))


# -- syncs that fail, and answers that come before them


SYNCS = "write,writev,pwrite64,fsync,fdatasync,read,recvfrom,recvmsg,sendto,sendmsg"


def _failed_then_synced(calls: list[Call]) -> list[str]:
    """Return the segments that were synced again after a sync of theirs had failed."""
    broken: set[str] = set()
    again = []
    for call in (call for call in calls if call.name in {"fdatasync", "fsync"}):
        if call.file in broken:
            again.append(call.file)
        if call.name == "fdatasync" and not call.is_fine:
            broken.add(call.file)
    return again


def _accepted_while_failing(env: Environment) -> list[str]:
    """Return the keys of events that were sent after the first mark that syncs fail, and answered 2xx before the next."""
    failing, under_way, keys = False, dict[int, str](), []
    for fact in env.history():
        match fact:
            case Sent() if failing:
                under_way[fact.number] = fact.key
            case Answered() if failing and is_ok(fact.status) and fact.number in under_way:
                keys.append(under_way[fact.number])
            case _ if getattr(fact, "what", "").endswith("every sync fails"):
                failing = True
            case _ if getattr(fact, "what", "") == "syncs work":
                failing = False
    return keys


@scenario(
    fault="every fdatasync of the spool fails with EIO, PostgreSQL away",
    target="503 and never 2xx; a segment is never synced again; told by metric and /readyz; recovers by itself",
    mutant=Mutant("ignores_failed_syncs", breaks=frozenset({"C1"})),
    needs=cannot_trace,
    tier="extended",
)
def test_failing_syncs(env: Environment) -> None:
    host = start_without_postgresql(env)
    env.begin(rate=30, **PLAIN)
    env.warm(15)
    pids = [process.pid for process in host.processes("gateway")]
    with Trace(env.folder, pids, "fdatasync,fsync", fail="fdatasync:error=EIO") as trace:
        env.fault("every sync fails")
        _wait_until_reported(env, host)
        env.outside.mark("syncs work")
    calls = trace.calls()
    failed = sum(call.name == "fdatasync" and not call.is_fine for call in calls)
    lied, again = _accepted_while_failing(env), _failed_then_synced(calls)
    env.expect("C1", not lied, f"answered 2xx although the sync had failed: {lied[:9]}")
    env.expect("C1", not again, f"synced again after a failure: {again[:9]}")
    env.expect("C1", failed >= 2, f"only {failed} syncs failed: the scenario proves too little")
    env.warm(15, timeout_s=PATIENT_S)
    env.expect("C15", is_soon(host, "boathook_spool_failing", 0), "it accepts again and says that the disk fails")
    env.figure("failed syncs", failed)
    env.figure("answered 2xx meanwhile", len(lied))


def _wait_until_reported(env: Environment, host: Host) -> None:
    """Wait until the gateway says that its disk fails; a mutant never does, and some more events are enough there."""
    if env.is_mutant:
        env.outside.wait_events(30)
        return
    wait_refused(env)
    until(lambda: metric(host, "boathook_spool_failing") == 1, timeout=PATIENT_S)
    until(lambda: httpx.get(f"{host.base}/readyz").status_code == 503, timeout=PATIENT_S)


_KEY = re.compile(r'\\"id\\": ?\\"(evt\w+)\\"')
_INTO, _OUT = {"read", "recvfrom", "recvmsg"}, {"write", "writev", "sendto", "sendmsg"}


def _unproven(calls: list[Call]) -> tuple[int, list[str]]:
    """Return how many 2xx were answered, and the keys of those without a finished sync of their record before."""
    asked: dict[str, str] = {}
    proven, unproven = 0, []
    for call in calls:
        if not call.file.startswith("socket:") or not call.is_fine:
            continue
        if call.name in _INTO and (found := _KEY.search(call.text)):
            asked[call.file] = found[1]
        elif call.name in _OUT and "HTTP/1.1 2" in call.text and call.file in asked:
            key = asked.pop(call.file)
            if _is_synced(calls, key, call.began):
                proven += 1
            else:
                unproven.append(key)
    return proven + len(unproven), unproven


def _is_synced(calls: list[Call], key: str, before: int) -> bool:
    written = next(
        (
            call
            for call in calls
            if call.file.endswith(PENDING_SUFFIX) and call.name == "write" and f'{key}\\"' in call.text
        ),
        None,
    )
    return written is not None and any(
        call.name == "fdatasync" and call.is_fine and call.file == written.file and written.ended < call.began
        and call.ended < before
        for call in calls
    )  # fmt: skip


@scenario(
    fault="none: the system calls of a spooling gateway are written down",
    target="before each 2xx goes out, the sync of its record has ended",
    mutant=Mutant("answers_before_sync", breaks=frozenset({"C1"})),
    needs=cannot_trace,
    tier="extended",
)
def test_synced_before_answered(env: Environment) -> None:
    host = start_without_postgresql(env)
    env.begin(rate=25, **PLAIN)
    env.warm(10)
    with Trace(env.folder, [process.pid for process in host.processes("gateway")], SYNCS) as trace:
        env.warm(60, timeout_s=PATIENT_S)
    answers, unproven = _unproven(trace.calls())
    env.expect("C1", not unproven, f"answered before their sync had ended: {unproven[:9]}")
    env.expect("C1", answers >= 40, f"only {answers} answers were seen: the scenario proves too little")
    env.figure("2xx proven", f"{answers - len(unproven)} of {answers}")


# -- disks that are full


@scenario(
    fault="the spool's disk fills up, PostgreSQL away; then it grows",
    target="503 with Retry-After once it is full, never 2xx without room; accepts again without a restart",
    mutant=Mutant("ignores_a_full_disk", breaks=frozenset({"C1"})),
    needs=cannot_mount,
)
def test_spool_disk_full(env: Environment) -> None:
    disk = env.enter(small_disk("200k"))
    _fill_up(env, disk.folder, lambda: disk.resize("16m"), 0.9)


@scenario(
    fault="a stranger fills the spool's disk to its last page, PostgreSQL away; then he clears it",
    target="503 with Retry-After once it is full, never 2xx without room; accepts again without a restart",
    mutant=Mutant("ignores_a_full_disk", breaks=frozenset({"C1"})),
    needs=cannot_mount,
    tier="extended",
)
def test_spool_disk_filled_by_others(env: Environment) -> None:
    disk = env.enter(small_disk("2m"))
    _fill_up(env, disk.folder, disk.clear, 1.0, first=disk.fill)


@scenario(
    fault="the spool's disk runs out of inodes, PostgreSQL away; then others' files are removed",
    target="503 with Retry-After once there are none, never 2xx without one; accepts again without a restart",
    mutant=Mutant("ignores_a_full_disk", breaks=frozenset({"C1"})),
    tier="soak",
    needs=cannot_mount,
)
def test_spool_disk_without_inodes(env: Environment) -> None:
    disk = env.enter(small_disk("16m", inodes=64))
    others = disk.folder / "others"

    def take_all() -> None:
        others.mkdir()
        with contextlib.suppress(OSError):
            for number in range(64):
                (others / str(number)).touch()

    def remove() -> None:
        for path in others.iterdir():
            path.unlink()

    _fill_up(env, disk.folder, remove, 1.0, first=take_all)


def _fill_up(
    env: Environment,
    folder: Path,
    give_room: Callable[[], None],
    most_used: float,
    *,
    first: Callable[[], None] = lambda: None,
) -> None:
    spool = {"segment_bytes": 1 << 16, "max_disk_used": most_used}
    host = start_without_postgresql(env, server={"data_dir": str(folder)}, spool=spool)
    env.begin(rate=120, more=LONG, **PLAIN)
    env.warm(20)
    env.fault("the disk fills up")
    first()
    if env.is_mutant:
        env.outside.wait_events(250, PATIENT_S)
    else:
        wait_refused(env, 20)
        answer = post(env, host, make_event("evt_by_hand", "move.made", "a00", "a01", 1))
        env.expect("C1", answer.status_code == 503, f"a full spool answered {answer.status_code}")
        env.expect("C15", answer.headers.get("retry-after"), "a refusal names no time for another try")
        env.figure("waited when it was full", len(env.spooled()))
    waiting = len(env.spooled())
    give_room()
    env.warm(60, timeout_s=PATIENT_S)
    env.expect("C11", env.is_mutant or len(env.spooled()) > waiting, "nothing more went into the spool with room again")
    env.quiesce()


@scenario(
    fault="PostgreSQL's disk is full: it panics and cannot recover; then it grows",
    target="every signed event answered 2xx meanwhile, 0 lost",
    mutant=Mutant(settings={"spool": {"enabled": False}}, label="no spool", breaks=frozenset({"C11"})),
    needs=cannot_mount,
    place=server_on_small_disk("320m"),
    tier="soak",
)
def test_database_disk_full(env: Environment) -> None:
    env.start(is_wired=True)
    env.begin(rate=60)
    env.warm(60)
    env.fault("PostgreSQL's disk is full")
    disk = SmallDisk(env.server.folder)
    disk.fill()
    panics = _panic(env)
    env.outside.wait_events(150, PATIENT_S)
    waiting = len(env.spooled())
    disk.clear()
    env.heal()
    env.warm(30, timeout_s=PATIENT_S)
    env.quiesce()
    env.expect("C11", panics, "PostgreSQL did not panic: the scenario proves too little")
    env.expect("C11", refused(env) == 0, f"{refused(env)} requests were refused")
    env.figure("spooled meanwhile", waiting)
    env.figure("refused", refused(env))


def _panic(env: Environment) -> bool:
    """Let PostgreSQL request one more WAL file, and return whether it panics; its log has no room."""
    for _ in range(20):
        try:
            with psycopg.connect(env.server.url, autocommit=True, connect_timeout=10) as db:
                db.execute("select pg_logical_emit_message(false, 'lab', repeat('x', 4000000))")
                db.execute("select pg_switch_wal()")
        except psycopg.errors.DiskFull:
            continue
        except psycopg.OperationalError:  # the connection broke off, as all of them did
            return True
    return False


# -- descriptors


@contextlib.contextmanager
def _few_descriptors(pid: int, free: int) -> Iterator[None]:
    """Limit a process to this many descriptors besides its open ones."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    highest = max(int(path.name) for path in Path(f"/proc/{pid}/fd").iterdir())
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (highest + 1 + free, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@scenario(
    fault="silent clients hold every descriptor of the gateway",
    target="requests on kept connections are answered; newcomers get in again by themselves",
    mutant=Mutant("lets_silent_clients_stay", breaks=frozenset({"C11"})),
    tier="soak",
)
def test_no_descriptors_left(env: Environment) -> None:
    host = env.start(is_wired=True, settings={"limits": {"head_timeout_s": 3.0}})
    env.begin(rate=40, most_at_once=8, **PLAIN)
    env.warm(40)
    (gateway,) = host.processes("gateway")
    with _few_descriptors(gateway.pid, 8), _silent_clients(host, 40):
        env.fault("silent clients hold every descriptor")
        until(lambda: _is_refused(host))
        env.warm(5, timeout_s=PATIENT_S)
        is_back = _is_taken_again(host, timeout_s=6 if env.is_mutant else PATIENT_S)
        env.expect("C11", is_back, "newcomers did not get in again while the silent clients stayed")
        assert gateway.is_running()
    env.heal()
    env.warm(20, timeout_s=PATIENT_S)
    env.quiesce()
    env.figure("silent clients", 40)


@contextlib.contextmanager
def _silent_clients(host: Host, count: int) -> Iterator[None]:
    """Open connections that never send a byte, and hold them."""
    with contextlib.ExitStack() as stack:
        for _ in range(count):
            with contextlib.suppress(OSError):
                stack.enter_context(socket.create_connection(("127.0.0.1", host.port), timeout=20))
        yield


def _is_refused(host: Host) -> bool:
    try:
        return httpx.get(f"{host.base}/healthz", timeout=1).status_code != 200
    except httpx.TransportError:
        return True


def _is_taken_again(host: Host, timeout_s: float) -> bool:
    with contextlib.suppress(AssertionError):
        return until(lambda: not _is_refused(host), timeout=timeout_s)
    return False


# -- states of the past, and records that rot


def accepted_keys(env: Environment) -> set[str]:
    """Return the keys of all events that were answered 2xx."""
    keys = {fact.number: fact.key for fact in env.history() if isinstance(fact, Sent)}
    return {keys[fact.number] for fact in env.history() if isinstance(fact, Answered) and is_ok(fact.status)}


def missing(env: Environment) -> set[str]:
    """Return the keys of events that were answered 2xx and that PostgreSQL does not have."""
    return accepted_keys(env) - {key for (key,) in env.ask("select dedup_key from boathook.event")}


def go_back(env: Environment, copy: Path) -> None:
    """Have PostgreSQL fail over to the state that was copied."""
    env.server.stop("fast")
    env.use(OwnServer(copy))
    for host in env.hosts:
        assert host.wire is not None
        host.wire.reset()
    env.heal()


@scenario(
    fault="PostgreSQL fails over to a state from before an outage whose events have been drained",
    target="spool drain --again says how many are missing and brings each of them back",
    # What that state had not yet comes behind what was sent meanwhile.
    limits=replace(bank.LIMITS, ordered=frozenset()),
    mutant=Mutant("keeps_nothing_drained", breaks=frozenset({"C1"})),
    tier="extended",
)
def test_failover_to_an_older_state(env: Environment) -> None:
    host = env.start(is_wired=True)
    env.begin(rate=80, **PLAIN)
    env.warm(40)
    env.quiesce()
    copy = copy_server(env.server, env.enter(in_memory()))
    env.fault("PostgreSQL is unavailable")
    cut_off(host)
    env.begin(rate=80, **PLAIN)
    env.warm(60)
    env.quiesce()
    env.fault("PostgreSQL fails over")
    go_back(env, copy)
    lost = missing(env)
    told = next(json.loads(line) for line in host.cli("spool", "drain", "--again", "--json").stdout.splitlines())
    env.expect(
        "C15", told["what"] == "again" and told["accepted"] == len(lost), f"{len(lost)} were missing, told: {told}"
    )
    env.expect("C1", len(lost) >= 60, f"only {len(lost)} were missing: the scenario proves too little")
    env.begin(rate=80, **PLAIN)
    env.warm(20)
    env.quiesce()
    env.figure("missing after the failover", len(lost))
    env.figure("brought back", told["accepted"])


@scenario(
    fault="PostgreSQL is restored from a copy of its disk made under load, and senders send all they ever sent again",
    target="what the copy had is not done again, what it had not is; the books balance",
    # What the copy had not yet comes behind what was sent meanwhile.
    limits=replace(bank.LIMITS, ordered=frozenset()),
    mutant=Mutant("never_forgets", breaks=frozenset({"C1"})),
    tier="soak",
)
def test_backup_restored(env: Environment) -> None:
    env.start(is_wired=True)
    early, late = ({"rate": 120, "count": 100, "prefix": prefix, **PLAIN} for prefix in ("early", "late"))
    env.begin(**early)
    env.warm(70)
    env.wait_row("select 1 from bank.effect having count(*) >= 30", timeout_s=PATIENT_S)
    copy = copy_server(env.server, env.enter(in_memory()))
    env.begin(**late)
    env.outside.settle(PATIENT_S)
    env.fault("PostgreSQL is restored")
    go_back(env, copy)
    lost, done = missing(env), env.ask("select count(*) from bank.effect")[0][0]
    env.begin(**early)
    env.outside.settle(PATIENT_S)
    env.begin(**late)
    env.outside.settle(PATIENT_S)
    env.quiesce()
    env.expect("C1", lost, "the copy lacked nothing: the scenario proves too little")
    env.figure("the copy lacked", len(lost))
    env.figure("done before", done)


def rot(host: Host) -> tuple[Path, str]:
    """Change one letter of an event in the middle of the oldest waiting segment; return both."""
    path = min(host.data.glob(f"spool/*/*{PENDING_SUFFIX}"))
    data = path.read_bytes()
    records = read_segment(data).records
    victim = records[len(records) // 2].payload
    place = data.index(victim) + victim.index(b'"to":"a')
    with path.open("r+b") as file:
        file.seek(place + len(b'"to":"a'))
        event = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(b"1" if event == b"0" else b"0")
    found = re.search(rb'"id":"(evt\w+)"', victim)
    assert found is not None
    return path, found[1].decode()


@scenario(
    fault="a durable record of the spool rots: one letter is changed",
    target="all others are drained, the segment is kept and shown, an alert is raised; sent again, the event is taken",
    mutant=Mutant("believes_every_record", breaks=frozenset({"C2", "C10"})),
    # What is sent again comes behind what was sent after it.
    limits=replace(bank.LIMITS, ordered=frozenset()),
    tier="extended",
)
def test_rotten_record(env: Environment) -> None:
    host = start_without_postgresql(env, spool={"segment_bytes": 1 << 14})
    load = {"rate": 100, "count": 120, "prefix": "evt", **PLAIN}
    env.begin(**load)
    env.outside.settle(PATIENT_S)
    path, key = rot(host)
    env.heal()
    until(lambda: not env.spooled(), timeout=PATIENT_S)
    gone = missing(env)
    if not env.is_mutant:
        _expect_reported(env, host, path, gone, key)
    env.begin(**load)
    env.outside.settle(PATIENT_S)
    env.quiesce()
    env.figure("lost and told", len(gone))


def _expect_reported(env: Environment, host: Host, path: Path, gone: set[str], key: str) -> None:
    """Assert that one event is missing, and that every report says so."""
    env.expect("C1", gone == {key}, f"one record is rotten, missing are {sorted(gone)[:9]}")
    env.expect("C15", path.with_suffix(DAMAGED_SUFFIX).exists(), "the damaged segment is not kept")
    env.expect("C15", not path.with_suffix(DONE_SUFFIX).exists(), "the damaged segment is kept as if it were whole")
    env.expect("C15", is_soon(host, "boathook_spool_damaged_segments_total", 1), "no metric tells of the damage")
    (shown,) = [one for one in host.listing("spool", "status") if one["lost"]]
    env.expect("C15", shown["lost"] == 1 and shown["segments"]["bad"] == 1, f"spool status says {shown}")
