"""Handlers and their transactions: effects happen once or not at all."""

import asyncio
import contextlib
import math
import threading
import time
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from boathook.db.database import Database
from boathook.db.deliveries import DeliveryStore
from boathook.domain.errors import ConfigError, HandlerMisuse, LeaseLost
from boathook.domain.model import Accepted, Duplicate
from boathook.domain.policy import Dead, Ignore, Retry, RetryDefaults, RetryPolicy
from boathook.handlers.api import Boathook, Event, SyncTransaction, Transaction
from boathook.handlers.transaction import to_number
from tests.endpoint_factory import add_application
from tests.support import eventually
from tests.worker_harness import accept_events, attempts, running_worker, wait_for_states

QUICK = RetryPolicy(first_s=0.01, max_attempts=3)


@pytest.fixture
async def shop(db: Database) -> Database:
    """A database with a user table."""
    await db.execute("create table deed (n int)")
    return db


async def effects(db: Database) -> list[int]:
    return [row["n"] for row in await db.fetch("select n from deed order by n")]


async def test_an_async_handler_commits_its_effect_with_its_delivery(shop: Database) -> None:
    hook, seen = Boathook(), []

    @hook.on("shop", "thing.*")
    async def note(event: Event, tx: Transaction) -> None:
        seen.append((event.json["n"], event.attempt, event.recipient, event.headers["x-sent-by"], event.body))
        await tx.execute("insert into deed values ($1)", event.json["n"])

    async with running_worker(shop, hook):
        await accept_events(shop, {"n": 7})
        await wait_for_states(shop, succeeded=1)
    assert seen == [(7, 1, "handler:note", "test", b'{"n":7}')]
    assert await effects(shop) == [7]


async def test_a_sync_handler_does_the_same_in_a_thread(shop: Database) -> None:
    hook = Boathook()

    @hook.on("shop")
    def note(event: Event, tx: SyncTransaction) -> None:
        with tx.savepoint():
            tx.execute("insert into deed values ($1)", event.json["n"])
        with contextlib.suppress(ZeroDivisionError), tx.savepoint():
            tx.execute("insert into deed values (99)")
            raise ZeroDivisionError
        assert tx.fetchval("select count(*) from deed") == 1
        assert tx.newer("thing", "k", 1)

    async with running_worker(shop, hook):
        await accept_events(shop, {"n": 1})
        await wait_for_states(shop, succeeded=1)
    assert await effects(shop) == [1]


async def test_an_exception_rolls_back_and_retries_until_dead(shop: Database) -> None:
    hook = Boathook()

    @hook.on("shop", retry=QUICK)
    async def note(event: Event, tx: Transaction) -> None:
        secret = "a local value"  # noqa: F841 must not be shown
        await tx.execute("insert into deed values (1)")
        raise RuntimeError("no luck")

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, dead=1)
    assert await attempts(shop) == [(n, "failed", "RuntimeError") for n in (1, 2, 3)]
    assert await effects(shop) == []
    traceback = await shop.fetchval("select traceback from boathook.attempt limit 1")
    assert "in note" in traceback
    assert "a local value" not in traceback.replace('secret = "a local value"', "")
    assert "runner.py" not in traceback


@pytest.mark.parametrize("fails", [1, 2])
async def test_a_handler_that_fails_and_then_works_has_one_effect(shop: Database, fails: int) -> None:
    hook = Boathook()

    @hook.on("shop", retry=QUICK)
    async def note(event: Event, tx: Transaction) -> None:
        await tx.execute("insert into deed values (1)")
        if event.attempt <= fails:
            raise ConnectionError

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, succeeded=1)
    assert await effects(shop) == [1]


async def test_return_values_decide_the_outcome(shop: Database) -> None:
    hook = Boathook()

    @hook.on("shop", retry=QUICK)
    async def note(event: Event, tx: Transaction) -> Any:
        await tx.execute("insert into deed values ($1)", event.json["n"])
        match event.json["n"]:
            case 0:
                return Ignore("not for us; it's fine")
            case 1:
                return Retry(after=0, code="LATER") if event.attempt == 1 else None
            case 2:
                return Dead("BAD_DATA", "look at this")
            case _:
                return True

    async with running_worker(shop, hook):
        await accept_events(shop, *({"n": n} for n in range(4)))
        await wait_for_states(shop, ignored=1, succeeded=1, dead=2)
    assert await effects(shop) == [0, 1]
    rows = await shop.fetch("select code, error from boathook.delivery order by code")
    assert [row["code"] for row in rows] == ["BAD_DATA", "HANDLER_MISUSE"]
    assert rows[0]["error"] == "look at this"
    assert (
        await shop.fetchval("select note from boathook.delivery_archive where state = 'ignored'")
        == "not for us; it's fine"
    )


async def test_outcomes_with_wrong_fields_are_dead_and_the_worker_goes_on(shop: Database) -> None:
    wrong: list[Any] = [
        Retry(after=timedelta(minutes=5)), Retry("5m"), Retry(after=float("nan")), Retry(after=10**400),
        Retry(after=1e13), Retry(code=5), Retry(dependency=5), Dead("BAD", dependency=b"crm"), Dead(None), Dead("BAD", 5), Ignore(5),
    ]  # fmt: skip
    hook = Boathook()

    @hook.on("shop", retry=RetryPolicy(max_age_s=1e18))
    async def note(event: Event, tx: Transaction) -> Any:
        await tx.execute("insert into deed values ($1)", event.json["n"])
        return wrong[event.json["n"]] if event.json["n"] < len(wrong) else None

    async with running_worker(shop, hook):
        await accept_events(shop, *({"n": n} for n in range(len(wrong) + 1)))
        await wait_for_states(shop, dead=len(wrong), succeeded=1)
    assert await effects(shop) == [len(wrong)]
    errors = [
        row["error"] for row in await shop.fetch("select error from boathook.delivery where code = 'HANDLER_MISUSE'")
    ]
    assert len(errors) == len(wrong)
    assert all("after in seconds" in error for error in errors)


async def test_a_final_exception_is_not_retried(shop: Database) -> None:
    hook = Boathook()

    @hook.on("shop", final=(ValueError,))
    async def note(event: Event) -> None:
        event.json  # noqa: B018 parsing it is the point

    async with running_worker(shop, hook):
        await accept_events(shop, b"{not json")
        await wait_for_states(shop, dead=1)
    error = await shop.fetchval("select error from boathook.delivery")
    assert "is not JSON" in error
    assert "evt_" in error


@pytest.mark.parametrize("is_sync", [False, True])
async def test_a_timeout_rolls_back(shop: Database, is_sync: bool) -> None:
    hook = Boathook()
    options: dict[str, Any] = {"timeout": 0.1, "retry": RetryPolicy(max_attempts=1)}
    if is_sync:

        @hook.on("shop", **options)
        def slow(event: Event, tx: SyncTransaction) -> None:
            tx.execute("insert into deed values (1)")
            time.sleep(0.3)
            tx.execute("insert into deed values (2)")

    else:

        @hook.on("shop", **options)
        async def slow_async(event: Event, tx: Transaction) -> None:
            await tx.execute("insert into deed values (1)")
            await tx.fetchval("select pg_sleep(5)")

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, dead=1)
    assert await attempts(shop) == [(1, "failed", "TIMEOUT")]
    assert await effects(shop) == []


async def test_cancellation_and_exit_by_the_handler_are_failed_attempts(shop: Database) -> None:
    hook = Boathook()

    @hook.on("shop", retry=RetryPolicy(max_attempts=1))
    async def note(event: Event) -> None:
        raise asyncio.CancelledError if event.json else SystemExit(3)

    async with running_worker(shop, hook):
        await accept_events(shop, True, False)
        await wait_for_states(shop, dead=2)
    assert {code for _, _, code in await attempts(shop)} == {"CancelledError", "SystemExit"}


@pytest.mark.parametrize("words", ["commit", "rollback", "commit; begin", "rollback; begin"])
async def test_a_manual_commit_or_rollback_is_detected_and_not_retried(shop: Database, words: str) -> None:
    hook = Boathook()

    @hook.on("shop", retry=QUICK)
    async def note(event: Event, tx: Transaction) -> None:
        await tx.execute("insert into deed values (1)")
        await tx.execute(words)

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, dead=1)
    assert await attempts(shop) == [(1, "failed", "HANDLER_MISUSE")]
    assert await effects(shop) == ([1] if "commit" in words else [])


async def test_without_the_mark_a_manual_commit_goes_undetected(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant of the test above, which shows that it can fail."""
    source = await shop.fetchval("select pg_get_functiondef('boathook.settle'::regproc)")
    await shop.execute(source.replace("p_mark is not null and", "false and"))
    hook = Boathook()

    @hook.on("shop", retry=QUICK)
    async def note(event: Event, tx: Transaction) -> None:
        await tx.execute("insert into deed values (1)")
        await tx.execute("commit; begin")

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, succeeded=1)


async def test_a_swallowed_database_error_cannot_be_committed_as_success(shop: Database) -> None:
    hook = Boathook()

    @hook.on("shop", retry=RetryPolicy(max_attempts=1))
    async def note(event: Event, tx: Transaction) -> None:
        await tx.execute("insert into deed values (1)")
        with pytest.raises(Exception, match="division"):
            await tx.execute("select 1/0")

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, dead=1)
    assert await effects(shop) == []


async def test_session_settings_of_a_handler_are_reset(shop: Database) -> None:
    hook, seen = Boathook(), []

    @hook.on("shop")
    async def note(event: Event, tx: Transaction) -> None:
        seen.append(await tx.fetchval("show work_mem"))
        await tx.execute("set work_mem = '77MB'")

    async with running_worker(shop, hook, concurrency=1):
        for _ in range(2):
            await accept_events(shop, {})
        await wait_for_states(shop, succeeded=2)
    assert "77MB" not in seen


async def test_a_sacrificed_transaction_runs_again_as_the_same_attempt(shop: Database) -> None:
    hook, runs = Boathook(), []

    @hook.on("shop")
    async def note(event: Event, tx: Transaction) -> None:
        runs.append(event.attempt)
        await tx.execute("insert into deed values (1)")
        if len(runs) < 3:
            await tx.execute("do $$ begin raise exception 'victim' using errcode = '40P01'; end $$")

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, succeeded=1)
    assert runs == [1, 1, 1]
    assert await effects(shop) == [1]


async def steal(db: Database) -> None:
    """Let a keeper reap an expired lease and another worker claim it."""
    await db.execute("update boathook.delivery set lease_until = now() - interval '1 second' where state = 'leased'")
    await DeliveryStore(db, RetryDefaults()).reap()


async def test_a_zombie_commits_nothing(shop: Database) -> None:
    """A worker frozen past its lease continues, as after SIGSTOP and SIGCONT."""
    hook = Boathook()
    goes_on, started = asyncio.Event(), asyncio.Event()

    @hook.on("shop", retry=RetryPolicy(first_s=60))
    async def note(event: Event, tx: Transaction) -> None:
        await tx.execute("insert into deed values (1)")
        started.set()
        await goes_on.wait()

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await started.wait()
        await steal(shop)
        goes_on.set()
    assert await effects(shop) == []
    assert await attempts(shop) == [(1, "lost", "LEASE_LOST")]


async def test_without_the_fence_the_zombie_would_commit(shop: Database) -> None:
    """Mutant of the test above, which shows that it can fail."""
    source = await shop.fetchval("select pg_get_functiondef('boathook.settle'::regproc)")
    await shop.execute(source.replace(" and fence = p_fence and leased_by is not null", ""))
    hook = Boathook()
    goes_on, started = asyncio.Event(), asyncio.Event()

    @hook.on("shop", retry=RetryPolicy(first_s=60))
    async def note(event: Event, tx: Transaction) -> None:
        await tx.execute("insert into deed values ($1)", 1)
        started.set()
        await goes_on.wait()

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await started.wait()
        await shop.execute("update boathook.delivery set fence = fence + 1, leased_by = 'other'")
        goes_on.set()

        async def is_done() -> bool:
            return await effects(shop) == [1]

        await eventually(is_done)


async def test_a_handler_losing_its_lease_is_cancelled(shop: Database) -> None:
    hook, broken = Boathook(), asyncio.Event()
    started = asyncio.Event()

    @hook.on("shop", retry=RetryPolicy(first_s=60))
    async def note(event: Event, tx: Transaction) -> None:
        started.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            broken.set()
            raise

    async with running_worker(shop, hook, lease_s=0.3):
        await accept_events(shop, {})
        await started.wait()
        await shop.execute("update boathook.delivery set fence = fence + 1")
        await asyncio.wait_for(broken.wait(), 300)


async def test_a_lost_connection_during_the_commit_is_looked_up(
    shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commit succeeded without a response: the effect must not be repeated."""
    hook = Boathook()
    lost: list[bool] = []

    @hook.on("shop", retry=QUICK)
    async def note(event: Event, tx: Transaction) -> None:
        await tx.execute("insert into deed values (1)")

    import asyncpg

    execute = asyncpg.Connection.execute

    async def deaf(self: Any, query: str, *args: Any, **options: Any) -> Any:
        answer = await execute(self, query, *args, **options)
        if "boathook.settle" in query and not lost:
            lost.append(True)
            self.terminate()
            raise asyncpg.ConnectionDoesNotExistError("connection was closed in the middle of operation")
        return answer

    monkeypatch.setattr(asyncpg.Connection, "execute", deaf)
    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, succeeded=1)
    assert lost == [True]
    assert await effects(shop) == [1]
    assert await attempts(shop) == [(1, "succeeded", None)]


async def test_newer_accepts_only_newer_stamps_and_rolls_back(shop: Database) -> None:
    hook = Boathook()

    @hook.on("shop", retry=QUICK)
    async def note(event: Event, tx: Transaction) -> Ignore | None:
        if not await tx.newer("subscription", "sub_1", event.json["at"]):
            return Ignore("older")
        await tx.execute("insert into deed values ($1)", event.json["at"])
        if event.json.get("fails") and event.attempt == 1:
            raise RuntimeError
        return None

    async with running_worker(shop, hook, concurrency=1):
        await accept_events(shop, {"at": 5, "fails": True})
        await wait_for_states(shop, succeeded=1)
        await accept_events(shop, {"at": 4})
        await accept_events(shop, {"at": 5})
        await accept_events(shop, {"at": 6})
        await wait_for_states(shop, succeeded=2, ignored=2)
    assert await effects(shop) == [5, 6]


def test_stamps_of_all_types_are_comparable() -> None:
    moment = datetime(2026, 1, 31, 12, tzinfo=UTC)
    same = [moment, "2026-01-31T12:00:00Z", "2026-01-31T13:00:00+01:00", moment.timestamp(), int(moment.timestamp())]
    assert {to_number(stamp) for stamp in [*same, str(int(moment.timestamp()))]} == {Decimal(1769860800)}
    times = [
        "12:00:00.123456Z",
        "12:00:00.123456001Z",
        "13:00:00.1234560011+01:00",
        "12:00:00,123456789Z",
        "12:00:00.2Z",
    ]
    numbers = [to_number(f"2026-01-31T{time}") for time in times]
    assert numbers == sorted(set(numbers))
    assert numbers[3] == Decimal("1769860800.123456789")
    naive = datetime(2026, 1, 31)  # noqa: DTZ001 that it has no zone is the point
    for wrong in (float("nan"), "soon", naive, "2026-01-31T12:00:00", True, None):
        with pytest.raises(ValueError, match="stamp"):
            to_number(wrong)


async def test_once_is_not_done_again_after_a_rollback(shop: Database) -> None:
    hook, sent = Boathook(), []

    async def send(to: str, *, idempotency_key: str) -> dict[str, str]:
        sent.append((to, idempotency_key))
        return {"id": f"mail-{len(sent)}"}

    results = []

    @hook.on("shop", retry=QUICK)
    async def note(event: Event, tx: Transaction) -> None:
        one, other = await asyncio.gather(
            event.once("mail", send, "a@example.com"), event.once("mail", send, "a@example.com")
        )
        assert one == other
        results.append(one)
        if event.attempt == 1:
            raise RuntimeError

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, succeeded=1)
    assert len(sent) == 1
    assert len(sent[0][1]) == 40
    assert results == [{"id": "mail-1"}] * 2


async def test_once_takes_sync_functions_in_both_kinds_of_handlers(shop: Database) -> None:
    hook, calls = Boathook(), []

    def charge(amount: int) -> int:
        calls.append(amount)
        return amount + 1

    @hook.on("shop")
    async def one(event: Event) -> None:
        assert await event.once("charge", charge, 1) == 2

    @hook.on("shop")
    def other(event: Event) -> None:
        assert event.once_sync("charge", charge, amount=3) == 4
        assert event.once_sync("charge", charge, amount=3) == 4

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, succeeded=2)
    assert sorted(calls) == [1, 3]


async def test_once_stores_the_result_of_a_thread_that_outlives_the_handler(shop: Database) -> None:
    hook, calls, may_end = Boathook(), [], threading.Event()

    def charge() -> int:
        calls.append(1)
        may_end.wait(300)
        return 7

    @hook.on("shop", timeout=0.2, retry=RetryPolicy(first_s=60))
    async def note(event: Event) -> None:
        assert await event.once("charge", charge) == 7

    async def has_timed_out() -> bool:
        return await attempts(shop) == [(1, "failed", "TIMEOUT")]

    async def is_stored() -> bool:
        return await shop.fetchval("select result::text from boathook.side_effect") == "7"

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await eventually(has_timed_out)
        may_end.set()
        await eventually(is_stored)
        await shop.execute("update boathook.delivery set due_at = now()")
        await wait_for_states(shop, succeeded=1)
    assert calls == [1]


async def test_once_refuses_a_non_json_result_without_calling_again(shop: Database) -> None:
    hook, calls = Boathook(), []

    def charge() -> object:
        calls.append(1)
        return object()

    @hook.on("shop", retry=QUICK)
    async def note(event: Event) -> None:
        await event.once("thing", charge)

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, dead=1)
    assert calls == [1]
    assert "once('thing') can only remember values that are valid as JSON" in await shop.fetchval(
        "select error from boathook.delivery"
    )


async def test_once_does_nothing_for_a_zombie(shop: Database) -> None:
    hook, calls = Boathook(), []
    raised = asyncio.Event()

    @hook.on("shop", retry=RetryPolicy(first_s=60))
    async def note(event: Event) -> None:
        await steal(shop)
        try:
            await event.once("thing", lambda: calls.append(1))
        except LeaseLost:
            raised.set()
            raise

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await asyncio.wait_for(raised.wait(), 300)
    assert calls == []


async def test_publishing_is_part_of_the_transaction(shop: Database) -> None:
    hook, receipts = Boathook(), []

    @hook.on("shop", retry=QUICK)
    async def upgrade(event: Event, tx: Transaction) -> None:
        receipts.append(
            await hook.publish(tx, application="acme", type="account.upgraded", payload={"n": 1}, id="up-1")
        )
        receipts.append(
            await hook.publish(tx, application="acme", type="account.upgraded", payload={"n": 1}, id="up-1")
        )
        if event.attempt == 1:
            raise RuntimeError

    @hook.on(application="acme")
    async def react(event: Event, tx: Transaction) -> None:
        assert event.application == "acme"
        assert event.source is None
        await tx.execute("insert into deed values ($1)", event.json["n"])

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, succeeded=2)
    assert await effects(shop) == [1]
    assert [type(receipt) for receipt in receipts] == [Accepted, Duplicate, Accepted, Duplicate]
    assert await shop.fetchval("select count(*) from boathook.event where origin = 'published'") == 1


async def test_publishing_works_outside_handlers_on_an_asyncpg_connection(shop: Database) -> None:
    hook = Boathook()

    @hook.on(application="acme")
    async def react(event: Event) -> None:
        assert event.body == b"\x00raw"

    async with running_worker(shop, hook):
        async with shop.acquire() as connection:
            transaction = connection.transaction()
            await transaction.start()
            await hook.publish(connection, application="acme", type="x", payload=b"gone")
            await transaction.rollback()
            await hook.publish(connection, application="acme", type="x", payload=b"\x00raw")
        await wait_for_states(shop, succeeded=1)


async def test_a_published_event_reaches_a_recipient_added_after_the_routes_were_read(shop: Database) -> None:
    hook, later = Boathook(), Boathook()
    await add_application(shop, "acme")
    async with shop.acquire() as connection:
        await hook.publish(connection, application="acme", type="x", payload={})

        @later.on(application="acme")
        async def react(event: Event) -> None: ...

        async with running_worker(shop, later):
            await hook.publish(connection, application="acme", type="x", payload={})
            await wait_for_states(shop, succeeded=1)


async def test_one_event_is_delivered_once_for_several_lines(shop: Database) -> None:
    hook = Boathook()

    @hook.on("shop", "thing.*")
    @hook.on("shop", "*.done")
    @hook.on("other")
    async def note(event: Event, tx: Transaction) -> None:
        await tx.execute("insert into deed values (1)")

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, succeeded=1)
        await accept_events(shop, {}, source="other")
        await wait_for_states(shop, succeeded=2)
    assert [line.source for line in hook.handlers["note"].lines] == ["shop", "shop", "other"]


def test_invalid_declarations_are_explained() -> None:
    hook = Boathook()

    @hook.on("shop")
    async def note(event: Event) -> None: ...

    def other(event: Event) -> None: ...

    for declare, words in (
        (lambda: hook.on("shop", name="note")(other), "two functions are named note"),
        (lambda: hook.on("shop", application="acme"), "not both"),
        (lambda: hook.on(other), "parentheses"),
        (lambda: hook.on("shop")(lambda event: None), "needs name="),
        (lambda: hook.on("shop", name="x")(lambda: None), "must take the event"),
        (lambda: hook.on("shop", ""), "empty"),
        (lambda: hook.on("shop", filter={"bdy": {}}), "bdy"),
        (lambda: hook.on("shop", timeout=0.0, name="zero")(other), "finite number above 0"),
        # A route that gateways and workers cannot read stops all of them.
        (lambda: hook.on("shop", order_by="a..b"), "not a dotted path"),
        (lambda: hook.on("shop", order_by=""), "not a dotted path"),
        (lambda: hook.on("shop", filter={"body": {"n": {"lt": math.inf}}}), "write a number"),
        (lambda: hook.on("shop", filter={"body": {"n": {"in": [math.inf]}}}), "write text, a number"),
        (lambda: hook.on("shop", 5), "types: write text such as"),
        (lambda: hook.on("sh\x00p"), "control characters"),
        (lambda: hook.on(application="\ud800"), "control characters"),
        (lambda: hook.on("shop", timeout=math.inf, name="inf")(other), "finite number"),
        (lambda: hook.on("shop", retry=RetryPolicy(max_age_s=math.inf), name="inf")(other), "infinite"),
        (lambda: hook.on("shop", retry=RetryPolicy(delays_s=(math.nan,)), name="inf")(other), "infinite"),
    ):
        with pytest.raises(ConfigError, match=words):
            declare()


async def test_a_transaction_is_dead_after_its_attempt(shop: Database) -> None:
    hook, kept = Boathook(), []

    @hook.on("shop")
    async def note(event: Event, tx: Transaction) -> None:
        kept.append(tx)

    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, succeeded=1)
    with pytest.raises(HandlerMisuse, match="has ended"):
        await kept[0].execute("select 1")
