"""Waiting for something that comes later: tried again once it has come, whatever the order of wait, signal and commits."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec.structs import replace

from boathook import Boathook, Event, RetryPolicy, SyncTransaction, Transaction, WaitFor
from boathook.config import load
from boathook.db import integrity
from boathook.db.database import Database
from boathook.db.deliveries import DeliveryStore, WaitingAttempt
from boathook.delivery.keeper import Keeper
from boathook.domain.errors import InvalidValue
from boathook.domain.policy import Complete, RetryDefaults, WaitUntil
from boathook.service.app_platform import open_platform
from tests.commands import boathook_command
from tests.postgres.db.test_deliveries import add_deliveries, claim, settle
from tests.support import eventually
from tests.worker_harness import accept_events, attempts, delivery_states, running_worker, settings_for, wait_for_states

LATER = timedelta(days=1)


@pytest.fixture
async def shop(db: Database) -> Database:
    await db.execute("create table track (id text primary key)")
    await db.execute("create table applied (id text primary key)")
    return db


@pytest.fixture
async def hook(db: Database) -> AsyncIterator[Boathook]:
    platform = open_platform(settings_for(db.url))
    made = Boathook()
    made.bind(None, platform.for_app("music"))
    yield made
    await platform.stop()


def declare(hook: Boathook, *, looked: Callable[[], Any] | None = None, **options: Any) -> None:
    """Declare a handler that applies an event to its track, and waits until there is one."""

    @hook.on("shop", **options)
    async def receive(event: Event, tx: Transaction) -> WaitFor | None:
        track = event.json["track"]
        if await tx.fetchval("select true from track where id = $1", track):
            await tx.execute("insert into applied values ($1)", track)
            return None
        if looked is not None:
            await looked()
        await tx.execute("insert into applied values ('lost')")
        return WaitFor(f"track:{track}", event.accepted_at + LATER, "no such track yet", "TRACK_MISSING")


async def put_track(db: Database, hook: Boathook, track: str = "a") -> None:
    async with hook.transaction() as tx:
        await tx.execute("insert into track values ($1)", track)
        await hook.signal(tx, f"track:{track}")


async def row(db: Database) -> Any:
    return await db.fetchrow("select *, due_at > now() + interval '1 hour' as is_later from boathook.delivery")


async def until_waiting(db: Database, number: int = 1) -> None:
    async def is_so() -> bool:
        count = await db.fetchval(
            "select count(*) from boathook.delivery where code = 'TRACK_MISSING' and state = 'pending'"
            " and due_at > now() + interval '1 hour'"
        )
        return bool(count == number)

    await eventually(is_so)


def store_of(db: Database) -> DeliveryStore:
    return DeliveryStore(db, RetryDefaults())


@asynccontextmanager
async def running_keeper(db: Database) -> AsyncIterator[None]:
    stop = asyncio.Event()
    task = asyncio.create_task(Keeper(db, load(None, {"database.url": db.url})).run(stop, lambda: None))
    try:
        yield
    finally:
        stop.set()
        await task


@pytest.fixture(autouse=True)
async def _sound(db: Database) -> AsyncIterator[None]:
    yield
    assert (await integrity.check_integrity(db, dedup_days=30)).violations == ()


class TestWait:
    async def test_it_is_pending_with_its_reason_until_the_time_and_rolls_back(self, shop, hook):
        declare(hook)
        async with running_worker(shop, hook):
            (event_id,) = await accept_events(shop, {"track": "a"})
            await until_waiting(shop)
            waiting = await row(shop)
            accepted = await shop.fetchval("select accepted_at from boathook.event where id = $1", event_id)
            assert waiting["due_at"] == accepted + LATER
            assert waiting["error"].startswith("waits for track:a until ")
            assert waiting["error"].endswith("UTC: no such track yet")
            assert await attempts(shop) == [(1, "waiting", "TRACK_MISSING")]
            assert await shop.fetchval("select count(*) from applied") == 0

    async def test_it_is_listed_by_its_code(self, shop, hook, tmp_path):
        declare(hook)
        async with running_worker(shop, hook):
            await accept_events(shop, {"track": "a"})
            await until_waiting(shop)
        (tmp_path / "boathook.toml").write_text(f'[database]\nurl = "{shop.url}"\n')
        listing = ("deliveries", "list", "--code", "TRACK_MISSING")
        for arguments in (("--json",), ()):
            done = await asyncio.to_thread(boathook_command, *listing, *arguments, cwd=tmp_path, env={**os.environ})
            assert done.returncode == 0, done.stderr
            assert "TRACK_MISSING" in done.stdout
            assert "waits for track:a until" in done.stdout or not arguments

    async def test_the_signal_tries_it_again_at_once(self, shop, hook):
        declare(hook)
        async with running_worker(shop, hook, poll_interval_s=30.0):
            await accept_events(shop, {"track": "a"}, {"track": "b"})
            await until_waiting(shop, 2)
            await put_track(shop, hook)
            await wait_for_states(shop, pending=1, succeeded=1)
        assert [row["id"] for row in await shop.fetch("select id from applied")] == ["a"]
        assert [one[1] for one in await attempts(shop)] == ["waiting", "waiting", "succeeded"]

    async def test_a_signal_that_is_rolled_back_changes_nothing(self, shop, hook):
        declare(hook)
        async with running_worker(shop, hook):
            await accept_events(shop, {"track": "a"})
            await until_waiting(shop)
        with pytest.raises(KeyError):
            await self.signal_and_fail(hook)
        assert await store_of(shop).match_signals() == 0
        assert (await row(shop))["is_later"]

    @staticmethod
    async def signal_and_fail(hook: Boathook) -> None:
        async with hook.transaction() as tx:
            await hook.signal(tx, "track:a")
            raise KeyError

    async def test_another_handler_signals_in_its_transaction_in_sync_too(self, shop, hook):
        declare(hook)

        @hook.on("studio")
        def create(event: Event, tx: SyncTransaction) -> None:
            tx.execute("insert into track values ($1)", event.json["track"])
            hook.signal_sync(tx, f"track:{event.json['track']}")

        async with running_worker(shop, hook):
            await accept_events(shop, {"track": "a"})
            await until_waiting(shop)
            await accept_events(shop, {"track": "a"}, source="studio")
            await wait_for_states(shop, succeeded=2)

    async def test_a_trigger_signals_what_another_system_writes(self, shop, hook):
        await shop.execute(
            "create function tell() returns trigger language plpgsql as $$ begin"
            " perform boathook.signal('track:' || new.id); return null; end $$"
        )
        await shop.execute("create trigger told after insert on track for each row execute function tell()")
        declare(hook)
        async with running_worker(shop, hook, poll_interval_s=30.0):
            await accept_events(shop, {"track": "a"})
            await until_waiting(shop)
            await shop.execute("insert into track values ('a')")
            await wait_for_states(shop, succeeded=1)

    async def test_what_does_not_come_is_dead(self, shop, hook):
        @hook.on("shop")
        async def receive(event: Event, tx: Transaction) -> WaitFor:
            return WaitFor("track:a", event.accepted_at, "no such track yet", "TRACK_MISSING")

        async with running_worker(shop, hook):
            await accept_events(shop, {})
            await wait_for_states(shop, dead=1)
        dead = await row(shop)
        assert dead["code"] == "TRACK_MISSING"
        assert dead["error"].startswith("track:a did not come until ")
        assert await attempts(shop) == [(1, "dead", "TRACK_MISSING")]

    async def test_what_does_not_come_is_ignored_where_that_is_declared(self, shop, hook):
        @hook.on("shop")
        async def receive(event: Event, tx: Transaction) -> WaitFor:
            await tx.execute("insert into applied values ('x')")
            return WaitFor("track:a", event.accepted_at, on_timeout="ignore")

        async with running_worker(shop, hook):
            await accept_events(shop, {})
            await wait_for_states(shop, ignored=1)
        note = await shop.fetchval("select note from boathook.delivery_archive")
        assert note.startswith("track:a did not come until ")
        assert [one[1] for one in await attempts(shop)] == ["ignored"]
        assert await shop.fetchval("select count(*) from applied") == 0  # it is rolled back as any wait

    async def test_it_is_tried_at_the_time_without_a_signal(self, shop, hook):
        declare(hook)
        async with running_worker(shop, hook):
            await accept_events(shop, {"track": "a"})
            await until_waiting(shop)
            await shop.execute("insert into track values ('a')")
            await shop.execute("update boathook.delivery set due_at = now()")
            await wait_for_states(shop, succeeded=1)

    async def test_it_costs_no_attempt_and_no_time_of_the_policy(self, shop, hook):
        calls = []

        @hook.on("shop", retry=RetryPolicy(first_s=0, max_attempts=2, max_age_s=60))
        async def receive(event: Event, tx: Transaction) -> WaitFor | None:
            calls.append(event.attempt)
            if not await tx.fetchval("select true from track"):
                return WaitFor("track:a", event.accepted_at + LATER, code="TRACK_MISSING")
            raise KeyError

        async with running_worker(shop, hook):
            await accept_events(shop, {"track": "a"})
            for number in range(3):
                await until_waiting(shop)
                await shop.execute("update boathook.delivery set enqueued_at = now() - interval '1 hour'")
                async with hook.transaction() as tx:
                    await hook.signal(tx, "track:a")

                async def is_tried(number: int = number) -> bool:
                    return len(calls) >= number + 2

                await eventually(is_tried)
            await until_waiting(shop)
            await put_track(shop, hook)
            await wait_for_states(shop, dead=1)
        assert [one[1] for one in await attempts(shop)] == ["waiting"] * 4 + ["failed"] * 2

    async def test_later_ones_of_its_order_key_wait_behind_it(self, shop, hook):
        declare(hook, order_by="order")
        async with running_worker(shop, hook):
            await shop.execute("insert into track values ('b')")
            await accept_events(shop, {"order": 1, "track": "a"}, {"order": 1, "track": "b"})
            await until_waiting(shop)
            assert await delivery_states(shop) == {"pending": 2}
            await put_track(shop, hook)
            await wait_for_states(shop, succeeded=2)

    async def test_a_wrong_return_value_is_named(self, shop, hook):
        @hook.on("shop")
        async def receive(event: Event) -> WaitFor:
            return WaitFor("track:a", datetime(2030, 1, 1))  # noqa: DTZ001 - the fault

        async with running_worker(shop, hook):
            await accept_events(shop, {})
            await wait_for_states(shop, dead=1)
        assert (await row(shop))["code"] == "HANDLER_MISUSE"
        assert "with a time zone" in (await row(shop))["error"]

    @pytest.mark.parametrize("key", ["", "x" * 201, "a\nb", 7])
    def test_a_wrong_key_of_a_signal_is_named(self, hook, key):
        with pytest.raises(InvalidValue, match="printable text of 1 to 200"):
            hook.signal_sync(None, key)


class TestRaces:
    """Each order in which look, wait, signal and commits can come."""

    async def test_a_signal_between_look_and_wait(self, shop, hook):
        is_first = [True]

        async def looked() -> None:
            if is_first.pop() if is_first else False:
                await put_track(shop, hook)

        declare(hook, looked=looked)
        async with running_worker(shop, hook):
            await accept_events(shop, {"track": "a"})
            await eventually(lambda: attempts(shop))
            waiting = await row(shop)
            assert waiting is None or not waiting["is_later"]
            await wait_for_states(shop, succeeded=1)
        assert [one[1] for one in await attempts(shop)] == ["waiting", "succeeded"]

    @pytest.mark.parametrize("isolation", ["read committed", "repeatable read", "serializable"])
    async def test_a_signal_that_is_committed_after_the_wait_that_it_did_not_see(self, shop, hook, isolation):
        declare(hook)
        async with running_worker(shop, hook):
            async with shop.acquire() as connection:
                transaction = connection.transaction(isolation=isolation.replace(" ", "_"))
                await transaction.start()
                await connection.execute("insert into track values ('a')")
                assert await connection.fetchval("select boathook.signal('track:a')") == 0
                await accept_events(shop, {"track": "a"})
                await until_waiting(shop)
                assert await store_of(shop).match_signals() == 0
                await transaction.commit()
            assert await store_of(shop).match_signals() == 1
            await wait_for_states(shop, succeeded=1)
            assert await store_of(shop).match_signals() == 0

    async def test_a_signal_that_was_compared_before_the_wait_was_committed(self, shop, hook):
        declare(hook)
        async with running_worker(shop, hook):
            async with shop.acquire() as blocker, blocker.transaction():
                # The record of the wait has looked for signals, and cannot be committed yet.
                await blocker.execute("lock table boathook.attempt in share mode")
                await accept_events(shop, {"track": "a"})

                async def is_held_up() -> bool:
                    return bool(
                        await shop.fetchval(
                            "select count(*) from pg_stat_activity where wait_event_type = 'Lock'"
                            " and query like '%record_wait%'"
                        )
                    )

                await eventually(is_held_up)
                await put_track(shop, hook)
                await shop.execute("update boathook.wait_signal set is_matched = true")  # as a round of now
            await until_waiting(shop)
            assert await store_of(shop).match_signals() == 1
            await wait_for_states(shop, succeeded=1)

    async def test_a_delivery_that_another_transaction_holds(self, shop, hook):
        declare(hook)
        async with running_worker(shop, hook):
            await accept_events(shop, {"track": "a"})
            await until_waiting(shop)
            assert await store_of(shop).match_signals() == 0  # the wait is compared from now on by new signals only
            async with shop.acquire() as operator:
                transaction = operator.transaction()
                await transaction.start()
                await operator.execute("select from boathook.delivery for update")
                await put_track(shop, hook)  # which does not wait for it
                assert await store_of(shop).match_signals() == 0
                await transaction.rollback()
            assert await store_of(shop).match_signals() == 1
            await wait_for_states(shop, succeeded=1)

    async def test_an_old_signal_costs_one_attempt(self, shop, hook):
        declare(hook)
        async with hook.transaction() as tx:
            await hook.signal(tx, "track:a")
        async with running_worker(shop, hook), running_keeper(shop):
            await accept_events(shop, {"track": "a"})

            async def is_compared() -> bool:
                left = await shop.fetchval("select count(*) from boathook.delivery_wait where not is_matched")
                return (not left and (await row(shop))["is_later"]) or len(await attempts(shop)) > 2

            await eventually(is_compared)
            assert [one[1] for one in await attempts(shop)] == ["waiting", "waiting"]
            assert (await row(shop))["is_later"]

    @pytest.mark.parametrize("seed", range(3))
    async def test_all_are_applied_once_however_they_meet(self, shop, hook, seed):
        dice, number = random.Random(seed), 40
        names = [str(n) for n in range(number)]

        async def looked() -> None:
            for _ in range(dice.randrange(4)):
                await asyncio.sleep(0)

        declare(hook, looked=looked)

        async def write(name: str) -> None:
            for _ in range(dice.randrange(40)):
                await asyncio.sleep(0)
            async with hook.transaction() as tx:
                first, second = dice.sample((0, 1), 2)
                for step in (first, second):
                    if step:
                        await hook.signal(tx, f"track:{name}")
                    else:
                        await tx.execute("insert into track values ($1)", name)
                    for _ in range(dice.randrange(40)):
                        await asyncio.sleep(0)

        async with (
            running_worker(shop, hook, worker_id="w1"),
            running_worker(shop, hook, worker_id="w2"),
            running_keeper(shop),
        ):
            order = dice.sample(names, number)
            await asyncio.gather(accept_events(shop, *({"track": name} for name in order)), *map(write, names))
            await wait_for_states(shop, succeeded=number)
        assert await shop.fetchval("select count(*) from applied") == number
        assert {one[1] for one in await attempts(shop)} <= {"waiting", "succeeded"}


class TestRecord:
    def wait(self, work: Any, *, until: timedelta = LATER) -> WaitingAttempt:
        decision = WaitUntil("track:a", datetime.now(UTC) + until, "TRACK_MISSING", "waits")
        return WaitingAttempt(work.claim, decision, "w1", work.claimed_at)

    async def test_a_worker_that_lost_its_lease_changes_nothing(self, db):
        await add_deliveries(db)
        (work,) = await claim(store_of(db))
        stale = replace(self.wait(work), claim=replace(work.claim, fence=work.claim.fence - 1))
        assert await store_of(db).record_attempts([], [stale]) == ([], [False])
        ignored = replace(stale, decision=Complete("x"))
        assert await store_of(db).record_attempts([], [ignored]) == ([], [False])
        assert (await row(db))["state"] == "leased"
        assert await db.fetchval("select count(*) from boathook.delivery_wait") == 0

    async def test_waits_of_deliveries_that_have_ended_and_old_signals_are_deleted(self, db):
        first, second = await add_deliveries(db), await add_deliveries(db)
        works = await claim(store_of(db), slots=2)
        assert await store_of(db).record_attempts([], [self.wait(work) for work in works]) == ([], [True, True])
        await db.execute("select boathook.signal('other')")
        await db.execute("update boathook.delivery set due_at = now() where event_id = $1", first[0])
        (work,) = await claim(store_of(db))
        await settle(db, work)
        await store_of(db).match_signals()
        await store_of(db).drop_signals()
        assert await db.fetchval("select count(*) from boathook.wait_signal") == 1
        assert [row["event_id"] for row in await db.fetch("select event_id from boathook.delivery_wait")] == second
        await db.execute("update boathook.wait_signal set at = at - interval '61 minutes'")
        await store_of(db).drop_signals()
        assert await db.fetchval("select count(*) from boathook.wait_signal") == 0

    async def test_a_delivery_that_was_woken_during_the_attempt_is_due_at_once(self, db):
        (event_id,) = await add_deliveries(db)
        (work,) = await claim(store_of(db))
        await db.execute("update boathook.delivery set woken_by = 'app' where event_id = $1", event_id)
        await store_of(db).record_attempts([], [self.wait(work)])
        assert not (await row(db))["is_later"]
