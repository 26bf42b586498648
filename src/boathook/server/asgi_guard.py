"""Stands between the gateway and the ASGI applications behind it.

Their errors are logged, the client always gets a response, and forwarding headers of trusted proxies are applied.
"""

import json
from typing import Any, Final

from boathook.config.types import Network
from boathook.http.asgi import Asgi, Message, Receive, Send, read_headers
from boathook.http.limits import client_address, is_trusted
from boathook.observability.log import get_logger

_JSON: Final = (b"content-type", b"application/json")
_DISCONNECT: Final = {"type": "http.disconnect"}
_MAX_HELD_BYTES: Final = 65_536
_LOG = get_logger("server")


class HttpGuard:
    """One HTTP request to an application.

    Args:
        receive: returns the request's body.
        send: sends the response.
        request_id: added to every response and log line.
        limit: maximum bytes of a body; a larger one is not read to its end and answered 413.
    """

    def __init__(self, receive: Receive, send: Send, request_id: str, limit: int) -> None:
        self._receive = receive
        self._send = send
        self._request_id = request_id
        self._left = limit
        self._held: list[dict[str, Any]] = []
        self._is_begun = False
        self._is_over = False
        """Whether all further messages of the application are discarded."""
        self._is_disconnected = False
        """Whether the client has disconnected."""

    async def run(self, app: Asgi, scope: dict[str, Any]) -> None:
        """Run the application; an error is answered 500, or aborts a response that has begun."""
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.strip().isdigit() and int(length) > self._left:
            await self._send_error(413, "the body is too large")
            return
        try:
            await app(scope, self._guarded_receive, self._guarded_send)
        except (Exception, SystemExit) as error:  # an application that calls exit would end the gateway
            if self._is_over:
                return
            # An error caused by a client that disconnected is not the application's fault.
            log = _LOG.debug if self._is_disconnected else _LOG.error
            log("mount_fault", exc_info=error, path=scope["path"], request_id=self._request_id)
            if self._is_begun:
                if isinstance(error, SystemExit):
                    raise RuntimeError("the application exits amid its answer") from error
                raise
            await self._send_error(500, "internal error")
        else:
            await self._flush()

    async def _guarded_receive(self) -> Message:
        if self._is_over:
            return _DISCONNECT
        message = await self._receive()
        if message["type"] != "http.request":
            self._is_disconnected = True
            return message
        self._left -= len(message["body"])
        if self._left < 0 and not self._is_begun:
            await self._send_error(413, "the body is too large")
        return _DISCONNECT if self._left < 0 else message

    async def _guarded_send(self, message: dict[str, Any]) -> None:
        if self._is_over:
            return
        if message["type"] == "http.response.start":
            request_id_header = (b"x-request-id", self._request_id.encode())
            message = {**message, "headers": [*message.get("headers", ()), request_id_header]}
            if message["status"] == 500:
                self._held.append(message)
                return
        if self._held:
            # Frameworks send their own 500 response and then raise; it is replaced by ours.
            self._held.append(message)
            if sum(len(held_message.get("body", b"")) for held_message in self._held) > _MAX_HELD_BYTES:
                await self._flush()
            return
        self._is_begun = True
        await self._send(message)

    async def _flush(self) -> None:
        messages, self._held = self._held, []
        for message in messages:
            self._is_begun = True
            await self._send(message)

    async def _send_error(self, status: int, error: str) -> None:
        self._held = []
        self._is_over = self._is_begun = True
        for message in error_messages(status, error, self._request_id):
            await self._send(message)


class WebSocketGuard:
    """One WebSocket connection to an application.

    Args:
        receive: returns the client's messages.
        send: sends messages to the client.
        request_id: added to log lines.
    """

    def __init__(self, receive: Receive, send: Send, request_id: str) -> None:
        self._receive = receive
        self._send = send
        self._request_id = request_id
        self._is_begun = False
        self._is_over = False

    async def run(self, app: Asgi, scope: dict[str, Any]) -> None:
        """Run the application; an error before it accepts is answered 500, a later one closes the WebSocket."""
        try:
            await app(scope, self._guarded_receive, self._guarded_send)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - no error may reach the gateway
            if self._is_over:
                return
            _LOG.error("mount_fault", exc_info=error, path=scope["path"], request_id=self._request_id)
            await self._fail()

    async def _guarded_receive(self) -> Message:
        message = await self._receive()
        self._is_over = self._is_over or message["type"] == "websocket.disconnect"
        return message

    async def _guarded_send(self, message: dict[str, Any]) -> None:
        try:
            await self._send(message)
        except OSError:
            self._is_over = True
            raise
        self._is_begun = True

    async def _fail(self) -> None:
        if self._is_begun:
            await self._send({"type": "websocket.close", "code": 1011, "reason": "internal error"})
            return
        for message in error_messages(500, "internal error", self._request_id):
            await self._send({**message, "type": f"websocket.{message['type']}"})


def error_messages(status: int, error: str, request_id: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the two messages of a response that discloses only the status."""
    body = json.dumps({"ok": False, "error": error, "request_id": request_id}, separators=(",", ":")).encode()
    headers = [_JSON, (b"x-request-id", request_id.encode()), (b"cache-control", b"no-store")]
    return {"type": "http.response.start", "status": status, "headers": headers}, {
        "type": "http.response.body",
        "body": body,
    }


def apply_forwarded_headers(scope: dict[str, Any], trusted: tuple[Network, ...]) -> dict[str, Any]:
    """Return the ASGI scope with the client and scheme that a trusted proxy reports."""
    peer, port = scope["client"]
    if not is_trusted(peer, trusted):
        return scope
    headers = read_headers(scope["headers"])
    client = client_address(peer, headers.get("x-forwarded-for"), trusted)
    is_secure = headers.get("x-forwarded-proto", "").strip().lower() == "https"
    scheme = f"{scope['scheme']}s" if is_secure else scope["scheme"]
    return {**scope, "client": (client, port), "scheme": scheme}
