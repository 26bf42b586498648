"""PostgreSQL goes away under handlers: what it cut off is recorded, not held against them, and bounded all the same."""

import asyncio
import contextlib

import pytest

from boathook.domain import policy
from boathook.domain.errors import JournalUnavailable
from boathook.domain.model import Claim
from boathook.domain.policy import CONNECTION_LOST, RetryPolicy
from boathook.handlers import runner
from boathook.handlers.api import Boathook, Event, Transaction
from boathook.journal.database import Database
from boathook.journal.deliveries import DeliveryStore
from tests import handling
from tests.handling import accept, attempts, settled, working

ONCE = RetryPolicy(max_attempts=1)


@pytest.fixture
async def shop(db: Database) -> Database:
    """A journal beside a table of the user's own."""
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

    async with working(shop, hook):
        for n in range(events):
            await accept(shop, {"n": n})
            await settled(shop, succeeded=n + 1)
            await cut(shop)


async def test_a_connection_lost_between_two_attempts_costs_none(shop: Database) -> None:
    await lose_connections_between_attempts(shop, 3)
    assert await attempts(shop) == [(1, "succeeded", None)] * 3


async def test_taken_for_alive_such_a_connection_would_cost_the_next_attempt(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sabotage twin of the test above: it can fail."""
    monkeypatch.setattr(runner, "is_gone", lambda connection: connection.is_closed())
    monkeypatch.setattr(handling, "SETTLED_S", 2)
    with pytest.raises(AssertionError, match="dead"):
        await lose_connections_between_attempts(shop, 3)


async def test_a_connection_lost_under_a_handler_that_does_not_notice_is_no_misuse(shop: Database) -> None:
    hook = Boathook()

    @hook.on("shop", retry=ONCE)
    async def note(event: Event, tx: Transaction) -> None:
        await tx.execute("insert into deed values (1)")
        if event.attempt == 1:
            await cut(shop)
            await asyncio.sleep(0)
            with contextlib.suppress(Exception):
                await tx.execute("select 1")

    async with working(shop, hook):
        await accept(shop, {})
        await settled(shop, succeeded=1)
    assert await attempts(shop) == [(1, "failed", CONNECTION_LOST), (2, "succeeded", None)]
    assert await deeds(shop) == [1]


async def test_a_payload_that_always_loses_its_connection_is_buried(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(policy, "MOST_EXCUSED", 2)
    monkeypatch.setattr(policy, "_OUTAGE_FIRST_S", 0.01)
    hook, other = Boathook(), []

    @hook.on("shop", retry=RetryPolicy(first_s=0.01, max_attempts=2))
    async def note(event: Event, tx: Transaction) -> None:
        other.append(event.attempt)
        if event.attempt == 2:
            raise ValueError
        await tx.execute("select pg_terminate_backend(pg_backend_pid())")

    async with working(shop, hook):
        await accept(shop, {})
        await settled(shop, dead=1)
    assert await attempts(shop) == [
        (1, "failed", CONNECTION_LOST), (2, "failed", "ValueError"), (3, "failed", CONNECTION_LOST),
        (4, "failed", CONNECTION_LOST),
    ]  # fmt: skip
    row = await shop.fetchrow("select attempts, attempts_before, excused, code from boathook.delivery")
    assert row is not None
    assert tuple(row) == (4, 2, 2, CONNECTION_LOST)


async def test_a_remembered_effect_that_cannot_reach_the_journal_is_no_failure_of_the_handler(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    recall = DeliveryStore.recall

    async def away_at_first(store: DeliveryStore, claim: Claim, name: str) -> str | None:
        if claim.attempt == 1:
            raise JournalUnavailable("away")
        return await recall(store, claim, name)

    monkeypatch.setattr(DeliveryStore, "recall", away_at_first)
    hook = Boathook()

    @hook.on("shop", retry=ONCE)
    async def note(event: Event) -> None:
        await event.once("mail", lambda: None)

    async with working(shop, hook):
        await accept(shop, {})
        await settled(shop, succeeded=1)
    assert await attempts(shop) == [(1, "failed", CONNECTION_LOST), (2, "succeeded", None)]
