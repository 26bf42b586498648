"""The commands, as owners type them."""

import json
from pathlib import Path

import pytest

import boathook.apps.billing
from tests.apps.billing.server import soon, unique


def row_of(stand, email: str) -> dict:
    [row] = [row for row in stand.listing("billing", "subscriptions") if row["email"] == email]
    return row


def test_subscriptions_print_email_status_end_and_how_many_payments_were_applied(stand):
    email = f"{unique('anna')}@example.com"
    stand.cli("billing", "users", "add", email)
    assert row_of(stand, email) == {
        "email": email, "status": "INACTIVE", "current_period_end": None, "payments_applied": 0,
    }  # fmt: skip
    payment = unique("pay")
    stand.tell(payment, email=email)
    stand.await_applied(payment)
    row = row_of(stand, email)
    assert (row["status"], row["payments_applied"]) == ("ACTIVE", 1)
    assert row["current_period_end"] == stand.subscription(email)["current_period_end"].isoformat().replace(
        "+00:00", "Z"
    )


def test_a_user_is_added_once_whatever_the_capitals(stand):
    email = f"{unique('Bea')}@example.com"
    first = json.loads(stand.cli("billing", "users", "add", email, "--json").stdout)
    again = json.loads(stand.cli("billing", "users", "add", email.upper(), "--json").stdout)
    assert (first["is_new"], again["is_new"], first["id"]) == (True, False, again["id"])
    assert [row["email"] for row in stand.listing("billing", "users", "list")].count(email) == 1


@pytest.mark.parametrize("wrong", ["anna", "@example.com", "a b@example.com", " "])
def test_a_user_without_a_real_email_is_refused(stand, wrong):
    done = stand.cli("billing", "users", "add", wrong, check=False)
    assert done.returncode == 1
    assert "is no e-mail" in done.stderr


def test_payments_are_listed_by_status_problem_and_whether_they_wait(stand):
    email = stand.user()
    fine, wrong, lost = unique("pay"), unique("pay"), unique("pay")
    stand.tell(fine, email=email)
    stand.tell(wrong, email=email, amount="1.00")
    stand.tell(lost, email=None)
    soon(lambda: all(stand.payment(id) for id in (fine, wrong, lost)))
    stand.await_applied(fine)

    def listed(*options: str) -> set[str]:
        found = {row["external_payment_id"] for row in stand.listing("billing", "payments", *options)}
        return found & {fine, wrong, lost}

    assert listed() == {fine, wrong, lost}
    assert listed("--status", "SUCCEEDED") == {fine, wrong, lost}
    assert listed("--status", "REFUNDED") == set()
    assert listed("--problem", "AMOUNT_MISMATCH") == {wrong}
    assert listed("--waiting") == {lost}
    [row] = [row for row in stand.listing("billing", "payments") if row["external_payment_id"] == fine]
    assert (row["email"], row["amount"], row["status"]) == (email, "990.00", "SUCCEEDED")
    assert fine[:8] in stand.cli("billing", "payments").stdout.replace("\n", "")


def test_link_takes_the_number_of_the_payment_and_its_id_with_the_provider(stand):
    for name in ("id", "provider"):
        email, payment, event = stand.user(), unique("pay"), unique("evt")
        stand.tell(payment, email=None, event_id=event)
        stand.await_end(event, "pending", "UNLINKED_PAYMENT")
        named = str(stand.payment(payment)["id"]) if name == "id" else f"tilda/{payment}"
        stand.cli("billing", "link", named, email)
        stand.await_applied(payment)
        assert stand.subscription(email)["payments_applied"] == 1


def refused(stand, *arguments: str) -> str:
    done = stand.cli("billing", *arguments, check=False)
    assert done.returncode == 1, done.stdout
    assert "Traceback" not in done.stderr
    return done.stderr


def test_link_refuses_what_is_unknown_ambiguous_or_somebody_elses(stand):
    email, other, payment = stand.user(), stand.user(), unique("pay")
    assert "there is no payment" in refused(stand, "link", unique("pay"), email)
    stand.tell(payment, email=email)
    stand.await_applied(payment)
    assert "there is no user" in refused(stand, "link", payment, "stranger@example.com")
    assert "to another user already" in refused(stand, "link", payment, other)
    assert "already" in stand.cli("billing", "link", payment, email).stdout
    number = str(stand.payment(payment)["id"])
    stand.rows(
        "insert into billing.payments (provider, external_payment_id, status) values ('tilda', %s, 'FAILED') returning 1",
        number,
    )
    assert f"write tilda/{payment} or tilda/{number}" in refused(stand, "link", number, other)


def test_link_says_so_where_the_payment_does_not_go_on(stand):
    email, wrong, event = stand.user(), unique("pay"), unique("evt")
    stand.tell(wrong, email=None, amount="1.00", event_id=event)
    stand.tell(pending := unique("pay"), "pending", email=None)
    stand.await_end(event, "dead", "AMOUNT_MISMATCH")
    stand.await_payment(pending, status="RECEIVED")
    assert "AMOUNT_MISMATCH" in stand.cli("billing", "link", wrong, email).stdout
    assert "RECEIVED" in stand.cli("billing", "link", pending, email).stdout


def test_a_limit_beyond_all_rows_and_an_argument_that_is_no_text_are_told_as_such(stand):
    for wrong in (["payments", "--limit", "9" * 20], ["link", "\udcff", stand.user()]):
        done = stand.cli("billing", *wrong, check=False)
        assert done.returncode in {1, 2}
        assert "query argument" not in done.stderr


def test_cancel_refuses_where_there_is_nothing_to_cancel(stand):
    assert "no active subscription" in refused(stand, "cancel", stand.user())
    assert "there is no user" in refused(stand, "cancel", "stranger@example.com")


def test_plans_are_those_of_the_settings_and_kept_in_their_table(stand):
    assert [(row["id"], row["price"], row["currency"], row["days"]) for row in stand.listing("billing", "plans")] == [
        ("month", "990.00", "RUB", 30),
        ("year", "9900.00", "RUB", 365),
    ]
    soon(lambda: len(stand.rows("select from billing.plans where is_offered")) == 2)


def test_simulate_sends_what_it_says_and_is_answered_as_it_should_be(stand):
    done = stand.cli("billing", "simulate", "--url", stand.base, "--count", "10", "--seed", "5", "--json")
    result = json.loads(done.stdout)
    assert (result["unexpected"], result["differences"]) == (0, [])
    assert result["effects"]["payments applied"] > 0
    assert result["sent"] == sum(result["answers"].values()) >= 10


def test_simulate_names_the_fix_where_nobody_answers(stand):
    assert "is `boathook serve` running there" in refused(
        stand, "simulate", "--url", "http://127.0.0.1:1", "--count", "1"
    )
    assert "is no address" in refused(stand, "simulate", "--url", "here", "--count", "1")


def test_every_command_has_help_with_an_example(stand):
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
        assert "Example: boathook billing" in stand.cli("billing", *command.split(), "--help").stdout


def test_the_sample_configuration_loads_as_it_is(stand, tmp_path, monkeypatch):
    monkeypatch.setitem(stand.environment, "BILLING_SECRET", "sample")
    sample = Path(boathook.apps.billing.__file__).with_name("boathook.toml")
    (tmp_path / "boathook.toml").write_text(sample.read_text())
    [source] = stand.listing("--config", str(tmp_path / "boathook.toml"), "sources", "list")
    assert (source["name"], source["provider"]) == ("payments", "hmac")
