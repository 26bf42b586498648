"""Failpoints at which a process dies: one or several, each after a number of passes."""

from pathlib import Path

import pytest

from boathook.observability.failpoints import FAILPOINTS, FailpointHit, arm


def fired(passing, points: str) -> list[str]:
    """Return which of the points, passed one after another, raised."""
    raised = []
    for point in points.split():
        try:
            passing(point)
        except FailpointHit as hit:
            raised.append(str(hit))
    return raised


def test_nothing_happens_where_nothing_is_set():
    assert fired(arm(None), " ".join(FAILPOINTS)) == []


def test_a_point_is_hit_when_it_has_been_passed_so_often():
    passing = arm("claim.after_commit:3:raise")
    points = "claim.after_commit dead.after_move claim.after_commit claim.after_commit claim.after_commit"
    assert fired(passing, points) == ["claim.after_commit"]


def test_several_points_have_hits_and_files_of_their_own(tmp_path: Path):
    setting = f"claim.after_commit:1:raise:{tmp_path / 'a'},dead.after_move:2:raise:{tmp_path / 'b'}"
    points = "claim.after_commit dead.after_move dead.after_move"
    first = arm(setting)
    assert fired(first, "claim.after_commit") == ["claim.after_commit"]
    assert (tmp_path / "a").exists()
    assert not (tmp_path / "b").exists()
    assert fired(arm(setting), points) == ["dead.after_move"], "who is started again meets what is left"
    assert fired(arm(setting), points) == []


@pytest.mark.parametrize(
    "setting",
    [
        "",
        "nowhere:1:kill",
        "claim.after_commit:0:kill",
        "claim.after_commit:1:sing",
        "claim.after_commit",
        "claim:1:kill",
    ],
)
def test_invalid_settings_are_refused(setting: str):
    with pytest.raises(ValueError, match="must be point:count"):
        arm(f"claim.after_commit:1:raise,{setting}")
