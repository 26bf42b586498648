"""Reads events as they are committed, for those who listen."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, NamedTuple
from uuid import UUID

from boathook.domain import ids
from boathook.domain.model import DEFAULT_ORGANIZATION, Event
from boathook.journal.database import Database
from boathook.journal.events import to_event
from boathook.journal.ledger import like
from boathook.journal.statements import load

SQL = load(__file__)
_LAST: Final = UUID(int=(1 << 128) - 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """Which events somebody wants to hear of; None lets everything through."""

    organization: str = DEFAULT_ORGANIZATION
    source: str | None = None
    application: str | None = None
    """Its id or uid, or a name that is neither."""
    type: str | None = None
    """A pattern of the event's type or, of a batch, an item's; ``*`` stands for any run of characters."""


class Seen(NamedTuple):
    """An event that was found and not read yet."""

    id: UUID
    size: int
    """Bytes of its body."""


async def find_ids(database: Database, wish: Wish, first: UUID, until: datetime | None, *, most: int) -> list[Seen]:
    """Return the events from one on, oldest first, at most so many.

    Args:
        first: inclusive.
        until: when ids that are looked at were made before; None: no end.
    """
    last = _LAST if until is None else UUID(int=ids.first_of(until).int - 1)
    rows = await database.fetch(
        SQL["find_heard"], first, last, wish.organization, wish.source, wish.application, like(wish.type), most
    )
    return [Seen(row["id"], row["size"]) for row in rows]


async def read_events(database: Database, events: Sequence[UUID]) -> list[Event]:
    """Return events with their bytes, oldest first; those that retention has dropped meanwhile are left out."""
    return [to_event(row) for row in await database.fetch(SQL["read_heard"], list(events))]
