"""The configuration that the supervisor passes to its children, and their garbage collection."""

import asyncio
import gc
from collections.abc import Callable
from typing import Final

import msgspec

from boathook.config import Settings


def finish_startup() -> None:
    """Enable garbage collection, and exclude the objects created at start-up from it."""
    gc.freeze()
    gc.enable()


def tune_for_latency() -> None:
    """Do the same, and collect rarely, because each collection adds to tail latency."""
    finish_startup()
    gc.set_threshold(10_000, 20, 50)


READY: Final = b"R"
HEARTBEAT: Final = b"."
PREPARED: Final = b"P"
"""Sent by the supervisor once the schemas are up to date and the handlers' routes are registered."""


class ChildConfig(msgspec.Struct, frozen=True):
    """The configuration that a child reads from its standard input."""

    slot: str
    """Its slot, such as ``worker-0``; names its metrics and log lines."""
    worker_id: str
    """Identifies this process in leases; never reused."""
    predecessors: list[str]
    """Worker ids of earlier processes in this slot, which are certainly dead."""
    settings: str
    """The settings as JSON."""


class ProcessContext(msgspec.Struct, frozen=True):
    """The dependencies of a role within its process."""

    config: ChildConfig
    settings: Settings
    stop: asyncio.Event
    """Set when the process must finish its current work and exit."""
    beat: Callable[[], None]
    ready: Callable[[], None]
    prepared: asyncio.Event
    """Set when schemas are current and routes are registered; before that, events get no deliveries to handlers."""
    bound: int
    """The descriptor of the socket that the supervisor has bound, or -1."""
