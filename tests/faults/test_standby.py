"""A synchronous standby hangs: nothing that it lacks is acknowledged, at first or on a repeat."""

import asyncio
import contextlib
import hashlib
from collections.abc import AsyncIterator, Iterator
from typing import Any

import asyncpg
import httpx
import psycopg
import pytest

from boathook import config
from boathook.api.publish import PublishRoute
from boathook.db import connection, database, events, server_monitor
from boathook.db.database import Database
from boathook.db.events import EventStore
from boathook.db.route_registry import Routes, read_routes
from boathook.db.sql_functions import SqlFunction
from boathook.domain import ids
from boathook.domain.errors import DatabaseUnavailable
from boathook.domain.messages import Message
from boathook.domain.model import NewEvent, Origin, ProofStrength, Receipt
from boathook.handlers import outbox
from boathook.handlers.outbox import Outbox
from boathook.ingest.intake import Intake
from boathook.service import unit_of_work
from boathook.service.operating import doctor
from boathook.service.sending.message_store import MessageStore, to_event
from tests.faults.rig.postgres import OwnServer, Standby
from tests.postgres.api_client import ApiClient, open_api_client
from tests.support import eventually

_CANCEL = vars(asyncpg.Connection)["_cancel_current_command"]
MESSAGE = {"eventType": "invoice.paid", "eventId": "one", "payload": {"n": 1}}
PUBLISH = "/app/acme/msg"
KEY = {"idempotency-key": "k"}
APPLICATION = {"name": "Beta", "uid": "beta"}


@pytest.fixture
def standby(own_server: OwnServer) -> Iterator[Standby]:
    made = Standby(own_server)
    own_server.set(synchronous_standby_names=Standby.NAME)
    yield made
    made.close()


@pytest.fixture
async def shop(own_server: OwnServer, standby: Standby) -> AsyncIterator[ApiClient]:
    """An API that does not wait long for a commit."""
    db = await Database.open(own_server.url, purpose="test", size=4, statement_timeout_s=3, is_reset=False)
    try:
        async with open_api_client(db) as api:
            await api.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
            yield api
    finally:
        await db.close()


def ask(url: str, sql: str) -> list[Any]:
    with psycopg.connect(url, autocommit=True) as admin:
        return [row[0] for row in admin.execute(sql)]


def messages(url: str) -> list[str]:
    return ask(url, "select dedup_key from boathook.event where origin = 'published' order by id")


def waiting(url: str) -> int:
    return ask(url, "select count(*) from pg_stat_activity where wait_event = 'SyncRep'")[0]


def end_waiting(url: str) -> None:
    """End the sessions waiting for the standby, as a restart does: their commits become visible."""
    ask(url, "select pg_terminate_backend(pid, 60000) from pg_stat_activity where wait_event = 'SyncRep'")


async def send(shop: ApiClient, path: str = PUBLISH, body: object = MESSAGE, **headers: str) -> int:
    with contextlib.suppress(httpx.TransportError):
        return (await shop.post(path, json=body, headers=headers)).status_code
    return 0


async def test_nothing_is_acknowledged_before_the_standby_has_it(
    shop: ApiClient, own_server: OwnServer, standby: Standby
) -> None:
    standby.pause()
    assert await send(shop, **KEY) == 503
    assert messages(own_server.url) == [], "it is seen although the standby lacks it"
    assert await send(shop, **KEY) == 503
    standby.resume()
    await eventually(lambda: waiting(own_server.url) == 0)
    await eventually(lambda: not shop.context.database.unsafe_because)
    assert await send(shop, **KEY) == 202
    own_server.kill_all()
    standby.promote()
    assert messages(standby.url) == ["one"]


async def test_a_change_through_the_api_does_not_wait_for_the_statement_timeout(
    own_server: OwnServer, standby: Standby
) -> None:
    db = await Database.open(own_server.url, purpose="test", size=4, statement_timeout_s=3600, is_reset=False)
    try:
        async with open_api_client(db) as api:
            standby.pause()
            assert await asyncio.wait_for(send(api, "/app", APPLICATION), 300) == 503
            assert waiting(own_server.url) == 1
            standby.resume()
            await eventually(lambda: waiting(own_server.url) == 0)
            await eventually(lambda: not db.unsafe_because)
            assert (await api.get("/app/beta")).status_code == 200, "it was committed later"
    finally:
        await db.close()


async def test_without_a_spool_no_sender_or_publisher_waits_for_the_statement_timeout(
    own_server: OwnServer, standby: Standby
) -> None:
    db = await Database.open(own_server.url, purpose="test", size=4, statement_timeout_s=3600, is_reset=False)
    intake = Intake(EventStore(db))
    try:
        async with open_api_client(db) as api:
            await api.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
            await intake.start()
            event = make_event(await read_routes(db))
            standby.pause()
            accepted = asyncio.create_task(intake.accept(event))
            published = asyncio.create_task(send(api))
            with pytest.raises(DatabaseUnavailable, match="commits have waited for a synchronous standby"):
                await asyncio.wait_for(accepted, 300)
            assert await asyncio.wait_for(published, 300) == 503
            assert waiting(own_server.url) == 2
            with pytest.raises(DatabaseUnavailable, match="have waited for a synchronous standby"):
                await intake.accept(event)
            assert waiting(own_server.url) == 2, "the next ones do not wait"
            standby.resume()
            await eventually(lambda: waiting(own_server.url) == 0)
            await eventually(lambda: not db.unsafe_because)
            assert (await intake.accept(event)).event_id == event.id, "sending it again is safe"
            assert await send(api) == 409, "it was committed later"
            assert ask(own_server.url, "select count(*) from boathook.event") == [2]
    finally:
        await db.close()
        await intake.drain()


@pytest.mark.extended("stops what a synchronous standby receives, again and again; the first of its kind stays")
async def test_a_cancelled_commit_is_visible_without_the_standby(
    shop: ApiClient, own_server: OwnServer, standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant of the test above, which shows that it can fail."""
    monkeypatch.setattr(connection.SafeConnection, "_cancel_current_command", _CANCEL)
    monkeypatch.setattr(server_monitor, "MAX_COMMIT_S", 3600.0)  # otherwise the connection is closed before
    standby.pause()
    assert await send(shop) == 503
    assert messages(own_server.url) == ["one"]


async def make_visible(shop: ApiClient, own_server: OwnServer, *request: Any, **headers: str) -> None:
    """Let a request's commit be seen before the standby has it, as a restart of the primary does."""
    first = asyncio.create_task(send(shop, *request, **headers))
    await eventually(lambda: waiting(own_server.url) == 1)
    end_waiting(own_server.url)
    assert await first == 503


@pytest.mark.extended("stops what a synchronous standby receives, again and again; the first of its kind stays")
async def test_commits_that_wait_do_not_use_up_the_connections(
    shop: ApiClient, own_server: OwnServer, standby: Standby
) -> None:
    standby.pause()
    first = asyncio.create_task(send(shop, **KEY))
    await eventually(lambda: shop.context.database.unsafe_because)
    for _ in range(10):
        assert await send(shop, **KEY) == 503
    assert await first == 503
    assert waiting(own_server.url) == 1
    assert await send_reading(shop) == 200, "what is there can be read meanwhile"


async def send_reading(shop: ApiClient) -> int:
    return (await shop.get("/app/acme")).status_code


@pytest.mark.extended("stops what a synchronous standby receives, again and again; the first of its kind stays")
async def test_too_many_waiting_commits_stop_new_transactions(
    shop: ApiClient, own_server: OwnServer, standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "MAX_STALLED", 1)
    db = shop.context.database
    standby.pause()
    with pytest.raises(DatabaseUnavailable):
        await db.execute("create table one ()")
    await eventually(lambda: db.unsafe_because)
    with pytest.raises(DatabaseUnavailable, match="have waited for a synchronous standby"):
        await db.execute("create table two ()")
    standby.resume()
    await eventually(lambda: not db.unsafe_because)
    await db.execute("create table two ()")


async def cancel_waiting(shop: ApiClient, own_server: OwnServer, standby: Standby) -> int:
    """Return the response to a message whose commit is cancelled while waiting."""
    standby.pause()
    first = asyncio.create_task(send(shop, **KEY))
    await eventually(lambda: waiting(own_server.url) == 1)
    ask(own_server.url, "select pg_cancel_backend(pid) from pg_stat_activity where wait_event = 'SyncRep'")
    status = await first
    assert messages(own_server.url) == ["one"]
    return status


@pytest.mark.extended("stops what a synchronous standby receives, again and again; the first of its kind stays")
async def test_a_commit_that_an_operator_cancels_is_not_acknowledged(
    shop: ApiClient, own_server: OwnServer, standby: Standby
) -> None:
    assert await cancel_waiting(shop, own_server, standby) == 503


@pytest.mark.extended("stops what a synchronous standby receives, again and again; the first of its kind stays")
async def test_without_the_warning_check_a_cancelled_commit_is_acknowledged(
    shop: ApiClient, own_server: OwnServer, standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant of the test above: PostgreSQL only warns, and answers as to any commit."""
    monkeypatch.setattr(database, "_check_replicated", lambda _connection: None)
    assert await cancel_waiting(shop, own_server, standby) == 202


async def offer(shop: ApiClient, event: NewEvent, within_s: float = 2.0) -> Receipt:
    (receipt,) = await EventStore(shop.context.database).append([event], within_s=within_s)
    return receipt


async def make_received(shop: ApiClient, own_server: OwnServer, standby: Standby, *, is_forgotten: bool) -> NewEvent:
    """Return an event that is seen before the standby has it; where it is forgotten, its key is not remembered."""
    event = make_event(await read_routes(shop.context.database))
    standby.pause()
    first = asyncio.create_task(offer(shop, event, 60.0))
    await eventually(lambda: waiting(own_server.url) == 1)
    end_waiting(own_server.url)
    with pytest.raises(DatabaseUnavailable):
        await first
    if is_forgotten:  # as of an event that comes out of a spool after weeks
        with psycopg.connect(own_server.url, options="-c synchronous_commit=local") as admin:
            admin.execute("delete from boathook.dedup")
    return event


@pytest.mark.extended("stops what a synchronous standby receives, again and again; the first of its kind stays")
@pytest.mark.parametrize(("is_forgotten", "statement"), [(False, "append_events"), (True, "find_stored")])
async def test_without_replication_a_repeated_event_is_acknowledged_at_once(
    is_forgotten: bool, statement: str,
    shop: ApiClient, own_server: OwnServer, standby: Standby, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Mutant of the test below: reading an event writes no WAL record."""
    event = await make_received(shop, own_server, standby, is_forgotten=is_forgotten)
    silent = (
        events.SQL[statement].replace(" for share", "").replace(", pg_logical_emit_message(true, 'boathook', '')", "")
    )
    assert silent != events.SQL[statement]
    monkeypatch.setitem(events.SQL, statement, silent)
    assert (await offer(shop, event, 60.0)).event_id == event.id


@pytest.mark.extended("stops what a synchronous standby receives, again and again; the first of its kind stays")
@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_a_repeated_event_waits_for_the_standby(
    is_forgotten: bool, shop: ApiClient, own_server: OwnServer, standby: Standby
) -> None:
    event = await make_received(shop, own_server, standby, is_forgotten=is_forgotten)
    with pytest.raises(DatabaseUnavailable):
        await offer(shop, event)
    standby.resume()
    await eventually(lambda: waiting(own_server.url) == 0)
    assert (await offer(shop, event, 60.0)).event_id == event.id


async def offer_message(shop: ApiClient, message: NewEvent, within_s: float = 2.0) -> Receipt:
    (receipt,) = await MessageStore(lambda: shop.context.database, Outbox()).append([message], within_s=within_s)
    return receipt


async def make_buffered(shop: ApiClient, own_server: OwnServer, standby: Standby, *, is_forgotten: bool) -> NewEvent:
    """Return a message from a buffer that is seen before the standby has it."""
    application = ids.read(ids.APPLICATION, (await shop.ask(200, "GET", "/app/acme"))["id"])
    message = to_event(
        shop.context.outbox.draft(Message(application="acme", type="thing.done", payload={})), application
    )
    standby.pause()
    first = asyncio.create_task(offer_message(shop, message, 60.0))
    await eventually(lambda: waiting(own_server.url) == 1)
    end_waiting(own_server.url)
    with pytest.raises(DatabaseUnavailable):
        await first
    if is_forgotten:
        with psycopg.connect(own_server.url, options="-c synchronous_commit=local") as admin:
            admin.execute("delete from boathook.dedup")
    return message


@pytest.mark.extended("stops what a synchronous standby receives, again and again; the first of its kind stays")
@pytest.mark.parametrize("is_forgotten", [False, True])
async def test_a_message_drained_again_waits_for_the_standby(
    is_forgotten: bool, shop: ApiClient, own_server: OwnServer, standby: Standby
) -> None:
    message = await make_buffered(shop, own_server, standby, is_forgotten=is_forgotten)
    with pytest.raises(DatabaseUnavailable):
        await offer_message(shop, message)
    standby.resume()
    await eventually(lambda: waiting(own_server.url) == 0)
    assert (await offer_message(shop, message, 60.0)).event_id == message.id


@pytest.mark.extended("stops what a synchronous standby receives, again and again; the first of its kind stays")
async def test_without_replication_a_drained_message_is_acknowledged_at_once(
    shop: ApiClient, own_server: OwnServer, standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant of the test above: publish_messages writes nothing about a message that it knows."""

    async def wait_for_nothing(*_: object) -> None:
        pass

    monkeypatch.setattr(MessageStore, "_replicate", wait_for_nothing)
    message = await make_buffered(shop, own_server, standby, is_forgotten=False)
    assert (await offer_message(shop, message, 60.0)).event_id == message.id


def make_event(routes: Routes) -> NewEvent:
    identifier, body = ids.make(1_700_000_000_000, 7), b"{}"
    return NewEvent(
        id=identifier, source="shop", application=None, type="thing.done", dedup_key="one", key_hash=identifier,
        replay_hash=None, grade=ProofStrength.BODY, origin=Origin.RECEIVED, headers="{}", content_type="application/json",
        body=body, body_sha256=hashlib.sha256(body).digest(), deliveries=(), routes_version=routes.version,
    )  # fmt: skip


@pytest.mark.extended("stops what a synchronous standby receives, again and again; the first of its kind stays")
async def test_the_doctor_warns_of_an_asynchronous_standby(own_server: OwnServer, standby: Standby) -> None:
    settings = config.load(None, {"database.url": own_server.url})

    async def look() -> tuple[str, str]:
        db = await Database.open(own_server.url, purpose="doctor", size=2)
        found = {finding.check: finding async for finding in doctor.examine(settings, db)}
        await db.close()
        return found["standbys"].verdict, found["standbys"].found

    assert await look() == ("ok", "1 connected, and commits wait for standby")
    own_server.set(synchronous_standby_names="another")
    verdict, found = await look()
    assert verdict == "warn"
    assert "none of the 1 connected is one of synchronous_standby_names" in found
    own_server.set(synchronous_standby_names="")
    verdict, found = await look()
    assert verdict == "warn"
    assert "promoting one loses" in found


REPEATS = [
    pytest.param((PUBLISH, MESSAGE), {}, 409, id="the message's own id"),
    pytest.param((PUBLISH, {**MESSAGE, "eventId": None}), KEY, 202, id="the key of a message"),
    pytest.param(("/app", APPLICATION), KEY, 201, id="the key of an application"),
    pytest.param(("/app?get_if_exists=true", APPLICATION), {}, 200, id="what exists already"),
]


@pytest.mark.extended("stops what a synchronous standby receives, again and again; the first of its kind stays")
@pytest.mark.parametrize(("request_", "headers", "status"), REPEATS)
async def test_a_repeated_request_waits_for_the_standby(
    request_: tuple[Any, ...], headers: dict[str, str], status: int,
    shop: ApiClient, own_server: OwnServer, standby: Standby,
) -> None:  # fmt: skip
    standby.pause()
    await make_visible(shop, own_server, *request_, **headers)
    assert await send(shop, *request_, **headers) == 503
    standby.resume()
    await eventually(lambda: waiting(own_server.url) == 0)
    await eventually(lambda: not shop.context.database.unsafe_because)
    assert await send(shop, *request_, **headers) == status


NOT_IN_A_GROUP: Any = staticmethod(lambda _scope: None)
"""In the place of `PublishRoute._read_head`: a group locks the row of the token, whose transaction waits by itself."""


@pytest.mark.extended("stops what a synchronous standby receives, again and again; the first of its kind stays")
@pytest.mark.parametrize("mark", ["now", "pg_current_xact_id"])
async def test_without_a_wal_record_a_repeat_is_acknowledged_at_once(
    mark: str, shop: ApiClient, own_server: OwnServer, standby: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant of the test above; even a transaction id alone waits for nothing."""
    monkeypatch.setattr(PublishRoute, "_read_head", NOT_IN_A_GROUP)
    monkeypatch.setattr(outbox, "REPLICATE", SqlFunction(mark))
    monkeypatch.setattr(outbox, "REPLICATE_ARGUMENTS", ())
    standby.pause()
    await make_visible(shop, own_server, **KEY)
    assert await send(shop, **KEY) == 202
    own_server.kill_all()
    standby.promote()
    assert messages(standby.url) == []


@pytest.mark.extended("stops what a synchronous standby receives, again and again; the first of its kind stays")
@pytest.mark.parametrize(
    ("request_", "status"), [((PUBLISH, MESSAGE), 409), (("/app?get_if_exists=true", APPLICATION), 200)]
)
async def test_without_replication_existing_rows_are_acknowledged_at_once(
    request_: tuple[Any, ...], status: int,
    shop: ApiClient, own_server: OwnServer, standby: Standby, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Mutant of the cases above that are no messages, or are answered with 409."""

    async def read_only(_connection: object) -> None:
        pass

    monkeypatch.setattr(PublishRoute, "_read_head", NOT_IN_A_GROUP)
    monkeypatch.setattr(unit_of_work, "replicate_reads", read_only)
    standby.pause()
    await make_visible(shop, own_server, *request_)
    assert await send(shop, *request_) == status
