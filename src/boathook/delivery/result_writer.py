"""Attempts over HTTP on their way into the journal, many at a time, with what they say of their endpoints."""

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final
from uuid import UUID

from boathook.db.endpoint_deliveries import BreakerRules, EndpointDeliveryStore, FailureSummary, FinishedSend
from boathook.delivery.endpoint_queues import Attempt
from boathook.delivery.http_attempt import GONE
from boathook.delivery.operational_webhooks import OperationalWebhooks, operational_event_type
from boathook.delivery.prepared_endpoint import UNREADABLE
from boathook.domain import ids
from boathook.domain.errors import DatabaseError, DatabaseUnavailable
from boathook.domain.policy import Complete
from boathook.http_client.messages import TransportFailure
from boathook.observability import meters
from boathook.observability.failpoints import failpoint
from boathook.observability.log import get_logger

_MOST: Final = 500
_PACE_S: Final = 0.01
"""Shortest time between two batches, unless somebody waits for one: what is written together costs the journal less."""
_PAUSE_S: Final = 0.5
_ROUNDS: Final = 3
_OURS: Final = frozenset({UNREADABLE, TransportFailure.PROXY.value, TransportFailure.FAULT.value})
"""Codes of failures that no endpoint is disabled for, because the fault may be ours."""

Done = Callable[[Attempt, FinishedSend, bool], None]


class ResultWriter:
    """Ended attempts; while one batch is being written, the next one gathers.

    Args:
        done: told of each when it is written, and whether its fence still held.
    """

    def __init__(self, store: EndpointDeliveryStore, rules: BreakerRules, done: Done) -> None:
        self._store = store
        self._rules = rules
        self._done = done
        self._reporter = OperationalWebhooks()
        self._waiting: list[tuple[Attempt, FinishedSend]] = []
        self._wake = asyncio.Event()
        self._is_held_up = asyncio.Event()
        """Whether another delivery waits for what is to be written."""
        self._is_writing = False
        self._log = get_logger("sender")

    @property
    def is_idle(self) -> bool:
        """Whether all is written."""
        return not self._waiting and not self._is_writing

    def put(self, attempt: Attempt, ended: FinishedSend) -> None:
        """Queue one."""
        self._waiting.append((attempt, ended))
        self._wake.set()
        if _holds_up(attempt, ended):
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
                await self._try_update_health(batch)
                self._is_writing = False
                await self._gather(began + _PACE_S)

    async def _gather(self, until: float) -> None:
        """Let the next batch grow, unless something in it holds up the next delivery."""
        self._is_held_up.clear()
        if not any(_holds_up(attempt, ended) for attempt, ended in self._waiting):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(until - time.monotonic()):
                    await self._is_held_up.wait()

    async def _write(self, batch: Sequence[tuple[Attempt, FinishedSend]]) -> None:
        failpoint("send.before_settle")
        held = await self._settle([ended for _, ended in batch])
        failpoint("send.after_settle")
        for (attempt, ended), is_held in zip(batch, held, strict=True):
            self._done(attempt, ended, is_held)

    async def _settle(self, ended: Sequence[FinishedSend]) -> list[bool]:
        """Write attempts; an impossible one fails alone, and its lease runs out."""
        after = self._reporter.publish_attempts if any(operational_event_type(one) for one in ended) else None
        refusals = 0
        while True:
            try:
                return await self._store.settle(ended, after=after)
            except DatabaseUnavailable as error:
                self._log.warning("settle_delayed", attempts=len(ended), error=str(error))
                await asyncio.sleep(_PAUSE_S)
            except DatabaseError as error:
                refusals += 1
                if refusals < _ROUNDS:
                    continue
                if len(ended) > 1:
                    return [held for one in ended for held in await self._settle([one])]
                name = ids.show_delivery(ended[0].send.event_id, ended[0].send.ordinal)
                self._log.error("settle_refused", delivery=name, error=str(error))
                return [False]

    async def _try_update_health(self, batch: Sequence[tuple[Attempt, FinishedSend]]) -> None:
        """Write what the batch says of its endpoints, which is told anew by the next failure where it cannot be."""
        try:
            await self._update_health(batch)
        except DatabaseError as error:
            self._log.warning("health_not_written", error=str(error))

    async def _update_health(self, batch: Sequence[tuple[Attempt, FinishedSend]]) -> None:
        queues = {attempt.queue.endpoint_id: attempt.queue for attempt, _ in batch}
        probed = [attempt.queue for attempt, _ in batch if attempt.send.is_probe]
        for queue in probed:  # also where the rest cannot be written: until then the probe's hold keeps others away
            queue.is_probing = False
        failures, well = summarize_health([ended for _, ended in batch])
        healed = [key for key in well if queues[key].is_unhealthy or queues[key].open_until is not None]
        if healed:
            await self._store.mark_healthy(healed)
        for key in healed:
            queues[key].is_unhealthy = queues[key].is_probing = False
            queues[key].open_until = None
        if not failures:
            return
        standings = await self._store.update_health(failures, self._rules, random.random)
        for key, health in standings.items():
            queue = queues[key]
            was_open = queue.open_until is not None and queue not in probed
            queue.is_unhealthy, queue.is_probing, queue.open_until = True, False, health.open_until
            if health.open_until is not None and not was_open:
                self._log.warning("endpoint_paused", endpoint=ids.show(ids.ENDPOINT, key), pauses=health.pauses)
        should_disable = {key for key, health in standings.items() if health.should_disable}
        await self._disable([ended for _, ended in batch], should_disable)

    async def _disable(self, batch: Sequence[FinishedSend], should_disable: set[UUID]) -> None:
        for one in batch:
            if isinstance(one.move, Complete):
                continue
            key = one.send.endpoint_id
            is_gone = one.move.code == GONE
            if not is_gone and key not in should_disable:
                continue
            should_disable.discard(key)
            because = "gone" if is_gone else "failing"
            is_disabled = await self._store.disable(
                key, because, revision=one.send.revision, then=self._reporter.publish_disabled
            )
            if is_disabled:
                meters.count("boathook_endpoints_disabled_total", because=because)
                self._log.warning("endpoint_disabled", endpoint=ids.show(ids.ENDPOINT, key), because=because)


def _holds_up(attempt: Attempt, ended: FinishedSend) -> bool:
    """Return whether another delivery cannot be claimed before this one is written."""
    return ended.send.is_ordered or attempt.queue.concurrency is not None


def summarize_health(batch: Iterable[FinishedSend]) -> tuple[list[FailureSummary], set[UUID]]:
    """Return what attempts, in the order they ended, say of endpoints: those whose latest failed, and those well."""
    failures: dict[UUID, FailureSummary] = {}
    succeeded: set[UUID] = set()
    for one in batch:
        key = one.send.endpoint_id
        if isinstance(one.move, Complete):
            failures.pop(key, None)
            succeeded.add(key)
            continue
        known = failures.get(key)
        failures[key] = FailureSummary(
            endpoint_id=key,
            failed=1 if known is None else known.failed + 1,
            is_after_success=key in succeeded,
            is_endpoint_fault=one.move.code not in _OURS or (known is not None and known.is_endpoint_fault),
            is_probe=one.send.is_probe or (known is not None and known.is_probe),
        )
    return sorted(failures.values(), key=lambda one: one.endpoint_id), succeeded - failures.keys()
