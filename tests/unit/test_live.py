"""The console's live state: one producer for all readers, and no reader gets old data."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from boathook_console import live as module
from boathook_console.live import LiveState, StateUpdate
from tests.support import eventually


class Counting:
    """A state that is another one each time it is looked at."""

    def __init__(self) -> None:
        self.looks = 0
        self.is_broken = False
        self.is_still = False

    async def look(self) -> str:
        self.looks += 1
        if self.is_broken:
            raise RuntimeError("this look fails")
        return "still" if self.is_still else f"state {self.looks}"


@pytest.fixture
def counting() -> Counting:
    return Counting()


def made(counting: Counting, **more: int) -> LiveState:
    return LiveState(counting.look, max_age_s=0.01, **more)


async def test_all_readers_share_one_producer(counting: Counting) -> None:
    live = made(counting)
    readers = [live.updates("ann") for _ in range(10)]
    for _ in range(5):
        told = [await anext(reader) for reader in readers]
        assert all(told)
    # Ten readers with a producer each would have looked fifty times.
    assert counting.looks <= 25
    for reader in readers:
        await reader.aclose()


async def test_a_slow_reader_gets_only_the_newest_state(counting: Counting) -> None:
    live = made(counting)
    assert await stale_readings(live, counting, live.updates("ann")) == 0


async def test_queueing_readers_get_stale_states(counting: Counting) -> None:
    """The mutant of the test above, with a queue."""
    live = made(counting)

    async def queueing() -> AsyncGenerator[StateUpdate, None]:
        told: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        publish = live._publish

        def note(state: str) -> None:
            publish(state)
            told.put_nowait((live.number, state))

        live._publish = note  # type: ignore[method-assign]
        with live._counted("ann"):
            while True:
                yield await told.get()

    assert await stale_readings(live, counting, queueing()) > 0


async def stale_readings(live: LiveState, counting: Counting, updates: AsyncGenerator[StateUpdate, None]) -> int:
    """Return how many stale states a slow reader got."""
    await anext(updates)
    looks = counting.looks
    await eventually(lambda: counting.looks > looks + 5)
    newest, stale = live.number, 0
    while (told := await anext(updates)) is not None and told[0] < newest:
        stale += 1
    await updates.aclose()
    return stale


async def test_no_state_is_produced_without_readers(counting: Counting) -> None:
    live = made(counting)
    reader = live.updates("ann")
    await anext(reader)
    producer = live.producer
    assert producer is not None
    await reader.aclose()
    await asyncio.wait([producer])
    assert live.producer is None


async def test_a_fresh_state_is_shared(counting: Counting) -> None:
    live = LiveState(counting.look, max_age_s=60)
    assert [await live.now() for _ in range(3)] == ["state 1"] * 3


async def test_a_failed_read_is_retried(counting: Counting) -> None:
    live = made(counting)
    reader = live.updates("ann")
    await anext(reader)
    counting.is_broken = True
    looks = counting.looks
    await eventually(lambda: counting.looks > looks + 2)
    counting.is_broken = False
    number = live.number
    await eventually(lambda: live.number > number)
    await reader.aclose()


async def test_an_unchanged_state_is_followed_by_heartbeats(
    counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "HEARTBEAT_INTERVAL_S", 0.05)
    counting.is_still = True
    live = made(counting)
    reader = live.updates("ann")
    assert [await anext(reader) for _ in range(3)] == [(1, "still"), None, None]
    await reader.aclose()


async def test_readers_are_bounded(counting: Counting) -> None:
    live = made(counting, max_readers=2)
    assert await rooms(live, ["ann", "bob"], asked="cid") == [True, True, False, True, True]


async def test_one_operator_cannot_use_all_reader_slots(counting: Counting) -> None:
    live = made(counting, max_readers=9, max_per_operator=2)
    assert await rooms(live, ["ann", "ann"], asked="ann") == [True, True, False, True, True]
    assert await rooms(live, ["ann", "ann"], asked="bob") == [True] * 5


async def rooms(live: LiveState, names: list[str], *, asked: str) -> list[bool]:
    """Return whether *asked* may read: first, with each added reader, and with each removed one."""
    readers = [live.updates(name) for name in names]
    found = [live.has_room(asked)]
    for reader in readers:
        await anext(reader)
        found.append(live.has_room(asked))
    for reader in readers:
        await reader.aclose()
        found.append(live.has_room(asked))
    return found
