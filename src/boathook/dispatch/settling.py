"""Attempts over HTTP on their way into the journal, many at a time, with what they say of their endpoints."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from uuid import UUID

from boathook.dispatch.lanes import Flight
from boathook.dispatch.news import Reporter, news_of
from boathook.dispatch.posts import UNREADABLE
from boathook.domain import ids
from boathook.domain.errors import JournalError, JournalUnavailable
from boathook.domain.policy import Settle
from boathook.journal.sending import BreakerRules, Ended, Failures, SendStore
from boathook.outbound.attempt import GONE
from boathook.outbound.outgoing import Trouble
from boathook.telemetry import emit
from boathook.telemetry.crashpoints import crash_point
from boathook.telemetry.log import get_logger

_MOST: Final = 500
_PACE_S: Final = 0.01
"""Shortest time between two batches, unless somebody waits for one: what is written together costs the journal less."""
_PAUSE_S: Final = 0.5
_ROUNDS: Final = 3
_OURS: Final = frozenset({UNREADABLE, Trouble.PROXY.value, Trouble.FAULT.value})
"""Codes of failures that no endpoint is disabled for, because the fault may be ours."""

Done = Callable[[Flight, Ended, bool], None]


class Settling:
    """Ended attempts; while one batch is being written, the next one gathers.

    Args:
        done: told of each when it is written, and whether its fence still held.
    """

    def __init__(self, store: SendStore, rules: BreakerRules, done: Done) -> None:
        self._store = store
        self._rules = rules
        self._done = done
        self._reporter = Reporter()
        self._waiting: list[tuple[Flight, Ended]] = []
        self._wake = asyncio.Event()
        self._is_held_up = asyncio.Event()
        """Whether another delivery waits for what is to be written."""
        self._is_writing = False
        self._log = get_logger("sender")

    @property
    def is_idle(self) -> bool:
        """Whether all is written."""
        return not self._waiting and not self._is_writing

    def put(self, flight: Flight, ended: Ended) -> None:
        """Queue one."""
        self._waiting.append((flight, ended))
        self._wake.set()
        if _holds_up(flight, ended):
            self._is_held_up.set()

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._waiting:
                began = time.monotonic()
                batch, self._waiting = self._waiting[:_MOST], self._waiting[_MOST:]
                self._is_writing = True
                await self._write(batch)
                await self._insist(batch)
                self._is_writing = False
                await self._gather(began + _PACE_S)

    async def _gather(self, until: float) -> None:
        """Let the next batch grow, unless something in it holds up the next delivery."""
        self._is_held_up.clear()
        if not any(_holds_up(flight, ended) for flight, ended in self._waiting):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until - time.monotonic()):
                    await self._is_held_up.wait()

    async def _write(self, batch: Sequence[tuple[Flight, Ended]]) -> None:
        crash_point("send.before_settle")
        held = await self._settle([ended for _, ended in batch])
        crash_point("send.after_settle")
        for (flight, ended), is_held in zip(batch, held, strict=True):
            self._done(flight, ended, is_held)

    async def _settle(self, ended: Sequence[Ended]) -> list[bool]:
        """Write attempts; an impossible one fails alone, and its lease runs out."""
        after = self._reporter.tell_attempts if any(news_of(one) for one in ended) else None
        refusals = 0
        while True:
            try:
                return await self._store.settle(ended, after=after)
            except JournalUnavailable as error:
                self._log.warning("settle_delayed", attempts=len(ended), error=str(error))
                await asyncio.sleep(_PAUSE_S)
            except JournalError as error:
                refusals += 1
                if refusals < _ROUNDS:
                    continue
                if len(ended) > 1:
                    return [held for one in ended for held in await self._settle([one])]
                name = ids.show_delivery(ended[0].send.event_id, ended[0].send.ordinal)
                self._log.error("settle_refused", delivery=name, error=str(error))
                return [False]

    async def _insist(self, batch: Sequence[tuple[Flight, Ended]]) -> None:
        """Write what the batch says of its endpoints, which is told anew by the next failure where it cannot be."""
        try:
            await self._judge(batch)
        except JournalError as error:
            self._log.warning("health_not_written", error=str(error))

    async def _judge(self, batch: Sequence[tuple[Flight, Ended]]) -> None:
        lanes = {flight.lane.endpoint_id: flight.lane for flight, _ in batch}
        probed = [flight.lane for flight, _ in batch if flight.send.is_probe]
        for lane in probed:  # also where the rest cannot be written: until then the probe's hold keeps others away
            lane.is_probing = False
        failures, well = weigh([ended for _, ended in batch])
        healed = [key for key in well if lanes[key].is_ailing or lanes[key].open_until is not None]
        if healed:
            await self._store.heal(healed)
        for key in healed:
            lanes[key].is_ailing = lanes[key].is_probing = False
            lanes[key].open_until = None
        if not failures:
            return
        standings = await self._store.judge(failures, self._rules, random.random)
        for key, health in standings.items():
            lane = lanes[key]
            was_open = lane.open_until is not None and lane not in probed
            lane.is_ailing, lane.is_probing, lane.open_until = True, False, health.open_until
            if health.open_until is not None and not was_open:
                self._log.warning("endpoint_paused", endpoint=ids.show(ids.ENDPOINT, key), pauses=health.pauses)
        hopeless = {key for key, health in standings.items() if health.is_hopeless}
        await self._disable([ended for _, ended in batch], hopeless)

    async def _disable(self, batch: Sequence[Ended], hopeless: set[UUID]) -> None:
        for one in batch:
            if isinstance(one.move, Settle):
                continue
            key = one.send.endpoint_id
            is_gone = one.move.code == GONE
            if not is_gone and key not in hopeless:
                continue
            hopeless.discard(key)
            because = "gone" if is_gone else "failing"
            is_disabled = await self._store.disable(
                key, because, revision=one.send.revision, then=self._reporter.tell_disabled
            )
            if is_disabled:
                emit.count("boathook_endpoints_disabled_total", because=because)
                self._log.warning("endpoint_disabled", endpoint=ids.show(ids.ENDPOINT, key), because=because)


def _holds_up(flight: Flight, ended: Ended) -> bool:
    """Return whether another delivery cannot be claimed before this one is written."""
    return ended.send.is_ordered or flight.lane.concurrency is not None


def weigh(batch: Iterable[Ended]) -> tuple[list[Failures], set[UUID]]:
    """Return what attempts, in the order they ended, say of endpoints: those whose latest failed, and those well."""
    failures: dict[UUID, Failures] = {}
    succeeded: set[UUID] = set()
    for one in batch:
        key = one.send.endpoint_id
        if isinstance(one.move, Settle):
            failures.pop(key, None)
            succeeded.add(key)
            continue
        known = failures.get(key)
        failures[key] = Failures(
            endpoint_id=key,
            failed=1 if known is None else known.failed + 1,
            is_after_success=key in succeeded,
            is_theirs=one.move.code not in _OURS or (known is not None and known.is_theirs),
            is_probe=one.send.is_probe or (known is not None and known.is_probe),
        )
    return sorted(failures.values(), key=lambda one: one.endpoint_id), succeeded - failures.keys()
