"""Where events go while PostgreSQL is unavailable: into the spool, back in order, once each, and no request waits for long."""

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from boathook.domain.errors import DatabaseUnavailable, Overloaded, SpoolUnavailable, ValueRejected
from boathook.domain.model import Accepted, Duplicate, NewEvent, Origin, Publication, Receipt
from boathook.ingest import intake as intake_module
from boathook.ingest.event_writer import EventWriter
from boathook.ingest.intake import Intake, Mode
from boathook.ingest.spool_records import UNROUTED, decode, encode
from boathook.observability import meters
from boathook.spool.segment import Record
from boathook.spool.segment_store import Segment, SegmentStore, SpoolLimits
from boathook.spool.spool import Spool
from tests.support import eventually
from tests.unit.test_intake import event

WIDE = SpoolLimits(max_disk_used=1.0)
SMALL = SpoolLimits(segment_bytes=4096, max_disk_used=1.0)


class FakeStore:
    """A store that remembers, and that can be away, hang, or lose the answer of a commit."""

    def __init__(self) -> None:
        self.stored: dict[str, NewEvent] = {}
        self.order: list[str] = []
        self.is_away = False
        self.loses_answers = False
        self.hangs = asyncio.Event()
        self.hangs.set()
        self.refused: set[str] = set()
        self.offers = 0

    async def append(self, batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        self.offers += 1
        try:
            await asyncio.wait_for(self.hangs.wait(), within_s)
        except TimeoutError:
            raise DatabaseUnavailable("too late") from None
        if self.is_away:
            raise DatabaseUnavailable("away")
        if self.refused & {one.dedup_key for one in batch}:
            raise ValueRejected("a row that cannot be")
        receipts = [self._store(one) for one in batch]
        if self.loses_answers:
            raise DatabaseUnavailable("the connection was lost during the commit")
        return receipts

    def _store(self, one: NewEvent) -> Receipt:
        first = self.stored.setdefault(one.dedup_key, one)
        if first.id != one.id:
            return Duplicate(first.id, conflict=first.body != one.body)
        if one.dedup_key not in self.order:
            self.order.append(one.dedup_key)
        return Accepted(one.id)


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


@pytest.fixture
async def intake(store: FakeStore, tmp_path: Path) -> AsyncIterator[Intake]:
    one = make(store, tmp_path)
    await one.start()
    yield one
    await one.drain()


def make(store: FakeStore, folder: Path, **more: object) -> Intake:
    return Intake(store, buffer=Spool(SegmentStore(folder, SMALL)), within_s=0.2, **more)


async def back(intake: Intake) -> None:
    await eventually(lambda: intake.mode is Mode.DIRECT)


async def test_events_are_spooled_during_an_outage_and_drained_in_order(intake: Intake, store: FakeStore):
    await intake.accept(event("0"))
    store.is_away = True
    for number in range(1, 50):
        receipt = await intake.accept(event(str(number)))
        assert isinstance(receipt, Accepted)
        assert receipt.is_spooled
    assert store.order == ["0"]
    store.is_away = False
    await back(intake)
    assert store.order == [str(number) for number in range(50)]
    direct = await intake.accept(event("50"))
    assert isinstance(direct, Accepted)
    assert not direct.is_spooled


async def test_no_segment_is_read_during_an_outage(intake: Intake, store: FakeStore, monkeypatch):
    reads: list[bool] = []
    read = SegmentStore.oldest

    def noted(shelf: SegmentStore) -> Segment | None:
        reads.append(store.is_away)
        return read(shelf)

    monkeypatch.setattr(SegmentStore, "oldest", noted)
    store.is_away = True
    await intake.accept(event("0"))
    offers = store.offers
    await eventually(lambda: store.offers >= offers + 3)
    assert not reads
    store.is_away = False
    await back(intake)
    assert store.order == ["0"]
    assert reads
    assert not any(reads)


async def test_newer_events_queue_behind_spooled_ones(intake: Intake, store: FakeStore):
    store.is_away = True
    sent = 0
    for _ in range(300):
        await intake.accept(event(str(sent)))
        sent += 1
    store.is_away = False
    while intake.mode is not Mode.DIRECT:
        await intake.accept(event(str(sent)))
        sent += 1
    await intake.accept(event(str(sent)))
    assert store.order == [str(number) for number in range(sent + 1)]


async def test_mutant_without_that_they_overtake(intake: Intake, store: FakeStore):
    store.is_away = True
    for number in range(300):
        await intake.accept(event(str(number)))
    store.is_away = False
    await store.append([event("newer")])  # straight to the database
    await back(intake)
    assert store.order.index("newer") < 300


async def test_an_unresponsive_database_delays_only_one_batch(intake: Intake, store: FakeStore):
    store.hangs.clear()
    receipts = await asyncio.gather(*[intake.accept(event(str(number))) for number in range(300)])
    assert all(isinstance(receipt, Accepted) and receipt.is_spooled for receipt in receipts)
    offers = store.offers
    await asyncio.gather(*[intake.accept(event(f"later {number}")) for number in range(300)])
    assert store.offers <= offers + 1  # the spool's own look, not one for each
    store.hangs.set()
    await back(intake)
    assert len(store.stored) == 600


async def test_an_event_with_an_unknown_commit_is_stored_once(intake: Intake, store: FakeStore):
    store.loses_answers = True
    receipt = await intake.accept(event("a"))
    assert isinstance(receipt, Accepted)
    assert receipt.is_spooled
    store.loses_answers = False
    await back(intake)
    assert store.order == ["a"]
    assert store.stored["a"].id == receipt.event_id


async def test_duplicates_of_spooled_events_are_answered_from_memory(intake: Intake, store: FakeStore):
    store.is_away = True
    first = await intake.accept(event("a"))
    assert await intake.accept(event("a")) == Duplicate(first.event_id)
    assert intake.buffer is not None
    assert intake.buffer.waiting_events == 1


async def test_a_copy_after_a_restart_is_merged_when_drained(store: FakeStore, tmp_path: Path):
    store.is_away = True
    before = make(store, tmp_path)
    await before.start()
    await before.accept(event("a"))
    await before.drain()
    after = make(store, tmp_path)
    await after.start()
    copy = event("a", b"{}")
    await after.accept(copy)
    store.is_away = False
    await back(after)
    assert store.order == ["a"]
    await after.drain()


async def test_the_next_process_drains_the_old_spool_first(store: FakeStore, tmp_path: Path):
    store.is_away = True
    before = make(store, tmp_path)
    await before.start()
    for number in range(5):
        await before.accept(event(str(number)))
    await before.drain()
    store.is_away = False
    after = make(store, tmp_path)
    await after.start()
    await after.accept(event("5"))
    await back(after)
    assert store.order == [str(number) for number in range(6)]
    await after.drain()


async def test_an_unstorable_event_does_not_block_others(intake: Intake, store: FakeStore, tmp_path: Path):
    store.is_away, store.refused = True, {"bad", "worse"}
    for key in ("a", "bad", "b"):
        await intake.accept(event(key))
    store.is_away = False
    await back(intake)
    assert store.order == ["a", "b"]
    assert len(list((tmp_path / "refused").iterdir())) == 1
    with pytest.raises(ValueRejected):  # and while the database is there, its sender is told
        await intake.accept(event("worse"))


async def test_a_queue_that_is_full_is_emptied_into_the_spool(store: FakeStore, tmp_path: Path):
    intake = make(store, tmp_path, queue=10, batch=1)
    await intake.start()
    store.hangs.clear()
    receipts = await asyncio.gather(*[intake.accept(event(str(number))) for number in range(100)])
    assert all(isinstance(receipt, Accepted) for receipt in receipts)
    store.hangs.set()
    await back(intake)
    assert len(store.order) == 100
    await intake.drain()


async def test_a_full_spool_refuses_and_nothing_that_it_took_is_lost(store: FakeStore, tmp_path: Path):
    spool = Spool(SegmentStore(tmp_path, SpoolLimits(segment_bytes=4096, max_bytes=8192, max_disk_used=1.0)))
    intake = Intake(store, buffer=spool, within_s=0.2)
    await intake.start()
    store.is_away = True
    taken: list[str] = []

    async def fill() -> None:
        for number in range(1000):
            await intake.accept(event(str(number), bytes(500)))
            taken.append(str(number))

    with pytest.raises(SpoolUnavailable):
        await fill()
    store.is_away = False
    await back(intake)
    assert store.order[: len(taken)] == taken
    await intake.drain()


async def test_events_waiting_too_long_for_a_slow_database_are_spooled(store: FakeStore, tmp_path: Path, monkeypatch):
    intake = make(store, tmp_path, batch=1)
    await intake.start()
    plain = store.append

    async def slow(batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        await asyncio.sleep(0.05)
        return await plain(batch, within_s=within_s)

    monkeypatch.setattr(store, "append", slow)
    receipts = await asyncio.gather(*[intake.accept(event(str(number))) for number in range(100)])
    spooled = [isinstance(receipt, Accepted) and receipt.is_spooled for receipt in receipts]
    assert any(spooled)
    monkeypatch.undo()
    await back(intake)
    assert sorted(store.order) == sorted(str(number) for number in range(100))
    await intake.drain()


async def test_stopping_spools_waiting_events(store: FakeStore, tmp_path: Path):
    intake = make(store, tmp_path)
    await intake.start()
    store.hangs.clear()
    waiting = [asyncio.create_task(intake.accept(event(str(number)))) for number in range(20)]
    await asyncio.sleep(0)
    await intake.drain()
    assert all(isinstance(receipt, Accepted) for receipt in await asyncio.gather(*waiting))
    with pytest.raises(Overloaded):
        await intake.accept(event("late"))
    store.hangs.set()
    after = make(store, tmp_path)
    await after.start()
    await back(after)
    assert len(store.order) == 20
    await after.drain()


async def test_without_a_spool_an_outage_fails_requests(store: FakeStore):
    intake = Intake(store)
    await intake.start()
    store.is_away = True
    with pytest.raises(DatabaseUnavailable):
        await intake.accept(event("a"))
    assert not intake.accepts_without_database
    await intake.drain()


@pytest.mark.parametrize("seed", range(5))
async def test_random_outages_store_each_event_once_and_in_order(
    seed: int, store: FakeStore, tmp_path: Path, monkeypatch
):
    print(f"seed {seed}")  # noqa: T201 - what repeats the run
    monkeypatch.setattr(intake_module, "DRAIN_BACKOFF_S", (0.005, 0.01, 0.05, 0.2, 1.0))
    dice = random.Random(seed)
    intake = make(store, tmp_path)
    await intake.start()
    for number in range(400):
        await intake.accept(event(str(number)))
        if dice.random() < 0.05:
            store.is_away = dice.random() < 0.5
            store.loses_answers = dice.random() < 0.3
        if dice.random() < 0.02:
            await intake.drain()
            intake = make(store, tmp_path)
            await intake.start()
    store.is_away = store.loses_answers = False
    await back(intake)
    assert store.order == [str(number) for number in range(400)]
    await intake.drain()


def test_an_event_survives_its_record():
    one = event("a", b"\x00\xff not text")
    assert decode(encode(one)) == decode(encode(decode(encode(one))))
    assert decode(encode(one)).body == one.body
    assert decode(encode(one)).routes_version == UNROUTED


def message(key: str) -> NewEvent:
    publication = Publication(
        application_id=event("app").id,
        organization="default",
        memory_days=1.0,
        channels=(),
        tags=(),
        deliver_at=None,
        content_until=None,
        request_sha256=None,
    )
    return replace(
        event(key), source=None, application="app_x", origin=Origin.PUBLISHED, publication=publication
    )  # fmt: skip


class FakeMessageStore(FakeStore):
    """A store of messages that takes down what it is to report."""

    def __init__(self) -> None:
        super().__init__()
        self.reports: list[list[str]] = []

    async def report_duplicates(self, messages: Sequence[tuple[NewEvent, Duplicate]]) -> None:
        self.reports.append([one.dedup_key for one, _ in messages])


def mixed(number: int) -> list[NewEvent]:
    return [message(f"m{place}") if place % 2 else event(f"e{place}") for place in range(number)]


async def test_a_batch_of_both_kinds_takes_one_commit_for_each_kind(store: FakeStore):
    messages = FakeMessageStore()
    receipts = await EventWriter(store, None, messages).append([*mixed(128), message("m1x"), event("e0", b"other")])
    assert (store.offers, messages.offers) == (1, 1)
    assert [receipt.event_id for receipt in receipts[:128]] == [one.id for one in mixed(128)]
    assert receipts[-1] == Duplicate(event("e0").id, conflict=True)
    assert store.order == [one.dedup_key for one in mixed(128) if one.publication is None]
    assert messages.order == [*(one.dedup_key for one in mixed(128) if one.publication is not None), "m1x"]


async def test_repetitions_of_a_batch_are_reported_together(store: FakeStore):
    messages = FakeMessageStore()
    batch = [message("a"), event("b"), replace(message("a"), id=event("x").id), replace(message("a"), id=event("y").id)]
    records = [Record(number, encode(one)) for number, one in enumerate(batch, 1)]
    results = [result async for result in EventWriter(store, None, messages).bring(records)]
    assert [result.record for result in results] == records
    assert messages.reports == [["a", "a"]]


async def outage(store: FakeStore, intake: Intake, number: int) -> None:
    """Accept events in an outage that goes on."""
    store.is_away = True
    for place in range(number):
        await intake.accept(event(str(place)))


class FailingStore(FakeStore):
    """A store that fails once, at its third batch of spooled events."""

    batches = 0
    is_failing = True

    async def append(self, batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        if batch and not self.is_away:
            self.batches += 1
            self.seen.append([one.dedup_key for one in batch])
            if self.batches == 3 and self.is_failing:
                raise DatabaseUnavailable("a connection was lost")
        return await super().append(batch, within_s=within_s)

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[str]] = []


async def test_after_an_error_a_segment_is_drained_from_where_it_was(tmp_path: Path):
    store = FailingStore()
    intake = Intake(store, buffer=Spool(SegmentStore(tmp_path, WIDE)), within_s=0.2, batch=4)
    await intake.start()
    await outage(store, intake, 20)
    store.is_away = False
    await back(intake)
    await intake.drain()
    assert [batch[0] for batch in store.seen] == ["0", "4", "8", "8", "12", "16"]
    assert store.order == [str(number) for number in range(20)]


def pending_segment(folder: Path) -> Path:
    return next(folder.glob("*/*.seg"))


async def test_mutant_that_goes_on_too_far_loses_events(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    store = FailingStore()
    intake = Intake(store, buffer=Spool(SegmentStore(tmp_path, WIDE)), within_s=0.2, batch=4)
    bring = EventWriter.bring

    async def skip(writer: EventWriter, records: Sequence[Record], within_s: float | None = None):
        intake._drained = pending_segment(tmp_path), records[-1].sequence  # before it is stored
        async for result in bring(writer, records, within_s):
            yield result

    monkeypatch.setattr(EventWriter, "bring", skip)
    await intake.start()
    await outage(store, intake, 20)
    store.is_away = False
    await back(intake)
    await intake.drain()
    assert "8" not in store.order


async def test_a_database_that_accepts_a_backlog_is_not_reported_unavailable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    def unavailable() -> float:
        return meters.gauge_handle("boathook_database_unavailable").value

    store = FailingStore()
    seen: list[float] = []
    note = Intake.note_stored

    def noted(self: Intake, stored: NewEvent, receipt: Receipt) -> None:
        seen.append(unavailable())
        note(self, stored, receipt)

    monkeypatch.setattr(Intake, "note_stored", noted)
    intake = Intake(store, buffer=Spool(SegmentStore(tmp_path, WIDE)), within_s=0.2, batch=4)
    await intake.start()
    await outage(store, intake, 20)
    assert unavailable() == 1
    store.is_away = False
    await back(intake)
    assert unavailable() == 0
    # The first batch shows that it answers; so does the first one after the error.
    assert seen == [1] * 4 + [0] * 4 + [1] * 4 + [0] * 8
    await intake.drain()
