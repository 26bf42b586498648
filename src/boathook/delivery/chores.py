"""The apps' chores: what `Boathook.every` declares, done by the process that is the keeper.

The keeper's seat says who does them, and a turn at each says that nobody else is doing it: a process that has lost its
seat may not have noticed yet, and a chore may take its time to end.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from boathook.db.advisory_lock import try_advisory_lock
from boathook.db.database import Connection, Database, is_connection_closed
from boathook.domain.errors import DatabaseError
from boathook.handlers.api import Boathook
from boathook.handlers.manifest import Chore
from boathook.observability import meters
from boathook.observability.log import get_logger

_WATCH_S: Final = 0.5
"""How often a chore's turn is looked after while the chore is being done."""
_LOG = get_logger("keeper")


@dataclass(frozen=True, slots=True)
class _Owned:
    """A chore with the app that declares it."""

    app: str
    chore: Chore

    @property
    def title(self) -> str:
        return f"{self.app}.{self.chore.name}"


class AppChores:
    """The chores of all apps of a process, each in a task of its own.

    Args:
        database: has a connection for each of them.
        hooks: what they are declared on.
        drain_s: how long a chore may take to end once it is told to.
    """

    def __init__(self, database: Database, hooks: Iterable[Boathook], *, drain_s: float) -> None:
        self._database = database
        self._drain_s = drain_s
        self._owned = [_Owned(hook.name or "app", chore) for hook in hooks for chore in hook.manifest.chores]

    @asynccontextmanager
    async def run_in_background(self) -> AsyncIterator[None]:
        """Do each when it is due, for as long as the block runs; at its end break off what is under way."""
        tasks = {asyncio.create_task(self._repeat(one), name=f"chore:{one.title}"): one for one in self._owned}
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                _, stuck = await asyncio.wait(tasks, timeout=self._drain_s)
                for task in stuck:
                    _LOG.error("chore_stuck", app=tasks[task].app, chore=tasks[task].chore.name)

    async def _repeat(self, one: _Owned) -> None:
        due_at = time.monotonic()
        while True:
            await asyncio.sleep(due_at - time.monotonic())
            await self._take_turn(one)
            due_at = next_time(due_at, one.chore.every_s, time.monotonic())

    async def _take_turn(self, one: _Owned) -> None:
        try:
            async with try_advisory_lock(self._database, one.title) as connection:
                if connection is not None:
                    await _hold(connection, one)
        except DatabaseError as error:
            _LOG.warning("chore_put_off", app=one.app, chore=one.chore.name, error=str(error))


def next_time(due_at: float, every_s: float, now: float) -> float:
    """Return when a chore that was due at *due_at* is due again: as planned, leaving out what has passed meanwhile."""
    return due_at + every_s * max(1, math.ceil((now - due_at) / every_s))


async def _hold(turn_of: Connection, one: _Owned) -> None:
    """Do a chore, and break it off when its turn is lost; returns when it has ended."""
    doing = asyncio.create_task(_do(one), name=f"doing:{one.title}")
    try:
        while not doing.done() and not is_connection_closed(turn_of):
            await asyncio.wait({doing}, timeout=_WATCH_S)
    finally:
        doing.cancel()
        await asyncio.wait({doing})


async def _do(one: _Owned) -> None:
    """Do a chore once; an error is logged and counted, and goes no further."""
    app, name = one.app, one.chore.name
    outcome, started = "broken_off", time.monotonic()
    try:
        await one.chore.function()
        outcome = "done"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - it is the app's own code
        outcome = "failed"
        _LOG.error("chore_failed", app=app, chore=name, exc_info=error)
    finally:
        meters.count("boathook_chores_total", app=app, chore=name, outcome=outcome)
        meters.observe("boathook_chore_seconds", time.monotonic() - started, app=app, chore=name)
