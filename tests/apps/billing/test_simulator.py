"""Made-up traffic is the same for the same seed, proven as the settings say, and has every trouble in it."""

import base64
import hashlib
import hmac
import json
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from boathook_app_tools.simulation import SimulatedRequest
from boathook_billing.payload import Status
from boathook_billing.rules import Problem
from boathook_billing.settings import Plan
from boathook_billing.simulator import Arrival, Expected, Sender, Simulation

PLANS = (
    Plan(id="month", price=Decimal("990.00"), currency="RUB", days=30),
    Plan(id="year", price=Decimal(9900), currency="RUB", days=365),
)
NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
HEX = Sender(secret="s")


def make_simulation(sender: Sender = HEX, seed: int = 3, payments: int = 300) -> Simulation:
    return Simulation(sender, PLANS, payments=payments, seed=seed, now=NOW)


def requests(simulation: Simulation) -> list[SimulatedRequest]:
    return [step for step in simulation.steps if isinstance(step, SimulatedRequest)]


def test_equal_seeds_give_equal_traffic_and_others_other_ids():
    assert make_simulation().steps == make_simulation().steps
    assert make_simulation().expected() == make_simulation().expected()
    assert not make_simulation().expected().payments.keys() & make_simulation(seed=4).expected().payments.keys()


@pytest.mark.parametrize(
    ("sender", "prove"),
    [
        (HEX, lambda body: hmac.new(b"s", body, hashlib.sha256).hexdigest()),
        (
            Sender(secret="s", encoding="base64", header="X-Sign", path="/pay"),
            lambda body: base64.b64encode(hmac.new(b"s", body, hashlib.sha256).digest()).decode(),
        ),
        (Sender(secret="s", proof="secret"), lambda body: "s"),
    ],
    ids=["hex", "base64", "secret"],
)
def test_only_requests_to_be_accepted_are_signed(sender, prove):
    for request in requests(make_simulation(sender)):
        is_proven = request.headers[sender.header] == prove(request.body)
        assert is_proven is (request.expect != 401)
        assert request.path == sender.path


def is_applied(expected: Expected, id: str) -> bool:
    return expected.payments[id].is_applied


def test_every_problem_is_simulated():
    simulation = make_simulation()
    expected, told = simulation.expected(), requests(simulation)
    entries = expected.payments.values()
    assert {entry.status for entry in entries} == {Status.FAILED, Status.SUCCEEDED, Status.REFUNDED}
    assert {entry.problem for entry in entries} == {
        None, Problem.USER_MISSING, Problem.UNLINKED_PAYMENT, Problem.AMOUNT_MISMATCH,
    }  # fmt: skip
    assert any(entry.is_late for entry in entries)
    assert {request.expect for request in told} == {200, 400, 401}
    assert len(told) > len({request.body for request in told})
    assert {"event_id" in json.loads(request.body) for request in told} == {True, False}
    amounts: dict[str, set[float]] = {}
    for body in (json.loads(request.body) for request in told if request.expect == 200):
        if "event_id" not in body and body["status"] == "paid":
            amounts.setdefault(body["external_payment_id"], set()).add(float(body["amount"]))
    assert any(len(of) == 2 and is_applied(expected, id) for id, of in amounts.items()), "none is corrected"
    assert any(isinstance(step, Arrival) for step in simulation.steps[len(simulation.steps) // 2 :])


def test_credited_and_applied_payments_are_equal():
    expected = make_simulation().expected()
    applied = sum(entry.is_applied for entry in expected.payments.values())
    assert applied == sum(account.payments_applied for account in expected.accounts.values())
