"""The app's metrics and its alert rules, checked by promtool."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

import boathook_billing
from tests.alert_harness import play_alerts
from tests.apps.billing.server import BillingServer, sign, started, unique, wait_until

FOLDER = Path(boathook_billing.__file__).parent
README = Path(__file__).parents[3] / "packages/boathook-billing/MONITORING.md"
RULES = FOLDER / "alerts.yml"
ALERTS = {rule["alert"]: rule for rule in yaml.safe_load(RULES.read_text())["groups"][0]["rules"]}
ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def promtool() -> str:
    if shutil.which("promtool") is None:
        subprocess.run([ROOT / "scripts/need-program", "promtool", "prometheus"], check=True, timeout=110)
    found = shutil.which("promtool")
    assert found
    return found


def test_promtool_accepts_the_rules(promtool):
    done = subprocess.run([promtool, "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10 rules found" in done.stdout


P = 'provider="tilda"'
ERRORS = f'webhook_requests_total{{{P}, http_code="503"}}'
ACCEPTED = f'webhook_requests_total{{{P}, http_code="200"}}'
UNPROVEN = f"billing_webhooks_invalid_signature_total{{{P}}}"
MISMATCHES = f"billing_payments_amount_mismatch_total{{{P}}}"
DUPLICATES = f"billing_webhooks_duplicate_total{{{P}}}"
CONFLICTS = f"billing_webhooks_conflict_total{{{P}}}"
RETRIES = 'billing_webhooks_failed_retryable_total{{provider="tilda", code="{}"}}'
BACKLOG = 'billing_webhook_backlog{{provider="tilda", status="{}"}}'
WAITED = 'billing_oldest_waiting_seconds{{problem="{}"}}'
BUCKET = 'billing_webhook_processing_seconds_bucket{{provider="tilda", le="{}"}}'
TIMED = f"billing_webhook_processing_seconds_count{{{P}}}"
ALIVE = ('billing_payments{status="SUCCEEDED"}', "5x3000")

CASES = [
    # alert, whether it fires, after how long, series by the minute
    ("BillingServerErrors", True, "10m", {ERRORS: "0x5 1x30"}),
    ("BillingServerErrors", True, "10m", {ERRORS: "_x5 1x30"}),
    ("BillingServerErrors", False, "30m", {ERRORS: "3x60", ACCEPTED: "0+5x60"}),
    ("BillingServerErrors", False, "30m", {ACCEPTED: "0+5x60", f'webhook_requests_total{{{P}, http_code="401"}}': "0+9x60"}),
    ("BillingInvalidSignatures", True, "20m", {UNPROVEN: "0+1x60"}),
    ("BillingInvalidSignatures", True, "10m", {UNPROVEN: "_x5 9x60"}),
    ("BillingInvalidSignatures", False, "20m", {UNPROVEN: "0x10 2x60"}),
    ("BillingInvalidSignatures", False, "60m", {UNPROVEN: "900x90"}),
    ("BillingUnlinkedPayments", True, "5m", {WAITED.format("UNLINKED_PAYMENT"): "3700x60"}),
    ("BillingUnlinkedPayments", True, "5m", {WAITED.format("USER_MISSING"): "90000x60"}),
    ("BillingUnlinkedPayments", False, "5m", {WAITED.format("UNLINKED_PAYMENT"): "3500x60", WAITED.format("USER_MISSING"): "80000x60"}),
    ("BillingUnlinkedPayments", False, "5m", {WAITED.format("AMOUNT_MISMATCH"): "900000x60"}),
    ("BillingAmountMismatch", True, "20m", {MISMATCHES: "0x10 1x60"}),
    ("BillingAmountMismatch", False, "90m", {MISMATCHES: "0x10 1x120"}),
    ("BillingAmountMismatch", False, "20m", {MISMATCHES: "7x60"}),
    ("BillingConflicts", True, "20m", {CONFLICTS: "0x10 1x60"}),
    ("BillingConflicts", True, "10m", {CONFLICTS: "_x5 1x60"}),
    ("BillingConflicts", False, "90m", {CONFLICTS: "_x5 1x120"}),
    ("BillingConflicts", False, "20m", {CONFLICTS: "0x60"}),
    ("BillingConflicts", False, "90m", {CONFLICTS: "7x120", DUPLICATES: "0+5x120"}),
    ("BillingDeadEvents", True, "20m", {BACKLOG.format("dead"): "0x2 1x60"}),
    ("BillingDeadEvents", False, "10m", {BACKLOG.format("dead"): "1x60"}),
    ("BillingDeadEvents", False, "20m", {BACKLOG.format("dead"): "1x10 0x60", BACKLOG.format("later"): "50x60"}),
    ("BillingRetryStorm", True, "20m", {RETRIES.format("ConnectionError"): "0+20x60"}),
    ("BillingRetryStorm", False, "20m", {RETRIES.format("ConnectionError"): "0+1x60"}),
    ("BillingRetryStorm", False, "20m", {RETRIES.format("USER_MISSING"): "0+90x60", RETRIES.format("UNLINKED_PAYMENT"): "0+90x60"}),
    ("BillingLag", True, "10m", {BACKLOG.format("due"): "101x60"}),
    ("BillingLag", True, "10m", {"boathook_oldest_due_seconds": "301x60"}),
    ("BillingLag", False, "10m", {BACKLOG.format("due"): "100x60", "boathook_oldest_due_seconds": "10x60", BACKLOG.format("later"): "900x60"}),
    ("BillingSlow", True, "20m", {BUCKET.format("1"): "0+5x60", BUCKET.format("2.5"): "0+9x60", BUCKET.format("+Inf"): "0+9x60", TIMED: "0+9x60"}),
    ("BillingSlow", False, "20m", {BUCKET.format("1"): "0+99x60", BUCKET.format("2.5"): "0+100x60", BUCKET.format("+Inf"): "0+100x60", TIMED: "0+100x60"}),
    ("BillingSlow", False, "20m", {BUCKET.format("1"): "0x60", BUCKET.format("2.5"): "0+1x60", BUCKET.format("+Inf"): "0+1x60", TIMED: "0+1x60"}),
    ("BillingSilence", True, "30h", {ACCEPTED: "7x3000", ALIVE[0]: ALIVE[1]}),
    ("BillingSilence", True, "20m", {ACCEPTED: "0+1x60"}),
    ("BillingSilence", False, "30h", {ACCEPTED: "0x1000 1x2000", ALIVE[0]: ALIVE[1]}),
]  # fmt: skip


@pytest.mark.extended("plays alert rules with promtool; that their metrics exist stays")
def test_each_alert_fires_only_in_its_case(promtool: str, tmp_path: Path):
    assert play_alerts(promtool, RULES, CASES, tmp_path) == ""


def test_mutant_a_wrong_expectation_is_reported(promtool: str, tmp_path: Path):
    alert, fires, after, series = CASES[0]
    assert alert in play_alerts(promtool, RULES, [(alert, not fires, after, series)], tmp_path)


def test_each_alert_has_a_firing_and_a_non_firing_case():
    assert len(ALERTS) == 10
    assert {(case[0], case[1]) for case in CASES} == {(alert, fires) for alert in ALERTS for fires in (True, False)}


def test_the_readme_documents_each_alert():
    told = README.read_text()
    assert [alert for alert in ALERTS if f"| `{alert}` |" not in told] == []


@pytest.fixture(scope="module")
def server(tmp_path_factory, admin_url, pg_template) -> Iterator[BillingServer]:
    """A server of this file's own, as it counts all that there is."""
    with started(tmp_path_factory.mktemp("billing"), admin_url, pg_template) as running:
        yield running


@pytest.fixture(scope="module")
def shown(server):
    """The metrics of a server that has seen every kind of event."""
    email = server.user()
    server.send_payment(payment := unique("pay"), email=email, event_id=(event := unique("evt")))
    server.send_payment(payment, email=email, event_id=event)
    server.await_applied(payment)
    assert server.send_payment(unique("pay"), email=email, event_id=event).status_code == 200
    server.send_payment(payment, "refunded", email=email)
    server.send_payment(unique("pay"), "pending", email=email)
    wrong, later, address = unique("evt"), unique("pay"), f"{unique('later')}@example.com"
    server.send_payment(unique("pay"), email=email, amount="1", event_id=wrong)
    server.await_end(wrong, "dead", "AMOUNT_MISMATCH")
    server.send_payment(later, email=address, paid_at="2026-01-01T00:00:00Z")
    server.await_payment(later, problem="USER_MISSING")
    wait_until(lambda: server.metric("billing_webhooks_failed_retryable_total", code="USER_MISSING"))
    server.user(address)
    server.await_applied(later)
    server.send_payment(unique("pay"), email=None)
    server.post(b"{}", x_signature="0" * 64)
    server.post(b"{}", x_signature=sign(b"{}"))
    wait_until(lambda: server.metric("billing_webhook_backlog", status="dead"))
    wait_until(lambda: server.metric("billing_payments_waiting", problem="UNLINKED_PAYMENT"))
    return server


SHOWN = {
    "webhook_requests_total": {"http_code": "200"},
    "billing_webhooks_processed_total": {"result": "applied"},
    "billing_webhooks_duplicate_total": {},
    "billing_webhooks_conflict_total": {},
    "billing_webhooks_failed_retryable_total": {"code": "USER_MISSING"},
    "billing_webhooks_failed_final_total": {},
    "billing_webhooks_invalid_signature_total": {},
    "billing_payments_unlinked_total": {"problem": "UNLINKED_PAYMENT"},
    "billing_payments_amount_mismatch_total": {},
    "billing_payments_recovered_total": {},
    "billing_payments_late_total": {},
    "billing_webhook_processing_seconds_count": {},
    "billing_webhook_lag_seconds_count": {},
    "billing_webhook_backlog": {"status": "dead"},
}


@pytest.mark.parametrize(("name", "labels"), SHOWN.items(), ids=SHOWN)
def test_it_is_counted_under_the_providers_name(shown, name, labels):
    shown.await_metric(name, provider="tilda", **labels)


def test_requests_are_counted_by_provider_and_status(shown):
    for code in ("200", "400", "401"):
        shown.await_metric("webhook_requests_total", provider="tilda", http_code=code)


def test_payments_are_counted_by_status_and_problem(shown):
    wait_until(lambda: shown.metric("billing_payments", status="REFUNDED") == 1)
    assert shown.metric("billing_payments_waiting", problem="AMOUNT_MISMATCH") == 1
    assert shown.metric("billing_oldest_waiting_seconds", problem="AMOUNT_MISMATCH") > 0


def test_counters_that_alerts_watch_are_shown_from_nought_on(server):
    wait_until(lambda: 'billing_payments_recovered_total{provider="tilda"}' in httpx.get(f"{server.base}/metrics").text)


def test_every_documented_metric_is_exported(shown):
    text = httpx.get(f"{shown.base}/metrics").text
    families = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    in_rules = {
        name for rule in ALERTS.values() for name in re.findall(r"\b(?:billing|webhook|boathook)_\w+", rule["expr"])
    }
    in_readme = set(re.findall(r"^\| `((?:billing|webhook)_\w+)` \|", README.read_text(), re.MULTILINE))
    assert {re.sub("_(?:bucket|count)$", "", name) for name in in_rules} | in_readme <= families
    assert {name for name in families if name.startswith(("billing_", "webhook_"))} == in_readme


def test_every_label_that_the_rules_choose_by_is_really_there(shown):
    text = httpx.get(f"{shown.base}/metrics").text
    for rule in ALERTS.values():
        for name, label in re.findall(r"\b((?:billing|webhook|boathook)_\w+)\{(\w+)[=!]", rule["expr"]):
            assert re.search(rf'^{name}\{{[^}}]*{label}="', text, re.MULTILINE), (name, label)


def test_alerts_prints_the_rules(server):
    assert server.cli("billing", "alerts").stdout == RULES.read_text()
