"""Waking: once the reason to wait is gone, no event keeps waiting, however wake-up and attempts interleave."""

import asyncio
import functools
import itertools
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from boathook import Boathook, Event, Retry, Transaction
from boathook.db import delivery_commands, integrity
from boathook.db.database import Database
from boathook.db.deliveries import DeliveryStore
from boathook.db.delivery_commands import AuditContext
from boathook.db.queries import listings
from boathook.db.queries.listings import ListFilter
from boathook.domain import ids
from boathook.domain.errors import InvalidValue
from boathook.domain.policy import RetryDefaults, RetryPolicy
from boathook.service.app_platform import AppPlatform, open_platform
from tests.postgres.db.test_deliveries import add_deliveries, back, claim, lapse, settle
from tests.sender_harness import Reply, Sink, add_endpoint, running_sender
from tests.sender_harness import add_deliveries as add_endpoint_deliveries
from tests.support import eventually
from tests.worker_harness import accept_events, running_worker, settings_for, wait_for_states

LONG_S = 3600.0
ACTION = AuditContext(actor="app:shop", note="woken")


@pytest.fixture
async def platform(db: Database, tmp_path: Path) -> AsyncIterator[AppPlatform]:
    settings = settings_for(db.url)
    server = settings.server.model_copy(update={"data_dir": tmp_path})
    opened = open_platform(settings.model_copy(update={"server": server})).for_app("shop")
    yield opened
    await opened.stop()


async def wake(db: Database, event_id: UUID) -> int:
    async with db.transaction() as connection:
        return await delivery_commands.make_due_now(connection, event_id, ACTION)


async def row_of(db: Database, event_id: UUID) -> Any:
    return await db.fetchrow("select *, due_at <= now() as is_due from boathook.delivery where event_id = $1", event_id)


async def put_off(db: Database, *, due_in_s: float | None = LONG_S) -> UUID:
    """Store an event whose delivery has failed, and is waiting or dead."""
    (event_id,) = await add_deliveries(db)
    (work,) = await claim(DeliveryStore(db, RetryDefaults()))
    assert await DeliveryStore(db, RetryDefaults()).record_failed_attempts([back(work, due_in_s=due_in_s)]) == [True]
    return event_id


class TestPending:
    async def test_is_due_once_the_wake_is_committed(self, db: Database):
        event_id = await put_off(db)
        async with db.transaction() as connection:
            assert await delivery_commands.make_due_now(connection, event_id, ACTION) == 1
            assert not (await row_of(db, event_id))["is_due"]
            assert await claim(DeliveryStore(db, RetryDefaults())) == []
        (work,) = await claim(DeliveryStore(db, RetryDefaults()))
        assert (work.claim.event_id, work.claim.attempt) == (event_id, 2)

    async def test_waits_on_where_the_wake_is_rolled_back(self, db: Database):
        event_id = await put_off(db)
        with pytest.raises(KeyError):
            await self.wake_and_fail(db, event_id)
        assert not (await row_of(db, event_id))["is_due"]

    @staticmethod
    async def wake_and_fail(db: Database, event_id: UUID) -> None:
        async with db.transaction() as connection:
            await delivery_commands.make_due_now(connection, event_id, ACTION)
            raise KeyError

    async def test_that_is_due_already_becomes_due_no_later(self, db: Database):
        (event_id,) = await add_deliveries(db)
        before = (await row_of(db, event_id))["due_at"]
        assert await wake(db, event_id) == 1
        assert (await row_of(db, event_id))["due_at"] == before

    async def test_of_another_event_waits_on(self, db: Database):
        event_id, other = await put_off(db), await put_off(db)
        assert await wake(db, event_id) == 1
        assert not (await row_of(db, other))["is_due"]


class TestDead:
    async def test_becomes_pending_as_by_a_replay_with_a_row_in_the_audit(self, db: Database):
        event_id = await put_off(db, due_in_s=None)
        assert await wake(db, event_id) == 1
        row = await row_of(db, event_id)
        assert (row["state"], row["is_due"], row["attempts_before"], row["replays"]) == ("pending", True, 1, 1)
        assert await audit(db) == [("app:shop", ids.show_delivery(event_id, 0))]

    async def test_is_retried_by_a_worker_at_once(self, db: Database):
        event_id = await put_off(db, due_in_s=None)
        await wake(db, event_id)
        (work,) = await claim(DeliveryStore(db, RetryDefaults()))
        assert work.claim.event_id == event_id


async def audit(db: Database) -> list[tuple[str, str]]:
    rows = await listings.list_audit(db, ListFilter(limit=100), action=delivery_commands.REPLAY_DEAD)
    return [(row.actor, row.subject) for row in rows]


class TestLeased:
    async def test_that_fails_is_due_at_once(self, db: Database):
        (event_id,) = await add_deliveries(db)
        (work,) = await claim(DeliveryStore(db, RetryDefaults()))
        assert await wake(db, event_id) == 1
        await DeliveryStore(db, RetryDefaults()).record_failed_attempts([back(work, due_in_s=LONG_S)])
        row = await row_of(db, event_id)
        assert (row["state"], row["is_due"], row["code"], row["woken_by"]) == ("pending", True, "BROKEN", None)

    async def test_is_woken_for_one_attempt_only(self, db: Database):
        (event_id,) = await add_deliveries(db)
        (work,) = await claim(DeliveryStore(db, RetryDefaults()))
        await wake(db, event_id)
        await DeliveryStore(db, RetryDefaults()).record_failed_attempts([back(work, due_in_s=LONG_S)])
        (work,) = await claim(DeliveryStore(db, RetryDefaults()))
        await DeliveryStore(db, RetryDefaults()).record_failed_attempts([back(work, due_in_s=LONG_S)])
        assert not (await row_of(db, event_id))["is_due"]

    async def test_that_would_be_dead_is_pending_with_a_new_budget(self, db: Database):
        (event_id,) = await add_deliveries(db)
        (work,) = await claim(DeliveryStore(db, RetryDefaults()))
        await wake(db, event_id)
        assert await audit(db) == []
        await DeliveryStore(db, RetryDefaults()).record_failed_attempts([back(work, due_in_s=None, outcome="dead")])
        row = await row_of(db, event_id)
        assert (row["state"], row["is_due"], row["attempts_before"], row["replays"]) == ("pending", True, 1, 1)
        assert await audit(db) == [("app:shop", ids.show_delivery(event_id, 0))]
        assert (await integrity.check_integrity(db, dedup_days=30)).violations == ()

    async def test_whose_worker_died_is_due_at_once(self, db: Database):
        (event_id,) = await add_deliveries(db)
        await claim(DeliveryStore(db, RetryDefaults()))
        await wake(db, event_id)
        await lapse(db)
        assert await DeliveryStore(db, RetryDefaults()).reap() == 1
        assert (await row_of(db, event_id))["is_due"]

    async def test_that_succeeds_has_ended(self, db: Database):
        (event_id,) = await add_deliveries(db)
        (work,) = await claim(DeliveryStore(db, RetryDefaults()))
        await wake(db, event_id)
        await settle(db, work)
        assert await row_of(db, event_id) is None

    async def test_that_is_released_forgets_the_wake(self, db: Database):
        (event_id,) = await add_deliveries(db)
        (work,) = await claim(DeliveryStore(db, RetryDefaults()))
        await wake(db, event_id)
        await DeliveryStore(db, RetryDefaults()).release_claims([work.claim])
        assert (await row_of(db, event_id))["woken_by"] is None

    async def test_of_a_line_stays_the_first_in_it(self, db: Database):
        first, second = await add_deliveries(db, count=2, order_key="car-1")
        (work,) = await claim(DeliveryStore(db, RetryDefaults()))
        await wake(db, first)
        await DeliveryStore(db, RetryDefaults()).record_failed_attempts([back(work, due_in_s=None, outcome="dead")])
        (work,) = await claim(DeliveryStore(db, RetryDefaults()))
        assert work.claim.event_id == first
        assert await wake(db, second) == 1
        assert await claim(DeliveryStore(db, RetryDefaults())) == []


# The race: an attempt looks whether its reason is there, and is put off where it is not; the process that creates the reason wakes it.

Step = Callable[[], Awaitable[object]]


class Race:
    """An event waiting for a row, with both sides of the race as single steps."""

    def __init__(self, db: Database, event_id: UUID) -> None:
        self._db = db
        self._event_id = event_id
        self._work: Any = None
        self._waker: Any = None
        self.is_ready_seen = False

    async def try_it(self) -> None:
        works = await claim(DeliveryStore(self._db, RetryDefaults()))
        self._work = works[0] if works else None
        self.is_ready_seen = bool(await self._db.fetchval("select exists (select from reason)"))

    async def put_off(self) -> None:
        if self._work is None:
            return
        if self.is_ready_seen:
            await settle(self._db, self._work)
        else:
            await DeliveryStore(self._db, RetryDefaults()).record_failed_attempts([back(self._work, due_in_s=LONG_S)])

    async def make_reason(self) -> None:
        self._waker = self._db.transaction()
        connection = await self._waker.__aenter__()
        await connection.execute("insert into reason values (1)")
        await delivery_commands.make_due_now(connection, self._event_id, ACTION)

    async def commit(self) -> None:
        await self._waker.__aexit__(None, None, None)

    async def run(self, order: Sequence[str]) -> None:
        """Run the steps in an order; a blocked step continues when it can."""
        steps: dict[str, Step] = {
            "try": self.try_it,
            "put off": self.put_off,
            "wake": self.make_reason,
            "commit": self.commit,
        }
        behind: dict[str, asyncio.Future[object]] = {}
        for name in order:
            side = "attempt" if name in {"try", "put off"} else "waker"
            if side in behind:
                await behind.pop(side)
            step = asyncio.ensure_future(steps[name]())
            await asyncio.wait({step}, timeout=0.5)
            if not step.done():
                behind[side] = step
            else:
                step.result()
        await asyncio.gather(*behind.values())


ORDERS = [
    order
    for order in itertools.permutations(("try", "put off", "wake", "commit"))
    if order.index("try") < order.index("put off") and order.index("wake") < order.index("commit")
]


async def left_waiting(db: Database, orders: Sequence[Sequence[str]]) -> list[Sequence[str]]:
    """Return the orders after which the event waits although its reason is there."""
    await db.execute("create table reason (n int)")
    found = []
    for order in orders:
        await db.execute("truncate reason, boathook.delivery")
        (event_id,) = await add_deliveries(db)
        await Race(db, event_id).run(order)
        row = await row_of(db, event_id)
        if row is not None and not row["is_due"]:
            found.append(order)
    return found


async def test_no_delivery_waits_in_any_order_of_events(db: Database):
    assert len(ORDERS) == 6
    assert await left_waiting(db, ORDERS) == []


async def test_mutant_a_wake_of_pending_ones_only_is_missed(db: Database, monkeypatch: pytest.MonkeyPatch):
    naive = """
        update boathook.delivery set due_at = least(due_at, clock_timestamp())
        where event_id = $1 and state = 'pending' and $2::text is not null
    """
    monkeypatch.setitem(delivery_commands.SQL, "lock_pending", "select $1::uuid")
    monkeypatch.setitem(delivery_commands.SQL, "wake_pending", naive)
    assert ("try", "wake", "commit", "put off") in await left_waiting(db, ORDERS)


async def test_mutant_a_wake_that_does_not_wait_for_the_attempts_end_is_missed(
    db: Database, monkeypatch: pytest.MonkeyPatch
):
    eager = """
        with free as (
            select ordinal, state from boathook.delivery where event_id = $1 for update skip locked
        )
        update boathook.delivery d set due_at = least(d.due_at, clock_timestamp())
        from free where d.event_id = $1 and d.ordinal = free.ordinal and free.state = 'pending' and $2::text is not null
    """
    monkeypatch.setitem(delivery_commands.SQL, "lock_pending", "select $1::uuid")
    monkeypatch.setitem(delivery_commands.SQL, "wake_pending", eager)
    assert ("try", "wake", "put off", "commit") in await left_waiting(db, ORDERS)


async def many_races(db: Database, seed: int, rounds: int = 40) -> int:
    """Let workers and wakers race for many events at once; return how many wait though their reason is there."""
    chance, store = random.Random(seed), DeliveryStore(db, RetryDefaults())
    await db.execute("create table reason (event_id uuid primary key)")
    events = await add_deliveries(db, count=rounds)
    stop = asyncio.Event()

    async def work(name: str) -> None:
        while not stop.is_set():
            for one in await claim(store, slots=3, worker=name):
                sql = "select exists (select from reason where event_id = $1)"
                is_ready = await db.fetchval(sql, one.claim.event_id)
                await asyncio.sleep(chance.random() * 0.01)
                if is_ready:
                    await settle(db, one, name)
                else:
                    due_in_s = None if chance.random() < 0.2 else LONG_S
                    await store.record_failed_attempts([back(one, due_in_s=due_in_s)])
            await asyncio.sleep(0.001)

    async def make_reason(event_id: UUID) -> None:
        await asyncio.sleep(chance.random() * 0.2)
        async with db.transaction() as connection:
            await connection.execute("insert into reason values ($1)", event_id)
            await delivery_commands.make_due_now(connection, event_id, ACTION)
            await asyncio.sleep(chance.random() * 0.01)

    workers = [asyncio.create_task(work(f"w{number}")) for number in range(3)]
    await asyncio.gather(*(make_reason(event_id) for event_id in events))
    is_left = "select count(*) from boathook.delivery where state = 'pending' and due_at <= now() or state = 'leased'"

    async def is_quiet() -> bool:
        return not await db.fetchval(is_left)

    await eventually(is_quiet)
    stop.set()
    await asyncio.gather(*workers)
    return int(await db.fetchval("select count(*) from boathook.delivery"))


@pytest.mark.parametrize("seed", range(3))
async def test_many_races_leave_no_delivery_waiting(db: Database, seed: int):
    assert await many_races(db, seed) == 0


# Through an app.


@pytest.mark.extended("waits for intervals and deadlines of the product")
async def test_a_handler_wakes_waiting_deliveries(db: Database, platform: AppPlatform):
    await db.execute("create table driver (name text primary key)")
    hook = Boathook("shop")
    hook.bind(None, platform)

    @hook.on("shop", "trip", retry=RetryPolicy(delays_s=(LONG_S,), max_age_s=10 * LONG_S))
    async def drive(event: Event, tx: Transaction) -> object:
        known = await tx.fetchval("select exists (select from driver where name = $1)", event.json["driver"])
        return None if known else Retry(after=LONG_S, code="DRIVER_MISSING")

    @hook.on("shop", "driver")
    async def hire(event: Event, tx: Transaction) -> None:
        await tx.execute("insert into driver values ($1)", event.json["name"])
        waiting = await hook.operations.deliveries(recipient="handler:shop.drive", state="pending")
        for event_id in sorted(delivery.event_id for delivery in waiting):
            await hook.operations.wake(tx, event_id)

    async with running_worker(db, hook, poll_interval_s=5.0):
        trips = await accept_events(db, *({"driver": "ann"} for _ in range(3)), type="trip")
        await eventually(functools.partial(all_put_off, db, 3))
        started = time.monotonic()
        await accept_events(db, {"name": "ann"}, type="driver")
        await wait_for_states(db, succeeded=4)
    assert time.monotonic() - started < LONG_S
    attempts = await db.fetch(
        "select count(*) as n from boathook.attempt where event_id = any ($1) group by event_id", trips
    )
    assert [row["n"] for row in attempts] == [2, 2, 2]


async def all_put_off(db: Database, number: int) -> bool:
    sql = "select count(*) from boathook.delivery where code = 'DRIVER_MISSING' and state = 'pending'"
    return bool(await db.fetchval(sql) == number)


async def test_an_app_transaction_wakes_by_event_or_message_id(db: Database, platform: AppPlatform):
    waiting, dead = await put_off(db), await put_off(db, due_in_s=None)
    async with platform.transaction() as tx:
        assert await platform.operations.wake(tx, ids.show(ids.EVENT, waiting)) == 1
        assert await platform.operations.wake(tx, ids.show(ids.MESSAGE, dead)) == 1
        assert await platform.operations.wake(tx, ids.make(1, 1)) == 0
        with pytest.raises(InvalidValue, match="evt_"):
            await platform.operations.wake(tx, "yesterday's")
    assert len(await claim(DeliveryStore(db, RetryDefaults()))) == 2
    assert await audit(db) == [("app:shop", ids.show_delivery(dead, 0))]


async def woken_while_sent(db: Database, retry: RetryPolicy) -> Any:
    """Wake a message while its first request is under way, which fails; return its delivery's last attempt number."""
    gate = asyncio.Event()
    replies = iter([Reply(500, gate=gate), Reply(200)])
    async with Sink(lambda _: next(replies)).open() as sink:
        place = await add_endpoint(db, sink.base, retry=retry)
        (event_id,) = await add_endpoint_deliveries(db, place)
        async with running_sender(db):
            await eventually(lambda: sink.requests)
            assert (await row_of(db, event_id))["state"] == "leased"
            assert await wake(db, event_id) == 1
            gate.set()
            await wait_for_states(db, succeeded=1)
    return await db.fetchrow("select attempts, replays from boathook.delivery_archive")


class TestEndpoint:
    async def test_that_failed_is_retried_at_once(self, db: Database):
        replies = iter([Reply(500), Reply(200)])
        async with Sink(lambda _: next(replies)).open() as sink:
            place = await add_endpoint(db, sink.base, retry=RetryPolicy(delays_s=(50.0,)))
            (event_id,) = await add_endpoint_deliveries(db, place)
            async with running_sender(db):

                async def is_put_off() -> bool:
                    return bool(await db.fetchval("select count(*) from boathook.delivery where code = 'HTTP_500'"))

                await eventually(is_put_off)
                assert await wake(db, event_id) == 1
                await wait_for_states(db, succeeded=1)

    async def test_that_fails_while_woken_is_retried_at_once(self, db: Database):
        row = await woken_while_sent(db, RetryPolicy(delays_s=(50.0,)))
        assert tuple(row) == (2, 0)
        assert await audit(db) == []

    async def test_that_dies_while_woken_is_retried_with_a_new_budget(self, db: Database):
        row = await woken_while_sent(db, RetryPolicy(delays_s=()))
        assert tuple(row) == (2, 1)
        assert [actor for actor, _ in await audit(db)] == ["app:shop"]
