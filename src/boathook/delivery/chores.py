"""Runs the apps' chores, declared with `Boathook.every`, in the process that is the keeper.

The keeper election selects the process. An advisory lock per chore ensures that no other process runs the same chore:
a process may notice late that it is no longer the keeper, and a chore may take time to end.
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from boathook.db.advisory_lock import try_advisory_lock
from boathook.db.database import Connection, Database, is_connection_closed
from boathook.domain.errors import DatabaseError
from boathook.handlers.api import Boathook
from boathook.handlers.manifest import Chore
from boathook.observability import meters
from boathook.observability.log import get_logger

_WATCH_S: Final = 0.5
"""How often a running chore's lock is checked."""
_LOG = get_logger("keeper")


class _Owned(msgspec.Struct, frozen=True):
    """A chore and the app that declares it."""

    app: str
    chore: Chore

    @property
    def title(self) -> str:
        return f"{self.app}.{self.chore.name}"


class AppChores:
    """Runs the chores of all apps of a process, each in its own task.

    Args:
        database: has a connection for each chore.
        hooks: the apps that declare the chores.
        drain_s: seconds that a chore gets to end after it is cancelled.
    """

    def __init__(self, database: Database, hooks: Iterable[Boathook], *, drain_s: float) -> None:
        self._database = database
        self._drain_s = drain_s
        self._owned = [_Owned(hook.name or "app", chore) for hook in hooks for chore in hook.manifest.chores]

    @asynccontextmanager
    async def run_in_background(self) -> AsyncIterator[None]:
        """Run each chore when it is due while the block runs; cancel running chores at its end."""
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
            await self._run_if_locked(one)
            due_at = next_time(due_at, one.chore.every_s, time.monotonic())

    async def _run_if_locked(self, one: _Owned) -> None:
        try:
            async with try_advisory_lock(self._database, one.title) as connection:
                if connection is not None:
                    await _hold(connection, one)
        except DatabaseError as error:
            _LOG.warning("chore_put_off", app=one.app, chore=one.chore.name, error=str(error))


def next_time(due_at: float, every_s: float, now: float) -> float:
    """Return the next due time of a chore that was due at *due_at*; missed runs are skipped."""
    return due_at + every_s * max(1, math.ceil((now - due_at) / every_s))


async def _hold(lock_connection: Connection, one: _Owned) -> None:
    """Run a chore, and cancel it if its lock is lost; return when it has ended."""
    doing = asyncio.create_task(_do(one), name=f"doing:{one.title}")
    try:
        while not doing.done() and not is_connection_closed(lock_connection):
            await asyncio.wait({doing}, timeout=_WATCH_S)
    finally:
        doing.cancel()
        await asyncio.wait({doing})


async def _do(one: _Owned) -> None:
    """Run a chore once; an error is logged and counted, not raised."""
    app, name = one.app, one.chore.name
    outcome, started = "broken_off", time.monotonic()
    try:
        await one.chore.function()
        outcome = "done"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the chore is the app's own code
        outcome = "failed"
        _LOG.error("chore_failed", app=app, chore=name, exc_info=error)
    finally:
        meters.count("boathook_chores_total", app=app, chore=name, outcome=outcome)
        meters.observe("boathook_chore_seconds", time.monotonic() - started, app=app, chore=name)
