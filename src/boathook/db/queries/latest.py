"""Reads the newest events and dead letters, and counts what is open, by index and therefore fast at any size."""

from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from boathook.db.database import Connection, Database
from boathook.db.statements import load
from boathook.domain import ids

SQL = load(__file__)
MAX_COUNTED: Final = 1_000
"""Maximum of each count of `count_open`."""


class LatestEvent(msgspec.Struct, frozen=True):
    """A recent event."""

    id: UUID
    origin: str
    """The source or, for a published message, the application."""
    is_published: bool
    type: str
    dedup_key: str
    accepted_at: datetime

    @property
    def shown_id(self) -> str:
        """The public id."""
        return ids.show(ids.EVENT, self.id)


class LatestDeadLetter(msgspec.Struct, frozen=True):
    """A recent dead letter."""

    event_id: UUID
    ordinal: int
    recipient: str
    code: str
    error: str | None
    """The beginning of the error."""
    dead_at: datetime

    @property
    def shown_id(self) -> str:
        """The delivery's public id."""
        return ids.show_delivery(self.event_id, self.ordinal)


async def read_latest_events(database: Database, number: int) -> list[LatestEvent]:
    """Return the latest events, newest first."""
    return [LatestEvent(**dict(row)) for row in await database.fetch(SQL["read_latest_events"], number)]


async def read_latest_dead_letters(database: Database, number: int) -> list[LatestDeadLetter]:
    """Return the latest dead letters, newest first."""
    return [LatestDeadLetter(**dict(row)) for row in await database.fetch(SQL["read_latest_dead"], number)]


class OpenCounts(msgspec.Struct, frozen=True):
    """Counts of objects that need an operator's attention, each at most `MAX_COUNTED`."""

    dead_letters: int = 0
    rejections: int = 0
    """Requests rejected in the last day and not accepted since."""
    conflicts: int = 0
    """Conflicts first seen in the last day."""
    firing: int = 0
    """Firing alerts that are not silenced."""
    critical: int = 0
    """The critical ones of these alerts."""


async def count_open(connection: Connection) -> OpenCounts:
    """Count dead letters, recent rejections and conflicts, and firing alerts."""
    row = await connection.fetchrow(SQL["count_open"], MAX_COUNTED)
    assert row is not None  # one row of counts
    return OpenCounts(**dict(row))
