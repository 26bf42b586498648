"""Decides which changes without a stamp of their sender are older than what was applied before them.

RentProg sends neither a time nor an id, so a repetition that comes late looks like a new change. What tells it apart is
the value before the change: it differs from the one that we have. That alone may also mean that we have missed a
change, so a change is late only if we have seen it, or the change that follows it, a short time ago.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

from boathook_fleet.words import Action

LATE: Final = timedelta(hours=1)
"""How long before a change an equal one, or the one that follows it, counts; longer than a sender's retries last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedChange:
    """A row of ``fleet.change``."""

    event_id: UUID
    action: Action
    accepted_at: datetime
    data: Mapping[str, Any]
    before: Mapping[str, Any]
    is_stamped: bool
    """Whether the sender names the time; then the change is never late, but takes its place."""
    is_late: bool | None
    """None if that is not decided."""

    def is_equal(self, other: "RecordedChange") -> bool:
        """Return whether both say the same."""
        return (self.action, self.data, self.before) == (other.action, other.data, other.before)


@dataclass(slots=True, kw_only=True)
class ObjectState:
    """The state of an object while changes are decided, in order."""

    data: dict[str, Any]
    exists: bool
    """Whether an event about it was applied; a stub does not exist."""
    is_deleted: bool


@dataclass(slots=True)
class Decisions:
    """What was decided."""

    late: list[UUID] = field(default_factory=list)
    in_time: list[UUID] = field(default_factory=list)
    gaps: dict[UUID, list[str]] = field(default_factory=dict)
    """The fields of changes that were applied though the value before differs: a change in between was missed."""


def decide(state: ObjectState, open_changes: Sequence[RecordedChange], recent: Sequence[RecordedChange]) -> Decisions:
    """Decide about *open_changes*, in order; *recent* are the recent changes of the object, these included."""
    decisions = Decisions()
    for change in open_changes:
        differing = [name for name in change.before if _differs(change, state.data, name)]
        if _is_late(change, state, differing, list(_earlier(change, recent))):
            decisions.late.append(change.event_id)
            if change.action is Action.CREATE:
                state.data = {**change.data, **state.data}
            continue
        decisions.in_time.append(change.event_id)
        if differing and not state.is_deleted and not change.is_stamped:
            decisions.gaps[change.event_id] = differing
        state.data |= change.data
        state.exists, state.is_deleted = True, change.action is Action.DELETE
    return decisions


def _earlier(change: RecordedChange, recent: Sequence[RecordedChange]) -> Iterator[RecordedChange]:
    for other in recent:
        if other.event_id != change.event_id and change.accepted_at - LATE <= other.accepted_at <= change.accepted_at:
            yield other


def _differs(change: RecordedChange, data: Mapping[str, Any], name: str) -> bool:
    """Return whether we have a value that is neither the one before the change nor the one after it."""
    return name in data and data[name] not in (change.before[name], change.data.get(name))


def _is_late(
    change: RecordedChange, state: ObjectState, differing: Sequence[str], earlier: Sequence[RecordedChange]
) -> bool:
    if change.is_stamped:
        return False
    is_repeated = any(change.is_equal(other) for other in earlier)
    match change.action:
        case Action.CREATE:
            # An object is created once: what a second creation says was so before everything else.
            return state.exists and (is_repeated or not state.is_deleted)
        case Action.UPDATE if state.is_deleted:
            return is_repeated
        case Action.UPDATE:
            return bool(differing) and (is_repeated or any(_follows(other, change, differing) for other in earlier))
        case Action.DELETE:
            return False


def _follows(later: RecordedChange, change: RecordedChange, names: Sequence[str]) -> bool:
    """Return whether *later* starts from what *change* ends with."""
    return any(name in later.before and later.before[name] == change.data.get(name) for name in names)
