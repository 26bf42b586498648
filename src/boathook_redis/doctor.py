"""Diagnoses the server that leases shared rates."""

from collections.abc import AsyncIterator
from typing import Final

from boathook.config import Settings
from boathook.db.database import Database
from boathook.domain.errors import ConfigError
from boathook.domain.rate_leases import LeaseRequest
from boathook.service.operating.doctor.handlers import CheckStatus, Finding
from boathook_redis.errors import RedisUnavailable
from boathook_redis.settings import read_url

_REDIS: Final = "redis"
_TIMEOUT_S: Final = 5.0
_PROBE: Final = LeaseRequest(source="boathook doctor", per_second=1000.0, burst=1, spent=0, wanted=1)
"""A name that no source can have."""


async def examine(settings: Settings, database: Database | None) -> AsyncIterator[Finding]:
    """Yield the finding about Redis; none if PostgreSQL leases the rates."""
    if database is not None:
        return
    try:
        if url := read_url(settings):
            yield Finding(_REDIS, CheckStatus.OK, await _probe(url))
    except (RedisUnavailable, ConfigError) as error:
        problem = f"{error}; until it does, each gateway enforces its share of each rate"
        yield Finding(_REDIS, CheckStatus.WARN, problem, "see that shared.redis is right, and that it runs")


async def _probe(url: str) -> str:
    """Lease a token of a rate that nothing uses; return what to say of it. Raises RedisUnavailable."""
    from boathook_redis.leases import RedisLeases  # its extra may not be installed, which `read_url` reports

    leases = RedisLeases(url, within_s=_TIMEOUT_S)
    try:
        granted = (await leases.lease([_PROBE])).get(_PROBE.source)
        if not isinstance(granted, int) or not 0 <= granted <= 1:
            raise RedisUnavailable(f"it grants {granted!r} of 1 token")
        return f"{await leases.check()} leases the rates of sources"
    finally:
        await leases.close()
