"""The configuration that a supervisor hands to its children, and their garbage collection."""

import asyncio
import gc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from boathook.config import Settings


def finish_startup() -> None:
    """Let the collector work, and leave what start-up made out of every collection."""
    gc.freeze()
    gc.enable()


def tune_for_latency() -> None:
    """Do the same, and collect seldom: each collection shows in the slowest answers."""
    finish_startup()
    gc.set_threshold(10_000, 20, 50)


READY: Final = b"R"
HEARTBEAT: Final = b"."
PREPARED: Final = b"P"
"""What a supervisor says once the schemas are up to date and the routes of its handlers are known."""


class ChildConfig(msgspec.Struct, frozen=True):
    """What a child is told on its standard input."""

    slot: str
    """Its place, such as ``worker-0``: names its metrics and log lines."""
    worker_id: str
    """Names this process in leases; never used twice."""
    predecessors: list[str]
    """Worker ids that were in this slot before and are surely dead."""
    settings: str
    """The settings as JSON."""


@dataclass(frozen=True, slots=True)
class ProcessContext:
    """What a role needs of its process."""

    config: ChildConfig
    settings: Settings
    stop: asyncio.Event
    """Set when the process is to finish what it has begun and end."""
    beat: Callable[[], None]
    ready: Callable[[], None]
    prepared: asyncio.Event
    """Set when the supervisor has prepared the ground in PostgreSQL: before that, handlers are owed nothing yet."""
    bound: int
    """The descriptor of the socket that the supervisor has bound, or -1."""
