"""Events accepted while PostgreSQL is unavailable go through a real broker: once, in order, and losses are noticed."""

import asyncio
import contextlib
import dataclasses
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest

from boathook.config import load
from boathook.db import buffer_marks
from boathook.db.database import Database
from boathook.db.events import EventStore
from boathook.domain import ids
from boathook.domain.errors import DatabaseUnavailable, SpoolUnavailable, ValueRejected
from boathook.domain.messages import Message
from boathook.domain.model import Accepted, BufferMark, Duplicate, NewDelivery, NewEvent, Receipt
from boathook.handlers.outbox import Outbox
from boathook.ingest.event_writer import EventWriter
from boathook.ingest.intake import Intake, Mode
from boathook.ingest.spool_records import encode
from boathook.observability import meters
from boathook.service.operating.doctor.handlers import CheckStatus
from boathook.service.sending.message_store import MessageStore, to_event
from boathook.spool.segment_store import SegmentStore, SpoolLimits
from boathook.spool.spool import Spool
from boathook_rabbitmq import administration, doctor, gateway_buffer
from boathook_rabbitmq.access import BrokerAccess
from boathook_rabbitmq.batch import UNNUMBERED, decode_batch, encode_batch
from boathook_rabbitmq.buffer import BrokerBuffer
from boathook_rabbitmq.connection import BrokerConnection, first_connection
from boathook_rabbitmq.drain import BufferDrain
from boathook_rabbitmq.errors import BrokerMisconfigured, BrokerUnavailable
from boathook_rabbitmq.gateway_buffer import BrokerFirstBuffer
from boathook_rabbitmq.queues import ALL_QUEUES, BUFFER_QUEUES, REFUSED_QUEUE, Arguments, arguments_of
from tests.brokers import PASSWORD, USER, Cluster, control, running_cluster
from tests.conftest import open_folder
from tests.faults.rig.proxy import Proxy
from tests.postgres.api_client import open_api_client
from tests.postgres.db.test_events import event
from tests.support import eventually

QUEUE = BUFFER_QUEUES[3]
LIMITS = SpoolLimits(segment_bytes=4096, max_disk_used=1.0)
CONFIRM_S = 5.0
"""A busy machine may take long to sync; tests of the deadline set a shorter one."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """One node: enough for everything but the loss of a host."""
    folder = open_folder()
    with running_cluster(folder, 1) as one:
        yield one
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def access(cluster: Cluster) -> BrokerAccess:
    """A virtual host of the test's own."""
    hosts = tuple(node.host for node in cluster.nodes)
    return BrokerAccess(hosts=hosts, vhost=cluster.new_vhost(), user=USER, password=PASSWORD, timeout_s=30.0)


@pytest.fixture
def wire(cluster: Cluster) -> Iterator[Proxy]:
    """The network between gateway and broker."""
    with Proxy(cluster.nodes[0].host) as one:
        yield one


class Store:
    """The event store, which can be away, and can refuse keys."""

    def __init__(self, db: Database) -> None:
        self._store = EventStore(db)
        self.is_away = False
        self.refused: set[str] = set()
        self.order: list[str] = []
        """Keys in the order of their first commit through this store."""

    async def append(self, batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        if self.is_away:
            raise DatabaseUnavailable("away")
        if self.refused & {one.dedup_key for one in batch}:
            raise ValueRejected("a row that cannot be")
        receipts = await self._store.append(batch, within_s=60.0)
        self.order += [one.dedup_key for one in batch if one.dedup_key not in self.order]
        return receipts


def _fail(*_: object) -> None:
    raise SpoolUnavailable("the disk fails")


class Gateway:
    """The parts of a gateway under test: an intake with its buffer, and the drain of the shared queues."""

    drain_class = BufferDrain

    def __init__(
        self, db: Database, access: BrokerAccess, *, spool: Path | None = None, confirm_s: float = CONFIRM_S
    ) -> None:
        self.store = Store(db)
        self.db = db
        self.looks = 0
        """How often it has asked what has arrived."""
        self.access = access
        self.buffer = BrokerFirstBuffer(
            access,
            queue=QUEUE,
            confirm_s=confirm_s,
            spool=None if spool is None else Spool(SegmentStore(spool, LIMITS)),
            read_marks=self._read_marks,
        )
        self.messages = MessageStore(self._database, Outbox())
        self.intake = Intake(self.store, reroute=_route, messages=self.messages, buffer=self.buffer, within_s=30.0)
        self._drain: asyncio.Task[None] | None = None

    def _database(self) -> Database:
        if self.store.is_away:
            raise DatabaseUnavailable("away")
        return self.db

    async def _read_marks(self, series: Sequence[int]) -> dict[int, BufferMark]:
        if self.store.is_away:
            raise DatabaseUnavailable("away")
        self.looks += 1
        return await buffer_marks.read(self.db, series)

    async def _advance_mark(self, *values) -> buffer_marks.Gap:
        return await buffer_marks.advance(self.db, *values)

    async def start(self) -> None:
        await self.intake.start()
        await eventually(lambda: not self.buffer.broker.is_unavailable)

    def start_drain(self) -> None:
        drain = self.drain_class(
            self.access, EventWriter(self.store, _route, self.messages), self._advance_mark,
            is_available=lambda: not self.store.is_away, note_stored=self.intake.note_stored,
        )  # fmt: skip
        self._drain = asyncio.create_task(drain.run())

    async def stop_drain(self) -> None:
        if self._drain is not None:
            self._drain.cancel()
            await asyncio.wait([self._drain])
            self._drain = None

    async def accept(self, *keys: str) -> list[Receipt]:
        return [await self.intake.accept(event(key)) for key in keys]

    async def accept_while_away(self, *keys: str) -> None:
        """Accept events during an outage of PostgreSQL, and end the outage."""
        self.store.is_away = True
        receipts = await self.accept(*keys)
        assert all(isinstance(one, Accepted) and one.is_spooled for one in receipts)
        self.store.is_away = False

    async def direct(self) -> None:
        await eventually(lambda: self.intake.mode is Mode.DIRECT)

    async def stored(self) -> list[str]:
        """Return the keys stored in PostgreSQL, in the order of storing."""
        rows = await self.db.fetch("select dedup_key from boathook.event")
        keys = [row["dedup_key"] for row in rows]
        assert len(set(keys)) == len(keys), "an event is there twice"
        return sorted(keys, key=lambda key: self.store.order.index(key) if key in self.store.order else -1)


async def _route(events: Sequence[NewEvent]) -> list[NewEvent]:
    return [msgspec.structs.replace(one, routes_version=1, deliveries=(NewDelivery("handler:x"),)) for one in events]


@contextlib.asynccontextmanager
async def running(gateway: Gateway, *, drains: bool = True) -> AsyncIterator[Gateway]:
    meters.reset()
    await gateway.start()
    if drains:
        gateway.start_drain()
    try:
        yield gateway
    finally:
        await gateway.stop_drain()
        gateway.store.is_away = False
        await gateway.intake.drain()


def counted(name: str, **labels: str) -> float:
    return meters.counter(name, **labels).value


def through(access: BrokerAccess, wire: Proxy, timeout_s: float = 30.0) -> BrokerAccess:
    return dataclasses.replace(access, hosts=(("127.0.0.1", wire.port),), timeout_s=timeout_s)


async def messages(access: BrokerAccess, queue: str) -> int:
    connection = await first_connection(access, purpose="test")
    try:
        return await connection.find(queue)
    finally:
        await connection.close()


async def take_out(access: BrokerAccess, queue: str, number: int) -> list[bytes]:
    """Remove messages with events from a queue, as a broker does that loses them."""
    connection = await first_connection(access, purpose="test")
    found: list[bytes] = []
    try:
        await connection.consume([queue], 1)
        while len(found) < number:
            delivery = await connection.next(60.0)
            assert delivery is not None, "the queue has no more messages"
            await connection.acknowledge(delivery)
            if decode_batch(delivery.body).payloads:
                found.append(delivery.body)
    finally:
        await connection.close()
    return found


async def take_out_checkpoint(access: BrokerAccess, queue: str) -> None:
    """Remove the next checkpoint of a series from a queue."""
    connection = await first_connection(access, purpose="test")
    try:
        await connection.consume([queue], 1)
        while True:
            delivery = await connection.next(60.0)
            assert delivery is not None, "the queue has no more messages"
            await connection.acknowledge(delivery)
            batch = decode_batch(delivery.body)
            if batch.series != UNNUMBERED and not batch.payloads:
                return
    finally:
        await connection.close()


async def put_back(access: BrokerAccess, queue: str, *bodies: bytes) -> None:
    connection = await first_connection(access, purpose="test")
    try:
        for body in bodies:
            await connection.publish(queue, body, CONFIRM_S)
    finally:
        await connection.close()


class TestOutage:
    async def test_events_are_drained_from_the_broker_once_and_in_order(self, db: Database, access: BrokerAccess):
        async with running(Gateway(db, access)) as gateway:
            await gateway.accept("before")
            await gateway.accept_while_away(*map(str, range(40)))
            await gateway.direct()
            await gateway.accept("after")
            assert await gateway.stored() == ["before", *map(str, range(40)), "after"]
            assert counted("boathook_buffer_lost_total") == 0
            assert counted("boathook_buffer_appended_total") == 40

    async def test_concurrent_events_share_messages(self, db: Database, access: BrokerAccess):
        async with running(Gateway(db, access), drains=False) as gateway:
            gateway.store.is_away = True
            await gateway.accept("first")
            await asyncio.gather(*(gateway.accept(str(number)) for number in range(300)))
            assert await messages(access, QUEUE) < 50
            gateway.store.is_away = False
            gateway.start_drain()
            await gateway.direct()
            assert len(await gateway.stored()) == 301

    async def test_messages_are_drained_with_events_and_repeats_reported(self, db: Database, access: BrokerAccess):
        async with open_api_client(db) as api:
            made = await api.ask(201, "POST", "/app", {"name": "Acme"})
            await api.ask(201, "POST", f"/app/{made['id']}/endpoint", {"url": "http://127.0.0.1:18080/hook"})
            await api.ask(201, "POST", "/operational-webhook/endpoint", {"url": "http://127.0.0.1:18080/ops"})
        outbox, target = Outbox(), ids.read(ids.APPLICATION, made["id"])
        one, other, late = (
            to_event(outbox.draft(Message(application=made["id"], type="t", payload={}, id=uid)), target)
            for uid in ("a", "b", "a")
        )
        async with running(Gateway(db, access)) as gateway:
            gateway.store.is_away = True
            for taken in (event("before"), one, event("between"), other, late):
                receipt = await gateway.intake.accept(taken)
                assert isinstance(receipt, Accepted)
                assert receipt.is_spooled
            gateway.store.is_away = False
            await gateway.direct()
        rows = await db.fetch("select id from boathook.event where application = $1 order by id", made["id"])
        assert {row["id"] for row in rows} == {one.id, other.id}
        assert await db.fetchval("select count(*) from boathook.event where source is not null") == 2
        assert await db.fetchval("select count(*) from boathook.event where type = 'message.duplicate'") == 1
        assert await db.fetchval("select count(*) from boathook.delivery where recipient like 'endpoint:%'") == 3

    async def test_another_gateway_drains_a_dead_ones_events(self, db: Database, access: BrokerAccess):
        async with running(Gateway(db, access), drains=False) as dead:
            dead.store.is_away = True
            await dead.accept("a", "b")
            async with running(Gateway(db, access)) as other:
                await eventually(lambda: _has(other, ["a", "b"]))

    async def test_two_outages_are_two_series(self, db: Database, access: BrokerAccess):
        async with running(Gateway(db, access)) as gateway:
            for key in ("a", "b"):
                await gateway.accept_while_away(key)
                await gateway.direct()
            assert await gateway.stored() == ["a", "b"]
            assert await db.fetchval("select count(*) from boathook.buffer_mark") == 2


async def _has(gateway: Gateway, keys: list[str]) -> bool:
    return await gateway.stored() == keys


class TestBrokerAway:
    async def test_events_go_to_disk_when_the_broker_stalls_and_keep_their_order(
        self, db: Database, access: BrokerAccess, wire: Proxy, tmp_path: Path
    ):
        gateway = Gateway(db, through(access, wire, 2.0), spool=tmp_path, confirm_s=0.5)
        async with running(gateway):
            gateway.store.is_away = True
            await gateway.accept("a", "b")
            wire.set(is_stalled=True)
            await asyncio.wait_for(gateway.accept("c", "d"), 60)
            assert gateway.buffer.spool is not None
            assert gateway.buffer.spool.depth.records == 2
            wire.heal()
            await eventually(lambda: not gateway.buffer.broker.is_unavailable)
            await gateway.accept("e")
            assert gateway.buffer.spool.depth.records == 3, "newer events follow older ones"
            gateway.store.is_away = False
            await gateway.direct()
            assert await gateway.stored() == ["a", "b", "c", "d", "e"]

    async def test_events_are_refused_without_a_disk_and_never_hang(
        self, db: Database, access: BrokerAccess, wire: Proxy
    ):
        gateway = Gateway(db, through(access, wire, 2.0), confirm_s=0.5)
        async with running(gateway):
            gateway.store.is_away = True
            wire.set(is_stalled=True)
            with pytest.raises(BrokerUnavailable):
                await asyncio.wait_for(gateway.accept("a"), 60)
            assert gateway.buffer.is_rejecting
            assert "no broker accepts events" in gateway.buffer.rejection_reason
            wire.heal()
            await eventually(lambda: not gateway.buffer.broker.is_unavailable)
            await gateway.accept("b")

    async def test_newer_events_are_stored_first_while_the_broker_is_down(
        self, db: Database, access: BrokerAccess, wire: Proxy, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(gateway_buffer, "LEAVE_AFTER_S", 0.5)
        gateway = Gateway(db, through(access, wire, 2.0), confirm_s=0.5)
        async with running(gateway):
            gateway.store.is_away = True
            await gateway.accept("old")
            wire.set(is_refusing=True)
            wire.reset()
            await eventually(lambda: gateway.buffer.broker.is_unavailable)
            gateway.store.is_away = False
            await gateway.direct()
            await gateway.accept("new")
            wire.heal()
            await eventually(lambda: _has_all(gateway, {"old", "new"}))
            await gateway.buffer.adopt()
            assert counted("boathook_buffer_lost_total") == 0

    async def test_a_broker_accepts_events_while_older_ones_are_on_a_failed_disk(
        self, db: Database, access: BrokerAccess, wire: Proxy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ):
        gateway = Gateway(db, through(access, wire, 2.0), spool=tmp_path, confirm_s=0.5)
        async with running(gateway):
            gateway.store.is_away = True
            wire.set(is_stalled=True)
            await asyncio.wait_for(gateway.accept("a"), 60)
            wire.heal()
            await eventually(lambda: not gateway.buffer.broker.is_unavailable)
            monkeypatch.setattr(SegmentStore, "write", _fail)
            await eventually(lambda: gateway.accept("b"))
            assert gateway.buffer.broker.waiting == 1
            gateway.store.is_away = False
            await gateway.direct()
            assert set(await gateway.stored()) == {"a", "b"}

    @pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
    async def test_events_go_to_disk_when_the_broker_blocks_on_memory(
        self, db: Database, access: BrokerAccess, cluster: Cluster, tmp_path: Path
    ):
        gateway = Gateway(db, access, spool=tmp_path, confirm_s=1.0)
        async with running(gateway):
            gateway.store.is_away = True
            await asyncio.to_thread(control, cluster.nodes[0], "set_vm_memory_high_watermark", "0.0000001")
            try:
                await asyncio.wait_for(gateway.accept("a", "b"), 120)
                assert gateway.buffer.spool is not None
                assert gateway.buffer.spool.depth.records == 2
            finally:
                await asyncio.to_thread(control, cluster.nodes[0], "set_vm_memory_high_watermark", "0.4")
            gateway.store.is_away = False
            await gateway.direct()
            assert await gateway.stored() == ["a", "b"]

    async def test_a_gateway_starts_without_a_broker(self, db: Database, access: BrokerAccess, tmp_path: Path):
        nowhere = dataclasses.replace(access, hosts=(("127.0.0.1", 1),))
        gateway = Gateway(db, nowhere, spool=tmp_path)
        await gateway.intake.start()
        gateway.store.is_away = True
        await gateway.accept("a")
        assert "no broker accepts events" in gateway.buffer.warning
        gateway.store.is_away = False
        await gateway.direct()
        assert await gateway.stored() == ["a"]
        await gateway.intake.drain()


async def _has_all(gateway: Gateway, keys: set[str]) -> bool:
    return set(await gateway.stored()) == keys


class AcknowledgesBeforeTheCommit(BufferDrain):
    """A mutant: the broker may delete a message before PostgreSQL has its events."""

    async def _store(self, connection, group, timeout_s) -> None:
        for delivery, _ in group:
            await connection.acknowledge(delivery)
        await super()._store(connection, group, timeout_s)


class TestDrain:
    @pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
    async def test_a_drain_dying_between_commit_and_ack_stores_once(
        self, db: Database, access: BrokerAccess, monkeypatch: pytest.MonkeyPatch
    ):
        deaths = 0
        acknowledge = BrokerConnection.acknowledge

        async def die(self, delivery) -> None:
            nonlocal deaths
            if decode_batch(delivery.body).payloads and deaths < 10:
                deaths += 1
                raise BrokerUnavailable("it has died")
            await acknowledge(self, delivery)

        monkeypatch.setattr(BrokerConnection, "acknowledge", die)
        async with running(Gateway(db, access)) as gateway:
            await gateway.accept_while_away("a", "b", "c")
            await gateway.direct()
            await eventually(lambda: deaths == 10 and _is_empty(access))
            assert await gateway.stored() == ["a", "b", "c"]
            assert await db.fetchval("select count(*) from boathook.delivery") == 3
            assert counted("boathook_buffer_lost_total") == 0

    @pytest.mark.parametrize("drain", [BufferDrain, AcknowledgesBeforeTheCommit])
    async def test_a_failed_commit_loses_nothing_unless_acknowledged_first(
        self, db: Database, access: BrokerAccess, drain: type[BufferDrain]
    ):
        gateway = Gateway(db, access)
        gateway.drain_class = drain
        async with running(gateway, drains=False):
            gateway.store.is_away = True
            await gateway.accept("a", "b")
            fails = _FailsOnce(gateway.store)
            gateway.store.is_away = False
            gateway.start_drain()
            await eventually(lambda: fails.has_failed)
            await put_back(access, QUEUE, encode_batch(UNNUMBERED, 1, [encode(event("last"))]))
            await eventually(lambda: _has_last(gateway))
            found = await gateway.stored()
        assert found == ["a", "b", "last"] if drain is BufferDrain else "a" not in found

    async def test_no_queue_is_drained_while_postgresql_is_down(self, db: Database, access: BrokerAccess):
        async with running(Gateway(db, access)) as gateway:
            gateway.store.is_away = True
            await gateway.accept("a")
            await eventually(lambda: messages(access, QUEUE))

    async def test_a_rejected_event_is_kept_and_stored_once_returned(
        self, db: Database, access: BrokerAccess, cluster: Cluster
    ):
        async with running(Gateway(db, access)) as gateway:
            gateway.store.refused = {"b"}
            await gateway.accept_while_away("a", "b", "c")
            await gateway.direct()
            assert await gateway.stored() == ["a", "c"]
            assert counted("boathook_buffer_drained_total", outcome="refused") == 1
            gateway.store.refused = set()
            settings = settings_of(cluster, access)
            assert await administration.return_refused(settings) == administration.ReturnedBatches(1, 0)
            await eventually(lambda: _has_all(gateway, {"a", "b", "c"}))
            assert counted("boathook_buffer_lost_total") == 0


class _FailsOnce:
    """A store whose first batch fails."""

    def __init__(self, store: Store) -> None:
        self.has_failed = False
        self._append = store.append
        store.append = self.append  # type: ignore[method-assign]

    async def append(self, batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        if batch and not self.has_failed:
            self.has_failed = True
            raise DatabaseUnavailable("it fails")
        return await self._append(batch, within_s=within_s)


async def _has_last(gateway: Gateway) -> bool:
    return "last" in await gateway.stored()


async def _is_empty(access: BrokerAccess) -> bool:
    return await messages(access, QUEUE) == 0


class MarksOnlyWhatItWaitsFor(BrokerBuffer):
    """A mutant: no checkpoint ends what was left behind."""

    async def publish_checkpoints(self) -> None:
        left, self._left_behind = self._left_behind, {}
        await super().publish_checkpoints()
        self._left_behind = left


class RemembersTheLastOnly(BrokerBuffer):
    """A mutant: what was left behind earlier is forgotten."""

    def leave_behind(self) -> int:
        self._left_behind.clear()
        return super().leave_behind()


class TestLoss:
    async def test_a_missing_message_is_counted_when_a_later_one_arrives(self, db: Database, access: BrokerAccess):
        async with running(Gateway(db, access), drains=False) as gateway:
            gateway.store.is_away = True
            await gateway.accept("a", "b", "c")
            first, _, third = await take_out(access, QUEUE, 3)
            await put_back(access, QUEUE, first, third)
            gateway.store.is_away = False
            gateway.start_drain()
            await gateway.direct()
            assert await gateway.stored() == ["a", "c"]
            await eventually(
                lambda: counted("boathook_buffer_lost_total") == 1
            )  # the mark is seen before it is counted
            assert (await buffer_marks.count_lost(db)).lost == 1
            assert (await doctor.compare(db)).verdict is CheckStatus.WARN

    async def test_missing_messages_at_the_end_are_counted_and_hold_nothing_up(
        self, db: Database, access: BrokerAccess
    ):
        async with running(Gateway(db, access), drains=False) as gateway:
            gateway.store.is_away = True
            await gateway.accept("a", "b", "c")
            first, *_ = await take_out(access, QUEUE, 3)
            await put_back(access, QUEUE, first)
            gateway.store.is_away = False
            gateway.start_drain()
            await gateway.direct()
            assert await gateway.stored() == ["a"]
            await eventually(
                lambda: counted("boathook_buffer_lost_total") == 2
            )  # the mark is seen before it is counted

    async def test_missing_messages_are_noticed_though_their_checkpoint_is_missing_too(
        self, db: Database, access: BrokerAccess
    ):
        async with running(Gateway(db, access), drains=False) as gateway:
            await gateway.accept_while_away("a", "b", "c")
            await take_out(access, QUEUE, 3)
            await take_out_checkpoint(access, QUEUE)
            gateway.start_drain()
            await gateway.direct()
            await eventually(lambda: counted("boathook_buffer_lost_total") == 3)
            assert gateway.buffer.waiting_events == 0
            assert await gateway.stored() == []

    async def test_mutant_without_a_repetition_they_are_not(
        self, db: Database, access: BrokerAccess, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("boathook_rabbitmq.buffer.REPEAT_S", 1e9)
        async with running(Gateway(db, access), drains=False) as gateway:
            await gateway.accept_while_away("a", "b", "c")
            await take_out(access, QUEUE, 3)
            await take_out_checkpoint(access, QUEUE)
            gateway.start_drain()
            looks = gateway.looks
            await eventually(lambda: gateway.looks > looks + 100)
            assert (counted("boathook_buffer_lost_total"), gateway.buffer.waiting_events) == (0, 3)

    async def test_a_checkpoint_is_not_repeated_behind_messages(
        self, db: Database, access: BrokerAccess, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("boathook_rabbitmq.buffer.REPEAT_S", 0.0)
        async with running(Gateway(db, access), drains=False) as gateway:
            await gateway.accept_while_away("a")
            looks = gateway.looks
            await eventually(lambda: gateway.looks > looks + 20)
            assert await messages(access, QUEUE) < 5
            gateway.start_drain()
            await gateway.direct()
            assert await gateway.stored() == ["a"]

    async def test_the_checkpoint_of_what_was_left_behind_is_repeated_too(
        self, db: Database, access: BrokerAccess, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr("boathook.ingest.intake.ADOPT_INTERVAL_S", 0.05)
        async with running(Gateway(db, access), drains=False) as gateway:
            gateway.store.is_away = True
            await gateway.accept("a", "b")
            assert gateway.buffer.broker.leave_behind() == 2
            await take_out(access, QUEUE, 2)
            gateway.store.is_away = False
            await gateway.direct()
            await take_out_checkpoint(access, QUEUE)
            gateway.start_drain()
            await eventually(lambda: counted("boathook_buffer_lost_total") == 2)
            await eventually(lambda: not gateway.buffer.broker.series_to_read())

    @pytest.mark.parametrize(
        ("kind", "lost"), [(BrokerBuffer, 2), (RemembersTheLastOnly, 1), (MarksOnlyWhatItWaitsFor, 0)]
    )
    async def test_losses_of_all_that_was_left_behind_are_counted_unless_its_end_is_not_marked(
        self, db: Database, access: BrokerAccess, monkeypatch: pytest.MonkeyPatch, kind: type[BrokerBuffer], lost: int
    ):
        monkeypatch.setattr(gateway_buffer, "BrokerBuffer", kind)
        async with running(Gateway(db, access), drains=False) as gateway:
            gateway.store.is_away = True
            for key in ("a", "b"):
                await gateway.accept(key)
                assert gateway.buffer.broker.leave_behind() == 1
            await take_out(access, QUEUE, 2)
            gateway.store.is_away = False
            gateway.start_drain()
            await gateway.direct()
            await eventually(lambda: counted("boathook_buffer_lost_total") == lost)
            await put_back(access, QUEUE, encode_batch(UNNUMBERED, 1, [encode(event("last"))]))
            await eventually(lambda: _has_last(gateway))  # all checkpoints before it have been drained
            assert counted("boathook_buffer_lost_total") == lost

    @pytest.mark.parametrize(("kind", "lost"), [(BrokerBuffer, 1), (MarksOnlyWhatItWaitsFor, 0)])
    async def test_a_gateway_that_ends_marks_what_it_left_behind(
        self, db: Database, access: BrokerAccess, monkeypatch: pytest.MonkeyPatch, kind: type[BrokerBuffer], lost: int
    ):
        monkeypatch.setattr(gateway_buffer, "BrokerBuffer", kind)
        async with running(Gateway(db, access), drains=False) as ended:
            ended.store.is_away = True
            await ended.accept("a")
            assert ended.buffer.broker.leave_behind() == 1
            await take_out(access, QUEUE, 1)
            await ended.intake.drain()
            async with running(Gateway(db, access)) as gateway:
                await put_back(access, QUEUE, encode_batch(UNNUMBERED, 1, [encode(event("last"))]))
                await eventually(lambda: _has_last(gateway))
                await eventually(lambda: counted("boathook_buffer_lost_total") == lost)

    @pytest.mark.parametrize("is_drained_by_another", [False, True])
    async def test_lost_events_that_are_sent_again_are_accepted(
        self, db: Database, access: BrokerAccess, *, is_drained_by_another: bool
    ):
        losses: list[None] = []
        async with running(Gateway(db, access), drains=False) as gateway, running(Gateway(db, access)) as other:
            if not is_drained_by_another:
                await other.stop_drain()
            gateway.intake.on_loss.append(lambda: losses.append(None))
            gateway.store.is_away = other.store.is_away = True
            await gateway.accept("a", "b", "c")
            first, _, third = await take_out(access, QUEUE, 3)
            again = await gateway.intake.accept(event("a"))
            assert isinstance(again, Accepted), "what only a broker has may be lost"
            await take_out(access, QUEUE, 1)
            await put_back(access, QUEUE, first, third)
            gateway.store.is_away = other.store.is_away = False
            if not is_drained_by_another:
                gateway.start_drain()
            await gateway.direct()
            assert losses
            receipts = [await gateway.intake.accept(event(key)) for key in ("a", "b", "c")]
            assert [type(receipt) for receipt in receipts] == [Duplicate, Accepted, Duplicate]
            assert sorted(await gateway.stored()) == ["a", "b", "c"]

    async def test_a_doubled_message_changes_nothing(self, db: Database, access: BrokerAccess):
        async with running(Gateway(db, access), drains=False) as gateway:
            gateway.store.is_away = True
            await gateway.accept("a", "b")
            first, second = await take_out(access, QUEUE, 2)
            await put_back(access, QUEUE, first, first, second, first)
            gateway.store.is_away = False
            gateway.start_drain()
            await gateway.direct()
            assert await gateway.stored() == ["a", "b"]
            assert counted("boathook_buffer_lost_total") == 0

    async def test_a_damaged_record_costs_itself_alone_and_its_message_is_kept(
        self, db: Database, access: BrokerAccess, cluster: Cluster
    ):
        async with running(Gateway(db, access), drains=False) as gateway:
            payloads = [encode(event(key)) for key in ("a", "b", "c")]
            message = bytearray(encode_batch(7, 1, payloads))
            message[-len(payloads[2]) - 5] ^= 1
            await put_back(access, QUEUE, bytes(message))
            gateway.start_drain()
            await eventually(lambda: _has_all(gateway, {"a", "c"}))
            await eventually(lambda: messages(access, REFUSED_QUEUE))
            assert counted("boathook_buffer_damaged_total") == 1
            found = await administration.return_refused(settings_of(cluster, access))
            assert found == administration.ReturnedBatches(0, 1)
            await eventually(lambda: messages(access, REFUSED_QUEUE))

    @pytest.mark.parametrize("message", [b"", b"not a batch", encode_batch(9, 1, [b"x" * 50])[:40]])
    async def test_a_foreign_or_cut_message_is_kept_and_holds_nothing_up(
        self, db: Database, access: BrokerAccess, message: bytes
    ):
        async with running(Gateway(db, access)) as gateway:
            await put_back(access, QUEUE, message)
            await eventually(lambda: messages(access, REFUSED_QUEUE))
            await gateway.accept_while_away("a")
            await gateway.direct()
            assert await gateway.stored() == ["a"]


async def test_a_checkpoint_keeps_when_the_last_event_was_accepted(db: Database):
    at = datetime(2026, 1, 1, tzinfo=UTC)
    await buffer_marks.advance(db, 7, 1, 3, at)
    await buffer_marks.advance(db, 7, 4, 3, None)
    assert await buffer_marks.advance(db, 7, 6, 6, None) == buffer_marks.Gap(2, at)


async def test_events_beyond_those_that_may_wait_are_handed_back(access: BrokerAccess, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("boathook_rabbitmq.buffer.MAX_PENDING", 2)
    handed: list[bytes] = []
    buffer = BrokerBuffer(
        access,
        queue=QUEUE,
        confirm_s=CONFIRM_S,
        hand_back=lambda records, _: handed.extend(payload for payload, _ in records),
    )
    buffer.problem = ""  # as with a broker that takes its time
    for payload in (b"a", b"b", b"c"):
        buffer.append(payload, asyncio.get_running_loop().create_future())
    assert (handed, buffer.waiting) == ([b"c"], 2)


class TestQueues:
    async def test_a_queue_with_other_arguments_is_not_published_to(
        self, db: Database, access: BrokerAccess, cluster: Cluster
    ):
        connection = await first_connection(access, purpose="test")
        wrong = {**arguments_of(QUEUE, connection.server_version), "x-max-length-bytes": 5}
        await connection.declare(QUEUE, wrong)
        await connection.close()
        buffer = BrokerBuffer(access, queue=QUEUE, confirm_s=CONFIRM_S, hand_back=lambda *_: None)
        await buffer.start()
        await eventually(lambda: "inequivalent arg 'x-max-length-bytes'" in buffer.problem)
        await buffer.stop()
        with pytest.raises(BrokerMisconfigured, match="x-max-length-bytes"):
            await administration.prepare_queues(settings_of(cluster, access))
        findings = [one async for one in doctor.examine(settings_of(cluster, access), None)]
        assert findings[0].verdict is CheckStatus.FAIL

    async def test_doctor_reports_missing_queues_without_creating_them(self, access: BrokerAccess, cluster: Cluster):
        settings = settings_of(cluster, access)
        for _ in range(2):
            findings = [one async for one in doctor.examine(settings, None)]
            assert "boathook migrate" in findings[0].fix

    async def test_a_queue_with_one_copy_makes_doctor_fail(self, access: BrokerAccess, cluster: Cluster):
        settings = settings_of(cluster, access)
        await administration.prepare_queues(settings)
        *_, copies = [one async for one in doctor.examine(settings, None)]
        assert copies.verdict is CheckStatus.FAIL
        assert "1 copy instead of 3" in copies.found

    async def test_copies_are_not_checked_without_the_management_api(self, access: BrokerAccess, cluster: Cluster):
        settings = settings_of(cluster, access, management_url="")
        await administration.prepare_queues(settings)
        *_, copies = [one async for one in doctor.examine(settings, None)]
        assert copies.verdict is CheckStatus.WARN
        assert copies.found.startswith("not checked")

    async def test_a_message_for_a_queue_that_is_gone_is_not_confirmed(self, access: BrokerAccess):
        connection = await first_connection(access, purpose="test")
        with pytest.raises(BrokerUnavailable, match="refused a message"):
            await connection.publish("gone", b"", CONFIRM_S)
        await connection.close()

    async def test_messages_survive_any_number_of_deliveries(self, access: BrokerAccess):
        assert await _survivors(access, QUEUE, await _arguments(access)) == 5

    @pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
    async def test_mutant_with_a_limit_confirmed_messages_vanish(self, access: BrokerAccess):
        arguments = {**await _arguments(access), "x-delivery-limit": 3}
        assert await _survivors(access, "limited", arguments) == 0

    async def test_a_second_consumer_waits_for_the_first_so_that_messages_keep_their_order(self, access: BrokerAccess):
        arguments = await _arguments(access)
        assert await _order_after_a_dead_consumer(access, arguments) == [1, 2, 3]

    async def test_mutant_with_two_active_consumers_they_do_not(self, access: BrokerAccess):
        arguments = await _arguments(access)
        del arguments["x-single-active-consumer"]
        assert await _order_after_a_dead_consumer(access, arguments) != [1, 2, 3]

    async def test_every_queue_is_declared_with_what_keeps_messages(self):
        for queue in ALL_QUEUES:
            for version in ((3, 10, 8), (3, 13, 7), (4, 0, 5), (4, 2, 0)):
                arguments = arguments_of(queue, version)
                assert arguments["x-queue-type"] == "quorum"
                assert arguments["x-overflow"] == "reject-publish"
                assert arguments.get("x-delivery-limit") == (-1 if version[0] >= 4 else None)

    @pytest.mark.parametrize(("change", "reason"), [
        ({"password": "wrong"}, "buffer.password"), ({"vhost": "none"}, "buffer.vhost"),
    ])  # fmt: skip
    async def test_a_wrong_login_names_the_setting(self, access: BrokerAccess, change: dict[str, str], reason: str):
        with pytest.raises(BrokerMisconfigured, match=reason):
            await first_connection(dataclasses.replace(access, **change), purpose="test")


async def _arguments(access: BrokerAccess) -> dict[str, str | int | bool]:
    connection = await first_connection(access, purpose="test")
    await connection.close()
    return dict(arguments_of(QUEUE, connection.server_version))


async def _order_after_a_dead_consumer(access: BrokerAccess, arguments: Arguments) -> list[int]:
    """Return the order in which a second consumer gets 3 messages, of which the first one took one and died."""
    first, second = [await first_connection(access, purpose="test") for _ in range(2)]
    await first.declare(QUEUE, arguments)
    await first.consume([QUEUE], 1)
    await second.consume([QUEUE], 10)
    for number in (1, 2, 3):
        await second.publish(QUEUE, encode_batch(number, 1, ()), CONFIRM_S)
        if number == 1:
            assert await first.next(60.0) is not None
    await first.close()
    order: list[int] = []
    while len(order) < 3:
        delivery = await second.next(60.0)
        assert delivery is not None
        order.append(decode_batch(delivery.body).series)
    await second.close()
    return order


async def _survivors(access: BrokerAccess, queue: str, arguments) -> int:
    """Return how many of 5 confirmed messages are left after consumers that took and never acknowledged them."""
    connection = await first_connection(access, purpose="test")
    await connection.declare(queue, arguments)
    for _ in range(5):
        await connection.publish(queue, encode_batch(UNNUMBERED, 1, ()), CONFIRM_S)
    await connection.close()
    number = 5
    for _ in range(8):
        connection = await first_connection(access, purpose="test")
        await connection.consume([queue], 10)
        number = 0
        while number < 5 and await connection.next(5.0) is not None:
            number += 1
        await connection.close()
    return number


def settings_of(cluster: Cluster, access: BrokerAccess, **more: str):
    """Return the settings of an installation that uses the brokers."""
    table = {
        "kind": "rabbitmq", "hosts": [f"{host}:{port}" for host, port in access.hosts], "vhost": access.vhost,
        "user": access.user, "password": access.password, "management_url": cluster.management_url,
        "connect_timeout_s": 30.0, **more,
    }  # fmt: skip
    return load(overrides={f"buffer.{key}": value for key, value in table.items()})
