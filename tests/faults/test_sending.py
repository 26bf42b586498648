"""Senders die at every failpoint, and each message still arrives: once, or again if it was in flight."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import psycopg
import pytest

from boathook.db.database import Database
from boathook.domain import ids
from boathook.observability.failpoints import FAILPOINTS
from tests.acceptance.conftest import BoathookProcess, boathook  # noqa: F401 - boathook is a fixture
from tests.crash_schedule import CrashSchedule
from tests.sender_harness import KEY, Reply, Sink, StoredEndpoint, add_deliveries, add_endpoint
from tests.support import run_and_close, until

SEND_POINTS = [point for point in FAILPOINTS if point.startswith("send.")]
IN_FLIGHT = 40 + 200
"""Most messages that may come twice by one crash: those in their places, and a batch of answers not yet settled."""
CONFIG = f"""
[outbound]
allow = ["127.0.0.0/8"]
encryption_keys = ["{KEY}"]
concurrency = 40
"""


class Receiver:
    """A receiver in its own thread, for tests with sender processes."""

    def __init__(self) -> None:
        self.sink = Sink(lambda _: Reply(after_s=0.002))
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._is_open = threading.Event()
        self._thread = threading.Thread(target=run_and_close, args=(self._loop, self._serve()))

    def __enter__(self) -> "Receiver":
        self._thread.start()
        assert self._is_open.wait(300)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(300)

    async def _serve(self) -> None:
        async with self.sink.open():
            self._is_open.set()
            await self._stop.wait()

    @property
    def arrived(self) -> Counter[str]:
        """The number of times each message arrived."""
        return Counter(self.sink.messages)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as one:
        yield one


def add_some_deliveries(url: str, base: str, number: int) -> set[str]:
    """Store messages for two endpoints of the receiver, and return their ids."""

    async def store() -> set[str]:
        db = await Database.open(url, purpose="test", size=2)
        endpoints: list[StoredEndpoint] = [await add_endpoint(db, f"{base}/{n}", retry=None) for n in range(2)]
        events = [event for endpoint in endpoints for event in await add_deliveries(db, endpoint, number)]
        await db.close()
        return {ids.show(ids.MESSAGE, event) for event in events}

    return asyncio.run(store())


def open_sends(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("select count(*) from boathook.delivery").fetchone()
        assert row is not None
        return int(row[0])


def assert_delivered_once(running: BoathookProcess, receiver: Receiver, owed: set[str], *, most_twice: int) -> None:
    """Assert that all messages arrived, only those in flight twice, and that the store is consistent."""
    until(lambda: open_sends(running.database_url) == 0)
    arrived = receiver.arrived
    assert set(arrived) == owed
    again = sum(count - 1 for count in arrived.values())
    assert again <= most_twice, f"{again} came again"
    assert running.cli("check").returncode == 0


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_senders_die_at_every_point(boathook: Callable[..., BoathookProcess], receiver: Receiver, tmp_path: Path):  # noqa: F811
    crashes = CrashSchedule(tmp_path, dict.fromkeys(SEND_POINTS, 3))
    assert crashes.hits
    running = boathook(roles="worker,keeper", senders=1, extra=CONFIG, wait=False, **crashes.environment)
    until(lambda: running.children("sender"))
    owed = add_some_deliveries(running.database_url, receiver.sink.base, 800)
    crashes.wait()
    assert_delivered_once(running, receiver, owed, most_twice=len(crashes.hits) * IN_FLIGHT)
    assert running.stop() == 0


def test_senders_are_killed_under_load(boathook: Callable[..., BoathookProcess], receiver: Receiver):  # noqa: F811
    running = boathook(roles="worker,keeper", senders=1, extra=CONFIG, wait=False)
    until(lambda: running.children("sender"))
    owed = add_some_deliveries(running.database_url, receiver.sink.base, 1500)
    for number in range(3):
        goal = 600 * (number + 1)
        until(partial(_has_come_to, receiver, goal))
        running.kill("sender")
    assert_delivered_once(running, receiver, owed, most_twice=3 * IN_FLIGHT)
    assert running.stop() == 0


def _has_come_to(receiver: Receiver, goal: int) -> bool:
    return len(receiver.sink.requests) >= goal


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_the_comparison_detects_damage(boathook: Callable[..., BoathookProcess], receiver: Receiver):  # noqa: F811
    """Mutant: a message that is lost, and one that comes more often than a crash explains, are found."""
    running = boathook(roles="worker,keeper", senders=1, extra=CONFIG, wait=False)
    until(lambda: running.children("sender"))
    owed = add_some_deliveries(running.database_url, receiver.sink.base, 5)
    assert_delivered_once(running, receiver, owed, most_twice=0)
    with pytest.raises(AssertionError):
        assert_delivered_once(running, receiver, owed | {"msg_lost"}, most_twice=0)
    receiver.sink.requests.append(receiver.sink.requests[0])
    with pytest.raises(AssertionError, match="came again"):
        assert_delivered_once(running, receiver, owed, most_twice=0)
