"""Requests that wait while events are taken in: one begins at a time, each client's in its turn."""

import asyncio
import time
from collections import Counter

import pytest

from boathook.http import limits
from boathook.http.limits import FairScheduler
from boathook.ingest import health
from boathook.ingest.health import HealthEndpoints
from boathook.observability.live_metrics import LiveMetrics

READERS = 24
EACH = 4
WORK_S = 0.001


async def started_together(turns: FairScheduler, *, clients: int = 1) -> int:
    """Let readers ask again and again; return the most requests that began in one turn of the event loop."""
    begun, loop_turn, is_over = Counter[int](), 0, False

    async def read(number: int) -> None:
        for _ in range(EACH):
            await turns.take(f"client-{number % clients}")
            begun[loop_turn] += 1
            until = time.thread_time() + WORK_S
            while time.thread_time() < until:
                pass
            await asyncio.sleep(0)

    async def count() -> None:
        nonlocal loop_turn
        while not is_over:
            loop_turn += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    await asyncio.gather(*(read(number) for number in range(READERS)))
    is_over = True
    await counting
    assert begun.total() == READERS * EACH
    return max(begun.values())


async def test_one_reader_starts_at_a_time_during_ingest():
    assert await started_together(FairScheduler(lambda: True)) == 1


async def test_mutant_without_turns_all_start_together(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(FairScheduler, "_begin", lambda _self: None)
    assert await started_together(FairScheduler(lambda: True)) == READERS


async def test_no_reader_waits_without_ingest():
    assert await started_together(FairScheduler(lambda: False)) == READERS


async def test_waiting_readers_start_when_ingest_is_idle():
    is_busy, begun = True, []
    turns = FairScheduler(lambda: is_busy)

    async def one(name: str) -> None:
        await turns.take(name)
        begun.append(name)

    waiting = [asyncio.create_task(one(str(number))) for number in range(10)]
    await asyncio.sleep(0)
    is_busy = False
    await asyncio.gather(*waiting)
    assert len(begun) == 10


async def order_of_turns(first: int) -> list[str]:
    turns, begun = FairScheduler(lambda: True), list[str]()

    async def one(name: str) -> None:
        await turns.take(name)
        begun.append(name)

    names = ["crowd"] * first + ["operator"]
    await asyncio.gather(*(one(name) for name in names))
    return begun


async def test_a_client_waits_for_one_of_each_other_client_and_not_for_all():
    assert (await order_of_turns(50)).index("operator") <= 2


async def test_mutant_in_one_queue_a_client_waits_for_all(monkeypatch: pytest.MonkeyPatch):
    take = FairScheduler.take
    monkeypatch.setattr(FairScheduler, "take", lambda self, _client: take(self, ""))
    assert (await order_of_turns(50)).index("operator") == 50


async def test_a_cancelled_reader_is_skipped():
    turns, begun = FairScheduler(lambda: True), list[int]()

    async def one(number: int) -> None:
        await turns.take("a")
        begun.append(number)

    tasks = [asyncio.create_task(one(number)) for number in range(5)]
    await asyncio.sleep(0)
    tasks[1].cancel()
    tasks[2].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert begun == [0, 3, 4]


async def test_no_pause_is_longer_than_a_tenth_of_a_second(monkeypatch: pytest.MonkeyPatch):
    loop, pauses = asyncio.get_running_loop(), list[float]()
    turns = FairScheduler(lambda: True, pause=1e9)
    call_later = loop.call_later

    def noted(seconds, *more):
        pauses.append(seconds)
        return call_later(0, *more)

    monkeypatch.setattr(loop, "call_later", noted)
    await asyncio.gather(turns.take("a"), turns.take("a"))
    assert pauses[0] == limits.MAX_PAUSE_S


class CountingMetrics(LiveMetrics):
    """Counts how often the metrics are put together."""

    def __init__(self) -> None:
        super().__init__(None)
        self.times = 0

    def now(self):
        self.times += 1
        return super().now()


async def times_rendered(path: str) -> int:
    live_metrics = CountingMetrics()
    asked = HealthEndpoints(live_metrics, is_draining=lambda: False)
    answers = []

    async def send(message):
        answers.append(message)

    scope = {"type": "http", "path": path, "method": "GET"}
    for _ in range(10):
        await asyncio.gather(*(asked(scope, None, send) for _ in range(READERS)))
    bodies = {message["body"] for message in answers if "body" in message}
    assert all(message["status"] == 200 for message in answers if "status" in message)
    assert bodies
    return live_metrics.times


@pytest.mark.parametrize("path", ["/metrics", "/metrics.json"])
async def test_metrics_are_rendered_once_per_second(path: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(health, "METRICS_MAX_AGE_S", 3600.0)
    once = await times_rendered(path)
    assert once == 1


@pytest.mark.parametrize("path", ["/metrics", "/metrics.json"])
async def test_mutant_without_the_second_they_are_rendered_again(path: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(health, "METRICS_MAX_AGE_S", 0.0)
    assert await times_rendered(path) >= 10


async def test_concurrent_requests_share_a_self_test(monkeypatch: pytest.MonkeyPatch):
    runs = 0

    async def run(_self):
        nonlocal runs
        runs += 1
        await asyncio.sleep(0.01)
        return 200, b"application/json", b"{}"

    monkeypatch.setattr(HealthEndpoints, "_selftest", run)
    asked = HealthEndpoints(LiveMetrics(None), is_draining=lambda: False)

    async def send(_message):
        pass

    scope = {"type": "http", "path": "/selftest", "method": "GET"}
    await asyncio.gather(*(asked(scope, None, send) for _ in range(READERS)))
    assert runs == 1
    await asked(scope, None, send)
    assert runs == 2
