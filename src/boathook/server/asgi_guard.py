"""One call of a mounted ASGI application: whatever it does, its caller gets an answer, and the log its faults."""

import json
from typing import Any, Final

from boathook.http.asgi import Asgi, Message, Receive, Send
from boathook.observability.log import get_logger

_JSON: Final = (b"content-type", b"application/json")
_DISCONNECT: Final = {"type": "http.disconnect"}
_MAX_HELD_BYTES: Final = 65_536
_LOG = get_logger("server")


class HttpGuard:
    """One HTTP request to an application.

    Args:
        receive: gives the request's body.
        send: takes the answer.
        request_id: stands in every answer, and in the log.
        most: bytes a body may have; of more, the rest is not read and 413 is answered.
    """

    def __init__(self, receive: Receive, send: Send, request_id: str, most: int) -> None:
        self._receive = receive
        self._send = send
        self._request_id = request_id
        self._left = most
        self._held: list[dict[str, Any]] = []
        self._is_begun = False
        self._is_over = False
        """Whether nothing that the application sends matters any more."""
        self._is_disconnected = False
        """Whether the client is gone, or has only the answer left to read."""

    async def run(self, app: Asgi, scope: dict[str, Any]) -> None:
        """Run the application; a fault of it is answered 500, and cuts off an answer that has begun."""
        length = dict(scope["headers"]).get(b"content-length", b"")
        if length.strip().isdigit() and int(length) > self._left:
            await self._send_error(413, "the body is too large")
            return
        try:
            await app(scope, self._guarded_receive, self._guarded_send)
        except (Exception, SystemExit) as error:  # one that exits would take the gateway with it
            if self._is_over:
                return
            # What an application makes of a client that went away is no fault of its.
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
            named = (b"x-request-id", self._request_id.encode())
            message = {**message, "headers": [*message.get("headers", ()), named]}
            if message["status"] == 500:
                self._held.append(message)
                return
        if self._held:
            # Toolkits answer 500 in words of their own and then raise: that is ours to answer.
            self._held.append(message)
            if sum(len(held.get("body", b"")) for held in self._held) > _MAX_HELD_BYTES:
                await self._flush()
            return
        self._is_begun = True
        await self._send(message)

    async def _flush(self) -> None:
        held, self._held = self._held, []
        for message in held:
            self._is_begun = True
            await self._send(message)

    async def _send_error(self, status: int, error: str) -> None:
        self._held = []
        self._is_over = self._is_begun = True
        for message in error_messages(status, error, self._request_id):
            await self._send(message)


class WebSocketGuard:
    """One WebSocket of an application.

    Args:
        receive: gives what the peer sends.
        send: takes what is for it.
        request_id: stands in the log.
        protocol: the subprotocol to choose where the application chooses none.
    """

    def __init__(self, receive: Receive, send: Send, request_id: str, protocol: str | None) -> None:
        self._receive = receive
        self._send = send
        self._request_id = request_id
        self._protocol = protocol
        self._is_begun = False
        self._is_over = False

    async def run(self, app: Asgi, scope: dict[str, Any]) -> None:
        """Run the application; a fault of it is answered 500 before it has accepted, and closes the WebSocket after."""
        try:
            await app(scope, self._guarded_receive, self._guarded_send)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever it raises must not reach the gateway
            if self._is_over:
                return
            _LOG.error("mount_fault", exc_info=error, path=scope["path"], request_id=self._request_id)
            await self._fail()

    async def _guarded_receive(self) -> Message:
        message = await self._receive()
        self._is_over = self._is_over or message["type"] == "websocket.disconnect"
        return message

    async def _guarded_send(self, message: dict[str, Any]) -> None:
        if message["type"] == "websocket.accept" and message.get("subprotocol") is None:
            message = {**message, "subprotocol": self._protocol}
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
    """Return the two messages of an answer that tells the status and nothing else."""
    body = json.dumps({"ok": False, "error": error, "request_id": request_id}, separators=(",", ":")).encode()
    headers = [_JSON, (b"x-request-id", request_id.encode()), (b"cache-control", b"no-store")]
    return {"type": "http.response.start", "status": status, "headers": headers}, {
        "type": "http.response.body",
        "body": body,
    }
