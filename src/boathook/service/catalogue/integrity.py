"""Operations on checks of the store's integrity, which a keeper runs in the background.

`boathook check` runs one itself, on connections of its own, as it must work while no server runs.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, Any, Final

from boathook.db import integrity_runs
from boathook.db.audit import record
from boathook.db.integrity_runs import IntegrityRun as StoredRun
from boathook.domain import ids
from boathook.domain.errors import InvalidState, NotFound
from boathook.ingest.sources import checked_days_by_source
from boathook.service.access.authorization import Permission
from boathook.service.catalogue.operation import Http, Scope, operation
from boathook.service.catalogue.values import Result, read_id
from boathook.service.fields import Input, Rule
from boathook.service.operating.integrity import GENTLE_PAUSE_RATIO
from boathook.service.unit_of_work import UnitOfWork, new_id

TAG: Final = "Integrity"


class IntegrityRun(Result, frozen=True, kw_only=True):
    """A check of the store's integrity."""

    id: Annotated[str, Rule(help="Its id.", prefix=ids.TASK)]
    state: Annotated[str, Rule(help="running, finished or failed.")]
    deep: Annotated[bool, Rule(help="Whether it compares each stored body with its hash, too.")]
    gently: Annotated[bool, Rule(help="Whether it pauses three times as long as each query takes.")]
    is_begun: Annotated[bool, Rule(help="Whether a keeper has begun it.")]
    data: Annotated[
        Mapping[str, Any], Rule(help="While it runs, its progress; then its totals and violations, or why it failed.")
    ]
    created_at: datetime
    updated_at: datetime


class IntegrityRuns(Result, frozen=True, kw_only=True):
    """The checks that are kept, newest first."""

    data: list[IntegrityRun]


class NewRun(Input, frozen=True, kw_only=True):
    """How to check."""

    deep: Annotated[bool, Rule(help="Also compare every stored body with its hash.")] = False
    gently: Annotated[bool, Rule(help="Throttle: pause three times as long as each query takes.")] = False


class AllRuns(Input, frozen=True, kw_only=True):
    """Every check that is kept."""


class RunNamed(Input, frozen=True, kw_only=True):
    """The check that is meant."""

    id: Annotated[str, Rule(help="The check's id.", argument="CHECK", prefix=ids.TASK)]


@operation(
    "integrity.start",
    Permission.VERIFY_RUN,
    Scope.DEPLOYMENT,
    Http("POST", "/integrity-check", 202),
    tag=TAG,
    undo="stop it",
)
async def start(work: UnitOfWork, new: NewRun) -> IntegrityRun:
    """Check the store: every delivery of every accepted event is pending or finished exactly once.

    It only reads, and runs in a keeper; one check runs at a time.
    """
    settings = await work.app_context.refresh_settings(work.connection)
    request = {
        "is_deep": new.deep,
        "rest": GENTLE_PAUSE_RATIO if new.gently else 0.0,
        "dedup_days": settings.retention.dedup_days,
        "dedup_days_of": checked_days_by_source(settings),
    }
    run = await integrity_runs.start(work.connection, new_id(), request)
    if run is None:
        raise InvalidState("a check is running; wait until it ends, or stop it", "verify_running")
    await record(work.connection, work.actor, "store.verify", run.shown_id)
    return _view(run)


@operation("integrity.list", Permission.VERIFY_VIEW, Scope.DEPLOYMENT, Http("GET", "/integrity-check"), tag=TAG)
async def list_runs(work: UnitOfWork, _all: AllRuns) -> IntegrityRuns:
    """List the latest checks of the store, newest first."""
    return IntegrityRuns(data=[_view(run) for run in await integrity_runs.list_recent(work.connection)])


@operation("integrity.get", Permission.VERIFY_VIEW, Scope.DEPLOYMENT, Http("GET", "/integrity-check/{id}"), tag=TAG)
async def get(work: UnitOfWork, reference: RunNamed) -> IntegrityRun:
    """Show a check of the store, with its progress or its result."""
    return _view(await _find(work, reference))


@operation(
    "integrity.stop",
    Permission.VERIFY_RUN,
    Scope.DEPLOYMENT,
    Http("POST", "/integrity-check/{id}/stop"),
    tag=TAG,
    undo="start another one",
)
async def stop(work: UnitOfWork, reference: RunNamed) -> IntegrityRun:
    """Stop a running check of the store."""
    run = await _find(work, reference)
    if not await integrity_runs.stop(work.connection, run.id, f"stopped by {work.actor}"):
        raise InvalidState(f"the check {reference.id} has ended already", "verify_ended")
    await record(work.connection, work.actor, "store.verify.stop", reference.id)
    return _view(await _find(work, reference))


async def _find(work: UnitOfWork, reference: RunNamed) -> StoredRun:
    run = await integrity_runs.find(work.connection, read_id(ids.TASK, reference.id))
    if run is None:
        raise NotFound(f"there is no check {reference.id}; only the last {integrity_runs.MAX_RUNS} are kept")
    return run


def _view(run: StoredRun) -> IntegrityRun:
    return IntegrityRun(
        id=run.shown_id,
        state=run.state,
        deep=run.request["is_deep"],
        gently=bool(run.request.get("rest")),
        is_begun=run.is_begun,
        data=run.data,
        created_at=run.created_at,
        updated_at=run.updated_at,
    )
