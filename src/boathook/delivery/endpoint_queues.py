"""Which endpoint is sent to next in one sender, and how much of each endpoint's due work it claims.

Each endpoint has a lane. A lane may have a quarter of the places that others leave it, so however many endpoints hang,
there is always one more place; and those known to be slow leave a quarter of all places to the quick. Claims run ahead
of the free places by what an endpoint takes in a few hundredths of a second, unless something bounds what it may have
under lease.
"""

import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from boathook.db.deliveries import EPOCH
from boathook.db.endpoint_deliveries import ClaimedSend, DueEndpoint, EndpointClaimLimit
from boathook.delivery.prepared_endpoint import PreparedEndpoint

CONCURRENCY_SHARE: Final = 4
"""A lane has at most one of so many of the places that are left to it."""
MAX_CLAIMED: Final = 400
PREFETCH_S: Final = 0.03
MAX_PREFETCH: Final = 250
FULL_SCAN_INTERVAL_S: Final = 1.0
"""Seconds between looks that ignore the watermark."""
SLOW_S: Final = 1.0
"""An endpoint that takes longer is slow."""
IDLE_S: Final = 60.0
"""Seconds after which a lane without work is forgotten."""
_MAX_FIRST_CLAIM: Final = 8
"""Most claims for an endpoint whose pace is not known."""
_OVERLAP: Final = timedelta(seconds=0.25)
"""How far behind the latest claim the watermark stays: transactions commit in another order than they begin."""
_EWMA_WEIGHT: Final = 0.2


class Attempt:
    """One claimed delivery on its way to its endpoint."""

    __slots__ = ("attempt_id", "endpoint", "is_sent", "lease_until", "overdue_at", "queue", "send", "started_at")

    def __init__(self, send: ClaimedSend, queue: "EndpointQueue", lease_until: float) -> None:
        self.send = send
        self.queue = queue
        self.lease_until = lease_until
        """By this process's clock."""
        self.endpoint: PreparedEndpoint | None = None
        self.attempt_id: UUID | None = None
        self.started_at: datetime | None = None
        self.is_sent = False
        """Whether it has one of the places."""
        self.overdue_at = 0.0


class EndpointQueue:
    """One endpoint's share of a sender: what is claimed for it and what is under way."""

    def __init__(self, due: DueEndpoint) -> None:
        self.recipient = due.recipient
        self.endpoint_id = due.id
        self.waiting: deque[Attempt] = deque()
        self.running = 0
        self.endpoint: PreparedEndpoint | None = None
        self.rate: int | None = None
        self.concurrency: int | None = None
        self.open_until: datetime | None = None
        self.rate_limited_until = 0.0
        """Before this moment of this process's clock nothing is claimed for it."""
        self.is_probing = False
        self.is_unhealthy = False
        """Whether its health says anything but that it is well."""
        self.used_at = time.monotonic()
        self.update(due)
        self._mean_s: float | None = None
        self._last_finished_at = 0.0
        self._since: datetime = EPOCH
        self._full_look_at = 0.0

    def update(self, due: DueEndpoint) -> None:
        """Take in what the journal says about the endpoint."""
        self.rate = due.rate
        self.concurrency = due.concurrency
        if not self.is_probing:
            self.open_until = due.open_until

    def is_slow(self, now: float) -> bool:
        """Return whether its requests take long, or those under way now have."""
        if self.running and now - self._last_finished_at > SLOW_S:
            return True
        return self._mean_s is not None and self._mean_s > SLOW_S

    def prefetch_limit(self, limit: int, most: int) -> int:
        """Return how many claims may wait here for a place, at most *most*, when it has *limit* places."""
        if self._mean_s is None or self.concurrency is not None or self.rate is not None or self.open_until is not None:
            return 0
        return min(most, int(limit * PREFETCH_S / max(self._mean_s, 0.0001)))

    def is_new(self) -> bool:
        """Return whether its pace is not known yet."""
        return self._mean_s is None

    def want(self, slots: int, now: float, *, is_probe: bool) -> EndpointClaimLimit:
        """Return the claim for so many slots, from the watermark on or, once a second, from the beginning."""
        since = self._since
        if is_probe or now - self._full_look_at >= FULL_SCAN_INTERVAL_S:
            self._full_look_at = now
            since = EPOCH
        return EndpointClaimLimit(
            self.recipient, slots, since, self.concurrency, endpoint_id=self.endpoint_id, is_probe=is_probe
        )

    def reset_watermark(self) -> None:
        """Make the next claim look at everything, because something was put back."""
        self._since = EPOCH

    def start(self, now: float) -> Attempt:
        """Give the next claim a place."""
        if not self.running:
            self._last_finished_at = now
        self.running += 1
        attempt = self.waiting.popleft()
        attempt.is_sent = True
        return attempt

    def finish(self, took_s: float | None, now: float) -> None:
        """Count a request as over; None where it was not made."""
        self.running -= 1
        self._last_finished_at = now
        if took_s is None:
            return
        mean = self._mean_s
        self._mean_s = took_s if mean is None else mean + _EWMA_WEIGHT * (took_s - mean)

    def accept(self, attempts: Iterable[Attempt]) -> None:
        """Take in what was claimed."""
        self.waiting.extend(attempts)
        if self.waiting:
            self._since = max(self._since, self.waiting[-1].send.due_at - _OVERLAP)


@dataclass(frozen=True, slots=True)
class ClaimRequest:
    """What a sender would claim for one lane."""

    queue: EndpointQueue
    slots: int
    is_probe: bool = False


class EndpointQueues:
    """The lanes of all endpoints one sender knows.

    Args:
        places: requests under way at once.
        limit: of these to one endpoint, unless it says otherwise.
    """

    def __init__(self, places: int, limit: int) -> None:
        self._places = places
        self._limit = limit
        self._queues: dict[UUID, EndpointQueue] = {}
        self._claimable: dict[UUID, EndpointQueue] = {}
        self._ready: dict[UUID, EndpointQueue] = {}
        self.running = 0
        self.waiting = 0

    def __iter__(self) -> Iterator[EndpointQueue]:
        """Iterate over all lanes."""
        return iter(self._queues.values())

    def upsert(self, due: DueEndpoint) -> list[Attempt]:
        """Learn that an endpoint is owed something now; returns what may not be sent to it any more."""
        queue = self._queues.get(due.id)
        if due.is_disabled_or_deleted:
            return [] if queue is None else self.remove(queue)
        if queue is None:
            queue = self._queues[due.id] = EndpointQueue(due)
        else:
            queue.update(due)
        self.resume(queue)
        return []

    def remove(self, queue: EndpointQueue) -> list[Attempt]:
        """Take out what waits for an endpoint that gets nothing more."""
        self._claimable.pop(queue.endpoint_id, None)
        return self._empty(queue)

    def resume(self, queue: EndpointQueue) -> None:
        """Look for work of this lane at the next claim."""
        queue.used_at = time.monotonic()
        self._claimable[queue.endpoint_id] = queue

    def plan(self, now: float, clock: datetime) -> tuple[list[ClaimRequest], float | None]:
        """Return what to claim, and when by this process's clock a resting lane may go on."""
        plans: list[ClaimRequest] = []
        wake_at: float | None = None
        left = MAX_CLAIMED
        most_ahead = max(1, MAX_PREFETCH // max(1, len(self._claimable)))
        for queue in list(self._claimable.values()):
            if left <= 0 or self.running + self.waiting > 2 * self._places:
                break
            rest_s = _rest_s(queue, now, clock)
            if rest_s > 0:
                wake_at = min(now + rest_s, wake_at or now + rest_s)
                continue
            slots = min(left, self._slots(queue, most_ahead, now))
            if slots > 0:
                plans.append(ClaimRequest(queue, slots, is_probe=queue.open_until is not None))
                left -= slots
        return plans, wake_at

    def _slots(self, queue: EndpointQueue, most_ahead: int, now: float) -> int:
        held = queue.running + len(queue.waiting)
        if queue.open_until is not None:
            return 0 if queue.is_probing or held else 1
        free = self._free(queue, now) - self.waiting
        if held and free <= 0:
            return 0
        share = max(1, min(queue.concurrency or self._limit, (max(0, free) + held) // CONCURRENCY_SHARE))
        prefetch_limit = queue.prefetch_limit(share, most_ahead)
        if len(queue.waiting) > prefetch_limit // 2:  # claim many at a time, not one for each that ends
            return 0
        return min(share + prefetch_limit - held, _MAX_FIRST_CLAIM) if queue.is_new() else share + prefetch_limit - held

    def _free(self, queue: EndpointQueue, now: float) -> int:
        kept = self._places // CONCURRENCY_SHARE if queue.is_slow(now) else 0
        return self._places - self.running - kept

    def accept(self, plan: ClaimRequest, attempts: list[Attempt]) -> None:
        """Take in what a claim for *plan* brought."""
        queue = plan.queue
        queue.accept(attempts)
        self.waiting += len(attempts)
        self._claimable.pop(queue.endpoint_id, None)
        if len(attempts) >= plan.slots:
            self._claimable[queue.endpoint_id] = queue  # behind the others
        if queue.waiting:
            self._ready[queue.endpoint_id] = queue

    def take(self, now: float) -> list[Attempt]:
        """Give places to the claims that may start, one lane after the other."""
        taken: list[Attempt] = []
        moved = True
        while moved and self.running < self._places:
            moved = False
            for key, queue in list(self._ready.items()):
                if not queue.waiting:
                    del self._ready[key]
                elif queue.endpoint is not None and self._may_start(queue, now):
                    del self._ready[key]
                    self._ready[key] = queue
                    taken.append(queue.start(now))
                    self.running += 1
                    self.waiting -= 1
                    moved = True
        return taken

    def _may_start(self, queue: EndpointQueue, now: float) -> bool:
        free = self._free(queue, now)
        if free <= 0 or queue.running == 0:
            return free > 0
        return (
            queue.running < (queue.concurrency or self._limit)
            and queue.running * CONCURRENCY_SHARE < free + queue.running
        )

    def finish(self, attempt: Attempt, took_s: float | None, now: float) -> None:
        """Take back the place of a request that is over."""
        self.running -= 1
        attempt.queue.finish(took_s, now)
        attempt.is_sent = False

    def paused(self, now: float) -> list[Attempt]:
        """Take out the claims that cannot start soon: those of resting lanes, and what a slow one has no place for."""
        found: list[Attempt] = []
        for queue in self._ready.values():
            is_resting = queue.open_until is not None and not queue.is_probing
            if queue.waiting and (is_resting or (queue.running and queue.is_slow(now))):
                found += self._empty(queue)
                self._claimable[queue.endpoint_id] = queue
        return found

    def _empty(self, queue: EndpointQueue) -> list[Attempt]:
        found = list(queue.waiting)
        queue.waiting.clear()
        queue.reset_watermark()
        self.waiting -= len(found)
        return found

    def drop(self, lost: set[Attempt]) -> None:
        """Forget waiting claims whose lease is lost."""
        for queue in {attempt.queue for attempt in lost}:
            kept = [attempt for attempt in queue.waiting if attempt not in lost]
            self.waiting -= len(queue.waiting) - len(kept)
            queue.waiting = deque(kept)

    def empty(self) -> list[Attempt]:
        """Take out all that waits."""
        return [attempt for queue in self._queues.values() for attempt in self._empty(queue)]

    def remove_idle(self, now: float) -> None:
        """Forget the lanes that have had no work for a while."""
        for key, queue in list(self._queues.items()):
            if not queue.running and not queue.waiting and now - queue.used_at > IDLE_S and key not in self._claimable:
                del self._queues[key]
                self._ready.pop(key, None)


def _rest_s(queue: EndpointQueue, now: float, clock: datetime) -> float:
    open_s = 0.0 if queue.open_until is None else (queue.open_until - clock).total_seconds()
    return max(queue.rate_limited_until - now, open_s)
