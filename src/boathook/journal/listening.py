"""Reads events as they are committed, for those who listen."""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Final
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


async def hear(
    database: Database, wish: Wish, since: datetime, until: datetime | None, *, heard: Collection[UUID], most: int
) -> list[Event]:
    """Return events whose ids were made within a span of time, oldest first, at most so many.

    Args:
        since: inclusive.
        until: exclusive; None: no end.
        heard: those to leave out.
    """
    last = _LAST if until is None else UUID(int=ids.first_of(until).int - 1)
    rows = await database.fetch(
        SQL["hear"], ids.first_of(since), last, wish.organization, wish.source, wish.application, like(wish.type),
        list(heard), most,
    )  # fmt: skip
    return [to_event(row) for row in rows]
