"""The queue: exclusive claims, fences, order keys, lost leases."""

import asyncio
import hashlib
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from boathook.db import sql_functions
from boathook.db.database import Database
from boathook.db.deliveries import (
    ClaimedDelivery,
    ClaimLimit,
    CommitOutcome,
    DeliveryStore,
    FailedAttempt,
    settle_arguments,
)
from boathook.db.events import EventStore
from boathook.db.route_registry import register
from boathook.domain.errors import LeaseLost
from boathook.domain.model import NewDelivery, NewEvent, Origin, ProofStrength, Route
from boathook.domain.policy import Complete, DeadLetter, RetryAt, RetryDefaults, RetryPolicy
from boathook.service.unit_of_work import new_id

SETTLE = sql_functions.SETTLE.sql(lambda position: f"${position}")


async def add_deliveries(
    db: Database, recipient: str = "handler:a", count: int = 1, order_key: str | None = None
) -> list[UUID]:
    """Store events, each with a delivery to *recipient*, and return their ids in accept order."""
    version = await db.fetchval("select version from boathook.route_version")
    events = []
    for number in range(count):
        body = b'{"n":%d}' % number
        identifier = new_id()
        events.append(
            NewEvent(
                id=identifier, source="shop", application=None, type="thing.done", dedup_key=str(identifier),
                key_hash=UUID(bytes=hashlib.sha256(identifier.bytes).digest()[:16]), replay_hash=None, grade=ProofStrength.BODY,
                origin=Origin.RECEIVED, headers="{}", content_type="application/json", body=body,
                body_sha256=hashlib.sha256(body).digest(), deliveries=(NewDelivery(recipient, order_key),),
                routes_version=version,
            )
        )  # fmt: skip
    await EventStore(db, dedup_days=30).append(events)
    return [event.id for event in events]


async def claim(
    store: DeliveryStore, recipient: str = "handler:a", slots: int = 100, worker: str = "w1", maximum: int | None = None
) -> list[ClaimedDelivery]:
    return await store.claim([ClaimLimit(recipient, slots, maximum=maximum)], worker=worker, lease_s=30)


async def settle(db: Database, work: ClaimedDelivery, worker: str = "w1") -> None:
    arguments = (*settle_arguments(work.claim, Complete(), worker=worker, started_at=work.claimed_at)[:-1], None)
    async with db.acquire() as connection:
        await connection.execute(SETTLE, *arguments)


def back(work: ClaimedDelivery, *, due_in_s: float | None = 0.0, outcome: str = "failed") -> FailedAttempt:
    move = (
        DeadLetter("GIVEN_UP", "it never worked")
        if due_in_s is None
        else RetryAt(work.claimed_at + timedelta(seconds=due_in_s), "BROKEN", "it broke")
    )
    return FailedAttempt(work.claim, move, outcome, "Traceback", "w1", work.claimed_at)


async def lapse(db: Database) -> None:
    """Let every lease run out."""
    await db.execute("update boathook.delivery set lease_until = now() - interval '1 second' where state = 'leased'")


async def test_a_claim_carries_the_event_and_counts_the_attempt(db: Database) -> None:
    [event_id] = await add_deliveries(db)
    [work] = await claim(DeliveryStore(db, RetryDefaults()))
    assert work.event is not None
    assert (work.event.id, work.event.body, work.event.source) == (event_id, b'{"n":0}', "shop")
    assert (work.claim.attempt, work.claim.fence, work.claim.suspect) == (1, 1, False)
    assert abs(datetime.now(UTC) - work.claimed_at) < timedelta(seconds=5)


async def test_concurrent_claimers_never_share_a_delivery(db: Database) -> None:
    owed = await add_deliveries(db, count=400)
    store = DeliveryStore(db, RetryDefaults())

    async def claimer(name: str) -> list[UUID]:
        mine: list[UUID] = []
        while batch := await claim(store, slots=7, worker=name):
            mine += [work.claim.event_id for work in batch]
        return mine

    claimed = [one for batch in await asyncio.gather(*(claimer(f"w{n}") for n in range(8))) for one in batch]
    assert Counter(claimed) == Counter(owed)


async def test_slots_bound_each_recipient_on_its_own(db: Database) -> None:
    await add_deliveries(db, "handler:a", 10)
    await add_deliveries(db, "handler:b", 10)
    works = await DeliveryStore(db, RetryDefaults()).claim(
        [ClaimLimit("handler:a", 3), ClaimLimit("handler:b", 5)], worker="w", lease_s=9
    )
    assert Counter(work.claim.recipient for work in works) == {"handler:a": 3, "handler:b": 5}


async def test_the_watermark_hides_what_was_due_before_it(db: Database) -> None:
    await add_deliveries(db, count=2)
    store = DeliveryStore(db, RetryDefaults())
    later = datetime.now(UTC) + timedelta(hours=1)
    assert await store.claim([ClaimLimit("handler:a", 9, since=later)], worker="w", lease_s=9) == []
    assert len(await claim(store)) == 2


async def test_a_limit_holds_over_concurrent_workers(db: Database) -> None:
    await add_deliveries(db, count=50)
    store = DeliveryStore(db, RetryDefaults())
    batches = await asyncio.gather(*(claim(store, slots=4, worker=f"w{n}", maximum=5) for n in range(8)))
    batches += [await claim(store, slots=9, maximum=5)]
    assert sum(map(len, batches)) == 5


async def test_a_settled_delivery_leaves_one_outcome_and_one_attempt(db: Database) -> None:
    await add_deliveries(db)
    [work] = await claim(DeliveryStore(db, RetryDefaults()))
    await settle(db, work)
    assert await db.fetchval("select count(*) from boathook.delivery") == 0
    assert await db.fetchval("select state from boathook.delivery_archive") == "succeeded"
    assert await db.fetchval("select number from boathook.attempt where outcome = 'succeeded'") == 1


async def steal(db: Database, store: DeliveryStore) -> tuple[ClaimedDelivery, ClaimedDelivery]:
    """Return a stale claim and the one that replaced it after its lease ran out."""
    await add_deliveries(db)
    [stale] = await claim(store)
    await lapse(db)
    assert await store.reap() == 1
    await db.execute("update boathook.delivery set due_at = now()")
    [fresh] = await claim(store, worker="w2")
    return stale, fresh


async def test_a_stale_settle_changes_nothing(db: Database) -> None:
    stale, fresh = await steal(db, DeliveryStore(db, RetryDefaults()))
    with pytest.raises(asyncpg.PostgresError) as caught:
        await settle(db, stale)
    assert caught.value.sqlstate == "BH001"
    row = await db.fetchrow("select state, fence, leased_by from boathook.delivery")
    assert row is not None
    assert tuple(row) == ("leased", fresh.claim.fence, "w2")


async def test_without_the_fence_check_a_stale_settle_would_win(db: Database) -> None:
    """Mutant of the test above, which shows that it can fail."""
    source = await db.fetchval("select pg_get_functiondef('boathook.settle'::regproc)")
    assert " and fence = p_fence" in source
    await db.execute(source.replace(" and fence = p_fence", ""))
    stale, _ = await steal(db, DeliveryStore(db, RetryDefaults()))
    await settle(db, stale)
    assert await db.fetchval("select count(*) from boathook.delivery") == 0


async def test_a_stale_set_back_changes_nothing(db: Database) -> None:
    store = DeliveryStore(db, RetryDefaults())
    stale, fresh = await steal(db, store)
    assert await store.record_failed_attempts([back(stale, due_in_s=None), back(fresh)]) == [False, True]
    assert await db.fetchval("select state from boathook.delivery") == "pending"


async def test_failed_attempts_are_recorded_and_dead_lettered_if_final(db: Database) -> None:
    await add_deliveries(db, count=2)
    store = DeliveryStore(db, RetryDefaults())
    one, other = await claim(store)
    assert await store.record_failed_attempts([back(one, due_in_s=60), back(other, due_in_s=None, outcome="dead")]) == [
        True,
        True,
    ]
    rows = await db.fetch("select state, code from boathook.delivery order by state desc")
    assert [tuple(row) for row in rows] == [("pending", "BROKEN"), ("dead", "GIVEN_UP")]
    assert await db.fetchval("select count(*) from boathook.attempt") == 2
    assert await claim(store) == []


async def test_a_claim_given_back_burns_no_attempt(db: Database) -> None:
    await add_deliveries(db)
    store = DeliveryStore(db, RetryDefaults())
    [first] = await claim(store)
    await store.release_claims([first.claim])
    [again] = await claim(store)
    assert (again.claim.attempt, again.claim.fence) == (1, 2)


async def test_renewing_prolongs_held_leases_and_names_lost_ones(db: Database) -> None:
    store = DeliveryStore(db, RetryDefaults())
    stale, fresh = await steal(db, store)
    await db.execute("update boathook.delivery set lease_until = now() + interval '1 second'")
    lost = await store.renew([stale.claim, fresh.claim], lease_s=60)
    assert lost == {(stale.claim.event_id, 0, stale.claim.fence)}
    assert await db.fetchval("select lease_until > now() + interval '50 seconds' from boathook.delivery")


async def test_renewing_does_not_wait_for_one_that_is_being_settled(db: Database) -> None:
    await add_deliveries(db)
    store = DeliveryStore(db, RetryDefaults())
    [work] = await claim(store)
    async with db.acquire() as connection, connection.transaction():
        await connection.execute(SETTLE, *settle_arguments(work.claim, Complete(), worker="w", started_at=work.claimed_at)[:-1],
                                 None)  # fmt: skip
        assert await asyncio.wait_for(store.renew([work.claim], lease_s=9), 300) == set()


async def test_reaping_takes_only_what_ran_out_or_the_leases_of_dead_workers(db: Database) -> None:
    await add_deliveries(db, count=3)
    store = DeliveryStore(db, RetryDefaults())
    await claim(store, slots=1, worker="alive")
    await claim(store, slots=1, worker="dead")
    await claim(store, slots=1, worker="slow")
    await db.execute("update boathook.delivery set lease_until = now() - interval '1 s' where leased_by = 'slow'")
    assert await store.reap(dead_workers=["dead"]) == 1
    assert await db.fetchval("select count(*) from boathook.delivery where leased_by = 'slow'") == 1
    assert await store.reap() == 1
    assert await db.fetchval("select leased_by from boathook.delivery where state = 'leased'") == "alive"
    rows = await db.fetch("select outcome, code from boathook.attempt")
    assert {tuple(row) for row in rows} == {("lost", "LEASE_LOST")}


async def test_reaping_follows_the_policy_of_the_route(db: Database) -> None:
    route = Route(recipient="handler:a", app="test", source="shop", policy=RetryPolicy(max_attempts=1))
    await register(db, "test", [route])
    await add_deliveries(db)
    store = DeliveryStore(db, RetryDefaults())
    await claim(store)
    await lapse(db)
    await store.reap()
    assert await db.fetchval("select state from boathook.delivery") == "dead"


ONCE = RetryPolicy(max_attempts=1)
RETRIES = RetryDefaults(policy=RetryPolicy(max_attempts=7), by_source={"shop": ONCE})


@pytest.mark.parametrize(
    ("routes", "state"),
    [
        ([], "dead"),
        ([Route(recipient="handler:a", app="test", policy=RETRIES.policy)], "dead"),
        ([Route(recipient="handler:a", app="test", policy=RetryPolicy(max_attempts=3))], "pending"),
        (
            [
                Route(recipient="handler:a", app="test", source="bank", policy=RETRIES.policy),
                Route(recipient="handler:a", app="test", source="shop", policy=ONCE),
            ],
            "dead",
        ),
    ],
    ids=["no-route", "any-source", "own-policy", "one-line-of-two"],
)
async def test_reaping_follows_the_default_of_the_source(db: Database, routes: list[Route], state: str) -> None:
    await register(db, "test", routes)
    await add_deliveries(db)
    store = DeliveryStore(db, RETRIES)
    await claim(store)
    await lapse(db)
    await store.reap()
    assert await db.fetchval("select state from boathook.delivery") == state


async def test_a_delivery_that_lost_two_workers_runs_alone(db: Database) -> None:
    await add_deliveries(db, count=2)
    store = DeliveryStore(db, RetryDefaults())
    for _ in range(2):
        assert len(await claim(store)) == 2
        await lapse(db)
        await store.reap()
        await db.execute("update boathook.delivery set due_at = now()")
    assert await claim(store) == []
    (work,) = await store.claim([ClaimLimit("handler:a", 1)], worker="alone", lease_s=9, is_suspect=True)
    assert work.claim.suspect
    assert await db.fetchval("select count(*) from boathook.delivery where state = 'leased'") == 1


async def run_lane(db: Database, store: DeliveryStore, worker: str, seen: list[UUID], owed: int) -> None:
    """Work like a worker would: claim, fail now and then, settle, until all are done."""
    turns = 0
    while len(seen) < owed:
        for work in await claim(store, slots=3, worker=worker):
            turns += 1
            await asyncio.sleep(0)
            if turns % 3 == 0 and work.claim.attempt == 1:
                await store.record_failed_attempts([back(work)])
            else:
                seen.append(work.claim.event_id)
                await settle(db, work)
        await asyncio.sleep(0.001)


async def test_an_order_key_keeps_accept_order_under_concurrency_and_retries(db: Database) -> None:
    store = DeliveryStore(db, RetryDefaults())
    owed = [identifier for _ in range(10) for identifier in await add_deliveries(db, count=4, order_key="k")]
    seen: list[UUID] = []
    await asyncio.wait_for(asyncio.gather(*(run_lane(db, store, f"w{n}", seen, len(owed)) for n in range(4))), 300)
    assert seen == owed


async def test_a_retry_blocks_its_successors_and_a_dead_letter_does_not(db: Database) -> None:
    store = DeliveryStore(db, RetryDefaults())
    _first, second = await add_deliveries(db, count=2, order_key="k")
    [work] = await claim(store)
    await store.record_failed_attempts([back(work, due_in_s=60)])
    assert await claim(store) == []
    await db.execute("update boathook.delivery set due_at = now() where attempts = 1")
    [work] = await claim(store)
    await store.record_failed_attempts([back(work, due_in_s=None)])
    assert [work.claim.event_id for work in await claim(store)] == [second]


async def test_two_unblocked_ones_of_one_order_key_are_never_leased_together(db: Database) -> None:
    first, _second = await add_deliveries(db, count=2, order_key="k")
    await db.execute("update boathook.delivery set is_blocked = false")
    store = DeliveryStore(db, RetryDefaults())
    batches = await asyncio.gather(*(claim(store, worker=f"w{n}") for n in range(6)))
    assert [work.claim.event_id for batch in batches for work in batch] == [first]


async def test_the_database_itself_refuses_two_leases_of_one_order_key(db: Database) -> None:
    """Mutant: with the claim's own care left out, the unique index still holds the line."""
    await add_deliveries(db, count=2, order_key="k")
    with pytest.raises(Exception, match="delivery_one_lease_per_order_key"):
        await db.execute(
            "update boathook.delivery set state = 'leased', is_blocked = false, attempts = 1, fence = 1,"
            " leased_by = 'w', lease_until = now()"
        )


async def test_the_sweep_frees_a_head_that_was_left_waiting(db: Database) -> None:
    first, *_ = await add_deliveries(db, count=3, order_key="k1")
    await add_deliveries(db, count=2, order_key="k2")
    await add_deliveries(db, "handler:b", count=1, order_key="k2")
    await db.execute("update boathook.delivery set is_blocked = true where order_key = 'k1'")
    store = DeliveryStore(db, RetryDefaults())
    assert await store.unblock() == 1
    assert await store.unblock() == 0
    assert first in {work.claim.event_id for work in await claim(store)}


async def test_the_outcome_of_an_unanswered_commit_is_looked_up(db: Database) -> None:
    await add_deliveries(db, count=3)
    store = DeliveryStore(db, RetryDefaults())
    settled, held, lost = await claim(store)
    await settle(db, settled)
    await store.record_failed_attempts([back(lost)])
    assert [await store.commit_outcome(work.claim) for work in (settled, held, lost)] == [
        CommitOutcome.SETTLED,
        CommitOutcome.HELD,
        CommitOutcome.LOST,
    ]


async def test_commit_outcome_waits_for_a_commit_in_progress(db: Database) -> None:
    await add_deliveries(db)
    store = DeliveryStore(db, RetryDefaults())
    [work] = await claim(store)
    async with db.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        arguments = settle_arguments(work.claim, Complete(), worker="w", started_at=work.claimed_at)
        await connection.execute(SETTLE, *arguments[:-1], None)
        asking = asyncio.create_task(store.commit_outcome(work.claim))
        done, _ = await asyncio.wait([asking], timeout=0.2)
        assert not done
        await transaction.commit()
    assert await asking is CommitOutcome.SETTLED


async def test_a_side_effect_is_saved_once_and_only_by_the_lease_holder(db: Database) -> None:
    store = DeliveryStore(db, RetryDefaults())
    stale, fresh = await steal(db, store)
    assert await store.find_side_effect(fresh.claim, "mail") is None
    await store.save_side_effect(fresh.claim, "mail", "[1]")
    await store.save_side_effect(fresh.claim, "mail", "[2]")
    assert await store.find_side_effect(fresh.claim, "mail") == "[1]"
    with pytest.raises(LeaseLost):
        await store.find_side_effect(stale.claim, "mail")


async def test_the_backlog_is_counted_by_recipient(db: Database) -> None:
    await add_deliveries(db, count=3, order_key="k")
    await add_deliveries(db, count=2)
    store = DeliveryStore(db, RetryDefaults())
    await claim(store, slots=1)
    [counted] = await store.backlog()
    parts: Sequence[int] = (counted.due, counted.later, counted.blocked, counted.leased, counted.dead)
    assert parts == (2, 0, 2, 1, 0)
    assert await store.oldest_snapshot_s() >= 0
