"""Finds the ids in a range, for ids that are given by their beginning."""

from collections.abc import Mapping
from typing import Final
from uuid import UUID

from boathook.db.database import Connection, Database
from boathook.db.queries import listings
from boathook.db.statements import load
from boathook.domain import ids

SQL = load(__file__, fragments_of=(listings.__file__,))
_STATEMENTS: Final[Mapping[str, str]] = {
    ids.EVENT: "find_events",
    ids.MESSAGE: "find_events",
    ids.DEAD_GROUP: "find_dead_groups",
    ids.REJECTION: "find_rejections",
    ids.CONFLICT: "find_conflicts",
    ids.APPLICATION: "find_applications",
    ids.ENDPOINT: "find_endpoints",
    ids.API_KEY: "find_api_keys",
    ids.OPERATOR_TOKEN: "find_operator_tokens",
    ids.SOURCE_SECRET: "find_source_secrets",
    ids.SILENCE: "find_silences",
    ids.TASK: "find_tasks",
}


async def find_ids(
    database: Database | Connection, prefix: str, first: UUID, last: UUID, *, limit: int, organization: str | None
) -> list[UUID]:
    """Return the ids of one kind from *first* to *last*, at most *limit*, of one organization or of all."""
    return [row["id"] for row in await database.fetch(SQL[_STATEMENTS[prefix]], first, last, limit, organization)]


async def find_deliveries(
    database: Database | Connection, first: UUID, last: UUID, *, limit: int, organization: str | None
) -> list[tuple[UUID, int]]:
    """Return the keys of the deliveries of the events from *first* to *last*, as `find_ids` does."""
    rows = await database.fetch(SQL["find_deliveries"], first, last, limit, organization)
    return [(row["event_id"], row["ordinal"]) for row in rows]
