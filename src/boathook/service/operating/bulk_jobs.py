"""Monitors and stops bulk jobs, which run in the background.

A job on a group of dead letters covers those that had failed when it started; later ones are not touched.
"""

from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from boathook.db import dead_letter_groups, delivery_commands, tasks
from boathook.db.audit import record as note_down
from boathook.db.dead_letter_groups import DeadLetterGroup
from boathook.db.delivery_commands import AuditContext, ReplayOutcomes
from boathook.db.tasks import Task, TaskOperation, TaskState
from boathook.domain import ids
from boathook.domain.errors import InvalidState, NotFound
from boathook.domain.windows import Window
from boathook.service.operating.tasks import get, list_page
from boathook.service.sending.messages import Page
from boathook.service.unit_of_work import UnitOfWork

_ALL_TIME: Final = Window(UUID(int=0), UUID(int=2**128 - 1))
JOB_KINDS: Final = (
    TaskOperation.REPLAY_GROUP,
    TaskOperation.IGNORE_GROUP,
    TaskOperation.PURGE_GROUP,
    TaskOperation.REPLAY_DEAD,
    TaskOperation.IGNORE_DEAD,
    TaskOperation.PURGE_DEAD,
    TaskOperation.REPLAY_EVENTS,
    TaskOperation.ROUTE_EVENTS,
    TaskOperation.ACCEPT_CONFLICTS,
    TaskOperation.REVERIFY_REJECTIONS,
)
_VERBS: Final = {
    TaskOperation.REPLAY_GROUP: ("Replay", "replayed"),
    TaskOperation.IGNORE_GROUP: ("Ignore", "ignored"),
    TaskOperation.PURGE_GROUP: ("Purge", "purged"),
    TaskOperation.REPLAY_DEAD: ("Replay", "replayed"),
    TaskOperation.IGNORE_DEAD: ("Ignore", "ignored"),
    TaskOperation.PURGE_DEAD: ("Purge", "purged"),
    TaskOperation.REPLAY_EVENTS: ("Replay", "replayed"),
    TaskOperation.ROUTE_EVENTS: ("Re-route", "looked at"),
    TaskOperation.ACCEPT_CONFLICTS: ("Accept", "handled"),
    TaskOperation.REVERIFY_REJECTIONS: ("Verify again", "verified again"),
}

_OBJECTS: Final = {
    TaskOperation.REPLAY_DEAD: "dead letters",
    TaskOperation.IGNORE_DEAD: "dead letters",
    TaskOperation.PURGE_DEAD: "dead letters",
    TaskOperation.REPLAY_EVENTS: "events",
    TaskOperation.ROUTE_EVENTS: "events",
    TaskOperation.ACCEPT_CONFLICTS: "conflicts",
    TaskOperation.REVERIFY_REJECTIONS: "rejected requests",
}
"""What a job is about that is not about a group."""
_REPLAYS: Final = {
    TaskOperation.REPLAY_GROUP: delivery_commands.REPLAY_DEAD,
    TaskOperation.REPLAY_DEAD: delivery_commands.REPLAY_DEAD,
    TaskOperation.REPLAY_EVENTS: delivery_commands.REPLAY_EVENT,
}
"""Audit action of the replays of each job kind."""


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a bulk job."""

    id: str
    title: str
    state: str
    """``running``, ``finished``, ``stopped`` or ``failed``."""
    done: int
    total: int
    """The number counted at the start; 0 if unknown."""
    done_verb: str
    added: int | None
    """Number of deliveries added, if the job adds any."""
    revived: int | None
    """Number of dead letters that are pending again, if the job revives any."""
    routed: int | None
    """Number of events that got a delivery, if the job routes events."""
    left: int
    """Number of items skipped, if the job reports it."""
    error: str
    group: str | None
    """The group's id, if the job is for a group."""
    actor: str
    note: str
    rate: float | None
    begun_at: datetime
    moved_at: datetime
    results: ReplayOutcomes | None = None
    """Outcomes of the replayed deliveries so far; None if nothing was replayed, or they were not requested."""

    @property
    def share(self) -> float:
        """The share done, from 0 to 1; 1 for a finished job, even if it found less to do than counted."""
        if self.state == TaskState.FINISHED:
            return 1.0
        return min(1.0, self.done / self.total) if self.total else 0.0

    @property
    def outcome(self) -> str:
        """The results of the replayed deliveries, in one sentence; empty if nothing was replayed."""
        return "" if self.results is None or not self.results.number else describe_outcomes(self.results)


def parse_group_id(reference: str) -> UUID:
    """Return the key of a group id. Raises NotFound if it is invalid."""
    try:
        return ids.read(ids.DEAD_GROUP, reference)
    except ValueError as error:
        raise NotFound(str(error)) from None


async def get_group(work: UnitOfWork, reference: str) -> DeadLetterGroup:
    """Return a group of dead letters. Raises NotFound if it has no dead letters left."""
    group = await dead_letter_groups.find_group(work.connection, parse_group_id(reference))
    if group is None:
        raise NotFound(f"no dead letters are left in {reference}: all were replayed, ignored or purged")
    return group


async def stop(work: UnitOfWork, reference: str) -> Task:
    """Stop a bulk job. Raises NotFound, and InvalidState if it has ended."""
    task = await _get(work, reference)
    stopped = await tasks.stop(work.connection, work.organization, task.id, f"stopped by {work.actor}")
    if stopped is None:
        raise InvalidState(f"{reference} has ended already", "ended")
    await note_down(work.connection, work.actor, "task.stop", task.shown_id, task.kind.value)
    return stopped


async def list_latest(work: UnitOfWork, *, limit: int) -> list[JobProgress]:
    """Return the progress of the organization's latest bulk jobs, newest first."""
    page = await list_page(work, _ALL_TIME, kinds=JOB_KINDS, limit=limit)
    return [progress_of(task) for task in page.rows]


async def page_jobs(work: UnitOfWork, window: Window, *, limit: int, is_ascending: bool = False) -> Page[JobProgress]:
    """Return a page of the progress of the organization's bulk jobs, by default newest first."""
    page = await list_page(work, window, kinds=JOB_KINDS, limit=limit, is_ascending=is_ascending)
    return Page([progress_of(task) for task in page.rows], page.is_last)


async def get_progress(work: UnitOfWork, reference: str) -> JobProgress:
    """Return the progress of a bulk job, and the outcomes of what it replayed. Raises NotFound."""
    task = await _get(work, reference)
    return replace(progress_of(task), results=await _read_results(work, task))


async def _read_results(work: UnitOfWork, task: Task) -> ReplayOutcomes | None:
    name = _REPLAYS.get(task.kind)
    if name is None:
        return None
    action, group = AuditContext(actor=task.request["actor"], note=task.replay_note), task.request.get("group")
    return await delivery_commands.read_outcomes(
        work.connection,
        action,
        name,
        since=task.created_at,
        until=task.updated_at,
        group=group and UUID(group),
    )


def describe_outcomes(outcomes: ReplayOutcomes) -> str:
    """Return what has become of replayed deliveries as one sentence, without a full stop."""
    cause = ""
    if outcomes.same_cause:
        cause = (
            " with the same cause"
            if outcomes.same_cause == outcomes.dead
            else f" ({outcomes.same_cause} with the same cause)"
        )
    others = (
        (outcomes.ignored, "ignored"),
        (outcomes.dead, f"failed again{cause}"),
        (outcomes.retrying, "failed and will be retried"),
        (outcomes.waiting, "not attempted yet"),
    )
    parts = [f"{outcomes.succeeded} succeeded", *(f"{number} {words}" for number, words in others if number)]
    return f"{outcomes.number} replayed: {', '.join(parts)}"


def progress_of(task: Task) -> JobProgress:
    """Return the progress of a task."""
    verb, done_verb = _VERBS[task.kind]
    group = task.request.get("group")
    error = str(task.data.get("error", ""))
    is_stopped = task.state is TaskState.FAILED and error.startswith("stopped by ")
    return JobProgress(
        id=task.shown_id,
        title=f"{verb} {_OBJECTS.get(task.kind, 'a group of dead letters')}",
        state="stopped" if is_stopped else task.state.value,
        done=task.data.get("done", 0),
        total=task.request.get("total", 0),
        done_verb=done_verb,
        added=task.data.get("added"),
        revived=task.data.get("revived"),
        routed=task.data.get("routed"),
        left=task.data.get("left", 0),
        error=error,
        group=group and ids.show(ids.DEAD_GROUP, UUID(group)),
        actor=task.request["actor"],
        note=task.request.get("note") or "",
        rate=task.request.get("rate"),
        begun_at=task.created_at,
        moved_at=task.updated_at,
    )


async def _get(work: UnitOfWork, reference: str) -> Task:
    task = await get(work, reference)
    if task.kind not in JOB_KINDS:
        raise NotFound(f"unknown bulk job {reference}")
    return task
