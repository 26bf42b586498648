"""Leases tokens of shared rates from Redis or Valkey, over one connection with a deadline on every call.

What Redis answers is not trusted, and nothing else is kept there. After its first error a connection is used no more:
a late answer to an abandoned call would be taken for the answer to the next one.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from boathook.domain.rate_leases import LeaseRequest
from boathook_redis.errors import RedisUnavailable

_KEY: Final = "boathook:rate:{source}"
_CLOSE_S: Final = 1.0
_LEASE: Final = """
local clock = redis.call('TIME')
local now = tonumber(clock[1]) + tonumber(clock[2]) / 1000000
local granted = {}
for place, key in ipairs(KEYS) do
    local per_second, burst, spent, wanted = unpack(ARGV, 4 * place - 3, 4 * place)
    local gap = 1 / tonumber(per_second)
    local at = math.max(tonumber(redis.call('GET', key) or 0) or 0, now) + tonumber(spent) * gap
    local taken = math.min(tonumber(wanted), math.max(0, tonumber(burst) - math.ceil((at - now) / gap)))
    at = math.min(at + taken * gap, now + 2 * tonumber(burst) * gap + 1)
    redis.call('SET', key, string.format('%.6f', at), 'EX', math.min(math.ceil(at - now) + 1, 2592000))
    granted[place] = taken
end
return granted
"""
"""The same as the statement lease_tokens of `boathook.db.rate_leases`. A rate expires once all of it may be leased, or
after a month."""


class RedisLeases:
    """Leases tokens from one server; it connects at the first call, and again after an error.

    Args:
        url: the server, such as ``redis://127.0.0.1:6379/0``.
        within_s: deadline of a call, with connecting.
    """

    def __init__(self, url: str, *, within_s: float) -> None:
        self._url = url
        self._within_s = within_s
        self._client: Redis | None = None
        self._turn = asyncio.Lock()
        """Held during a call: a client that is closed after one call would reconnect for another that waits."""
        self._ending: set[asyncio.Future[Any]] = set()
        """Calls that were given up, and clients that are being closed."""

    async def lease(self, requests: Sequence[LeaseRequest]) -> Mapping[str, object]:
        """Charge what was spent, and return the tokens granted to each source; see `LeaseTokens`.

        Raises:
            RedisUnavailable: there is no valid answer to this call in time.
        """
        keys = [_KEY.format(source=request.source) for request in requests]
        arguments = [
            value
            for request in requests
            for value in (repr(request.per_second), request.burst, request.spent, request.wanted)
        ]
        async with self._turn:
            granted = await self.call("eval", _LEASE, len(keys), *keys, *arguments)
            if not isinstance(granted, list) or len(granted) != len(requests):
                self._drop()
                raise RedisUnavailable("Redis sent an unexpected answer")
        return {request.source: tokens for request, tokens in zip(requests, granted, strict=True)}

    async def check(self) -> str:
        """Return the server's name and version. Raises RedisUnavailable."""
        async with self._turn:
            information = await self.call("info", "server")
        information = information if isinstance(information, dict) else {}
        for name, key in (("Valkey", "valkey_version"), ("Redis", "redis_version")):
            if key in information:
                return f"{name} {information[key]}"
        return "a server without a version"

    async def close(self) -> None:
        """Close the connection."""
        self._drop()
        if self._ending:
            await asyncio.wait(self._ending, timeout=_CLOSE_S)

    async def call(self, name: str, *arguments: Any) -> Any:
        """Run a command of Redis within its time limit."""
        if self._client is None:
            self._client = self._open()
        call = asyncio.ensure_future(getattr(self._client, name)(*arguments))
        try:
            await asyncio.wait([call], timeout=self._within_s)
        except asyncio.CancelledError:
            self._abandon(call)
            raise
        if not call.done():
            self._abandon(call)
            raise RedisUnavailable(f"Redis did not answer within {self._within_s:g} s")
        try:
            return call.result()
        except (asyncio.CancelledError, Exception) as error:
            self._drop()
            raise RedisUnavailable(f"Redis failed: {str(error) or type(error).__name__}") from error

    def _open(self) -> Redis:
        try:
            return Redis.from_url(
                self._url,
                single_connection_client=True,
                retry=Retry(NoBackoff(), 0),
                socket_timeout=self._within_s,
                socket_connect_timeout=self._within_s,
                protocol=2,
            )
        except (TypeError, ValueError) as error:
            raise RedisUnavailable(f"shared.redis cannot be used: {error}") from error

    def _abandon(self, call: "asyncio.Future[Any]") -> None:
        call.cancel()
        self._drop()
        self._keep(call)

    def _drop(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            self._keep(asyncio.ensure_future(_close(client)))

    def _keep(self, task: "asyncio.Future[Any]") -> None:
        """Keep a reference to a task until it ends, and ignore its error."""
        self._ending.add(task)
        task.add_done_callback(self._forget)

    def _forget(self, task: "asyncio.Future[Any]") -> None:
        self._ending.discard(task)
        if not task.cancelled():
            task.exception()


async def _close(client: Redis) -> None:
    async with asyncio.timeout(_CLOSE_S):
        await client.aclose()
