"""The intake in front of PostgreSQL: a refused row affects no other request, and lost events may be sent again."""

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from msgspec.structs import replace

from boathook.db import group_commit
from boathook.db.database import Database
from boathook.db.events import EventStore
from boathook.domain.errors import DatabaseUnavailable, ValueRejected
from boathook.domain.model import Accepted, Duplicate, NewDelivery, NewEvent, Receipt
from boathook.ingest.intake import Intake, Mode
from boathook.spool.segment_store import DAMAGED_SUFFIX, SpoolLimits
from boathook.spool.spool import Spool
from tests.postgres.db.test_events import event
from tests.support import eventually


class Store:
    """The event store, which can be away."""

    def __init__(self, db: Database) -> None:
        self._store = EventStore(db)
        self.is_away = False

    async def append(self, batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        if self.is_away:
            raise DatabaseUnavailable("away")
        return await self._store.append(batch)


class ReceiptsInAnyOrder(Store):
    """A mutant: the receipts of repetitions follow those of new events."""

    async def append(self, batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        return sorted(await super().append(batch), key=lambda receipt: isinstance(receipt, Duplicate))


class SecondHalfFirst(deque[list[tuple[NewEvent, asyncio.Future[Receipt], float]]]):
    """A mutant: the second half of a batch is stored before the first."""

    def extendleft(self, parts: Iterable[list[tuple[NewEvent, asyncio.Future[Receipt], float]]]) -> None:
        super().extendleft(reversed(tuple(parts)))


def damage(root: Path, text: bytes) -> None:
    """Change one bit of *text* in the only segment of a spool."""
    (segment,) = root.glob("*/*.seg")
    data = bytearray(segment.read_bytes())
    data[data.index(text)] ^= 1
    segment.write_bytes(data)


def suffixes(root: Path) -> list[str]:
    return [path.suffix for path in root.glob("*/*")]


async def _route(events: Sequence[NewEvent]) -> list[NewEvent]:
    return [replace(each, routes_version=1, deliveries=(NewDelivery("handler:x"),)) for each in events]


class TestBatchWithARefusedRow:
    """All requests are waiting when the committer starts, so they form one batch; PostgreSQL refuses one row."""

    async def commit(self, store: Store) -> tuple[list[NewEvent], list[Receipt | BaseException]]:
        refused = replace(event("refused"), headers="{")
        batch = [event("a"), event("a"), event("b"), event("c"), refused, event("d"), event("e")]
        intake = Intake(store)
        waiters = [asyncio.get_running_loop().create_future() for _ in batch]
        for each, waiter in zip(batch, waiters, strict=True):
            intake.put(each, waiter)
        await intake.start()
        results = await asyncio.gather(*waiters, return_exceptions=True)
        await intake.drain()
        return batch, results

    async def stored(self, db: Database) -> list[str]:
        """Return the keys in the order in which their deliveries were added."""
        rows = await db.fetch(
            "select dedup_key from boathook.delivery d join boathook.event e on e.id = d.event_id order by d.seq"
        )
        return [row["dedup_key"] for row in rows]

    def expected(self, batch: Sequence[NewEvent]) -> list[Receipt]:
        a, _, b, c, _, d, e = batch
        return [Accepted(a.id), Duplicate(a.id), Accepted(b.id), Accepted(c.id), Accepted(d.id), Accepted(e.id)]

    async def test_each_request_gets_its_own_outcome(self, db: Database):
        batch, results = await self.commit(Store(db))
        assert isinstance(results.pop(4), ValueRejected)
        assert results == self.expected(batch)

    async def test_mutant_with_receipts_in_another_order_requests_get_those_of_others(self, db: Database):
        batch, results = await self.commit(ReceiptsInAnyOrder(db))
        assert isinstance(results.pop(4), ValueRejected)
        assert results != self.expected(batch)

    async def test_the_others_are_stored_in_accept_order(self, db: Database):
        await self.commit(Store(db))
        assert await self.stored(db) == ["a", "b", "c", "d", "e"]

    async def test_mutant_with_the_second_half_first_they_are_not(self, db: Database, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(group_commit, "deque", SecondHalfFirst)
        await self.commit(Store(db))
        assert await self.stored(db) != ["a", "b", "c", "d", "e"]


class TestMemoryAfterADamagedSegment:
    """An event was accepted into the spool, and the disk has damaged its record before it is drained."""

    @asynccontextmanager
    async def drained(self, db: Database, root: Path) -> AsyncIterator[tuple[Intake, list[str]]]:
        """Yield an intake that has drained a segment without the damaged event, and the losses it reported."""
        store, losses = Store(db), list[str]()
        intake = Intake(store, reroute=_route, buffer=Spool.at(root, SpoolLimits(max_disk_used=1.0)), within_s=30.0)
        intake.on_loss.append(lambda: losses.append("lost"))
        await intake.start()
        store.is_away = True
        for key in ("lost", "kept"):
            assert (await intake.accept(event(key))).is_spooled
        damage(root, b"lost")
        store.is_away = False
        await eventually(lambda: intake.mode is Mode.DIRECT)
        assert suffixes(root) == [DAMAGED_SUFFIX]
        try:
            yield intake, losses
        finally:
            await intake.drain()

    async def keys(self, db: Database) -> set[str]:
        return {row["dedup_key"] for row in await db.fetch("select dedup_key from boathook.event")}

    async def test_the_lost_event_is_accepted_when_it_is_sent_again(self, db: Database, tmp_path: Path):
        async with self.drained(db, tmp_path) as (intake, losses):
            assert losses == ["lost"]
            assert await self.keys(db) == {"kept"}
            receipts = [await intake.accept(event(key)) for key in ("lost", "kept")]
        assert [type(receipt) for receipt in receipts] == [Accepted, Duplicate]
        assert await self.keys(db) == {"lost", "kept"}

    async def test_mutant_with_its_key_still_remembered_it_is_lost_for_good(
        self, db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(Intake, "_look_for_losses", lambda _intake, _buffer: None)
        async with self.drained(db, tmp_path) as (intake, _):
            assert isinstance(await intake.accept(event("lost")), Duplicate)
        assert await self.keys(db) == {"kept"}
