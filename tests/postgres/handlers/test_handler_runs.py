"""`boathook.testing.event` and `run`: handlers get the events that a worker gives them, and leave nothing behind."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from msgspec.structs import replace

from boathook.domain.errors import BoathookError, ConfigError, NotFound
from boathook.domain.model import Origin
from boathook.domain.policy import Dead, Ignore, Retry
from boathook.handlers import sessions
from boathook.handlers.api import Boathook, Event, SyncTransaction, Transaction
from boathook.providers import RECIPES
from boathook.testing import event, run, run_sync, runs
from tests.postgres.handlers.test_sessions import django_kit, sqlalchemy_url

SOURCE = Path(__file__).read_text()
INSERT = "insert into deed values ({})"
COUNT = "select count(*) from deed"


@pytest.fixture
def shop(pg_url: str) -> str:
    with psycopg.connect(pg_url, autocommit=True) as admin:
        admin.execute("create table deed (n int)")
        admin.execute(
            "insert into boathook.application (id, organization, uid, name) values (gen_random_uuid(), 'default', 'acme', 'A')"
        )
    return pg_url


@pytest.fixture
async def connection(shop: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(shop)
    yield connection
    await connection.close()


def committed(url: str) -> int:
    """Return how many rows the handlers' table has for others."""
    with psycopg.connect(url) as other:
        row = other.execute(COUNT).fetchone()
    assert row is not None
    return row[0]


def paid(**fields: Any) -> Event:
    return event("stripe", type="invoice.paid", json={"n": 1, **fields})


def test_events_are_compared_and_shown_by_what_handlers_read() -> None:
    first = paid()
    other = replace(first, _effects=paid()._effects)
    assert first == other
    assert first != replace(first, attempt=2)
    assert first != first.id
    assert "_effects" not in repr(first)
    assert f"dedup_key={first.dedup_key!r}" in repr(first)


def recording(hook: Boathook) -> None:
    """Declare a handler that writes, publishes, and then does as the event says."""

    @hook.on("stripe", "invoice.*")
    async def record(event: Event, tx: Transaction) -> Ignore | Retry | Dead | None:
        await tx.execute("insert into deed values ($1)", event.json["n"])
        await hook.publish(tx, application="acme", type="invoice.recorded", payload={"n": event.json["n"]})
        match event.json.get("then"):
            case "ignore":
                return Ignore("seen before")
            case "retry":
                return Retry(code="USER_MISSING")
            case "die":
                return Dead("BROKEN", "look at it")
            case "raise":
                raise KeyError("customer")
        return None


class TestEvent:
    def test_it_has_the_type_and_an_id_where_the_sender_states_them(self):
        made = event("stripe", type="invoice.paid", json={"data": {"object": {"amount": 7}}})
        assert made.type == made.json["type"] == "invoice.paid"
        assert made.dedup_key == made.json["id"]
        assert made.json["data"] == {"object": {"amount": 7}}
        assert (made.source, made.application, made.origin, made.attempt) == ("stripe", None, Origin.RECEIVED, 1)

    def test_an_id_of_the_body_or_the_argument_is_kept(self):
        assert event("stripe", type="a", json={"id": "evt_7"}).dedup_key == "evt_7"
        assert event("stripe", type="a", id="evt_8").json["id"] == "evt_8"

    def test_a_type_in_a_header_and_in_the_body(self):
        made = event("github", type="issues.opened", fields={"issue.number": 7})
        assert (made.type, made.headers["x-github-event"]) == ("issues.opened", "issues")
        assert (made.json["action"], made.json["issue"]["number"]) == ("opened", 7)

    def test_a_type_without_the_part_in_the_body(self):
        made = event("github", type="push")
        assert (made.type, "action" in made.json) == ("push", False)

    def test_two_of_a_sender_with_ids_in_headers_are_two(self):
        assert event("github", json={}).dedup_key != event("github", json={}).dedup_key

    @pytest.mark.parametrize(
        "name", [recipe.name for recipe in RECIPES if recipe.name not in {"hmac", "token", "none"}]
    )
    def test_every_provider_has_a_sample(self, name):
        made = event(name)
        assert made.source == name
        assert made.body

    def test_an_item_of_a_batch_is_delivered(self):
        body = [{"event": "delivered", "sg_event_id": f"e{n}", "n": n} for n in range(2)]
        made = event("sendgrid", json=body, item=1)
        assert (made.type, made.item["n"]) == ("delivered", 1)

    def test_a_source_of_another_name(self):
        made = event("shop", provider="hmac", type_path="event", type="order.paid", json={"total": 3})
        assert (made.source, made.type, made.json) == ("shop", "order.paid", {"total": 3, "event": "order.paid"})

    def test_a_published_one(self):
        made = event(application="acme", type="invoice.paid", json={"n": 1}, id="7")
        assert (made.source, made.application, made.dedup_key) == (None, "acme", "7")
        made = event(application="acme", type="a", body=b"hi", headers={"X-Trace": "t", "Content-Type": "text/plain"})
        assert (made.headers, made.content_type) == ({"x-trace": "t"}, "text/plain"), "as when it is published"

    @pytest.mark.parametrize(
        ("make", "text"),
        [
            (event, 'such as event("stripe", ...)'),
            (lambda: event("strip"), "perhaps stripe"),
            (lambda: event("shop"), 'add provider="..."'),
            (lambda: event("shop", provider="hmac", type="paid"), "set type_header or type_path"),
            (lambda: event("stripe", json={}, body=b"{}"), "json= or body=, not both"),
            (lambda: event("stripe", application="acme"), "not both"),
            (lambda: event(application="acme"), "needs type="),
            (lambda: event("stripe", body=b"<xml>"), "JSON"),
            (lambda: event("sendgrid", item=5), "items 0 to 0, and not 5"),
            (lambda: event("stripe", item=-1), "items 0 to 0, and not -1"),
        ],
    )
    def test_an_invalid_call_is_explained(self, make: Callable[[], Event], text: str):
        with pytest.raises(ConfigError) as raised:
            make()
        assert text in str(raised.value)


class TestRun:
    async def test_writes_are_visible_in_the_block_and_rolled_back_after(self, shop, connection):
        hook = Boathook()
        recording(hook)
        async with run(hook, paid(), session=connection) as result:
            assert await connection.fetchval(COUNT) == 1
            assert committed(shop) == 0
        assert result.outcome == "succeeded"
        assert [(one.application, one.type, one.payload) for one in result.published] == [
            ("acme", "invoice.recorded", {"n": 1})
        ]
        assert await connection.fetchval(COUNT) == 0
        assert await connection.fetchval("select count(*) from boathook.event") == 0

    async def test_mutant_without_the_rollback_it_stays(self, shop, connection, monkeypatch):
        @contextlib.asynccontextmanager
        async def kept(session: Any) -> AsyncIterator[None]:
            async with session.transaction():
                yield

        monkeypatch.setattr(runs, "rolled_back", kept)
        hook = Boathook()
        recording(hook)
        await run(hook, paid(), session=connection)
        assert committed(shop) == 1

    async def test_the_tests_own_transaction_continues(self, shop, connection):
        hook = Boathook()
        recording(hook)
        transaction = connection.transaction()
        await transaction.start()
        await connection.execute(INSERT.format(7))
        await run(hook, paid(), session=connection)
        assert [row["n"] for row in await connection.fetch("select n from deed")] == [7]
        await transaction.rollback()

    @pytest.mark.parametrize(
        ("then", "outcome", "code", "note", "rows"),
        [
            (None, "succeeded", None, None, 1),
            ("ignore", "ignored", None, "seen before", 1),
            ("retry", "retry", "USER_MISSING", None, 0),
            ("die", "dead", "BROKEN", "look at it", 0),
            ("raise", "failed", "KeyError", None, 0),
        ],
    )
    async def test_only_results_a_worker_commits_are_kept(self, shop, connection, then, outcome, code, note, rows):
        hook = Boathook()
        recording(hook)
        async with run(hook, paid(then=then), session=connection) as result:
            assert await connection.fetchval(COUNT) == rows
        assert (result.outcome, result.code, result.note) == (outcome, code, note)
        assert len(result.published) == rows

    async def test_an_exception_has_the_handlers_file_and_line(self, shop, connection):
        hook = Boathook()
        recording(hook)
        result = await run(hook, paid(then="raise"), session=connection)
        assert result.error == "KeyError: 'customer'"
        assert isinstance(result.exception, KeyError)
        lines = SOURCE.splitlines()
        number = next(n for n, line in enumerate(lines, start=1) if 'raise KeyError("customer")' in line)
        assert result.location == f"{__file__}:{number}"
        assert f"record failed KeyError: 'customer' at {__file__}:{number}" in repr(result)
        assert "boathook/testing" not in (result.traceback or "")

    async def test_each_matching_handler_runs_separately(self, shop, connection):
        hook = Boathook()
        recording(hook)

        @hook.on("stripe", "invoice.paid")
        async def broken(event: Event, tx: Transaction) -> None:
            await tx.execute(INSERT.format(2))
            await tx.execute("select 1 / 0")

        @hook.on("stripe", "charge.*")
        async def other(event: Event) -> None:
            raise AssertionError

        async with run(hook, paid(), session=connection) as result:
            assert [row["n"] for row in await connection.fetch("select n from deed")] == [1]
        assert [(one.handler, one.outcome) for one in result.handlers] == [
            ("record", "succeeded"),
            ("broken", "failed"),
        ]
        assert result.code == result["broken"].code == "DivisionByZeroError"
        with pytest.raises(KeyError, match="other did not run; record, broken did"):
            result["other"]

    async def test_stamps_side_effects_and_replies(self, shop, connection):
        hook = Boathook()
        sent: list[str] = []

        @hook.on("stripe")
        async def handle(event: Event, tx: Transaction) -> Ignore | None:
            await event.once("mail", sent.append, event.idempotency_key("mail"))
            event.reply({"ok": True})
            return None if await tx.newer("invoice", "1", event.json["n"]) else Ignore("old")

        made = paid()
        assert (await run(hook, made, session=connection)).outcome == "succeeded"
        result = await run(hook, made, session=connection)
        assert result.outcome == "succeeded", "the stamp of the first run was rolled back"
        assert (len(sent), result.effects) == (1, {"mail": None})
        assert result.reply is not None
        assert json.loads(result.reply.body) == {"ok": True}

    async def test_a_sync_handler(self, shop, connection):
        hook = Boathook()

        @hook.on("stripe")
        def handle(event: Event, tx: SyncTransaction) -> None:
            tx.execute(INSERT.format(1))
            hook.publish_sync(tx, application="acme", type="done", payload=event.once_sync("n", lambda: 3))

        async with run(hook, paid(), session=connection) as result:
            assert await connection.fetchval(COUNT) == 1
        assert [one.payload for one in result.published] == [3]

    async def test_a_cancellation_by_the_handler_is_its_failure_and_one_of_the_test_is_not(self, shop, connection):
        hook, started = Boathook(), asyncio.Event()

        @hook.on("stripe")
        async def handle(event: Event, tx: Transaction) -> None:
            await tx.execute(INSERT.format(1))
            task = asyncio.create_task(asyncio.sleep(60))
            started.set()
            if event.json.get("cancels"):
                task.cancel()
            await task

        result = await run(hook, paid(cancels=True), session=connection)
        assert (result.outcome, result.code) == ("failed", "CancelledError")
        started.clear()
        running = asyncio.ensure_future(run(hook, paid(), session=connection))
        await started.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await connection.fetchval(COUNT) == 0

    def test_a_sync_handler_may_raise_a_cancellation_too(self):
        hook = Boathook()

        @hook.on("stripe")
        def handle(event: Event) -> None:
            raise asyncio.CancelledError

        with run_sync(hook, paid()) as result:
            assert (result.outcome, result.code) == ("failed", "CancelledError")

    async def test_a_handler_that_ends_the_transaction_fails(self, shop, connection):
        hook = Boathook()

        @hook.on("stripe")
        async def handle(event: Event, tx: Transaction) -> None:
            await tx.execute("rollback")

        result = await run(hook, paid(), session=connection)
        assert (result.outcome, result.code) == ("failed", "HANDLER_MISUSE")
        await connection.transaction().start()
        result = await run(hook, paid(), session=connection)
        assert (result.outcome, result.code) == ("failed", "HANDLER_MISUSE"), "in the test's own transaction"

    async def test_a_handler_without_a_transaction_needs_no_database(self):
        hook = Boathook()

        @hook.on("github", "issues.*", filter={"body": {"issue.number": {"gt": 5}}})
        async def handle(event: Event) -> Ignore:
            return Ignore(event.type)

        assert (
            await run(hook, event("github", type="issues.opened", fields={"issue.number": 7}))
        ).note == "issues.opened"
        with pytest.raises(NotFound, match="its filter= does not match"):
            await run(hook, event("github", type="issues.opened", fields={"issue.number": 3}))

    async def test_publishing_to_nobody_fails_the_attempt(self, shop, connection):
        hook = Boathook()

        @hook.on("stripe")
        async def handle(event: Event, tx: Transaction) -> None:
            await tx.execute(INSERT.format(1))
            await hook.publish(tx, application="acmee", type="a", payload={})

        async with run(hook, paid(), session=connection) as result:
            assert await connection.fetchval(COUNT) == 0
        assert (result.outcome, result.code) == ("failed", "APPLICATION_NOT_FOUND")
        assert "acmee" in str(result.error)

        @hook.on(application="acmee")
        async def react(event: Event) -> None: ...

        result = await run(hook, paid(), session=connection)
        assert (result.outcome, len(result.published)) == ("succeeded", 1), "a handler takes it, if not yet registered"

    async def test_a_published_event(self):
        hook = Boathook()

        @hook.on(application="acme")
        async def handle(event: Event) -> None:
            assert event.json == {"n": 1}

        assert (await run(hook, event(application="acme", type="a", json={"n": 1}))).outcome == "succeeded"

    async def test_a_missing_schema_error_says_what_to_run(self, empty_url):
        hook = Boathook()

        @hook.on("stripe")
        async def handle(event: Event, tx: Transaction) -> None:
            await hook.publish(tx, application="acme", type="a", payload={})

        other = await asyncpg.connect(empty_url)
        with pytest.raises(ConfigError, match="run `boathook migrate`"):
            await run(hook, paid(), session=other)
        await other.close()


@contextlib.asynccontextmanager
async def opened(library: str, url: str) -> AsyncIterator[tuple[Any, Callable[[Any, str], Any], Any]]:
    """Open an async session; yield it, how it runs SQL, and the adapter of handlers that take it."""
    if library == "psycopg":
        async with await psycopg.AsyncConnection.connect(url) as connection:
            yield connection, lambda one, sql: one.execute(sql), sessions.psycopg_async(lambda: None)
        return
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
    from sqlalchemy.pool import NullPool

    name, arguments = sqlalchemy_url(url, "asyncpg")
    engine = create_async_engine(name, connect_args=arguments, poolclass=NullPool)
    async with AsyncSession(engine) as session:
        yield session, lambda one, sql: one.execute(text(sql)), sessions.sqlalchemy_async(lambda: None)
        await session.commit()
    await engine.dispose()


@contextlib.contextmanager
def opened_sync(library: str, url: str) -> Iterator[tuple[Any, Callable[[Any, str], Any], Any]]:
    """Open a sync session, in the same way."""
    if library == "psycopg":
        with psycopg.connect(url) as connection:
            yield connection, lambda one, sql: one.execute(sql), sessions.psycopg_sync(lambda: None)
    elif library == "django":
        kit = django_kit(url)
        from django.db import connection as default

        default.close()
        yield default, kit.execute, kit.adapter
        default.close()
    else:
        from sqlalchemy import create_engine, text
        from sqlalchemy.orm import Session
        from sqlalchemy.pool import NullPool

        name, arguments = sqlalchemy_url(url, "psycopg")
        engine = create_engine(name, connect_args=arguments, poolclass=NullPool)
        with Session(engine) as session:
            yield session, lambda one, sql: one.execute(text(sql)), sessions.sqlalchemy_sync(lambda: None)
            session.commit()
        engine.dispose()


class TestSessionsOfOthers:
    @pytest.mark.parametrize("is_inside", [False, True], ids=["idle", "in a transaction"])
    @pytest.mark.parametrize("library", ["psycopg", "sqlalchemy"])
    async def test_async(self, shop: str, library: str, is_inside: bool) -> None:
        hook = Boathook()
        async with opened(library, shop) as (session, execute, adapter):

            @hook.on("stripe", session=adapter)
            async def handle(event: Event, session: Any) -> None:
                await execute(session, INSERT.format(1))
                await hook.publish(session, application="acme", type="a", payload={})
                if event.json["n"] == 2:
                    raise RuntimeError
                if event.json["n"] == 3:
                    await session.commit()

            if is_inside:
                await execute(session, INSERT.format(7))
            async with run(hook, paid(), session=session) as result:
                assert (result.outcome, len(result.published)) == ("succeeded", 1)
            failed = await run(hook, paid(n=2), session=session)
            assert (failed.code, len(failed.published)) == ("RuntimeError", 0)
            assert (await run(hook, paid(n=3), session=session)).outcome == "failed", "the commit is refused"
        assert committed(shop) == int(is_inside)

    @pytest.mark.parametrize("is_inside", [False, True], ids=["idle", "in a transaction"])
    @pytest.mark.parametrize("library", ["psycopg", "sqlalchemy", "django"])
    def test_sync(self, shop: str, library: str, is_inside: bool) -> None:
        hook = Boathook()
        with opened_sync(library, shop) as (session, execute, adapter), contextlib.ExitStack() as stack:

            @hook.on("stripe", session=adapter)
            def handle(event: Event, session: Any) -> None:
                execute(session, INSERT.format(1))
                hook.publish_sync(session, application="acme", type="a", payload={})
                if event.json["n"] == 2:
                    raise RuntimeError

            if is_inside:
                if library == "django":
                    from django.db import transaction

                    stack.enter_context(transaction.atomic())
                execute(session, INSERT.format(7))
            with run_sync(hook, paid(), session=session) as result:
                assert (result.outcome, len(result.published)) == ("succeeded", 1)
            with run_sync(hook, paid(n=2), session=session) as failed:
                assert (failed.code, len(failed.published)) == ("RuntimeError", 0)
        assert committed(shop) == int(is_inside)


class TestMistakes:
    @pytest.fixture
    def hook(self) -> Boathook:
        hook = Boathook()

        @hook.on("stripe", "invoice.*")
        async def record(event: Event, tx: Transaction) -> None: ...

        @hook.on("github", "issues.*", "push")
        def note(event: Event, tx: SyncTransaction) -> None: ...

        @hook.on("slack", session=sessions.sqlalchemy_async(lambda: None))
        async def chat(event: Event, session: Any) -> None: ...

        return hook

    async def test_each_names_the_fix(self, hook, connection, shop):
        cases: list[tuple[Any, Any, str]] = [
            (
                event("stripe", type="charge.failed"),
                None,
                "record takes stripe: invoice.*; note takes github: issues.*, push",
            ),
            (paid(), None, "takes a Transaction, which is on an asyncpg connection; pass an open one as session="),
            (event("slack"), None, "takes the session of its own library; pass an open one"),
            (paid(), "postgresql:///shop", "session= is a builtins.str; pass an asyncpg connection"),
            ({"type": "invoice.paid"}, None, "run takes an event of boathook.testing.event, not dict"),
        ]
        for made, session, text in cases:
            with pytest.raises(BoathookError) as raised:
                await run(hook, made, session=session)
            assert text in str(raised.value)
        with pytest.raises(NotFound, match="it has none: import the module that defines them"):
            await run(Boathook(), paid())

    async def test_a_session_of_another_library(self, hook, shop):
        async with opened("psycopg", shop) as (session, _, _):
            with pytest.raises(ConfigError, match=r"pass session=await asyncpg.connect"):
                await run(hook, paid(), session=session)
        with opened_sync("psycopg", shop) as (sync_session, _, _):
            with pytest.raises(ConfigError, match="is async; pass an async session"):
                await run(hook, paid(), session=sync_session)
            with pytest.raises(ConfigError, match="is async; use `await run"), run_sync(hook, paid()):
                pass
            with (
                pytest.raises(ConfigError, match="use `await run"),
                run_sync(hook, event("github", type="push"), session=sync_session),
            ):
                pass
