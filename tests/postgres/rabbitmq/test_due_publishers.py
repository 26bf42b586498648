"""Publishers notify of their recipients by name, each with the time at which its delivery is due."""

import asyncio
import functools
from collections.abc import Collection
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest

from boathook.api.app import Api, build_app
from boathook.config import load
from boathook.db.database import Database
from boathook.db.due_notifier import DUE_CHANNEL, read_payload
from boathook.domain.due import ANY_DUE, DueRecipient, due_recipients
from boathook.domain.messages import Message
from boathook.fastapi import Webhooks
from boathook.handlers.api import Boathook, Event, Transaction
from boathook.handlers.collector import collecting_due
from boathook.handlers.operational import publish_operational_event
from boathook.handlers.outbox import Outbox
from boathook.server.in_process import RunningServer
from boathook.service.operating.operations import AuditContext, send
from tests.postgres.api_client import ApiClient, open_api_client
from tests.sender_harness import add_application, add_endpoint
from tests.support import eventually
from tests.worker_harness import accept_events, running_worker

HOUR_S = 3600.0
SOON = timedelta(seconds=0.3)


class Notifications:
    """What was notified of."""

    def __init__(self) -> None:
        self.due: list[DueRecipient] = []

    def __call__(self, due: Collection[DueRecipient] = ANY_DUE, /) -> None:
        self.due.extend(due)

    async def listen(self, db: Database) -> None:
        """Take PostgreSQL's notifications."""
        await db.listen(DUE_CHANNEL, lambda payload: self(read_payload(payload)))
        connected = (
            "select count(*) from pg_stat_activity"
            " where application_name = 'boathook:test:monitor' and datname = current_database()"
        )
        await eventually(lambda: db.fetchval(connected))


@pytest.mark.parametrize("is_fast", [True, False])
async def test_the_api_names_recipients_and_times(db: Database, is_fast: bool):
    async with open_api_client(db) as api:
        await api.ask(201, "POST", "/app", {"name": "Acme", "uid": "acme"})
        endpoint = await api.ask(201, "POST", "/app/acme/endpoint", {"url": "http://127.0.0.1:18080/hook"})
        notified = api.context.notify_due = Notifications()
        client = api if is_fast else _without_fast_route(api)
        deliver_at = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=5)
        message: dict[str, Any] = {"eventType": "invoice.paid", "payload": {}}
        for more in ({}, {"deliverAt": deliver_at.isoformat()}):
            await client.ask(202, "POST", "/app/acme/msg", message | more)
        recipient = f"endpoint:{endpoint['id']}"
        assert notified.due == [(recipient, 0.0), (recipient, deliver_at.timestamp())]


def _without_fast_route(api: ApiClient) -> ApiClient:
    client = ApiClient(api.context, "", Api(api.context, build_app()))
    client.headers["authorization"] = api.headers["authorization"]
    return client


async def test_a_refused_request_notifies_of_nothing(db: Database):
    async with open_api_client(db) as api:
        notified = api.context.notify_due = Notifications()
        await api.ask(404, "POST", "/app/acme/msg", {"eventType": "invoice.paid", "payload": {}})
        assert not notified.due


@pytest.mark.parametrize("is_sync", [False, True])
async def test_what_a_handler_publishes_is_handled_at_its_time_without_a_poll(db: Database, is_sync: bool):
    """An attempt that ends meanwhile takes nothing away from one that has published and not committed yet."""
    hook, gate, handled = Boathook(), asyncio.Event(), list[str]()

    if is_sync:

        @hook.on("shop", "slow", name="publish")
        def publish_sync(event: Event, tx: Any) -> None:
            hook.publish_sync(tx, application="acme", type="later", payload={}, deliver_at=datetime.now(UTC) + SOON)
            asyncio.run_coroutine_threadsafe(gate.wait(), loop).result()

    else:

        @hook.on("shop", "slow", name="publish")
        async def publish(event: Event, tx: Transaction) -> None:
            await hook.publish(tx, application="acme", type="later", payload={}, deliver_at=datetime.now(UTC) + SOON)
            await gate.wait()

    @hook.on("shop", "quick")
    async def end(event: Event) -> None:
        handled.append(event.type)

    @hook.on(application="acme")
    async def react(event: Event) -> None:
        handled.append(event.type)

    loop = asyncio.get_running_loop()
    async with running_worker(db, hook, poll_interval_s=HOUR_S) as worker:
        notified = Notifications()
        await notified.listen(db)
        await accept_events(db, {}, type="slow")
        worker.must_discover.set()
        await eventually(lambda: worker.running)
        await accept_events(db, {}, type="quick")
        worker.must_discover.set()
        await eventually(lambda: handled == ["quick"])
        gate.set()
        await eventually(lambda: handled == ["quick", "later"])
    ((recipient, due_at),) = set(notified.due)
    assert (recipient, due_at > 0) == ("handler:react", True)


async def test_a_block_of_code_announces_nothing_after_its_end(db: Database):
    hook = Boathook()
    await add_endpoint(db, "http://127.0.0.1:18080/", application=await add_application(db, uid="acme"))
    begin = asyncio.Event()

    async def publish_late() -> None:
        await begin.wait()
        async with db.transaction() as connection:
            await hook.publish(connection, application="acme", type="late", payload={})

    with collecting_due() as collector:
        task = asyncio.create_task(publish_late())
    assert not collector.take()
    begin.set()
    await task
    assert not collector.take()


async def test_a_route_of_fastapi_names_recipients_and_times(db: Database):
    hook, notified, noon = Boathook(), Notifications(), datetime(2036, 1, 1, 12, tzinfo=UTC)
    endpoint = await add_endpoint(db, "http://127.0.0.1:18080/", application=await add_application(db, uid="acme"))
    webhooks = Webhooks.__new__(Webhooks)
    webhooks._running = RunningServer(cast("Any", None), hook, notified)
    dependency = webhooks.publisher()
    async with db.transaction() as connection:
        publisher = await anext(dependency)
        await publisher.publish(connection, application="acme", type="x", payload={}, deliver_at=noon)
    assert not notified.due
    assert await anext(dependency, None) is None
    assert notified.due == [(endpoint.recipient, noon.timestamp())]


async def test_a_transaction_of_an_app_inside_an_attempt_keeps_its_recipients(db: Database):
    """They are notified after its commit, not after that of the attempt around it, and the other way round."""
    hook = Boathook()
    endpoint = await add_endpoint(db, "http://127.0.0.1:18080/", application=await add_application(db, uid="acme"))
    publish = functools.partial(hook.publish, application="acme", payload={})
    with collecting_due() as collector:
        async with db.transaction() as connection:
            block = Transaction(connection, due=set())
            await publish(block, type="x")
        assert block.due == set(due_recipients([endpoint.recipient]))
        assert not collector._due
        async with db.transaction() as connection:
            await publish(Transaction(connection), type="y")
    assert collector.take() == due_recipients([endpoint.recipient])


async def test_the_command_line_names_recipients_and_times(db: Database):
    endpoint = await add_endpoint(db, "http://127.0.0.1:18080/", application=await add_application(db, uid="acme"))
    notified = Notifications()
    await notified.listen(db)
    noon = datetime(2036, 1, 1, 12, tzinfo=UTC)
    for deliver_at in (None, noon):
        message = Message(application="acme", type="x", payload=b"{}", deliver_at=deliver_at)
        await send(db, load(), AuditContext(actor="test", note="why"), message)
    await eventually(lambda: notified.due == [(endpoint.recipient, 0.0), (endpoint.recipient, noon.timestamp())])


async def test_an_operational_webhook_is_announced_with_the_commit(db: Database):
    application = await add_application(db, is_operational=True)
    endpoint = await add_endpoint(db, "http://127.0.0.1:18080/", application=application)
    notified = Notifications()
    await notified.listen(db)
    async with db.transaction() as connection:
        await publish_operational_event(
            Outbox(), connection, organization="default", type="endpoint.disabled", data={"endpointId": "ep_1"}
        )
    await eventually(lambda: notified.due == [(endpoint.recipient, 0.0)])
