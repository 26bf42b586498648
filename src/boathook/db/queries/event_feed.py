"""Reads events as they are committed, for those who listen."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from boathook.db.database import Database
from boathook.db.events import to_event
from boathook.db.queries.listings import like_pattern
from boathook.db.statements import load
from boathook.domain import ids
from boathook.domain.model import DEFAULT_ORGANIZATION, Event

SQL = load(__file__)
_LAST: Final = UUID(int=(1 << 128) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedFilter:
    """Which events somebody wants to hear of; None lets everything through."""

    organization: str = DEFAULT_ORGANIZATION
    source: str | None = None
    application: str | None = None
    """Its id or uid, or a name that is neither."""
    type: str | None = None
    """A pattern of the event's type or, of a batch, an item's; ``*`` stands for any run of characters."""


class EventRef(NamedTuple):
    """An event that was found and not read yet."""

    id: UUID
    size: int
    """Bytes of its body."""


async def find_ids(
    database: Database, wish: FeedFilter, first: UUID, until: datetime | None, *, most: int
) -> list[EventRef]:
    """Return the events from one on, oldest first, at most so many.

    Args:
        first: inclusive.
        until: when ids that are looked at were made before; None: no end.
    """
    last = _LAST if until is None else UUID(int=ids.first_of(until).int - 1)
    rows = await database.fetch(
        SQL["find_heard"], first, last, wish.organization, wish.source, wish.application, like_pattern(wish.type), most
    )
    return [EventRef(row["id"], row["size"]) for row in rows]


async def read_events(database: Database, events: Sequence[UUID]) -> list[Event]:
    """Return events with their bytes, oldest first; those that retention has dropped meanwhile are left out."""
    return [to_event(row) for row in await database.fetch(SQL["read_heard"], list(events))]
