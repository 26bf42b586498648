"""One request and its response on a connection, as an ASGI application sees it."""

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, Protocol

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from boathook.http.limits import Reservation
from boathook.observability.log import get_logger

_LOG = get_logger("http")
ERROR_TEXTS: Final = {
    400: "bad request",
    401: "unauthorized",
    404: "not found",
    405: "method not allowed",
    408: "the request came too slowly",
    413: "the body is too large",
    415: "this content encoding is not accepted",
    417: "this expectation cannot be met",
    429: "too many requests",
    431: "the request head is too large",
    500: "internal error",
    501: "this method is not implemented",
    503: "not available, try again later",
}
"""Texts of error responses, by status."""

Message = MutableMapping[str, Any]


class ListenerState(Protocol):
    """The part of a listener that an exchange uses."""

    date_line: bytes
    is_draining: bool


class ExchangeConnection(Protocol):
    """The part of a connection that an exchange uses."""

    transport: asyncio.Transport
    flow: FlowControl

    @property
    def registry(self) -> ListenerState:
        """The state that all connections share."""
        ...

    def on_response_complete(self) -> None:
        """Continue the connection after a response."""
        ...


class DirectHandler(Protocol):
    """Answers small whole requests to the paths it handles, without a task or an ASGI message for each."""

    def max_body(self, path: str) -> int:
        """Return the maximum body in bytes that it accepts at *path*; -1 if requests go to the ASGI application."""
        ...

    def handle(self, exchange: "Exchange") -> None:
        """Answer a request whose body is complete by `Exchange.respond`, now or later. Must not raise."""
        ...


def closing_response(status: int, error: str = "") -> bytes:
    """Return a complete response that refuses a request and closes the connection."""
    body = b'{"ok":false,"error":"%s"}' % (error or ERROR_TEXTS[status]).encode()
    again = b"retry-after: 1\r\n" if status == 503 else b""
    return b"%scontent-type: application/json\r\ncontent-length: %d\r\n%sconnection: close\r\n\r\n%s" % (
        STATUS_LINE[status],
        len(body),
        again,
        body,
    )


class Exchange:
    """One request and its response, as an ASGI application sees it."""

    __slots__ = (
        "_connection", "_is_chunked", "_is_read", "_left", "_start", "body", "disconnected", "expects_100", "handler",
        "is_half_closed", "keep_alive", "message_event", "more_body", "reservation", "response_complete",
        "response_started", "scope",
    )  # fmt: skip

    def __init__(
        self, connection: ExchangeConnection, scope: Message, *, expects_100: bool, handler: DirectHandler | None = None
    ) -> None:
        self._connection = connection
        self.scope = scope
        self.expects_100 = expects_100
        self.handler = handler
        self.message_event = asyncio.Event()
        self.body = bytearray()
        self.reservation: Reservation | None = None
        """The bytes of the body, counted until the handler has it; the application counts those that it reads."""
        self.more_body = True
        self.keep_alive = True
        self.disconnected = False
        self.is_half_closed = False
        self._is_read = False
        self.response_started = False
        self.response_complete = False
        self._start: Message | None = None
        self._is_chunked = False
        self._left = 0

    def disconnect(self) -> None:
        """Record that the client no longer waits for the response."""
        self.disconnected = True
        self.release()
        self.message_event.set()

    def release(self) -> None:
        """Release the counted bytes of the body."""
        if self.reservation is not None:
            self.reservation.release()

    def half_close(self) -> None:
        """Record that the client sends nothing more: it has disconnected, or only reads the rest of this response."""
        self.is_half_closed = True
        self.keep_alive = False
        self.message_event.set()

    async def run(self, app: Callable[[Any, Any, Any], Awaitable[None]]) -> None:
        """Run the application; an exception becomes a 500, which senders retry."""
        try:
            await app(self.scope, self.receive, self.send)
            is_gone = self.disconnected or self._connection.transport.is_closing()
            if not self.response_complete and not is_gone:
                raise RuntimeError("the application ended without a complete answer")
        except Exception as error:  # noqa: BLE001 - any exception of the application must end in a response
            _LOG.error("application_fault", exc_info=error, path=self.scope["path"])
            self._fail()

    def _fail(self) -> None:
        connection = self._connection
        if self.disconnected or self.response_complete or connection.transport.is_closing():
            return
        if self.response_started:
            connection.transport.abort()
            return
        self.keep_alive = False
        self.response_complete = True
        connection.transport.write(closing_response(500))
        connection.on_response_complete()

    def handle(self) -> None:
        """Pass a whole request to its handler, unless the client has disconnected."""
        if self.handler is not None and not self.disconnected:
            self.handler.handle(self)
        self.release()

    def respond(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """Write a whole response, unless the client has disconnected."""
        if self.disconnected or self._connection.transport.is_closing():
            return
        self._start = {"status": status, "headers": headers}
        self._send_body(body, is_last=True)

    async def receive(self) -> Message:
        """Return the next piece of the body; after the last one, wait until the client disconnects."""
        if self.expects_100 and not self.body and self.more_body:
            self.expects_100 = False
            self._connection.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        if self.more_body and not self.body and not self.disconnected:
            self._connection.flow.resume_reading()
            self.message_event.clear()
            await self.message_event.wait()
        while self._is_read and not (self.disconnected or self.response_complete or self.is_half_closed):
            self.message_event.clear()
            await self.message_event.wait()
        if self.disconnected or self.response_complete or self._is_read:
            return {"type": "http.disconnect"}
        body, self.body = bytes(self.body), bytearray()
        self._is_read = not self.more_body
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    async def send(self, message: Message) -> None:
        """Write the response; its head is sent with the first piece of the body."""
        connection = self._connection
        if connection.flow.write_paused and not self.disconnected:
            await connection.flow.drain()
        if self.disconnected or connection.transport.is_closing():
            return
        if message["type"] == "http.response.start":
            if self._start is not None:
                raise RuntimeError("the application started its answer twice")
            self._start = message
            return
        if self._start is None or self.response_complete:
            raise RuntimeError(f"the application sent {message['type']} out of order")
        self._send_body(message.get("body", b""), is_last=not message.get("more_body", False))

    def _send_body(self, body: bytes, *, is_last: bool) -> None:
        pieces = [] if self.response_started else self._head(len(body) if is_last else None)
        self.response_started = True
        if self.scope["method"] != "HEAD":
            if self._is_chunked:
                pieces += (b"%x\r\n" % len(body), body, b"\r\n") if body else ()
                pieces += (b"0\r\n\r\n",) if is_last else ()
            else:
                self._left -= len(body)
                if self._left < 0 or (is_last and self._left):
                    raise RuntimeError("the application's answer is not as long as its Content-Length")
                pieces.append(body)
        self._connection.transport.write(b"".join(pieces))
        if is_last:
            self.response_complete = True
            self.message_event.set()
            self._connection.on_response_complete()

    def _head(self, whole_length: int | None) -> list[bytes]:
        assert self._start is not None
        status: int = self._start["status"]
        has_length = says_close = False
        pieces = [STATUS_LINE[status], self._connection.registry.date_line]
        for name, value in self._start.get("headers", ()):
            if b"\n" in value or b"\r" in value:
                raise RuntimeError(f"the application's header {name!r} contains a line break")
            if name == b"content-length":
                has_length, self._left = True, int(value)
            elif name == b"connection":
                says_close = b"close" in value.lower()
                continue
            elif name == b"server":
                continue
            pieces += (name, b": ", value, b"\r\n")
        if not has_length and status not in {204, 304}:
            if whole_length is not None:
                self._left = whole_length
                pieces.append(b"content-length: %d\r\n" % whole_length)
            elif self.scope["http_version"] == "1.1":
                self._is_chunked = True
                pieces.append(b"transfer-encoding: chunked\r\n")
        # A client that was never asked for its body may leave it out and send its next request.
        is_unasked = self.expects_100 and self.more_body
        is_last = says_close or is_unasked or 400 <= status < 500 or self._connection.registry.is_draining
        if is_last or not self.keep_alive:
            self.keep_alive = False
            pieces.append(b"connection: close\r\n")
        pieces.append(b"\r\n")
        return pieces
