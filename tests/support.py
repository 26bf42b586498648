"""Waiting in tests: for a condition with a deadline, never for a length of time; and forks in which a crash is seen."""

import asyncio
import contextlib
import faulthandler
import inspect
import logging
import math
import os
import resource
import time
import traceback
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, MutableMapping
from typing import Any, TypeVar

import hypothesis
import pytest
import structlog
from structlog.testing import capture_logs

Result = TypeVar("Result")


async def eventually(
    predicate: Callable[[], Result] | Callable[[], Awaitable[Result]], *, timeout: float = 300.0, every: float = 0.02
) -> Result:
    """Return the predicate's first true value; fail where it has none within *timeout* seconds.

    The predicate may be a coroutine function. An exception that it raises counts as false; the last one is shown at the
    end, as the cause of the failure. *every* is the first pause in seconds; later ones are up to ten times as long, and
    longer than the looks, which would otherwise take the processor from what they wait for.
    """
    began = time.monotonic()
    while True:
        cause, looked = None, time.monotonic()
        try:
            value = predicate()
            if inspect.isawaitable(value):
                value = await value
            if value:
                return value
        except Exception as error:  # noqa: BLE001 - whatever it is, it may be gone at the next look
            cause = error
        _check(began, timeout, cause)
        await asyncio.sleep(_pause(every, began, looked))


@contextlib.contextmanager
def logged() -> Iterator[list[MutableMapping[str, Any]]]:
    """Collect the log lines of the block, from the level info on, as their fields."""
    level = structlog.get_config()["wrapper_class"]
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    try:
        with capture_logs() as lines:
            yield lines
    finally:
        structlog.configure(wrapper_class=level)


def run_and_close(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    """Run *work* in a loop and close it, in a thread without another loop."""
    try:
        loop.run_until_complete(work)
    finally:
        loop.close()


def until(predicate: Callable[[], Result], *, timeout: float = 300.0, every: float = 0.05) -> Result:
    """Do the same in a test that is no coroutine."""
    began = time.monotonic()
    while True:
        cause, looked = None, time.monotonic()
        try:
            if value := predicate():
                return value
        except Exception as error:  # noqa: BLE001 - as above
            cause = error
        _check(began, timeout, cause)
        time.sleep(_pause(every, began, looked))


def _pause(every: float, began: float, looked: float) -> float:
    now = time.monotonic()
    return max(min(10 * every, (now - began) / 20), every, min(2 * (now - looked), 2.0))


def _check(began: float, timeout: float, cause: Exception | None) -> None:
    if time.monotonic() - began > timeout:
        reason = f": {type(cause).__name__}: {cause}" if cause else ""
        raise AssertionError(f"not true within {timeout} s{reason}") from cause


def sampled(values: Iterable[Any], keep: int) -> list[Any]:
    """Return *values* as parameters of a test, the first *keep* of them for each run, the others for `make test-all`."""
    mark = pytest.mark.extended("repeats what stays with other values")
    return [
        value if n < keep else pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=mark)
        for n, value in enumerate(values)
    ]


def examples(full: int) -> int:
    """Return how many examples a property runs that has *full* of them in `make test-all`: a tenth in `make test`."""
    return full * hypothesis.settings.default.max_examples // 100


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
"""Asks whether a session waits for a lock in this database; other tests have others on the same server."""


def exit_code(call: Callable[[], object], *, cpu_s: int, refusal: type[Exception] | None = None) -> int:
    """Run *call* in a fork with a limit of processor time in seconds, so that a crash is seen.

    Returns its exit code: 0, 22 where it raised *refusal*, 1 for another exception, negative where a signal ended it.
    """
    if (pid := os.fork()) == 0:
        faulthandler.disable()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s))
        try:
            call()
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 - the fork must not go on as a second test run
            if refusal is not None and isinstance(error, refusal):
                os._exit(22)
            traceback.print_exc()
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def is_whole(config: pytest.Config) -> bool:
    """Return whether this run collects just what `make test` does, so that its own list of tests answers for it."""
    is_everywhere = [config.rootpath / argument for argument in config.args] == [config.rootpath / "tests"]
    return is_everywhere and not config.option.keyword and config.option.markexpr in config.getini("addopts")
