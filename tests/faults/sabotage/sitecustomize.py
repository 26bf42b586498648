"""Switches one safeguard of boathook off, in a process that is started for a twin: the same scenario must then fail.

Python imports this by itself at its start where this folder is on PYTHONPATH; ``BOATHOOK_SABOTAGE`` names a patch of
`PATCHES`. A patch is applied right after its module was first imported. What it replaces must exist, so that a rename
breaks the twin loudly instead of leaving it whole. Nothing of this is known to the product.
"""

import asyncio
import importlib.abc
import importlib.machinery
import os
import sys
import uuid
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

_background: set[Any] = set()


def replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    """Put ``make(what is there)`` in the place of an attribute that must be there."""
    if not hasattr(owner, name):
        os.write(2, f"sabotage: {owner.__name__} has no {name} any more; mend the patch\n".encode())
        os._exit(70)
    setattr(owner, name, make(getattr(owner, name)))


def answers_before_commit(intake: ModuleType) -> None:
    """Answer 2xx at once, and hand the event to the intake a moment later."""

    def make(accept: Any) -> Any:
        async def later(self: Any, event: Any) -> None:
            await asyncio.sleep(0.2)
            await accept(self, event)

        async def answer(self: Any, event: Any) -> Any:
            task = asyncio.create_task(later(self, event))
            _background.add(task)
            task.add_done_callback(_forget)
            return intake.Accepted(event.id)

        return answer

    replace(intake.Intake, "accept", make)


def _forget(task: "asyncio.Task[None]") -> None:
    _background.discard(task)
    if not task.cancelled():
        task.exception()


def forgets_keys(arrival: ModuleType) -> None:
    """Give each request a key of its own, so that no copy is known again."""
    replace(arrival, "_key_hash", lambda _: lambda source, verified: uuid.uuid4())
    replace(
        arrival.Arrivals,
        "event",
        lambda real: lambda self, *args: arrival.replace(real(self, *args), replay_hash=None),
    )


def forgets_conflicts(events: ModuleType) -> None:
    """Take every request with a known key for a copy, whatever its body."""

    def make(repeated: Any) -> Any:
        async def answer(self: Any, connection: Any, event: Any, seen: Any) -> Any:
            return events.Duplicate(seen["event_id"])

        return answer

    replace(events.EventStore, "_repeated", make)


def believes_everybody(hmac: ModuleType) -> None:
    """Find every signature good."""
    replace(hmac, "compare_digest", lambda _: lambda one, other: True)


def orders_nothing(filters: ModuleType) -> None:
    """Let no event wait for the one before it."""
    replace(filters, "_order_key", lambda _: lambda parts, body: None)


def commits_in_memory(database: ModuleType) -> None:
    """Let sessions commit as the server says, even where that is not durable."""

    def make(real: Any) -> Any:
        async def settings(url: str, timeout_s: float) -> dict[str, str]:
            found: dict[str, str] = await real(url, timeout_s)
            return {name: value for name, value in found.items() if name != "synchronous_commit"}

        return settings

    replace(database, "_make_durable", make)


def believes_every_answer(attempt: ModuleType) -> None:
    """Take whatever an endpoint does for a success."""
    replace(attempt, "verdict", lambda _: lambda answer: attempt.Success())


PATCHES: dict[str, tuple[str, Callable[[ModuleType], None]]] = {
    "answers_before_commit": ("boathook.inbound.intake", answers_before_commit),
    "believes_every_answer": ("boathook.outbound.attempt", believes_every_answer),
    "commits_in_memory": ("boathook.journal.database", commits_in_memory),
    "forgets_keys": ("boathook.inbound.arrival", forgets_keys),
    "forgets_conflicts": ("boathook.journal.events", forgets_conflicts),
    "believes_everybody": ("hmac", believes_everybody),
    "orders_nothing": ("boathook.domain.filters", orders_nothing),
}
"""By name: the module, and the function that patches it."""


class _Loader(importlib.abc.Loader):
    """Loads a module as usual, then patches it."""

    def __init__(self, usual: Any, patch: Callable[[ModuleType], None]) -> None:
        self._usual = usual
        self._patch = patch

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        found: ModuleType | None = self._usual.create_module(spec)
        return found

    def exec_module(self, module: ModuleType) -> None:
        self._usual.exec_module(module)
        self._patch(module)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the one module that is to be patched."""

    def __init__(self, name: str, patch: Callable[[ModuleType], None]) -> None:
        self._name = name
        self._patch = patch

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None:
            spec.loader = _Loader(spec.loader, self._patch)
        return spec


def sabotage(name: str) -> None:
    """Arrange for the patch of this name."""
    module, patch = PATCHES[name]
    if module in sys.modules:
        patch(sys.modules[module])
    else:
        sys.meta_path.insert(0, _Finder(module, patch))


if os.environ.get("BOATHOOK_SABOTAGE"):
    sabotage(os.environ["BOATHOOK_SABOTAGE"])
