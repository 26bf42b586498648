"""Reads an answer that has no end, such as server-sent events, piece by piece; and whom the guard lets pass."""

import asyncio
import contextlib
import json
import queue
import threading
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

from boathook.config import Settings
from boathook.config.tables import OutboundSettings
from boathook.domain.errors import FetchFailed
from boathook.http_client.curl_easy import CurlEasyClient
from boathook.http_client.proxy import ANY_NETWORK
from boathook.http_client.request import HttpRequest

_ROOM: Final = 64
"""Pieces that wait to be read; beyond, the sender is held up."""
_LOOK_S: Final = 0.2
_LONGEST_S: Final = 7 * 86_400.0
_MOST_TOLD: Final = 4_096


def unguarded_settings(settings: Settings) -> OutboundSettings:
    """Return the settings for requests to addresses that the operator wrote, which may lie in any network.

    The guard is for addresses that strangers choose; where an operator's own machine, collector or gateway is, only
    the operator knows.

    Raises:
        ConfigError: the proxy cannot be read.
    """
    proxy = settings.resolve(settings.outbound.proxy, "outbound.proxy")
    return settings.outbound.model_copy(
        update={"allow": ANY_NETWORK, "ports": (), "require_https": False, "proxy": proxy}
    )


async def stream_response(
    settings: OutboundSettings, url: str, headers: Mapping[str, str], *, quiet_s: float
) -> AsyncIterator[bytes]:
    """Yield the pieces of an answer as they come, for as long as they are asked for.

    Args:
        quiet_s: how long nothing may come.

    Raises:
        FetchFailed: it may not or could not be had, has another status than 200, or fell silent. What a server says
            of another status is in the message.
    """
    flow = _ResponseStream(quiet_s)
    call = HttpRequest(method="GET", url=url, headers=headers, timeout_s=_LONGEST_S)
    threading.Thread(target=flow.run, args=(settings, call), daemon=True, name="boathook-tap").start()
    try:
        while (piece := await flow.next()) is not None:
            yield piece
    finally:
        flow.is_cancelled = True


class _ResponseStream:
    """Pieces on their way from a thread to an event loop."""

    def __init__(self, quiet_s: float) -> None:
        self.is_cancelled = False
        self._quiet_s = quiet_s
        self._loop = asyncio.get_running_loop()
        self._pieces: queue.Queue[bytes | Exception | None] = queue.Queue(_ROOM)
        self._has_some = asyncio.Event()
        self._status = 0
        self._told = b""
        self._heard_at = time.monotonic()

    async def next(self) -> bytes | None:
        """Return the next piece; None at the end. Raises FetchFailed."""
        while True:
            self._has_some.clear()
            try:
                found = self._pieces.get_nowait()
            except queue.Empty:
                await self._has_some.wait()
                continue
            if isinstance(found, Exception):
                raise found
            return found

    def run(self, settings: OutboundSettings, call: HttpRequest) -> None:
        """Make the request, in a thread of its own."""
        end: Exception | None = None
        try:
            CurlEasyClient(settings).send(call, self, self._is_over)
            if self._status != 200:
                end = FetchFailed(_reason(self._status, self._told), status=self._status)
        except FetchFailed as error:
            is_silent = not self.is_cancelled and self._is_over()
            end = FetchFailed(f"nothing came for {self._quiet_s:g} s") if is_silent else error
        except Exception as error:  # noqa: BLE001 - whoever reads is to hear of it
            end = error
        with contextlib.suppress(FetchFailed):
            self._put(end)

    def begin(self, status: int, headers: Mapping[str, str]) -> None:  # noqa: ARG002 - a sink is told both
        """Take the head of the answer."""
        self._status, self._heard_at = status, time.monotonic()

    def take(self, piece: bytes) -> None:
        """Take a piece of its body, when there is room."""
        if self._status == 200:
            self._put(piece)
        else:
            self._told = (self._told + piece)[:_MOST_TOLD]
        self._heard_at = time.monotonic()

    def _is_over(self) -> bool:
        return self.is_cancelled or time.monotonic() - self._heard_at > self._quiet_s

    def _put(self, piece: bytes | Exception | None) -> None:
        while not self.is_cancelled:
            try:
                self._pieces.put(piece, timeout=_LOOK_S)
            except queue.Full:
                continue
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._has_some.set)
            return
        raise FetchFailed("the reader is gone")


def _reason(status: int, told: bytes) -> str:
    try:
        document: Any = json.loads(told)
        detail = document.get("detail") if isinstance(document, dict) else None
        if isinstance(detail, list):  # one problem or more, each with its place
            detail = "; ".join(f"{one['loc'][-1]}: {one['msg']}" for one in detail)
    except (ValueError, KeyError, IndexError, TypeError):
        detail = None
    return f"it answered with status {status}" + (f": {detail}" if isinstance(detail, str) else "")
