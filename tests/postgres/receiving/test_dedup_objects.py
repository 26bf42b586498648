"""Duplicates within a window, and of the newest event of an object only: from the request to the store, on PostgreSQL."""

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec.structs import replace

from boathook.config import load
from boathook.db import integrity, migrations
from boathook.db.database import Database
from boathook.db.events import EventStore
from boathook.db.route_registry import read_router
from boathook.domain import ids
from boathook.domain.filters import Router
from boathook.domain.model import Accepted, Duplicate, NewDelivery, NewEvent, Receipt
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.event_writer import EventWriter, Stored
from boathook.ingest.intake import Intake
from boathook.ingest.sources import checked_days_by_source, follow_sources
from boathook.ingest.spool_records import UNROUTED, Plain, decode, encode
from boathook.spool.segment import Record
from boathook.spool.segment_store import SpoolLimits
from boathook.spool.spool import Spool
from boathook_cells import keys
from tests.databases import Pool
from tests.postgres.cells.cells_without_gateways import open_cells
from tests.postgres.db.test_events import event, hash_text
from tests.support import LOCK_WAITED_FOR, eventually

WINDOW_S = 900.0


def change(key: str, about: str = "car 1", *, after_s: float = 0.0, **more: Any) -> NewEvent:
    """Return an event about an object, accepted some seconds after the test began."""
    made = event(key, body=key.encode(), **more)
    accepted_ms = int((_BEGAN + after_s) * 1_000)
    return replace(made, id=ids.make(accepted_ms, made.id.int & (1 << 62) - 1), object_hash=hash_text(about))


_BEGAN = time.time() - 10_000


def store_of(db: Database, window_s: float | None = WINDOW_S) -> EventStore:
    store = EventStore(db)
    if window_s is not None:
        store.set_windows({"stripe": window_s})
    return store


def outcome(batch: Sequence[NewEvent], receipts: Sequence[Receipt]) -> list[str | UUID]:
    """Return ``new`` for each stored event, and the first event of each duplicate."""
    return [
        "new" if receipt == Accepted(one.id) else receipt.event_id for one, receipt in zip(batch, receipts, strict=True)
    ]


async def stored_keys(db: Database) -> list[str]:
    rows = await db.fetch(
        "select dedup_key from boathook.delivery d join boathook.event e on e.id = d.event_id order by d.seq"
    )
    return [row["dedup_key"] for row in rows]


SEQUENCE = ("new", "active", "active", "new", "active", "active")


@pytest.mark.parametrize("size", [1, 2, 6])
async def test_a_state_that_comes_back_is_an_event(db: Database, size: int):
    """In batches of any size: the repetition of the newest is a duplicate, that of an older one is not."""
    store = store_of(db)
    batch = [change(key) for key in SEQUENCE]
    receipts = [one for start in range(0, 6, size) for one in await store.append(batch[start : start + size])]
    assert outcome(batch, receipts) == ["new", "new", batch[1].id, "new", "new", batch[4].id]
    assert await stored_keys(db) == ["new", "active", "new", "active"]
    assert await db.fetchval("select count(*) from boathook.dedup") == 1


async def test_objects_and_other_events_share_a_batch(db: Database):
    store = store_of(db)
    plain = [event("p1"), event("p1")]
    batch = [
        change("a", "x"),
        plain[0],
        change("a", "y"),
        change("b", "x"),
        plain[1],
        change("a", "x"),
        change("a", "y"),
    ]
    receipts = await store.append(batch)
    assert outcome(batch, receipts) == ["new", "new", "new", "new", plain[0].id, "new", batch[2].id]


async def test_an_event_that_is_stored_again_is_the_same_event(db: Database):
    """A commit of unknown outcome is repeated, also after a newer event of the object."""
    store = store_of(db)
    first, second = change("a"), change("b")
    await store.append([first])
    assert await store.append([first, first]) == [Accepted(first.id), Accepted(first.id)]
    await store.append([second])
    third = change("c")
    receipts = await store.append([first, third])
    assert receipts == [Accepted(first.id), Accepted(third.id)]
    assert await stored_keys(db) == ["a", "b", "c"]


async def test_equal_keys_with_other_bodies_are_a_conflict(db: Database):
    store = store_of(db)
    first = change("a")
    other = replace(change("a"), body=b"other", body_sha256=bytes(32))
    assert await store.append([first]) == [Accepted(first.id)]
    assert await store.append([other]) == [Duplicate(first.id, conflict=True)]


@pytest.mark.parametrize("kind", ["object", "plain"])
@pytest.mark.parametrize(("after_s", "is_new"), [(WINDOW_S - 1, False), (WINDOW_S, True), (WINDOW_S + 1, True)])
async def test_a_window_is_honoured_to_the_second(db: Database, kind: str, after_s: float, is_new: bool):
    """By the times of acceptance, however late both are stored."""
    store = store_of(db)
    batch = [change("a"), change("a", after_s=after_s)]
    if kind == "plain":
        batch = [replace(one, object_hash=None) for one in batch]
    receipts = [one for each in batch for one in await store.append([each])]
    assert outcome(batch, receipts) == ["new", "new" if is_new else batch[0].id]


@pytest.mark.parametrize("skew_s", [-30, 30])
async def test_a_window_ends_whatever_the_clocks_differ(db: Database, skew_s: int):
    """The gateway's clock alone counts: PostgreSQL's may be behind or ahead."""
    store = store_of(db, 5.0)
    now = time.time() - _BEGAN + skew_s
    batch = [replace(change("a", after_s=now + late_s), object_hash=None) for late_s in (0, 4, 5)]
    receipts = [one for each in batch for one in await store.append([each])]
    assert outcome(batch, receipts) == ["new", batch[0].id, "new"]


# Two gateways.


async def hold_and_repeat(db: Database) -> list[Receipt]:
    """Store one change by two gateways, the second of which waits for the first."""
    first, second = change("a"), change("a")
    one, two = store_of(db), store_of(db)
    async with db.transaction() as connection:
        # Holds the lock of the first change's row until the second waits for it.
        await connection.execute("lock table boathook.event in share mode")
        storing = asyncio.create_task(one.append([first]))
        await eventually(lambda: db.fetchval(LOCK_WAITED_FOR))
        repeating = asyncio.create_task(two.append([second]))
        await eventually(lambda: db.fetchval(LOCK_WAITED_FOR.replace("exists (select", "2 <= (select count(*)", 1)))
    return [*await storing, *await repeating]


async def test_of_two_gateways_one_stores_a_change(db: Database):
    receipts = await hold_and_repeat(db)
    assert [type(one) for one in receipts] == [Accepted, Duplicate]
    assert await stored_keys(db) == ["a"]


GUARD = "where d.newest_key is distinct from excluded.newest_key or d.expires_at <= boathook.id_time(excluded.event_id)"


async def test_mutant_that_looks_before_it_writes_stores_it_twice(db: Database):
    text = (Path(migrations.__file__).parent / "functions/claim_objects.sql").read_text()
    function = text.replace("create function", "create or replace function", 1)
    insert = function.index("        insert into boathook.dedup")
    looking = (
        "        continue when exists (select from boathook.dedup d where d.key = e.object and d.newest_key = e.key);\n"
    )
    mutant = (function[:insert] + looking + function[insert:]).replace(GUARD, "")
    assert GUARD in function
    await db.execute(mutant)
    try:
        receipts = await hold_and_repeat(db)
    finally:
        await db.execute(function)
    assert [type(one) for one in receipts] == [Accepted, Accepted]
    assert await stored_keys(db) == ["a", "a"]


async def test_many_gateways_neither_lose_nor_repeat_a_change(db: Database):
    """Each sends all changes of two objects, one after another; each change comes before the next of any gateway."""
    stores = [store_of(db) for _ in range(4)]
    for number in range(12):
        batches = [[change(f"s{number % 3}", about) for about in ("x", "y")] for _ in stores]
        for batch in batches[::2]:
            batch.reverse()  # gateways lock in the order of objects, whatever the senders' is
        await asyncio.gather(*(store.append(batch) for store, batch in zip(stores, batches, strict=True)))
    keys = await db.fetch("select e.dedup_key, count(*) as number from boathook.event e group by 1")
    assert {row["dedup_key"]: row["number"] for row in keys} == {"s0": 8, "s1": 8, "s2": 8}


# What lies outside PostgreSQL.


def test_a_record_keeps_the_object_and_an_earlier_version_reads_it():
    made = change("a")
    record = encode(made)
    assert decode(record).object_hash == made.object_hash
    earlier = msgspec.msgpack.Decoder(Plain).decode(record[1:])
    assert (earlier.id, earlier.dedup_key) == (made.id, "a")
    assert decode(encode(replace(made, object_hash=None))).object_hash is None


async def bring(db: Database, events: Sequence[NewEvent]) -> list[str | UUID]:
    builder = EventBuilder(Router((), UNROUTED), lambda: read_router(db))
    writer = EventWriter(store_of(db), builder.reroute)
    records = [Record(number, encode(one)) for number, one in enumerate(events)]
    return outcome(events, [one.receipt async for one in writer.bring(records) if isinstance(one, Stored)])


async def test_a_spool_is_drained_by_the_same_rule(db: Database):
    batch = [change(key) for key in SEQUENCE] + [change("active", after_s=WINDOW_S + 1)]
    assert await bring(db, batch) == ["new", "new", batch[1].id, "new", "new", batch[4].id, "new"]
    again = await bring(db, batch)
    assert [again[position] for position in (0, 1, 3, 4, 6)] == ["new"] * 5, "they are the same events"
    assert await db.fetchval("select count(*) from boathook.event") == 5


async def test_an_event_of_an_object_that_is_missing_is_noticed(db: Database):
    store = store_of(db)
    kept, repeated, lost = change("a"), change("a"), change("b")
    await store.append([kept])
    assert await store.find_unstored([kept, repeated, lost]) == {lost.id}


# The memory of a gateway.


async def test_the_memory_of_a_gateway_does_not_answer_for_an_object(db: Database):
    """Another gateway may have stored a newer event of it."""
    intake, other = Intake(store_of(db)), store_of(db)
    await intake.start()
    try:
        batch = [change(key) for key in ("a", "b", "a")]
        receipts = [await intake.accept(batch[0]), *await other.append([batch[1]]), await intake.accept(batch[2])]
        assert outcome(batch, receipts) == ["new"] * 3
    finally:
        await intake.drain()


async def test_mutant_whose_memory_answers_loses_the_last_change(db: Database, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("boathook.ingest.intake.Intake.note_stored", _remember_all)
    intake, other = Intake(store_of(db)), store_of(db)
    await intake.start()
    try:
        batch = [change(key) for key in ("a", "b", "a")]
        receipts = [await intake.accept(batch[0]), *await other.append([batch[1]]), await intake.accept(batch[2])]
        assert outcome(batch, receipts) == ["new", "new", batch[0].id]
    finally:
        await intake.drain()


def _remember_all(self: Intake, event: NewEvent, receipt: Receipt) -> None:
    self._recent.remember(replace(event, object_hash=None), receipt.event_id)


async def test_the_memory_of_a_gateway_ends_with_the_window(db: Database):
    intake = Intake(store_of(db))
    intake.set_dedup_windows({"stripe": WINDOW_S})
    await intake.start()
    try:
        times = (0.0, WINDOW_S - 1, WINDOW_S)
        batch = [replace(change("a", after_s=after_s), object_hash=None) for after_s in times]
        receipts = [await intake.accept(one) for one in batch]
        assert outcome(batch, receipts) == ["new", batch[0].id, "new"]
    finally:
        await intake.drain()


async def _route(events: Sequence[NewEvent]) -> list[NewEvent]:
    return [replace(one, routes_version=1, deliveries=(NewDelivery("handler:x"),)) for one in events]


async def test_changes_that_wait_in_the_spool_are_all_kept(db: Database, tmp_path: Path):
    store = store_of(db)
    buffer = Spool.at(tmp_path, SpoolLimits(max_disk_used=1.0))
    intake = Intake(store, reroute=_route, buffer=buffer, within_s=30.0)
    await intake.start(is_store_unavailable=True)
    try:
        for key in SEQUENCE:
            await intake.accept(change(key))
        await eventually(lambda: _has(db, 4))
    finally:
        await intake.drain()
    assert await stored_keys(db) == ["new", "active", "new", "active"]


async def _has(db: Database, number: int) -> bool:
    return bool(await db.fetchval("select count(*) = $1 from boathook.event", number))


# Cells, settings and the check of the store.


@pytest.fixture
async def pair(databases: Pool) -> AsyncIterator[Any]:
    async with open_cells(databases) as made:
        yield made


async def test_a_moved_source_keeps_the_newest_event_of_each_object(pair: Any):
    """The keys are copied while the sender goes on, and again at the end."""
    one, two, _ = pair.values()
    here, there = store_of(one.db, 10**6), store_of(two.db, 10**6)
    first, second = change("a"), change("b", after_s=1)
    await here.append([first])
    await keys.copy_keys(one.db, two.db, "stripe", "c1")
    await here.append([second])
    await keys.copy_keys(one.db, two.db, "stripe", "c1")
    batch = [change(key, after_s=2) for key in ("b", "a")]
    assert outcome(batch, await there.append(batch)) == [second.id, "new"]


def settings(**more: Any) -> Any:
    return load(None, {"sources": {"stripe": {"provider": "hmac", "secrets": ["x"], "header": "x-sig", **more}}})


async def test_the_check_of_the_store_knows_the_rule(db: Database):
    wanted = settings(dedup_window_s=10**6, dedup_object="payload.id")
    store = EventStore(db)
    follow_sources(store, wanted)
    await store.append([change(key) for key in SEQUENCE])
    found = await integrity.check_integrity(db, dedup_days=30, dedup_days_of=checked_days_by_source(wanted))
    assert list(found.violations) == []
    without = await integrity.check_integrity(db, dedup_days=30)
    assert without.violations, "with each event expected to have its key, three are missing"


def test_a_window_takes_the_place_of_days():
    days = checked_days_by_source(settings(dedup_window_s=3_660, dedup_days=5))
    assert timedelta(days=days["stripe"]) == timedelta(seconds=3_600)
