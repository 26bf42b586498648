"""Groups rejected requests and conflicts by their cause.

The cause of a rejection is its reason, of a conflict what differs. A rejection that was accepted since is in no group.
"""

from datetime import datetime
from typing import Final

import msgspec

from boathook.db.database import Database, Record
from boathook.db.dead_letter_groups import hourly_counts
from boathook.db.queries.listings import ListFilter
from boathook.db.statements import load
from boathook.domain import ids

SQL = load(__file__)

MAX_GROUPS: Final = 300
"""Groups in one list."""
MAX_COUNTED: Final = 10_000
"""Requests of a group that are counted."""


class RequestGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Rejected requests, or conflicts, of one source or application with the same cause."""

    source: str | None
    application: str | None
    cause: str
    """The reason of the rejections, or what differs in the conflicts: ``body`` or ``key``."""
    number: int
    """How many are stored; counted up to `MAX_COUNTED`."""
    first_seen: datetime
    last_seen: datetime
    newest_id: str
    hourly: tuple[int, ...]
    """How many came in each of the last 24 hours, oldest hour first."""

    @property
    def origin(self) -> str:
        """The source or application; ``no source`` for requests to a path of none."""
        return self.source or self.application or "no source"


async def list_rejection_groups(database: Database, filters: ListFilter) -> list[RequestGroup]:
    """Return the groups of rejections of a source and with a reason, largest first; `MAX_GROUPS` at most."""
    rows = await database.fetch(SQL["list_rejections"], filters.source, filters.code, MAX_GROUPS, MAX_COUNTED)
    return _groups(ids.REJECTION, rows)


async def list_conflict_groups(database: Database, filters: ListFilter) -> list[RequestGroup]:
    """Return the groups of conflicts of a source or application and with a difference, as `list_rejection_groups`."""
    filter_arguments = (filters.source, filters.application, filters.code)
    return _groups(
        ids.CONFLICT, await database.fetch(SQL["list_conflicts"], *filter_arguments, MAX_GROUPS, MAX_COUNTED)
    )


def _groups(prefix: str, rows: list[Record]) -> list[RequestGroup]:
    groups = [
        RequestGroup(
            source=row["source"],
            application=row["application"],
            cause=row["cause"],
            number=row["number"],
            first_seen=ids.created_at(row["first_id"]),
            last_seen=row["last_seen"],
            newest_id=ids.show(prefix, row["newest_id"]),
            hourly=hourly_counts(row["hours"], row["numbers"]),
        )
        for row in rows
    ]
    return sorted(groups, key=lambda group: (-group.number, group.origin, group.cause))
