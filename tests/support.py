"""Waiting in tests: for a condition with a deadline, never for a length of time."""

import asyncio
import inspect
import math
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

Result = TypeVar("Result")


async def eventually(
    predicate: Callable[[], Result] | Callable[[], Awaitable[Result]], *, timeout: float = 60.0, every: float = 0.02
) -> Result:
    """Return the predicate's first true value; fail where it has none within *timeout* seconds.

    The predicate may be a coroutine function. An `AssertionError` it raises counts as false, and is
    shown at the end.
    """
    deadline = time.monotonic() + timeout
    while True:
        complaint = ""
        try:
            value = predicate()
            if inspect.isawaitable(value):
                value = await value
            if value:
                return value
        except AssertionError as error:
            complaint = f": {error}"
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {timeout} s{complaint}")
        await asyncio.sleep(every)


def until(predicate: Callable[[], Result], *, timeout: float = 60.0, every: float = 0.05) -> Result:
    """Do the same in a test that is no coroutine."""
    deadline = time.monotonic() + timeout
    while not (value := predicate()):
        if time.monotonic() > deadline:
            raise AssertionError(f"not true within {timeout} s")
        time.sleep(every)
    return value


def too_dear(call: Callable[[], object], *, most: float) -> float | None:
    """Return what *call* costs where that is more than *most*, else None.

    The unit is the processor time of a fixed loop, half a millisecond or so. Both are measured in turns, until the best
    of the one fits the best of the other or ten turns have passed, so that a busy or slow machine fails nothing.
    """
    unit = cost = math.inf
    for _ in range(10):
        unit, cost = min(unit, _spent(_loop)), min(cost, _spent(call))
        if cost <= most * unit:
            return None
    return cost / unit


def _spent(call: Callable[[], object]) -> float:
    started = time.thread_time()
    call()
    return time.thread_time() - started


def _loop() -> None:
    number = 0
    for step in range(25_000):
        number ^= step


LOCK_WAITED_FOR = """
    select exists (select from pg_locks where not granted and pid in (
        select pid from pg_stat_activity where datname = current_database()))
"""
"""Asks whether somebody waits for a lock in this database; other tests have others on the same server."""
