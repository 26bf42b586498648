"""Patches production code with a virtual clock, seeded randomness, a log into the trace and crash points that kill.

Production code runs unchanged: only names that its modules import are exchanged, while `patched` is in force.
"""

import asyncio
import contextlib
import datetime as dt
import importlib
import os as real_os
import random as real_random
import sys
import time as real_time
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, timedelta
from types import ModuleType
from typing import Any

from boathook.delivery import destination, http_executor, keeper
from boathook.spool import segment_store
from tests.simulation.loop import PROCESS, VirtualLoop
from tests.simulation.sending.receivers import Courier

BEGINNING = dt.datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC)
"""The moment at which every simulated run begins."""

ROOMS = (
    "boathook.delivery.",
    "boathook.handlers.",
    "boathook.db.",
    "boathook.ingest.intake",
    "boathook.delivery.http_attempt",
    "boathook.ingest.event_writer",
    "boathook.ingest.event_builder",
    "boathook.spool",
)
_ENTROPY = ("boathook.spool.segment", "boathook.ingest.event_builder")
_CODE = (
    "boathook.delivery.handler_executor",
    "boathook.delivery.keeper",
    "boathook.delivery.http_executor",
    "boathook.delivery.sender",
    "boathook.handlers.runner",
    "boathook.ingest.event_builder",
    "boathook.ingest.event_writer",
    "boathook.ingest.intake",
    "boathook.db.delivery_commands",
    "boathook.spool.spool",
)


def _loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def wall() -> dt.datetime:
    """Return the running process's wall clock."""
    loop = _loop()
    return BEGINNING + timedelta(seconds=loop.now) + PROCESS.get(loop.world).clock_ahead


class _Time:
    """The functions of the module `time` that production code uses."""

    @staticmethod
    def monotonic() -> float:
        return _loop().now

    perf_counter = monotonic

    @staticmethod
    def time() -> float:
        return wall().timestamp()

    @staticmethod
    def time_ns() -> int:
        return (wall() - dt.datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1) * 1_000


class _Random:
    """The functions of the module `random` that production code uses."""

    @staticmethod
    def random() -> float:
        return _loop().rng.random()

    @staticmethod
    def uniform(low: float, high: float) -> float:
        return _loop().rng.uniform(low, high)

    @staticmethod
    def getrandbits(bits: int) -> int:
        return _loop().rng.getrandbits(bits)

    @staticmethod
    def randrange(*bounds: int) -> int:
        return _loop().rng.randrange(*bounds)


class _LikeDatetime(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, dt.datetime)


class _Datetime(dt.datetime, metaclass=_LikeDatetime):
    @classmethod
    def now(cls, tz: Any = None) -> Any:
        return wall() if tz is not None else wall().replace(tzinfo=None)


class _Log:
    """Takes what production code logs into the trace of the run."""

    def bind(self, **_fields: object) -> "_Log":
        return self

    def is_enabled_for(self, _level: int) -> bool:
        return False

    def debug(self, event: str, **_fields: object) -> None:
        pass

    def warning(self, event: str, **fields: object) -> None:
        hear = _hear
        if hear is not None:
            hear(event, fields)

    info = error = exception = warning


class _Os:
    """The function of the module `os` that the spool's format and arriving events use."""

    @staticmethod
    def urandom(size: int) -> bytes:
        return _loop().rng.randbytes(size)


class _NoAlerts:
    """Alerts are evaluated beside the work, on separate connections; only the work is simulated."""

    def __init__(self, *_: object) -> None:
        pass

    @contextlib.asynccontextmanager
    async def run_in_background(self) -> AsyncIterator[None]:
        yield


_hear: Callable[[str, dict[str, object]], None] | None = None
_pass: Callable[[str], None] | None = None
_LOG = _Log()


def listen(hear: Callable[[str, dict[str, object]], None] | None, passed: Callable[[str], None] | None) -> None:
    """Set the receivers of log lines and of passed crash points; one run at a time."""
    global _hear, _pass
    _hear, _pass = hear, passed


def _crash_point(name: str) -> None:
    if _pass is not None:
        _pass(name)


def _exchanged(value: object) -> object | None:
    if isinstance(value, ModuleType):
        return {real_time: _Time, real_random: _Random}.get(value)
    if value is dt.datetime:
        return _Datetime
    return None


def _place_of(attempt: destination.Attempt) -> int:
    return hash((attempt.lease.event_id, attempt.lease.ordinal, attempt.lease.fence))


@contextlib.contextmanager
def patched() -> Iterator[None]:
    """Exchange clocks, chance, logs and crash points in production code for those of the running loop."""
    for name in _CODE:
        importlib.import_module(name)
    undo: list[tuple[object, str, object]] = []
    for module in [module for name, module in sorted(sys.modules.items()) if name.startswith(ROOMS)]:
        for name, value in list(vars(module).items()):
            new: object | None = _exchanged(value)
            if name == "get_logger":
                new = lambda _part: _LOG  # noqa: E731
            elif name == "failpoint":
                new = _crash_point
            elif name == "_LOG":
                new = _LOG
            elif value is real_os and module.__name__ in _ENTROPY:
                new = _Os
            if new is not None:
                undo.append((module, name, value))
                setattr(module, name, new)
    # What takes a minute outside takes a second here.
    undo.append((segment_store, "MIN_FOLDER_AGE_S", segment_store.MIN_FOLDER_AGE_S))
    segment_store.MIN_FOLDER_AGE_S = 1.0  # type: ignore[misc]
    # Nothing of the wire is left, and claims have the same places in sets in every process.
    undo += [
        (http_executor, "HttpSender", vars(http_executor)["HttpSender"]),
        (destination.Attempt, "__hash__", destination.Attempt.__hash__),
    ]
    undo.append((keeper, "AlertService", vars(keeper)["AlertService"]))
    vars(http_executor)["HttpSender"] = Courier
    vars(keeper)["AlertService"] = _NoAlerts
    destination.Attempt.__hash__ = _place_of  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        for owner, name, value in undo:
            setattr(owner, name, value)
