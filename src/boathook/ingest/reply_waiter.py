"""Makes senders of inline sources wait for the handler's reply, up to the source's time limit.

The handler does not run here. The event is stored and delivered like any other, and its worker, on any host, stores the
reply in the database in the transaction of its success. A notification announces it; polling every 0.2 s is the
reliable fallback. A sender that stops waiting, a worker that dies or a second gateway therefore does not change how
often the event is handled.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Final
from uuid import UUID

import msgspec

from boathook.config import Settings, SourceSettings
from boathook.db.replies import ReplyStatus
from boathook.domain.errors import ConfigError, DatabaseError
from boathook.domain.replies import STOP_STATUSES, Reply
from boathook.http.asgi import Receive
from boathook.observability.log import get_logger
from boathook.providers.recipe import Recipe
from boathook.verification.source import find_source_recipe

POLL_INTERVAL_S: Final = 0.2
"""Seconds between two polls of all waited-for events."""
_TIMEOUT_SHARE: Final = 0.7
"""Share of the sender's time limit to wait; the rest allows for network latency."""
_DEFAULT_TIMEOUT_S: Final = 2.0
MAX_RECENT: Final = 4_096
_LOG = get_logger("ingest")

FindReplies = Callable[[Sequence[UUID]], Awaitable[list[ReplyStatus]]]


class ReplyOutcome(StrEnum):
    """How waiting for a reply ended."""

    ANSWERED = "answered"
    FALLBACK = "fallback"
    GONE = "gone"
    """The sender closed the connection."""


class InlinePolicy(msgspec.Struct, frozen=True, kw_only=True):
    """How the senders of one inline source wait."""

    within_s: float
    """Seconds from the arrival of the request to its response, which is the fallback if there is no reply."""
    fallback: Reply | None
    """The response without a reply; None sends the source's usual response."""
    forbidden_statuses: frozenset[int]
    """Statuses that are never sent to these senders."""


class PendingReply(msgspec.Struct, frozen=True):
    """An event whose sender waits for a reply."""

    event_id: UUID
    is_new: bool
    """Whether it was stored just now, so that no reply can exist yet."""


def inline_policy(settings: Settings, name: str) -> InlinePolicy | None:
    """Return the policy of an inline source, or None for any other source.

    Raises:
        ConfigError: a setting is impossible with this provider; the message names the key.
    """
    source = settings.sources[name]
    if source.mode != "inline":
        return None
    recipe = find_source_recipe(name, source.provider)
    forbidden_statuses = recipe.stop_statuses | STOP_STATUSES
    return InlinePolicy(
        within_s=_within_s(name, source, recipe),
        fallback=_fallback(name, source, forbidden_statuses),
        forbidden_statuses=forbidden_statuses,
    )


def inline_sources(settings: Settings) -> dict[str, frozenset[int]]:
    """Return the inline sources, each with the statuses never sent to its senders; unusable stored ones are left out.

    Raises:
        ConfigError: a setting of a configured source is impossible with its provider; the message names the key.
    """
    statuses_by_source: dict[str, frozenset[int]] = {}
    for name in settings.sources:
        try:
            policy = inline_policy(settings, name)
        except ConfigError:
            if name not in settings.stored:
                raise
        else:
            statuses_by_source |= {} if policy is None else {name: policy.forbidden_statuses}
    return statuses_by_source


def _within_s(name: str, source: SourceSettings, recipe: Recipe) -> float:
    allowed_s = recipe.answer_within_s
    if source.reply_within_s is None:
        return _DEFAULT_TIMEOUT_S if allowed_s is None else allowed_s * _TIMEOUT_SHARE
    if allowed_s is not None and source.reply_within_s >= allowed_s:
        raise ConfigError(
            f"sources.{name}.reply_within_s: {recipe.title} waits only {allowed_s:g} seconds for a reply; use less,"
            f" such as {allowed_s * _TIMEOUT_SHARE:.1f}, or remove the key"
        )
    return source.reply_within_s


def _fallback(name: str, source: SourceSettings, forbidden_statuses: frozenset[int]) -> Reply | None:
    if source.fallback_status is None and source.fallback_body is None:
        if source.fallback_content_type is not None:
            raise ConfigError(f"sources.{name}.fallback_content_type: there is no fallback_body; add it")
        return None
    status = source.fallback_status or 200
    if status in forbidden_statuses:
        raise ConfigError(
            f"sources.{name}.fallback_status: {status} makes {source.provider} stop sending; use another, such as 200"
        )
    return Reply(
        status=status,
        body=(source.fallback_body or "").encode(),
        content_type=source.fallback_content_type or "text/plain; charset=utf-8",
    )


class ReplyWaiter:
    """The senders that wait for replies at one gateway.

    Args:
        find: reads the state of events and their replies from the database.
        max_waiting: maximum number of waiting senders; further ones get the fallback.
    """

    def __init__(self, find: FindReplies, *, max_waiting: int) -> None:
        self._find = find
        self._max_waiting = max_waiting
        self._waiting_count = 0
        self._waiters: dict[UUID, set[asyncio.Future[Reply | None]]] = {}
        self._due: set[UUID] = set()
        """Events to poll as soon as possible."""
        self._seen: dict[UUID, None] = {}
        """Recently announced events: a handler may finish before its sender starts to wait."""
        self._wake = asyncio.Event()
        self._closes_at = math.inf

    async def ask(
        self, pending_reply: PendingReply, seconds: float, receive: Receive
    ) -> tuple[Reply | None, ReplyOutcome]:
        """Wait for a reply to *pending_reply* for at most *seconds*, or until the client disconnects."""
        waiting = asyncio.create_task(self._wait(pending_reply, seconds))
        leaving = asyncio.ensure_future(receive())
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                return None, ReplyOutcome.GONE
            reply = waiting.result()
            return reply, ReplyOutcome.FALLBACK if reply is None else ReplyOutcome.ANSWERED
        finally:
            waiting.cancel()
            leaving.cancel()

    async def _wait(self, pending_reply: PendingReply, seconds: float) -> Reply | None:
        if self._waiting_count >= self._max_waiting:
            return None
        loop = asyncio.get_running_loop()
        event_id = pending_reply.event_id
        waiter: asyncio.Future[Reply | None] = loop.create_future()
        waiters = self._waiters.setdefault(event_id, set())
        waiters.add(waiter)
        self._waiting_count += 1
        if not pending_reply.is_new or event_id in self._seen:
            self._poll_soon(event_id)
        try:
            async with asyncio.timeout_at(min(loop.time() + seconds, self._closes_at)):
                return await waiter
        except TimeoutError:
            return None
        finally:
            self._waiting_count -= 1
            waiters.discard(waiter)
            if not waiters and self._waiters.get(event_id) is waiters:
                del self._waiters[event_id]

    def _poll_soon(self, event_id: UUID) -> None:
        self._due.add(event_id)
        self._wake.set()

    def on_notification(self, payload: str) -> None:
        """Handle a notification; its payload is the id of an event with an attempt that has ended."""
        try:
            event_id = UUID(payload)
        except ValueError:
            return
        if event_id in self._waiters:
            self._poll_soon(event_id)
            return
        self._seen[event_id] = None
        if len(self._seen) > MAX_RECENT:
            del self._seen[next(iter(self._seen))]

    def close(self, within_s: float) -> None:
        """Let no sender wait longer than *within_s* from now."""
        loop = asyncio.get_running_loop()
        self._closes_at = loop.time() + within_s
        loop.call_later(within_s, self._release_all)

    def _release_all(self) -> None:
        for waiters in self._waiters.values():
            _resolve(waiters, None)

    async def run(self) -> None:
        """Poll the database until cancelled: announced events immediately, all waited-for events periodically."""
        polled_at = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(POLL_INTERVAL_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            due, self._due = self._due, set()
            if time.monotonic() - polled_at >= POLL_INTERVAL_S:
                polled_at = time.monotonic()
                due = set(self._waiters)
            await self._poll([event_id for event_id in due if event_id in self._waiters])

    async def _poll(self, event_ids: Sequence[UUID]) -> None:
        if not event_ids:
            return
        try:
            replies = await self._find(event_ids)
        except DatabaseError as error:
            _LOG.warning("replies_unknown", error=str(error), waiting=self._waiting_count)
            return
        except Exception as error:  # noqa: BLE001 - one error must not leave all later senders without a reply
            _LOG.error("replies_unknown", exc_info=error, waiting=self._waiting_count)
            return
        for reply in replies:
            if reply.reply is not None or not reply.is_open:
                _resolve(self._waiters.get(reply.event_id, ()), reply.reply)


def _resolve(waiters: "set[asyncio.Future[Reply | None]] | tuple[()]", reply: Reply | None) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(reply)
