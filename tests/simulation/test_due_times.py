"""Deliveries that are due later are claimed at their time, by a virtual clock: no poll finds them, and no walk."""

import asyncio
import functools
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from boathook.config import Settings, load
from boathook.db.database import Database
from boathook.db.due_notifier import notify_due
from boathook.delivery import dispatcher
from boathook.domain.due import ANY_RECIPIENT, due_recipients
from boathook.domain.model import NewEvent
from boathook_rabbitmq import due_lane
from boathook_rabbitmq.due_lane import open_lane
from boathook_rabbitmq.queues import DUE_ENDPOINTS, DUE_HANDLERS
from tests.simulation.broker import FakeBroker
from tests.simulation.gateway import URL
from tests.simulation.handlers import LINE, NOTE
from tests.simulation.plan import Plan
from tests.simulation.runner import simulating
from tests.simulation.sending.plan import Plan as SendingPlan
from tests.simulation.sending.world import SendingWorld
from tests.simulation.tables import Stored, Transaction, owe
from tests.simulation.world import World

NEVER_S = 1e6
"""Interval of polls and walks."""
LATEST_S = 0.05
"""How late a delivery may be claimed; times are rounded up by up to 0.02 s."""
LATEST_DELAYED_S = 0.55
"""The same after a delay queue, which is taken for a wait that is up to half a second shorter."""
LANES = ("postgresql", "rabbitmq")


@pytest.fixture(scope="module", autouse=True)
def simulated() -> Iterator[None]:
    with simulating():
        yield


@pytest.fixture(params=LANES)
def lane(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let nothing be found but by notifications."""
    monkeypatch.setattr(dispatcher, "WALK_INTERVAL_S", NEVER_S)
    return str(request.param)


class LaterDeliveries:
    """Two processes of one kind, and deliveries to them that are due later."""

    def __init__(self, world: SendingWorld | World, lane: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = world
        self.broker = FakeBroker(world.loop)
        monkeypatch.setattr(due_lane, "first_connection", self.broker.connect)
        world.settings = self._settings = _on_lane(world.settings, lane)
        world.scenario = self._announce_all  # type: ignore[method-assign]
        world.server.tables.watchers.append(self._watch)
        self.late_s: list[float] = []
        """How long after their times the deliveries were claimed."""
        self._due_at: dict[Any, datetime] = {}

    def run(self, waits_s: list[float], name: Callable[[str], str] = lambda recipient: recipient) -> list[float]:
        """Announce a delivery for each wait, to the *name* of its recipient; return how late each was claimed."""
        self._waits_s, self._name = waits_s, name
        self.world.run()
        assert not self.world.found()
        assert len(self.late_s) == len(waits_s), self.world.trace[-20:]
        assert min(self.late_s) >= 0
        return self.late_s

    async def _announce_all(self) -> None:
        world = self.world
        for process in world.processes:
            process.clock_ahead = timedelta(seconds=30)  # due times are by PostgreSQL's clock
        await asyncio.sleep(5.0)
        publisher = world.process("publisher")
        await world.run_process(publisher, self._publish())
        await asyncio.sleep(max(self._waits_s) + 20.0)

    async def _publish(self) -> None:
        database = await Database.open(URL, purpose="publisher", size=1, statement_timeout_s=2.0)
        notify = functools.partial(notify_due, database)
        if not self._settings.has_package_notifier:
            await self._announce(notify)
            return
        lane = open_lane(self._settings, None, lambda: self.world.server.clock().timestamp())
        running = asyncio.create_task(lane.run())
        await asyncio.sleep(1.0)
        await self._announce(functools.partial(lane.announce, notify))
        running.cancel()

    async def _announce(self, announce: Callable[..., Any]) -> None:
        for number, wait_s in enumerate(self._waits_s):
            t = Transaction(self.world.server.tables)
            event, recipient = self._delivery(number)
            due_at = self.world.server.clock() + timedelta(seconds=wait_s)
            t.put("event", event.id, Stored(event, t.now, 1))
            owe(t, event.id, 0, recipient, None, is_blocked=False, due_at=due_at)
            self._due_at[event.id, 0] = due_at
            t.commit()
            await announce(due_recipients([self._name(recipient)], due_at))

    def _delivery(self, number: int) -> tuple[NewEvent, str]:
        world = self.world
        if isinstance(world, SendingWorld):
            event = world._message(number, b'{"n": 1}')
            recipient = event.deliveries[0].recipient
        else:
            event = world._event(number, msgspec.json.encode({"n": number, "who": "a", NOTE: ["ok"], LINE: ["ok"]}))
            recipient = f"handler:{NOTE}"
        world.recorder.sent[event.id] = event
        return event, recipient

    def _watch(self, transaction: Transaction) -> None:
        for (table, key), row in transaction.writes.items():
            if table == "delivery" and row is not None and row.state == "leased":
                late = self.world.server.clock() - self._due_at[key]
                self.late_s.append(late.total_seconds())


def _on_lane(settings: Settings, lane: str) -> Settings:
    changed = load(
        None, {"delivery": {"lane": lane}, "buffer": {"hosts": ["mq.example:5672"], "user": "u", "password": "p"}}
    )
    return settings.model_copy(update={"delivery": changed.delivery, "tables": changed.tables})


def deliveries_to(kind: str, lane: str, monkeypatch: pytest.MonkeyPatch) -> LaterDeliveries:
    world: SendingWorld | World
    if kind == "endpoint":
        world = SendingWorld(SendingPlan(1, messages=0, poll_s=NEVER_S, keepers=0))
    else:
        world = World(Plan(1, gateways=0, keepers=0, events=0, poll_s=NEVER_S))
    return LaterDeliveries(world, lane, monkeypatch)


@pytest.mark.parametrize("kind", ["endpoint", "handler"])
def test_a_delivery_due_soon_is_claimed_at_its_time(kind: str, lane: str, monkeypatch: pytest.MonkeyPatch):
    later = deliveries_to(kind, lane, monkeypatch)
    assert max(later.run([0.3, 0.0, 1.0, 2.0, 4.0, 0.3])) < LATEST_S
    due = DUE_ENDPOINTS if kind == "endpoint" else DUE_HANDLERS
    assert set(later.broker.published) == ({due} if lane == "rabbitmq" else set())


@pytest.mark.parametrize("kind", ["endpoint", "handler"])
def test_a_delivery_due_later_is_claimed_at_its_time(kind: str, lane: str, monkeypatch: pytest.MonkeyPatch):
    later = deliveries_to(kind, lane, monkeypatch)
    assert max(later.run([7.0, 30.0, 59.0, 12.3])) < LATEST_DELAYED_S


@pytest.mark.parametrize("kind", ["endpoint", "handler"])
def test_a_delivery_whose_recipient_is_not_named_is_claimed_at_its_time(
    kind: str, lane: str, monkeypatch: pytest.MonkeyPatch
):
    later = deliveries_to(kind, lane, monkeypatch)
    assert max(later.run([0.3, 2.0, 30.0], lambda _: ANY_RECIPIENT)) < LATEST_S
