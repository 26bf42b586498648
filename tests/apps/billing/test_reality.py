"""The requests that senders document or send, `tests/reality`: parsed, and handled by a real server."""

import json
from decimal import Decimal

import jsonschema
import pytest

from boathook_billing.payload import SCHEMA, Status, read_notice
from boathook_billing.tilda import read_order
from tests import reality
from tests.apps.billing.server import BillingServer, sign, wait_until
from tests.apps.billing.test_tilda import send_order, shop

ORDERS = {name: body for name, body in reality.examples("tilda").items() if name.startswith("order")}
PAYMENTS = reality.examples("payments")
__all__ = ["shop"]


@pytest.mark.parametrize("name", sorted(ORDERS))
def test_each_order_of_tilda_is_read(name: str):
    notice = read_order(ORDERS[name])
    assert notice.status is (Status.SUCCEEDED if "paid" in name else Status.RECEIVED)
    assert notice.email == "vera@example.com"
    assert notice.amount == Decimal(9900 if "delivery" in name else 990)
    assert notice.external_payment_id.startswith("17300")
    assert (notice.currency, notice.paid_at, notice.event_id, notice.reported_status) == (None, None, None, None)


def test_an_order_as_json_is_the_order_as_a_form():
    placed, paid = read_order(ORDERS["order_placed.json"]), read_order(ORDERS["order_paid.json"])
    assert placed.external_payment_id == paid.external_payment_id == "1730048560"


@pytest.mark.parametrize("name", sorted(PAYMENTS))
def test_each_payment_is_valid_and_read(name: str):
    told = json.loads(PAYMENTS[name])
    assert jsonschema.Draft202012Validator(SCHEMA).is_valid(told)
    notice = read_notice(PAYMENTS[name])
    assert notice.external_payment_id == told["external_payment_id"]
    assert (notice.event_id, notice.email, notice.plan_id) == (
        told.get("event_id"), told.get("email"), told.get("plan_id"),
    )  # fmt: skip
    assert notice.amount == (Decimal(told["amount"]) if "amount" in told else None)
    assert notice.status is (Status.RECEIVED if name == "minimal.json" else Status.SUCCEEDED)


def test_the_corrected_example_is_applied_byte_for_byte(server: BillingServer):
    server.user("vera@example.com")
    for name in ("paid_wrong_amount_without_event_id.json", "paid_corrected_without_event_id.json"):
        body = PAYMENTS[name]
        assert server.post(body, x_signature=sign(body)).json()["duplicate"] is False
        server.await_payment("pay_4711")
    assert server.await_applied("pay_4711")["amount"] == Decimal("990.00")
    subscription = server.subscription("vera@example.com")
    assert subscription is not None
    assert subscription["payments_applied"] == 1


def test_orders_of_tilda_are_applied_byte_for_byte_as_forms_and_as_json(shop: BillingServer):
    shop.user("vera@example.com")
    for name in (
        "order_placed.form",
        "order_paid.form",
        "order_placed.json",
        "order_paid.json",
        "order_text_paid.form",
    ):
        is_json = name.endswith(".json")
        media = "application/json" if is_json else "application/x-www-form-urlencoded"
        assert send_order(shop, ORDERS[name], media=media) == 200
    for order in ("1730048211", "1730048560", "1730048402"):
        shop.await_applied(order)
    wait_until(shop.is_idle)
    subscription = shop.subscription("vera@example.com")
    assert subscription is not None
    assert subscription["payments_applied"] == 3
    assert send_order(shop, reality.examples("tilda")["url_check.form"], key="") == 200
