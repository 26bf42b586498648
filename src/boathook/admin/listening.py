"""Who listens hears of each event once, soon after it was committed, and may go on where a connection broke.

Ids are made before the commit, so the order of ids is not that of commits: what was committed a moment ago may have an
id older than what was heard long before. Therefore the last minute is looked through again and again, and what was
heard of it left out. Only what takes longer from its id to its commit is missed: what a gateway had in its spool while
PostgreSQL was away, and what a transaction published that stayed open for more than a minute.
"""

import contextlib
from collections import deque
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final
from uuid import UUID

import msgspec

from boathook.config import Settings
from boathook.domain import ids
from boathook.domain.errors import ConfigError, InvalidValue
from boathook.domain.model import Event, Origin
from boathook.inbound.providers import find
from boathook.journal.database import Database
from boathook.journal.listening import Wish, find_ids, read_events

OVERLAP: Final = timedelta(seconds=60)
"""How long an event may take from its id to its commit and still be heard."""
LONGEST_BACK: Final = timedelta(days=1)
"""How far back somebody may begin."""
MOST_LISTENERS: Final = 16
"""Of one gateway; each costs two short looks a second."""
_NEAR: Final = timedelta(seconds=5)
"""How far most looks go back; nearly everything is committed much sooner."""
_NEAR_SWEEPS: Final = 9
"""Looks that only go so far, between two that go back as far as the overlap."""
_STRIDE: Final = timedelta(minutes=1)
"""What one look covers while there is much to catch up with, so that none takes long whatever is looked for."""
_PAGE: Final = 25
"""Events of one look: each may have a megabyte."""
_MOST_IDS: Final = 20_000
"""Ids of one statement."""
MESSAGE_SCHEME: Final = "standard-webhooks"
"""How messages of our own are signed, as a provider's name."""


class Heard(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An event as a listener gets it."""

    id: str
    source: str | None
    application: str | None
    type: str
    origin: str
    accepted_at: datetime
    provider: str | None
    """How it is signed when it is sent on; None where its source is not configured any more."""
    options: dict[str, Any]
    """The provider's settings, without those that are secret."""
    dedup_key: str
    headers: dict[str, str]
    """As far as they were kept: neither credentials nor signatures are."""
    content_type: str
    body: bytes

    @property
    def event_id(self) -> UUID:
        """Its id as the journal has it."""
        return ids.read_event(self.id)


class Tail:
    """The events one listener wants, from a moment on.

    Args:
        since: ids older than this are not looked at.
    """

    def __init__(self, database: Database, wish: Wish, since: datetime) -> None:
        self._database = database
        self._wish = wish
        self._since = since
        self._heard: set[UUID] = set()
        """Those that a look may find again."""
        self._waiting: deque[UUID] = deque()
        """Those found and not told of yet."""
        self._next: UUID | None = None
        """Where a sweep goes on that found more than one statement is to return."""
        self._near = 0
        """How many sweeps need not go back as far as the overlap."""
        self._is_behind = False

    async def look(self, now: datetime) -> tuple[list[Event], bool]:
        """Return what there is to hear, oldest first, and whether there may be more of it at once.

        Raises:
            JournalUnavailable: PostgreSQL is away; another look goes on where this one began.
        """
        if not self._waiting:
            await self._sweep(now)
        chosen = list(islice(self._waiting, _PAGE))
        events = await read_events(self._database, chosen) if chosen else []
        for _ in chosen:
            self._waiting.popleft()
        return events, bool(self._waiting) or self._is_behind

    async def _sweep(self, now: datetime) -> None:
        """Find what was not heard yet, in a stride of the past or, once that is behind, up to now."""
        edge, end = now - OVERLAP, self._since + _STRIDE
        until = end if end < edge else None
        is_near = self._near > 0 and until is None
        since = max(self._since, now - _NEAR) if is_near else self._since
        first = self._next or ids.first_of(since)
        found = await find_ids(self._database, self._wish, first, until, most=_MOST_IDS)
        news = [event for event in found if event not in self._heard]
        self._waiting.extend(news)
        self._heard.update(news)
        is_whole = len(found) < _MOST_IDS
        self._next = None if is_whole else UUID(int=found[-1].int + 1)
        self._is_behind = not is_whole or until is not None
        if is_whole and is_near:
            self._near -= 1
        elif is_whole:
            self._near = 0 if until is not None else _NEAR_SWEEPS
            self._go_on(until or max(self._since, edge))

    def _go_on(self, since: datetime) -> None:
        self._since = since
        first = ids.first_of(since)
        self._heard = {heard for heard in self._heard if heard >= first}


class Seats:
    """The places of listeners in one gateway."""

    def __init__(self, places: int = MOST_LISTENERS) -> None:
        self._free = places

    @contextlib.contextmanager
    def taken(self) -> Iterator[bool]:
        """Take a place for as long as the block lasts; false where there is none."""
        has_place = self._free > 0
        self._free -= has_place
        try:
            yield has_place
        finally:
            self._free += has_place


def beginning(now: datetime, since: datetime | None, after: UUID | None) -> datetime:
    """Return from when on somebody hears who wants events since a moment, or has heard of everything up to one event.

    Raises:
        InvalidValue: that is longer ago than listeners may go back.
    """
    # Both may be given: somebody who goes on does not want what was before the beginning either.
    moments = [now] if since is None and after is None else [] if since is None else [since]
    if after is not None:
        moments.append(ids.made_at(after) - OVERLAP)
    begins = max(moments)
    if begins < now - LONGEST_BACK - OVERLAP:
        where = "since" if since is not None else "after"
        raise InvalidValue(f"at most {LONGEST_BACK // timedelta(hours=1)} hours back; begin later", where)
    return begins


def describe(settings: Settings, event: Event) -> Heard:
    """Return an event as a listener gets it."""
    provider, options = _scheme(settings, event)
    return Heard(
        id=ids.show(ids.EVENT if event.origin is Origin.RECEIVED else ids.MESSAGE, event.id),
        source=event.source,
        application=event.application,
        type=event.type,
        origin=event.origin,
        accepted_at=event.accepted_at,
        provider=provider,
        options=options,
        dedup_key=event.dedup_key,
        headers=dict(event.headers),
        content_type=event.content_type,
        body=event.body,
    )


def _scheme(settings: Settings, event: Event) -> tuple[str | None, dict[str, Any]]:
    """Return how an event is signed anew: the provider, and those of its settings that hold no secret."""
    if event.origin is Origin.PUBLISHED:
        return MESSAGE_SCHEME, {}
    source = settings.sources.get(event.source or "")
    if source is None:
        return None, {}
    try:
        recipe = find(source.provider)
    except ConfigError:
        return None, {}
    shown = {setting.name for setting in recipe.settings if not setting.is_secret} | {"scheme"}
    return recipe.name, {name: value for name, value in source.options.items() if name in shown}
