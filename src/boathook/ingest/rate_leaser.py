"""Leases tokens for the rates of a gateway's sources, ahead of need, and follows how many gateways share them."""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from boathook.domain.errors import BoathookError
from boathook.domain.rate_leases import LeaseRequest, LeaseTokens
from boathook.ingest.source_rate import LEASE_INTERVAL_S, SourceRate
from boathook.observability import meters
from boathook.observability.log import get_logger

_MIN_INTERVAL_S: Final = 0.01
"""Time between two leases if tokens have run out, and the store granted all that were requested last time."""
_COUNT_INTERVAL_S: Final = 1.0
"""Time between two counts of the gateways."""
_REMEMBERED_COUNTS: Final = 3
"""The largest of so many counts is used: a gateway that reconnects to PostgreSQL is missing in one of them."""
_LOG = get_logger("ingest")

CountGateways = Callable[[], Awaitable[int]]
"""Returns the number of gateways that run, this one included. Raises BoathookError if that is unknown."""


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
        asked: list[tuple[SourceRate, LeaseRequest]] = []
        for rate in self._rates():
            request = rate.ask(now)
            if request is not None:
                asked.append((rate, request))
        if not asked:
            return
        try:
            granted = await self._lease([request for _, request in asked])
            tokens = [granted.get(request.source) for _, request in asked]
        except Exception as error:  # noqa: BLE001 - whatever a store does, sources keep their part of the rate
            for rate, request in asked:
                rate.fail(request)
            self._note(is_failing=True, error=error)
            meters.count("boathook_rate_leases_total", outcome="failed")
            return
        for (rate, request), number in zip(asked, tokens, strict=True):
            rate.grant(request, number, now)
        self._note(is_failing=False)
        meters.count("boathook_rate_leases_total", outcome="answered")

    def _note(self, *, is_failing: bool, error: Exception | None = None) -> None:
        meters.gauge("boathook_rate_leases_unavailable", float(is_failing))
        if is_failing and not self._is_failing:
            unexpected = None if isinstance(error, BoathookError) else error
            note = "each gateway has its part of the rates of sources meanwhile"
            _LOG.warning("rate_leases_unavailable", error=str(error), exc_info=unexpected, note=note)
        elif self._is_failing and not is_failing:
            _LOG.warning("rate_leases_back")
        self._is_failing = is_failing
