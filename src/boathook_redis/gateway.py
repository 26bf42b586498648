"""The part of a gateway that leases the rates of sources from Redis."""

import asyncio
from typing import Final, Self

from boathook.observability import meters
from boathook.server.background import BackgroundTasks
from boathook.server.gateway_part import Gateway, GatewayPart
from boathook_redis.errors import RedisUnavailable
from boathook_redis.leases import RedisLeases
from boathook_redis.settings import read_url

_LEASE_TIMEOUT_S: Final = 0.5
"""Deadline of leasing tokens: a later answer is worth little, as they are valid for a second."""
_CHECK_INTERVAL_S: Final = 5.0
"""Seconds between two requests that show whether Redis answers."""


def open_gateway_part(gateway: Gateway) -> "RedisPart | None":
    """Return the part; None if PostgreSQL leases the rates. Raises ConfigError."""
    url = read_url(gateway.settings)
    return RedisPart(url) if url else None


class RedisPart(GatewayPart):
    """Leases tokens, and measures whether Redis answers."""

    def __init__(self, url: str) -> None:
        self._leases = RedisLeases(url, within_s=_LEASE_TIMEOUT_S)
        self._tasks = BackgroundTasks()
        self.lease_tokens = self._leases.lease

    async def __aenter__(self) -> Self:
        self._tasks.start(self._watch(), "redis:watch")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.__aexit__()
        await self._leases.close()

    async def _watch(self) -> None:
        while True:
            try:
                await self._leases.check()
            except RedisUnavailable:
                meters.gauge("boathook_redis_unavailable", 1.0)
            else:
                meters.gauge("boathook_redis_unavailable", 0.0)
            await asyncio.sleep(_CHECK_INTERVAL_S)
