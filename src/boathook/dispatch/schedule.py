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

from boathook.domain.policy import Breaker, BreakerStanding, BreakerState
from boathook.handlers.handler import Handler
from boathook.journal.deliveries import EVER, Want, Work

AHEAD_S: Final = 0.03
MOST_AHEAD: Final = 100
FULL_LOOK_S: Final = 1.0
"""Seconds between looks that ignore the watermark."""
_OVERLAP: Final = timedelta(seconds=0.25)
"""How far behind the latest claim the watermark stays: transactions commit in another order than they begin."""
_LEARN: Final = 0.2


class Share:
    """One handler's share of a worker: what is claimed for it and what is under way."""

    def __init__(self, handler: Handler) -> None:
        self.handler = handler
        self.waiting: deque[Work] = deque()
        self.running = 0
        self.is_hungry = True
        """Whether the latest claim got all it wanted, so that there may be more."""
        self._mean_s: float | None = None
        self._since: datetime = EVER
        self._full_look_at = 0.0

    def ahead(self, places: int) -> int:
        """Return how many claims may wait here for a place."""
        if self._mean_s is None:
            return 0
        return min(MOST_AHEAD, int(places * AHEAD_S / max(self._mean_s, 0.0001)))

    def want(self, slots: int, now_s: float) -> Want:
        """Return the claim for so many slots, from the watermark on or, once a second, from the beginning."""
        since = self._since
        if now_s - self._full_look_at >= FULL_LOOK_S:
            self._full_look_at = now_s
            since = EVER
        return Want(self.handler.recipient, slots, since, self.handler.most_at_once)

    def accept(self, works: Iterable[Work], slots: int) -> None:
        """Take in what was claimed for *slots*."""
        before = len(self.waiting)
        self.waiting.extend(works)
        taken = len(self.waiting) - before
        self.is_hungry = taken >= slots
        if taken:
            self._since = self.waiting[-1].due_at - _OVERLAP

    def learn(self, took_s: float) -> None:
        """Remember how long an attempt took."""
        mean = self._mean_s
        self._mean_s = took_s if mean is None else mean + _LEARN * (took_s - mean)


class Breakers:
    """The circuit breakers of one worker, shared by the handlers that name one dependency."""

    def __init__(self) -> None:
        self._standings: dict[str, BreakerStanding] = {}

    def room(self, breaker: Breaker | None, running: int, now: datetime) -> int | None:
        """Return how many more attempts may start while *running* are under way; None: as many as you like."""
        if breaker is None:
            return None
        standing = self._standings.get(breaker.dependency, BreakerStanding())
        if standing.state(breaker, now) is BreakerState.CLOSED:
            return None
        return 1 if standing.may_run(breaker, now, running) else 0

    def learn(self, breaker: Breaker, error: BaseException | None, now: datetime) -> BreakerState:
        """Remember how an attempt ended and return where the breaker stands."""
        standing = self._standings.get(breaker.dependency, BreakerStanding()).after(breaker, error, now)
        self._standings[breaker.dependency] = standing
        return standing.state(breaker, now)


class Schedule:
    """The shares of all handlers of one worker."""

    def __init__(self, handlers: Mapping[str, Handler], places: int) -> None:
        self.shares = {handler.recipient: Share(handler) for handler in handlers.values()}
        self._places = places
        self._breakers = Breakers()
        self._turn: dict[str, int] = dict.fromkeys(self.shares, 0)
        self._turns = 0

    @property
    def running(self) -> int:
        """Attempts under way."""
        return sum(share.running for share in self.shares.values())

    def wants(self, now: datetime) -> list[Want]:
        """Return what to claim."""
        found = []
        for share in self.shares.values():
            slots = self._slots(share, now)
            if slots > 0:
                found.append(share.want(slots, time.monotonic()))
        return found

    def _slots(self, share: Share, now: datetime) -> int:
        ahead = share.ahead(self._places)
        if len(share.waiting) > ahead // 2:  # claim many at a time, not one for each that ends
            return 0
        slots = self._room(share) + ahead - len(share.waiting)
        limit = share.handler.most_at_once
        if limit is not None:
            slots = min(slots, limit - share.running - len(share.waiting))
        breaker_room = self._breaker_room(share, now)
        return slots if breaker_room is None else min(slots, breaker_room - len(share.waiting))

    def _room(self, share: Share) -> int:
        """Return how many more attempts of *share* may start, leaving others their kept places."""
        free = self._places - self.running
        if share.running == 0:
            return min(1, free) if free <= self._kept(share) else free - self._kept(share)
        return max(0, free - self._kept(share))

    def _kept(self, share: Share) -> int:
        idle = sum(1 for other in self.shares.values() if other is not share and other.running == 0)
        return min(idle, self._places // 2)

    def _breaker_room(self, share: Share, now: datetime) -> int | None:
        breaker = share.handler.breaker
        if breaker is None:
            return None
        return self._breakers.room(breaker, self._running_with(breaker), now)

    def _running_with(self, breaker: Breaker) -> int:
        return sum(
            share.running
            for share in self.shares.values()
            if share.handler.breaker is not None and share.handler.breaker.dependency == breaker.dependency
        )

    def accept(self, wants: Iterable[Want], works: Iterable[Work]) -> None:
        """Take in what a claim brought."""
        by_recipient: dict[str, list[Work]] = {}
        for work in works:
            by_recipient.setdefault(work.claim.recipient, []).append(work)
        for want in wants:
            self.shares[want.recipient].accept(by_recipient.get(want.recipient, ()), want.slots)

    def take(self, now: datetime) -> tuple[Share, Work] | None:
        """Return the work to start next and count it as running; None if nothing may start."""
        best: Share | None = None
        for share in self.shares.values():
            if not share.waiting or self._room(share) <= 0 or self._breaker_room(share, now) == 0:
                continue
            if best is None or self._order(share) < self._order(best):
                best = share
        if best is None:
            return None
        self._turns += 1
        self._turn[best.handler.recipient] = self._turns
        best.running += 1
        return best, best.waiting.popleft()

    def _order(self, share: Share) -> tuple[int, int]:
        return share.running, self._turn[share.handler.recipient]

    def finish(self, share: Share, took_s: float) -> None:
        """Count an attempt as no longer running."""
        share.running -= 1
        share.learn(took_s)

    def judge(self, share: Share, error: BaseException | None, now: datetime) -> BreakerState | None:
        """Tell the handler's breaker how an attempt ended; returns where it stands, None if there is none."""
        breaker = share.handler.breaker
        return None if breaker is None else self._breakers.learn(breaker, error, now)

    def barred(self, now: datetime) -> Iterator[Work]:
        """Take out the waiting work that an open breaker keeps from starting."""
        for share in self.shares.values():
            room = self._breaker_room(share, now)
            while room is not None and len(share.waiting) > room:
                yield share.waiting.pop()

    def drop(self, keys: Collection[tuple[UUID, int, int]]) -> None:
        """Forget waiting claims whose lease is lost, given as (event id, ordinal, fence)."""
        for share in self.shares.values():
            share.waiting = deque(
                work
                for work in share.waiting
                if (work.claim.event_id, work.claim.ordinal, work.claim.fence) not in keys
            )

    def empty(self) -> list[Work]:
        """Take out all that waits."""
        works = [work for share in self.shares.values() for work in share.waiting]
        for share in self.shares.values():
            share.waiting.clear()
        return works
