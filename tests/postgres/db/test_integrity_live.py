"""A store under full load is consistent at all times: work in progress is not reported as damage."""

import asyncio
import itertools
import os
import random
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from msgspec.structs import replace

from boathook.config.tables import RetentionSettings
from boathook.db import delivery_commands, integrity, invariants
from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext, ReplaySchedule, Selection
from boathook.db.events import EventStore
from boathook.db.maintenance import run_maintenance
from boathook.db.queries.listings import ListFilter
from boathook.domain import ids
from boathook.domain.errors import ValueRejected
from boathook.domain.model import Accepted
from tests import delivery_actions
from tests.postgres.db.test_integrity import new_event
from tests.support import eventually

ACTION = AuditContext(actor="test", note="because")
RETENTION = RetentionSettings(
    events_days=7,
    dedup_days=30,
    conflicts_days=30,
    rejections_days=30,
    rejections_count=100,
    rejections_bytes=1_000_000,
    rejections_rate=10,
    maintenance_interval_s=1,
)
WORKERS = 4
OLD_WEEKS = 4
ROUNDS = 6
MAX_OPEN = 60
PAUSE_S = 0.02


@dataclass(slots=True)
class Traffic:
    """The load beside the check: requests, workers, operators, a keeper."""

    db: Database
    rng: random.Random = field(default_factory=lambda: random.Random(6))
    done: set[str] = field(default_factory=set)
    """Each kind of operation that has run at least once."""
    numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def event(self, weeks_ago: int = 0):
        number = next(self.numbers)
        made = new_event(
            f"key{number}",
            to=tuple("abc"[: self.rng.randrange(4)]),
            order_key=self.rng.choice([None, f"line{number % 5}"]),
        )
        moment = datetime.now(UTC) - timedelta(weeks=weeks_ago)
        return replace(made, id=ids.make(int(moment.timestamp() * 1000), int.from_bytes(os.urandom(9))))

    async def accept(self) -> None:
        """Store a batch of new events, of which some waited in a spool, with duplicates and conflicts."""
        if await self.db.fetchval(COUNT_OPEN) > MAX_OPEN:
            await asyncio.sleep(PAUSE_S)
            return
        fresh = [self.event(self.rng.choice([0, 0, 0, 2])) for _ in range(10)]
        again = [
            replace(event, id=ids.make(time.time_ns() // 1_000_000, number)) for number, event in enumerate(fresh[:2])
        ]
        other = replace(again[1], body=b"[]", body_sha256=new_event("", body=b"[]").body_sha256)
        receipts = await EventStore(self.db).append([*fresh, again[0], other])
        assert all(isinstance(receipt, Accepted) for receipt in receipts[:10])
        self.done.add("accepted")

    async def work(self) -> None:
        """Lease one delivery and end its attempt in one of the ways there are."""
        try:
            held = await self.db.fetchrow(CLAIM)
        except ValueRejected:  # another has leased the same order key at this very moment
            return
        if held is None:
            return
        if (way := self.rng.choice(["succeeded", "succeeded", "ignored", "retry", "dead", "dead"])) in {
            "retry",
            "dead",
        }:
            due = datetime.now(UTC) if way == "retry" else None
            await self.db.execute(SET_BACK, held["event_id"], held["ordinal"], held["fence"], due, way)
        else:
            await self.db.execute(
                SETTLE, held["event_id"], held["ordinal"], held["fence"], way, "no" if way == "ignored" else None
            )
        self.done.add(way)

    async def operate(self) -> None:
        """Decide about a few dead letters, or replay events."""
        dead, pace = Selection(ListFilter()), ReplaySchedule(await delivery_commands.read_clock(self.db))
        await asyncio.sleep(PAUSE_S)
        if await delivery_actions.purge_dead(self.db, dead, ACTION, limit=2):
            self.done.add("purged")
        if await delivery_actions.ignore_dead(self.db, dead, ACTION, limit=2):
            self.done.add("waved")
        if await delivery_actions.replay_dead(self.db, dead, ACTION, pace=pace, limit=2):
            self.done.add("revived")
        ended = await self.db.fetch("select event_id as id from boathook.delivery_archive order by random() limit 2")
        if (
            ended
            and (await delivery_actions.replay_events(self.db, [row["id"] for row in ended], ACTION, pace=pace)).added
        ):
            self.done.add("replayed")

    async def keep(self) -> None:
        """Run maintenance, which empties and drops old weeks, and deletes parts of others."""
        await asyncio.sleep(PAUSE_S)
        report = await run_maintenance(self.db, RETENTION)
        self.done.update(kind for (kind, _), number in report.dropped.items() if number)
        if report.weeks_dropped:
            self.done.add("weeks dropped")

    async def fill_old_weeks(self) -> None:
        for weeks in range(3, 3 + OLD_WEEKS):
            await self.db.execute(OLD_WEEK.replace("WEEKS", str(weeks)))
            await EventStore(self.db).append([replace(self.event(weeks), deliveries=()) for _ in range(50)])


COUNT_OPEN = "select count(*) from boathook.delivery where state <> 'dead'"
CLAIM = """
    update boathook.delivery d
    set state = 'leased', attempts = attempts + 1, fence = fence + 1, leased_by = 'w', lease_until = now() + interval '1 hour'
    where (event_id, ordinal) = (
        select event_id, ordinal from boathook.delivery
        where state = 'pending' and not is_blocked and not exists (
            select from boathook.delivery l
            where l.recipient = delivery.recipient and l.order_key = delivery.order_key and l.state = 'leased')
        order by random() limit 1 for update skip locked)
    returning event_id, ordinal::integer as ordinal, fence
"""
SETTLE = "select boathook.settle($1, $2, $3, $4, $5, 'w', now())"
SET_BACK = "select boathook.record_failure($1, $2, $3, $4, $5, 'BROKEN', 'it broke', 'trace', 'w', now())"
LOSE = """
    delete from boathook.delivery_archive where (event_id, ordinal) in (
        select event_id, ordinal from boathook.delivery_archive where not is_replay limit 1)
    returning event_id
"""
OLD_WEEK = """
    do $$
    declare
        monday timestamptz := (date_trunc('week', now() at time zone 'UTC') - make_interval(weeks => WEEKS)) at time zone 'UTC';
        parent text;
    begin
        foreach parent in array array['event', 'attempt', 'delivery_archive', 'side_effect', 'reply'] loop
            execute format(
                'create table boathook.%I partition of boathook.%I for values from (%L) to (%L)',
                parent || '_' || to_char(monday at time zone 'UTC', 'YYYYMMDD'), parent,
                boathook.min_id(monday), boathook.min_id(monday + interval '7 days'));
        end loop;
    end $$
"""


async def for_ever(step: Callable[[], Coroutine[object, object, None]]) -> None:
    while True:
        await step()


@pytest.fixture
async def traffic(db: Database, pg_url: str) -> AsyncIterator[Traffic]:
    """A store under full load, whose old weeks are dropped meanwhile; it is kept small, not slow."""
    busy = await Database.open(pg_url, purpose="busy", size=WORKERS + 6)
    made = Traffic(busy)
    await made.fill_old_weeks()
    for _ in range(5):
        await made.accept()
    steps = [made.accept, *[made.work] * WORKERS, made.operate, made.keep]
    tasks = [asyncio.create_task(for_ever(step)) for step in steps]
    yield made
    assert [task.exception() for task in tasks if task.done()] == []
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await busy.close()


EVERYTHING = {
    "accepted", "succeeded", "ignored", "retry", "dead", "purged", "waved", "revived", "replayed", "event", "weeks dropped",
}  # fmt: skip


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
async def test_a_busy_store_is_consistent_at_all_times(db: Database, traffic: Traffic, monkeypatch: pytest.MonkeyPatch):
    small = tuple(replace(walk, rows=40, max_rows=40) for walk in invariants.SCANS)
    deadline = time.monotonic() + 90
    for number in itertools.count():
        monkeypatch.setattr(integrity, "SCANS", small if number % 2 else invariants.SCANS)
        found = await integrity.check_integrity(db, dedup_days=30, is_deep=True)
        assert found.violations == ()
        assert found.balance.missing == 0
        if number >= ROUNDS and traffic.done >= EVERYTHING:
            break
        assert time.monotonic() < deadline, f"never happened: {EVERYTHING - traffic.done}"


async def test_damage_is_found_under_full_work(db: Database, traffic: Traffic):
    event = await eventually(lambda: traffic.db.fetchval(LOSE))
    found = await integrity.check_integrity(db, dedup_days=30)
    assert "every delivery exists" in {one.check for one in found.violations}
    subjects = {example.subject for one in found.violations for example in one.examples}
    assert ids.show("evt", event) in subjects
