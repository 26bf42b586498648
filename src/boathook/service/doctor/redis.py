"""Diagnoses Redis: whether it leases tokens of the rates that gateways share."""

from collections.abc import AsyncIterator
from typing import Final

from boathook.broker.access import read_redis_url
from boathook.config import Settings
from boathook.domain.errors import ConfigError, RedisUnavailable
from boathook.domain.rate_leases import LeaseRequest
from boathook.service.doctor.handlers import CheckStatus, Finding

_NAME: Final = "redis"
_TIMEOUT_S: Final = 5.0
_PROBE: Final = LeaseRequest(source="boathook doctor", per_second=1000.0, burst=1, spent=0, wanted=1)
"""A name that no source can have."""


async def examine(settings: Settings) -> AsyncIterator[Finding]:
    """Yield the finding about Redis; none if PostgreSQL shares the rates."""
    if not settings.shared.redis:
        return
    try:
        yield Finding(_NAME, CheckStatus.OK, await _probe(read_redis_url(settings)))
    except (RedisUnavailable, ConfigError) as error:
        found = f"{error}; until it does, each gateway enforces its part of each rate"
        yield Finding(_NAME, CheckStatus.WARN, found, "see that shared.redis is right, and that it runs")


async def _probe(url: str) -> str:
    """Lease a token of a rate that nothing uses; return what to say of it. Raises RedisUnavailable."""
    # Its extra may not be installed.
    from boathook.broker.redis_leases import RedisLeases

    leases = RedisLeases(url, within_s=_TIMEOUT_S)
    try:
        granted = (await leases.lease([_PROBE])).get(_PROBE.source)
        if not isinstance(granted, int) or not 0 <= granted <= 1:
            raise RedisUnavailable(f"it grants {granted!r} of 1 token")
        return f"{await leases.check()} leases the rates of sources"
    finally:
        await leases.close()
