"""Keeps a sender waiting until the handler of its event has replied, for as long as the source allows.

The handler does not run here: the event is stored and delivered like any other, and whoever handles it, on whatever
host, leaves the reply in the journal together with its success. A notification tells of it; a look every fifth of a
second is what can be relied on. So a sender that stops waiting, a worker that dies or a second gateway changes
nothing about how often the event is handled.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from boathook.config import Settings, SourceSettings
from boathook.domain.errors import ConfigError, JournalError
from boathook.domain.replies import ENDING_STATUSES, Reply
from boathook.inbound.providers.recipe import Recipe
from boathook.inbound.settling import recipe_of
from boathook.journal.replies import Answered
from boathook.telemetry.log import get_logger

LOOK_S: Final = 0.2
"""Seconds between two looks at everything that is waited for."""
_SHARE: Final = 0.7
"""Of the time a sender allows, the rest being for the way there and back."""
_USUAL_S: Final = 2.0
_REMEMBERED: Final = 4_096
_LOG = get_logger("inbound")

Find = Callable[[Sequence[UUID]], Awaitable[list[Answered]]]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]


class Outcome(StrEnum):
    """How it ended for a sender that waited."""

    ANSWERED = "answered"
    FALLBACK = "fallback"
    GONE = "gone"
    """The sender closed the connection."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InlinePolicy:
    """How one source's senders are kept waiting."""

    within_s: float
    """Seconds from the arrival of the request until it is answered, with the fallback if need be."""
    fallback: Reply | None
    """None: what the sender would be told if nobody replied."""
    stops: frozenset[int]
    """Statuses these senders are never answered."""


@dataclass(frozen=True, slots=True)
class Question:
    """An event whose sender waits."""

    event_id: UUID
    is_new: bool
    """Whether it was stored just now, so that a reply cannot have been there before."""


def inline_policy(settings: Settings, name: str) -> InlinePolicy | None:
    """Return how the senders of a source are kept waiting, or None where they are not.

    Raises:
        ConfigError: a setting is impossible with this provider; the message names the key.
    """
    source = settings.sources[name]
    if source.mode != "inline":
        return None
    recipe = recipe_of(name, source.provider)
    stops = recipe.stop_statuses | ENDING_STATUSES
    return InlinePolicy(within_s=_within_s(name, source, recipe), fallback=_fallback(name, source, stops), stops=stops)


def inline_sources(settings: Settings) -> dict[str, frozenset[int]]:
    """Return the sources whose senders wait, each with the statuses they are never answered. Raises as above."""
    policies = {name: inline_policy(settings, name) for name in settings.sources}
    return {name: policy.stops for name, policy in policies.items() if policy is not None}


def _within_s(name: str, source: SourceSettings, recipe: Recipe) -> float:
    allowed_s = recipe.answer_within_s
    if source.reply_within_s is None:
        return _USUAL_S if allowed_s is None else allowed_s * _SHARE
    if allowed_s is not None and source.reply_within_s >= allowed_s:
        raise ConfigError(
            f"sources.{name}.reply_within_s: {recipe.title} waits only {allowed_s:g} seconds for an answer; write less,"
            f" such as {allowed_s * _SHARE:.1f}, or remove the key"
        )
    return source.reply_within_s


def _fallback(name: str, source: SourceSettings, stops: frozenset[int]) -> Reply | None:
    if source.fallback_status is None and source.fallback_body is None:
        if source.fallback_content_type is not None:
            raise ConfigError(f"sources.{name}.fallback_content_type: there is no fallback_body; add it")
        return None
    status = source.fallback_status or 200
    if status in stops:
        raise ConfigError(
            f"sources.{name}.fallback_status: {status} makes {source.provider} stop sending; write another, such as 200"
        )
    return Reply(
        status=status,
        body=(source.fallback_body or "").encode(),
        content_type=source.fallback_content_type or "text/plain; charset=utf-8",
    )


class WaitingRoom:
    """The senders that wait at one gateway.

    Args:
        find: reads from the journal how it stands with events.
        places: most senders waiting at once; others are answered the fallback.
    """

    def __init__(self, find: Find, *, places: int) -> None:
        self._find = find
        self._places = places
        self._taken = 0
        self._guests: dict[UUID, set[asyncio.Future[Reply | None]]] = {}
        self._due: set[UUID] = set()
        """Events to be looked at as soon as possible."""
        self._heard: dict[UUID, None] = {}
        """Events told of lately: a handler may be quicker than its sender's way into this room."""
        self._wake = asyncio.Event()
        self._closes_at = math.inf

    async def ask(self, question: Question, seconds: float, receive: Receive) -> tuple[Reply | None, Outcome]:
        """Wait at most *seconds* for a reply to *question*, and no longer than the client stays."""
        waiting = asyncio.create_task(self._wait(question, seconds))
        leaving = asyncio.ensure_future(receive())
        try:
            await asyncio.wait({waiting, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                return None, Outcome.GONE
            reply = waiting.result()
            return reply, Outcome.FALLBACK if reply is None else Outcome.ANSWERED
        finally:
            waiting.cancel()
            leaving.cancel()

    async def _wait(self, question: Question, seconds: float) -> Reply | None:
        if self._taken >= self._places:
            return None
        loop = asyncio.get_running_loop()
        event_id = question.event_id
        guest: asyncio.Future[Reply | None] = loop.create_future()
        guests = self._guests.setdefault(event_id, set())
        guests.add(guest)
        self._taken += 1
        if not question.is_new or event_id in self._heard:
            self._look_soon(event_id)
        try:
            async with asyncio.timeout_at(min(loop.time() + seconds, self._closes_at)):
                return await guest
        except TimeoutError:
            return None
        finally:
            self._taken -= 1
            guests.discard(guest)
            if not guests and self._guests.get(event_id) is guests:
                del self._guests[event_id]

    def _look_soon(self, event_id: UUID) -> None:
        self._due.add(event_id)
        self._wake.set()

    def hear(self, payload: str) -> None:
        """Take in a notification, whose payload is the id of an event of which an attempt has ended."""
        try:
            event_id = UUID(payload)
        except ValueError:
            return
        if event_id in self._guests:
            self._look_soon(event_id)
            return
        self._heard[event_id] = None
        if len(self._heard) > _REMEMBERED:
            del self._heard[next(iter(self._heard))]

    def close(self, within_s: float) -> None:
        """Let nobody wait longer than *within_s* from this moment on."""
        loop = asyncio.get_running_loop()
        self._closes_at = loop.time() + within_s
        loop.call_later(within_s, self._send_home)

    def _send_home(self) -> None:
        for guests in self._guests.values():
            _tell(guests, None)

    async def run(self) -> None:
        """Look into the journal until cancelled: at what was told of at once, at everything now and then."""
        looked_at = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            due, self._due = self._due, set()
            if time.monotonic() - looked_at >= LOOK_S:
                looked_at = time.monotonic()
                due = set(self._guests)
            await self._look([event_id for event_id in due if event_id in self._guests])

    async def _look(self, event_ids: Sequence[UUID]) -> None:
        if not event_ids:
            return
        try:
            found = await self._find(event_ids)
        except JournalError as error:
            _LOG.warning("replies_unknown", error=str(error), waiting=self._taken)
            return
        except Exception as error:  # noqa: BLE001 - one surprise must not leave every later sender without a reply
            _LOG.error("replies_unknown", exc_info=error, waiting=self._taken)
            return
        for one in found:
            if one.reply is not None or not one.is_open:
                _tell(self._guests.get(one.event_id, ()), one.reply)


def _tell(guests: "set[asyncio.Future[Reply | None]] | tuple[()]", reply: Reply | None) -> None:
    for guest in guests:
        if not guest.done():
            guest.set_result(reply)
