"""Subscriptions are correct for any order, duplicates and concurrency of the traffic."""

import re

import asyncpg
import pytest

from boathook_app_tools.simulation import SimulatedRequest
from boathook_billing.sending import differences
from tests.apps.billing.traffic import await_books, make_simulation, send_steps, shuffled
from tests.support import sampled

SEEDS = range(100, 104)


@pytest.mark.parametrize("seed", sampled(SEEDS, keep=1))
def test_any_permutation_of_a_history_ends_in_the_same_books(server, seed):
    simulation = make_simulation(seed, payments=25)
    send_steps(server, shuffled(simulation.steps, seed), at_once=8)
    await_books(server, simulation.expected())


def test_replaying_a_whole_history_changes_nothing(server):
    simulation = make_simulation(200, payments=25)
    send_steps(server, simulation.steps)
    await_books(server, simulation.expected())
    requests = [step for step in simulation.steps if isinstance(step, SimulatedRequest)]
    send_steps(server, shuffled(requests, 1), at_once=8)
    await_books(server, simulation.expected())


def test_the_store_balances_after_all_of_it(server):
    done = server.cli("check")
    assert re.search(r"the store is consistent", done.stdout), done.stdout


@pytest.fixture(scope="module")
def expected_state(server):
    simulation = make_simulation(300, payments=15)
    send_steps(server, simulation.steps)
    await_books(server, simulation.expected())
    return simulation.expected()


THESE = "from billing.users u where u.id = s.user_id and u.email = $1"
OF_THESE = (
    "from billing.users u where u.id = p.user_id and u.email = $1"
    " and p.subscription_applied_at is not null and p.reversed_at is null"
)
DAMAGES = {
    "longer": f"update billing.subscriptions s set current_period_end = current_period_end + interval '1 day' {THESE}",
    "canceled": f"update billing.subscriptions s set status = 'CANCELED' {THESE}",
    "undone": "update billing.payments p set status = 'FAILED', subscription_applied_at = null, applied_days = null,"
    f" applied_stretch = null, subscription_id = null {OF_THESE}",
    "reversed": f"update billing.payments p set reversed_at = now(), status = 'REFUNDED' {OF_THESE}",
    "late": f"update billing.payments p set is_late = not is_late {OF_THESE}",
}


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
async def test_the_comparison_detects_manual_damage(server, expected_state, damage):
    email = next(email for email, account in expected_state.accounts.items() if account.days)
    connection = await asyncpg.connect(server.database_url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        assert not await differences(connection, expected_state)
        await connection.execute(damage, email)
        assert await differences(connection, expected_state)
    finally:
        await transaction.rollback()
        await connection.close()
