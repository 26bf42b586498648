"""Limits one source's requests in one gateway to its share of a rate that all gateways have in common.

A single gateway limits requests without a store. Several gateways lease tokens from a store ahead of need, so that no
request waits for one. The store is not trusted. Three rules hold whatever it answers, and whether it answers at all:

- ceiling: a gateway never lets more pass than it would alone;
- floor: a gateway always lets its share pass, which is the rate divided by the number of gateways;
- what passes by the floor is reported to the store, which then grants that much less.

So an honest store holds the rate over all gateways, and a wrong one can neither stop a source nor open it.
"""

import asyncio
import contextlib
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from boathook.domain.errors import BoathookError
from boathook.domain.rate_leases import LeaseRequest, LeaseTokens
from boathook.http.limits import RateLimiter
from boathook.observability import meters
from boathook.observability.log import get_logger

MAX_GATEWAYS: Final = 1_024
"""Maximum number of gateways that share a rate; with more of them, each would have next to nothing."""
LEASE_INTERVAL_S: Final = 0.1
"""Time between two leases of a gateway."""
TOKEN_LIFE_S: Final = 1.0
"""How long leased tokens are valid, but for one: what a gateway did not need then must not pass at another time."""
_MAX_TOKENS: Final = 1_000_000_000
"""Maximum number of tokens in a request; stores accept no larger number."""
_MARGIN: Final = 1.5
"""Tokens to lease for each request of the last interval."""
_DECAY: Final = 0.8
"""Share of the requests expected in an interval that is still expected if fewer come."""
_REFILL_SHARE: Final = 0.25
"""Interval at which an idle gateway requests the one token that it keeps, as a share of the time between two tokens."""
_MAX_REFILL_S: Final = 10.0
_WHOLE: Final = 1 - 1e-6
"""Minimum that counts as a whole token, because sums of fractions are not exact."""
_MIN_INTERVAL_S: Final = 0.01
"""Time between two leases if tokens have run out, and the store granted all that were requested last time."""
_COUNT_INTERVAL_S: Final = 1.0
"""Time between two counts of the gateways."""
_REMEMBERED_COUNTS: Final = 3
"""The largest of so many counts is used: a gateway that reconnects to PostgreSQL is missing in one of them."""
_LOG = get_logger("ingest")
CountGateways = Callable[[], Awaitable[int]]
"""Returns the number of gateways that run, this one included. Raises BoathookError if that is unknown."""


class SourceRate:
    """The rate of one source in one gateway.

    Time is passed in, as monotonic seconds. The caller leases: `ask` returns the request, and `grant` or `fail` takes
    how that ended.

    Args:
        source: the source.
        per_second: the rate of all gateways together.
        burst: how many requests all gateways together let pass at once. If they come to several gateways within a few
            milliseconds, half as many more may pass, before the gateways have reported what they did.
        gateways: the number of gateways, until `set_gateways` is called.
    """

    def __init__(self, source: str, per_second: float, burst: int, *, gateways: int = 1) -> None:
        self.source = source
        self.wait_s: Callable[[str, float], float]
        """Count one request of a key at a time; return 0 if it may pass, else the seconds to wait."""
        self.need_tokens: Callable[[], None] = _do_nothing
        """Called when leased tokens have run out and more may be granted at once."""
        self._per_second = per_second
        self._burst = burst
        self.ceiling = RateLimiter(per_second, burst)
        self.floor = Floor(burst)
        self._leased = 0
        self._leased_until = -math.inf
        self._spent = 0
        self._seen = self._passed = 0
        self._expected = 0.0
        self._refill_at = -math.inf
        self._can_have_more = True
        self._gateways = 0
        self.set_gateways(gateways)

    @property
    def is_shared(self) -> bool:
        """Whether other gateways share the rate."""
        return self._gateways > 1

    def set_gateways(self, gateways: int) -> None:
        """Set the number of gateways that share the rate."""
        gateways = min(max(1, gateways), MAX_GATEWAYS)
        if gateways == self._gateways:
            return
        self._gateways = gateways
        # Half of a burst passes at once; what the gateways have passed is reported, and the rest of it is leased.
        self.floor.resize(self._per_second / gateways, max(1, self._burst // (2 * gateways)))
        if gateways > 1:
            self.wait_s = self._wait_for_token
        else:
            # The limiter's own method, so that a rate that is not shared costs no more than it did.
            self.wait_s = self.ceiling.wait_s
            self._leased = self._spent = 0

    def _wait_for_token(self, key: str, now: float) -> float:
        self._seen += 1
        self._drop_expired(now)
        is_leased = self._leased > 0
        if not is_leased:
            if self._can_have_more:
                self._can_have_more = False
                self.need_tokens()
            if (wait_s := self.floor.wait_s(now)) > 0:
                return wait_s
        if (wait_s := self.ceiling.wait_s(key, now)) > 0:
            return wait_s
        self.floor.take(now)
        self._passed += 1
        if is_leased:
            self._leased -= 1
        else:
            self._spent += 1
        return 0.0

    def _drop_expired(self, now: float) -> None:
        # One is kept, so that the first request after a pause passes even where the gateway's own part is small.
        if self._leased > 1 and now >= self._leased_until:
            self._leased = 1

    def ask(self, now: float) -> LeaseRequest | None:
        """Return the next request to the store; None if there is nothing to request or to report."""
        if not self.is_shared:
            return None
        self._drop_expired(now)
        # The store must be able to grant what comes in between two leases, however small the burst.
        burst = min(max(self._burst, math.ceil(2 * LEASE_INTERVAL_S * self._per_second)), _MAX_TOKENS)
        tokens = self._wanted(now, min(burst + math.ceil(self._per_second * TOKEN_LIFE_S), _MAX_TOKENS))
        spent, self._spent = min(self._spent, _MAX_TOKENS), 0
        if not tokens and not spent:
            return None
        return LeaseRequest(source=self.source, per_second=self._per_second, burst=burst, spent=spent, wanted=tokens)

    def _wanted(self, now: float, limit: int) -> int:
        # What is refused counts only in its own interval, so that a flood that has ended takes no tokens from others.
        self._expected = max(self._passed, self._expected * _DECAY)
        expected = round(max(self._seen, self._expected) * _MARGIN)
        self._seen = self._passed = 0
        if not expected and now < self._refill_at:
            return 0
        tokens = max(0, min(max(1, expected), limit) - self._leased)
        if tokens:
            self._refill_at = now + min(_REFILL_SHARE / self._per_second, _MAX_REFILL_S)
        return tokens

    def grant(self, request: LeaseRequest, granted: object, asked_at: float) -> None:
        """Add the tokens that the store has granted.

        Args:
            request: what `ask` returned.
            granted: the store's answer; not trusted.
            asked_at: when the request was sent. The tokens' life begins then, because the answer may be late.
        """
        tokens = granted if isinstance(granted, int) else 0
        tokens = min(max(0, tokens), request.wanted)
        if tokens:
            self._leased += tokens
            self._leased_until = asked_at + TOKEN_LIFE_S
        self._can_have_more = tokens == request.wanted

    def fail(self, request: LeaseRequest) -> None:
        """Report later what was spent: the store has not answered, so it is unknown whether it was charged."""
        self._spent = min(self._spent + request.spent, self.floor.max_spent)
        self._can_have_more = False


class Floor:
    """A token bucket: a gateway's own part of a rate."""

    def __init__(self, burst: int) -> None:
        self._per_second = 0.0
        self._burst = burst
        self._tokens = float(burst)
        self._at = -math.inf

    @property
    def max_spent(self) -> int:
        """Maximum number of tokens that can be taken within a second."""
        return min(self._burst + math.ceil(self._per_second), _MAX_TOKENS)

    def resize(self, per_second: float, burst: int) -> None:
        """Change the rate and the burst; tokens above the burst are gone."""
        self._per_second, self._burst = per_second, burst
        self._tokens = min(self._tokens, burst)

    def wait_s(self, now: float) -> float:
        """Return the seconds until there is a token; 0 if there is one."""
        self._refill(now)
        return 0.0 if self._tokens >= _WHOLE else (1 - self._tokens) / self._per_second

    def take(self, now: float) -> None:
        """Take a token, or the fraction that is left: a gateway with leased tokens does not need its own share too."""
        self._refill(now)
        self._tokens = max(0.0, self._tokens - 1)

    def _refill(self, now: float) -> None:
        if now > self._at:
            earned = (now - self._at) * self._per_second
            self._tokens = min(self._burst, self._tokens + earned)
            self._at = now


def _do_nothing() -> None:
    """Do nothing."""


class RateLeaser:
    """Shares the rates of sources with other gateways; without a rate, or without other gateways, it leases nothing.

    Args:
        rates: returns the rates of the sources that are served.
        lease: leases tokens.
        count_gateways: counts the gateways.
        gateways: how many there are at least: those of this host.
    """

    def __init__(
        self,
        rates: Callable[[], Iterable[SourceRate]],
        lease: LeaseTokens,
        count_gateways: CountGateways,
        *,
        gateways: int,
    ) -> None:
        self._rates = rates
        self._lease = lease
        self._count_gateways = count_gateways
        self._counts = deque([gateways], _REMEMBERED_COUNTS)
        self._min_gateways = gateways
        self._is_shared = asyncio.Event()
        self._need = asyncio.Event()
        self._is_failing = False
        self.follow_sources()

    @property
    def gateways(self) -> int:
        """How many gateways share the rates."""
        return max(self._min_gateways, *self._counts)

    def follow_sources(self) -> None:
        """Share the rates of sources that are new or have changed."""
        is_shared = False
        for rate in self._rates():
            rate.need_tokens = self._need.set
            rate.set_gateways(self.gateways)
            is_shared |= rate.is_shared
        if is_shared:
            self._is_shared.set()
        else:
            self._is_shared.clear()
            self._note(is_failing=False)

    async def run(self) -> None:
        """Count gateways and lease tokens until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_gateways())
            tasks.create_task(self._keep_leasing())

    async def _follow_gateways(self) -> None:
        while True:
            if any(True for _ in self._rates()):
                with contextlib.suppress(BoathookError):  # then the last count is as good as any
                    self._counts.append(await self._count_gateways())
                    meters.gauge("boathook_gateways", self.gateways)
                    self.follow_sources()
            await asyncio.sleep(_COUNT_INTERVAL_S)

    async def _keep_leasing(self) -> None:
        while True:
            await self._is_shared.wait()
            await self._lease_once()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LEASE_INTERVAL_S):
                    await self._need.wait()
            await asyncio.sleep(_MIN_INTERVAL_S)
            self._need.clear()

    async def _lease_once(self) -> None:
        now = time.monotonic()
        requests: list[tuple[SourceRate, LeaseRequest]] = []
        for rate in self._rates():
            request = rate.ask(now)
            if request is not None:
                requests.append((rate, request))
        if not requests:
            return
        try:
            granted = await self._lease([request for _, request in requests])
            tokens = [granted.get(request.source) for _, request in requests]
        except Exception as error:  # noqa: BLE001 - whatever a store does, sources keep their part of the rate
            for rate, request in requests:
                rate.fail(request)
            self._note(is_failing=True, error=error)
            meters.count("boathook_rate_leases_total", outcome="failed")
            return
        for (rate, request), number in zip(requests, tokens, strict=True):
            rate.grant(request, number, now)
        self._note(is_failing=False)
        meters.count("boathook_rate_leases_total", outcome="answered")

    def _note(self, *, is_failing: bool, error: Exception | None = None) -> None:
        meters.gauge("boathook_rate_leases_unavailable", float(is_failing))
        if is_failing and not self._is_failing:
            unexpected = None if isinstance(error, BoathookError) else error
            note = "until then, each gateway applies its share of the rates of sources"
            _LOG.warning("rate_leases_unavailable", error=str(error), exc_info=unexpected, note=note)
        elif self._is_failing and not is_failing:
            _LOG.warning("rate_leases_back")
        self._is_failing = is_failing
