"""Checks of the books on behalf of operators: begun, followed, stopped; a keeper makes them."""

from uuid import UUID

from boathook.db import integrity_runs
from boathook.db.audit import record
from boathook.db.integrity_runs import IntegrityRun
from boathook.domain import ids
from boathook.domain.errors import InvalidState, NotFound
from boathook.ingest.sources import dedup_days_by_source
from boathook.service.integrity import GENTLE_PAUSE_RATIO
from boathook.service.unit_of_work import UnitOfWork, new_id


async def start(work: UnitOfWork, *, is_deep: bool = False, is_gentle: bool = False) -> IntegrityRun:
    """Let the books be checked.

    Args:
        is_deep: also compare each stored body with its hash.
        is_gentle: rest three times as long as each look takes.

    Raises:
        InvalidState: a check is under way.
    """
    settings = work.app_context.settings
    request = {
        "is_deep": is_deep,
        "rest": GENTLE_PAUSE_RATIO if is_gentle else 0.0,
        "dedup_days": settings.retention.dedup_days,
        "dedup_days_of": dedup_days_by_source(settings),
    }
    run = await integrity_runs.start(work.connection, new_id(), request)
    if run is None:
        raise InvalidState("a check is under way; wait for its end, or stop it", "verify_running")
    await record(work.connection, work.actor, "store.verify", run.shown_id)
    return run


async def list_last(work: UnitOfWork) -> list[IntegrityRun]:
    """Return the checks made last, the youngest first."""
    return await integrity_runs.list_recent(work.connection)


async def get(work: UnitOfWork, reference: str) -> IntegrityRun:
    """Return one check. Raises NotFound."""
    run = await integrity_runs.find(work.connection, _id(reference))
    if run is None:
        raise NotFound(f"there is no check {reference}; only the last {integrity_runs.MAX_RUNS} are kept")
    return run


async def stop(work: UnitOfWork, reference: str) -> None:
    """End a check that is under way. Raises NotFound, and InvalidState where it has ended."""
    run = await get(work, reference)
    if not await integrity_runs.stop(work.connection, run.id, f"stopped by {work.actor}"):
        raise InvalidState(f"the check {reference} has ended already", "verify_ended")
    await record(work.connection, work.actor, "store.verify.stop", reference)


def _id(reference: str) -> UUID:
    try:
        return ids.read(ids.TASK, reference)
    except ValueError:
        raise NotFound(f"there is no check {reference}") from None
