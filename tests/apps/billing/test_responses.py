"""Responses to the provider for every kind of proof."""

import json
from typing import Any

import pytest

from tests.apps.billing.server import SECRET, BillingServer, payload, sign, started, unique, wait_until


def whole(**changes) -> bytes:
    return payload(**{"external_payment_id": unique("pay"), "status": "paid", "email": None, **changes})


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"not json",
        b'{"external_payment_id": "p", "status": "paid"',
        b"[1, 2]",
        b'{"external_payment_id": "p", "status": "paid", "amount": NaN}',
        payload(status="paid"),
        payload(external_payment_id="p"),
        payload(external_payment_id="", status="paid"),
        payload(external_payment_id="p", status="paid", email=None, amount=-1),
        payload(external_payment_id="p", status="paid", email=None, amount="many"),
        payload(external_payment_id="p", status="paid", email=None, paid_at="yesterday"),
        payload(external_payment_id="p", status="paid", email=7),
    ],
    ids=lambda body: body.decode()[-40:],
)
def test_400_for_a_broken_payload_which_becomes_no_event(server, body):
    before = server.rows("select count(*) as n from boathook.event")
    response = server.post(body, x_signature=sign(body))
    assert response.status_code == 400, response.text
    assert server.rows("select count(*) as n from boathook.event") == before


def test_a_broken_payload_is_kept_as_a_rejection(server):
    body = whole(amount="plenty")

    def is_kept() -> list[dict[str, Any]]:
        # Only so many a second are kept, and the tests before this one may have used them up.
        server.post(body, x_signature=sign(body))
        return server.rows("select from boathook.rejection where body = %s", body)

    wait_until(is_kept)


@pytest.mark.parametrize(
    "signature", ["", "0" * 64, "no hex", sign(b"other bytes")], ids=["none", "zeros", "text", "other"]
)
def test_401_for_a_bad_signature_with_any_payload(server, signature):
    for body in (whole(), b"not json"):
        headers = {"x_signature": signature} if signature else {}
        assert server.post(body, **headers).status_code == 401


def test_200_for_accepted_duplicate_ignored_and_waiting(server):
    email = server.user()
    first = server.send_payment(payment := unique("pay"), email=email, event_id=(event := unique("evt")))
    assert first.json()["ok"] is True
    assert server.send_payment(payment, email=email, event_id=event).json()["duplicate"] is True
    server.await_applied(payment)
    ignored, waiting = unique("evt"), unique("evt")
    server.send_payment(unique("pay"), "pending", event_id=ignored)
    server.await_end(ignored, "ignored", "NON_SUCCESS_STATUS")
    server.send_payment(unique("pay"), email="nobody@example.com", event_id=waiting)
    server.await_end(waiting, "pending", "USER_MISSING")


def test_an_event_id_with_another_body_is_a_conflict_without_effect(server):
    email, payment, event = server.user(), unique("pay"), unique("evt")
    server.send_payment(payment, email=email, event_id=event)
    server.await_applied(payment)
    response = server.send_payment(unique("pay"), email=email, event_id=event)
    assert response.json()["duplicate"] is True
    wait_until(lambda: server.rows("select from boathook.conflict where dedup_key = %s", event))
    assert server.subscription(email)["payments_applied"] == 1


def test_unknown_fields_are_accepted(server):
    email = server.user()
    server.send_payment(payment := unique("pay"), email=email, form={"name": "Anna"}, products=[{"sku": 1}])
    server.await_applied(payment)


@pytest.fixture(scope="module")
def static(tmp_path_factory, admin_url, pg_template):
    """A boathook that is shown the secret itself, as Tilda does, at a path and under a provider of the owner's choice."""
    settings = 'proof = "secret"\nheader = "X-Tilda-Key"\nprovider = "tilda-shop"\n'
    with started(tmp_path_factory.mktemp("static"), admin_url, pg_template, billing=settings) as running:
        yield running


def test_a_static_header_secret_can_be_configured(static: BillingServer):
    email, payment = static.user(), unique("pay")
    body = whole(external_payment_id=payment, email=email, amount="990.00", plan_id="month")
    assert static.post(body).status_code == 401
    assert static.post(body, x_tilda_key="guessed").status_code == 401
    assert static.post(body, x_signature=sign(body)).status_code == 401
    assert static.post(body, x_tilda_key=SECRET).status_code == 200
    static.await_applied(payment)
    assert static.payment(payment)["provider"] == "tilda-shop"


def test_ids_of_payments_are_unique_within_a_provider(static: BillingServer):
    payment = unique("pay")
    static.rows(
        "insert into billing.payments (provider, external_payment_id, status) values ('other', %s, 'FAILED') returning 1",
        payment,
    )
    static.post(whole(external_payment_id=payment), x_tilda_key=SECRET)
    wait_until(lambda: len(static.rows("select from billing.payments where external_payment_id = %s", payment)) == 2)


@pytest.fixture(scope="module")
def in_base64(tmp_path_factory, admin_url, pg_template):
    settings = 'encoding = "base64"\nheader = "X-Sign"\npath = "/pay/notify"\n'
    with started(tmp_path_factory.mktemp("base64"), admin_url, pg_template, billing=settings) as running:
        yield running


def test_header_path_and_encoding_of_the_signature_can_be_configured(
    in_base64: BillingServer,
):
    import httpx

    body = whole()
    for value, status in ((sign(body), 401), (sign(body, encoding="base64"), 200)):
        headers = {"x-sign": value, "content-type": "application/json"}
        assert httpx.post(f"{in_base64.base}/pay/notify", content=body, headers=headers).status_code == status
    id = json.loads(body)["external_payment_id"]
    wait_until(lambda: in_base64.payment(id))
