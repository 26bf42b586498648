"""Notifications of due deliveries: they name recipients, which are claimed at once."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from datetime import UTC, datetime
from typing import Any
from unittest import mock
from uuid import UUID

import asyncpg
import pytest

from boathook.db.database import Database
from boathook.db.due_notifier import DUE_CHANNEL, DueNotifier, encode_due, notify_due, read_payload
from boathook.db.endpoint_deliveries import ClaimedEndpointDelivery, DueEndpointPage, EndpointDeliveryStore
from boathook.delivery import endpoint_queues
from boathook.delivery.dispatcher import Dispatcher
from boathook.delivery.endpoint_queues import EndpointAttempt, EndpointQueues
from boathook.domain.due import ANY_DUE, ANY_RECIPIENT, DueRecipient, due_recipients
from tests.sender_harness import Sink, StoredEndpoint, add_deliveries, add_endpoint, running_sender
from tests.support import eventually
from tests.worker_harness import wait_for_states

HOUR = {"worker": {"poll_interval_s": 3600.0}}
PROBE = "probe:listening"


@contextlib.asynccontextmanager
async def rarely_polling(db: Database) -> AsyncIterator[Dispatcher[EndpointAttempt]]:
    """Run a sender that polls once an hour; start the block once it receives notifications."""
    async with running_sender(db, **HOUR) as sender:
        queues: Any = sender.queues
        include, heard = queues.include, asyncio.Event()

        def noted(recipients: Sequence[str], wake: Callable[[], None]) -> list[str]:
            if PROBE in recipients:
                heard.set()
            return include(recipients, wake)

        async def is_heard() -> bool:
            await notify_due(db, due_recipients([PROBE]))
            return heard.is_set()

        queues.include = noted
        await eventually(is_heard)
        yield sender


class TestNotifier:
    async def test_names_the_recipients_of_all_requests_since_the_last_notification(self):
        later = due_recipients(["b"], NOON)
        assert await self.notified([due_recipients(["a", "b"]), due_recipients(["b", "c"]), later]) == [
            {("a", 0.0), ("b", 0.0), ("c", 0.0), *later}
        ]

    async def test_names_any_recipient_if_one_request_named_none(self):
        assert await self.notified([due_recipients(["a"]), ANY_DUE]) == [{("a", 0.0), *ANY_DUE}]

    @staticmethod
    async def notified(requests: Sequence[Collection[DueRecipient]]) -> list[set[DueRecipient]]:
        heard: list[set[DueRecipient]] = []

        async def announce(due: Collection[DueRecipient]) -> None:
            heard.append(set(due))

        notifier = DueNotifier(announce)
        for due in requests:
            notifier.notify(due)
        task = asyncio.create_task(notifier.run())
        await eventually(lambda: heard)
        task.cancel()
        return heard


NOON = datetime(2026, 11, 28, 12, tzinfo=UTC)


async def read_notified(due: Collection[DueRecipient]) -> list[list[DueRecipient]]:
    """Notify; return what a process reads in each notification."""
    database = mock.create_autospec(Database)
    await notify_due(database, due)
    return [sorted(read_payload(payload)) for payload in database.execute.await_args.args[1]]


@pytest.mark.parametrize("due", [
    ANY_DUE, due_recipients(["handler:a"]), due_recipients(["endpoint:ep_1", "handler:two words"]),
    due_recipients(["endpoint:ep_1"], NOON), due_recipients(["handler:a"]) | due_recipients(["handler:a"], NOON),
    due_recipients([ANY_RECIPIENT], NOON),
])  # fmt: skip
async def test_payloads_round_trip_what_is_due(due: Collection[DueRecipient]):
    assert await read_notified(due) == [sorted(due)]


async def test_any_recipient_includes_those_that_have_something_due_now_but_not_later():
    later = due_recipients(["endpoint:ep_1"], NOON)
    assert await read_notified({*ANY_DUE, *due_recipients(["handler:a"])}) == [list(ANY_DUE)]
    assert await read_notified({*ANY_DUE, *due_recipients(["handler:a"]), *later}) == [list(ANY_DUE), list(later)]


async def test_payloads_with_too_many_recipients_name_times_only():
    many = [f"handler:{'é' * 200}{number}" for number in range(10)]
    assert await read_notified(due_recipients(many[:5])) == [sorted(due_recipients(many[:5]))]
    assert await read_notified(due_recipients(many)) == [list(ANY_DUE)]
    later = due_recipients(many, NOON)
    assert await read_notified(later) == [[(ANY_RECIPIENT, NOON.timestamp())]]
    assert await read_notified(due_recipients(many) | later) == [list(ANY_DUE), [(ANY_RECIPIENT, NOON.timestamp())]]
    times = {("handler:a", float(number)) for number in range(1, 1_000)}
    assert await read_notified(times) == [list(ANY_DUE)]


@pytest.mark.parametrize("payload", ["handler:a\tsoon", "handler:a\tnan", "handler:a\t1\t2", "handler:a\nb\tinf"])
def test_a_payload_that_cannot_be_read_stands_for_any_recipient(payload: str):
    assert read_payload(payload) == list(ANY_DUE)


def test_earlier_versions_find_by_themselves_what_is_due_later():
    """They read a recipient in each line: one that does not exist lets a sender look when its deliveries are due."""
    (payload,) = encode_due(due_recipients(["endpoint:ep_1"], NOON))
    assert payload.split("\n") == [f"endpoint:ep_1\t{NOON.timestamp():.2f}"]
    assert encode_due(ANY_DUE) == [""]
    assert encode_due(due_recipients(["handler:a"])) == ["handler:a"]


class TestSender:
    """Senders that poll once an hour."""

    async def test_claims_for_a_known_endpoint_without_a_scan(self, db: Database, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(endpoint_queues, "LIMITS_AGE_S", 3600.0)
        looks = self.count_searches(monkeypatch)
        async with Sink().open() as sink:
            endpoint = await add_endpoint(db, sink.base)
            async with rarely_polling(db):
                await self.deliver(db, endpoint, 1)
                before = len(looks)
                await self.deliver(db, endpoint, 2)
                assert len(looks) == before

    async def test_scans_for_an_unknown_endpoint(self, db: Database):
        async with Sink().open() as sink, rarely_polling(db):
            await self.deliver(db, await add_endpoint(db, sink.base), 1)
            await self.deliver(db, await add_endpoint(db, f"{sink.base}/other"), 2)

    async def test_finds_what_became_due_before_notifications_began(
        self, db: Database, monkeypatch: pytest.MonkeyPatch
    ):
        may_listen, has_looked = asyncio.Event(), asyncio.Event()
        add_listener, discover = asyncpg.Connection.add_listener, EndpointQueues.discover

        async def delayed(line: asyncpg.Connection, channel: str, callback: Any) -> None:
            if channel == DUE_CHANNEL:
                await may_listen.wait()
            await add_listener(line, channel, callback)

        async def watched(queues: EndpointQueues, wake: Any) -> float:
            wait_s = await discover(queues, wake)
            has_looked.set()
            return wait_s

        monkeypatch.setattr(asyncpg.Connection, "add_listener", delayed)
        monkeypatch.setattr(EndpointQueues, "discover", watched)
        async with Sink().open() as sink, running_sender(db, **HOUR):
            await has_looked.wait()
            await add_deliveries(db, await add_endpoint(db, sink.base), is_named=True)
            may_listen.set()
            await wait_for_states(db, succeeded=1)

    async def test_does_not_wait_for_discovery_with_a_named_endpoint(
        self, db: Database, monkeypatch: pytest.MonkeyPatch
    ):
        gate, is_waiting = asyncio.Event(), asyncio.Event()
        find_due = EndpointDeliveryStore.find_due

        async def delayed(store: EndpointDeliveryStore, after: str, limit: int) -> DueEndpointPage:
            is_waiting.set()
            await gate.wait()
            return await find_due(store, after, limit)

        async with Sink().open() as sink:
            endpoint = await add_endpoint(db, sink.base)
            async with rarely_polling(db):
                monkeypatch.setattr(EndpointDeliveryStore, "find_due", delayed)
                await notify_due(db, ANY_DUE)
                await is_waiting.wait()
                await self.deliver(db, endpoint, 1)
                gate.set()

    async def test_discovers_when_a_named_endpoint_has_nothing_due_yet(self, db: Database):
        async with Sink().open() as sink, rarely_polling(db):
            endpoint = await add_endpoint(db, sink.base)
            await add_deliveries(db, endpoint, is_announced=False)
            await db.execute("update boathook.delivery set due_at = now() + interval '0.3 s'")
            await notify_due(db, due_recipients([endpoint.recipient]))
            await wait_for_states(db, succeeded=1)

    async def test_reads_the_limits_again_after_a_while(self, db: Database, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(endpoint_queues, "LIMITS_AGE_S", 0.0)
        looks = self.count_searches(monkeypatch)
        async with Sink().open() as sink:
            endpoint = await add_endpoint(db, sink.base)
            async with rarely_polling(db):
                await self.deliver(db, endpoint, 1)
                before = len(looks)
                await self.deliver(db, endpoint, 2)
                assert len(looks) > before

    async def test_reads_the_limits_again_once_the_endpoint_has_changed(
        self, db: Database, monkeypatch: pytest.MonkeyPatch
    ):
        monkeypatch.setattr(endpoint_queues, "LIMITS_AGE_S", 3600.0)
        async with Sink().open() as sink:
            endpoint = await add_endpoint(db, sink.base)
            async with rarely_polling(db) as sender:
                await self.deliver(db, endpoint, 1)
                await db.execute(
                    "update boathook.endpoint set throttle_rate = 1000, revision = revision + 1 where id = $1",
                    endpoint.id,
                )
                await self.deliver(db, endpoint, 2)
                await self.deliver(db, endpoint, 3)
                queues: Any = sender.queues
                assert [queue.rate for queue in queues] == [1000]

    async def test_claims_again_for_an_endpoint_that_is_named_while_a_claim_runs(
        self, db: Database, monkeypatch: pytest.MonkeyPatch
    ):
        claim, include = EndpointDeliveryStore.claim, EndpointQueues.include
        named: list[Sequence[str]] = []
        overtaking: list[UUID] = []

        def noted(queues: EndpointQueues, recipients: Sequence[str], wake: Any) -> list[str]:
            unknown = include(queues, recipients, wake)
            if PROBE not in recipients:
                named.append(recipients)
            return unknown

        async def overtaken(store: EndpointDeliveryStore, *args: Any, **options: Any) -> list[ClaimedEndpointDelivery]:
            claimed = await claim(store, *args, **options)
            if claimed and not overtaking:
                overtaking.append(claimed[0].event_id)
                before = len(named)
                await add_deliveries(db, endpoint, is_named=True)
                await eventually(lambda: len(named) > before)
            return claimed

        monkeypatch.setattr(EndpointDeliveryStore, "claim", overtaken)
        monkeypatch.setattr(EndpointQueues, "include", noted)
        async with Sink().open() as sink:
            endpoint = await add_endpoint(db, sink.base)
            async with rarely_polling(db):
                await self.deliver(db, endpoint, 2)

    async def test_leaves_the_recipients_of_others_alone(self, db: Database, monkeypatch: pytest.MonkeyPatch):
        looks = self.count_searches(monkeypatch)
        async with Sink().open() as sink, rarely_polling(db):
            await self.deliver(db, await add_endpoint(db, sink.base), 1)
            before = len(looks)
            await notify_due(db, due_recipients(["handler:a"]))
            await self.deliver(db, await add_endpoint(db, f"{sink.base}/other"), 2)
            assert len(looks) == before + 1

    @staticmethod
    def count_searches(monkeypatch: pytest.MonkeyPatch) -> list[None]:
        """Count the queries for due deliveries: of all endpoints, and of named ones."""
        looks: list[None] = []
        discover, look_up = EndpointQueues.discover, EndpointQueues.look_up

        async def counted(queues: EndpointQueues, wake: Any) -> float:
            looks.append(None)
            return await discover(queues, wake)

        async def counted_too(queues: EndpointQueues, recipients: Sequence[str], wake: Any) -> bool:
            looks.append(None)
            return await look_up(queues, recipients, wake)

        monkeypatch.setattr(EndpointQueues, "discover", counted)
        monkeypatch.setattr(EndpointQueues, "look_up", counted_too)
        return looks

    @staticmethod
    async def deliver(db: Database, endpoint: StoredEndpoint, succeeded: int) -> None:
        await add_deliveries(db, endpoint, is_named=True)
        await wait_for_states(db, succeeded=succeeded)
