"""Reads summaries for operators: of the store, of sources, and of one recipient, a handler or an endpoint.

Each query reads a bounded number of rows by index, and is therefore fast at any size.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from boathook.db.database import Connection, Database
from boathook.db.statements import load
from boathook.domain import ids
from boathook.domain.model import State

SQL = load(__file__)
MAX_COUNTED: Final = 1_000
"""Maximum of each count of the store, and of a source's rejections."""
MAX_BACKLOG: Final = 10_000
"""Maximum of each count of a recipient."""
MAX_SCANNED: Final = 10_000
"""Number of latest events that are searched for the latest event of each source."""
_MAX_SCHEDULED: Final = 200
"""Number of scheduled deliveries that are searched for failed ones."""


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


class LatestSourceEvent(msgspec.Struct, frozen=True):
    """The latest event of a source."""

    id: UUID
    type: str

    @property
    def accepted_at(self) -> datetime:
        """When it was accepted."""
        return ids.created_at(self.id)


class RejectionSummary(msgspec.Struct, frozen=True):
    """The rejections at a source."""

    lately: int
    """Stored rejections of the last day, counted up to `MAX_COUNTED`."""
    id: UUID | None
    """The latest rejection."""
    reason: str | None
    detail: str | None

    @property
    def refused_at(self) -> datetime | None:
        """When the latest rejection happened."""
        return None if self.id is None else ids.created_at(self.id)


async def list_latest_by_source(connection: Connection) -> Mapping[str, LatestSourceEvent]:
    """Return the latest event of each source, among the latest `MAX_SCANNED` of all."""
    rows = await connection.fetch(SQL["list_latest_by_source"], MAX_SCANNED)
    return {row["source"]: LatestSourceEvent(row["id"], row["type"]) for row in rows}


async def find_latest_of_source(connection: Connection, source: str) -> LatestSourceEvent | None:
    """Return the latest event of one source, among the latest `MAX_SCANNED` of all."""
    row = await connection.fetchrow(SQL["find_latest_of_source"], MAX_SCANNED, source)
    return None if row is None else LatestSourceEvent(row["id"], row["type"])


async def summarize_rejections(connection: Connection, sources: Sequence[str]) -> Mapping[str, RejectionSummary]:
    """Return the rejections at each of these sources."""
    since = ids.first_of(datetime.now(UTC) - timedelta(days=1))
    rows = await connection.fetch(SQL["list_refusals"], list(sources), since, MAX_COUNTED)
    return {row["source"]: RejectionSummary(row["lately"], row["id"], row["reason"], row["detail"]) for row in rows}


class RecipientBacklog(msgspec.Struct, frozen=True):
    """A recipient's pending deliveries and dead letters, each counted up to `MAX_BACKLOG`."""

    pending: int
    dead: int
    oldest_due_at: datetime | None
    """Since when its oldest due delivery is due; None if none is."""


class FailedDelivery(msgspec.Struct, frozen=True):
    """A dead letter, or a failed delivery that is scheduled for a retry."""

    event_id: UUID
    ordinal: int
    state: State
    attempts: int
    at: datetime
    """When it failed permanently, or when the next attempt is due."""
    code: str
    error: str | None
    """The beginning of the error."""
    type: str

    @property
    def is_dead(self) -> bool:
        """Whether it is a dead letter."""
        return self.state is State.DEAD

    @property
    def shown_id(self) -> str:
        """The delivery's public id."""
        return ids.show_delivery(self.event_id, self.ordinal)


async def count_backlog(connection: Connection, recipient: str) -> RecipientBacklog:
    """Count a recipient's pending deliveries and dead letters."""
    (row,) = await connection.fetch(SQL["count_backlog"], recipient, MAX_BACKLOG)
    return RecipientBacklog(min(row["pending"], MAX_BACKLOG), row["dead"], row["oldest_due_at"])


async def list_failures(connection: Connection, recipient: str, *, limit: int) -> Sequence[FailedDelivery]:
    """Return a recipient's latest dead letters, and then its failed deliveries that are retried next.

    Args:
        connection: reads them.
        recipient: the handler or endpoint.
        limit: maximum number of each.
    """
    rows = await connection.fetch(SQL["list_failures"], recipient, limit, _MAX_SCHEDULED)
    return [FailedDelivery(**{**dict(row), "state": State(row["state"])}) for row in rows]
