"""Processes die at every failpoint, and subscriptions are still correct."""

import pytest

from boathook.observability.failpoints import FAILPOINTS
from tests.apps.billing.server import BillingServer
from tests.apps.billing.traffic import await_books, make_simulation, send_steps
from tests.crash_schedule import CrashSchedule

pytestmark = pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")

HITS = {"accept": 20, "claim": 2, "handler": 8, "retry": 1, "dead": 1}
"""How often a process passes each kind of point before it is killed there; failures are few, and go in batches."""
ROUNDS = 6
STEPS = {"accepting": ("accept",), "handling": ("claim", "handler"), "failing": ("retry", "dead")}


@pytest.mark.parametrize("steps", STEPS)
def test_subscriptions_are_correct_after_kills(steps, tmp_path, admin_url, pg_template):
    kinds = [(point, point.partition(".")[0]) for point in FAILPOINTS]
    crashes = CrashSchedule(tmp_path, {point: HITS[kind] for point, kind in kinds if kind in STEPS[steps]})
    assert crashes.hits
    with BillingServer.prepared(tmp_path, admin_url, pg_template) as server:
        server.start(**crashes.environment)
        # Which crash points a simulation passes is partly chance, so more are run until a process has died at each.
        for seed in range([*STEPS].index(steps), ROUNDS * len(STEPS), len(STEPS)):
            simulation = make_simulation(seed, payments=60)
            send_steps(server, simulation.steps, at_once=4)
            await_books(server, simulation.expected())
            if not crashes.pending():
                break
        assert crashes.pending() == set(), "nothing was killed there"
        assert "the store is consistent" in server.cli("check").stdout
