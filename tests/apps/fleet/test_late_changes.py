"""Which changes without a stamp are late, by the values before them and by what was seen a short time ago."""

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from boathook_fleet import late_changes
from boathook_fleet.late_changes import Decisions, ObjectState, RecordedChange, decide
from boathook_fleet.words import Action

AT = datetime(2026, 11, 21, 10, tzinfo=UTC)


def change(minute: float, action: str = "update", **fields: Any) -> RecordedChange:
    """Return a change; a pair is the value before and after."""
    return RecordedChange(
        event_id=uuid.uuid4(),
        action=Action(action),
        accepted_at=AT + timedelta(minutes=minute),
        data={name: value[1] if isinstance(value, tuple) else value for name, value in fields.items()},
        before={name: value[0] for name, value in fields.items() if isinstance(value, tuple)},
        is_stamped=False,
        is_late=None,
    )


def run(changes: Sequence[RecordedChange], together: bool) -> tuple[ObjectState, list[int], list[int]]:
    """Decide all at once or one by one; return the state, and the positions of late changes and of those after a gap."""
    state = ObjectState(data={}, exists=False, is_deleted=False)
    late: list[int] = []
    gaps: list[int] = []
    parts = [changes] if together else [[one] for one in changes]
    for part in parts:
        known = changes[: changes.index(part[-1]) + 1]
        decisions: Decisions = decide(state, part, known)
        late += [place for place, one in enumerate(changes) if one.event_id in decisions.late]
        gaps += [place for place, one in enumerate(changes) if one.event_id in decisions.gaps]
    return state, late, gaps


def chain(*states: str) -> list[RecordedChange]:
    return [change(minute, state=pair) for minute, pair in enumerate(pairwise(states))]


CASES = [
    ("in order", chain("a", "b", "c"), "c", [], []),
    ("to and fro", chain("a", "b", "a", "b"), "b", [], []),
    ("a late repetition", [*chain("a", "b", "c"), change(5, state=("a", "b"))], "c", [2], []),
    ("the newest again", [*chain("a", "b"), change(5, state=("a", "b"))], "b", [], []),
    ("the second before the first", [change(0, state="a"), *reversed(chain("a", "b", "c"))], "c", [2], [1]),
    ("one is missing", [change(0, state="a"), change(1, state=("b", "c"))], "c", [], [1]),
    ("after a gap it goes on", [change(0, state="a"), change(1, state=("b", "c")), change(2, state=("c", "d"))], "d", [], [1]),
    ("plain values", [change(0, state="a"), change(1, state="b"), change(2, state="a")], "a", [], []),
    ("a late creation", [change(0, state=("a", "b")), change(1, "create", state="a", number=1)], "b", [1], []),
    ("an equal pair long after", [*chain("a", "b", "c"), change(90, state=("a", "b"))], "b", [], [2]),
]  # fmt: skip


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(("changes", "end", "late", "gaps"), [row[1:] for row in CASES], ids=[row[0] for row in CASES])
def test_the_state_is_that_of_the_newest(
    changes: list[RecordedChange], end: str, late: list[int], gaps: list[int], together: bool
):
    ordered = sorted(enumerate(changes), key=lambda one: one[0])
    arrived = [
        RecordedChange(
            event_id=one.event_id, action=one.action, data=one.data, before=one.before, is_stamped=False, is_late=None,
            accepted_at=max(one.accepted_at, AT + timedelta(minutes=place)),
        )
        for place, one in ordered
    ]  # fmt: skip
    state, found_late, found_gaps = run(arrived, together)
    assert (state.data["state"], found_late, found_gaps) == (end, late, gaps)


def test_a_late_creation_fills_in_what_nothing_else_has_set():
    state, _, _ = run([change(0, state="b"), change(1, "create", state="a", number=1)], False)
    assert state.data == {"state": "b", "number": 1}


def test_a_repetition_does_not_revive_what_is_deleted_and_a_new_change_does():
    update, destroy = change(0, state=("a", "b")), change(1, "delete")
    repeated = change(2, state=("a", "b"))
    state, late, _ = run([update, destroy, repeated], False)
    assert (state.is_deleted, late) == (True, [2])
    state, late, _ = run([update, destroy, change(2, state=("b", "c"))], False)
    assert (state.is_deleted, late) == (False, [])


def test_mutant_that_applies_all_ends_in_the_older_state(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(late_changes, "_is_late", lambda *_: False)
    state, _, _ = run([*chain("a", "b", "c"), change(5, state=("a", "b"))], False)
    assert state.data["state"] == "b"


def test_mutant_that_refuses_each_difference_stays_behind_after_a_gap(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(late_changes, "_is_late", lambda _change, _state, differing, _earlier: bool(differing))
    state, _, _ = run([change(0, state="a"), change(1, state=("b", "c")), change(2, state=("c", "d"))], False)
    assert state.data["state"] == "a"
