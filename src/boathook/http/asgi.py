"""Types of ASGI applications, the body, path and origin of a request, and streamed responses."""

import asyncio
import contextlib
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from boathook.http.limits import BudgetExceeded

Message = Mapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[dict[str, Any]], Awaitable[None]]
Asgi = Callable[[dict[str, Any], Receive, Send], Awaitable[None]]
Headers = dict[str, str]
"""Headers by name, in lower case."""

IS_AUTHENTICATED: Final = "boathook.is_authenticated"
"""Set in the scope of a request once its credentials are known to be valid."""
_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_NEEDLESS_ESCAPE: Final = re.compile(rb"%(?:2[dDeEfF]|3[0-9]|4[1-9a-fA-F]|5[0-9aAfF]|6[1-9a-fA-F]|7[0-9aA])")


async def read_body(receive: Receive, max_bytes: int, take: Callable[[int], bool] = lambda _: True) -> bytes | None:
    """Return the body, or more than *max_bytes* of it; None if the client has disconnected.

    Raises:
        BudgetExceeded: *take*, which is called with the size of each piece, has no room for it.
    """
    pieces: list[bytes] = []
    size, has_more = 0, True
    while has_more and size <= max_bytes:
        message = await receive()
        if message["type"] != "http.request":
            return None
        # Both keys are optional in ASGI; other servers than ours leave them out.
        piece: bytes = message.get("body", b"")
        size += len(piece)
        if not take(len(piece)):
            raise BudgetExceeded(size)
        pieces.append(piece)
        has_more = bool(message.get("more_body"))
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def read_headers(raw: list[tuple[bytes, bytes]]) -> Headers:
    """Return headers by name; repeated headers are joined with commas (RFC 9110, section 5.3)."""
    headers: Headers = {}
    for raw_name, raw_value in raw:
        name, value = raw_name.decode("latin-1"), raw_value.decode("latin-1")
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def has_needless_escapes(raw_path: bytes) -> bool:
    """Return whether letters, digits, ``-``, ``.``, ``_`` or ``/`` are percent-encoded, which no client needs to do.

    A proxy that blocks ``/console`` by the raw path would let ``/%63onsole`` pass.
    """
    return b"%" in raw_path and _NEEDLESS_ESCAPE.search(raw_path) is not None


def is_own_origin(origin: str, host: str, public_url: str) -> bool:
    """Return whether *origin* is the requested host, with either scheme, or that of the public URL.

    A proxy in front may use another scheme than the browser, so the scheme of the request says nothing.
    """
    own = {_read_origin(f"http://{host}"), _read_origin(f"https://{host}")} if host else set()
    if public_url:
        parts = urlsplit(public_url)
        own.add(_read_origin(f"{parts.scheme}://{parts.netloc}"))
    return _read_origin(origin) in own - {None}


def _read_origin(text: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port of an origin such as ``https://cabinet.example``; None if it is not one."""
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        return None
    is_more = "@" in parts.netloc or parts.path or parts.query or parts.fragment
    if parts.scheme not in _DEFAULT_PORTS or not parts.hostname or is_more:
        return None
    return parts.scheme, parts.hostname, _DEFAULT_PORTS[parts.scheme] if port is None else port


async def stream_body(
    chunks: AsyncGenerator[bytes, None], receive: Receive, send: Send, closing: asyncio.Event
) -> None:
    """Send *chunks* as the body of a response, until they end, the client disconnects, or *closing* is set.

    A client that half-closes its connection looks like a disconnected one, so the body is always completed properly.
    """
    sending = asyncio.create_task(_send_chunks(chunks, send))
    tasks = {sending, asyncio.create_task(_wait_for_disconnect(receive)), asyncio.create_task(closing.wait())}
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    if not sending.cancelled():
        sending.result()
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _send_chunks(chunks: AsyncGenerator[bytes, None], send: Send) -> None:
    async with contextlib.aclosing(chunks):
        async for chunk in chunks:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
