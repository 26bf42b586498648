"""Makes POSTs over kept HTTP/1.1 connections in an event loop, for requests that need nothing of libcurl.

Each connection is made to an IP address that the guard has just checked, never to a name. Limits are those of
`messages`, and a failure has the same class and words as with libcurl.
"""

import asyncio
import functools
import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from ipaddress import IPv4Address
from typing import Final, NamedTuple, cast

import aiohappyeyeballs
import msgspec

from boathook.config.tables import OutboundSettings
from boathook.http_client.addresses import Address, read_address
from boathook.http_client.guard import ConnectGuard, ProxyPolicy, tls_context
from boathook.http_client.messages import BODY_S, OutgoingRequest, RequestResult, TransportFailure
from boathook.http_client.resolver import Resolution, Resolver
from boathook.http_client.response_reader import InvalidResponse, ResponseReader
from boathook.http_client.transfer import authorization_line, encode_line, lower_names
from boathook.observability.log import get_logger

IDLE_S: Final = 118.0
"""Seconds an idle connection is kept; as with libcurl."""
KEPT_OPEN: Final = 512
"""Minimum number of idle connections that are kept, as with libcurl."""
_NEXT_ADDRESS_S: Final = 0.2
"""Seconds after which the next address of a name is tried beside the first ones (RFC 8305)."""
_TRUST_S: Final = 86_400.0
"""Seconds after which the trusted certificates are read again, as with libcurl."""
_MOST_HTTP2: Final = 10_000
_SPECIAL: Final = frozenset({
    "accept", "connection", "content-length", "expect", "host", "keep-alive", "te", "transfer-encoding", "upgrade",
})  # fmt: skip
"""Headers that libcurl replaces or interprets."""
_HOSTNAME_MISMATCH: Final = 62
_ADDRESS_MISMATCH: Final = 64
"""OpenSSL's codes for certificates of other names and of other addresses."""
_LOG: Final = get_logger("http_client")

Origin = tuple[str, str, int]
"""Scheme, host and port, which connections are kept by."""


class _Target(NamedTuple):
    """A URL as the target of requests."""

    address: Address
    origin: Origin
    head: str
    """The first lines of a request to it."""


class _Exchange(msgspec.Struct, eq=False):
    """A request in progress."""

    request: OutgoingRequest
    target: _Target
    data: bytes
    began_at: float
    ends_at: float
    is_started: bool = False
    """Whether a connection carries it, which then reports its result."""

    def __repr__(self) -> str:
        # The data and the target contain credentials.
        return f"_Exchange({self.target.origin})"

    def elapsed_ms(self) -> int:
        return int((time.monotonic() - self.began_at) * 1_000)


class _SocketAddress(NamedTuple):
    """An address as `ConnectGuard.open_socket` takes it, which is as pycurl passes it."""

    family: int
    socktype: int
    protocol: int
    addr: tuple[object, ...]


class _ConnectFailed(Exception):
    def __init__(self, failure: TransportFailure, error: str) -> None:
        super().__init__(error)
        self.failure = failure


class Connection(asyncio.Protocol):
    """One connection, with the exchange that it carries, if any."""

    __slots__ = (
        "_answered_at", "_ends_at", "_exchange", "_input", "_is_reused", "_pool", "_reader", "_timer", "_timer_at",
        "_transport", "origin",
    )  # fmt: skip

    def __init__(self, pool: "ConnectionPool", exchange: _Exchange) -> None:
        self.origin = exchange.target.origin
        self._pool = pool
        self._exchange: _Exchange | None = exchange
        self._reader = ResponseReader(pool.max_response)
        self._transport: asyncio.Transport
        self._answered_at: float | None = None
        self._is_reused = False
        self._input: select.poll | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = self._ends_at = 0.0

    def start(self, exchange: _Exchange) -> None:
        """Send a request."""
        exchange.is_started = True
        self._exchange = exchange
        self._reader = ResponseReader(self._pool.max_response)
        self._answered_at = None
        self._end_at(exchange.ends_at)
        self._transport.write(exchange.data)

    def has_input(self) -> bool:
        """Return whether bytes, or the end of the connection, wait to be read; they belong to no request."""
        if self._input is None:
            self._input = select.poll()
            self._input.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return bool(self._input.poll(0))

    def close(self) -> None:
        """Close the connection, without a result for its exchange."""
        self._exchange = None
        self._pool.forget(self)
        self._transport.abort()

    def fail(self, failure: TransportFailure, error: str) -> None:
        """Report its exchange, if any, as failed, and close the connection."""
        if self._exchange is not None:
            self._pool.fail(self._exchange, failure, error)
        self.close()

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        # The request is sent at once, so whatever comes is read as its response.
        self._transport = cast("asyncio.Transport", transport)
        self._pool.opened.add(self)
        exchange, tls = self._exchange, transport.get_extra_info("ssl_object")
        assert exchange is not None
        if tls is not None and tls.selected_alpn_protocol() == "h2":
            exchange.is_started = True
            self._pool.pass_on(exchange)
            self.close()
        else:
            self.start(exchange)

    def data_received(self, data: bytes) -> None:
        """Read bytes of a response."""
        try:
            self._take(data)
        except InvalidResponse as error:
            self.fail(TransportFailure.READ, str(error))
        except Exception as error:  # noqa: BLE001 - a bug fails this request, never the next ones
            self.fail(TransportFailure.FAULT, _note(error))

    def connection_lost(self, error: Exception | None) -> None:
        """Report the exchange, if any, as failed."""
        self._pool.forget(self)
        if self._timer is not None:
            self._timer.cancel()
        exchange, self._exchange = self._exchange, None
        if exchange is None or not exchange.is_started:
            return
        if self._answered_at is not None:
            self._report(exchange, is_cut=self._reader.has_length)
        elif self._is_reused and self._reader.is_empty:
            self._pool.dial(exchange)
        elif isinstance(error, BrokenPipeError):
            self._pool.fail(exchange, TransportFailure.SEND, "Send failure: Broken pipe")
        elif isinstance(error, ssl.SSLError):
            self._pool.fail(exchange, TransportFailure.READ, f"OpenSSL SSL_read: {_describe_reason(error)}")
        else:
            self._pool.fail(exchange, TransportFailure.READ, self._reader.describe_end())

    def _take(self, data: bytes) -> None:
        exchange, reader = self._exchange, self._reader
        if exchange is None:  # no request is using it
            self.close()
            return
        reader.feed(data)
        if not reader.status:
            return
        if self._answered_at is None:
            self._answered_at = time.monotonic()
        if not reader.is_complete:
            self._end_at(min(exchange.ends_at, self._answered_at + BODY_S))
            return
        self._exchange = None
        self._report(exchange)
        if reader.keeps_alive and not self._transport.get_write_buffer_size():
            self._is_reused = True
            self._end_at(time.monotonic() + IDLE_S)
            self._pool.keep(self)
        else:
            self.close()

    def _report(self, exchange: _Exchange, *, is_cut: bool = False) -> None:
        # Once a final status has arrived, the receiver has decided; a broken body changes nothing.
        assert self._answered_at is not None
        reader, duration_s = self._reader, self._answered_at - exchange.began_at
        self._pool.report(
            RequestResult(
                exchange.request,
                reader.status,
                reader.headers,
                reader.body,
                duration_s,
                None,
                "",
                is_cut=is_cut or reader.is_cut,
            )
        )

    # Time.

    def _end_at(self, ends_at: float) -> None:
        # Setting a timer for each request costs more than one that sometimes fires too early.
        self._ends_at = ends_at
        if self._timer is None or ends_at < self._timer_at:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._ends_at
        self._timer = self._pool.loop.call_later(max(0.0, self._ends_at - time.monotonic()), self._check_time)

    def _check_time(self) -> None:
        self._timer = None
        exchange = self._exchange
        if time.monotonic() < self._ends_at:
            self._set_timer()
        elif exchange is None:
            self.close()
        elif self._answered_at is None:
            waited = f"{exchange.elapsed_ms()} milliseconds with 0 bytes received"
            self.fail(TransportFailure.TIMEOUT, f"Operation timed out after {waited}")
        else:
            self._report(exchange, is_cut=True)
            self.close()


class ConnectionPool:
    """Makes POSTs in the event loop that creates it.

    Args:
        settings: limits, proxies and allowed destinations.
        done: called with the results, in batches.
        pass_on: called with each request that turns out to need libcurl, because its receiver prefers HTTP/2.

    Raises:
        ConfigError: the proxy is written as a reference.
    """

    def __init__(
        self,
        settings: OutboundSettings,
        *,
        on_results: Callable[[list[RequestResult]], None],
        pass_on: Callable[[OutgoingRequest], None],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.max_response = settings.max_response
        """Maximum bytes of a response's body that are stored."""
        self.opened: set[Connection] = set()
        self._settings = settings
        self._done = on_results
        self._send_by_libcurl = pass_on
        self._proxy = ProxyPolicy(settings)
        self._read = functools.lru_cache(4_096)(self._read_target)
        self._resolver = Resolver(settings.allow, self._wake)
        self._lookups: dict[str, asyncio.Future[Resolution]] = {}
        self._dials: dict[asyncio.Task[None], _Exchange] = {}
        self._idle: dict[Origin, dict[Connection, None]] = {}
        self._idle_order: dict[Connection, None] = {}
        """All idle connections, in the order in which they became idle."""
        self._http2: set[Origin] = set()
        """Origins that prefer HTTP/2."""
        self._tls: tuple[ssl.SSLContext, float] | None = None
        """The context of all connections, and when to read the trusted certificates again."""
        self._results: list[RequestResult] = []

    def send(self, request: OutgoingRequest) -> bool:
        """Start a request and return True; return False if libcurl has to make it."""
        target = self._read(request.url)
        names = lower_names(tuple([name for name, _ in request.headers]))
        is_plain = request.client_certificate is None and names.isdisjoint(_SPECIAL)
        if target is None or not is_plain or target.origin in self._http2:
            return False
        now = time.monotonic()
        exchange = _Exchange(request, target, b"", now, now + request.timeout_s)
        try:
            exchange.data = _encode(request, target, has_authorization="authorization" in names)
            self._begin(exchange)
        except ValueError as error:
            self.fail(exchange, TransportFailure.FAULT, str(error))
        except Exception as error:  # noqa: BLE001 - a bug fails this request, never the next ones
            self.fail(exchange, TransportFailure.FAULT, _note(error))
        return True

    def close(self) -> None:
        """Close the connections; requests in progress fail as CLOSED, although the receivers may have them."""
        failure, error = TransportFailure.CLOSED, "boathook is shutting down"
        for dial, exchange in self._dials.items():
            dial.cancel()
            if not exchange.is_started:
                self.fail(exchange, failure, error)
        for connection in list(self.opened):
            connection.fail(failure, error)
        self._resolver.close()

    # Results.

    def report(self, result: RequestResult) -> None:
        """Pass a result on with the others of this event-loop iteration."""
        if not self._results:
            self.loop.call_soon(self._hand_over)
        self._results.append(result)

    def fail(self, exchange: _Exchange, failure: TransportFailure, error: str) -> None:
        """Report a request without a response."""
        duration_s = time.monotonic() - exchange.began_at
        self.report(RequestResult(exchange.request, 0, {}, b"", duration_s, failure, error))

    def _hand_over(self) -> None:
        results, self._results = self._results, []
        self._done(results)

    # Kept connections.

    def keep(self, connection: Connection) -> None:
        """Keep an idle connection for another request."""
        self._idle.setdefault(connection.origin, {})[connection] = None
        self._idle_order[connection] = None
        if len(self._idle_order) > max(KEPT_OPEN, self._settings.concurrency):
            next(iter(self._idle_order)).close()

    def forget(self, connection: Connection) -> None:
        """Forget a connection that is closed."""
        self.opened.discard(connection)
        self._take_out(connection)

    def _take_out(self, connection: Connection) -> None:
        if connection in self._idle_order:
            del self._idle_order[connection]
            idle = self._idle[connection.origin]
            del idle[connection]
            if not idle:
                del self._idle[connection.origin]

    def _begin(self, exchange: _Exchange) -> None:
        while idle := self._idle.get(exchange.target.origin):
            connection = next(reversed(idle))
            self._take_out(connection)
            # A response that is there before its request would be taken for the response to this one.
            if not connection.has_input():
                connection.start(exchange)
                return
            connection.close()
        self.dial(exchange)

    # New connections.

    def dial(self, exchange: _Exchange) -> None:
        """Send a request over a new connection."""
        exchange.is_started = False
        dial = self.loop.create_task(self._dial(exchange))
        self._dials[dial] = exchange
        dial.add_done_callback(self._dials.pop)

    def pass_on(self, exchange: _Exchange) -> None:
        """Let libcurl make a request, and all others to its origin, because the receiver prefers HTTP/2."""
        if len(self._http2) >= _MOST_HTTP2:
            self._http2.clear()
        self._http2.add(exchange.target.origin)
        left_s = max(0.001, exchange.ends_at - time.monotonic())
        self._send_by_libcurl(msgspec.structs.replace(exchange.request, timeout_s=left_s))

    async def _dial(self, exchange: _Exchange) -> None:
        try:
            await self._connect(exchange)
        except _ConnectFailed as error:
            failure, error_text = error.failure, str(error)
        except Exception as error:  # noqa: BLE001 - a bug fails this request, never the next ones
            failure, error_text = TransportFailure.FAULT, _note(error)
        else:
            return
        if not exchange.is_started:
            self.fail(exchange, failure, error_text)

    async def _connect(self, exchange: _Exchange) -> None:
        """Make a connection, which carries the request. Raises _ConnectFailed."""
        address, is_found = exchange.target.address, False
        try:
            left_s = exchange.ends_at - time.monotonic()
            async with asyncio.timeout(min(left_s, self._settings.connect_timeout_s)):
                numbers = (address.host,) if address.is_number else await self._look_up(address.host)
                is_found = True
                tls = self._tls_context() if address.scheme == "https" else None
                opened = await self._open(exchange, numbers)
                await self.loop.create_connection(
                    functools.partial(Connection, self, exchange),
                    sock=opened,
                    ssl=tls,
                    server_hostname=None if tls is None else address.host,
                )
        except TimeoutError:
            late = f"Connection timed out after {exchange.elapsed_ms()} milliseconds"
            error = late if is_found else f"the name {address.host} was not found in time"
            raise _ConnectFailed(TransportFailure.TIMEOUT, error) from None
        except OSError as error:
            raise _ConnectFailed(TransportFailure.TLS, _describe_tls(error, address.host)) from error

    async def _look_up(self, host: str) -> Sequence[str]:
        resolution = self._resolver.find(host)
        if resolution is None:
            lookup = self._lookups.setdefault(host, self.loop.create_future())
            resolution = await asyncio.shield(lookup)
        if resolution.failure is not None:
            raise _ConnectFailed(resolution.failure, resolution.error)
        return resolution.addresses

    def _wake(self) -> None:
        try:
            self.loop.call_soon_threadsafe(self._end_lookups)
        except RuntimeError:  # the loop is closed, so no request waits
            return

    def _end_lookups(self) -> None:
        for host, resolution in self._resolver.ended():
            lookup = self._lookups.pop(host, None)
            if lookup is not None:
                lookup.set_result(resolution)

    async def _open(self, exchange: _Exchange, numbers: Sequence[str]) -> socket.socket:
        """Return a socket that is connected to one of these addresses. Raises _ConnectFailed."""
        address, guard = exchange.target.address, ConnectGuard(self._settings.allow, [])

        def open_socket(info: aiohappyeyeballs.AddrInfoType) -> socket.socket:
            family, socktype, protocol, _, place = info
            opened = guard.open_socket(0, _SocketAddress(int(family), int(socktype), protocol, place))
            if isinstance(opened, int):
                raise OSError("no socket")
            return opened

        try:
            infos = [_describe_address(number, address.port) for number in numbers]
            return await aiohappyeyeballs.start_connection(
                infos, happy_eyeballs_delay=_NEXT_ADDRESS_S, socket_factory=open_socket
            )
        except OSError as error:
            if guard.fault is not None:
                raise _ConnectFailed(TransportFailure.FAULT, guard.fault) from error
            if guard.refusal is not None:
                raise _ConnectFailed(TransportFailure.BLOCKED, guard.refusal) from error
            target_text = f"{_show_host(address.host)}:{address.port} after {exchange.elapsed_ms()} ms"
            raise _ConnectFailed(
                TransportFailure.CONNECT, f"Failed to connect to {target_text}: Could not connect to server"
            ) from error

    def _tls_context(self) -> ssl.SSLContext:
        now = time.monotonic()
        if self._tls is None or self._tls[1] <= now:
            try:
                self._tls = tls_context(self._settings), now + _TRUST_S
            except OSError as error:
                file_text = f" in {self._settings.ca_file}" if self._settings.ca_file else ""
                error_text = (
                    f"the trusted certificates{file_text} cannot be read: {error.strerror or _describe_reason(error)}"
                )
                raise _ConnectFailed(TransportFailure.TLS, error_text) from error
        return self._tls[0]

    def _read_target(self, url: str) -> _Target | None:
        """Parse a URL; return None if libcurl has to make requests to it, or to say what is wrong with it."""
        try:
            address = read_address(
                url, ports=frozenset(self._settings.ports), require_https=self._settings.require_https
            )
        except ValueError:
            return None
        if self._proxy.applies_to(address) or not _is_usual(address.host):
            return None
        host, _, tail = address.url.partition("://")[2].partition("/")
        head = f"POST /{tail} HTTP/1.1\r\nHost: {host}\r\nAccept: */*\r\n"
        return _Target(address, (address.scheme, address.host, address.port), head)


def _is_usual(host: str) -> bool:
    """Return whether *host* is a name, or an IPv4 address as libcurl would write it."""
    if host.rpartition(".")[2][:1].isalpha():
        return True
    try:
        return str(IPv4Address(host)) == host
    except ValueError:
        return False


def _encode(request: OutgoingRequest, target: _Target, *, has_authorization: bool) -> bytes:
    """Return the bytes of a request. Raises ValueError."""
    assert isinstance(request.body, bytes)
    lines = [f"{name}: {value}" if value else f"{name}:" for name, value in request.headers]
    basic = request.basic or target.address.user
    if basic is not None and not has_authorization:
        lines.append(authorization_line(basic))
    whole = "".join(lines)
    lines.append(f"Content-Length: {len(request.body)}\r\n\r\n")
    if whole.isascii() and whole.isprintable():
        return (target.head + "\r\n".join(lines)).encode() + request.body
    encoded = [encode_line(line) for line in lines[:-1]]
    return target.head.encode() + b"\r\n".join([*encoded, lines[-1].encode()]) + request.body


def _describe_tls(error: OSError, host: str) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code in {_HOSTNAME_MISMATCH, _ADDRESS_MISMATCH}:
            kind = "IPv4 address" if error.verify_code == _ADDRESS_MISMATCH else "hostname"
            return f"SSL: no alternative certificate subject name matches target {kind} '{host}'"
        return f"SSL certificate OpenSSL verify result: {error.verify_message} ({error.verify_code})"
    return f"TLS connect error: {_describe_reason(error)}"


def _describe_reason(error: OSError) -> str:
    reason = error.reason if isinstance(error, ssl.SSLError) else None
    return (reason or "UNEXPECTED_EOF_WHILE_READING").lower().replace("_", " ")


def _describe_address(number: str, port: int) -> aiohappyeyeballs.AddrInfoType:
    """Return an IP address as `socket.getaddrinfo` does. Raises OSError if its zone is unknown."""
    kind = socket.SOCK_STREAM, socket.IPPROTO_TCP, ""
    if ":" not in number:
        return socket.AF_INET, *kind, (number, port)
    host, _, zone = number.partition("%")
    scope = int(zone) if zone.isdecimal() else socket.if_nametoindex(zone) if zone else 0
    return socket.AF_INET6, *kind, (host, port, 0, scope)


def _show_host(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _note(error: Exception) -> str:
    _LOG.error("http_client_fault", exc_info=error)
    return f"boathook failed: {type(error).__name__}"
