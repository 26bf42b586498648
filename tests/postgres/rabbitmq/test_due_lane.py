"""RabbitMQ notifies senders and workers of due deliveries; lost notifications are found in PostgreSQL."""

import asyncio
import contextlib
import functools
import shutil
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from boathook.db.database import Database
from boathook.db.due_notifier import DUE_CHANNEL, notify_due
from boathook.delivery import dispatcher
from boathook.domain.due import DueRecipient, due_recipients
from boathook.domain.policy import RetryPolicy
from boathook.handlers.api import Boathook
from boathook.observability import meters
from boathook_rabbitmq.access import read_access
from boathook_rabbitmq.connection import first_connection
from boathook_rabbitmq.due_lane import DueLane, open_lane
from boathook_rabbitmq.queues import DUE_ENDPOINTS, queue_for
from boathook_rabbitmq.settings import brokers_of
from tests.brokers import PASSWORD, USER, Cluster, running_cluster
from tests.conftest import open_folder
from tests.sender_harness import (
    Reply,
    Request,
    Sink,
    add_application,
    add_deliveries,
    add_endpoint,
    running_sender,
    sender_settings,
)
from tests.support import eventually
from tests.worker_harness import accept_events, running_worker, wait_for_states

NEVER_S = 100_000.0
"""An interval at which nothing is found during a test."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    folder = open_folder()
    with running_cluster(folder, 1) as one:
        yield one
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def tables(cluster: Cluster) -> dict[str, Any]:
    """Settings of the lane, in a virtual host of the test's own, with polling so rare that it finds nothing."""
    return {
        "delivery": {"lane": "rabbitmq"},
        "buffer": {
            "hosts": cluster.hosts, "vhost": cluster.new_vhost(), "user": USER, "password": PASSWORD,
            "confirm_s": 30.0, "connect_timeout_s": 30.0,
        },
        "worker": {"poll_interval_s": NEVER_S},
    }  # fmt: skip


@pytest.fixture
def no_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "WALK_INTERVAL_S", NEVER_S)


class DroppingLane(DueLane):
    """A lane whose broker confirms every message and drops it."""

    async def _publish(self, queue: str, due: Sequence[DueRecipient]) -> None:
        pass


class Gateway:
    """The delivery lane of a gateway, counting its PostgreSQL notifications."""

    def __init__(self, lane: DueLane, db: Database) -> None:
        self.lane = lane
        self.notified = 0
        self._db = db

    async def announce(self, *recipients: str, deliver_at: datetime | None = None) -> None:
        await self.lane.announce(self._notify, due_recipients(recipients, deliver_at))

    async def _notify(self, due: Collection[DueRecipient]) -> None:
        self.notified += 1
        await notify_due(self._db, due)


@contextlib.asynccontextmanager
async def running_gateway(
    db: Database, tables: dict[str, Any], lane_class: type[DueLane] = DueLane
) -> AsyncIterator[Gateway]:
    settings = sender_settings(db.url, **tables)
    lane = lane_class(read_access(settings), confirm_s=brokers_of(settings).confirm_s)
    task = asyncio.create_task(lane.run())
    try:
        await eventually(lambda: lane.is_available)
        yield Gateway(lane, db)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until_it_relies_on_the_lane(one: dispatcher.Dispatcher[Any]) -> None:
    """Wait until a process has connected, and has looked for everything due once more."""
    await eventually(lambda: one._due.relies_on_notifier and not one.must_discover.is_set())


def outcome(name: str) -> float:
    return meters.counter("boathook_due_lane_messages_total", outcome=name).value


async def publish(tables: dict[str, Any], db: Database, *bodies: bytes) -> None:
    """Publish messages of any content to senders."""
    connection = await first_connection(open_lane(sender_settings(db.url, **tables), None)._access, purpose="test")
    for body in bodies:
        await connection.publish(DUE_ENDPOINTS, body, 30.0)
    await connection.close()


@pytest.mark.usefixtures("no_walk")
async def test_an_endpoint_and_a_handler_are_notified(db: Database, tables: dict[str, Any]):
    hook, handled = Boathook(), list[str]()

    @hook.on("shop")
    async def handle(event: Any) -> None:
        handled.append(event.id)

    worker = {key: value for key, value in tables.items() if key != "worker"}
    async with (
        Sink().open() as sink,
        running_gateway(db, tables) as gateway,
        running_sender(db, **tables) as sender,
        running_worker(db, hook, tables=worker, poll_interval_s=NEVER_S) as running,
    ):
        await until_it_relies_on_the_lane(sender)
        await until_it_relies_on_the_lane(running)
        for _ in range(2):  # an endpoint that the sender does not know, then one that it knows
            endpoint = await add_endpoint(db, sink.base)
            await add_deliveries(db, endpoint, 3, is_announced=False)
            await gateway.announce(endpoint.recipient)
            await eventually(lambda: len(sink.messages) % 3 == 0 and sink.messages)
        await eventually(lambda: len(sink.messages) == 6)
        await accept_events(db, 1, 2)
        await gateway.announce(next(iter(hook.handlers.values())).recipient)
        await eventually(lambda: len(handled) == 2)
    assert gateway.notified == 0


@pytest.mark.usefixtures("no_walk")
async def test_what_is_due_soon_is_announced_to_one_process(db: Database, tables: dict[str, Any]):
    """By a gateway and by a handler, to an endpoint and to a handler; PostgreSQL notifies of nothing."""
    hook, handled, heard = Boathook(), list[str](), list[str]()

    @hook.on("shop")
    async def handle(event: Any, tx: Any) -> None:
        soon = datetime.now(UTC) + timedelta(seconds=0.3)
        await hook.publish(tx, application="acme", type="later", payload={}, deliver_at=soon)

    @hook.on(application="acme")
    async def react(event: Any) -> None:
        handled.append(event.type)

    worker = {key: value for key, value in tables.items() if key != "worker"}
    async with (
        Sink().open() as sink,
        running_gateway(db, tables) as gateway,
        running_sender(db, **tables) as sender,
        running_worker(db, hook, tables=worker, poll_interval_s=NEVER_S) as running,
    ):
        await until_it_relies_on_the_lane(sender)
        await until_it_relies_on_the_lane(running)
        await db.listen(DUE_CHANNEL, heard.append)
        endpoint = await add_endpoint(db, sink.base, application=await add_application(db, uid="acme"))
        await accept_events(db, 1)
        await gateway.announce("handler:handle")
        await eventually(lambda: handled == ["later"])
        await eventually(lambda: len(sink.messages) == 1)
        await add_deliveries(db, endpoint, is_announced=False)
        due_at = await db.fetchval(
            "update boathook.delivery set due_at = now() + interval '0.3 s' where recipient = $1 returning due_at",
            endpoint.recipient,
        )
        await gateway.announce(endpoint.recipient, deliver_at=due_at)
        await eventually(lambda: len(sink.messages) == 2)
    assert (gateway.notified, heard) == (0, [])


async def test_without_messages_deliveries_start_only_with_the_walk(
    db: Database, tables: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    """The mutant of the test above: a broker that confirms and drops everything."""
    monkeypatch.setattr(dispatcher, "WALK_INTERVAL_S", NEVER_S)
    async with (
        Sink().open() as sink,
        running_gateway(db, tables, DroppingLane) as liar,
        running_gateway(db, tables) as gateway,
    ):
        lost, announced = await add_endpoint(db, f"{sink.base}/lost"), await add_endpoint(db, f"{sink.base}/announced")
        async with running_sender(db, **tables) as sender:
            await until_it_relies_on_the_lane(sender)
            for number in (
                1,
                2,
            ):  # what is announced first is looked up after the walk, which so sees nothing of the rest
                await add_deliveries(db, [announced, lost][:number], is_announced=False)
                await liar.announce(lost.recipient)
                await gateway.announce(announced.recipient)
                await eventually(lambda number=number: len(sink.to("/announced")) == number)
            assert not sink.to("/lost")
        monkeypatch.setattr(dispatcher, "WALK_INTERVAL_S", 0.2)
        async with running_sender(db, sender_id="s2", **tables) as sender:
            await eventually(lambda: sink.to("/lost"))
            await until_it_relies_on_the_lane(sender)
            await add_deliveries(db, lost, 20, is_announced=False)
            await liar.announce(lost.recipient)
            await eventually(lambda: len(sink.to("/lost")) == 21)
    assert liar.notified == 0


@pytest.mark.extended("waits for intervals and deadlines of the product")
@pytest.mark.usefixtures("no_walk")
async def test_retries_fall_due_through_delay_queues(db: Database, tables: dict[str, Any], cluster: Cluster):
    """Each at its own time, by another sender than the one that failed: the first is gone by then."""
    answers = [503]

    def script(_: Request) -> Reply:
        return Reply(answers[0])

    policy = RetryPolicy(delays_s=(14.0,) * 3, jitter=0.5, max_age_s=3600.0)
    async with Sink(script).open() as sink, running_gateway(db, tables) as gateway:
        endpoint = await add_endpoint(db, sink.base, retry=policy)
        delayed = queue_for(endpoint.recipient, 11.0)
        async with running_sender(db, **tables) as sender:
            await until_it_relies_on_the_lane(sender)
            await add_deliveries(db, endpoint, 6, is_announced=False)
            await gateway.announce(endpoint.recipient)
            await eventually(lambda: len(sink.messages) == 6)
            await eventually(lambda: cluster.queue(tables["buffer"]["vhost"], delayed)["messages"])
        answers[0] = 204
        async with running_sender(db, sender_id="s2", **tables):
            await eventually(lambda: len(sink.messages) == 12)
    assert gateway.notified == 0


@pytest.mark.usefixtures("no_walk")
async def test_unreadable_or_unknown_messages_are_dropped(db: Database, tables: dict[str, Any]):
    meters.reset()
    garbage = [b"", b"\xff\x00", b"{}", b"[[1, 2]]", b'[["endpoint:\\u0000", 0]]', b"[" * 100_000]
    unknown = msgspec.json.encode([("endpoint:ep_unknown", 0.0), ("handler", 0.0), ("endpoint:", 1e300)])
    async with (
        Sink().open() as sink,
        running_gateway(db, tables) as gateway,
        running_sender(db, **tables) as sender,
    ):
        await until_it_relies_on_the_lane(sender)
        await publish(tables, db, *garbage * 20, *[unknown] * 50)
        endpoint = await add_endpoint(db, sink.base)
        await add_deliveries(db, endpoint, is_announced=False)
        await gateway.announce(endpoint.recipient, endpoint.recipient)
        await eventually(lambda: sink.messages)
        assert outcome("unreadable") == 20 * len(garbage)


@pytest.mark.usefixtures("no_walk")
async def test_a_sender_without_room_notifies_another(db: Database, tables: dict[str, Any]):
    gate = asyncio.Event()
    tables["outbound"] = {"timeout_s": 300.0}
    async with (
        Sink(lambda _: Reply(gate=gate)).open() as sink,
        running_gateway(db, tables) as gateway,
        running_sender(db, **tables) as first,
        running_sender(db, sender_id="s2", **tables) as second,
    ):
        await until_it_relies_on_the_lane(first)
        await until_it_relies_on_the_lane(second)
        endpoint = await add_endpoint(db, sink.base)
        await add_deliveries(db, endpoint, 400, is_announced=False)
        await gateway.announce(endpoint.recipient)
        await eventually(functools.partial(_are_both_sending, db))
        gate.set()
        await eventually(lambda: len(sink.messages) == 400)


async def _are_both_sending(db: Database) -> bool:
    rows = await db.fetch("select distinct leased_by from boathook.delivery where state = 'leased'")
    return len(rows) == 2


@pytest.mark.usefixtures("no_walk")
@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
async def test_without_a_broker_postgresql_notifies(db: Database, tables: dict[str, Any], cluster: Cluster):
    tables = {**tables, "worker": {"poll_interval_s": 0.5}, "buffer": {**tables["buffer"], "confirm_s": 2.0}}
    async with (
        Sink().open() as sink,
        running_gateway(db, tables) as gateway,
        running_sender(db, **tables) as sender,
    ):
        endpoint = await add_endpoint(db, sink.base)
        await until_it_relies_on_the_lane(sender)
        try:
            for number in range(40):
                if number == 20:
                    cluster.nodes[0].kill()
                await add_deliveries(db, endpoint, is_announced=False)
                async with asyncio.timeout(60):
                    await gateway.announce(endpoint.recipient)
            await eventually(lambda: len(sink.messages) == 40)
            await eventually(lambda: not sender._due.relies_on_notifier)
            await add_deliveries(db, endpoint, is_announced=False)  # found by polling, although there is no walk
            await eventually(lambda: len(sink.messages) == 41)
            assert gateway.notified
            assert meters.gauge_handle("boathook_due_lane_unavailable").value == 1
        finally:
            cluster.nodes[0].start()
            cluster.wait_running()
        await eventually(lambda: gateway.lane.is_available)
        await until_it_relies_on_the_lane(sender)
        await add_deliveries(db, endpoint, is_announced=False)
        gateway.notified = 0
        await gateway.announce(endpoint.recipient)
        await eventually(lambda: len(sink.messages) == 42)
        assert gateway.notified == 0


async def test_the_worker_for_suspects_takes_no_messages(db: Database, tables: dict[str, Any]):
    hook = Boathook()

    @hook.on("shop")
    async def handle(event: Any) -> None:
        pass

    worker = {key: value for key, value in tables.items() if key != "worker"}
    async with running_worker(db, hook, tables=worker, only_suspects=True) as one:
        assert one._notifier is None
        await accept_events(db, 1)
    await wait_for_states(db, pending=1)
