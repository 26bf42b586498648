"""The rules of the payment store, each through HTTP on a running boathook."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from tests.apps.billing.server import YEAR, sign, unique, wait_until

DAY = timedelta(days=1)
A_MINUTE = timedelta(minutes=1)


def paid(server, email: str | None, **fields) -> tuple[str, str]:
    """Send a success; return the payment's id and the event's."""
    payment, event = unique("pay"), unique("evt")
    server.send_payment(payment, email=email, event_id=event, **fields)
    return payment, event


def test_a_success_extends_the_subscription_from_now(server):
    email = server.user()
    payment, event = paid(server, email)
    applied = server.await_applied(payment)["subscription_applied_at"]
    subscription = server.subscription(email)
    assert subscription["status"] == "ACTIVE"
    assert subscription["current_period_end"] == applied + 30 * DAY
    assert subscription["payments_applied"] == 1
    assert server.payment(payment)["subscription_id"] == subscription["id"]
    server.await_end(event, "succeeded")
    wait_until(lambda: server.delivery_state(event, "record") == ("succeeded", None))


def test_an_extension_starts_at_the_end_of_a_running_period(server):
    email = server.user()
    server.await_applied(paid(server, email)[0])
    before = server.subscription(email)["current_period_end"]
    server.await_applied(paid(server, email, **YEAR)[0])
    assert server.subscription(email)["current_period_end"] == before + 365 * DAY


def test_an_extension_starts_now_after_an_ended_period(server):
    email = server.user()
    server.await_applied(paid(server, email)[0])
    server.rows(
        "update billing.subscriptions s set current_period_end = now() - interval '1 day' from billing.users u"
        " where u.id = s.user_id and u.email = %s returning 1", email,
    )  # fmt: skip
    applied = server.await_applied(paid(server, email)[0])["subscription_applied_at"]
    assert server.subscription(email)["current_period_end"] == applied + 30 * DAY


@pytest.mark.smoke
def test_twenty_concurrent_copies_of_a_payment_apply_once(server):
    email, payment = server.user(), unique("pay")
    events = [unique("evt") for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda event: server.send_payment(payment, email=email, event_id=event), events))
    row = server.await_applied(payment)
    server.await_any_end(*events)
    delivery_state = [server.delivery_state(event) for event in events]
    assert delivery_state.count(("succeeded", None)) == 1
    assert delivery_state.count(("ignored", "ALREADY_APPLIED")) == 19
    subscription = server.subscription(email)
    assert subscription["payments_applied"] == 1
    assert subscription["current_period_end"] == row["subscription_applied_at"] + 30 * DAY


def test_a_copy_is_answered_as_a_duplicate_with_and_without_event_id(server):
    email = server.user()
    for event in (unique("evt"), None):
        payment = unique("pay")
        first, again = (server.send_payment(payment, email=email, event_id=event).json() for _ in range(2))
        assert (first["duplicate"], again["duplicate"]) == (False, True)
        assert first["event_id"] == again["event_id"]
        server.await_applied(payment)
    assert server.subscription(email)["payments_applied"] == 2


def test_the_status_only_moves_forward(server):
    email, payment = server.user(), unique("pay")
    seen = []
    for word in ("failed", "pending", "paid", "failed", "pending", "refunded", "paid"):
        event = unique("evt")
        server.send_payment(payment, word, email=email, event_id=event)
        server.await_any_end(event)
        seen.append(server.payment(payment)["status"])
    assert seen == ["FAILED", "FAILED", "SUCCEEDED", "SUCCEEDED", "SUCCEEDED", "REFUNDED", "REFUNDED"]


@pytest.mark.parametrize("word", ["pending", "FAILED", "something new"])
def test_a_non_success_status_is_ignored_with_non_success_status(server, word):
    email, payment, event = server.user(), unique("pay"), unique("evt")
    server.send_payment(payment, word, email=email, event_id=event)
    server.await_end(event, "ignored", "NON_SUCCESS_STATUS")
    assert server.await_payment(payment)["status"] in {"RECEIVED", "FAILED"}
    assert server.subscription(email) is None


def test_an_unknown_user_keeps_the_payment_and_waits_as_user_missing(server):
    email = f"{unique('nobody')}@example.com"
    payment, event = paid(server, email)
    server.await_end(event, "pending", "USER_MISSING")
    row = server.await_payment(payment)
    assert (row["status"], row["user_id"], row["problem"]) == ("SUCCEEDED", None, "USER_MISSING")


def test_waiting_payments_apply_once_when_the_user_is_added_by_command(server):
    email = f"{unique('later')}@example.com"
    payments = [paid(server, email) for _ in range(2)]
    for _payment, event in payments:
        server.await_end(event, "pending", "USER_MISSING")
    # Far in the future, so that only a wake can bring them back in time.
    server.rows(
        "update boathook.delivery set due_at = now() + interval '1 day' where code = 'USER_MISSING' returning 1"
    )
    server.cli("billing", "users", "add", email.upper())
    for payment, event in payments:
        server.await_applied(payment)
        server.await_end(event, "succeeded")
    assert server.subscription(email)["payments_applied"] == 2


def test_waiting_payments_apply_once_when_the_user_is_added_by_sql(server):
    email = f"{unique('later')}@example.com"
    payment, event = paid(server, email)
    again = unique("evt")
    server.send_payment(payment, email=email, event_id=again)
    for key in (event, again):
        server.await_end(key, "pending", "USER_MISSING")
    server.rows(
        "update boathook.delivery set due_at = now() + interval '1 day' where code = 'USER_MISSING' returning 1"
    )
    server.user(email)
    server.await_applied(payment)
    wait_until(
        lambda: (
            {server.delivery_state(event), server.delivery_state(again)}
            == {("succeeded", None), ("ignored", "ALREADY_APPLIED")}
        )
    )
    assert server.subscription(email)["payments_applied"] == 1


def test_a_dead_letter_of_a_missing_user_applies_when_the_user_appears(server):
    email = f"{unique('very-late')}@example.com"
    payment, event = paid(server, email)
    server.await_end(event, "pending", "USER_MISSING")
    server.rows(
        "update boathook.delivery d set due_at = now(), enqueued_at = now() - interval '31 days' from boathook.event e"
        " where e.id = d.event_id and e.dedup_key = %s returning 1", event,
    )  # fmt: skip
    server.await_end(event, "dead", "USER_MISSING")
    server.cli("billing", "users", "add", email)
    server.await_applied(payment)


def test_a_payment_without_email_waits_until_linked(server):
    email = server.user()
    payment, event = paid(server, None)
    server.await_end(event, "pending", "UNLINKED_PAYMENT")
    server.await_payment(payment, problem="UNLINKED_PAYMENT")
    server.cli("billing", "link", payment, email)
    server.await_applied(payment)
    assert server.subscription(email)["payments_applied"] == 1
    server.await_end(event, "succeeded")


@pytest.mark.parametrize("with_event_ids", [True, False])
def test_a_payment_without_email_can_be_linked_by_a_later_event(server, with_event_ids):
    email, payment = server.user(), unique("pay")
    for address in (None, email):
        server.send_payment(payment, email=address, event_id=unique("evt") if with_event_ids else None)
        if address is None:
            server.await_payment(payment, problem="UNLINKED_PAYMENT")
    server.await_applied(payment)
    assert server.subscription(email)["payments_applied"] == 1
    # The older one ends at once, too, and not after hours.
    wait_until(
        lambda: not server.rows(
            "select from boathook.delivery d join billing.payment_events e using (event_id) join billing.payments p"
            " on p.id = e.payment_id where p.external_payment_id = %s", payment,
        )
    )  # fmt: skip


def test_a_wrong_amount_is_final_and_does_not_change_the_subscription(server):
    email = server.user()
    server.await_applied(paid(server, email)[0])
    before = server.subscription(email)
    counted = server.metric("billing_payments_amount_mismatch_total", provider="tilda")
    for wrong in ({"amount": "989.99"}, {"currency": "USD"}):
        payment, event = paid(server, email, **wrong)
        server.await_end(event, "dead", "AMOUNT_MISMATCH")
        server.await_payment(payment, problem="AMOUNT_MISMATCH")
    assert server.subscription(email) == before
    wait_until(lambda: server.metric("billing_payments_amount_mismatch_total", provider="tilda") == counted + 2)
    server.wait_logged('"event":"payment_amount_mismatch"')


def test_a_week_late_webhook_is_processed_normally_and_marked_late(server):
    email = server.user()
    long_ago = (datetime.now(UTC) - timedelta(days=7)).isoformat()
    payment, _event = paid(server, email, paid_at=long_ago)
    row = server.await_applied(payment)
    assert row["is_late"]
    assert server.subscription(email)["current_period_end"] == row["subscription_applied_at"] + 30 * DAY
    wait_until = paid(server, email, paid_at=datetime.now(UTC).isoformat())[0]
    assert not server.await_applied(wait_until)["is_late"]


def refund(server, payment: str, email: str, why: str | None, state: str = "ignored") -> None:
    event = unique("evt")
    server.send_payment(payment, "refunded", email=email, event_id=event)
    server.await_end(event, state, why)


def test_a_refund_reverses_exactly_its_payment_once(server):
    email = server.user()
    server.await_applied(paid(server, email)[0])
    before = server.subscription(email)["current_period_end"]
    payment, _event = paid(server, email, **YEAR)
    server.await_applied(payment)
    refund(server, payment, email, None, "succeeded")
    refund(server, payment, email, "ALREADY_REVERSED")
    subscription = server.subscription(email)
    assert subscription["current_period_end"] == before
    assert (subscription["status"], subscription["payments_applied"]) == ("ACTIVE", 1)
    row = server.payment(payment)
    assert row["status"] == "REFUNDED"
    assert row["reversed_at"]


def test_a_refund_of_the_only_payment_ends_the_subscription(server):
    email = server.user()
    payment, _event = paid(server, email)
    server.await_applied(payment)
    refund(server, payment, email, None, "succeeded")
    subscription = server.subscription(email)
    assert (subscription["status"], subscription["payments_applied"]) == ("INACTIVE", 0)
    assert subscription["current_period_end"] <= datetime.now(UTC)


def test_a_payment_refunded_before_its_success_is_never_applied(server):
    email, payment, event = server.user(), unique("pay"), unique("evt")
    refund(server, payment, email, "NEVER_APPLIED")
    server.send_payment(payment, email=email, event_id=event)
    server.await_end(event, "ignored", "ALREADY_REFUNDED")
    assert server.subscription(email) is None


def test_a_refund_of_a_payment_that_waits_ends_the_waiting(server):
    payment, event = paid(server, None)
    server.await_end(event, "pending", "UNLINKED_PAYMENT")
    refund(server, payment, None, "NEVER_APPLIED")
    server.await_end(event, "ignored", "ALREADY_REFUNDED")
    assert server.payment(payment)["problem"] is None


def test_a_refund_takes_no_days_of_later_payments(server):
    email = server.user()
    old, _event = paid(server, email)
    server.await_applied(old)
    server.rows(
        "update billing.subscriptions s set current_period_end = now() - interval '1 day' from billing.users u"
        " where u.id = s.user_id and u.email = %s returning 1", email,
    )  # fmt: skip
    server.await_applied(paid(server, email)[0])
    end = server.subscription(email)["current_period_end"]
    refund(server, old, email, None, "succeeded")
    assert server.subscription(email)["current_period_end"] == end


def test_a_subscription_ends_with_its_period_also_if_canceled(server):
    email = server.user()
    server.await_applied(paid(server, email)[0])
    server.cli("billing", "cancel", email)
    assert server.subscription(email)["status"] == "CANCELED"
    [row] = [row for row in server.listing("billing", "subscriptions") if row["email"] == email]
    assert row["status"] == "CANCELED"
    server.rows(
        "update billing.subscriptions s set current_period_end = now() from billing.users u"
        " where u.id = s.user_id and u.email = %s returning 1", email,
    )  # fmt: skip
    wait_until(lambda: server.subscription(email)["status"] == "INACTIVE")


def test_a_payment_makes_a_canceled_subscription_active_again(server):
    email = server.user()
    server.await_applied(paid(server, email)[0])
    server.cli("billing", "cancel", email)
    server.await_applied(paid(server, email)[0])
    assert server.subscription(email)["status"] == "ACTIVE"


def test_an_unknown_plan_is_final(server):
    payment, event = paid(server, server.user(), plan_id="gone")
    server.await_end(event, "dead", "PLAN_UNKNOWN")
    server.await_payment(payment, problem="PLAN_UNKNOWN")


def test_capital_statuses_and_plans_by_price_are_accepted(server):
    email = server.user()
    payment = unique("pay")
    server.send_payment(payment, "SUCCEEDED", email=email.upper(), plan_id=None, amount=9900, currency=None)
    assert server.await_applied(payment)["plan_id"] == "year"


def test_every_event_logs_one_line_with_the_state_before_and_after(server):
    email, payment, event = server.user(), unique("pay"), unique("evt")
    told_at = (datetime.now(UTC) - A_MINUTE).isoformat()
    answer = server.send_payment(payment, "Paid", email=email, event_id=event, paid_at=told_at)
    server.await_end(event, "succeeded")

    def line():
        lines = [line for line in server.log().splitlines() if f'"dedup_key":"{event}"' in line]
        return next((json.loads(line) for line in lines if '"event":"payment_event"' in line), None)

    told = wait_until(line)
    assert (told["result"], told["error_code"], told["error_message"]) == ("applied", None, None)
    assert told["request_id"] == answer.json()["request_id"] == answer.headers["x-request-id"]
    assert (told["external_event_id"], told["external_payment_id"]) == (event, payment)
    assert (told["incoming_status"], told["mapped_status"]) == ("Paid", "SUCCEEDED")
    assert (told["amount"], told["currency"]) == ("990.00", "RUB")
    assert 0 < told["duration_ms"] < 60_000
    assert told["payment_status_before"] is None
    assert told["payment_status_after"] == "SUCCEEDED"
    assert told["subscription_end_before"] is None
    assert datetime.fromisoformat(told["subscription_end_after"]) > datetime.now(UTC) + 29 * DAY
    assert (told["applied_before"], told["applied_after"]) == (False, True)
    assert 60 <= told["event_age_s"] < 600
    assert email not in json.dumps(told)


def test_a_forged_request_does_not_block_the_real_payment(server):
    """A forged event with the real one's ids is rejected and stores no key: the real one is not a duplicate."""
    email, payment, event = server.user(), unique("pay"), unique("evt")
    body = json.dumps({"external_payment_id": payment, "status": "paid", "event_id": event, "email": email}).encode()
    assert server.post(body, x_signature="0" * 64).status_code == 401
    assert server.post(body, x_signature=sign(body, "guessed")).status_code == 401
    assert server.post(body).status_code == 401
    assert server.payment(payment) is None
    response = server.send_payment(payment, email=email, event_id=event)
    assert response.json()["duplicate"] is False
    server.await_applied(payment)
