"""Checks the integrity of the store, for the command line; `catalogue.integrity` starts checks in the background."""

from datetime import datetime
from typing import Final

from boathook.config import Settings
from boathook.db import integrity
from boathook.db.database import Database
from boathook.db.integrity import Balance as Balance  # noqa: PLC0414 - re-exported
from boathook.db.integrity import CheckProgress as CheckProgress  # noqa: PLC0414 - re-exported
from boathook.db.integrity import IntegrityReport as IntegrityReport  # noqa: PLC0414 - re-exported
from boathook.db.integrity import ProgressCallback as ProgressCallback  # noqa: PLC0414 - re-exported
from boathook.db.integrity import Violation as Violation  # noqa: PLC0414 - re-exported
from boathook.ingest.sources import checked_days_by_source
from boathook.service.database import with_stored_sources

QUERY_TIMEOUT_S: Final = 300.0
"""Statement timeout of a check; one query takes a fraction of a second if PostgreSQL is healthy."""
GENTLE_PAUSE_RATIO: Final = 3.0
"""Pause after each query of a gentle check, as a multiple of the query's duration."""


async def check(
    database: Database,
    settings: Settings,
    *,
    is_deep: bool = False,
    is_gentle: bool = False,
    since: datetime | None = None,
    until: datetime | None = None,
    progress: ProgressCallback | None = None,
) -> IntegrityReport:
    """Check the store and return the totals with every violation.

    Args:
        database: opened with `QUERY_TIMEOUT_S`.
        settings: contain the retention of dedup keys.
        is_deep: also compare each stored body with its hash.
        is_gentle: pause between queries.
        since: check only what was accepted or rejected from this time on.
        until: check only what was accepted or rejected before this time.
        progress: called before each query.

    Raises:
        DatabaseError: PostgreSQL is unavailable, too busy, or refuses a statement.
    """
    settings = await with_stored_sources(settings, database)
    return await integrity.check_integrity(
        database,
        dedup_days=settings.retention.dedup_days,
        dedup_days_of=checked_days_by_source(settings),
        is_deep=is_deep,
        since=since,
        until=until,
        rest=GENTLE_PAUSE_RATIO if is_gentle else 0.0,
        progress=progress,
    )
