"""What operators want to see of sources at a glance; each look is bounded, however much is stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from boathook.db.database import Connection
from boathook.db.statements import load
from boathook.domain import ids

SQL = load(__file__)
MAX_SCANNED: Final = 10_000
"""Events among which the latest of each source is looked for."""
MAX_COUNTED: Final = 1_000


@dataclass(frozen=True, slots=True)
class LatestSourceEvent:
    """The latest event of a source."""

    id: UUID
    type: str

    @property
    def accepted_at(self) -> datetime:
        """When it was accepted."""
        return ids.created_at(self.id)


@dataclass(frozen=True, slots=True)
class RejectionSummary:
    """What was refused at a source."""

    lately: int
    """Refusals kept of the last day, counted up to `MAX_COUNTED`."""
    id: UUID | None
    """The latest one."""
    reason: str | None
    detail: str | None

    @property
    def refused_at(self) -> datetime | None:
        """When the latest one came."""
        return None if self.id is None else ids.created_at(self.id)


async def latest_events(connection: Connection) -> Mapping[str, LatestSourceEvent]:
    """Return the latest event of each source that is among the latest `MAX_SCANNED` of all."""
    rows = await connection.fetch(SQL["list_latest_events"], MAX_SCANNED)
    return {row["source"]: LatestSourceEvent(row["id"], row["type"]) for row in rows}


async def summarize_rejections(connection: Connection, sources: Sequence[str]) -> Mapping[str, RejectionSummary]:
    """Return what was refused at each of these sources."""
    since = ids.first_of(datetime.now(UTC) - timedelta(days=1))
    rows = await connection.fetch(SQL["list_refusals"], list(sources), since, MAX_COUNTED)
    return {row["source"]: RejectionSummary(row["lately"], row["id"], row["reason"], row["detail"]) for row in rows}
