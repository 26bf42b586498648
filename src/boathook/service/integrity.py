"""Checks the store: every accepted event is pending or ended exactly once, and nothing else is stored."""

from datetime import datetime
from typing import Final

from boathook.config import Settings
from boathook.db import integrity
from boathook.db.database import Database
from boathook.db.integrity import ProgressCallback as ProgressCallback  # noqa: PLC0414 - what these functions are asked for
from boathook.db.integrity_report import Balance as Balance  # noqa: PLC0414 - what these functions return
from boathook.db.integrity_report import CheckProgress as CheckProgress  # noqa: PLC0414 - what these functions return
from boathook.db.integrity_report import IntegrityReport as IntegrityReport  # noqa: PLC0414 - what these functions return
from boathook.db.integrity_report import Violation as Violation  # noqa: PLC0414 - what these functions return

QUERY_TIMEOUT_S: Final = 300.0
"""Statement timeout of a check; one query takes a fraction of a second if PostgreSQL is healthy."""
GENTLE_PAUSE_RATIO: Final = 3.0
"""Pause after each query of a gentle check, in times of what the query took."""


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
    """Check the store and return the balance with every violation.

    Args:
        database: opened with `QUERY_TIMEOUT_S`.
        settings: say how long keys are remembered.
        is_deep: also compare each stored body with its hash.
        is_gentle: pause between queries.
        since: check only what was accepted or rejected from this time on, and *until* before this one.
        progress: called before each query.

    Raises:
        DatabaseError: PostgreSQL is away, too busy, or refuses a statement.
    """
    # Imported only here, as it brings what reads the requests of providers.
    from boathook.ingest.sources import dedup_days_by_source

    return await integrity.check_integrity(
        database,
        dedup_days=settings.retention.dedup_days,
        dedup_days_of=dedup_days_by_source(settings),
        is_deep=is_deep,
        since=since,
        until=until,
        rest=GENTLE_PAUSE_RATIO if is_gentle else 0.0,
        progress=progress,
    )
