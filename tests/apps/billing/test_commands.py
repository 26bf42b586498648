"""The commands, as owners type them."""

import json
from pathlib import Path

import pytest

import boathook_billing
from boathook_billing import operator_actions
from boathook_billing.app import hook
from boathook_billing.settings import BillingSettings
from tests.apps.billing.server import unique, wait_until


def row_of(server, email: str) -> dict:
    [row] = [row for row in server.listing("billing", "subscriptions") if row["email"] == email]
    return row


def test_subscriptions_lists_email_status_end_and_payments(server):
    email = f"{unique('anna')}@example.com"
    server.cli("billing", "users", "add", email)
    assert row_of(server, email) == {
        "email": email, "status": "INACTIVE", "current_period_end": None, "access_until": None,
        "payments_applied": 0,
    }  # fmt: skip
    payment = unique("pay")
    server.send_payment(payment, email=email)
    server.await_applied(payment)
    row = row_of(server, email)
    assert (row["status"], row["payments_applied"]) == ("ACTIVE", 1)
    assert row["current_period_end"] == server.subscription(email)["current_period_end"].isoformat().replace(
        "+00:00", "Z"
    )


def test_adding_a_user_is_case_insensitive(server):
    email = f"{unique('Bea')}@example.com"
    first = json.loads(server.cli("billing", "users", "add", email, "--json").stdout)
    again = json.loads(server.cli("billing", "users", "add", email.upper(), "--json").stdout)
    assert (first["is_new"], again["is_new"], first["id"]) == (True, False, again["id"])
    assert [row["email"] for row in server.listing("billing", "users", "list")].count(email) == 1


@pytest.mark.parametrize("wrong", ["anna", "@example.com", "a b@example.com", " "])
def test_a_user_without_a_real_email_is_refused(server, wrong):
    done = server.cli("billing", "users", "add", wrong, check=False)
    assert done.returncode == 1
    assert "is not an e-mail" in done.stderr


def test_payments_are_listed_by_status_problem_and_whether_they_wait(server):
    email = server.user()
    fine, wrong, lost = unique("pay"), unique("pay"), unique("pay")
    server.send_payment(fine, email=email)
    server.send_payment(wrong, email=email, amount="1.00")
    server.send_payment(lost, email=None)
    wait_until(lambda: all(server.payment(id) for id in (fine, wrong, lost)))
    server.await_applied(fine)

    def listed(*options: str) -> set[str]:
        found = {row["external_payment_id"] for row in server.listing("billing", "payments", *options)}
        return found & {fine, wrong, lost}

    assert listed() == {fine, wrong, lost}
    assert listed("--status", "SUCCEEDED") == {fine, wrong, lost}
    assert listed("--status", "REFUNDED") == set()
    assert listed("--problem", "AMOUNT_MISMATCH") == {wrong}
    assert listed("--waiting") == {lost}
    [row] = [row for row in server.listing("billing", "payments") if row["external_payment_id"] == fine]
    assert (row["email"], row["amount"], row["status"]) == (email, "990.00", "SUCCEEDED")
    assert fine[:8] in server.cli("billing", "payments").stdout.replace("\n", "")


def test_link_accepts_the_payment_number_or_provider_id(server):
    for name in ("id", "provider"):
        email, payment, event = server.user(), unique("pay"), unique("evt")
        server.send_payment(payment, email=None, event_id=event)
        server.await_end(event, "pending", "UNLINKED_PAYMENT")
        named = str(server.payment(payment)["id"]) if name == "id" else f"tilda/{payment}"
        server.cli("billing", "link", named, email)
        server.await_applied(payment)
        assert server.subscription(email)["payments_applied"] == 1


def refused(server, *arguments: str) -> str:
    done = server.cli("billing", *arguments, check=False)
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr


def test_link_refuses_unknown_ambiguous_or_foreign_payments(server):
    email, other, payment = server.user(), server.user(), unique("pay")
    assert "there is no payment" in refused(server, "link", unique("pay"), email)
    server.send_payment(payment, email=email)
    server.await_applied(payment)
    assert "there is no user" in refused(server, "link", payment, "stranger@example.com")
    assert "to another user already" in refused(server, "link", payment, other)
    assert "already" in server.cli("billing", "link", payment, email).stdout
    number = str(server.payment(payment)["id"])
    server.rows(
        "insert into billing.payments (provider, external_payment_id, status) values ('tilda', %s, 'FAILED') returning 1",
        number,
    )
    assert f"write tilda/{payment} or tilda/{number}" in refused(server, "link", number, other)


def test_link_reports_why_the_payment_is_not_applied(server):
    email, wrong, event = server.user(), unique("pay"), unique("evt")
    server.send_payment(wrong, email=None, amount="1.00", event_id=event)
    server.send_payment(pending := unique("pay"), "pending", email=None)
    server.await_end(event, "dead", "AMOUNT_MISMATCH")
    server.await_payment(pending, status="RECEIVED")
    assert "AMOUNT_MISMATCH" in server.cli("billing", "link", wrong, email).stdout
    assert "RECEIVED" in server.cli("billing", "link", pending, email).stdout


def test_invalid_arguments_are_reported_without_a_database_error(server):
    for wrong in (["payments", "--limit", "9" * 20], ["link", "\udcff", server.user()]):
        done = server.cli("billing", *wrong, check=False)
        assert done.returncode in {1, 2}
        assert "query argument" not in done.stderr


def test_cancel_refuses_where_there_is_nothing_to_cancel(server):
    assert "no active subscription" in refused(server, "cancel", server.user())
    assert "there is no user" in refused(server, "cancel", "stranger@example.com")


def test_plans_are_those_of_the_settings_and_kept_in_their_table(server):
    assert [(row["id"], row["price"], row["currency"], row["days"]) for row in server.listing("billing", "plans")] == [
        ("month", "990.00", "RUB", 30),
        ("year", "9900.00", "RUB", 365),
    ]
    wait_until(lambda: len(server.rows("select from billing.plans where is_offered")) == 2)


def test_simulate_sends_its_requests_and_finds_no_differences(server):
    done = server.cli("billing", "simulate", "--url", server.base, "--count", "10", "--seed", "5", "--json")
    result = json.loads(done.stdout)
    assert (result["unexpected"], result["differences"]) == (0, [])
    assert result["effects"]["payments applied"] > 0
    assert result["sent"] == sum(result["answers"].values()) >= 10


def test_simulate_suggests_a_fix_for_an_unreachable_url(server):
    assert "is `boathook serve` running there" in refused(
        server, "simulate", "--url", "http://127.0.0.1:1", "--count", "1"
    )
    assert "is not an address" in refused(server, "simulate", "--url", "here", "--count", "1")


def test_every_command_has_help_with_an_example(server):
    for command in (
        "subscriptions",
        "payments",
        "plans",
        "link",
        "cancel",
        "alerts",
        "simulate",
        "users add",
        "users list",
    ):
        assert "Example: boathook billing" in server.cli("billing", *command.split(), "--help").stdout


def test_the_sample_configuration_loads_as_it_is(server, tmp_path, monkeypatch):
    monkeypatch.setitem(server.environment, "BILLING_SECRET", "sample")
    sample = Path(boathook_billing.__file__).with_name("boathook.toml")
    (tmp_path / "boathook.toml").write_text(sample.read_text())
    [source] = server.listing("--config", str(tmp_path / "boathook.toml"), "sources", "list")
    assert (source["name"], source["provider"]) == ("payments", "hmac")


@pytest.mark.parametrize(
    ("language", "text"),
    [("ru", "anna@example.com: добавлен; 2 ожидавших платежа зачитываются"),
     ("auto", "anna@example.com added; 2 waiting payments resumed")],
)  # fmt: skip
def test_messages_are_in_the_language_of_the_settings(language: str, text: str):
    hook.bind(BillingSettings.model_validate({"secret": "s", "language": language}), None)
    try:
        row = {"email": "anna@example.com", "is_new": True, "payments_waiting": 2}
        assert operator_actions.describe_user(row) == text
    finally:
        hook.bind(None, None)
