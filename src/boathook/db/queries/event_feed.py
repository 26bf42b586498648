"""Reads committed events for feeds."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from boathook.db import events
from boathook.db.database import Database
from boathook.db.queries import listings
from boathook.db.queries.listings import like_pattern
from boathook.db.statements import load
from boathook.domain import ids
from boathook.domain.model import DEFAULT_ORGANIZATION, Event

SQL = load(__file__, fragments_of=(events.__file__, listings.__file__))
_LAST: Final = UUID(int=(1 << 128) - 1)


class FeedFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects the events of a feed; None matches everything."""

    organization: str = DEFAULT_ORGANIZATION
    source: str | None = None
    application: str | None = None
    """Its id or uid, or a name that is neither."""
    type: str | None = None
    """A pattern for the event's type or, for a batch, an item's type; ``*`` matches any characters."""


class EventRef(NamedTuple):
    """An event that was found but not read yet."""

    id: UUID
    size: int
    """Size of its body in bytes."""


async def find_ids(
    database: Database, event_filter: FeedFilter, first: UUID, until: datetime | None, *, limit: int
) -> list[EventRef]:
    """Return at most *limit* events, oldest first.

    Args:
        first: lowest id, inclusive.
        until: only events whose ids were generated before this time; None: no limit.
    """
    last = _LAST if until is None else UUID(int=ids.first_of(until).int - 1)
    rows = await database.fetch(
        SQL["find_matching"],
        first,
        last,
        event_filter.organization,
        event_filter.source,
        event_filter.application,
        like_pattern(event_filter.type),
        limit,
    )
    return [EventRef(row["id"], row["size"]) for row in rows]


async def read_events(database: Database, event_ids: Sequence[UUID]) -> list[Event]:
    """Return events with their bodies, oldest first; those that retention has deleted meanwhile are left out."""
    return [events.to_event(row) for row in await database.fetch(SQL["read_events"], list(event_ids))]
