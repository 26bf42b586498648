"""Selects the next handler to run in one worker, and how much of each handler's due work to claim.

Fairness has two parts. Among waiting claims, the handler with the fewest running attempts goes first. Each idle handler
has one slot reserved, up to half of all slots, so that its next delivery starts immediately while another handler is
slow.

A claim may prefetch what the handler does in a few hundredths of a second. A fast handler then does not wait for
PostgreSQL between two attempts, while the work of a slow one remains available to other workers.
"""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from logging import INFO
from typing import Any, Final

from boathook.db.deliveries import EPOCH, ClaimedDelivery, ClaimLimit, DeliveryStore
from boathook.delivery.destination import Attempt
from boathook.delivery.dispatcher import DatabaseClock
from boathook.domain import ids
from boathook.domain.errors import DatabaseError, HandlerTimeout
from boathook.domain.policy import (
    AttemptState,
    Breaker,
    BreakerState,
    BreakerStatus,
    Completed,
    Result,
    RetryDefaults,
    RetryPolicy,
)
from boathook.handlers.handler import Handler
from boathook.handlers.runner import RunningAttempt
from boathook.observability import meters
from boathook.observability.failpoints import failpoint
from boathook.observability.log import get_logger

PREFETCH_S: Final = 0.03
MAX_PREFETCH: Final = 100
FULL_SCAN_INTERVAL_S: Final = 1.0
"""Interval between claims that ignore the watermark."""
_OVERLAP: Final = timedelta(seconds=0.25)
"""How far the watermark stays behind the latest claim: transactions do not commit in the order they begin."""
_EWMA_WEIGHT: Final = 0.2
_LOG: Final = get_logger("worker")


class HandlerAttempt(Attempt):
    """One attempt to run the handler of a delivery."""

    __slots__ = ("claimed_s", "is_blocking", "queue", "running", "work")

    SUCCEEDED_EVENT = "attempt_ended"
    SUCCEEDED_LEVEL = INFO
    FAILED_EVENT = "attempt_failed"
    is_single = False

    def __init__(self, work: ClaimedDelivery, queue: "HandlerQueue", lease_until: float) -> None:
        super().__init__(work.claim, lease_until)
        self.work = work
        self.queue = queue
        self.claimed_s = time.monotonic()
        self.is_blocking = work.claim.order_key is not None or queue.handler.max_concurrency is not None
        self.running: RunningAttempt | None = None

    @property
    def state(self) -> AttemptState:
        """See `Attempt.state`."""
        claim = self.work.claim
        number = claim.attempt - claim.attempts_before
        return AttemptState(attempt=number, enqueued_at=claim.enqueued_at, free_retries=claim.free_retries)

    @property
    def policy(self) -> RetryPolicy:
        """The retry policy of the handler, or that of the event's source."""
        event = self.work.event
        return self.queue.handler.retry or self.queue.retries.of(event.source if event is not None else None)

    @property
    def label(self) -> str:
        """The recipient."""
        return self.recipient

    @property
    def recipient(self) -> str:
        """See `Attempt.recipient`."""
        return self.work.claim.recipient

    def fields(self) -> dict[str, Any]:
        """See `Attempt.fields`."""
        claim, event = self.work.claim, self.work.event
        return {
            "delivery": ids.show_delivery(claim.event_id, claim.ordinal),
            "recipient": claim.recipient,
            "attempt": claim.attempt,
            "source": event.source if event else None,
            "type": event.type if event else None,
            "dedup_key": event.dedup_key if event else None,
        }

    def count(self, outcome: str) -> None:
        """See `Attempt.count`."""
        meters.count("boathook_attempts_total", recipient=self.work.claim.recipient, outcome=outcome)


class HandlerQueue:
    """One handler in one worker: its waiting claims and running attempts."""

    def __init__(self, handler: Handler, retries: RetryDefaults) -> None:
        self.handler = handler
        self.retries = retries
        self.waiting: deque[HandlerAttempt] = deque()
        self.running = 0
        self.has_more_due = False
        """Whether more deliveries may be due than are claimed."""
        self._mean_s: float | None = None
        self._since: datetime = EPOCH
        self._full_look_at = 0.0

    def prefetch_limit(self, places: int) -> int:
        """Return how many claims may wait for a slot."""
        if self._mean_s is None:
            return 0
        return min(MAX_PREFETCH, int(places * PREFETCH_S / max(self._mean_s, 0.0001)))

    def claim_limit(self, slots: int, now_s: float) -> ClaimLimit:
        """Return the claim limit of *slots* deliveries: from the watermark on or, once a second, from the beginning."""
        since = self._since
        if now_s - self._full_look_at >= FULL_SCAN_INTERVAL_S:
            self._full_look_at = now_s
            since = EPOCH
        return ClaimLimit(self.handler.recipient, slots, since, self.handler.max_concurrency)

    def accept(self, attempts: list[HandlerAttempt]) -> None:
        """Add claimed attempts."""
        self.waiting.extend(attempts)
        if attempts:
            self._since = attempts[-1].work.due_at - _OVERLAP

    def record(self, took_s: float) -> None:
        """Record the duration of an attempt."""
        mean = self._mean_s
        self._mean_s = took_s if mean is None else mean + _EWMA_WEIGHT * (took_s - mean)


class Breakers:
    """The circuit breakers of one worker; handlers that name the same dependency share one."""

    def __init__(self) -> None:
        self._standings: dict[str, BreakerStatus] = {}

    def open_until(self, breaker: Breaker) -> datetime | None:
        """Return when the next probe may start; None while the breaker is closed."""
        return self._status(breaker).open_until(breaker)

    def _status(self, breaker: Breaker) -> BreakerStatus:
        return self._standings.get(breaker.dependency, BreakerStatus())

    def room(self, breaker: Breaker | None, running: int, now: datetime) -> int | None:
        """Return how many more attempts may start while *running* are running; None means no limit."""
        if breaker is None:
            return None
        status = self._status(breaker)
        if status.state(breaker, now) is BreakerState.CLOSED:
            return None
        return 1 if status.may_run(breaker, now, running) else 0

    def record(self, breaker: Breaker, error: BaseException | None, now: datetime) -> BreakerState:
        """Record the result of an attempt and return the new state of the breaker."""
        status = self._status(breaker).after(breaker, error, now)
        self._standings[breaker.dependency] = status
        return status.state(breaker, now)


class HandlerQueues:
    """The queues of all handlers of one worker.

    Args:
        places: maximum number of concurrent attempts.
        only_suspects: claim only deliveries that have lost their worker twice in a row, one at a time.
    """

    def __init__(
        self, handlers: Mapping[str, Handler], places: int, *, store: DeliveryStore, worker_id: str, lease_s: float,
        retries: RetryDefaults, clock: DatabaseClock, only_suspects: bool = False,
    ) -> None:  # fmt: skip
        self.queues = {handler.recipient: HandlerQueue(handler, retries) for handler in handlers.values()}
        self._places = places
        self._store = store
        self._worker_id = worker_id
        self._lease_s = lease_s
        self._clock = clock
        self._only_suspects = only_suspects
        self._breakers = Breakers()
        self._turn: dict[str, int] = dict.fromkeys(self.queues, 0)
        self._turns = 0

    @property
    def running(self) -> int:
        """Number of running attempts."""
        return sum(queue.running for queue in self.queues.values())

    def has_waiting(self) -> bool:
        """Return whether a claim waits for a slot."""
        return any(queue.waiting for queue in self.queues.values())

    # Claiming

    async def discover(self, wake: Callable[[], None]) -> float:
        """Include every handler in the next claim."""
        self._look_again()
        wake()
        return math.inf

    def include(self, recipients: Sequence[str], wake: Callable[[], None]) -> list[str]:
        """See `Queues.include`. New deliveries have never lost a worker."""
        queues = [self.queues[name] for name in recipients if name in self.queues and not self._only_suspects]
        for queue in queues:
            queue.has_more_due = True
        if queues:
            wake()
        return []

    async def look_up(self, recipients: Sequence[str], wake: Callable[[], None]) -> bool:  # noqa: ARG002
        """See `Queues.look_up`; `include` leaves nothing to it."""
        return True

    def surplus(self) -> list[str]:
        """See `Queues.surplus`."""
        return [
            queue.handler.recipient
            for queue in self.queues.values()
            if queue.has_more_due and queue.handler.max_concurrency is None and self._is_full(queue)
        ]

    def _is_full(self, queue: HandlerQueue) -> bool:
        return self._room(queue) <= 0 or len(queue.waiting) > queue.prefetch_limit(self._places) // 2

    def _look_again(self) -> None:
        for queue in self.queues.values():
            queue.has_more_due = True

    def resume(self, attempt: HandlerAttempt) -> None:
        """Include the attempt's handler in the next claim."""
        attempt.queue.has_more_due = True

    async def claim(self) -> tuple[list[HandlerAttempt], float]:
        """Claim once; return the claims, and the seconds until more may be due."""
        slots_by_queue = self._wanted(self._clock.now())
        if not slots_by_queue:
            return [], math.inf
        began = time.monotonic()
        limits = [queue.claim_limit(slots, began) for queue, slots in slots_by_queue]
        for queue, _ in slots_by_queue:
            queue.has_more_due = False
        try:
            works = await self._store.claim(
                limits, worker=self._worker_id, lease_s=self._lease_s, is_suspect=self._only_suspects
            )
        except DatabaseError:
            self._look_again()
            raise
        lease_until = began + self._lease_s
        attempts = [HandlerAttempt(work, self.queues[work.claim.recipient], lease_until) for work in works]
        if works:
            failpoint("claim.after_commit")
            self._clock.sync(works[0].claimed_at)
            if self._only_suspects:
                self._look_again()
        for queue, slots in slots_by_queue:
            claimed = [attempt for attempt in attempts if attempt.queue is queue]
            queue.accept(claimed)
            queue.has_more_due = queue.has_more_due or len(claimed) >= slots
        return attempts, 0.0 if any(queue.has_more_due for queue, _ in slots_by_queue) else math.inf

    def _wanted(self, now: datetime) -> list[tuple[HandlerQueue, int]]:
        """Return the handlers to claim for, each with a number of slots."""
        if self._only_suspects and any(queue.running or queue.waiting for queue in self.queues.values()):
            return []
        return [
            (queue, slots)
            for queue in self.queues.values()
            if queue.has_more_due and (slots := self._slots(queue, now)) > 0
        ]

    def _slots(self, queue: HandlerQueue, now: datetime) -> int:
        prefetch_limit = queue.prefetch_limit(self._places)
        if len(queue.waiting) > prefetch_limit // 2:  # claim in batches, not one for each attempt that ends
            return 0
        slots = self._room(queue) + prefetch_limit - len(queue.waiting)
        limit = queue.handler.max_concurrency
        if limit is not None:
            slots = min(slots, limit - queue.running - len(queue.waiting))
        breaker_room = self._breaker_room(queue, now)
        return slots if breaker_room is None else min(slots, breaker_room - len(queue.waiting))

    def _room(self, queue: HandlerQueue) -> int:
        """Return how many more attempts of *queue* may start without using slots reserved for other handlers."""
        free = self._places - self.running
        if queue.running == 0:
            return min(1, free) if free <= self._reserved(queue) else free - self._reserved(queue)
        return max(0, free - self._reserved(queue))

    def _reserved(self, queue: HandlerQueue) -> int:
        idle = sum(1 for other in self.queues.values() if other is not queue and other.running == 0)
        return min(idle, self._places // 2)

    def _breaker_room(self, queue: HandlerQueue, now: datetime) -> int | None:
        breaker = queue.handler.breaker
        if breaker is None:
            return None
        return self._breakers.room(breaker, self._running_with(breaker), now)

    def _running_with(self, breaker: Breaker) -> int:
        return sum(
            queue.running
            for queue in self.queues.values()
            if queue.handler.breaker is not None and queue.handler.breaker.dependency == breaker.dependency
        )

    # Running

    def take(self) -> list[HandlerAttempt]:
        """Remove and return the claims to start now, and count them as running."""
        attempts, now = [], self._clock.now()
        while (queue := self._next(now)) is not None:
            self._turns += 1
            self._turn[queue.handler.recipient] = self._turns
            queue.running += 1
            attempts.append(queue.waiting.popleft())
        return attempts

    def _next(self, now: datetime) -> HandlerQueue | None:
        startable = [
            queue
            for queue in self.queues.values()
            if queue.waiting and self._room(queue) > 0 and self._breaker_room(queue, now) != 0
        ]
        return min(startable, key=lambda queue: (queue.running, self._turn[queue.handler.recipient]), default=None)

    def finish(self, attempt: HandlerAttempt, result: Result) -> None:
        """Count an attempt as no longer running, and record its result in the circuit breaker."""
        queue, breaker = attempt.queue, attempt.queue.handler.breaker
        queue.running -= 1
        queue.record(attempt.took_s or 0.0)
        error = None if attempt.running is None else attempt.running.error
        if breaker is not None and (error is not None or isinstance(result, Completed)):
            recorded_error = TimeoutError() if isinstance(error, HandlerTimeout) else error
            was_open = self._breakers.open_until(breaker) is not None
            state = self._breakers.record(breaker, recorded_error, self._clock.now())
            is_open = state is not BreakerState.CLOSED
            meters.gauge("boathook_circuit_breaker_open", int(is_open), dependency=breaker.dependency)
            if is_open is not was_open:
                self._log_change(attempt, breaker)

    def _log_change(self, attempt: HandlerAttempt, breaker: Breaker) -> None:
        """Log that a breaker was opened or closed by an attempt."""
        names = {"dependency": breaker.dependency, "recipient": attempt.recipient}
        until = self._breakers.open_until(breaker)
        if until is None:
            _LOG.info("breaker_closed", **names)
            return
        error = None if attempt.running is None else attempt.running.error
        _LOG.warning("breaker_opened", **names, next_probe_at=until.isoformat(), code=type(error).__name__)

    # Releasing

    def release(self) -> list[HandlerAttempt]:
        """Remove and return the waiting claims that an open circuit breaker blocks."""
        released, now = [], self._clock.now()
        for queue in self.queues.values():
            room = self._breaker_room(queue, now)
            while room is not None and len(queue.waiting) > room:
                released.append(queue.waiting.pop())
                queue.has_more_due = True
        return released

    def drop(self, lost: set[HandlerAttempt]) -> None:
        """Drop waiting claims whose lease is lost."""
        for queue in {attempt.queue for attempt in lost}:
            queue.waiting = deque(attempt for attempt in queue.waiting if attempt not in lost)

    def empty(self) -> list[HandlerAttempt]:
        """Remove and return all waiting claims."""
        attempts = [attempt for queue in self.queues.values() for attempt in queue.waiting]
        for queue in self.queues.values():
            queue.waiting.clear()
        return attempts

    def report(self) -> None:
        """Set the gauges."""
        for recipient, queue in self.queues.items():
            meters.gauge("boathook_handlers_running", queue.running, recipient=recipient)
            if (breaker := queue.handler.breaker) is not None:
                until = self._breakers.open_until(breaker)
                names = {"recipient": recipient, "dependency": breaker.dependency}
                meters.gauge("boathook_handler_circuit_breaker_open", int(until is not None), **names)
                probe_at = 0.0 if until is None else until.timestamp()
                meters.gauge("boathook_handler_circuit_breaker_probe_timestamp_seconds", probe_at, **names)
