"""Server-sent events: one producer for all readers of a process; each reader gets only the newest state.

A reader with a slow connection waits in its own `send` and then gets the newest state, so no queue builds up. The
gateway disconnects readers that do not read at all, and counts each stream as a connection.
"""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from datetime import timedelta
from typing import Final

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from boathook.domain.errors import DatabaseError
from boathook.http.asgi import stream_body
from boathook.observability.log import get_logger
from boathook.service.access import operators
from boathook_console.routes import ConsoleContext
from boathook_console.settings import console_table

REFRESH_INTERVAL_S: Final = 2.0
MAX_READERS: Final = 64
"""Per process; further readers have to poll instead."""
MAX_READERS_PER_OPERATOR: Final = 16
"""Per operator, so that forgotten tabs of one operator cannot use up the limit."""
HEARTBEAT_INTERVAL_S: Final = 10.0
SESSION_CHECK_INTERVAL_S: Final = 5.0
"""Interval at which the reader's session is checked."""
_RETRY_MS: Final = 2_000
_LOG = get_logger("console")

StateUpdate = tuple[int, str] | None
"""A state with its number; None means that it is unchanged."""


class LiveState:
    """A state that is produced while it has readers.

    Args:
        render: returns the state as text.
        max_age_s: seconds after which it is rendered again.
        max_readers: maximum concurrent readers.
        max_per_operator: maximum concurrent readers of one operator.
    """

    def __init__(
        self,
        render: Callable[[], Awaitable[str]],
        *,
        max_age_s: float = REFRESH_INTERVAL_S,
        max_readers: int = MAX_READERS,
        max_per_operator: int = MAX_READERS_PER_OPERATOR,
    ) -> None:
        self._render = render
        self._max_age_s = max_age_s
        self._most = max_readers
        self._max_per_operator = max_per_operator
        self._readers: Counter[str] = Counter()
        self.number = 0
        self._latest = ""
        self._rendered_at = -max_age_s
        self._render_lock = asyncio.Lock()
        self._changed = asyncio.Event()
        self.producer: asyncio.Task[None] | None = None

    def has_room(self, reader: str) -> bool:
        """Return whether this operator may open another stream."""
        return self._readers.total() < self._most and self._readers[reader] < self._max_per_operator

    async def now(self) -> str:
        """Return the state, rendered again if it is too old."""
        async with self._render_lock:
            if time.monotonic() - self._rendered_at >= self._max_age_s:
                self._publish(await self._render())
        return self._latest

    async def updates(self, reader: str) -> AsyncGenerator[StateUpdate, None]:
        """Yield the state with its number on each change; yield None as a heartbeat while it is unchanged."""
        with self._counted(reader):
            state = await self.now()
            seen = self.number
            yield seen, state
            while True:
                changed = self._changed
                if self.number == seen:
                    with contextlib.suppress(TimeoutError):
                        await asyncio.wait_for(changed.wait(), HEARTBEAT_INTERVAL_S)
                is_new, seen = self.number != seen, self.number
                yield (seen, self._latest) if is_new else None

    @contextlib.contextmanager
    def _counted(self, reader: str) -> Iterator[None]:
        """Count a reader; the producer runs while there is at least one."""
        self._readers[reader] += 1
        if self.producer is None:
            self.producer = asyncio.create_task(self._produce(), name="console:live")
        try:
            yield
        finally:
            self._readers -= Counter([reader])
            if not self._readers and self.producer is not None:
                self.producer.cancel()
                self.producer = None

    async def _produce(self) -> None:
        while True:
            await asyncio.sleep(self._max_age_s)
            try:
                await self.now()
            except Exception as error:  # noqa: BLE001 - the next run may succeed
                _LOG.warning("live_state_failed", exc_info=error)

    def _publish(self, state: str) -> None:
        self._rendered_at = time.monotonic()
        if state != self._latest:
            self._latest = state
            self.number += 1
            self._changed.set()
            self._changed = asyncio.Event()


def stream_updates(context: ConsoleContext, live: LiveState) -> Response:
    """Stream a state as it changes, until the browser disconnects, the session ends or the process stops."""
    if not live.has_room(context.operator.name):
        return Response(status_code=503, headers={"retry-after": "5"})
    if context.request.method == "HEAD":
        return Response(media_type="text/event-stream")
    return _EventStream(context, live)


class _EventStream(StreamingResponse):
    """A response that streams until its reader disconnects."""

    media_type = "text/event-stream"

    def __init__(self, context: ConsoleContext, live: LiveState) -> None:
        self._events = _events(context, live)
        self._closing = context.app_context.closing
        # Tells proxies not to buffer the response.
        super().__init__(self._events, headers={"x-accel-buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG002 - ASGI's signature
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await stream_body(self._events, receive, send, self._closing)


async def _events(context: ConsoleContext, live: LiveState) -> AsyncGenerator[bytes, None]:
    yield f"retry: {_RETRY_MS}\n\n".encode()
    checked_at = time.monotonic()
    async with contextlib.aclosing(live.updates(context.operator.name)) as updates:
        async for update in updates:
            yield b": still here\n\n" if update is None else _encode_event(update)
            if time.monotonic() - checked_at >= SESSION_CHECK_INTERVAL_S:
                checked_at = time.monotonic()
                if not await _is_signed_in(context):
                    yield b"event: end\ndata: signed out\n\n"
                    return


def _encode_event(update: tuple[int, str]) -> bytes:
    number, state = update
    lines = "".join(f"data: {line}\n" for line in state.splitlines())
    return f"event: state\nid: {number}\n{lines}\n".encode()


async def _is_signed_in(context: ConsoleContext) -> bool:
    """Return whether the session is still valid, without extending it: an open page is not activity."""
    idle = timedelta(hours=console_table(context.app_context.settings).idle_hours)
    try:
        async with context.app_context.work() as work:
            session = await operators.find_session(work, context.session, idle, is_active=False)
    except DatabaseError:
        return True
    return session is not None
