"""A row of the queue that another session changes while a statement runs: all that the statement does fits together.

The statement begins, with its snapshot, before the other session commits, and gets the rows' locks afterwards. Each
test has a mutant, which finds the rows by their place (ctid): the snapshot does not show their new versions.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from boathook.db import deliveries, endpoint_deliveries
from boathook.db.database import Database
from boathook.db.deliveries import DeliveryStore
from boathook.db.endpoint_deliveries import (
    ClaimedEndpointDelivery,
    EndpointClaimLimit,
    EndpointDeliveryStore,
    FinishedEndpointDelivery,
)
from boathook.domain.policy import Complete, Decision, RetryAt, RetryDefaults
from boathook.service.unit_of_work import new_id
from tests.sender_harness import StoredEndpoint, add_deliveries, add_endpoint
from tests.support import eventually

NUMBER = 5
RENEWAL = "update boathook.delivery set lease_until = lease_until + interval '1 min'"
NEW_OWNER = "update boathook.delivery set fence = fence + 1"
WAIT = "(select pg_advisory_xact_lock_shared(39)) as waits"

Statement = Callable[[], Coroutine[Any, Any, Any]]


@pytest.fixture
async def endpoint(db: Database) -> StoredEndpoint:
    """An endpoint with five due deliveries."""
    endpoint = await add_endpoint(db, "https://example.com")
    await add_deliveries(db, endpoint, NUMBER, is_announced=False)
    return endpoint


@pytest.fixture
async def queue(db: Database) -> AsyncIterator[Database]:
    """A sender's pool."""
    database = await Database.open(db.url, purpose="sender", size=2, is_reset=False, is_queue=True)
    yield database
    await database.close()


async def claim(queue: Database, endpoint: StoredEndpoint) -> list[ClaimedEndpointDelivery]:
    limit = EndpointClaimLimit(endpoint.recipient, NUMBER, endpoint_id=endpoint.id)
    return await EndpointDeliveryStore(queue, worker="w").claim([limit], lease_s=60.0)


async def overtaken(db: Database, statement: Statement, change: str) -> Any:
    """Run a statement that waits for a lock of another session, which commits *change* meanwhile."""
    async with db.transaction() as connection:
        await connection.execute("select pg_advisory_xact_lock(39)")
        is_first = change in {RENEWAL, NEW_OWNER}  # the statement waits for the rows themselves
        if is_first:
            await connection.execute(change)
        waiting = asyncio.create_task(statement())
        await eventually(lambda: _is_waiting(db))
        if not is_first:
            await connection.execute(change)
    return await waiting


async def _is_waiting(db: Database) -> bool:
    sql = "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')"
    return bool(await db.fetchval(sql))


def finish(delivery: ClaimedEndpointDelivery, decision: Decision) -> FinishedEndpointDelivery:
    return FinishedEndpointDelivery(
        delivery, decision, new_id(), "https://example.com", 204, 1, None, None, datetime.now(UTC)
    )


def replaced(monkeypatch: pytest.MonkeyPatch, statements: dict[str, str], name: str, *changes: tuple[str, str]) -> None:
    """Replace parts of a statement; each must occur in it."""
    sql = statements[name]
    for old, new in changes:
        assert old in sql, old
        sql = sql.replace(old, new)
    monkeypatch.setitem(statements, name, sql)


def found_by_place(cte: str) -> tuple[tuple[str, str], ...]:
    """Return the changes after which a statement finds the rows of *cte* by their place."""
    return (
        (
            "select event_id, ordinal\n        from boathook.delivery",
            "select event_id, ordinal, ctid as place\n        from boathook.delivery",
        ),
        ("select d.event_id, d.ordinal\n    from", "select d.event_id, d.ordinal, d.place\n    from"),
        (
            f"((d.event_id, d.ordinal) in (select event_id, ordinal from {cte})) is true",
            f"d.ctid = any (array(select place from {cte}))",
        ),
    )


EITHER = pytest.mark.parametrize("is_mutant", [False, True], ids=["real", "mutant"])


@contextlib.contextmanager
def failing(*, is_mutant: bool) -> Any:
    """Expect a mutant's failure."""
    with pytest.raises(AssertionError) if is_mutant else contextlib.nullcontext():
        yield


@EITHER
@pytest.mark.parametrize(
    "decision", [Complete(), RetryAt(datetime.now(UTC) + timedelta(hours=1), "E", "error")], ids=["succeeded", "failed"]
)
async def test_a_settle_that_waits_for_a_renewal_records_the_attempt_and_moves_the_row(
    db: Database,
    queue: Database,
    endpoint: StoredEndpoint,
    decision: Decision,
    *,
    is_mutant: bool,
    monkeypatch: pytest.MonkeyPatch,
):
    if is_mutant:
        replaced(
            monkeypatch, endpoint_deliveries.SQL, "settle_endpoint_deliveries",
            ("d.woken_by, d.woken_by", "d.place, d.woken_by, d.woken_by"),
            ("select recipient, attempts, order_key, is_replay, replays, item_path, item_type, is_manual, woken_by\n        from",
             "select ctid as place, recipient, attempts, order_key, is_replay, replays, item_path, item_type, is_manual, woken_by\n        from"),
            ("((d.event_id, d.ordinal) in (select event_id, ordinal from held where next_state = 'succeeded')) is true",
             "d.ctid = any (array(select place from held where next_state = 'succeeded'))"),
            ("((d.event_id, d.ordinal) in (select event_id, ordinal from failed)) is true", "d.ctid = any (array(select place from failed))"),
        )  # fmt: skip
    claimed = await claim(queue, endpoint)
    store = EndpointDeliveryStore(queue, worker="w")
    held = await overtaken(db, lambda: store.settle([finish(one, decision) for one in claimed]), RENEWAL)
    assert held == [True] * NUMBER
    assert await db.fetchval("select count(*) from boathook.attempt") == NUMBER
    with failing(is_mutant=is_mutant):
        assert await db.fetchval("select count(*) from boathook.delivery where state = 'leased'") == 0


@EITHER
async def test_a_settle_that_waits_for_another_owner_records_nothing(
    db: Database, queue: Database, endpoint: StoredEndpoint, *, is_mutant: bool, monkeypatch: pytest.MonkeyPatch
):
    if is_mutant:
        replaced(monkeypatch, endpoint_deliveries.SQL, "settle_endpoint_deliveries", (" and fence = u.fence", ""))
    claimed = await claim(queue, endpoint)
    store = EndpointDeliveryStore(queue, worker="w")
    held = await overtaken(db, lambda: store.settle([finish(one, Complete()) for one in claimed]), NEW_OWNER)
    with failing(is_mutant=is_mutant):
        assert held == [False] * NUMBER
        assert await db.fetchval("select count(*) from boathook.attempt") == 0
        assert await db.fetchval("select count(*) from boathook.delivery where state = 'leased'") == NUMBER


@EITHER
async def test_a_release_that_waits_for_a_renewal_releases_the_row(
    db: Database, queue: Database, endpoint: StoredEndpoint, *, is_mutant: bool, monkeypatch: pytest.MonkeyPatch
):
    if is_mutant:
        replaced(
            monkeypatch, deliveries.SQL, "release_claims",
            ("((d.event_id, d.ordinal, d.fence) in (select * from unnest($1::uuid[], $2::integer[], $3::bigint[]))) is true",
             ("d.ctid = any (array(select ctid from boathook.delivery where (event_id, ordinal, fence) in"
             " (select * from unnest($1::uuid[], $2::integer[], $3::bigint[]))))")),
        )  # fmt: skip
    claimed = await claim(queue, endpoint)
    await overtaken(db, lambda: DeliveryStore(queue, RetryDefaults()).release_claims(claimed), RENEWAL)
    with failing(is_mutant=is_mutant):
        assert (
            await db.fetchval("select count(*) from boathook.delivery where state = 'pending' and attempts = 0")
            == NUMBER
        )


@EITHER
async def test_a_renewal_after_another_one_prolongs_the_lease(
    db: Database, queue: Database, endpoint: StoredEndpoint, *, is_mutant: bool, monkeypatch: pytest.MonkeyPatch
):
    replaced(monkeypatch, deliveries.SQL, "renew_leases", ("select * from unnest", f"select u.* from {WAIT}, unnest"))
    if is_mutant:
        replaced(monkeypatch, deliveries.SQL, "renew_leases", *found_by_place("held"))
    claimed = await claim(queue, endpoint)
    renewal = lambda: DeliveryStore(queue, RetryDefaults()).renew(claimed, lease_s=3_600.0)  # noqa: E731
    assert await overtaken(db, renewal, "update boathook.delivery set woken_by = 'an operator'") == set()
    with failing(is_mutant=is_mutant):
        sql = "select count(*) from boathook.delivery where lease_until > now() + interval '50 min' and woken_by is not null"
        assert await db.fetchval(sql) == NUMBER


@EITHER
async def test_a_claim_after_a_change_leases_what_it_picked(
    db: Database, queue: Database, endpoint: StoredEndpoint, *, is_mutant: bool, monkeypatch: pytest.MonkeyPatch
):
    name = "claim_endpoint_deliveries"
    replaced(monkeypatch, endpoint_deliveries.SQL, name, ("    from unnest(\n", f"    from {WAIT}, unnest(\n"))
    if is_mutant:
        replaced(
            monkeypatch, endpoint_deliveries.SQL, name,
            ("select d.event_id, d.ordinal\n", "select d.event_id, d.ordinal, d.place\n"),
            ("select o.event_id, o.ordinal, o.due_at\n", "select o.event_id, o.ordinal, o.due_at, o.ctid as place\n"),
            ("((d.event_id, d.ordinal) in (select event_id, ordinal from picked)) is true", "d.ctid = any (array(select place from picked))"),
        )  # fmt: skip
    change = "update boathook.delivery set due_at = due_at - interval '1 s'"
    claimed = await overtaken(db, lambda: claim(queue, endpoint), change)
    with failing(is_mutant=is_mutant):
        assert len(claimed) == NUMBER
        sql = "select count(*) from boathook.delivery where state = 'leased' and attempts = 1 and fence = 1"
        assert await db.fetchval(sql) == NUMBER
