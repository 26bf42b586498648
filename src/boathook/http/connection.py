"""Handles one client connection: uvicorn's HTTP/1.1 protocol with deadlines, size limits and strict request framing.

uvicorn waits forever for a slow request. So each connection here records its phase and when it entered it, and the
listener checks all connections four times a second (`Connection.check`); no request needs a timer:

    FRESH ──first byte──> HEAD ──head complete──> BODY ──body complete──> BUSY ──answered──> IDLE ──first byte──> HEAD
      any of them ──refused, or answered with `Connection: close` before the body was read──> CLOSING
      any of them ──closed while the client still has data to read──> FLUSHING

httptools rejects most inputs that two parsers could read differently; `head_error` rejects the rest. After any 4xx the
connection closes, so that nothing after a doubtful request is read as another request.

At a path where an application handles WebSockets, a `boathook.http.websocket.WebSocketConnection` replaces this
connection in its transport, in the connection count and in the registry. Every other upgrade, such as h2c, is ignored
(RFC 9110, section 7.8). httptools reads no body of a request with an upgrade, so its head is parsed again without it.
"""

import asyncio
import contextlib
import re
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from typing import Any, Final, Protocol, cast
from urllib.parse import unquote

import httptools
import msgspec
from uvicorn.config import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT, FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from boathook.config import LimitSettings, Network
from boathook.http.asgi import has_needless_escapes
from boathook.http.exchange import DirectHandler, Exchange, Message, closing_response
from boathook.http.limits import ByteBudget, ConnectionLimiter, is_trusted
from boathook.observability import meters
from boathook.observability.log import get_logger, is_on

_LOG = get_logger("http")
_MAX_HEADERS: Final = 100
MAX_CHUNKS: Final = 16_384
CHUNK_FRAMING_BYTES: Final = 16
"""Bytes of framing that each chunk may have; more of them are extensions, which count against `max_head`."""
_PARSED_BYTES: Final = 4_096
"""Bytes that are parsed between two checks of the limits."""
_CLOSE_TIMEOUT_S: Final = 3.0
_BYTES_OF_BODY_TIMEOUT: Final = 1 << 20
"""Each complete MiB of a body adds the body timeout once more, so that large ones can arrive."""
_NO_LINGER: Final = struct.pack("ii", 1, 0)
_HOST: Final = re.compile(
    rb"(?:\[(?:[0-9a-f:.]+|v[0-9a-f]+\.[\w.~!$&'()*+,;=:-]+)\]|(?:[\w.~!$&'()*+,;=-]|%[0-9a-f]{2})*)(?::[0-9]{0,5})?",
    re.IGNORECASE,
)
"""A Host header (RFC 9110, section 7.2)."""
_REQUEST_LINE: Final = re.compile(rb"(?:\r\n)*[\w!#$%&'*+.^`|~-]+ [!-~]+ HTTP/1\.[01]\r\n")
_FRAMING_HEADERS: Final = frozenset(
    {b"host", b"transfer-encoding", b"content-length", b"expect", b"transfer_encoding", b"content_length"}
)


class Phase(Enum):
    """The phase of a connection; the listener's deadlines depend on it."""

    FRESH = 0
    HEAD = 1
    BODY = 2
    BUSY = 3
    IDLE = 4
    CLOSING = 5
    FLUSHING = 6


_REQUEST_PHASES: Final = frozenset({Phase.HEAD, Phase.BODY, Phase.BUSY})
_CLOSING_PHASES: Final = frozenset({Phase.CLOSING, Phase.FLUSHING})


class WebSocketRefusal(Enum):
    """Why no WebSocket is opened at a path."""

    NO_HANDLER = 0
    """The upgrade is ignored, and the request is an ordinary one."""
    NOT_READY = 503
    """The response's status; an application may claim the path later."""


Application = Callable[[Any, Any, Any], Awaitable[None]]
RefusalObserver = Callable[[Message, int, str, int], None]
"""Takes the request as far as its head was read, the status, the reason, and the bytes of the body that arrived."""
WebSocketRouter = Callable[[str], Application | WebSocketRefusal]


class ServerConnection(Protocol):
    """An entry of the registry: a connection, or the WebSocket that replaced it."""

    transport: asyncio.Transport

    @property
    def is_in_request(self) -> bool:
        """Whether a request is being read or answered."""
        ...

    def check(self, now: float) -> None:
        """Close or refuse the connection if a deadline has passed."""
        ...

    def drain(self) -> None:
        """Close if idle, or announce that the server is stopping."""
        ...


class ConnectionRegistry(msgspec.Struct):
    """Holds the open connections of one listener, and what they share."""

    app: Application
    """An ASGI application; it may be replaced while connections are open."""
    limits: LimitSettings
    connections: ConnectionLimiter
    trusted_proxies: tuple[Network, ...] = ()
    websocket_router: WebSocketRouter = lambda _: WebSocketRefusal.NO_HANDLER
    """Returns the application for WebSockets at a path, or why there is none."""
    direct: DirectHandler | None = None
    """Answers small whole requests without ASGI."""
    unverified: ByteBudget | None = None
    """Limits the bytes of the bodies that *direct* waits for."""
    on_refusal: RefusalObserver | None = None
    """Called with each request that a connection refuses, once its path is known."""
    open: set[ServerConnection] = msgspec.field(default_factory=set)
    tasks: set[asyncio.Task[None]] = msgspec.field(default_factory=set)
    date_line: bytes = b""
    is_draining: bool = False
    """Whether every response has `Connection: close`."""


class Connection(HttpToolsProtocol):
    """One client's connection."""

    cycle: "Exchange | None"  # type: ignore[assignment]
    """The latest request."""
    active: "Exchange | None" = None
    """The request being answered."""

    def __init__(
        self, config: Config, state: ServerState, loop: asyncio.AbstractEventLoop, registry: ConnectionRegistry
    ) -> None:
        super().__init__(config, state, {}, loop)
        self.registry = registry
        self.phase = Phase.FRESH
        self.since = loop.time()
        self._is_counted = False
        self._in_head = False
        self._head_size = 0
        self._open_head_size = 0
        self._wire_size = 0
        self._body_size = 0
        self._chunks = 0
        self._framing_headers: dict[bytes, list[bytes]] = {}
        self._pending_error_status: int | None = None
        self._write_blocked_since: float | None = None
        self._waiting: list[Exchange] = []
        self._socket: Application | None = None
        self._plain_head: bytes | None = None
        """The head of a request whose upgrade is ignored, without its Upgrade header."""

    # The connection itself

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, or refuse it if there are too many."""
        self.transport = transport
        self.flow = FlowControl(transport)
        peer = transport.get_extra_info("peername")
        self.client = (str(peer[0]), int(peer[1])) if isinstance(peer, tuple) else ("", 0)
        local = transport.get_extra_info("sockname")
        self.server = (str(local[0]), int(local[1])) if isinstance(local, tuple) else None
        self.scheme = "http"
        is_proxy = is_trusted(self.client[0], self.registry.trusted_proxies)
        self._is_counted = self.registry.connections.open(self.client[0], is_exempt=is_proxy)
        self.registry.open.add(self)
        if self._is_counted:
            self.registry.connections.mark_idle(self.client[0], self)
        else:
            meters.count("boathook_connections_refused_total", reason="too_many")
            transport.write(closing_response(503))
            self._close_gently()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Notify the application, and remove the connection."""
        self.registry.open.discard(self)
        self._release_slot()
        for exchange in (self.cycle, *self._waiting):
            if exchange is not None and not exchange.response_complete:
                exchange.disconnect()
        self.flow.resume_writing()
        self.parser = None  # type: ignore[assignment]

    def _release_slot(self) -> None:
        if self._is_counted:
            self._is_counted = False
            self.registry.connections.mark_busy(self._address, self)
            self.registry.connections.close(self._address)

    @property
    def _address(self) -> str:
        return self.client[0] if self.client else ""

    def evict(self) -> None:
        """Close an idle connection to make room for another client."""
        meters.count("boathook_connections_refused_total", reason="evicted")
        self._release_slot()
        if self._has_unread_answer():
            self._reset()
        else:
            self.transport.close()

    def eof_received(self) -> bool:  # type: ignore[override]
        """Stay open for a client that has finished sending but still waits for its response."""
        exchange = self.cycle
        if exchange is None or exchange.response_complete or exchange.more_body or self.phase is Phase.CLOSING:
            return False
        exchange.half_close()
        return True

    def pause_writing(self) -> None:
        """Record when the client stopped reading."""
        self._write_blocked_since = self.loop.time()
        self.flow.pause_writing()

    def resume_writing(self) -> None:
        """Record that the client reads again."""
        self._write_blocked_since = None
        self.flow.resume_writing()

    @property
    def is_in_request(self) -> bool:
        """Whether a request is being read or answered."""
        return self.phase in _REQUEST_PHASES

    def check(self, now: float) -> None:
        """Close or refuse the connection if a deadline has passed."""
        if self.transport.is_closing() and self.phase not in _CLOSING_PHASES:
            self._enter(Phase.FLUSHING)
        limits, spent = self.registry.limits, now - self.since
        match self.phase:
            case Phase.HEAD if spent > limits.head_timeout_s:
                self.refuse(408, "slow_head")
            case Phase.BODY if spent > limits.body_timeout_s * (1 + self._body_size // _BYTES_OF_BODY_TIMEOUT):
                self.refuse(408, "slow_body")
            case Phase.BODY if self._body_size < limits.min_rate * (spent - 1) and not self.flow.read_paused:
                self.refuse(408, "slow_body")
            case Phase.FRESH if spent > limits.head_timeout_s:
                self.transport.close()
            case Phase.IDLE | Phase.FLUSHING if spent > limits.body_timeout_s and self._has_unread_answer():
                self._reset()
            case Phase.IDLE if spent > limits.keep_alive_s:
                self.transport.close()
            case Phase.CLOSING if spent > _CLOSE_TIMEOUT_S:
                self.transport.abort()
            case _:
                if self._write_blocked_since is not None and now - self._write_blocked_since > limits.body_timeout_s:
                    self._reset()

    def _has_unread_answer(self) -> bool:
        return self.transport.get_write_buffer_size() > 0

    def _reset(self) -> None:
        """Reset a connection whose client does not read; this also drops the data the kernel has buffered for it."""
        with contextlib.suppress(OSError):  # the client may have closed it just now
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self.transport.abort()

    # What the client sends

    def data_received(self, data: bytes) -> None:
        """Feed the parser, and refuse what is malformed or exceeds a limit."""
        if self.phase is Phase.CLOSING or self._pending_error_status is not None:
            return
        is_first = self.phase is Phase.IDLE or self.phase is Phase.FRESH
        if is_first:
            self._enter(Phase.HEAD)
            self._open_head_size = 0
        earlier = self.cycle
        try:
            self._parse(data)
        except httptools.HttpParserInvalidMethodError:
            line = _REQUEST_LINE.match(data) if is_first and self.cycle is earlier else None
            if line is None:
                self.refuse(400, "malformed")
            else:
                self.refuse(501, "method", line[0].split())
        except httptools.HttpParserError as error:
            status, reason = _classify_error(error)
            self.refuse(status, reason)

    def _parse(self, data: bytes) -> None:
        """Feed the parser, with a check of the limits between the pieces. Raises HttpParserError."""
        rest = data if len(data) <= _PARSED_BYTES else memoryview(data)
        while rest and self.phase is not Phase.CLOSING and self._pending_error_status is None:
            piece = rest[:_PARSED_BYTES]
            size = len(piece)
            self._wire_size += size
            try:
                self.parser.feed_data(piece)
            except httptools.HttpParserUpgrade as upgrade:
                size = upgrade.args[0]
            if self._socket is not None:
                self._upgrade_to_websocket(self._socket, bytes(rest[size:]))
                return
            if self._plain_head is not None:
                self._wire_size -= len(piece) - size
                self._parse_again(self._plain_head)
            self._check_sizes(size)
            rest = rest[size:]

    def _parse_again(self, plain_head: bytes) -> None:
        self._plain_head = None
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn does
        self.parser.feed_data(plain_head)

    def _check_sizes(self, fed: int) -> None:
        if self._in_head or self.phase is Phase.HEAD:
            self._watch_open_head(fed)
        elif self.phase is Phase.BODY:
            framing = self._wire_size - self._body_size - CHUNK_FRAMING_BYTES * self._chunks
            if framing > self.registry.limits.max_head:
                self.refuse(400, "chunk_flood")

    def _watch_open_head(self, fed: int) -> None:
        """Limit the size of an incomplete head, and of empty lines before one.

        It may wait in the socket while a request is being answered.
        """
        if self.phase is not Phase.HEAD:
            self.flow.pause_reading()
            return
        self._open_head_size += fed
        if self._open_head_size > self.registry.limits.max_head:
            self.refuse(431, "large_head")

    def on_message_begin(self) -> None:
        """Start a request head."""
        self.url = b""
        self.headers = []
        self.expect_100_continue = False
        self._in_head = True
        self._head_size = self._open_head_size = 0
        self._framing_headers.clear()

    def on_url(self, url: bytes) -> None:
        """Append a part of the request target."""
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store one header; trailers are dropped, because nothing may change after the head was checked."""
        self._head_size += len(name) + len(value) + 4
        if self._head_size > self.registry.limits.max_head or len(self.headers) >= _MAX_HEADERS:
            raise _Refused(431, "large_head")
        if not self._in_head:
            return
        name = name.lower()
        if name in _FRAMING_HEADERS:
            self._framing_headers.setdefault(name, []).append(value)
        self.headers.append((name, value))

    def on_chunk_header(self) -> None:
        """Count chunks: a body of single-byte chunks costs far more than it carries."""
        self._chunks += 1
        if self._chunks > MAX_CHUNKS:
            raise _Refused(400, "chunk_flood")

    def on_headers_complete(self) -> None:
        """Check the head and pass the request to the application."""
        self._in_head = False
        version = self.parser.get_http_version()
        reason = head_error(self._framing_headers, version)
        if reason:
            raise _Refused(400, reason)
        if self._head_size + len(self.url) > self.registry.limits.max_head:
            raise _Refused(431, "large_head")
        if self.parser.get_method() == b"CONNECT":
            raise _Refused(501, "method")
        if self.parser.should_upgrade():
            self._socket = self._websocket_app(version)
            if self._socket is None:
                self._plain_head = self._head_without_upgrade(version)
            return
        expects_100 = b"expect" in self._framing_headers and _expects_100(self._framing_headers[b"expect"], version)
        scope = self._scope(version)
        handler = None if expects_100 else self._direct_handler(scope)
        exchange = Exchange(self, scope, expects_100=expects_100, handler=handler)
        if handler is not None and self.registry.unverified is not None:
            exchange.reservation = self.registry.unverified.reserve()
        exchange.keep_alive = version == "1.1" and self.parser.should_keep_alive()
        self.headers = []  # those of the exchange stay in its scope
        self._chunks = 0
        earlier = self.cycle
        self.cycle = exchange
        if earlier is None or (earlier.response_complete and not self._waiting):
            self._start(exchange)
        else:
            self.flow.pause_reading()
            self._waiting.append(exchange)

    def _direct_handler(self, scope: Message) -> DirectHandler | None:
        """Return who answers a request without ASGI; None where its body is not announced as a small one."""
        handler, lengths = self.registry.direct, self._framing_headers.get(b"content-length")
        if handler is None or lengths is None or scope["method"] != "POST":
            return None
        return handler if int(lengths[0]) <= min(handler.max_body(scope["path"]), HIGH_WATER_LIMIT) else None

    def _websocket_app(self, version: str) -> Application | None:
        """Return the application for the requested WebSocket; None if the upgrade is ignored."""
        is_socket = [value.lower() for name, value in self.headers if name == b"upgrade"] == [b"websocket"]
        if not is_socket or version != "1.1" or self.parser.get_method() != b"GET":
            return None
        scope = self._scope(version)
        if has_needless_escapes(scope["raw_path"]):
            return None
        app = self.registry.websocket_router(scope["path"])
        if app is WebSocketRefusal.NO_HANDLER:
            return None
        if isinstance(app, WebSocketRefusal):
            raise _Refused(app.value, "upgrade")
        active = self.active
        is_busy = active is not None and (not active.response_complete or bool(self._waiting) or self.flow.write_paused)
        has_body = not {b"content-length", b"transfer-encoding"}.isdisjoint(self._framing_headers)
        if is_busy or has_body:
            raise _Refused(400, "upgrade")
        return app

    def _head_without_upgrade(self, version: str) -> bytes:
        lines = [b"%s: %s\r\n" % header for header in self.headers if header[0] != b"upgrade"]
        request_line = b"%s %s HTTP/%s\r\n" % (self.parser.get_method(), self.url, version.encode())
        return b"".join((request_line, *lines, b"\r\n"))

    def _upgrade_to_websocket(self, app: Application, more: bytes) -> None:
        """Hand the connection over, with the bytes received after the head."""
        from boathook.http.websocket import (
            WebSocketConnection,  # imports its library only where WebSockets are used
        )

        successor = WebSocketConnection(self.registry, self.transport, self._scope("1.1"), app, more)
        self.registry.open.discard(self)
        self._is_counted = False
        self.parser = None  # type: ignore[assignment]
        self.transport.set_protocol(successor)
        successor.start()

    def _scope(self, version: str) -> Message:
        parsed = httptools.parse_url(self.url)
        raw_path = parsed.path or b"/"
        path = raw_path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            "method": self.parser.get_method().decode("ascii"),
            "scheme": self.scheme,
            "path": unquote(path) if "%" in path else path,
            "raw_path": raw_path,
            "query_string": parsed.query or b"",
            "root_path": "",
            "headers": self.headers,
            "client": self.client,
            "server": self.server,
        }

    def _start(self, exchange: "Exchange") -> None:
        self.active = exchange
        self._enter(Phase.BODY if exchange.more_body else Phase.BUSY)
        self._body_size = len(exchange.body)
        self._wire_size = self._body_size + CHUNK_FRAMING_BYTES * self._chunks
        if exchange.handler is not None:
            if not exchange.more_body:
                self.loop.call_soon(exchange.handle)
            return
        task = self.loop.create_task(exchange.run(self.registry.app))
        self.registry.tasks.add(task)
        task.add_done_callback(self.registry.tasks.discard)

    def on_body(self, body: bytes) -> None:
        """Append a piece of the body."""
        self._body_size += len(body)
        exchange = self.cycle
        if exchange is not None and not exchange.response_complete:
            if exchange.reservation is not None and not exchange.reservation.take(len(body)):
                raise _Refused(503, "unverified_bytes")
            exchange.body += body
            if len(exchange.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            exchange.message_event.set()

    def on_message_complete(self) -> None:
        """Record that the request is complete."""
        exchange = self.cycle
        if self._plain_head is not None or exchange is None:  # the head of an upgrade has no exchange
            return
        exchange.more_body = False
        exchange.message_event.set()
        if self.phase is Phase.BODY and exchange is self.active:
            self._enter(Phase.IDLE if exchange.response_complete else Phase.BUSY)
            if exchange.handler is not None:  # not inside the parser, as an answer may close the connection
                self.loop.call_soon(exchange.handle)

    # What the client gets

    def on_response_complete(self) -> None:
        """Continue with the next pipelined request, close, or wait."""
        exchange = self.active
        assert exchange is not None
        if self.transport.is_closing() or self.phase is Phase.CLOSING:
            return
        if not exchange.keep_alive:
            self._close_gently()
        elif self._waiting:
            self._start(self._waiting.pop(0))
            if not self._waiting:
                self.flow.resume_reading()
        elif self._pending_error_status is not None:
            self._write_refusal(self._pending_error_status)
        else:
            self.flow.resume_reading()  # what the application did not read of the body is dropped
            if not exchange.more_body:
                self._enter(Phase.HEAD if self._in_head else Phase.IDLE)

    def refuse(self, status: int, reason: str, request_line: Sequence[bytes] = ()) -> None:
        """Respond with *status* instead of the application and close; responses to earlier requests are sent first.

        *request_line* has the parts of one that the parser does not read.
        """
        meters.count("boathook_connections_refused_total", reason=reason)
        if is_on("debug"):
            _LOG.debug("request_refused", status=status, reason=reason, client=self._address)
        latest = self.cycle
        if latest is not None and (self._in_head or not latest.more_body):
            latest = None
        if latest is not None:
            latest.disconnect()
            if latest in self._waiting:
                self._waiting.remove(latest)
        if self.registry.on_refusal is not None:
            self._report_refusal(self.registry.on_refusal, latest, status, reason, request_line)
        active = self.active
        owes_earlier = active is not None and not active.response_complete and not active.disconnected
        if owes_earlier:
            self._pending_error_status = status
        elif latest is not None and latest.response_started:
            self.transport.abort()
        else:
            self._write_refusal(status)

    def _report_refusal(
        self,
        report: RefusalObserver,
        latest: Exchange | None,
        status: int,
        reason: str,
        request_line: Sequence[bytes],
    ) -> None:
        """Report a refused request; one whose head is incomplete only if its target is complete."""
        if latest is not None:
            report(latest.scope, status, reason, self._body_size)
            return
        with contextlib.suppress(httptools.HttpParserError, ValueError):  # a target that cannot be read has no path
            if request_line:
                method, self.url, _ = request_line
                self.headers = []
                report({**self._scope("1.1"), "method": method.decode("latin-1")}, status, reason, 0)
            elif self.headers:
                report(self._scope(self.parser.get_http_version()), status, reason, 0)

    def _write_refusal(self, status: int) -> None:
        if not self.transport.is_closing():
            self.transport.write(closing_response(status))
            self._close_gently(is_all_read=False)

    def _close_gently(self, *, is_all_read: bool | None = None) -> None:
        """Close so that the client can still read the response: closing with unread bytes would send a reset."""
        if is_all_read is None:
            is_all_read = self.phase is Phase.BUSY and not self._in_head
        if is_all_read or not self.transport.can_write_eof():
            self.transport.close()
            return
        self._enter(Phase.CLOSING)
        self.transport.write_eof()
        self.flow.resume_reading()

    def _enter(self, phase: Phase) -> None:
        if self._is_counted:
            if phase is Phase.IDLE or phase is Phase.FRESH:
                self.registry.connections.mark_idle(self._address, self)
            elif self.phase is Phase.IDLE or self.phase is Phase.FRESH:
                self.registry.connections.mark_busy(self._address, self)
        self.phase = phase
        self.since = self.loop.time()

    def drain(self) -> None:
        """Close an idle connection; a busy one closes after its response, which says so while draining."""
        if self.phase in {Phase.IDLE, Phase.FRESH}:
            self.transport.close()


class _Refused(Exception):
    """Aborts parsing from inside a parser callback."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(status, reason)


def _classify_error(error: httptools.HttpParserError) -> tuple[int, str]:
    inner = error.__context__
    if isinstance(inner, _Refused):
        return cast("tuple[int, str]", inner.args)
    if isinstance(inner, Exception) and not isinstance(inner, httptools.HttpParserError | UnicodeDecodeError):
        _LOG.error("protocol_fault", exc_info=inner)
        return 500, "fault"
    return 400, "malformed"


def head_error(watched: dict[bytes, list[bytes]], version: str) -> str | None:
    """Return why a head is ambiguous about the request's end or target, or None."""
    encodings, lengths = watched.get(b"transfer-encoding"), watched.get(b"content-length")
    if version not in {"1.1", "1.0"}:
        return "http_version"
    if encodings is not None:
        is_chunked = [encoding.lower() for encoding in encodings] == [b"chunked"]
        if not is_chunked or lengths is not None or version == "1.0":
            return "transfer_encoding"
    if lengths is not None and (len(lengths) != 1 or not lengths[0].strip(b" \t").isdigit()):
        return "content_length"
    if b"transfer_encoding" in watched or b"content_length" in watched:
        return "underscore"
    hosts = watched.get(b"host")
    if hosts is None:
        return "host" if version == "1.1" else None
    return None if len(hosts) == 1 and _HOST.fullmatch(hosts[0].strip(b" \t")) else "host"


def _expects_100(expectations: list[bytes], version: str) -> bool:
    """Return whether the client waits for a 100; HTTP/1.0 has no expectations. Raises _Refused for any other."""
    if version == "1.0":
        return False
    members = {member.strip(b" \t").lower() for value in expectations for member in value.split(b",")} - {b""}
    if members - {b"100-continue"}:
        raise _Refused(417, "expectation")
    return bool(members)
