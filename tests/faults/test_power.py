"""Power cuts: only synced data of the spool and of PostgreSQL is left."""

import random
from collections import defaultdict
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path

from boathook.ingest.spool_records import decode
from boathook.spool.segment import FRAME_BYTES, HEADER_BYTES, read_segment
from boathook.spool.segment_store import PENDING_SUFFIX, SegmentStore, SpoolLimits
from tests.faults.rig.disks import (
    Image,
    cannot_mount,
    forget_life,
    image,
    image_under,
    in_memory,
    is_still,
    mounted,
    server_image,
    still,
)
from tests.faults.rig.environment import Environment, Host
from tests.faults.rig.history import Answered, History, Sent
from tests.faults.rig.invariants import is_ok
from tests.faults.rig.mutants import Mutant
from tests.faults.rig.postgres import OwnServer, family
from tests.faults.rig.scenario import scenario
from tests.support import until

PLAIN = {"copies": 0.0, "conflicts": 0.0, "forgeries": 0.0}
OUTAGE = 20
"""So many cuts come in one outage of PostgreSQL; the spool is drained between outages."""
PATIENT_S = 120.0
LONG = {f"field{number}": 1.5 for number in range(150)}
"""Makes an event longer than half a page of the disk, so that pages that are missing tear it."""


def accepted_keys(history: History) -> set[str]:
    """Return the keys of all events that were answered 2xx."""
    keys = {fact.number: fact.key for fact in history if isinstance(fact, Sent)}
    return {keys[fact.number] for fact in history if isinstance(fact, Answered) and is_ok(fact.status)}


@dataclass(slots=True)
class Cuts:
    """The findings after all cuts of a run."""

    cuts: int = 0
    missing: set[str] = field(default_factory=set)
    """Keys that were answered 2xx before a cut and are not on its disk."""
    corrupt: set[str] = field(default_factory=set)
    """Keys read from a disk with bytes that were never sent."""
    torn: int = 0
    """Cuts that left an incomplete record."""
    unsaid: int = 0
    """Cuts whose torn end the reader did not report."""
    damaged: int = 0
    """Segments that were taken for damaged, which a power cut never does."""
    fewest: int = 1 << 30
    most: int = 0


def _read(root: Path) -> tuple[dict[str, bytes], int, int]:
    """Return the events that a gateway starting on this disk would bring, its torn bytes and its damaged segments."""
    found: dict[str, bytes] = {}
    torn = damaged = 0
    shelf = SegmentStore(root, SpoolLimits())
    shelf.adopt()
    while (segment := shelf.oldest()) is not None:
        for record in segment.contents.records:
            event = decode(record.payload)
            found[event.dedup_key] = event.body
        torn += segment.contents.torn
        damaged += segment.is_damaged
        shelf.finish(segment)
    shelf.close()
    return found, torn, damaged


def _has_rubbish(root: Path) -> bool:
    """Return whether bytes follow a segment's records, read from the raw bytes."""
    for path in root.glob(f"*/*{PENDING_SUFFIX}"):
        data = path.read_bytes()
        contents = read_segment(data)
        end = max((data.rfind(one.payload) + len(one.payload) for one in contents.records), default=HEADER_BYTES)
        if data[end + FRAME_BYTES * contents.is_sealed :].strip(b"\0"):
            return True
    return False


def _cut(env: Environment, host: Host, disk: Image, copy: Path, dice: random.Random) -> set[str]:
    """Cut the power once, and return the events answered 2xx before."""
    with still(host.processes("gateway")):
        # Still ones answer nothing, and what they have answered is written down in the time of a copy.
        newest = max(disk.folder.glob(f"spool/*/*{PENDING_SUFFIX}"), default=None)
        if newest is not None:
            disk.write_back(newest, dice)
        disk.cut(copy)
        return accepted_keys(env.history())


def _cut_often(env: Environment, count: int) -> None:
    disk = env.enter(image(64))
    settings = {"server": {"data_dir": str(disk.folder)}, "spool": {"segment_bytes": 1 << 18, "max_disk_used": 0.8}}
    host = env.start(is_wired=True, settings=settings, patch="waits_before_sync")
    assert host.wire is not None
    env.begin(rate=120, more=LONG, **PLAIN)
    found, dice, copy = Cuts(), random.Random(env.seed), env.enter(in_memory()) / "cut"
    for number in range(count):
        if number % OUTAGE == 0:
            env.heal()
            until(lambda: not env.spooled(), timeout=PATIENT_S)
            env.fault("PostgreSQL is unavailable")
            host.wire.set(is_refusing=True)
            host.wire.reset()
            env.warm(30, PATIENT_S)
        env.warm(1 + dice.randrange(12), PATIENT_S)
        _look_into(env, found, copy, _cut(env, host, disk, copy, dice))
    env.quiesce()
    env.expect("C1", not found.missing, f"accepted and lost by a power cut: {sorted(found.missing)[:9]}")
    env.expect("C10", not found.corrupt, f"read with other bytes than were sent: {sorted(found.corrupt)[:9]}")
    env.expect("C10", not found.unsaid, f"{found.unsaid} torn tails were not noticed")
    env.expect("C15", not found.damaged, f"{found.damaged} segments were taken for damaged")
    env.expect("C1", found.torn or count < 20, "no cut tore anything: the scenario proves too little")
    env.figure("cuts", found.cuts)
    env.figure("accepted on each disk", f"{found.fewest} to {found.most}")
    env.figure("with a torn tail", found.torn)
    env.figure("lost", len(found.missing))
    env.figure("corrupt", len(found.corrupt))


def _look_into(env: Environment, found: Cuts, copy: Path, accepted: set[str]) -> None:
    sent: defaultdict[str, set[str]] = defaultdict(set)
    for fact in env.history():
        if isinstance(fact, Sent):
            sent[fact.key].add(fact.sha)
    with mounted(copy) as place:
        is_torn = _has_rubbish(place / "spool")
        events, torn, damaged = _read(place / "spool")
    stored = {key for (key,) in env.ask("select dedup_key from boathook.event")}
    found.cuts += 1
    found.missing |= accepted - set(events) - stored
    found.corrupt |= {key for key, body in events.items() if _sha(body) not in sent[key]}
    found.torn += is_torn
    found.unsaid += is_torn and not torn
    found.damaged += damaged
    found.fewest, found.most = min(found.fewest, len(accepted)), max(found.most, len(accepted))


def _sha(body: bytes) -> str:
    return sha256(body).hexdigest()


@scenario(
    fault="power cut of the spool's disk while the gateway writes, 20 times, some pages written back and others not",
    target="0 events answered 2xx lost, 0 corrupt records, every torn tail noticed",
    mutant=Mutant("syncs_nothing", breaks=frozenset({"C1"})),
    needs=cannot_mount,
    tier="extended",
)
def test_power_cut_of_the_spool(env: Environment) -> None:
    _cut_often(env, 20)


@scenario(
    fault="power cut of the spool's disk, 200 times",
    target="0 events answered 2xx lost, 0 corrupt records, every torn tail noticed",
    mutant=Mutant("syncs_nothing", breaks=frozenset({"C1"})),
    tier="soak",
    needs=cannot_mount,
)
def test_many_power_cuts_of_the_spool(env: Environment) -> None:
    _cut_often(env, 200)


def _cut_server(env: Environment, disk: Image) -> Image:
    """Cut the power of PostgreSQL's disk, continue with the remaining data, and return that disk."""
    env.fault("the power of PostgreSQL is cut")
    pid = env.server.server.pid()
    assert pid is not None
    env.server.freeze()
    for one in family(pid):
        until(partial(is_still, one), every=0.002)
    copy = disk.cut(env.enter(in_memory()) / "cut")
    env.server.kill_all()
    place = env.enter(mounted(copy))
    env.use(OwnServer(forget_life(place)))
    for host in env.hosts:
        assert host.wire is not None
        host.wire.reset()
    env.heal()
    return Image(copy, place)


def _cut_server_often(env: Environment, count: int) -> None:
    disk = image_under(env.server.folder)
    disk.sync()
    env.start(is_wired=True)
    env.begin(rate=100)
    for _ in range(count):
        env.warm(60)
        disk = _cut_server(env, disk)
    env.warm(40)
    env.quiesce()
    env.figure("cuts", count)


IN_MEMORY = Mutant(
    "commits_in_memory",
    breaks=frozenset({"C1"}),
    server={"synchronous_commit": "off", "wal_writer_delay": "10s"},
    settings={"database": {"allow_unsafe": True}},
)
UNSYNCED = Mutant(
    label="a server with fsync = off",
    breaks=frozenset({"C1", "C11"}),
    server={"fsync": "off", "full_page_writes": "on"},
    settings={"database": {"allow_unsafe": True}},
)


@scenario(
    fault="power cut of PostgreSQL's disk under load; it boots from what is left",
    target="0 events answered 2xx lost, effects once",
    mutant=IN_MEMORY,
    needs=cannot_mount,
    place=server_image(400),
)
def test_power_cut_of_postgresql(env: Environment) -> None:
    _cut_server_often(env, 1)


@scenario(
    fault="power cut of PostgreSQL's disk under load, five times in a row",
    target="0 events answered 2xx lost, effects once",
    mutant=UNSYNCED,
    tier="soak",
    needs=cannot_mount,
    place=server_image(400),
)
def test_many_power_cuts_of_postgresql(env: Environment) -> None:
    _cut_server_often(env, 5)
