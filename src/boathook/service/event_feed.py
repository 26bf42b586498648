"""Yields each accepted event once, soon after its commit, and resumes after a lost connection.

Ids are made before the commit, so the order of ids is not that of commits: what was committed a moment ago may have an
id older than what was heard long before. Therefore the last minute is looked through again and again, and what was
heard of it left out. Only what takes longer from its id to its commit is missed: what a gateway had in its spool while
PostgreSQL was away, and what a transaction published that stayed open for more than a minute.
"""

import contextlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final
from uuid import UUID

import msgspec

from boathook.config import Settings
from boathook.db.database import Database
from boathook.db.queries.event_feed import EventRef, find_ids, read_events
from boathook.db.queries.event_feed import FeedFilter as FeedFilter  # noqa: PLC0414 - what a feed is asked for
from boathook.domain import ids
from boathook.domain.errors import ConfigError, InvalidValue
from boathook.domain.model import Event, Origin
from boathook.providers import find_recipe

OVERLAP: Final = timedelta(seconds=60)
"""How long an event may take from its id to its commit and still be heard."""
MAX_LOOKBACK: Final = timedelta(days=1)
"""How far back somebody may begin."""
MAX_LISTENERS: Final = 16
"""Of one gateway; each costs two short looks a second."""
RESUME_OVERLAP: Final = OVERLAP + timedelta(seconds=10)
"""How far before the last event somebody begins who comes again: one as old as the overlap may not have been told of
when others of that moment were."""
_RECENT_WINDOW: Final = timedelta(seconds=5)
"""How far most looks go back; nearly everything is committed much sooner."""
_FULL_SCAN_INTERVAL: Final = timedelta(seconds=5)
"""How long after one that goes back as far as the overlap looks only go so far."""
_CATCH_UP_WINDOW: Final = timedelta(minutes=1)
"""What one look covers while there is much to catch up with, so that none takes long whatever is looked for."""
_PAGE: Final = 25
"""Events of one look."""
_PAGE_BYTES: Final = 8 * 1_048_576
"""Of their bodies, unless the first alone has more."""
_MAX_IDS: Final = 20_000
"""Ids of one statement."""
MESSAGE_SCHEME: Final = "standard-webhooks"
"""How messages of our own are signed, as a provider's name."""


class FeedEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
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


@dataclass(frozen=True, slots=True)
class _Scan:
    """One look through a stretch of ids, in as many statements as it takes."""

    began: datetime
    first: UUID
    """Where the next statement begins."""
    until: datetime | None = None
    """Where a stride of the past ends; None: it goes up to now."""
    is_near: bool = False
    """Whether it does not go back as far as the overlap."""


class EventFeed:
    """The events one listener wants, from a moment on.

    Args:
        since: ids older than this are not looked at.
    """

    def __init__(self, database: Database, wish: FeedFilter, since: datetime) -> None:
        self._database = database
        self._wish = wish
        self._since = since
        """Everything older was found."""
        self._heard: set[UUID] = set()
        """Those that a look may find again."""
        self._waiting: deque[EventRef] = deque()
        """Those found and not told of yet."""
        self._under_way: _Scan | None = None
        self._swept_at = self._whole_at = since
        """When a sweep began last, and one that went back as far as the overlap."""
        self._is_behind = False

    @property
    def caught_up_to(self) -> datetime:
        """Before when everything has been told of, once what the latest look returned has been."""
        return min(self._since, ids.created_at(self._waiting[0].id)) if self._waiting else self._since

    async def poll(self, now: datetime) -> tuple[list[Event], bool]:
        """Return what there is to hear, oldest first, and whether there may be more of it at once.

        Raises:
            DatabaseUnavailable: PostgreSQL is away; another look goes on where this one began.
        """
        if not self._waiting:
            await self._find(self._under_way or self._begin(now))
        chosen = self._page()
        events = await read_events(self._database, chosen) if chosen else []
        for _ in chosen:
            self._waiting.popleft()
        return events, bool(self._waiting) or self._is_behind

    def _page(self) -> list[UUID]:
        chosen: list[UUID] = []
        size = 0
        for seen in islice(self._waiting, _PAGE):
            size += seen.size
            if chosen and size > _PAGE_BYTES:
                break
            chosen.append(seen.id)
        return chosen

    def _begin(self, now: datetime) -> _Scan:
        """Begin with a stride of the past or, once that is behind, with what is up to now."""
        end = self._since + _CATCH_UP_WINDOW
        if end < now - OVERLAP:
            return _Scan(now, ids.first_of(self._since), end)
        is_near = self._whole_at <= now < self._whole_at + _FULL_SCAN_INTERVAL
        # From the sweep before, and not from now: whoever was held up has seen nothing meanwhile.
        since = max(self._since, self._swept_at - _RECENT_WINDOW) if is_near else self._since
        return _Scan(now, ids.first_of(since), is_near=is_near)

    async def _find(self, sweep: _Scan) -> None:
        """Find what was not heard yet."""
        found = await find_ids(self._database, self._wish, sweep.first, sweep.until, most=_MAX_IDS)
        news = [seen for seen in found if seen.id not in self._heard]
        self._waiting.extend(news)
        self._heard.update(seen.id for seen in news)
        is_whole = len(found) < _MAX_IDS
        self._under_way = None if is_whole else replace(sweep, first=UUID(int=found[-1].id.int + 1))
        self._is_behind = not is_whole or sweep.until is not None
        if is_whole:
            self._end(sweep)

    def _end(self, sweep: _Scan) -> None:
        self._swept_at = sweep.began
        if sweep.is_near:
            return
        if sweep.until is None:
            self._whole_at = sweep.began
        # Of when it began: what was committed since may have an id among those it had passed by then.
        self._since = sweep.until or max(self._since, sweep.began - OVERLAP)
        first = ids.first_of(self._since)
        self._heard = {heard for heard in self._heard if heard >= first}


class ListenerSlots:
    """The places of listeners in one gateway."""

    def __init__(self, places: int = MAX_LISTENERS) -> None:
        self._free = places

    @contextlib.contextmanager
    def acquire(self) -> Iterator[bool]:
        """Take a place for as long as the block lasts; false where there is none."""
        has_place = self._free > 0
        self._free -= has_place
        try:
            yield has_place
        finally:
            self._free += has_place


def feed_start(now: datetime, since: datetime | None, after: UUID | None) -> datetime:
    """Return from when on somebody hears who wants events since a moment, or has heard of everything up to one event.

    Raises:
        InvalidValue: that is longer ago than listeners may go back.
    """
    # Both may be given: somebody who goes on does not want what was before the beginning either.
    moments = [now] if since is None and after is None else [] if since is None else [since]
    if after is not None:
        # No later than now, whatever the clock said by which its id was made.
        moments.append(min(now, ids.created_at(after)) - RESUME_OVERLAP)
    begins = max(moments)
    if begins < now - MAX_LOOKBACK - RESUME_OVERLAP:
        where = "since" if since is not None else "after"
        raise InvalidValue(f"at most {MAX_LOOKBACK // timedelta(hours=1)} hours back; begin later", where)
    return begins


def to_feed_event(settings: Settings, event: Event) -> FeedEvent:
    """Return an event as a listener gets it."""
    provider, options = _scheme(settings, event)
    return FeedEvent(
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


def arrives_by_get(event: FeedEvent) -> bool:
    """Return whether the provider of an event sends it by GET: its body is then the query of the request."""
    if event.provider is None:
        return False
    recipe = find_recipe(event.provider)
    return recipe.schemes.get(str(event.options.get("scheme")), recipe).methods == {"GET"}


def _scheme(settings: Settings, event: Event) -> tuple[str | None, dict[str, Any]]:
    """Return how an event is signed anew: the provider, and those of its settings that hold no secret."""
    if event.origin is Origin.PUBLISHED:
        return MESSAGE_SCHEME, {}
    source = settings.sources.get(event.source or "")
    if source is None:
        return None, {}
    try:
        recipe = find_recipe(source.provider)
    except ConfigError:
        return None, {}
    shown = {setting.name for setting in recipe.settings if not setting.is_secret} | {"scheme"}
    return recipe.name, {name: value for name, value in source.options.items() if name in shown}
