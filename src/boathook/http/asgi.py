"""Types of ASGI applications, boathook's own key in a request's scope, and the body of a request."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Asgi = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]

IS_AUTHENTICATED: Final = "boathook.is_authenticated"
"""Set in the scope of a request once its credentials are known to be valid."""


async def read_body(receive: Receive, max_bytes: int) -> bytes | None:
    """Return the body, or more than *max_bytes* of it; None if the client has disconnected."""
    message = await receive()
    if message["type"] != "http.request":
        return None
    # Both keys are optional in ASGI; other servers than ours leave them out.
    body: bytes = message.get("body", b"")
    if not message.get("more_body"):
        return body
    pieces, size = [body], len(body)
    while message.get("more_body") and size <= max_bytes:
        message = await receive()
        if message["type"] != "http.request":
            return None
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
    return b"".join(pieces)
