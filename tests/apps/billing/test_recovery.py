"""Payments that failed or waited are applied once their cause is fixed."""

import pytest

from tests.apps.billing.server import PATIENCE_S, BillingServer, started, unique, wait_until
from tests.support import until

FAIL = """
    create function billing.fail() returns trigger language plpgsql as $$
        begin
            if exists (select from billing.users where id = new.user_id and email like 'broken%') then
                raise exception 'the disk is full';
            end if;
            return new;
        end $$;
    create trigger fail before insert on billing.subscriptions for each row execute function billing.fail();
"""


@pytest.fixture
def own(tmp_path, admin_url, pg_template):
    """A boathook whose settings and tables may be changed."""
    with started(tmp_path, admin_url, pg_template) as running:
        yield running


@pytest.mark.extended("starts several servers of its own")
def test_replayed_dead_letters_apply_once_their_plan_is_corrected(own: BillingServer):
    email, wrong, unknown = own.user(), unique("evt"), unique("evt")
    own.send_payment(cheap := unique("pay"), email=email, amount="1500.00", event_id=wrong)
    own.send_payment(gone := unique("pay"), email=email, plan_id="promo", event_id=unknown)
    own.await_end(wrong, "dead", "AMOUNT_MISMATCH")
    own.await_end(unknown, "dead", "PLAN_UNKNOWN")
    assert own.subscription(email) is None
    own.stop()
    file = own.folder / "boathook.toml"
    promo = '[[billing.plans]]\nid = "promo"\nprice = "990"\ndays = 7\n'
    file.write_text(file.read_text().replace('price = "990.00"', 'price = "1500.00"') + promo)
    own.start()
    own.cli("dead", "replay", "--all", "--yes")
    for payment in (cheap, gone):
        assert own.await_applied(payment)["problem"] is None
    assert own.subscription(email)["payments_applied"] == 2
    assert {row["id"] for row in own.listing("billing", "plans")} == {"month", "promo", "year"}


@pytest.mark.extended("starts several servers of its own")
def test_a_price_change_makes_a_waiting_payment_a_mismatch(own: BillingServer):
    email, payment, event = f"{unique('later')}@example.com", unique("pay"), unique("evt")
    own.send_payment(payment, email=email, event_id=event)
    own.await_payment(payment, problem="USER_MISSING")
    own.stop()
    file = own.folder / "boathook.toml"
    file.write_text(file.read_text().replace('price = "990.00"', 'price = "1500.00"'))
    own.start()
    own.user(email)
    own.await_end(event, "dead", "AMOUNT_MISMATCH")
    own.await_payment(payment, problem="AMOUNT_MISMATCH")
    own.await_metric("billing_payments_amount_mismatch_total", provider="tilda")
    assert own.subscription(email) is None


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_an_internal_error_is_retried_with_backoff_until_fixed(
    server: BillingServer,
):
    email, payment, event = f"broken-{unique('later')}@example.com", unique("pay"), unique("evt")
    recovered = server.metric("billing_payments_recovered_total")
    server.rows(FAIL)
    server.send_payment(payment, email=email, event_id=event)
    server.await_end(event, "pending", "USER_MISSING")
    server.user(email)
    until(lambda: server.payment(payment)["wakes"] >= 3, timeout=PATIENCE_S)
    [attempts] = server.rows("select max(attempts) as n from boathook.delivery where code = 'RaiseError'")
    assert attempts["n"] <= 12, "it was not left alone between two wakes"
    assert server.subscription(email) is None
    server.await_metric("billing_webhooks_failed_retryable_total", provider="tilda", code="RaiseError")
    server.rows("drop trigger fail on billing.subscriptions")
    server.await_applied(payment)
    wait_until(lambda: server.metric("billing_payments_recovered_total") > recovered)
    assert server.subscription(email)["payments_applied"] == 1
