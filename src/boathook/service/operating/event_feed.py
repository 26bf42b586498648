"""Yields each accepted event once, soon after its commit, and resumes after a lost connection.

Ids are created before the commit, so they are not in commit order: an event committed just now may have an older id
than one that was emitted long ago. Therefore the last minute is scanned repeatedly, and emitted events are skipped.
Only events that take longer from id to commit are missed: those that a gateway spooled while PostgreSQL was
unavailable, and those published in a transaction that stayed open for more than a minute.
"""

import contextlib
from collections import deque
from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from boathook.config import Settings
from boathook.db.database import Database
from boathook.db.queries.event_feed import EventRef, find_ids, read_events
from boathook.db.queries.event_feed import FeedFilter as FeedFilter  # noqa: PLC0414 - re-exported
from boathook.domain import ids
from boathook.domain.errors import ConfigError, InvalidValue
from boathook.domain.model import Event
from boathook.providers import find_recipe

OVERLAP: Final = timedelta(seconds=60)
"""Maximum time from an event's id to its commit for the event to be emitted."""
MAX_LOOKBACK: Final = timedelta(days=1)
"""How far back a listener may start."""
MAX_LISTENERS: Final = 16
"""Maximum number of listeners of one gateway; each runs two short queries per second."""
RESUME_OVERLAP: Final = OVERLAP + timedelta(seconds=10)
"""How far before its last event a returning listener starts. An event as old as the overlap may not have been emitted
when others of its time were.
"""
RECENT_WINDOW: Final = timedelta(seconds=5)
"""How far back most scans go; nearly all events are committed much sooner."""
_FULL_SCAN_INTERVAL: Final = timedelta(seconds=5)
"""Interval between scans that go back as far as the overlap."""
_CATCH_UP_WINDOW: Final = timedelta(minutes=1)
"""Range of one scan while catching up, so that each takes a short time for any filter."""
_PAGE: Final = 25
"""Maximum number of events per poll."""
_PAGE_BYTES: Final = 8 * 1_048_576
"""Maximum bytes of their bodies; the first event may exceed it."""
MAX_IDS: Final = 20_000
"""Maximum number of ids per query."""
MESSAGE_SCHEME: Final = "standard-webhooks"
"""The signature scheme of our own messages, as a provider's name."""


class FeedEvent(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An event as a listener receives it."""

    id: str
    source: str | None
    application: str | None
    type: str
    origin: str
    accepted_at: datetime
    provider: str | None
    """The provider that signs it when it is forwarded; None if its source is no longer configured."""
    options: dict[str, Any]
    """The provider's settings, without secrets."""
    dedup_key: str
    headers: dict[str, str]
    """As stored: without credentials and signatures."""
    content_type: str
    body: bytes

    @property
    def event_id(self) -> UUID:
        """Its id as in the database."""
        return ids.read_event(self.id)


class _Scan(msgspec.Struct, frozen=True):
    """One scan of a range of ids, in one or more queries."""

    began: datetime
    first: UUID
    """First id of the next query."""
    until: datetime | None = None
    """End of a range in the past; None scans up to now."""
    is_near: bool = False
    """Whether it goes back less far than the overlap."""


class EventFeed:
    """The events that match one listener's filter, from a given time on.

    Args:
        database: the database.
        event_filter: the filter.
        since: events with older ids are skipped.
    """

    def __init__(self, database: Database, event_filter: FeedFilter, since: datetime) -> None:
        self._database = database
        self._filter = event_filter
        self._since = since
        """All events before this time were found."""
        self._seen: set[UUID] = set()
        """Found events that a later scan may find again."""
        self._waiting: deque[EventRef] = deque()
        """Found events that were not emitted yet."""
        self._in_progress: _Scan | None = None
        self._swept_at = self._whole_at = since
        """Start of the last scan, and of the last one that went back as far as the overlap."""
        self._is_behind = False

    @property
    def caught_up_to(self) -> datetime:
        """Every event before this time has been emitted once the latest batch is consumed."""
        return min(self._since, ids.created_at(self._waiting[0].id)) if self._waiting else self._since

    async def poll(self, now: datetime) -> tuple[list[Event], bool]:
        """Return the next events, oldest first, and whether more may be available immediately.

        Raises:
            DatabaseUnavailable: PostgreSQL is unavailable; the next poll continues where this one started.
        """
        if not self._waiting:
            await self._find(self._in_progress or self._begin(now))
        page_ids = self._page()
        events = await read_events(self._database, page_ids) if page_ids else []
        for _ in page_ids:
            self._waiting.popleft()
        return events, bool(self._waiting) or self._is_behind

    def _page(self) -> list[UUID]:
        page_ids: list[UUID] = []
        size = 0
        for ref in islice(self._waiting, _PAGE):
            size += ref.size
            if page_ids and size > _PAGE_BYTES:
                break
            page_ids.append(ref.id)
        return page_ids

    def _begin(self, now: datetime) -> _Scan:
        """Start a scan of the next range in the past or, if caught up, up to now."""
        end = self._since + _CATCH_UP_WINDOW
        if end < now - OVERLAP:
            return _Scan(now, ids.first_of(self._since), end)
        is_recent = self._whole_at <= now < self._whole_at + _FULL_SCAN_INTERVAL
        # Start from the previous scan, not from now: a delayed listener has seen nothing meanwhile.
        since = max(self._since, self._swept_at - RECENT_WINDOW) if is_recent else self._since
        return _Scan(now, ids.first_of(since), is_near=is_recent)

    async def _find(self, scan: _Scan) -> None:
        """Find events that were not found before."""
        refs = await find_ids(self._database, self._filter, scan.first, scan.until, limit=MAX_IDS)
        new_refs = [ref for ref in refs if ref.id not in self._seen]
        self._waiting.extend(new_refs)
        self._seen.update(ref.id for ref in new_refs)
        is_whole = len(refs) < MAX_IDS
        self._in_progress = None if is_whole else replace(scan, first=UUID(int=refs[-1].id.int + 1))
        self._is_behind = not is_whole or scan.until is not None
        if is_whole:
            self._end(scan)

    def _end(self, scan: _Scan) -> None:
        self._swept_at = scan.began
        if scan.is_near:
            return
        if scan.until is None:
            self._whole_at = scan.began
        # Use the start of the scan: an event committed since may have an id in the range it had already passed.
        self._since = scan.until or max(self._since, scan.began - OVERLAP)
        first = ids.first_of(self._since)
        self._seen = {event_id for event_id in self._seen if event_id >= first}


class ListenerSlots:
    """Limits the number of listeners of one gateway."""

    def __init__(self, places: int = MAX_LISTENERS) -> None:
        self._free = places

    @contextlib.contextmanager
    def acquire(self) -> Iterator[bool]:
        """Hold a slot for the duration of the block; yield False if none is free."""
        has_slot = self._free > 0
        self._free -= has_slot
        try:
            yield has_slot
        finally:
            self._free += has_slot


def feed_start(now: datetime, since: datetime | None, after: UUID | None) -> datetime:
    """Return the start time of a listener that requests events since a time, or continues after its last event.

    Raises:
        InvalidValue: the start is further back than listeners may go.
    """
    # Both may be given: a listener that resumes gets no events before its original start either.
    starts = [now] if since is None and after is None else [] if since is None else [since]
    if after is not None:
        # Not later than now, as the clock that created the id may be ahead.
        starts.append(min(now, ids.created_at(after)) - RESUME_OVERLAP)
    start = max(starts)
    if start < now - MAX_LOOKBACK - RESUME_OVERLAP:
        field = "since" if since is not None else "after"
        raise InvalidValue(f"at most {MAX_LOOKBACK // timedelta(hours=1)} hours back; begin later", field)
    return start


def to_feed_event(settings: Settings, event: Event) -> FeedEvent:
    """Return an event as a listener receives it."""
    provider, options = _scheme(settings, event)
    return FeedEvent(
        id=ids.show(ids.MESSAGE if event.source is None else ids.EVENT, event.id),
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
    """Return whether the provider sends this event by GET, so that its body is the query string."""
    if event.provider is None:
        return False
    recipe = find_recipe(event.provider)
    return recipe.schemes.get(str(event.options.get("scheme")), recipe).methods == {"GET"}


def _scheme(settings: Settings, event: Event) -> tuple[str | None, dict[str, Any]]:
    """Return how to sign an event again: the provider, and its settings without secrets."""
    if event.source is None:
        return MESSAGE_SCHEME, {}
    source = settings.sources.get(event.source or "")
    if source is None:
        return None, {}
    try:
        recipe = find_recipe(source.provider)
    except ConfigError:
        return None, {}
    public_names = {setting.name for setting in recipe.settings if not setting.is_secret} | {"scheme"}
    return recipe.name, {name: value for name, value in source.options.items() if name in public_names}
