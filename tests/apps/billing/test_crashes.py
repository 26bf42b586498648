"""Processes die at every named moment between two irreversible steps, and the books still come out right."""

import pytest

from boathook.telemetry.crashpoints import POINTS
from tests.apps.billing.stand import Stand
from tests.apps.billing.traffic import await_books, made_up, play

HITS = {"accept": 20, "claim": 5, "handler": 25, "retry": 3, "dead": 1}
"""How often each kind of point is passed before the process that passes it is killed."""
CASES = [point for point in POINTS if point.partition(".")[0] in HITS]


@pytest.mark.parametrize("point", CASES)
def test_the_books_are_right_after_a_kill_at(point, tmp_path, admin_url, pg_template):
    fired = tmp_path / "fired"
    simulation = made_up(CASES.index(point), payments=40)
    with Stand.lent(tmp_path, admin_url, pg_template) as stand:
        stand.start(BOATHOOK_CRASH_POINT=f"{point}:{HITS[point.partition('.')[0]]}:kill:{fired}")
        play(stand, simulation.steps, at_once=4)
        await_books(stand, simulation.expected())
        assert fired.exists(), "nothing was killed"
        assert "balance" in stand.cli("verify").stdout
