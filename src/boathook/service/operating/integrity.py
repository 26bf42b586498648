"""Checks the integrity of the store: directly for the command line, in the background for the console."""

from datetime import datetime
from typing import Final
from uuid import UUID

from boathook.config import Settings
from boathook.db import integrity, integrity_runs
from boathook.db.audit import record
from boathook.db.database import Database
from boathook.db.integrity import Balance as Balance  # noqa: PLC0414 - re-exported
from boathook.db.integrity import CheckProgress as CheckProgress  # noqa: PLC0414 - re-exported
from boathook.db.integrity import IntegrityReport as IntegrityReport  # noqa: PLC0414 - re-exported
from boathook.db.integrity import ProgressCallback as ProgressCallback  # noqa: PLC0414 - re-exported
from boathook.db.integrity import Violation as Violation  # noqa: PLC0414 - re-exported
from boathook.db.integrity_runs import IntegrityRun
from boathook.domain import ids
from boathook.domain.errors import InvalidState, NotFound
from boathook.ingest.sources import checked_days_by_source
from boathook.service.database import with_stored_sources
from boathook.service.unit_of_work import UnitOfWork, new_id

QUERY_TIMEOUT_S: Final = 300.0
"""Statement timeout of a check; one query takes a fraction of a second if PostgreSQL is healthy."""
GENTLE_PAUSE_RATIO: Final = 3.0
"""Pause after each query of a gentle check, as a multiple of the query's duration."""
list_recent = integrity_runs.list_recent


async def start(work: UnitOfWork, *, is_deep: bool = False, is_gentle: bool = False) -> IntegrityRun:
    """Start an integrity check in the background.

    Args:
        work: the unit of work.
        is_deep: also compare each stored body with its hash.
        is_gentle: pause three times as long as each query took.

    Raises:
        InvalidState: a check is running.
    """
    settings = await work.app_context.refresh_settings(work.connection)
    request = {
        "is_deep": is_deep,
        "rest": GENTLE_PAUSE_RATIO if is_gentle else 0.0,
        "dedup_days": settings.retention.dedup_days,
        "dedup_days_of": checked_days_by_source(settings),
    }
    run = await integrity_runs.start(work.connection, new_id(), request)
    if run is None:
        raise InvalidState("a check is running; wait until it ends, or stop it", "verify_running")
    await record(work.connection, work.actor, "store.verify", run.shown_id)
    return run


async def get(work: UnitOfWork, reference: str) -> IntegrityRun:
    """Return one check. Raises NotFound."""
    run = await integrity_runs.find(work.connection, _id(reference))
    if run is None:
        raise NotFound(f"there is no check {reference}; only the last {integrity_runs.MAX_RUNS} are kept")
    return run


async def stop(work: UnitOfWork, reference: str) -> None:
    """Stop a running check. Raises NotFound, and InvalidState if it has ended."""
    run = await get(work, reference)
    if not await integrity_runs.stop(work.connection, run.id, f"stopped by {work.actor}"):
        raise InvalidState(f"the check {reference} has ended already", "verify_ended")
    await record(work.connection, work.actor, "store.verify.stop", reference)


def _id(reference: str) -> UUID:
    try:
        return ids.read(ids.TASK, reference)
    except ValueError:
        raise NotFound(f"there is no check {reference}") from None


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
