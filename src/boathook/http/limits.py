"""Limits request rates and connections per client, and determines the client's address behind proxies.

All state is in the memory of one gateway process, with a bounded size.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Final, Protocol, Self

import msgspec

_MAX_KEYS = 65_536
_IPV6_BITS: Final = 64
LIGHT_CLIENT_CONNECTIONS: Final = 16
"""A client with fewer connections than this may open one even if only reserved slots are left."""
_RESERVED_FRACTION: Final = 8
"""Fraction (1/n) of the connection slots that is reserved for such clients."""
_PAUSE_FACTOR: Final = 3.0
MAX_PAUSE_S: Final = 0.1
_MEASURED_ITERATIONS: Final = 2
"""Event loop iterations over which the cost of a started request is measured."""

Network = IPv4Network | IPv6Network


class RateLimiter:
    """Limits requests per second with a burst, per key.

    It implements the generic cell rate algorithm: each key needs one number, and no timer refills anything.
    """

    def __init__(self, per_second: float, burst: int, *, max_keys: int = _MAX_KEYS) -> None:
        self._interval_s = 1 / per_second
        self._burst_s = (burst - 1) / per_second
        self._max_keys = max_keys
        self._arrival_times: dict[str, float] = {}

    def wait_s(self, key: str, now: float) -> float:
        """Count one request at *now* (monotonic seconds); return 0 if it may pass, else the seconds to wait."""
        arrival_time = self._arrival_times.get(key, now)
        arrival_time = max(arrival_time, now)
        if arrival_time - now > self._burst_s:
            return arrival_time - now - self._burst_s
        if len(self._arrival_times) >= self._max_keys and key not in self._arrival_times:
            self._make_room(now)
        self._arrival_times[key] = arrival_time + self._interval_s
        return 0.0

    def _make_room(self, now: float) -> None:
        self._arrival_times = {
            key: arrival_time for key, arrival_time in self._arrival_times.items() if arrival_time > now
        }
        # Still full: too many active clients. Dropping half of the entries is lenient to clients and bounds memory.
        while len(self._arrival_times) >= self._max_keys:
            for key in list(self._arrival_times)[: self._max_keys // 2 + 1]:
                del self._arrival_times[key]

    def __len__(self) -> int:
        return len(self._arrival_times)


class BudgetExceeded(Exception):
    """A body does not fit into the bytes that all bodies may take together."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size: Final = size
        """The bytes of the body that had arrived."""


class ByteBudget:
    """Limits the bytes that several bodies take together, in one process."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self.used = 0

    def take(self, size: int) -> bool:
        """Count *size* more bytes; return False, without counting them, if there is no room."""
        if self.used + size > self._max_bytes:
            return False
        self.used += size
        return True

    def release(self, size: int) -> None:
        """Count *size* bytes less."""
        self.used -= size

    def reserve(self) -> "Reservation":
        """Return a context that releases at its end what was taken through it."""
        return Reservation(self)


class Reservation:
    """The bytes that one body has taken of a budget."""

    __slots__ = ("_budget", "size")

    def __init__(self, budget: ByteBudget) -> None:
        self._budget = budget
        self.size = 0

    def take(self, size: int) -> bool:
        """Count *size* more bytes; return False, without counting them, if there is no room."""
        if not self._budget.take(size):
            return False
        self.size += size
        return True

    def release(self) -> None:
        """Release all bytes."""
        self._budget.release(self.size)
        self.size = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


class FairScheduler:
    """Starts requests sequentially, in turn for each client, while other traffic has priority.

    After each start, no other request starts for a multiple of the time that it kept the event loop busy. So the
    priority traffic keeps most of the event loop, however many requests wait.
    """

    def __init__(self, has_priority_traffic: Callable[[], bool], *, pause: float = _PAUSE_FACTOR) -> None:
        """Create a scheduler that limits only while *has_priority_traffic* returns true; *pause* is that multiple."""
        self._has_priority_traffic = has_priority_traffic
        self._pause = pause
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}
        self._is_taken = False

    async def take(self, client: str) -> None:
        """Wait until a request of *client* may start."""
        if not self._is_taken:
            if self._has_priority_traffic():
                self._begin()
            return
        turn = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        await turn

    def _begin(self) -> None:
        self._is_taken = True
        loop = asyncio.get_running_loop()
        loop.call_soon(self._measure, loop.time(), _MEASURED_ITERATIONS)

    def _measure(self, began: float, slices: int) -> None:
        loop = asyncio.get_running_loop()
        if slices:
            loop.call_soon(self._measure, began, slices - 1)
        else:
            loop.call_later(min((loop.time() - began) * self._pause, MAX_PAUSE_S), self._next)

    def _next(self) -> None:
        self._is_taken = False
        while (turn := self._pop()) is not None:
            if turn.done():  # its client has disconnected
                continue
            turn.set_result(None)
            if self._has_priority_traffic():
                self._begin()
                return

    def _pop(self) -> asyncio.Future[None] | None:
        """Return the oldest waiting request of the next client, and move that client to the end of the line."""
        if not self._waiting:
            return None
        client = next(iter(self._waiting))
        turns = self._waiting.pop(client)
        turn = turns.popleft()
        if turns:
            self._waiting[client] = turns
        return turn


class Evictable(Protocol):
    """An idle connection, which waits for its client."""

    def evict(self) -> None:
        """Release its slot with `ConnectionLimiter.close`, and close it."""
        ...


class _Client(msgspec.Struct):
    is_exempt: bool
    count: int = 0
    idle: dict[Evictable, None] = msgspec.field(default_factory=dict)
    """Its idle connections, the longest idle first."""


class ConnectionLimiter:
    """Limits open connections, in total and per client; idle ones are closed to make room for new ones.

    A client is identified by `client_key`. When all slots are taken, the client with the most connections loses its
    longest idle one. An eighth of the slots is reserved for clients with fewer than `LIGHT_CLIENT_CONNECTIONS`
    connections, so that a few clients with many busy connections cannot lock out all others.
    """

    def __init__(self, max_total: int, max_per_client: int) -> None:
        self.max_total = max_total
        self._max_per_client = max_per_client
        self._unreserved = max_total - max_total // _RESERVED_FRACTION
        self._clients: dict[str, _Client] = {}
        self.total = 0

    @property
    def is_nearly_full(self) -> bool:
        """Whether only clients with few connections may open more."""
        return self.total >= self._unreserved

    def open(self, client: str, *, is_exempt: bool = False) -> bool:
        """Count one more connection of *client*, an address; return False, without counting it, if there are too many.

        A trusted proxy represents many clients, so it is exempt from the limits per client.
        """
        key = client_key(client)
        mine = self._clients[key].count if key in self._clients else 0
        is_over = mine >= self._max_per_client or (mine >= LIGHT_CLIENT_CONNECTIONS and self.is_nearly_full)
        if is_over and not is_exempt and not self._evict(self._clients[key]):
            return False
        if self.total >= self.max_total and not self._evict(self._largest()):
            return False
        self._clients.setdefault(key, _Client(is_exempt)).count += 1
        self.total += 1
        return True

    def mark_idle(self, client: str, connection: Evictable) -> None:
        """Record that an open connection is idle."""
        self._clients[client_key(client)].idle[connection] = None

    def mark_busy(self, client: str, connection: Evictable) -> None:
        """Record that it is no longer idle."""
        self._clients[client_key(client)].idle.pop(connection, None)

    def close(self, client: str) -> None:
        """Count one connection less; call it once for each `open` that returned True."""
        self.total -= 1
        key = client_key(client)
        mine = self._clients[key]
        mine.count -= 1
        if not mine.count:
            del self._clients[key]

    def _largest(self) -> _Client | None:
        """Return the client with the most connections among those with an idle one; trusted proxies come last."""
        idle = (client for client in self._clients.values() if client.idle)
        return max(idle, key=lambda client: (not client.is_exempt, client.count), default=None)

    @staticmethod
    def _evict(client: _Client | None) -> bool:
        """Close the longest idle connection of *client*; return False if none is idle."""
        if client is None or not client.idle:
            return False
        connection = next(iter(client.idle))
        del client.idle[connection]
        connection.evict()
        return True


@lru_cache(maxsize=4096)
def client_key(address: str) -> str:
    """Return the key of a client: an IPv4 address, the /64 network of an IPv6 address, or unchanged if not an address.

    A client with one IPv6 address usually controls its whole /64. IPv4-mapped IPv6 addresses count as IPv4.
    """
    try:
        ip = ip_address(address)
    except ValueError:
        return address
    if isinstance(ip, IPv6Address):
        if ip.ipv4_mapped is None:
            return str(IPv6Network((ip.packed, _IPV6_BITS), strict=False))
        ip = ip.ipv4_mapped
    return str(ip)


@lru_cache(maxsize=4096)
def is_within(address: str, networks: Sequence[Network]) -> bool:
    """Return whether an address is in one of the networks; false if it is not an IP address."""
    try:
        ip = ip_address(address)
    except ValueError:
        return False
    if isinstance(ip, IPv6Address) and ip.ipv4_mapped is not None:
        ip = ip.ipv4_mapped
    return any(ip in network for network in networks)


def client_address(peer: str, forwarded_for: str | None, trusted: tuple[Network, ...]) -> str:
    """Return the address of the client behind *peer*.

    ``X-Forwarded-For`` counts only if the peer is a trusted proxy. Then it is read from the right, past further trusted
    proxies, to the first hop that is not one of them. Everything to the left of that hop can be forged by the client. A
    hop that is not an address ends the search at the last valid one.
    """
    if not trusted or not forwarded_for or not is_within(peer, trusted):
        return peer
    client = peer
    for hop in reversed(forwarded_for.split(",")):
        address = _plain_address(hop.strip())
        if address is None:
            return client
        client = address
        if not is_within(address, trusted):
            return client
    return client


def is_trusted(peer: str, trusted: tuple[Network, ...]) -> bool:
    """Return whether *peer* is a trusted proxy, whose forwarding headers are used."""
    return bool(trusted) and is_within(peer, trusted)


def _plain_address(hop: str) -> str | None:
    """Parse ``192.0.2.1``, ``192.0.2.1:1234``, ``2001:db8::1`` or ``[2001:db8::1]:1234``."""
    if hop.startswith("["):
        hop = hop[1:].partition("]")[0]
    elif hop.count(":") == 1:
        hop = hop.partition(":")[0]
    try:
        return str(ip_address(hop))
    except ValueError:
        return None
