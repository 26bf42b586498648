"""The rules of the books, each through HTTP on a running boathook."""

import json
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from tests.apps.billing.server import YEAR, sign, soon, unique

DAY = timedelta(days=1)
A_MINUTE = timedelta(minutes=1)


def paid(stand, email: str | None, **fields) -> tuple[str, str]:
    """Tell of a success; return the payment's id and the event's."""
    payment, event = unique("pay"), unique("evt")
    stand.tell(payment, email=email, event_id=event, **fields)
    return payment, event


def test_a_success_extends_the_subscription_from_now(stand):
    email = stand.user()
    payment, event = paid(stand, email)
    applied = stand.await_applied(payment)["subscription_applied_at"]
    subscription = stand.subscription(email)
    assert subscription["status"] == "ACTIVE"
    assert subscription["current_period_end"] == applied + 30 * DAY
    assert subscription["payments_applied"] == 1
    stand.await_end(event, "succeeded")
    soon(lambda: stand.ends(event, "record") == ("succeeded", None))


def test_an_extension_begins_where_the_period_ends_while_it_runs(stand):
    email = stand.user()
    stand.await_applied(paid(stand, email)[0])
    before = stand.subscription(email)["current_period_end"]
    stand.await_applied(paid(stand, email, **YEAR)[0])
    assert stand.subscription(email)["current_period_end"] == before + 365 * DAY


def test_an_extension_begins_now_where_the_period_has_ended(stand):
    email = stand.user()
    stand.await_applied(paid(stand, email)[0])
    stand.rows(
        "update billing.subscriptions s set current_period_end = now() - interval '1 day' from billing.users u"
        " where u.id = s.user_id and u.email = %s returning 1", email,
    )  # fmt: skip
    applied = stand.await_applied(paid(stand, email)[0])["subscription_applied_at"]
    assert stand.subscription(email)["current_period_end"] == applied + 30 * DAY


def test_a_payment_is_applied_exactly_once_for_twenty_concurrent_copies_under_different_event_ids(stand):
    email, payment = stand.user(), unique("pay")
    events = [unique("evt") for _ in range(20)]
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda event: stand.tell(payment, email=email, event_id=event), events))
    row = stand.await_applied(payment)
    stand.await_any_end(*events)
    ends = [stand.ends(event) for event in events]
    assert ends.count(("succeeded", None)) == 1
    assert ends.count(("ignored", "ALREADY_APPLIED")) == 19
    subscription = stand.subscription(email)
    assert subscription["payments_applied"] == 1
    assert subscription["current_period_end"] == row["subscription_applied_at"] + 30 * DAY


def test_a_copy_is_answered_as_a_duplicate_with_and_without_event_id(stand):
    email = stand.user()
    for event in (unique("evt"), None):
        payment = unique("pay")
        first, again = (stand.tell(payment, email=email, event_id=event).json() for _ in range(2))
        assert (first["duplicate"], again["duplicate"]) == (False, True)
        assert first["event_id"] == again["event_id"]
        stand.await_applied(payment)
    assert stand.subscription(email)["payments_applied"] == 2


def test_the_status_only_moves_forward(stand):
    email, payment = stand.user(), unique("pay")
    seen = []
    for word in ("failed", "pending", "paid", "failed", "pending", "refunded", "paid"):
        event = unique("evt")
        stand.tell(payment, word, email=email, event_id=event)
        stand.await_any_end(event)
        seen.append(stand.payment(payment)["status"])
    assert seen == ["FAILED", "FAILED", "SUCCEEDED", "SUCCEEDED", "SUCCEEDED", "REFUNDED", "REFUNDED"]


@pytest.mark.parametrize("word", ["pending", "FAILED", "something new"])
def test_a_non_success_status_is_ignored_with_non_success_status(stand, word):
    email, payment, event = stand.user(), unique("pay"), unique("evt")
    stand.tell(payment, word, email=email, event_id=event)
    stand.await_end(event, "ignored", "NON_SUCCESS_STATUS")
    assert stand.await_payment(payment)["status"] in {"RECEIVED", "FAILED"}
    assert stand.subscription(email) is None


def test_an_unknown_user_keeps_the_payment_and_waits_as_user_missing(stand):
    email = f"{unique('nobody')}@example.com"
    payment, event = paid(stand, email)
    stand.await_end(event, "pending", "USER_MISSING")
    row = stand.await_payment(payment)
    assert (row["status"], row["user_id"], row["problem"]) == ("SUCCEEDED", None, "USER_MISSING")


def test_as_soon_as_the_user_appears_by_command_the_waiting_payments_apply_once(stand):
    email = f"{unique('later')}@example.com"
    payments = [paid(stand, email) for _ in range(2)]
    for _payment, event in payments:
        stand.await_end(event, "pending", "USER_MISSING")
    # Far in the future, so that only a wake can bring them back in time.
    stand.rows("update boathook.delivery set due_at = now() + interval '1 day' where code = 'USER_MISSING' returning 1")
    stand.cli("billing", "users", "add", email.upper())
    for payment, event in payments:
        stand.await_applied(payment)
        stand.await_end(event, "succeeded")
    assert stand.subscription(email)["payments_applied"] == 2


def test_as_soon_as_the_user_appears_by_plain_sql_the_waiting_payments_apply_once(stand):
    email = f"{unique('later')}@example.com"
    payment, event = paid(stand, email)
    again = unique("evt")
    stand.tell(payment, email=email, event_id=again)
    for key in (event, again):
        stand.await_end(key, "pending", "USER_MISSING")
    stand.rows("update boathook.delivery set due_at = now() + interval '1 day' where code = 'USER_MISSING' returning 1")
    stand.user(email)
    stand.await_applied(payment)
    soon(lambda: {stand.ends(event), stand.ends(again)} == {("succeeded", None), ("ignored", "ALREADY_APPLIED")})
    assert stand.subscription(email)["payments_applied"] == 1


def test_a_dead_letter_of_a_missing_user_applies_when_the_user_appears(stand):
    email = f"{unique('very-late')}@example.com"
    payment, event = paid(stand, email)
    stand.await_end(event, "pending", "USER_MISSING")
    stand.rows(
        "update boathook.delivery d set due_at = now(), owed_since = now() - interval '31 days' from boathook.event e"
        " where e.id = d.event_id and e.dedup_key = %s returning 1", event,
    )  # fmt: skip
    stand.await_end(event, "dead", "USER_MISSING")
    stand.cli("billing", "users", "add", email)
    stand.await_applied(payment)


def test_a_payment_without_email_waits_as_unlinked_payment_and_can_be_linked_by_hand(stand):
    email = stand.user()
    payment, event = paid(stand, None)
    stand.await_end(event, "pending", "UNLINKED_PAYMENT")
    stand.await_payment(payment, problem="UNLINKED_PAYMENT")
    stand.cli("billing", "link", payment, email)
    stand.await_applied(payment)
    assert stand.subscription(email)["payments_applied"] == 1
    stand.await_end(event, "succeeded")


@pytest.mark.parametrize("with_event_ids", [True, False])
def test_a_payment_without_email_can_be_linked_by_a_later_event(stand, with_event_ids):
    email, payment = stand.user(), unique("pay")
    for address in (None, email):
        stand.tell(payment, email=address, event_id=unique("evt") if with_event_ids else None)
        if address is None:
            stand.await_payment(payment, problem="UNLINKED_PAYMENT")
    stand.await_applied(payment)
    assert stand.subscription(email)["payments_applied"] == 1
    # The older one ends at once, too, and not after hours.
    soon(
        lambda: not stand.rows(
            "select from boathook.delivery d join billing.payment_events e using (event_id) join billing.payments p"
            " on p.id = e.payment_id where p.external_payment_id = %s", payment,
        )
    )  # fmt: skip


def test_a_wrong_amount_is_final_with_an_alert_and_leaves_the_subscription_untouched(stand):
    email = stand.user()
    stand.await_applied(paid(stand, email)[0])
    before = stand.subscription(email)
    counted = stand.metric("billing_payments_amount_mismatch_total", provider="tilda")
    for wrong in ({"amount": "989.99"}, {"currency": "USD"}):
        payment, event = paid(stand, email, **wrong)
        stand.await_end(event, "dead", "AMOUNT_MISMATCH")
        stand.await_payment(payment, problem="AMOUNT_MISMATCH")
    assert stand.subscription(email) == before
    soon(lambda: stand.metric("billing_payments_amount_mismatch_total", provider="tilda") == counted + 2)
    assert '"event":"payment_amount_mismatch"' in stand.log()


def test_a_week_late_webhook_is_processed_normally_and_marked_late(stand):
    email = stand.user()
    long_ago = (datetime.now(UTC) - timedelta(days=7)).isoformat()
    payment, _event = paid(stand, email, paid_at=long_ago)
    row = stand.await_applied(payment)
    assert row["is_late"]
    assert stand.subscription(email)["current_period_end"] == row["subscription_applied_at"] + 30 * DAY
    soon = paid(stand, email, paid_at=datetime.now(UTC).isoformat())[0]
    assert not stand.await_applied(soon)["is_late"]


def refund(stand, payment: str, email: str, why: str | None, state: str = "ignored") -> None:
    event = unique("evt")
    stand.tell(payment, "refunded", email=email, event_id=event)
    stand.await_end(event, state, why)


def test_a_refund_takes_back_exactly_what_the_payment_added_and_only_once(stand):
    email = stand.user()
    stand.await_applied(paid(stand, email)[0])
    before = stand.subscription(email)["current_period_end"]
    payment, _event = paid(stand, email, **YEAR)
    stand.await_applied(payment)
    refund(stand, payment, email, None, "succeeded")
    refund(stand, payment, email, "ALREADY_REVERSED")
    subscription = stand.subscription(email)
    assert subscription["current_period_end"] == before
    assert (subscription["status"], subscription["payments_applied"]) == ("ACTIVE", 1)
    row = stand.payment(payment)
    assert row["status"] == "REFUNDED"
    assert row["reversed_at"]


def test_a_refund_of_the_only_payment_ends_the_subscription(stand):
    email = stand.user()
    payment, _event = paid(stand, email)
    stand.await_applied(payment)
    refund(stand, payment, email, None, "succeeded")
    subscription = stand.subscription(email)
    assert (subscription["status"], subscription["payments_applied"]) == ("INACTIVE", 0)
    assert subscription["current_period_end"] <= datetime.now(UTC)


def test_a_refund_before_the_success_means_that_it_is_never_applied(stand):
    email, payment, event = stand.user(), unique("pay"), unique("evt")
    refund(stand, payment, email, "NEVER_APPLIED")
    stand.tell(payment, email=email, event_id=event)
    stand.await_end(event, "ignored", "ALREADY_REFUNDED")
    assert stand.subscription(email) is None


def test_a_refund_of_a_payment_that_waits_ends_the_waiting(stand):
    payment, event = paid(stand, None)
    stand.await_end(event, "pending", "UNLINKED_PAYMENT")
    refund(stand, payment, None, "NEVER_APPLIED")
    stand.await_end(event, "ignored", "ALREADY_REFUNDED")
    assert stand.payment(payment)["problem"] is None


def test_a_refund_does_not_take_days_of_later_payments_when_its_own_are_used_up(stand):
    email = stand.user()
    old, _event = paid(stand, email)
    stand.await_applied(old)
    stand.rows(
        "update billing.subscriptions s set current_period_end = now() - interval '1 day' from billing.users u"
        " where u.id = s.user_id and u.email = %s returning 1", email,
    )  # fmt: skip
    stand.await_applied(paid(stand, email)[0])
    end = stand.subscription(email)["current_period_end"]
    refund(stand, old, email, None, "succeeded")
    assert stand.subscription(email)["current_period_end"] == end


def test_a_subscription_becomes_inactive_when_its_period_ends_and_a_canceled_one_lasts_until_then(stand):
    email = stand.user()
    stand.await_applied(paid(stand, email)[0])
    stand.cli("billing", "cancel", email)
    assert stand.subscription(email)["status"] == "CANCELED"
    [row] = [row for row in stand.listing("billing", "subscriptions") if row["email"] == email]
    assert row["status"] == "CANCELED"
    stand.rows(
        "update billing.subscriptions s set current_period_end = now() from billing.users u"
        " where u.id = s.user_id and u.email = %s returning 1", email,
    )  # fmt: skip
    soon(lambda: stand.subscription(email)["status"] == "INACTIVE")


def test_a_payment_makes_a_canceled_subscription_active_again(stand):
    email = stand.user()
    stand.await_applied(paid(stand, email)[0])
    stand.cli("billing", "cancel", email)
    stand.await_applied(paid(stand, email)[0])
    assert stand.subscription(email)["status"] == "ACTIVE"


def test_a_plan_that_nobody_knows_is_final(stand):
    payment, event = paid(stand, stand.user(), plan_id="gone")
    stand.await_end(event, "dead", "PLAN_UNKNOWN")
    stand.await_payment(payment, problem="PLAN_UNKNOWN")


def test_a_status_is_understood_in_capitals_and_a_payment_by_its_price_alone(stand):
    email = stand.user()
    payment = unique("pay")
    stand.tell(payment, "SUCCEEDED", email=email.upper(), plan_id=None, amount=9900, currency=None)
    assert stand.await_applied(payment)["plan_id"] == "year"


def test_every_event_leaves_one_line_in_the_log_with_what_was_before_and_after(stand):
    email = stand.user()
    _payment, event = paid(stand, email, paid_at=(datetime.now(UTC) - A_MINUTE).isoformat())
    stand.await_end(event, "succeeded")

    def line():
        lines = [line for line in stand.log().splitlines() if f'"dedup_key":"{event}"' in line]
        return next((json.loads(line) for line in lines if '"event":"payment_event"' in line), None)

    told = soon(line)
    assert told["result"] == "applied"
    assert told["payment_status_before"] is None
    assert told["payment_status_after"] == "SUCCEEDED"
    assert told["subscription_end_before"] is None
    assert datetime.fromisoformat(told["subscription_end_after"]) > datetime.now(UTC) + 29 * DAY
    assert (told["applied_before"], told["applied_after"]) == (False, True)
    assert 60 <= told["event_age_s"] < 600
    assert email not in json.dumps(told)


def test_the_forged_request_trap_is_shut(stand):
    """A forged event with the real one's ids is refused and occupies nothing: the real one is no duplicate."""
    email, payment, event = stand.user(), unique("pay"), unique("evt")
    body = json.dumps({"external_payment_id": payment, "status": "paid", "event_id": event, "email": email}).encode()
    assert stand.post(body, x_signature="0" * 64).status_code == 401
    assert stand.post(body, x_signature=sign(body, "guessed")).status_code == 401
    assert stand.post(body).status_code == 401
    assert stand.payment(payment) is None
    response = stand.tell(payment, email=email, event_id=event)
    assert response.json()["duplicate"] is False
    stand.await_applied(payment)
