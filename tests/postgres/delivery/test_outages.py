"""Outages of PostgreSQL under handlers: recorded, not counted as handler failures, and bounded."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial

import pytest

from boathook.db.connection import retry_on_conflict
from boathook.db.database import Database
from boathook.db.deliveries import DeliveryStore
from boathook.domain import policy
from boathook.domain.errors import DatabaseError, DatabaseUnavailable, ValueRejected
from boathook.domain.model import Claim
from boathook.domain.policy import CONNECTION_LOST, RetryPolicy
from boathook.handlers import runner
from boathook.handlers.api import Boathook, Event, Transaction
from boathook.observability import log
from tests.support import eventually, sampled
from tests.worker_harness import accept_events, attempts, running_worker, wait_for_states

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
async def shop(db: Database) -> Database:
    """A database with a user table."""
    await db.execute("create table deed (n int)")
    return db


async def deeds(db: Database) -> list[int]:
    return [row["n"] for row in await db.fetch("select n from deed order by n")]


async def cut(db: Database, purpose: str = "boathook:handlers") -> None:
    """End the server's sessions of one purpose, as an outage does."""
    await db.execute(
        "select pg_terminate_backend(pid) from pg_stat_activity where application_name = $1 and datname = current_database()",
        purpose,
    )


async def lose_connections_between_attempts(shop: Database, events: int) -> None:
    """Handle events one by one, with the server ending the worker's idle connections after each."""
    hook = Boathook()

    @hook.on("shop", retry=ONCE)
    async def note(event: Event, tx: Transaction) -> None:
        await tx.execute("insert into deed values ($1)", event.json["n"])

    async with running_worker(shop, hook):
        for n in range(events):
            await accept_events(shop, {"n": n})
            await wait_for_states(shop, succeeded=n + 1)
            await cut(shop)


async def test_a_connection_lost_between_two_attempts_costs_none(shop: Database) -> None:
    await lose_connections_between_attempts(shop, 3)
    assert await attempts(shop) == [(1, "succeeded", None)] * 3


async def test_mistaken_for_open_a_lost_connection_costs_an_attempt(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant of the test above, which shows that it can fail."""
    monkeypatch.setattr(runner, "is_connection_closed", lambda connection: connection.is_closed())
    with pytest.raises(pytest.fail.Exception, match="dead"):
        await lose_connections_between_attempts(shop, 3)


async def test_a_connection_lost_unnoticed_by_the_handler_is_no_misuse(shop: Database) -> None:
    hook = Boathook()

    @hook.on("shop", retry=ONCE)
    async def note(event: Event, tx: Transaction) -> None:
        await tx.execute("insert into deed values (1)")
        if event.attempt == 1:
            await cut(shop)
            await asyncio.sleep(0)
            with contextlib.suppress(Exception):
                await tx.execute("select 1")

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, succeeded=1)
    assert await attempts(shop) == [(1, "failed", CONNECTION_LOST), (2, "succeeded", None)]
    assert await deeds(shop) == [1]


async def test_a_payload_that_always_loses_its_connection_is_buried(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "MAX_FREE_RETRIES", 2)
    monkeypatch.setattr(policy, "OUTAGE_FIRST_S", 0.01)
    hook, other = Boathook(), []

    @hook.on("shop", retry=RetryPolicy(first_s=0.01, max_attempts=2))
    async def note(event: Event, tx: Transaction) -> None:
        other.append(event.attempt)
        if event.attempt == 2:
            raise ValueError
        await tx.execute("select pg_terminate_backend(pg_backend_pid())")

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, dead=1)
    assert await attempts(shop) == [
        (1, "failed", CONNECTION_LOST), (2, "failed", "ValueError"), (3, "failed", CONNECTION_LOST),
        (4, "failed", CONNECTION_LOST),
    ]  # fmt: skip
    row = await shop.fetchrow("select attempts, attempts_before, free_retries, code from boathook.delivery")
    assert row is not None
    assert tuple(row) == (4, 2, 2, CONNECTION_LOST)


async def test_an_unreachable_side_effect_store_is_no_handler_failure(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_side_effect = DeliveryStore.find_side_effect

    async def away_at_first(store: DeliveryStore, claim: Claim, name: str) -> str | None:
        if claim.attempt == 1:
            raise DatabaseUnavailable("away")
        return await find_side_effect(store, claim, name)

    monkeypatch.setattr(DeliveryStore, "find_side_effect", away_at_first)
    hook = Boathook()

    @hook.on("shop", retry=ONCE)
    async def note(event: Event) -> None:
        await event.once("mail", lambda: None)

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, succeeded=1)
    assert await attempts(shop) == [(1, "failed", CONNECTION_LOST), (2, "succeeded", None)]


@pytest.mark.parametrize(
    "state",
    sampled(["53100", "25006", "57P01", "08006", "53200", "53300", "25P03", "57P02", "57P03", "58030"], keep=4),
)
async def test_a_full_or_read_only_server_is_no_handler_failure(shop: Database, state: str):
    hook = Boathook()

    @hook.on("shop", retry=ONCE)
    async def note(event: Event, tx: Transaction) -> None:
        if event.attempt == 1:
            await tx.execute(f"do $$ begin raise exception 'trouble' using errcode = '{state}'; end $$")
        await tx.execute("insert into deed values (1)")

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, succeeded=1)
    assert await attempts(shop) == [(1, "failed", CONNECTION_LOST), (2, "succeeded", None)]
    assert await deeds(shop) == [1]


@pytest.mark.parametrize("state", ["57014", "22012", "23505", "54000", "42P01", "53400"])
async def test_a_statement_error_is_a_handler_failure(shop: Database, state: str):
    hook = Boathook()

    @hook.on("shop", retry=ONCE)
    async def note(event: Event, tx: Transaction) -> None:
        await tx.execute(f"do $$ begin raise exception 'its own' using errcode = '{state}'; end $$")

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, dead=1)
    assert [(number, outcome) for number, outcome, _ in await attempts(shop)] == [(1, "failed")]


@pytest.mark.parametrize("state", ["40001", "40P01"])
async def test_a_handler_aborted_by_a_conflict_reruns_without_an_attempt(shop: Database, state: str):
    hook, runs = Boathook(), []

    @hook.on("shop", retry=ONCE)
    async def note(event: Event, tx: Transaction) -> None:
        runs.append(event.attempt)
        await tx.execute("insert into deed values (1)")
        if len(runs) <= 6:
            await tx.execute(f"do $$ begin raise exception 'sacrificed' using errcode = '{state}'; end $$")

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, succeeded=1)
    assert runs == [1, 1, 1, 1, 2, 2, 2]
    assert await attempts(shop) == [(1, "failed", runner.CONFLICT), (2, "succeeded", None)]
    assert await deeds(shop) == [1]


async def test_a_transaction_aborted_by_a_deadlock_is_rerun(shop: Database):
    await shop.execute("insert into deed values (1), (2)")
    runs, first_locks = [], asyncio.Barrier(2)

    async def lock(first: int, second: int) -> None:
        runs.append(first)
        async with shop.transaction() as connection:
            await connection.execute("select from deed where n = $1 for update", first)
            if len(runs) <= 2:
                await first_locks.wait()
            await connection.execute("select from deed where n = $1 for update", second)

    await asyncio.gather(retry_on_conflict(lambda: lock(1, 2)), retry_on_conflict(lambda: lock(2, 1)))
    # The transaction that is aborted begins again at once, and may take its first row again before the other has got it.
    assert 3 <= len(runs) <= 20


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        *(
            (state, DatabaseUnavailable)
            for state in ("08006", "25006", "28000", "3D000", "53100", "55P03", "57014", "57P03")
        ),
        *((state, DatabaseUnavailable) for state in ("40001", "40P01", "58030", "53300", "57P05")),
        *((state, ValueRejected) for state in ("22001", "22P02", "23502", "23514", "54000")),
        *((state, DatabaseError) for state in ("42P01", "42501", "25P02", "XX000", "0A000", "P0001")),
    ],
)
async def test_each_sqlstate_maps_to_its_exception(db: Database, state: str, kind: type[DatabaseError]):
    with pytest.raises(DatabaseError) as caught:
        await db.execute(f"do $$ begin raise exception 'so' using errcode = '{state}'; end $$")
    assert type(caught.value) is kind


async def test_a_server_that_only_reads_is_waited_for(shop: Database, pg_url: str, capfd: pytest.CaptureFixture[str]):
    """A failover can leave a server in recovery; here a setting makes it refuse all writes but the test's own."""
    log.configure("warning", "text")
    hook = Boathook()

    @hook.on("shop", retry=ONCE)
    async def note(event: Event, tx: Transaction) -> None:
        await tx.execute("insert into deed values (1)")

    async with writing(pg_url) as own, running_worker(shop, hook):
        name = await own.fetchval("select current_database()")
        await accept_events(own, {})
        await wait_for_states(own, succeeded=1)
        await own.execute(f"alter database {name} set default_transaction_read_only = on")
        await eventually(partial(is_rejected_as_read_only, own, capfd), every=0.5)
        await accept_events(own, {})
        await wait_for_states(own, succeeded=1, pending=1)
        await own.execute(f"alter database {name} reset default_transaction_read_only")
        for purpose in ("boathook:worker", "boathook:handlers", "boathook:test"):
            await cut(own, purpose)
        await wait_for_states(own, succeeded=2)
        assert await attempts(own) == [(1, "succeeded", None)] * 2


async def is_rejected_as_read_only(own: Database, capfd: pytest.CaptureFixture[str]) -> bool:
    """Tell whether a claim was refused; if none was, end the sessions: they read the setting when they begin.

    Once is not enough: a session that has just begun has read it, and is not shown yet.
    """
    if "read-only" in capfd.readouterr().err:
        return True
    for purpose in ("boathook:worker", "boathook:handlers", "boathook:test"):
        await cut(own, purpose)
    return False


@contextlib.asynccontextmanager
async def writing(url: str) -> AsyncIterator[Database]:
    """Lend sessions that write all the same."""
    separator = "&" if "?" in url else "?"
    database = await Database.open(f"{url}{separator}default_transaction_read_only=off", purpose="other", size=2)
    try:
        yield database
    finally:
        await database.close()
