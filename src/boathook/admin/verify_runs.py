"""Checks of the books on behalf of operators: begun, followed, stopped; a keeper makes them."""

from typing import Final
from uuid import UUID

from boathook.admin.desk import Work, new_id
from boathook.domain import ids
from boathook.domain.errors import NotFound, NotPossible
from boathook.inbound.gates import dedup_days_of
from boathook.journal import verify_runs
from boathook.journal.audit import note
from boathook.journal.verify_runs import VerifyRun

_GENTLE_REST: Final = 3.0


async def begin(work: Work, *, is_deep: bool = False, is_gentle: bool = False) -> VerifyRun:
    """Let the books be checked.

    Args:
        is_deep: also compare each stored body with its hash.
        is_gentle: rest three times as long as each look takes.

    Raises:
        NotPossible: a check is under way.
    """
    settings = work.desk.settings
    request = {
        "is_deep": is_deep,
        "rest": _GENTLE_REST if is_gentle else 0.0,
        "dedup_days": settings.retention.dedup_days,
        "dedup_days_of": dedup_days_of(settings),
    }
    run = await verify_runs.begin(work.connection, new_id(), request)
    if run is None:
        raise NotPossible("a check is under way; wait for its end, or stop it", "verify_running")
    await note(work.connection, work.actor, "store.verify", run.shown_id)
    return run


async def list_last(work: Work) -> list[VerifyRun]:
    """Return the checks made last, the youngest first."""
    return await verify_runs.list_last(work.connection)


async def get(work: Work, reference: str) -> VerifyRun:
    """Return one check. Raises NotFound."""
    run = await verify_runs.find(work.connection, _id(reference))
    if run is None:
        raise NotFound(f"there is no check {reference}; only the last {verify_runs.KEPT} are kept")
    return run


async def stop(work: Work, reference: str) -> None:
    """End a check that is under way. Raises NotFound, and NotPossible where it has ended."""
    run = await get(work, reference)
    if not await verify_runs.stop(work.connection, run.id, f"stopped by {work.actor}"):
        raise NotPossible(f"the check {reference} has ended already", "verify_ended")
    await note(work.connection, work.actor, "store.verify.stop", reference)


def _id(reference: str) -> UUID:
    try:
        return ids.read(ids.TASK, reference)
    except ValueError:
        raise NotFound(f"there is no check {reference}") from None
