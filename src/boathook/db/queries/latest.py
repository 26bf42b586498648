"""What happened last: the newest events and dead letters, found by index however many there are."""

from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from boathook.db.database import Database
from boathook.db.statements import load
from boathook.domain import ids

SQL = load(__file__)


@dataclass(frozen=True, slots=True)
class LatestEvent:
    """An event that came lately."""

    id: UUID
    origin: str
    """The source, or of what was published the application."""
    is_published: bool
    type: str
    dedup_key: str
    accepted_at: datetime

    @property
    def shown_id(self) -> str:
        """The id as people see it."""
        return ids.show(ids.EVENT, self.id)


@dataclass(frozen=True, slots=True)
class LatestDeadLetter:
    """A delivery that died lately."""

    event_id: UUID
    ordinal: int
    recipient: str
    code: str
    error: str | None
    """Its beginning."""
    dead_at: datetime

    @property
    def shown_id(self) -> str:
        """The delivery's id as people see it."""
        return ids.show_delivery(self.event_id, self.ordinal)


async def read_latest_events(database: Database, number: int) -> list[LatestEvent]:
    """Return the events that came last, the newest first."""
    return [LatestEvent(**dict(row)) for row in await database.fetch(SQL["read_latest_events"], number)]


async def read_latest_dead_letters(database: Database, number: int) -> list[LatestDeadLetter]:
    """Return the dead letters that died last, the newest first."""
    return [LatestDeadLetter(**dict(row)) for row in await database.fetch(SQL["read_latest_dead"], number)]
