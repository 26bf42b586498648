"""What operators want to see of sources at a glance; each look is bounded, however much is stored."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from boathook.domain import ids
from boathook.journal.database import Connection
from boathook.journal.statements import load

SQL = load(__file__)
LOOKED_AT: Final = 10_000
"""Events among which the latest of each source is looked for."""
MOST_COUNTED: Final = 1_000


@dataclass(frozen=True, slots=True)
class LatestEvent:
    """The latest event of a source."""

    id: UUID
    type: str

    @property
    def accepted_at(self) -> datetime:
        """When it was accepted."""
        return ids.made_at(self.id)


@dataclass(frozen=True, slots=True)
class Refusals:
    """What was refused at a source."""

    lately: int
    """Refusals kept of the last day, counted up to `MOST_COUNTED`."""
    id: UUID | None
    """The latest one."""
    reason: str | None
    detail: str | None

    @property
    def refused_at(self) -> datetime | None:
        """When the latest one came."""
        return None if self.id is None else ids.made_at(self.id)


async def latest_events(connection: Connection) -> Mapping[str, LatestEvent]:
    """Return the latest event of each source that is among the latest `LOOKED_AT` of all."""
    rows = await connection.fetch(SQL["list_latest_events"], LOOKED_AT)
    return {row["source"]: LatestEvent(row["id"], row["type"]) for row in rows}


async def refusals(connection: Connection, sources: Sequence[str]) -> Mapping[str, Refusals]:
    """Return what was refused at each of these sources."""
    since = ids.first_of(datetime.now(UTC) - timedelta(days=1))
    rows = await connection.fetch(SQL["list_refusals"], list(sources), since, MOST_COUNTED)
    return {row["source"]: Refusals(row["lately"], row["id"], row["reason"], row["detail"]) for row in rows}
