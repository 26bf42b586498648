"""Which handler runs next in one worker, and how much of each handler's due work it claims.

Fairness has two parts. Of the claimed work, the handler with the fewest attempts under way goes first. And each
handler without any under way has one place kept free for it, up to half of all places, so that work which falls due
while another handler is slow finds a place at once.

A claim may run ahead of the free places by what the handler does in a few hundredths of a second, so that a quick
handler does not wait for the journal between two attempts, while a slow one's work stays there for other workers.
"""

import time
from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from boathook.db.deliveries import EPOCH, ClaimedDelivery, ClaimLimit
from boathook.domain.policy import Breaker, BreakerState, BreakerStatus
from boathook.handlers.handler import Handler

PREFETCH_S: Final = 0.03
MAX_PREFETCH: Final = 100
FULL_SCAN_INTERVAL_S: Final = 1.0
"""Seconds between looks that ignore the watermark."""
_OVERLAP: Final = timedelta(seconds=0.25)
"""How far behind the latest claim the watermark stays: transactions commit in another order than they begin."""
_EWMA_WEIGHT: Final = 0.2


class HandlerQueue:
    """One handler's share of a worker: what is claimed for it and what is under way."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.waiting: deque[ClaimedDelivery] = deque()
        self.running = 0
        self.has_more_due = True
        """Whether the latest claim got all it wanted, so that there may be more."""
        self._mean_s: float | None = None
        self._since: datetime = EPOCH
        self._full_look_at = 0.0

    def prefetch_limit(self, places: int) -> int:
        """Return how many claims may wait here for a place."""
        if self._mean_s is None:
            return 0
        return min(MAX_PREFETCH, int(places * PREFETCH_S / max(self._mean_s, 0.0001)))

    def want(self, slots: int, now_s: float) -> ClaimLimit:
        """Return the claim for so many slots, from the watermark on or, once a second, from the beginning."""
        since = self._since
        if now_s - self._full_look_at >= FULL_SCAN_INTERVAL_S:
            self._full_look_at = now_s
            since = EPOCH
        return ClaimLimit(self.handler.recipient, slots, since, self.handler.max_concurrency)

    def accept(self, works: Iterable[ClaimedDelivery], slots: int) -> None:
        """Take in what was claimed for *slots*."""
        before = len(self.waiting)
        self.waiting.extend(works)
        taken = len(self.waiting) - before
        self.has_more_due = taken >= slots
        if taken:
            self._since = self.waiting[-1].due_at - _OVERLAP

    def record(self, took_s: float) -> None:
        """Remember how long an attempt took."""
        mean = self._mean_s
        self._mean_s = took_s if mean is None else mean + _EWMA_WEIGHT * (took_s - mean)


class Breakers:
    """The circuit breakers of one worker, shared by the handlers that name one dependency."""

    def __init__(self) -> None:
        self._standings: dict[str, BreakerStatus] = {}

    def room(self, breaker: Breaker | None, running: int, now: datetime) -> int | None:
        """Return how many more attempts may start while *running* are under way; None: as many as you like."""
        if breaker is None:
            return None
        standing = self._standings.get(breaker.dependency, BreakerStatus())
        if standing.state(breaker, now) is BreakerState.CLOSED:
            return None
        return 1 if standing.may_run(breaker, now, running) else 0

    def record(self, breaker: Breaker, error: BaseException | None, now: datetime) -> BreakerState:
        """Remember how an attempt ended and return where the breaker stands."""
        standing = self._standings.get(breaker.dependency, BreakerStatus()).after(breaker, error, now)
        self._standings[breaker.dependency] = standing
        return standing.state(breaker, now)


class HandlerQueues:
    """The shares of all handlers of one worker."""

    def __init__(self, handlers: Mapping[str, Handler], places: int) -> None:
        self.queues = {handler.recipient: HandlerQueue(handler) for handler in handlers.values()}
        self._places = places
        self._breakers = Breakers()
        self._turn: dict[str, int] = dict.fromkeys(self.queues, 0)
        self._turns = 0

    @property
    def running(self) -> int:
        """Attempts under way."""
        return sum(queue.running for queue in self.queues.values())

    def wants(self, now: datetime) -> list[ClaimLimit]:
        """Return what to claim."""
        found = []
        for queue in self.queues.values():
            slots = self._slots(queue, now)
            if slots > 0:
                found.append(queue.want(slots, time.monotonic()))
        return found

    def _slots(self, queue: HandlerQueue, now: datetime) -> int:
        prefetch_limit = queue.prefetch_limit(self._places)
        if len(queue.waiting) > prefetch_limit // 2:  # claim many at a time, not one for each that ends
            return 0
        slots = self._room(queue) + prefetch_limit - len(queue.waiting)
        limit = queue.handler.max_concurrency
        if limit is not None:
            slots = min(slots, limit - queue.running - len(queue.waiting))
        breaker_room = self._breaker_room(queue, now)
        return slots if breaker_room is None else min(slots, breaker_room - len(queue.waiting))

    def _room(self, queue: HandlerQueue) -> int:
        """Return how many more attempts of *share* may start, leaving others their kept places."""
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

    def accept(self, wants: Iterable[ClaimLimit], works: Iterable[ClaimedDelivery]) -> None:
        """Take in what a claim brought."""
        by_recipient: dict[str, list[ClaimedDelivery]] = {}
        for work in works:
            by_recipient.setdefault(work.claim.recipient, []).append(work)
        for want in wants:
            self.queues[want.recipient].accept(by_recipient.get(want.recipient, ()), want.slots)

    def take(self, now: datetime) -> tuple[HandlerQueue, ClaimedDelivery] | None:
        """Return the work to start next and count it as running; None if nothing may start."""
        best: HandlerQueue | None = None
        for queue in self.queues.values():
            if not queue.waiting or self._room(queue) <= 0 or self._breaker_room(queue, now) == 0:
                continue
            if best is None or self._order(queue) < self._order(best):
                best = queue
        if best is None:
            return None
        self._turns += 1
        self._turn[best.handler.recipient] = self._turns
        best.running += 1
        return best, best.waiting.popleft()

    def _order(self, queue: HandlerQueue) -> tuple[int, int]:
        return queue.running, self._turn[queue.handler.recipient]

    def finish(self, queue: HandlerQueue, took_s: float) -> None:
        """Count an attempt as no longer running."""
        queue.running -= 1
        queue.record(took_s)

    def update_breaker(self, queue: HandlerQueue, error: BaseException | None, now: datetime) -> BreakerState | None:
        """Tell the handler's breaker how an attempt ended; returns where it stands, None if there is none."""
        breaker = queue.handler.breaker
        return None if breaker is None else self._breakers.record(breaker, error, now)

    def paused(self, now: datetime) -> Iterator[ClaimedDelivery]:
        """Take out the waiting work that an open breaker keeps from starting."""
        for queue in self.queues.values():
            room = self._breaker_room(queue, now)
            while room is not None and len(queue.waiting) > room:
                yield queue.waiting.pop()

    def drop(self, keys: Collection[tuple[UUID, int, int]]) -> None:
        """Forget waiting claims whose lease is lost, given as (event id, ordinal, fence)."""
        for queue in self.queues.values():
            queue.waiting = deque(
                work
                for work in queue.waiting
                if (work.claim.event_id, work.claim.ordinal, work.claim.fence) not in keys
            )

    def empty(self) -> list[ClaimedDelivery]:
        """Take out all that waits."""
        works = [work for queue in self.queues.values() for work in queue.waiting]
        for queue in self.queues.values():
            queue.waiting.clear()
        return works
