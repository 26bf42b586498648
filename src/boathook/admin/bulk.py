"""Bulk decisions of operators, made in the background: begun, followed and stopped.

What is decided about a group of dead letters is about those that had died by then; those that die meanwhile are left.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from boathook.admin.desk import Work
from boathook.admin.tasks import begin, get
from boathook.domain import ids
from boathook.domain.errors import InvalidValue, NotFound, NotPossible
from boathook.journal import dead_groups, moves, tasks
from boathook.journal.audit import note as note_down
from boathook.journal.dead_groups import Group
from boathook.journal.ledger import Filter
from boathook.journal.moves import Action, ReplayResults
from boathook.journal.routing import check_handler
from boathook.journal.tasks import Kind, Task, TaskState

_LONGEST_NOTE: Final = 2_000
HIGHEST_RATE: Final = 100_000.0
LOWEST_RATE: Final = 0.001
_MOST_COUNTED: Final = 100_000
PURGE_WORD: Final = "purge"
KINDS: Final = (Kind.REPLAY_GROUP, Kind.IGNORE_GROUP, Kind.PURGE_GROUP, Kind.REPLAY_EVENTS, Kind.ROUTE_EVENTS)
_VERBS: Final = {
    Kind.REPLAY_GROUP: ("Replay", "replayed"),
    Kind.IGNORE_GROUP: ("Ignore", "ignored"),
    Kind.PURGE_GROUP: ("Purge", "purged"),
    Kind.REPLAY_EVENTS: ("Replay", "replayed"),
    Kind.ROUTE_EVENTS: ("Re-route", "looked at"),
}

_REPLAYS: Final = {Kind.REPLAY_GROUP: moves.REPLAY_DEAD, Kind.REPLAY_EVENTS: moves.REPLAY_EVENT}
"""What the audit calls the replays of each kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a bulk decision has come."""

    id: str
    title: str
    state: str
    """``running``, ``finished``, ``stopped`` or ``failed``."""
    done: int
    total: int
    """What was counted when it was begun; 0 where that is not known."""
    done_verb: str
    added: int | None
    """Deliveries added, where that is what it does."""
    left: int
    """What was left alone, where it says so."""
    error: str
    group: str | None
    """The group's id, where it is about one."""
    actor: str
    note: str
    rate: float | None
    begun_at: datetime
    moved_at: datetime
    results: ReplayResults | None = None
    """What became of the deliveries since; None where nothing was replayed, or nobody has asked."""

    @property
    def share(self) -> float:
        """How much is done, from 0 to 1; what ended well is done wholly, even if less was left to do than counted."""
        if self.state == TaskState.FINISHED:
            return 1.0
        return min(1.0, self.done / self.total) if self.total else 0.0


def read_group(reference: str) -> UUID:
    """Read a group's id. Raises NotFound where it is none."""
    try:
        return ids.read(ids.DEAD_GROUP, reference)
    except ValueError as error:
        raise NotFound(str(error)) from None


async def get_group(work: Work, reference: str) -> Group:
    """Return a group of dead letters. Raises NotFound where no letter belongs to it any more."""
    group = await dead_groups.find_group(work.connection, read_group(reference))
    if group is None:
        raise NotFound(f"no dead letter belongs to {reference} any more: all were replayed, ignored or purged")
    return group


async def replay_group(work: Work, reference: str, *, rate: float | None = None, note: str = "") -> Task:
    """Let all of a group run again, at most *rate* a second.

    Raises:
        NotFound: there is no such group.
        InvalidValue: the rate or the note breaks a rule.
        LimitReached: too much is under way.
    """
    return await _decide(work, Kind.REPLAY_GROUP, reference, {"rate": check_rate(rate), "note": check_note(note)})


async def ignore_group(work: Work, reference: str, *, note: str) -> Task:
    """End all of a group as ignored, with a note that says why. Raises as `replay_group` does."""
    return await _decide(work, Kind.IGNORE_GROUP, reference, {"note": require_note(note)})


async def purge_group(work: Work, reference: str, *, typed: str, note: str = "") -> Task:
    """Delete all of a group with their attempts, once *typed* confirms it. Raises as `replay_group` does."""
    check_typed(typed)
    return await _decide(work, Kind.PURGE_GROUP, reference, {"note": check_note(note)})


async def replay_events(work: Work, wanted: Filter, *, rate: float | None = None, note: str = "") -> Task:
    """Owe the events of a filter again, at most *rate* deliveries a second. Raises as `replay_group` does."""
    request = await _events(work, wanted) | {"rate": check_rate(rate), "note": check_note(note)}
    return await _begin(work, Kind.REPLAY_EVENTS, request, subject=_subject(wanted))


async def route_events(
    work: Work, wanted: Filter, *, to: str | None = None, rate: float | None = None, note: str = ""
) -> Task:
    """Owe the events of a filter to the handlers that match them now, or to one of them; never twice.

    Raises:
        NotFound: there is no handler *to*.
        InvalidValue, LimitReached: as `replay_group` does.
    """
    to = None if to is None else await check_handler(work.connection, to)
    request = await _events(work, wanted) | {"rate": check_rate(rate), "note": check_note(note), "to": to}
    return await _begin(work, Kind.ROUTE_EVENTS, request, subject=_subject(wanted))


async def _events(work: Work, wanted: Filter) -> dict[str, Any]:
    """Return a filter of events as a task's request has it, with their number."""
    chosen = {"source": wanted.source, "application": wanted.application, "type": wanted.type}
    spans = {name: value and value.isoformat() for name, value in (("since", wanted.since), ("until", wanted.until))}
    total = await moves.count_events(work.connection, wanted, most=_MOST_COUNTED)
    return chosen | spans | {"is_unhandled": wanted.is_unhandled, "total": total}


def _subject(wanted: Filter) -> str:
    return wanted.source or wanted.application or "events"


async def stop(work: Work, reference: str) -> Task:
    """Let a bulk decision end where it stands. Raises NotFound, and NotPossible where it has ended."""
    task = await _get(work, reference)
    stopped = await tasks.stop(work.connection, work.organization, task.id, f"stopped by {work.actor}")
    if stopped is None:
        raise NotPossible(f"{reference} has ended already", "ended")
    await note_down(work.connection, work.actor, "task.stop", task.shown_id, task.kind.value)
    return stopped


async def follow(work: Work, reference: str) -> Progress:
    """Return how far a bulk decision has come, and what became of what it replayed. Raises NotFound."""
    task = await _get(work, reference)
    return replace(progress_of(task), results=await _read_results(work, task))


async def _read_results(work: Work, task: Task) -> ReplayResults | None:
    name = _REPLAYS.get(task.kind)
    if name is None:
        return None
    action = Action(actor=task.request["actor"], note=task.replay_note)
    return await moves.read_results(work.connection, action, name, since=task.created_at, until=task.updated_at)


def progress_of(task: Task) -> Progress:
    """Return how far a task has come."""
    verb, done_verb = _VERBS[task.kind]
    group = task.request.get("group")
    error = str(task.data.get("error", ""))
    is_stopped = task.state is TaskState.FAILED and error.startswith("stopped by ")
    return Progress(
        id=task.shown_id,
        title=f"{verb} a group of dead letters" if group else f"{verb} events",
        state="stopped" if is_stopped else task.state.value,
        done=task.data.get("done", 0),
        total=task.request.get("total", 0),
        done_verb=done_verb,
        added=task.data.get("added"),
        left=task.data.get("left", 0),
        error=error,
        group=group and ids.show(ids.DEAD_GROUP, UUID(group)),
        actor=task.request["actor"],
        note=task.request.get("note") or "",
        rate=task.request.get("rate"),
        begun_at=task.created_at,
        moved_at=task.updated_at,
    )


def check_rate(rate: float | None) -> float | None:
    """Return a rate as it may be used. Raises InvalidValue."""
    if rate is not None and not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise InvalidValue(f"write a number a second from {LOWEST_RATE:g} to {HIGHEST_RATE:g}, or nothing", "rate")
    return rate


def check_note(note: str) -> str:
    """Return a note as it may be stored. Raises InvalidValue."""
    note = note.strip().replace("\x00", "")
    if len(note) > _LONGEST_NOTE:
        raise InvalidValue(f"write {_LONGEST_NOTE} characters at most", "note")
    return note


def require_note(note: str) -> str:
    """Return a note that is not empty. Raises InvalidValue."""
    note = check_note(note)
    if not note:
        raise InvalidValue("write why nothing more is needed; it is kept as the outcome", "note")
    return note


def check_typed(typed: str) -> None:
    """Raise InvalidValue where the word that confirms a purge was not typed."""
    if typed.strip().lower() != PURGE_WORD:
        raise InvalidValue(f"type {PURGE_WORD} to confirm", "typed")


async def _get(work: Work, reference: str) -> Task:
    task = await get(work, reference)
    if task.kind not in KINDS:
        raise NotFound(f"{reference} is no bulk decision")
    return task


async def _decide(work: Work, kind: Kind, reference: str, request: Mapping[str, Any]) -> Task:
    group = await get_group(work, reference)
    return await _begin(work, kind, {**request, "group": str(group.key), "total": group.number}, subject=group.id)


async def _begin(work: Work, kind: Kind, request: Mapping[str, Any], *, subject: str) -> Task:
    return await begin(work, kind, {**request, "actor": work.actor}, subject=subject, note=request.get("note") or "")
