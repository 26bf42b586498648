"""Sends attempts that ended without success back to the journal, many at a time."""

import asyncio
from collections.abc import Callable
from typing import Final

from boathook.db.deliveries import DeliveryStore, FailedAttempt
from boathook.domain import ids
from boathook.domain.errors import DatabaseError, DatabaseUnavailable
from boathook.domain.policy import DeadLetter
from boathook.observability.failpoints import failpoint
from boathook.observability.log import get_logger

_MOST: Final = 200
_PAUSE_S: Final = 0.5

Done = Callable[[FailedAttempt, bool], None]


class FailureWriter:
    """Attempts on their way back; while one batch is being written, the next one gathers."""

    def __init__(self, store: DeliveryStore, done: Done) -> None:
        self._store = store
        self._done = done
        self._waiting: list[FailedAttempt] = []
        self._wake = asyncio.Event()

    def put(self, ended: FailedAttempt) -> None:
        """Queue one; the callback is told when it is written and whether its lease still held."""
        self._waiting.append(ended)
        self._wake.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                batch, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
                await self._write(batch)

    async def _write(self, batch: list[FailedAttempt]) -> None:
        _pass_points(batch, "before_schedule", "before_move")
        while True:
            try:
                moved = await self._store.record_failed_attempts(batch)
            except DatabaseUnavailable:
                await asyncio.sleep(_PAUSE_S)
                continue
            except DatabaseError as error:
                await self._write_each(batch, error)
                return
            break
        _pass_points(batch, "after_schedule", "after_move")
        for ended, was_held in zip(batch, moved, strict=True):
            self._done(ended, was_held)

    async def _write_each(self, batch: list[FailedAttempt], error: DatabaseError) -> None:
        """Let one impossible row fail alone; its lease runs out and the keeper takes it from there."""
        if len(batch) > 1:
            for ended in batch:
                await self._write([ended])
            return
        name = ids.show_delivery(batch[0].claim.event_id, batch[0].claim.ordinal)
        get_logger("worker").error("set_back_refused", delivery=name, error=str(error))
        self._done(batch[0], False)


def _pass_points(batch: list[FailedAttempt], retry: str, dead: str) -> None:
    for ended in batch:
        failpoint(f"dead.{dead}" if isinstance(ended.move, DeadLetter) else f"retry.{retry}")
