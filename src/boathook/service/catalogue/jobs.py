"""Operations on bulk jobs: replays, and other actions on many objects, that run in the background."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Final
from uuid import UUID

from msgspec.structs import replace

from boathook.db import delivery_commands, tasks
from boathook.db.audit import record
from boathook.db.delivery_commands import AuditContext, ReplayOutcomes
from boathook.db.messages import Page
from boathook.db.tasks import Task, TaskOperation, TaskState
from boathook.domain import ids
from boathook.domain.errors import InvalidState, NotFound
from boathook.domain.windows import MAX_WINDOW, Window
from boathook.service.access.authorization import Permission
from boathook.service.catalogue.operation import Http, Scope, operation
from boathook.service.catalogue.values import PageInput, Result, read_id, read_iterator
from boathook.service.fields import Input, Rule
from boathook.service.operating.bulk_jobs import describe_outcomes
from boathook.service.operating.tasks import list_page
from boathook.service.unit_of_work import UnitOfWork

TAG: Final = "Bulk Job"
_LAST: Final = UUID(int=2**128 - 1)
_KINDS: Final[Mapping[TaskOperation, tuple[str, str]]] = {
    TaskOperation.REPLAY_GROUP: ("Replay", "a group of dead letters"),
    TaskOperation.IGNORE_GROUP: ("Ignore", "a group of dead letters"),
    TaskOperation.PURGE_GROUP: ("Purge", "a group of dead letters"),
    TaskOperation.REPLAY_DEAD: ("Replay", "dead letters"),
    TaskOperation.IGNORE_DEAD: ("Ignore", "dead letters"),
    TaskOperation.PURGE_DEAD: ("Purge", "dead letters"),
    TaskOperation.REPLAY_EVENTS: ("Replay", "events"),
    TaskOperation.ROUTE_EVENTS: ("Re-route", "events"),
    TaskOperation.ACCEPT_CONFLICTS: ("Accept", "conflicts"),
    TaskOperation.REVERIFY_REJECTIONS: ("Verify again", "rejected requests"),
}
"""The kinds of tasks that are bulk jobs, each with its verb and what it is about."""
_PARTICIPLES: Final = {
    "Replay": "replayed", "Ignore": "ignored", "Purge": "purged", "Re-route": "looked at", "Accept": "handled",
    "Verify": "verified again",
}  # fmt: skip
_REPLAYS: Final = {
    TaskOperation.REPLAY_GROUP: delivery_commands.REPLAY_DEAD,
    TaskOperation.REPLAY_DEAD: delivery_commands.REPLAY_DEAD,
    TaskOperation.REPLAY_EVENTS: delivery_commands.REPLAY_EVENT,
}
"""Audit action of the replays of each job kind."""


class Job(Result, frozen=True, kw_only=True):
    """A bulk job and its progress."""

    id: Annotated[str, Rule(help="Its id.", prefix=ids.TASK)]
    title: Annotated[str, Rule(help="What it does.")]
    state: Annotated[str, Rule(help="running, finished, stopped or failed.")]
    done: int
    total: Annotated[int, Rule(help="The number counted at the start; 0 if unknown.")]
    added: Annotated[int | None, Rule(help="Deliveries added, if the job adds any.")]
    revived: Annotated[int | None, Rule(help="Dead letters that are pending again, if the job revives any.")]
    routed: Annotated[int | None, Rule(help="Events that got a delivery, if the job routes events.")]
    skipped: int
    error: str
    group: Annotated[str | None, Rule(help="The group of dead letters that it is about, if any.")]
    actor: str
    note: str
    rate: float | None
    started_at: datetime
    updated_at: datetime
    outcome: Annotated[str, Rule(help="What has become of the replayed deliveries; empty in lists.")] = ""
    results: ReplayOutcomes | None = None
    """The same as figures, for pages; None if nothing was replayed, and in lists."""

    @property
    def share(self) -> float:
        """The share done, from 0 to 1; 1 for a finished job, even if it found less to do than counted."""
        if self.state == TaskState.FINISHED:
            return 1.0
        return min(1.0, self.done / self.total) if self.total else 0.0

    @property
    def participle(self) -> str:
        """What it has done with each, such as ``replayed``."""
        return _PARTICIPLES[self.title.partition(" ")[0]]


class JobPage(Result, frozen=True, kw_only=True):
    """A page of bulk jobs."""

    data: list[Job]
    iterator: str | None
    done: bool


class JobNamed(Input, frozen=True, kw_only=True):
    """The bulk job that is meant."""

    id: Annotated[str, Rule(help="The job's id.", argument="JOB", prefix=ids.TASK)]


@operation(
    "job.list",
    Permission.JOB_VIEW,
    Scope.ORGANIZATION,
    Http("GET", "/bulk-job", is_derived=False),
    tag=TAG,
    examples=("boathook jobs list --json",),
)
async def list_jobs(work: UnitOfWork, input: PageInput) -> JobPage:
    """List bulk jobs of the last 90 days, newest first."""
    place = _LAST if input.iterator is None else read_iterator(ids.TASK, input.iterator)
    page = await read_page(work, Window(ids.first_of(datetime.now(UTC) - MAX_WINDOW), place), limit=input.limit)
    return JobPage(data=list(page.rows), iterator=page.rows[-1].id if page.rows else None, done=page.is_last)


async def read_page(work: UnitOfWork, window: Window, *, limit: int, is_ascending: bool = False) -> Page[Job]:
    """Return a page of the organization's bulk jobs in a window of ids, by default newest first."""
    page = await list_page(work, window, kinds=tuple(_KINDS), limit=limit, is_ascending=is_ascending)
    return Page([view(task) for task in page.rows], page.is_last)


@operation(
    "job.get",
    Permission.JOB_VIEW,
    Scope.ORGANIZATION,
    Http("GET", "/bulk-job/{id}", is_derived=False),
    tag=TAG,
    examples=("boathook jobs show qtask_01h455vb4pex5vsknk084sn02q4",),
)
async def get(work: UnitOfWork, reference: JobNamed) -> Job:
    """Show a bulk job with its progress, and what has become of what it replayed."""
    task = await _find(work, reference.id)
    results = await _read_results(work, task)
    outcome = describe_outcomes(results) if results is not None and results.number else ""
    return replace(view(task), results=results, outcome=outcome)


@operation(
    "job.stop",
    Permission.JOB_STOP,
    Scope.ORGANIZATION,
    Http("POST", "/bulk-job/{id}/stop", is_derived=False),
    tag=TAG,
    undo=None,
    says="{id} is stopped; what it has done stays",
    examples=("boathook jobs stop qtask_01h455vb4pex5vsknk084sn02q4",),
)
async def stop(work: UnitOfWork, reference: JobNamed) -> Job:
    """Stop a running bulk job after its current step; what it has done stays."""
    task = await _find(work, reference.id)
    stopped = await tasks.stop(work.connection, work.organization, task.id, f"stopped by {work.actor}")
    if stopped is None:
        raise InvalidState(f"{reference.id} has ended already", "ended")
    await record(work.connection, work.actor, "task.stop", task.shown_id, task.kind.value)
    return view(stopped)


def view(task: Task) -> Job:
    """Return a task that is a bulk job as interfaces show it."""
    verb, objects = _KINDS[task.kind]
    group, error = task.request.get("group"), str(task.data.get("error", ""))
    is_stopped = task.state is TaskState.FAILED and error.startswith("stopped by ")
    return Job(
        id=task.shown_id,
        title=f"{verb} {objects}",
        state="stopped" if is_stopped else task.state.value,
        done=task.data.get("done", 0),
        total=task.request.get("total", 0),
        added=task.data.get("added"),
        revived=task.data.get("revived"),
        routed=task.data.get("routed"),
        skipped=task.data.get("left", 0),
        error=error,
        group=None if group is None else ids.show(ids.DEAD_GROUP, UUID(group)),
        actor=task.request["actor"],
        note=task.request.get("note") or "",
        rate=task.request.get("rate"),
        started_at=task.created_at,
        updated_at=task.updated_at,
    )


async def _find(work: UnitOfWork, reference: str) -> Task:
    """Return a bulk job of the organization. Raises NotFound."""
    task = await tasks.find(work.connection, work.organization, read_id(ids.TASK, reference))
    if task is None or task.kind not in _KINDS:
        raise NotFound(f"there is no bulk job {reference}")
    return task


async def _read_results(work: UnitOfWork, task: Task) -> ReplayOutcomes | None:
    action = _REPLAYS.get(task.kind)
    if action is None:
        return None
    audit, group = AuditContext(actor=task.request["actor"], note=task.replay_note), task.request.get("group")
    return await delivery_commands.read_outcomes(
        work.connection, audit, action, since=task.created_at, until=task.updated_at, group=group and UUID(group)
    )
