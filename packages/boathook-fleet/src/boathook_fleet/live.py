"""Live updates for browsers: a WebSocket that reports changes, without losing any over a reconnect.

Broadcasts are only hints. News are numbered in the order of their commits. A client that gets number 9 after number 6
queries 7 and 8, and a client that reconnects with ``?since=6`` gets the latest state of everything that came later.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.websockets import WebSocket, WebSocketDisconnect

from boathook import Boathook, Transaction
from boathook_fleet.log import Phase, logged
from boathook_fleet.records import FeedEntry, feed_since, newest_version

CHANNEL: Final = "fleet.live"
POLL_S: Final = 2.0
"""Seconds between queries for changes without a hint, because hints may be lost."""
_PAGE: Final = 500


async def publish_change(hook: Boathook, tx: Transaction, entry: FeedEntry) -> None:
    """Notify all browsers of *entry*, once the transaction commits."""
    await hook.publish_live(tx, CHANNEL, entry.to_json())


async def serve_live(hook: Boathook, socket: WebSocket) -> None:
    """Serve one browser until it disconnects."""
    await socket.accept()
    since = _read_since(socket.query_params.get("since"))
    if since is None:
        await socket.close(1008, "since must be the version of a frame, a whole number")
        return
    async with logged(hook, Phase.LIVE):
        telling = asyncio.create_task(_report(hook, socket, since))
        disconnected = asyncio.create_task(_wait_until_gone(socket))
        try:
            await asyncio.wait({telling, disconnected}, return_when=asyncio.FIRST_COMPLETED)
            if telling.done():
                telling.result()
        finally:
            for task in (telling, disconnected):
                task.cancel()
            await asyncio.gather(telling, disconnected, return_exceptions=True)


def _read_since(text: str | None) -> int | None:
    """Return the version to continue from, -1 for the current one, or None if it is invalid."""
    if text is None:
        return -1
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


async def _wait_until_gone(socket: WebSocket) -> None:
    with contextlib.suppress(WebSocketDisconnect):
        while (await socket.receive())["type"] != "websocket.disconnect":
            pass


async def _report(hook: Boathook, socket: WebSocket, since: int) -> None:
    """Send all changes after *since*, each once, in the order of their commits."""
    hints = hook.subscribe(CHANNEL)  # subscribe before reading the version, so that nothing is lost in between
    async with hook.transaction() as tx:
        newest = await newest_version(tx)
    seen = newest if since < 0 else min(since, newest)
    with contextlib.suppress(WebSocketDisconnect):
        await socket.send_json({"kind": "hello", "version": newest, "since": seen})
        seen = await _catch_up(hook, socket, seen)
        while True:
            hint = await _next(hints)
            if hint is not None and hint["version"] <= seen:
                continue
            if hint is not None and hint["version"] == seen + 1:
                await _send(socket, hint)
                seen = hint["version"]
            else:
                seen = await _catch_up(hook, socket, seen)


async def _next(hints: AsyncIterator[Any]) -> Any:
    """Return the next hint, or None if none arrives in time."""
    try:
        async with asyncio.timeout(POLL_S):
            return await anext(hints)
    except TimeoutError:
        return None


async def _catch_up(hook: Boathook, socket: WebSocket, seen: int) -> int:
    """Send the changes after *seen*; return the latest version sent."""
    while True:
        async with hook.transaction() as tx:
            page = await feed_since(tx, seen, limit=_PAGE)
        for entry in page:
            await _send(socket, entry)
            seen = entry["version"]
        if len(page) < _PAGE:
            return seen


async def _send(socket: WebSocket, entry: dict[str, Any]) -> None:
    await socket.send_json({"kind": "change", **entry})
