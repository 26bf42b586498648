"""Summaries of sources for operators; each query reads a bounded number of rows."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from boathook.db.database import Connection
from boathook.db.statements import load
from boathook.domain import ids

SQL = load(__file__)
MAX_SCANNED: Final = 10_000
"""Number of latest events that are searched for the latest event of each source."""
MAX_COUNTED: Final = 1_000


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


async def latest_events(connection: Connection) -> Mapping[str, LatestSourceEvent]:
    """Return the latest event of each source, among the latest `MAX_SCANNED` of all."""
    rows = await connection.fetch(SQL["list_latest_events"], MAX_SCANNED)
    return {row["source"]: LatestSourceEvent(row["id"], row["type"]) for row in rows}


async def latest_event_of(connection: Connection, source: str) -> LatestSourceEvent | None:
    """Return the latest event of one source, among the latest `MAX_SCANNED` of all."""
    row = await connection.fetchrow(SQL["find_latest_event"], MAX_SCANNED, source)
    return None if row is None else LatestSourceEvent(row["id"], row["type"])


async def summarize_rejections(connection: Connection, sources: Sequence[str]) -> Mapping[str, RejectionSummary]:
    """Return the rejections at each of these sources."""
    since = ids.first_of(datetime.now(UTC) - timedelta(days=1))
    rows = await connection.fetch(SQL["list_refusals"], list(sources), since, MAX_COUNTED)
    return {row["source"]: RejectionSummary(row["lately"], row["id"], row["reason"], row["detail"]) for row in rows}
