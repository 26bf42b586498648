"""Handles one client's WebSocket, as an ASGI application sees it.

The `websockets` library parses and writes frames without I/O; this module limits the resources a socket may use:

    OPENING ──accepted──> OPEN ──either side closes──> CLOSING ──connection lost──> GONE
       └──refused, by a plain HTTP answer──────────────────^

The listener's sweep enforces the deadlines, as for other connections. They cover an application that does not answer
the handshake, a peer that does not answer pings, one that does not read, and one that does not finish a closing
handshake.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from enum import Enum
from typing import Any, Final, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE
from websockets.datastructures import Headers
from websockets.frames import Close, Frame, Opcode
from websockets.http11 import Request
from websockets.protocol import OPEN
from websockets.server import ServerProtocol

from boathook.config import LimitSettings
from boathook.http.exchange import Message, closing_response
from boathook.http.limits import ConnectionLimiter
from boathook.observability import meters
from boathook.observability.log import get_logger

MAX_MESSAGE_BYTES: Final = 65_536
"""Maximum bytes of one message from a peer."""
_MAX_UNREAD: Final = 32
"""Maximum messages that wait for the application. Beyond that nothing is read from the peer, not even its pongs, so an
application that does not read for long loses the connection."""
READ_CHUNK: Final = 1_024
"""Bytes that are parsed as frames at a time."""
_MAX_FRAMES_PER_TURN: Final = 256
"""Frames that are read before other connections get their turn; one read may contain 43,000 empty ones."""
_PING_INTERVAL_S: Final = 20.0
_PONG_TIMEOUT_S: Final = 20.0
_CLOSE_TIMEOUT_S: Final = 3.0
APP_EXIT_TIMEOUT_S: Final = 10.0
"""Maximum seconds until an application ends after its peer has disconnected; one that only waits for data to send would
not end."""
_RESTART: Final = 1012
_FAULT: Final = 1011
_LOG = get_logger("http")


class _Phase(Enum):
    OPENING = 0
    OPEN = 1
    CLOSING = 2
    GONE = 3


class WebSocketRegistry(Protocol):
    """The part of a listener that a socket uses."""

    limits: LimitSettings
    connections: ConnectionLimiter
    date_line: bytes
    open: set[Any]
    tasks: set[asyncio.Task[None]]


class WebSocketConnection(asyncio.Protocol):
    """One WebSocket, on a connection whose HTTP request is an upgrade to it.

    Args:
        registry: what all connections of the listener share; it has counted this connection already.
        transport: the connection.
        scope: the HTTP request's ASGI scope.
        app: handles the WebSocket.
        more: the bytes received after the request's head.
    """

    def __init__(
        self,
        registry: WebSocketRegistry,
        transport: asyncio.Transport,
        scope: Message,
        app: Callable[[Any, Any, Any], Awaitable[None]],
        more: bytes,
    ) -> None:
        self.transport = transport
        self.scope = _socket_scope(scope)
        self._registry = registry
        self._app = app
        self._more = bytearray(more)
        """Bytes received and not yet parsed as frames."""
        self._is_read_scheduled = False
        self._loop = asyncio.get_running_loop()
        self._flow = FlowControl(transport)
        self._frames = ServerProtocol(state=OPEN, max_size=MAX_MESSAGE_BYTES)
        self._phase = _Phase.OPENING
        self._since = self._loop.time()
        self._write_blocked_since: float | None = None
        self._pinged_at: float | None = None
        self._received_at = self._since
        self._partial = bytearray()
        self._is_text = False
        self._unread: deque[Message] = deque([{"type": "websocket.connect"}])
        self._is_unread = asyncio.Event()
        self._end: Message | None = None
        self._answer: Message | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Check the handshake, and let the application accept it; until then nothing is read."""
        self._registry.open.add(self)
        self._flow.pause_reading()
        self._handshake = self._frames.accept(
            Request(
                path="/",
                headers=Headers([(name.decode(), value.decode("latin-1")) for name, value in self.scope["headers"]]),
            )
        )
        if self._handshake.status_code != 101:
            self._refuse(closing_response(400, "not a WebSocket handshake of version 13"))
            return
        self._task = self._loop.create_task(self._run())
        self._registry.tasks.add(self._task)
        self._task.add_done_callback(self._registry.tasks.discard)

    async def _run(self) -> None:
        try:
            await self._app(self.scope, self.receive, self.send)
        except Exception as error:  # noqa: BLE001 - any exception of the application must end in a response
            if self._end is None:
                _LOG.error("application_fault", exc_info=error, path=self.scope["path"])
            self._finish(_FAULT)
        else:
            self._finish(1000)

    def _finish(self, code: int) -> None:
        """Finish what the application has left open."""
        if self._phase is _Phase.OPENING:
            self._refuse(closing_response(500))
        elif self._phase is _Phase.OPEN:
            self._close(code, "")

    # The connection itself

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Notify the application, and remove the connection."""
        self._phase = _Phase.GONE
        self._registry.open.discard(self)
        self._registry.connections.close(self.scope["client"][0])
        self._notify_disconnect(1006, "")
        self._flow.resume_writing()
        if self._task is not None and not self._task.done():
            farewell = self._loop.call_later(APP_EXIT_TIMEOUT_S, self._task.cancel)
            self._task.add_done_callback(lambda _: farewell.cancel())

    def eof_received(self) -> bool:
        """Close: a peer that is still connected does not stop sending."""
        return False

    def pause_writing(self) -> None:
        """Record when the peer stopped reading, and stop reading from it anything that needs an answer."""
        self._write_blocked_since = self._loop.time()
        self._flow.pause_writing()
        self._flow.pause_reading()

    def resume_writing(self) -> None:
        """Record that the peer reads again."""
        self._write_blocked_since = None
        self._flow.resume_writing()
        self._read_on()

    def _read_on(self) -> None:
        """Read from the peer, unless it or the application is behind."""
        if not self._may_read():
            return
        if not self._more:
            self._flow.resume_reading()
        elif not self._is_read_scheduled:
            self._is_read_scheduled = True
            self._loop.call_soon(self._read_scheduled)

    def _may_read(self) -> bool:
        is_busy = self._write_blocked_since is not None or len(self._unread) >= _MAX_UNREAD
        return not is_busy and self._phase in {_Phase.OPEN, _Phase.CLOSING}

    def _read_scheduled(self) -> None:
        self._is_read_scheduled = False
        self._read_frames()

    @property
    def is_in_request(self) -> bool:
        """Return False: a WebSocket is a connection, which ends when the server stops."""
        return False

    def check(self, now: float) -> None:
        """Close or abort the connection if a deadline has passed."""
        limits, spent = self._registry.limits, now - self._since
        if self._write_blocked_since is not None and now - self._write_blocked_since > limits.body_timeout_s:
            meters.count("boathook_connections_refused_total", reason="slow_reader")
            self.transport.abort()
        elif self._phase is _Phase.OPENING and spent > limits.head_timeout_s:
            self._refuse(closing_response(503))
        elif self._phase is _Phase.CLOSING and spent > _CLOSE_TIMEOUT_S:
            self.transport.abort()
        elif self._phase is _Phase.OPEN:
            self._check_keepalive(now)

    def _check_keepalive(self, now: float) -> None:
        if self._pinged_at is not None and self._received_at >= self._pinged_at:
            self._pinged_at = None
        if self._pinged_at is None and now - self._received_at > _PING_INTERVAL_S:
            self._pinged_at = now
            self._frames.send_ping(b"")
            self._write()
        elif self._pinged_at is not None and now - self._pinged_at > _PONG_TIMEOUT_S:
            meters.count("boathook_connections_refused_total", reason="no_pong")
            self.transport.abort()

    def drain(self) -> None:
        """Close with a status that makes the peer reconnect to another process."""
        if self._phase is _Phase.OPENING:
            self._refuse(closing_response(503))
        elif self._phase is _Phase.OPEN:
            self._close(_RESTART, "the server restarts")

    # What the peer sends

    def data_received(self, data: bytes) -> None:
        """Parse frames, and answer those that need it."""
        if self._is_broken():  # the peer was sent a close frame; reading goes on only so that it can read that
            return
        self._more += data
        if self._phase is _Phase.OPENING:
            return
        self._received_at = self._loop.time()
        self._read_frames()

    def _read_frames(self) -> None:
        """Parse some of the received frames; the rest waits for other connections or for the application."""
        budget = _MAX_FRAMES_PER_TURN
        while self._more and budget > 0 and self._may_read() and not self._is_broken():
            self._frames.receive_data(bytes(self._more[:READ_CHUNK]))
            del self._more[:READ_CHUNK]
            for frame in self._frames.events_received():
                assert isinstance(frame, Frame)
                self._take(frame)
                budget -= 1
        if self._phase is not _Phase.GONE:
            self._after_frames()

    def _after_frames(self) -> None:
        self._write()
        if self._is_broken():
            self._more.clear()
            self._on_peer_close(self._frames.close_sent)
            self.transport.write_eof()
            self._flow.resume_reading()
        elif self._frames.close_rcvd is not None:
            self._on_peer_close(self._frames.close_rcvd)
            self.transport.close()
        elif self._more or not self._may_read():
            self._flow.pause_reading()
            self._read_on()
        else:
            self._flow.resume_reading()

    def _is_broken(self) -> bool:
        """Whether the peer has violated the protocol or sent too large a message."""
        return self._frames.parser_exc is not None

    def _take(self, frame: Frame) -> None:
        if frame.opcode not in {Opcode.TEXT, Opcode.BINARY, Opcode.CONT} or self._phase is not _Phase.OPEN:
            return
        if frame.opcode is not Opcode.CONT:
            self._is_text = frame.opcode is Opcode.TEXT
        self._partial += frame.data
        if frame.fin:
            data, self._partial = bytes(self._partial), bytearray()
            self._put(data)

    def _put(self, data: bytes) -> None:
        if not self._is_text:
            self._unread.append({"type": "websocket.receive", "bytes": data})
        else:
            try:
                self._unread.append({"type": "websocket.receive", "text": data.decode()})
            except UnicodeDecodeError:
                self._close(1007, "text that is not UTF-8")
        self._is_unread.set()

    def _on_peer_close(self, close: Close | None) -> None:
        """Record that the peer closes or has violated the protocol; the library has answered it already."""
        self._enter(_Phase.CLOSING)
        self._notify_disconnect(close.code if close else 1006, close.reason if close else "")

    # Requests of the application

    async def receive(self) -> Message:
        """Return the next event; after the end, return the disconnect event again."""
        while not self._unread and self._end is None:
            self._is_unread.clear()
            await self._is_unread.wait()
        if not self._unread:
            assert self._end is not None
            return self._end
        message = self._unread.popleft()
        self._read_on()
        return message

    async def send(self, message: Message) -> None:
        """Send a message of the application; wait while the peer does not read. Raises OSError if it disconnects."""
        if self._flow.write_paused and self._phase is not _Phase.GONE:
            await self._flow.drain()
        kind = message["type"]
        if self._phase is _Phase.OPENING:
            self._decide(kind, message)
        elif self._phase is not _Phase.OPEN:
            raise BrokenPipeError("the WebSocket is closed")
        elif kind == "websocket.send":
            text, data = message.get("text"), message.get("bytes")
            if text is not None:
                self._frames.send_text(text.encode())
            else:
                self._frames.send_binary(data or b"")
            self._write()
        elif kind == "websocket.close":
            self._close(message.get("code", 1000), message.get("reason") or "")
        else:
            raise RuntimeError(f"the application sent {kind} out of order")

    def _decide(self, kind: str, message: Message) -> None:
        match kind:
            case "websocket.accept" if self._answer is None:
                self._accept(message.get("subprotocol"), message.get("headers", ()))
            case "websocket.close" if self._answer is None:
                self._refuse(_http_response(403, (), b"", self._registry.date_line))
            case "websocket.http.response.start" if self._answer is None:
                self._answer = {**message, "body": b""}
            case "websocket.http.response.body" if self._answer is not None:
                self._answer["body"] += message.get("body", b"")
                if not message.get("more_body", False):
                    headers, body = self._answer.get("headers", ()), self._answer["body"]
                    self._refuse(_http_response(self._answer["status"], headers, body, self._registry.date_line))
            case _:
                raise RuntimeError(f"the application sent {kind} out of order")

    def _accept(self, subprotocol: str | None, headers: Any) -> None:
        pieces = [STATUS_LINE[101], self._registry.date_line, b"upgrade: websocket\r\nconnection: upgrade\r\n"]
        accept = self._handshake.headers["Sec-WebSocket-Accept"]
        pieces.append(b"sec-websocket-accept: %s\r\n" % accept.encode())
        if subprotocol is not None:
            pieces.append(_header(b"sec-websocket-protocol", subprotocol.encode("latin-1")))
        pieces += [_header(name, value) for name, value in headers]
        self.transport.write(b"".join((*pieces, b"\r\n")))
        self._enter(_Phase.OPEN)
        self._received_at = self._since
        self._read_frames()

    def _refuse(self, answer: bytes) -> None:
        """Send a plain HTTP response, and close."""
        self._enter(_Phase.CLOSING)
        self._notify_disconnect(1006, "")
        self.transport.write(answer)
        self.transport.close()

    def _close(self, code: int, reason: str) -> None:
        """Start the closing handshake, unless the peer has."""
        if self._frames.state is OPEN:
            self._frames.send_close(code, reason)
            self._write()
        self._enter(_Phase.CLOSING)
        self._notify_disconnect(code, reason)
        self._unread.clear()
        self._read_on()

    def _write(self) -> None:
        pieces = self._frames.data_to_send()
        if pieces and not self.transport.is_closing():
            self.transport.write(b"".join(pieces))

    def _enter(self, phase: _Phase) -> None:
        self._phase = phase
        self._since = self._loop.time()

    def _notify_disconnect(self, code: int, reason: str) -> None:
        if self._end is None:
            self._end = {"type": "websocket.disconnect", "code": code, "reason": reason}
        self._is_unread.set()


def _socket_scope(scope: Message) -> Message:
    offered = b",".join(value for name, value in scope["headers"] if name == b"sec-websocket-protocol").decode(
        "latin-1"
    )
    subprotocols = [name.strip() for name in offered.split(",") if name.strip()]
    more = {"type": "websocket", "scheme": "ws", "subprotocols": subprotocols}
    return {**scope, **more, "extensions": {"websocket.http.response": {}}}


def _header(name: bytes, value: bytes) -> bytes:
    if b"\n" in name + value or b"\r" in name + value:
        raise RuntimeError(f"the application's header {name!r} contains a line break")
    return b"%s: %s\r\n" % (name, value)


def _http_response(status: int, headers: Any, body: bytes, date_line: bytes) -> bytes:
    lines = [_header(name, value) for name, value in headers if name.lower() not in {b"connection", b"content-length"}]
    end = b"content-length: %d\r\nconnection: close\r\n\r\n" % len(body)
    return b"".join((STATUS_LINE[status], date_line, *lines, end, body))
