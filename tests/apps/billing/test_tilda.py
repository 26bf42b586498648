"""Tilda's own order webhook: a form, which brings its secret along."""

import contextlib
import json
from dataclasses import replace
from decimal import Decimal
from urllib.parse import urlencode

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook import ConfigError
from boathook_app_tools.simulation import SimulatedRequest
from boathook_billing.app import hook
from boathook_billing.payload import Notice, Status
from boathook_billing.rules import Problem
from boathook_billing.sending import simulation
from boathook_billing.settings import BillingSettings, Plan
from boathook_billing.simulator import Sender
from boathook_billing.tilda import read_order
from boathook_billing.tilda_simulator import TildaSimulation
from tests.apps.billing.server import SECRET, BillingServer, started, unique, wait_until

ORDER = {"orderid": "1001", "systranid": "0", "amount": "990", "currency": "RUB"}


def apart(email: str = "anna@example.com", **payment: str) -> bytes:
    """Return an order whose payment is in separate fields."""
    told = {f"payment[{name}]": value for name, value in {**ORDER, **payment}.items()}
    return urlencode({"Name": "Анна", "Email": email, "tranid": unique("1:2"), "formid": "form7", **told}).encode()


def whole(**payment: str) -> bytes:
    """Return an order whose payment is one field of JSON."""
    return urlencode({"email": "anna@example.com", "payment": json.dumps({**ORDER, **payment})}).encode()


@pytest.mark.parametrize("write", [apart, whole])
def test_an_order_is_received_until_its_payment_has_a_number(write):
    wanted = Notice(
        external_payment_id="1001",
        status=Status.RECEIVED,
        email="anna@example.com",
        amount=Decimal(990),
        currency="RUB",
    )
    assert replace(read_order(write()), event_id=None) == wanted
    assert read_order(write(systranid="")).status is Status.RECEIVED
    assert read_order(write(systranid="77")).status is Status.SUCCEEDED


@pytest.mark.own_process
@pytest.mark.parametrize("body", [b"", b"Email=a%40b.c", apart(orderid=""), apart(amount=""), apart(amount="much"),
                                  b"{", b'{"payment": 1}', b'{"payment": "x"}', b"{" * 100_000, b'{"payment": [{}]}',
                                  b"payment=%7B", b"payment=[]", b"payment=" + b"[" * 100_000])  # fmt: skip
def test_a_form_that_is_no_order_is_an_error_that_names_itself(body):
    with pytest.raises(ValueError, match=r".+"):
        read_order(body)


@given(st.binary(max_size=300))
def test_any_bytes_are_an_order_or_an_error(body):
    with contextlib.suppress(ValueError):
        assert read_order(b"payment[orderid]=1&payment[amount]=9&" + body).external_payment_id


@pytest.fixture(scope="module")
def shop(tmp_path_factory, admin_url, pg_template):
    settings = 'form = "tilda"\nproof = "secret"\nheader = "X-Api-Key"\n'
    with started(tmp_path_factory.mktemp("tilda"), admin_url, pg_template, billing=settings) as running:
        yield running


FORM = "application/x-www-form-urlencoded"


def send_order(shop: BillingServer, body: bytes, key: str = SECRET, media: str = FORM) -> int:
    headers = {"content-type": media, "x-api-key": key}
    return httpx.post(f"{shop.base}/webhooks/payments", content=body, headers=headers, timeout=300).status_code


def test_an_order_of_tilda_is_applied_once_when_it_is_paid(shop: BillingServer):
    email, order, number = shop.user(), unique("order"), unique("7")
    assert send_order(shop, apart(email, orderid=order), key="guessed") == 401
    assert send_order(shop, apart(email, orderid=order)) == 200
    shop.await_payment(order, status="RECEIVED")
    paid = apart(email.upper(), orderid=order, systranid=number)
    assert [
        send_order(shop, paid),
        send_order(shop, paid),
        send_order(shop, apart(email, orderid=order, systranid=number)),
    ] == [200] * 3
    shop.await_applied(order)
    wait_until(shop.is_idle)
    subscription = shop.subscription(email)
    assert subscription is not None
    assert subscription["payments_applied"] == 1


def test_tildas_url_check_is_answered(shop: BillingServer):
    assert send_order(shop, b"test=test", key="") == 200


def test_a_form_without_an_order_is_a_dead_letter(shop: BillingServer):
    before = len(shop.rows("select from billing.payments"))
    assert send_order(shop, urlencode({"Email": "a@b.c", "tranid": unique("form"), "formid": "form8"}).encode()) == 200
    wait_until(lambda: shop.rows("select from boathook.delivery where state = 'dead' and code = 'BROKEN_PAYLOAD'"))
    assert len(shop.rows("select from billing.payments")) == before


def test_simulated_orders_are_handled_as_expected(shop: BillingServer):
    done = shop.cli("billing", "simulate", "--url", shop.base, "--count", "60", "--seed", "4", "--json", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert (result["unexpected"], result["differences"], result["finished"]) == (0, [], True)
    assert result["effects"]["payments applied"] > 20
    assert set(result["answers"]) == {"200", "401"}


def test_simulated_orders_have_every_shape_and_problem():
    plans = [Plan(id="month", price=Decimal("990.00"), currency="RUB", days=30)]
    simulation = TildaSimulation(Sender(secret="s", proof="secret"), plans, payments=300, seed=3)
    requests = [step for step in simulation.steps if isinstance(step, SimulatedRequest)]
    orders = [read_order(request.body) for request in requests]
    assert {request.headers["content-type"] for request in requests} == {FORM, "application/json"}
    assert any(b"payment=%7B" in request.body for request in requests)
    assert {order.status for order in orders} == {Status.RECEIVED, Status.SUCCEEDED}
    assert {order.email is None for order in orders} == {True, False}
    assert len({request.body for request in requests}) < len(requests), "nothing is repeated"
    entries = simulation.expected().payments.values()
    assert {entry.problem for entry in entries} == {
        None, Problem.USER_MISSING, Problem.UNLINKED_PAYMENT, Problem.AMOUNT_MISMATCH,
    }  # fmt: skip
    assert {entry.status for entry in entries} == {Status.RECEIVED, Status.SUCCEEDED}


def test_simulate_needs_a_plan_that_its_price_names():
    plans = [{"id": "month", "price": "990", "days": 30}, {"id": "other", "price": "990", "days": 31}]
    settings = BillingSettings(secret="s", proof="secret", form="tilda", plans=plans)
    hook.bind(settings, FakeSecrets())
    try:
        with pytest.raises(ConfigError, match=r"billing\.plans: no plan in RUB has a price of its own"):
            simulation(settings, count=1, seed=1)
    finally:
        hook.bind(None, None)


class FakeSecrets:
    """A platform that resolves nothing."""

    def resolve(self, reference: str, key: str) -> str:
        return reference


@pytest.mark.parametrize("field", ["orderid", "currency"])
def test_a_short_number_of_huge_value_is_refused_at_once(field: str):
    payment = json.dumps(ORDER | {field: "HUGE"}).replace('"HUGE"', "1e999999999")
    with pytest.raises(ValueError, match="is not text"):
        read_order(urlencode({"payment": payment}).encode())
