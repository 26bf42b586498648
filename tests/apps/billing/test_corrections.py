"""Without an event id, other bytes are another event: a corrected payment is applied, and a payment only once."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from tests.apps.billing.server import MONTH, BillingServer, sign, unique, wait_until


def send(server: BillingServer, payment: str, email: str, **fields: Any) -> dict[str, Any]:
    """Send a success without an event id and return the answer."""
    told = {"external_payment_id": payment, "status": "paid", **MONTH, "email": email, **fields}
    body = json.dumps({key: value for key, value in told.items() if value is not None}).encode()
    response = server.post(body, x_signature=sign(body))
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def ends(server: BillingServer, payment: str, events: int) -> list[tuple[str, str | None]]:
    """Return the state and note of each delivery to `apply` about a payment, once each of its events has an ended one."""

    def ended() -> list[dict[str, Any]]:
        rows = server.rows(
            "select coalesce(a.state, d.state) as state, coalesce(a.note, d.code) as note from billing.payment_events e"
            " join billing.payments p on p.id = e.payment_id"
            " left join boathook.delivery d on d.event_id = e.event_id and d.recipient = 'handler:billing.apply'"
            " left join boathook.delivery_archive a on a.event_id = e.event_id and a.recipient = 'handler:billing.apply'"
            " where p.external_payment_id = %s order by e.accepted_at",
            payment,
        )
        done = len(rows) == events and all(row["state"] in {"succeeded", "ignored", "dead"} for row in rows)
        return rows if done else []

    return [(row["state"], row["note"]) for row in wait_until(ended)]


def await_mismatch(server: BillingServer, payment: str) -> None:
    server.await_payment(payment, problem="AMOUNT_MISMATCH")
    wait_until(
        lambda: server.rows(
            "select from boathook.delivery d join billing.payment_events e using (event_id)"
            " join billing.payments p on p.id = e.payment_id"
            " where p.external_payment_id = %s and d.state = 'dead' and d.code = 'AMOUNT_MISMATCH'",
            payment,
        )
    )


@pytest.mark.parametrize("wrong", [{"amount": "9.90"}, {"currency": "USD"}, {"plan_id": "gone"}], ids=str)
def test_a_corrected_payment_is_applied_and_ends_the_dead_letter(server: BillingServer, wrong):
    email, payment = server.user(), unique("pay")
    answer = send(server, payment, email, **wrong)
    server.await_payment(payment, status="SUCCEEDED")
    wait_until(lambda: server.payment(payment)["problem"])
    corrected = send(server, payment, email)
    assert (corrected["duplicate"], corrected.get("conflict")) == (False, None)
    assert corrected["event_id"] != answer["event_id"]
    row = server.await_applied(payment)
    assert (row["problem"], str(row["amount"]), row["currency"], row["plan_id"]) == (None, "990.00", "RUB", "month")
    wait_until(lambda: {state for state, _ in ends(server, payment, 2)} <= {"succeeded", "ignored"})
    assert server.subscription(email)["payments_applied"] == 1


def test_a_wrong_amount_after_the_right_one_changes_nothing(server: BillingServer):
    payment, email = unique("pay"), f"{unique('later')}@example.com"
    send(server, payment, email)
    server.await_payment(payment, problem="USER_MISSING")
    send(server, payment, email, amount="9.90")
    wait_until(lambda: len(server.rows(
        "select from billing.payment_events e join billing.payments p on p.id = e.payment_id"
        " where p.external_payment_id = %s", payment)) == 2)  # fmt: skip
    assert str(server.payment(payment)["amount"]) == "990.00"
    server.user(email)
    server.await_applied(payment)
    assert sorted(ends(server, payment, 2)) == [("ignored", "ALREADY_APPLIED"), ("succeeded", None)]


def test_a_correction_may_name_another_user(server: BillingServer):
    """A payment of a wrong amount is linked to nobody, so that its correction is not applied to a wrong user."""
    mistaken, email, payment = server.user(), server.user(), unique("pay")
    send(server, payment, mistaken, amount="9.90")
    await_mismatch(server, payment)
    assert server.payment(payment)["user_id"] is None
    send(server, payment, email)
    server.await_applied(payment)
    assert server.subscription(email)["payments_applied"] == 1
    assert server.subscription(mistaken) is None


def test_the_same_bytes_are_a_duplicate(server: BillingServer):
    email, payment = server.user(), unique("pay")
    first = send(server, payment, email)
    second = send(server, payment, email)
    assert (first["duplicate"], second["duplicate"], second["event_id"]) == (False, True, first["event_id"])
    server.await_applied(payment)


def test_one_payment_in_five_concurrent_bodies_is_booked_once(server: BillingServer):
    email, payment = server.user(), unique("pay")
    with ThreadPoolExecutor(5) as pool:
        answers = list(pool.map(lambda number: send(server, payment, email, comment=f"copy {number}"), range(5)))
    assert len({answer["event_id"] for answer in answers}) == 5
    assert not any(answer["duplicate"] for answer in answers)
    server.await_applied(payment)
    assert sorted(ends(server, payment, 5)) == [("ignored", "ALREADY_APPLIED")] * 4 + [("succeeded", None)]
    subscription = server.subscription(email)
    assert subscription["payments_applied"] == 1
    row = server.payment(payment)
    assert (subscription["current_period_end"] - row["subscription_applied_at"]).days == 30


def test_the_time_of_payment_is_the_payloads_or_that_of_its_report(server: BillingServer):
    email, told, untold = server.user(), unique("pay"), unique("pay")
    send(server, told, email, paid_at="2026-01-31T12:00:00+03:00")
    send(server, untold, email)
    server.send_payment(pending := unique("pay"), "pending", email=email)
    assert server.await_applied(told)["paid_at"].isoformat() == "2026-01-31T09:00:00+00:00"
    row = server.await_applied(untold)
    [event] = server.rows("select accepted_at from billing.payment_events where payment_id = %s", row["id"])
    assert row["paid_at"] == event["accepted_at"]
    assert not row["is_late"]
    assert server.await_payment(pending, status="RECEIVED")["paid_at"] is None
