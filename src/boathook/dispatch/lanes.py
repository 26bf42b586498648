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

from boathook.dispatch.posts import Destination
from boathook.journal.deliveries import EVER
from boathook.journal.sending import Due, EndpointWant, Send

SHARE: Final = 4
"""A lane has at most one of so many of the places that are left to it."""
MOST_CLAIMED: Final = 400
AHEAD_S: Final = 0.03
MOST_AHEAD: Final = 250
FULL_LOOK_S: Final = 1.0
"""Seconds between looks that ignore the watermark."""
SLOW_S: Final = 1.0
"""An endpoint that takes longer is slow."""
IDLE_S: Final = 60.0
"""Seconds after which a lane without work is forgotten."""
_TASTE: Final = 8
"""Most claims for an endpoint whose pace is not known."""
_OVERLAP: Final = timedelta(seconds=0.25)
"""How far behind the latest claim the watermark stays: transactions commit in another order than they begin."""
_LEARN: Final = 0.2


class Flight:
    """One claimed delivery on its way to its endpoint."""

    __slots__ = ("attempt_id", "destination", "is_sent", "lane", "lease_until", "overdue_at", "send", "started_at")

    def __init__(self, send: Send, lane: "Lane", lease_until: float) -> None:
        self.send = send
        self.lane = lane
        self.lease_until = lease_until
        """By this process's clock."""
        self.destination: Destination | None = None
        self.attempt_id: UUID | None = None
        self.started_at: datetime | None = None
        self.is_sent = False
        """Whether it has one of the places."""
        self.overdue_at = 0.0


class Lane:
    """One endpoint's share of a sender: what is claimed for it and what is under way."""

    def __init__(self, due: Due) -> None:
        self.recipient = due.recipient
        self.endpoint_id = due.id
        self.waiting: deque[Flight] = deque()
        self.running = 0
        self.destination: Destination | None = None
        self.rate: int | None = None
        self.concurrency: int | None = None
        self.open_until: datetime | None = None
        self.rests_until = 0.0
        """Before this moment of this process's clock nothing is claimed for it."""
        self.is_probing = False
        self.is_ailing = False
        """Whether its health says anything but that it is well."""
        self.used_at = time.monotonic()
        self.learn(due)
        self._mean_s: float | None = None
        self._moved_at = 0.0
        self._since: datetime = EVER
        self._full_look_at = 0.0

    def learn(self, due: Due) -> None:
        """Take in what the journal says about the endpoint."""
        self.rate = due.rate
        self.concurrency = due.concurrency
        if not self.is_probing:
            self.open_until = due.open_until

    def is_slow(self, now: float) -> bool:
        """Return whether its requests take long, or those under way now have."""
        if self.running and now - self._moved_at > SLOW_S:
            return True
        return self._mean_s is not None and self._mean_s > SLOW_S

    def ahead(self, limit: int, most: int) -> int:
        """Return how many claims may wait here for a place, at most *most*, when it has *limit* places."""
        if self._mean_s is None or self.concurrency is not None or self.rate is not None or self.open_until is not None:
            return 0
        return min(most, int(limit * AHEAD_S / max(self._mean_s, 0.0001)))

    def is_new(self) -> bool:
        """Return whether its pace is not known yet."""
        return self._mean_s is None

    def want(self, slots: int, now: float, *, is_probe: bool) -> EndpointWant:
        """Return the claim for so many slots, from the watermark on or, once a second, from the beginning."""
        since = self._since
        if is_probe or now - self._full_look_at >= FULL_LOOK_S:
            self._full_look_at = now
            since = EVER
        return EndpointWant(
            self.recipient, slots, since, self.concurrency, endpoint_id=self.endpoint_id, is_probe=is_probe
        )

    def look_back(self) -> None:
        """Make the next claim look at everything, because something was put back."""
        self._since = EVER

    def start(self, now: float) -> Flight:
        """Give the next claim a place."""
        if not self.running:
            self._moved_at = now
        self.running += 1
        flight = self.waiting.popleft()
        flight.is_sent = True
        return flight

    def finish(self, took_s: float | None, now: float) -> None:
        """Count a request as over; None where it was not made."""
        self.running -= 1
        self._moved_at = now
        if took_s is None:
            return
        mean = self._mean_s
        self._mean_s = took_s if mean is None else mean + _LEARN * (took_s - mean)

    def accept(self, flights: Iterable[Flight]) -> None:
        """Take in what was claimed."""
        self.waiting.extend(flights)
        if self.waiting:
            self._since = max(self._since, self.waiting[-1].send.due_at - _OVERLAP)


@dataclass(frozen=True, slots=True)
class Plan:
    """What a sender would claim for one lane."""

    lane: Lane
    slots: int
    is_probe: bool = False


class Lanes:
    """The lanes of all endpoints one sender knows.

    Args:
        places: requests under way at once.
        limit: of these to one endpoint, unless it says otherwise.
    """

    def __init__(self, places: int, limit: int) -> None:
        self._places = places
        self._limit = limit
        self._lanes: dict[UUID, Lane] = {}
        self._hungry: dict[UUID, Lane] = {}
        self._ready: dict[UUID, Lane] = {}
        self.running = 0
        self.waiting = 0

    def __iter__(self) -> Iterator[Lane]:
        """Iterate over all lanes."""
        return iter(self._lanes.values())

    def meet(self, due: Due) -> list[Flight]:
        """Learn that an endpoint is owed something now; returns what may not be sent to it any more."""
        lane = self._lanes.get(due.id)
        if due.is_barred:
            return [] if lane is None else self.dismiss(lane)
        if lane is None:
            lane = self._lanes[due.id] = Lane(due)
        else:
            lane.learn(due)
        self.rouse(lane)
        return []

    def dismiss(self, lane: Lane) -> list[Flight]:
        """Take out what waits for an endpoint that gets nothing more."""
        self._hungry.pop(lane.endpoint_id, None)
        return self._empty(lane)

    def rouse(self, lane: Lane) -> None:
        """Look for work of this lane at the next claim."""
        lane.used_at = time.monotonic()
        self._hungry[lane.endpoint_id] = lane

    def plan(self, now: float, clock: datetime) -> tuple[list[Plan], float | None]:
        """Return what to claim, and when by this process's clock a resting lane may go on."""
        plans: list[Plan] = []
        wake_at: float | None = None
        left = MOST_CLAIMED
        most_ahead = max(1, MOST_AHEAD // max(1, len(self._hungry)))
        for lane in list(self._hungry.values()):
            if left <= 0 or self.running + self.waiting > 2 * self._places:
                break
            rest_s = _rest_s(lane, now, clock)
            if rest_s > 0:
                wake_at = min(now + rest_s, wake_at or now + rest_s)
                continue
            slots = min(left, self._slots(lane, most_ahead, now))
            if slots > 0:
                plans.append(Plan(lane, slots, is_probe=lane.open_until is not None))
                left -= slots
        return plans, wake_at

    def _slots(self, lane: Lane, most_ahead: int, now: float) -> int:
        held = lane.running + len(lane.waiting)
        if lane.open_until is not None:
            return 0 if lane.is_probing or held else 1
        free = self._free(lane, now) - self.waiting
        if held and free <= 0:
            return 0
        share = max(1, min(lane.concurrency or self._limit, (max(0, free) + held) // SHARE))
        ahead = lane.ahead(share, most_ahead)
        if len(lane.waiting) > ahead // 2:  # claim many at a time, not one for each that ends
            return 0
        return min(share + ahead - held, _TASTE) if lane.is_new() else share + ahead - held

    def _free(self, lane: Lane, now: float) -> int:
        kept = self._places // SHARE if lane.is_slow(now) else 0
        return self._places - self.running - kept

    def accept(self, plan: Plan, flights: list[Flight]) -> None:
        """Take in what a claim for *plan* brought."""
        lane = plan.lane
        lane.accept(flights)
        self.waiting += len(flights)
        self._hungry.pop(lane.endpoint_id, None)
        if len(flights) >= plan.slots:
            self._hungry[lane.endpoint_id] = lane  # behind the others
        if lane.waiting:
            self._ready[lane.endpoint_id] = lane

    def take(self, now: float) -> list[Flight]:
        """Give places to the claims that may start, one lane after the other."""
        taken: list[Flight] = []
        moved = True
        while moved and self.running < self._places:
            moved = False
            for key, lane in list(self._ready.items()):
                if not lane.waiting:
                    del self._ready[key]
                elif lane.destination is not None and self._may_start(lane, now):
                    del self._ready[key]
                    self._ready[key] = lane
                    taken.append(lane.start(now))
                    self.running += 1
                    self.waiting -= 1
                    moved = True
        return taken

    def _may_start(self, lane: Lane, now: float) -> bool:
        free = self._free(lane, now)
        if free <= 0 or lane.running == 0:
            return free > 0
        return lane.running < (lane.concurrency or self._limit) and lane.running * SHARE < free + lane.running

    def finish(self, flight: Flight, took_s: float | None, now: float) -> None:
        """Take back the place of a request that is over."""
        self.running -= 1
        flight.lane.finish(took_s, now)
        flight.is_sent = False

    def barred(self, now: float) -> list[Flight]:
        """Take out the claims that cannot start soon: those of resting lanes, and what a slow one has no place for."""
        found: list[Flight] = []
        for lane in self._ready.values():
            is_resting = lane.open_until is not None and not lane.is_probing
            if lane.waiting and (is_resting or (lane.running and lane.is_slow(now))):
                found += self._empty(lane)
                self._hungry[lane.endpoint_id] = lane
        return found

    def _empty(self, lane: Lane) -> list[Flight]:
        found = list(lane.waiting)
        lane.waiting.clear()
        lane.look_back()
        self.waiting -= len(found)
        return found

    def drop(self, lost: set[Flight]) -> None:
        """Forget waiting claims whose lease is lost."""
        for lane in {flight.lane for flight in lost}:
            kept = [flight for flight in lane.waiting if flight not in lost]
            self.waiting -= len(lane.waiting) - len(kept)
            lane.waiting = deque(kept)

    def empty(self) -> list[Flight]:
        """Take out all that waits."""
        return [flight for lane in self._lanes.values() for flight in self._empty(lane)]

    def sweep(self, now: float) -> None:
        """Forget the lanes that have had no work for a while."""
        for key, lane in list(self._lanes.items()):
            if not lane.running and not lane.waiting and now - lane.used_at > IDLE_S and key not in self._hungry:
                del self._lanes[key]
                self._ready.pop(key, None)


def _rest_s(lane: Lane, now: float, clock: datetime) -> float:
    open_s = 0.0 if lane.open_until is None else (lane.open_until - clock).total_seconds()
    return max(lane.rests_until - now, open_s)
