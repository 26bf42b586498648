"""Selects the next endpoint to send to in one sender, and how much of each endpoint's due work to claim.

An endpoint may use a quarter of the slots that others leave free, so one slot is always free, however many endpoints
hang. Endpoints known to be slow leave a quarter of all slots to fast ones. Claims prefetch what an endpoint handles in
a few hundredths of a second, unless a limit bounds its deliveries under lease.
"""

import asyncio
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from logging import DEBUG
from typing import Any, Final
from uuid import UUID

import msgspec

from boathook.config import Settings
from boathook.db.deliveries import EPOCH
from boathook.db.endpoint_deliveries import (
    ClaimedEndpointDelivery,
    DueEndpoint,
    EndpointClaimLimit,
    EndpointConfig,
    EndpointDeliveryStore,
    FinishedEndpointDelivery,
)
from boathook.db.secret_box import SecretBox
from boathook.delivery.destination import Attempt
from boathook.delivery.dispatcher import PACE_S, DatabaseClock
from boathook.delivery.prepared_endpoint import PreparedEndpoint
from boathook.domain import ids
from boathook.domain.endpoints import RECIPIENT
from boathook.domain.errors import DatabaseError
from boathook.domain.policy import AttemptState, Result, RetryPolicy, Superseded
from boathook.observability import meters
from boathook.observability.failpoints import failpoint

CONCURRENCY_SHARE: Final = 4
"""An endpoint may use at most one in this many of the slots available to it."""
MAX_CLAIMED: Final = 400
PREFETCH_S: Final = 0.03
MAX_PREFETCH: Final = 250
FULL_SCAN_INTERVAL_S: Final = 1.0
"""Interval between claims that ignore the watermark."""
SLOW_S: Final = 1.0
"""An endpoint whose requests take longer is slow."""
IDLE_S: Final = 60.0
"""Seconds after which an idle endpoint is dropped."""
_MAX_FIRST_CLAIM: Final = 8
"""Maximum number of claims for an endpoint whose request duration is unknown."""
LIMITS_AGE_S: Final = 5.0
"""How long an endpoint's limits are used before they are read again."""
_OVERLAP: Final = timedelta(seconds=0.25)
"""How far the watermark stays behind the latest claim: transactions do not commit in the order they begin."""
_EWMA_WEIGHT: Final = 0.2
_PAGE: Final = 500
"""Endpoints per query."""
_DISCOVER_SHARE: Final = 0.1
"""Discovery takes no more than this share of a server's time, but its pause is no longer than the next limit."""
_MAX_DISCOVER_PAUSE_S: Final = 0.5
_DISCOVER_IDLE_S: Final = 0.02
"""Minimum interval between two queries if the first found nothing."""
PROBE_HOLD_S: Final = 10.0
"""How long a sender holds a probe beyond the timeouts of its requests."""
_PROBE_AGAIN_S: Final = 1.0


class EndpointAttempt(Attempt):
    """One attempt to send a message to its endpoint."""

    __slots__ = (
        "answer", "delivery", "ended_ns", "endpoint", "finished", "is_blocking", "is_single", "overdue_at", "queue",
        "request_headers", "response", "status",
    )  # fmt: skip

    SUCCEEDED_EVENT = "sent"
    SUCCEEDED_LEVEL = DEBUG
    FAILED_EVENT = "send_failed"
    label = "endpoint"

    def __init__(self, delivery: ClaimedEndpointDelivery, queue: "EndpointQueue", lease_until: float) -> None:
        super().__init__(delivery, lease_until)
        self.delivery = delivery
        self.queue = queue
        self.endpoint: PreparedEndpoint | None = None
        """The endpoint's configuration when the attempt starts."""
        self.is_single = delivery.is_manual
        self.is_blocking = delivery.is_ordered or queue.concurrency is not None
        self.status = 0
        """This and the next two are recorded with the attempt; the executor sets those that it has."""
        self.request_headers: str | None = None
        """A JSON array of [name, value] pairs."""
        self.response: bytes | None = None
        self.ended_ns: int | None = None
        """When the response arrived, by this host's clock."""
        self.answer: asyncio.Future[Any] | None = None
        """The future that its executor awaits; `overdue_at` is its deadline."""
        self.overdue_at = math.inf
        self.finished: FinishedEndpointDelivery | None = None

    @property
    def state(self) -> AttemptState:
        """See `Attempt.state`."""
        return AttemptState(attempt=self.delivery.attempt, enqueued_at=self.delivery.enqueued_at)

    @property
    def policy(self) -> RetryPolicy:
        """The retry policy of the endpoint."""
        assert self.endpoint is not None
        return self.endpoint.policy

    @property
    def recipient(self) -> str:
        """See `Attempt.recipient`."""
        return self.queue.recipient

    def fields(self) -> dict[str, Any]:
        """See `Attempt.fields`. The endpoint's URL is left out because it may contain a secret."""
        return {
            "delivery": ids.show_delivery(self.delivery.event_id, self.delivery.ordinal),
            "endpoint": ids.show(ids.ENDPOINT, self.delivery.endpoint_id),
            "attempt": self.delivery.attempt,
        }

    def count(self, outcome: str) -> None:
        """See `Attempt.count`."""
        meters.count("boathook_endpoint_requests_total", outcome=outcome)


class EndpointQueue:
    """One endpoint in one sender: its waiting claims and running attempts."""

    def __init__(self, due: DueEndpoint) -> None:
        self.recipient = due.recipient
        self.endpoint_id = due.id
        self.waiting: deque[EndpointAttempt] = deque()
        self.running = 0
        self.endpoint: PreparedEndpoint | None = None
        self.rate: int | None = None
        self.concurrency: int | None = None
        self.open_until: datetime | None = None
        self.rate_limited_until = 0.0
        """Nothing is claimed for the endpoint before this time of this process's monotonic clock."""
        self.is_probing = False
        self.is_unhealthy = False
        """Whether the endpoint's stored health is anything but healthy."""
        self.used_at = time.monotonic()
        self.limits_read_at: float
        self.update(due)
        self.mean_s: float | None = None
        """Mean duration of its requests; None: unknown."""
        self._last_finished_at = 0.0
        self._since: datetime = EPOCH
        self._full_look_at = 0.0

    def update(self, due: DueEndpoint) -> None:
        """Update the limits and the breaker from the database."""
        self.limits_read_at = time.monotonic()
        self.rate = due.rate
        self.concurrency = due.concurrency
        if not self.is_probing:
            self.open_until = due.open_until

    def is_slow(self, now: float) -> bool:
        """Return whether its requests are slow, including those that are running."""
        if self.running and now - self._last_finished_at > SLOW_S:
            return True
        return self.mean_s is not None and self.mean_s > SLOW_S

    def prefetch_limit(self, limit: int, maximum: int) -> int:
        """Return how many claims may wait for a slot, at most *maximum*, if the endpoint has *limit* slots."""
        if self.mean_s is None or self.concurrency is not None or self.rate is not None or self.open_until is not None:
            return 0
        return min(maximum, int(limit * PREFETCH_S / max(self.mean_s, 0.0001)))

    def claim_limit(self, slots: int, now: float, *, is_probe: bool) -> EndpointClaimLimit:
        """Return the claim limit of *slots* deliveries: from the watermark on or, once a second, from the beginning."""
        since = self._since
        if is_probe or now - self._full_look_at >= FULL_SCAN_INTERVAL_S:
            self._full_look_at = now
            since = EPOCH
        return EndpointClaimLimit(
            self.recipient, slots, since, self.concurrency, endpoint_id=self.endpoint_id, is_probe=is_probe
        )

    def empty(self) -> list[EndpointAttempt]:
        """Remove and return all waiting claims. The next claim ignores the watermark, because claims are released."""
        attempts = list(self.waiting)
        self.waiting.clear()
        self._since = EPOCH
        self.end_probe(attempts)
        return attempts

    def end_probe(self, attempts: Iterable[EndpointAttempt]) -> None:
        """Clear the probe flag if the probe is among these attempts, which will not be made."""
        if any(attempt.delivery.is_probe for attempt in attempts):
            self.is_probing = False

    def start(self, now: float) -> EndpointAttempt:
        """Move the next waiting claim into a slot."""
        if not self.running:
            self._last_finished_at = now
        self.running += 1
        attempt = self.waiting.popleft()
        attempt.endpoint = self.endpoint
        return attempt

    def finish(self, took_s: float | None, now: float) -> None:
        """Count a request as finished; *took_s* is None if it was not made."""
        self.running -= 1
        self._last_finished_at = now
        if took_s is None:
            return
        mean = self.mean_s
        self.mean_s = took_s if mean is None else mean + _EWMA_WEIGHT * (took_s - mean)

    def accept(self, attempt: EndpointAttempt) -> None:
        """Add a claimed attempt."""
        self.waiting.append(attempt)
        self._since = max(self._since, attempt.delivery.due_at - _OVERLAP)


class ClaimRequest(msgspec.Struct, frozen=True):
    """The maximum number of deliveries that a sender may claim for one endpoint."""

    queue: EndpointQueue
    slots: int
    is_probe: bool = False


class EndpointQueues:
    """The queues of all endpoints in one sender."""

    def __init__(
        self, settings: Settings, *, store: EndpointDeliveryStore, secret_box: SecretBox, clock: DatabaseClock,
        prepare: Callable[[EndpointConfig], PreparedEndpoint],
    ) -> None:  # fmt: skip
        outbound = settings.outbound
        self._places = outbound.concurrency
        """Maximum number of concurrent requests."""
        self._limit = outbound.endpoint_concurrency
        """Maximum number of concurrent requests to one endpoint, unless the endpoint sets its own limit."""
        self._timeout_s = outbound.timeout_s
        self._lease_s = settings.worker.lease_s
        self._poll_s = settings.worker.poll_interval_s
        self._store = store
        self._secret_box = secret_box
        self._clock = clock
        self._prepare_endpoint = prepare
        self._queues: dict[str, EndpointQueue] = {}
        """By recipient."""
        self._claimable: dict[UUID, EndpointQueue] = {}
        self._ready: dict[UUID, EndpointQueue] = {}
        self._unprepared: dict[UUID, EndpointQueue] = {}
        """Queues with claims that are newer than the loaded endpoint configuration."""
        self._unused: list[tuple[ClaimRequest, int]] = []
        """Claims that used fewer tokens or probes than they took, with the number of claimed deliveries."""
        self._removed: list[EndpointAttempt] = []
        """Claims for endpoints that are disabled or deleted."""
        self._tidied_at = 0.0
        self.running = 0
        self.waiting = 0

    def __iter__(self) -> Iterator[EndpointQueue]:
        """Iterate over all queues."""
        return iter(self._queues.values())

    # Discovery

    async def discover(self, wake: Callable[[], None]) -> float:
        """Query all endpoints with pending work once; return the seconds until the next delivery is due."""
        after, next_at, is_found, took_s = "", None, False, 0.0
        while True:
            page = await self._store.find_due(after, _PAGE)
            for due in page.due:
                self.upsert(due)
            if page.due:
                is_found = True
                wake()
            next_at = min((at for at in (next_at, page.next_due_at) if at is not None), default=None)
            after, took_s = page.after, took_s + page.took_s
            if not after:
                break
        if time.monotonic() > self._tidied_at + IDLE_S:
            self._remove_idle(time.monotonic())
        # Most notifications are for handlers, so a query that found nothing is not repeated immediately.
        await asyncio.sleep(
            max(PACE_S if is_found else _DISCOVER_IDLE_S, min(took_s / _DISCOVER_SHARE, _MAX_DISCOVER_PAUSE_S))
        )
        return self._poll_s if next_at is None else (next_at - self._clock.now()).total_seconds()

    def include(self, recipients: Sequence[str], wake: Callable[[], None]) -> list[str]:
        """See `Queues.include`. The limits of an endpoint may have changed, and are read again after a while.

        A pause may have ended, or an operator wants a probe: a paused endpoint is read again at once.
        """
        read_since, unknown = time.monotonic() - LIMITS_AGE_S, []
        for recipient in recipients:
            if not recipient.startswith(RECIPIENT):
                continue
            queue = self._queues.get(recipient)
            if queue is None or queue.open_until is not None or queue.limits_read_at < read_since:
                unknown.append(recipient)
            else:
                self._resume(queue)
                wake()
        return unknown

    async def look_up(self, recipients: Sequence[str], wake: Callable[[], None]) -> bool:
        """See `Queues.look_up`."""
        due_endpoints = await self._store.find_due_of(recipients)
        for due in due_endpoints:
            self.upsert(due)
            wake()
        return len(due_endpoints) == len(recipients)

    def surplus(self) -> list[str]:
        """See `Queues.surplus`. Limits over all senders hold for the others too."""
        now, clock = time.monotonic(), self._clock.now()
        return [
            queue.recipient
            for queue in self._claimable.values()
            if queue.rate is None
            and queue.concurrency is None
            and queue.open_until is None
            and _rest_s(queue, now, clock) <= 0
            and self._slots(queue, 1, now) <= 0
        ]

    def upsert(self, due: DueEndpoint) -> None:
        """Add or update the queue of a due endpoint; empty it if the endpoint is disabled or deleted."""
        queue = self._queues.get(due.recipient)
        if due.is_disabled_or_deleted:
            if queue is not None:
                self._remove(queue)
            return
        if queue is None:
            queue = self._queues[due.recipient] = EndpointQueue(due)
        else:
            queue.update(due)
        self._resume(queue)

    def _remove(self, queue: EndpointQueue) -> None:
        self._claimable.pop(queue.endpoint_id, None)
        self._removed += self._empty(queue)

    def resume(self, attempt: EndpointAttempt) -> None:
        """Include the attempt's endpoint in the next claim."""
        self._resume(attempt.queue)

    def _resume(self, queue: EndpointQueue) -> None:
        queue.used_at = time.monotonic()
        self._claimable[queue.endpoint_id] = queue

    def _remove_idle(self, now: float) -> None:
        """Drop the queues of endpoints that have been idle for `IDLE_S`."""
        self._tidied_at = now
        for recipient, queue in list(self._queues.items()):
            is_idle = not queue.running and not queue.waiting and now - queue.used_at > IDLE_S
            if is_idle and queue.endpoint_id not in self._claimable:
                del self._queues[recipient]
                self._ready.pop(queue.endpoint_id, None)

    # Claiming

    async def claim(self) -> tuple[list[EndpointAttempt], float]:
        """Claim once, as far as slots, rates and breakers allow."""
        if self._unused:
            await self._return_unused()
        if self._unprepared:
            await self._prepare()
        requests, wake_at = self.plan(time.monotonic(), self._clock.now())
        if any(request.queue.rate is not None or request.is_probe for request in requests):
            requests = await self._allowed(requests)
        if not requests:
            return [], self._poll_s if wake_at is None else max(PACE_S, wake_at - time.monotonic())
        began = time.monotonic()
        limits = [request.queue.claim_limit(request.slots, began, is_probe=request.is_probe) for request in requests]
        # Before the claim: a notification that arrives during it may be of a delivery that the claim does not see.
        for request in requests:
            request.queue.used_at = began
            self._claimable.pop(request.queue.endpoint_id, None)
        try:
            claimed = await self._store.claim(limits, lease_s=self._lease_s)
        except DatabaseError:
            # The claim may or may not be committed; a probe that is unknown here must not block its endpoint forever.
            for request in requests:
                request.queue.is_probing = request.queue.is_probing and not request.is_probe
                self._claimable[request.queue.endpoint_id] = request.queue
            raise
        if claimed:
            failpoint("send.after_claim")
            self._clock.sync(claimed[0].claimed_at)
        return self._accept(requests, claimed, began + self._lease_s), 0.0

    def plan(self, now: float, clock: datetime) -> tuple[list[ClaimRequest], float | None]:
        """Return what to claim, and when a paused or rate-limited endpoint may continue, by this process's clock."""
        claimable: list[tuple[EndpointQueue, int]] = []
        wake_at: float | None = None
        max_ahead = max(1, MAX_PREFETCH // max(1, len(self._claimable)))
        for queue in list(self._claimable.values()):
            if len(claimable) == MAX_CLAIMED or self.running + self.waiting > 2 * self._places:
                break
            rest_s = _rest_s(queue, now, clock)
            if rest_s > 0:
                wake_at = min(now + rest_s, wake_at or now + rest_s)
                continue
            slots = self._slots(queue, max_ahead, now)
            if slots > 0:
                claimable.append((queue, slots))
        # Each request is for as many deliveries as the endpoint may have due, which is usually one.
        shares = divide(MAX_CLAIMED, [slots for _, slots in claimable])
        requests = [
            ClaimRequest(queue, slots, is_probe=queue.open_until is not None)
            for (queue, _), slots in zip(claimable, shares, strict=True)
        ]
        return requests, wake_at

    def _slots(self, queue: EndpointQueue, max_ahead: int, now: float) -> int:
        occupied = queue.running + len(queue.waiting)
        if queue.open_until is not None:
            return 0 if queue.is_probing or occupied else 1
        free = self._free(queue, now) - self.waiting
        if occupied and free <= 0:
            return 0
        share = max(1, min(queue.concurrency or self._limit, (max(0, free) + occupied) // CONCURRENCY_SHARE))
        prefetch_limit = queue.prefetch_limit(share, max_ahead)
        if len(queue.waiting) > prefetch_limit // 2:  # claim in batches, not one for each attempt that ends
            return 0
        slots = share + prefetch_limit - occupied
        return min(slots, _MAX_FIRST_CLAIM) if queue.mean_s is None else slots

    def _free(self, queue: EndpointQueue, now: float) -> int:
        reserved = self._places // CONCURRENCY_SHARE if queue.is_slow(now) else 0
        return self._places - self.running - reserved

    async def _allowed(self, requests: Sequence[ClaimRequest]) -> list[ClaimRequest]:
        """Keep the requests that rates allow, and the probes that this sender may make."""
        if any(request.queue.rate is not None for request in requests):
            requests = await self._take_tokens(requests)
        if not any(request.is_probe for request in requests):
            return list(requests)
        # Take probes after tokens: a probe without a request would block its endpoint.
        probes = await self._take_probes([request.queue for request in requests if request.is_probe])
        refused = [request for request in requests if request.is_probe and request.queue.endpoint_id not in probes]
        await self._return_tokens([(request.queue, request.slots) for request in refused])
        return [request for request in requests if request not in refused]

    async def _take_tokens(self, requests: Sequence[ClaimRequest]) -> list[ClaimRequest]:
        limited = [
            (request.queue.endpoint_id, request.slots, request.queue.rate)
            for request in requests
            if request.queue.rate is not None
        ]
        tokens = await self._store.take_tokens(limited)
        granted = []
        for request in requests:
            queue, slots = request.queue, request.slots
            if queue.rate is not None:
                slots, next_s = tokens.get(queue.endpoint_id, (0, 1.0))
                if slots < request.slots:
                    queue.rate_limited_until = time.monotonic() + max(PACE_S, next_s)
            if slots:
                granted.append(ClaimRequest(queue, slots, request.is_probe))
        return granted

    async def _return_tokens(self, unused: Sequence[tuple[EndpointQueue, int]]) -> None:
        tokens = [
            (queue.endpoint_id, number, queue.rate) for queue, number in unused if queue.rate is not None and number > 0
        ]
        if tokens:
            await self._store.return_tokens(tokens)

    async def _take_probes(self, queues: Sequence[EndpointQueue]) -> set[UUID]:
        probes = await self._store.take_probes(
            [queue.endpoint_id for queue in queues],
            timeout_s=self._timeout_s,
            hold_s=self._timeout_s + PROBE_HOLD_S,  # an access token may be requested before
        )
        for queue in queues:
            queue.is_probing = queue.endpoint_id in probes
            # Another sender holds the probe; the next query returns its result.
            queue.open_until = probes.get(queue.endpoint_id, self._clock.now() + timedelta(seconds=_PROBE_AGAIN_S))
        return set(probes)

    def _accept(
        self, requests: Sequence[ClaimRequest], claimed: Sequence[ClaimedEndpointDelivery], lease_until: float
    ) -> list[EndpointAttempt]:
        """Add the claimed deliveries to their queues."""
        queues = {request.queue.endpoint_id: request.queue for request in requests}
        attempts: list[EndpointAttempt] = []
        for delivery in claimed:
            queue = queues[delivery.endpoint_id]
            queue.is_unhealthy = delivery.is_unhealthy
            attempts.append(EndpointAttempt(delivery, queue, lease_until))
            queue.accept(attempts[-1])
            if queue.endpoint is None or not queue.endpoint.is_current(delivery.revision):
                if queue.endpoint is not None:
                    queue.limits_read_at = -math.inf
                queue.endpoint = None
                self._unprepared[queue.endpoint_id] = queue
        self.waiting += len(attempts)
        claimed_counts = Counter(delivery.endpoint_id for delivery in claimed)
        for request in requests:
            queue, number = request.queue, claimed_counts[request.queue.endpoint_id]
            if number >= request.slots:
                self._claimable[queue.endpoint_id] = queue
            elif queue.rate is not None or request.is_probe:
                self._unused.append((request, number))
            if request.is_probe and not number:
                queue.is_probing = False
            if queue.waiting:
                self._ready[queue.endpoint_id] = queue
        return attempts

    async def _return_unused(self) -> None:
        """Return unused tokens and probes."""
        unused, self._unused = self._unused, []
        await self._return_tokens([(request.queue, request.slots - number) for request, number in unused])
        idle = [request.queue for request, number in unused if request.is_probe and not number]
        probes = {queue.endpoint_id: queue.open_until for queue in idle if queue.open_until is not None}
        if probes:
            await self._store.release_probes(probes, after_s=_PROBE_AGAIN_S)
            for queue in idle:
                queue.open_until = self._clock.now() + timedelta(seconds=_PROBE_AGAIN_S)

    async def _prepare(self) -> None:
        """Load the endpoints that changed since the last claim; their claims wait until then."""
        configs = await self._store.load(list(self._unprepared), self._secret_box)
        for key, queue in list(self._unprepared.items()):
            del self._unprepared[key]
            if key in configs:
                queue.endpoint = self._prepare_endpoint(configs[key])
            else:
                self._remove(queue)

    # Running

    def take(self) -> list[EndpointAttempt]:
        """Remove and return the claims that may start in free slots, round-robin over the endpoints."""
        now = time.monotonic()
        attempts: list[EndpointAttempt] = []
        moved = True
        while moved and self.running < self._places:
            moved = False
            for key, queue in list(self._ready.items()):
                if not queue.waiting:
                    del self._ready[key]
                elif queue.endpoint is not None and self._may_start(queue, now):
                    del self._ready[key]
                    self._ready[key] = queue
                    attempts.append(queue.start(now))
                    self.running += 1
                    self.waiting -= 1
                    moved = True
        return attempts

    def _may_start(self, queue: EndpointQueue, now: float) -> bool:
        free = self._free(queue, now)
        if free <= 0 or queue.running == 0:
            return free > 0
        return (
            queue.running < (queue.concurrency or self._limit)
            and queue.running * CONCURRENCY_SHARE < free + queue.running
        )

    def finish(self, attempt: EndpointAttempt, result: Result) -> None:
        """Free the slot of a finished request."""
        self.running -= 1
        is_made = not isinstance(result, Superseded)
        attempt.queue.finish(attempt.took_s if is_made else None, time.monotonic())
        if not is_made:
            attempt.queue.end_probe([attempt])

    # Releasing

    def release(self) -> list[EndpointAttempt]:
        """Remove and return claims that cannot start soon: those of paused endpoints and of busy slow endpoints."""
        released, self._removed = self._removed, []
        now = time.monotonic()
        for queue in self._ready.values():
            is_resting = queue.open_until is not None and not queue.is_probing
            if queue.waiting and (is_resting or (queue.running and queue.is_slow(now))):
                released += self._empty(queue)
                self._claimable[queue.endpoint_id] = queue
        return released

    def _empty(self, queue: EndpointQueue) -> list[EndpointAttempt]:
        attempts = queue.empty()
        self.waiting -= len(attempts)
        return attempts

    def drop(self, lost: set[EndpointAttempt]) -> None:
        """Drop waiting claims whose lease is lost."""
        for queue in {attempt.queue for attempt in lost}:
            lost_waiting = [attempt for attempt in queue.waiting if attempt in lost]
            queue.end_probe(lost_waiting)
            self.waiting -= len(lost_waiting)
            queue.waiting = deque(attempt for attempt in queue.waiting if attempt not in lost)

    def empty(self) -> list[EndpointAttempt]:
        """Remove and return all waiting claims."""
        return [attempt for queue in self._queues.values() for attempt in self._empty(queue)]

    def report(self) -> None:
        """Set the gauges."""
        meters.gauge("boathook_endpoint_requests_in_flight", self.running)
        meters.gauge("boathook_endpoint_circuit_breakers_open", sum(queue.open_until is not None for queue in self))


def divide(total: int, requested: Sequence[int]) -> list[int]:
    """Divide *total* so that small requests get all they want, and the others equal parts of the rest."""
    shares = [0] * len(requested)
    smallest_first = sorted(range(len(requested)), key=requested.__getitem__)
    for position, index in enumerate(smallest_first):
        shares[index] = min(requested[index], total // (len(requested) - position))
        total -= shares[index]
    return shares


def _rest_s(queue: EndpointQueue, now: float, clock: datetime) -> float:
    open_s = 0.0 if queue.open_until is None else (queue.open_until - clock).total_seconds()
    return max(queue.rate_limited_until - now, open_s)
