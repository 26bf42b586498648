"""Sessions of other libraries: an error, a user's commit and a lost lease, each promise with each adapter."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from boathook.db import replies
from boathook.db.database import Database
from boathook.db.deliveries import DeliveryStore
from boathook.db.replies import ReplyStatus
from boathook.db.sql_functions import SqlFunction
from boathook.domain.errors import ConfigError
from boathook.domain.model import Accepted, Duplicate
from boathook.domain.policy import CONNECTION_LOST, Ignore, Retry, RetryDefaults, RetryPolicy
from boathook.domain.replies import Reply
from boathook.handlers import runner, sessions
from boathook.handlers.api import Boathook, Event
from tests.endpoint_factory import add_application, add_endpoint, recipients_of
from tests.support import eventually
from tests.worker_harness import accept_events, attempts, running_worker, wait_for_states

ONCE = RetryPolicy(max_attempts=1)
TWICE = RetryPolicy(first_s=0.01, max_attempts=2)

DRIVERS = ["sqlalchemy-asyncpg", "sqlalchemy-psycopg", "sqlalchemy-sync", "psycopg-async", "psycopg-sync", "django"]


@dataclass
class SessionKit:
    """One adapter, and how the test does things through the session it gives."""

    adapter: sessions.AsyncSessions | sessions.SyncSessions
    execute: Callable[[Any, str], Any]
    """Runs SQL; awaitable for async ones."""
    commit: Callable[[Any], Any]
    savepoint: Callable[[Any], Any]
    """Opens a savepoint and leaves it open."""

    @property
    def is_async(self) -> bool:
        return isinstance(self.adapter, sessions.AsyncSessions)

    def handler(self, hook: Boathook, body: Callable[[Event, Any, Callable[..., Any]], Any], **options: Any) -> None:
        """Declare a handler from *body*, a generator of awaitables or, if sync, of calls."""

        async def run_async(event: Event, session: Any) -> Any:
            steps, answer = body(event, session, self.execute), None
            while True:
                try:
                    answer = steps.send(answer)
                except StopIteration as stop:
                    return stop.value
                answer = await answer if asyncio.iscoroutine(answer) or asyncio.isfuture(answer) else answer

        def run_sync(event: Event, session: Any) -> Any:
            steps, answer = body(event, session, self.execute), None
            while True:
                try:
                    answer = steps.send(answer)
                except StopIteration as stop:
                    return stop.value

        hook.on("shop", name="note", session=self.adapter, **options)(run_async if self.is_async else run_sync)


def entered(block: Any) -> Any:
    """Enter a block and keep a reference: garbage collection would leave it."""
    block.__enter__()
    return block


def sqlalchemy_url(url: str, driver: str) -> tuple[str, dict[str, Any]]:
    """Split a libpq URL into what SQLAlchemy takes: a socket's folder has to travel as an argument."""
    parts = urlsplit(url)
    query = {key: values[0] for key, values in parse_qs(parts.query).items()}
    arguments: dict[str, Any] = {
        "user": parts.username or query.get("user"),
        "password": parts.password or query.get("password"),
        "host": query.get("host") or parts.hostname,
        "port": parts.port or query.get("port"),
        "database" if driver == "asyncpg" else "dbname": parts.path.lstrip("/"),
    }
    given = {key: value for key, value in arguments.items() if value}
    if "port" in given:
        given["port"] = int(given["port"])
    return f"postgresql+{driver}://", given


_django = threading.Lock()


def django_kit(url: str) -> SessionKit:
    import django
    from django.apps import apps
    from django.conf import settings as django_settings
    from django.db import connections, transaction

    _, arguments = sqlalchemy_url(url, "psycopg")
    database = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": arguments["dbname"],
        "USER": arguments.get("user", ""),
        "PASSWORD": arguments.get("password", ""),
        "HOST": arguments.get("host", ""),
        "PORT": arguments.get("port", ""),
    }
    with _django:
        if not django_settings.configured:
            django_settings.configure(DATABASES={"default": database}, USE_TZ=True)
        if not apps.ready:  # another test may have configured it for what needs no more than that
            django.setup()
        connections.settings["default"].update(database)

    def execute(connection: Any, sql: str) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(sql)

    return SessionKit(
        sessions.django(),
        execute,
        lambda _connection: transaction.commit(),
        lambda _connection: entered(transaction.atomic()),
    )


@pytest.fixture(params=DRIVERS)
async def kit(request: pytest.FixtureRequest, shop: Database) -> AsyncIterator[SessionKit]:
    url = shop.url
    match request.param:
        case "sqlalchemy-asyncpg" | "sqlalchemy-psycopg":
            from sqlalchemy import text
            from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
            from sqlalchemy.pool import NullPool

            name, arguments = sqlalchemy_url(url, request.param.partition("-")[2])
            engine = create_async_engine(name, connect_args=arguments, poolclass=NullPool)
            yield SessionKit(
                sessions.sqlalchemy_async(async_sessionmaker(engine)),
                lambda session, sql: session.execute(text(sql)),
                lambda session: session.commit(),
                lambda session: session.begin_nested().start(),
            )
            await engine.dispose()
        case "sqlalchemy-sync":
            from sqlalchemy import create_engine, text
            from sqlalchemy.orm import sessionmaker
            from sqlalchemy.pool import NullPool

            name, arguments = sqlalchemy_url(url, "psycopg")
            sync_engine = create_engine(name, connect_args=arguments, poolclass=NullPool)
            yield SessionKit(
                sessions.sqlalchemy_sync(sessionmaker(sync_engine)),
                lambda session, sql: session.execute(text(sql)),
                lambda session: session.commit(),
                lambda session: session.begin_nested(),
            )
            sync_engine.dispose()
        case "psycopg-async":
            yield SessionKit(
                sessions.psycopg_async(lambda: psycopg.AsyncConnection.connect(url)),
                lambda connection, sql: connection.execute(sql),
                lambda connection: connection.commit(),
                lambda connection: connection.transaction().__aenter__(),
            )
        case "psycopg-sync":
            yield SessionKit(
                sessions.psycopg_sync(lambda: psycopg.connect(url)),
                lambda connection, sql: connection.execute(sql),
                lambda connection: connection.commit(),
                lambda connection: entered(connection.transaction()),
            )
        case _:
            yield django_kit(url)


@pytest.fixture
async def shop(db: Database) -> Database:
    await db.execute("create table deed (n int)")
    return db


async def deeds(db: Database) -> list[int]:
    return [row["n"] for row in await db.fetch("select n from deed order by n")]


async def test_the_effect_and_the_delivery_are_committed_together(shop: Database, kit: SessionKit) -> None:
    hook = Boathook()

    def body(event: Event, session: Any, execute: Any) -> Any:
        yield execute(session, f"insert into deed values ({event.json['n']})")
        return Ignore("it's done: :all 100%") if event.json["n"] == 2 else None

    kit.handler(hook, body)
    async with running_worker(shop, hook):
        await accept_events(shop, {"n": 1}, {"n": 2})
        await wait_for_states(shop, succeeded=1, ignored=1)
    assert await deeds(shop) == [1, 2]
    assert (
        await shop.fetchval("select note from boathook.delivery_archive where note is not null")
        == "it's done: :all 100%"
    )


async def test_an_error_rolls_back_everything_and_is_retried(shop: Database, kit: SessionKit) -> None:
    hook = Boathook()

    def body(event: Event, session: Any, execute: Any) -> Any:
        yield execute(session, "insert into deed values (1)")
        if event.attempt == 1:
            raise RuntimeError("no luck")

    kit.handler(hook, body, retry=TWICE)
    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, succeeded=1)
    assert await deeds(shop) == [1]
    assert [code for _, _, code in await attempts(shop)] == ["RuntimeError", None]


async def test_returning_retry_rolls_back(shop: Database, kit: SessionKit) -> None:
    hook = Boathook()

    def body(event: Event, session: Any, execute: Any) -> Any:
        yield execute(session, "insert into deed values (1)")
        return Retry(code="LATER")

    kit.handler(hook, body, retry=ONCE)
    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, dead=1)
    assert await deeds(shop) == []
    assert await attempts(shop) == [(1, "retry", "LATER")]


async def test_the_librarys_own_commit_is_refused_and_commits_nothing(shop: Database, kit: SessionKit) -> None:
    hook = Boathook()

    def body(event: Event, session: Any, execute: Any) -> Any:
        yield execute(session, "insert into deed values (1)")
        yield kit.commit(session)

    kit.handler(hook, body, retry=ONCE)
    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, dead=1)
    assert await deeds(shop) == []


@pytest.mark.parametrize("words", ["commit", "commit; begin"])
async def test_a_commit_sent_as_sql_is_detected_and_not_retried(shop: Database, kit: SessionKit, words: str) -> None:
    hook = Boathook()

    def body(event: Event, session: Any, execute: Any) -> Any:
        yield execute(session, "insert into deed values (1)")
        for word in words.split("; "):
            yield execute(session, word)

    kit.handler(hook, body, retry=TWICE)
    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, dead=1)
    assert await attempts(shop) == [(1, "failed", "HANDLER_MISUSE")]
    assert await deeds(shop) == [1]


async def take_over(db: Database) -> None:
    await db.execute("update boathook.delivery set lease_until = now() - interval '1 s' where state = 'leased'")
    await DeliveryStore(db, RetryDefaults()).reap()


async def lose_the_lease_meanwhile(shop: Database, kit: SessionKit) -> None:
    """Run a handler that loses its lease while running."""
    hook = Boathook()
    loop = asyncio.get_running_loop()
    began = asyncio.Event()
    goes_on = threading.Event()

    def body(event: Event, session: Any, execute: Any) -> Any:
        yield execute(session, "insert into deed values (1)")
        loop.call_soon_threadsafe(began.set)
        if kit.is_async:
            yield asyncio.ensure_future(asyncio.to_thread(goes_on.wait, 300))
        else:
            goes_on.wait(300)
        event.reply("late")

    kit.handler(hook, body, retry=RetryPolicy(first_s=60))
    async with running_worker(shop, hook, inline=["shop"]):
        await accept_events(shop, {})
        await began.wait()
        await take_over(shop)
        goes_on.set()


async def test_a_lost_lease_commits_nothing(shop: Database, kit: SessionKit) -> None:
    await lose_the_lease_meanwhile(shop, kit)
    assert await deeds(shop) == []
    assert await shop.fetchval("select count(*) from boathook.reply") == 0
    assert await attempts(shop) == [(1, "lost", "LEASE_LOST")]


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
async def test_without_the_settle_a_lost_lease_would_commit(
    shop: Database, kit: SessionKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant of the test above, which shows that it can fail."""
    nothing = SqlFunction("concat", ("text",) * 8)
    monkeypatch.setattr(runner, "SETTLE", nothing)
    await lose_the_lease_meanwhile(shop, kit)
    assert await deeds(shop) == [1]
    assert await shop.fetchval("select count(*) from boathook.reply") == 1


async def test_a_reply_is_committed_with_the_success(shop: Database, kit: SessionKit) -> None:
    hook, told = Boathook(), asyncio.Queue[str]()

    def body(event: Event, session: Any, execute: Any) -> Any:
        yield execute(session, "insert into deed values (1)")
        event.reply(["it's", "\\", event.attempt], status=201)
        if event.attempt == 1:
            raise RuntimeError

    await shop.listen(replies.CHANNEL, told.put_nowait)
    kit.handler(hook, body, retry=RetryPolicy(first_s=0.01))
    async with running_worker(shop, hook, inline=["shop"]):
        [event_id] = await accept_events(shop, {})
        await wait_for_states(shop, succeeded=1)
        assert await asyncio.wait_for(told.get(), 300) == str(event_id)
    [answered] = await replies.find(shop, [event_id])
    assert answered == ReplyStatus(
        event_id, Reply(status=201, body=rb"""["it's","\\",2]""", content_type="application/json"), is_open=False
    )


async def cut_the_connection_once(shop: Database, kit: SessionKit) -> None:
    """Run a handler with one attempt whose connection is terminated by the server once."""
    hook = Boathook()

    def body(event: Event, session: Any, execute: Any) -> Any:
        yield execute(session, "insert into deed values (1)")
        if event.attempt == 1:
            yield execute(session, "select pg_terminate_backend(pg_backend_pid())")

    kit.handler(hook, body, retry=ONCE)
    async with running_worker(shop, hook):
        await accept_events(shop, {})

        async def is_over() -> bool:
            return await ended(shop)

        await eventually(is_over)


async def ended(db: Database) -> bool:
    return bool(await db.fetchval("select count(*) from boathook.delivery where state <> 'dead'") == 0)


async def test_a_lost_connection_is_not_held_against_the_handler(shop: Database, kit: SessionKit) -> None:
    await cut_the_connection_once(shop, kit)
    assert await attempts(shop) == [(1, "failed", CONNECTION_LOST), (2, "succeeded", None)]
    assert await deeds(shop) == [1]


async def test_counting_an_interruption_as_a_failure_loses_the_event(
    shop: Database, kit: SessionKit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant of the test above, which shows that it can fail."""
    monkeypatch.setattr(runner, "is_interrupted", lambda _error, _settling: False)
    await cut_the_connection_once(shop, kit)
    assert len(await attempts(shop)) == 1
    assert await deeds(shop) == []


async def test_a_savepoint_left_open_cannot_swallow_the_settle(shop: Database, kit: SessionKit) -> None:
    hook, kept = Boathook(), []

    def body(event: Event, session: Any, execute: Any) -> Any:
        kept.append((yield kit.savepoint(session)))
        yield execute(session, "insert into deed values (1)")

    kit.handler(hook, body, retry=ONCE)
    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, dead=1)
    assert await deeds(shop) == []


async def test_publishing_is_part_of_the_session(shop: Database, kit: SessionKit) -> None:
    hook, receipts = Boathook(), []

    def body(event: Event, session: Any, execute: Any) -> Any:
        publish = hook.publish if kit.is_async else hook.publish_sync
        receipts.append((yield publish(session, application="acme", type="x", payload={"a": "it's"})))
        if event.attempt == 1:
            raise RuntimeError

    @hook.on(application="acme")
    async def react(event: Event) -> None:
        assert event.json == {"a": "it's"}

    kit.handler(hook, body, retry=TWICE)
    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, succeeded=2)
    assert [type(receipt) for receipt in receipts] == [Accepted, Accepted]
    assert await shop.fetchval("select count(*) from boathook.event where origin = 'published'") == 1


async def test_publishing_to_nobody_rolls_the_attempt_back(shop: Database, kit: SessionKit) -> None:
    hook = Boathook()

    def body(event: Event, session: Any, execute: Any) -> Any:
        yield execute(session, "insert into deed values (1)")
        publish = hook.publish if kit.is_async else hook.publish_sync
        yield publish(session, application="acme", type="x", payload={})

    kit.handler(hook, body, retry=TWICE)
    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await wait_for_states(shop, dead=1)
    assert await deeds(shop) == []
    assert await shop.fetchval("select count(*) from boathook.event where origin = 'published'") == 0
    assert await attempts(shop) == [(1, "failed", "APPLICATION_NOT_FOUND"), (2, "failed", "APPLICATION_NOT_FOUND")]
    error = await shop.fetchval("select error from boathook.attempt limit 1")
    assert "boathook applications create NAME --uid acme" in error


async def test_publishing_to_endpoints_works_through_every_session(shop: Database, kit: SessionKit) -> None:
    acme = await add_application(shop, "acme")
    endpoint = await add_endpoint(shop, acme, channels=["eu"], order_by="*")
    await add_endpoint(shop, acme, channels=["us"])
    hook, receipts, soon = Boathook(), [], datetime.now(UTC) + timedelta(hours=1)

    def body(event: Event, session: Any, execute: Any) -> Any:
        publish = hook.publish if kit.is_async else hook.publish_sync
        for _ in range(2):
            receipt = yield publish(
                session, application="acme", type="x", payload={"%s": "ü'"}, id="m", channels=["eu"], tags=["t"],
                deliver_at=soon, headers={"a": "b"},
            )  # fmt: skip
            receipts.append(receipt)

    kit.handler(hook, body, retry=ONCE)
    async with running_worker(shop, hook):
        await accept_events(shop, {})
        await eventually(lambda: len(receipts) == 2)
        await wait_for_states(shop, succeeded=1, pending=1)
    first = receipts[0].event_id
    assert receipts == [Accepted(first), Duplicate(first)]
    assert await recipients_of(shop, first) == [endpoint]
    assert await shop.fetchval("select due_at from boathook.delivery where event_id = $1", first) == soon
    row = await shop.fetchrow("select application, channels, tags, body from boathook.event where id = $1", first)
    assert tuple(row) == (acme, ["eu"], ["t"], '{"%s":"ü\'"}'.encode())


def test_a_session_must_fit_its_handler() -> None:
    hook = Boathook()

    async def note(event: Event, session: Any) -> None: ...

    with pytest.raises(ConfigError, match="async function, but its session is a sync one"):
        hook.on("shop", session=sessions.django())(note)
