"""The app's rules of built-in alerts, which users may change."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from boathook import config
from boathook.alerts.rules import MetricWindow, Rule, compile_rules, evaluate_rule
from boathook.db.metric_samples import HostSample
from boathook.observability.metric_snapshot import Buckets, MetricSnapshot
from boathook.observability.metrics import METRICS
from boathook.server import with_apps
from tests.alert_harness import QUICK, SECRET, AlertReceiver
from tests.apps.billing.server import BillingServer, started, unique

RULES = (
    QUICK
    + """
[notifications.rules."billing.unlinked_payments"]
above = 0.5
clear_s = 0.0
"""
)


@pytest.fixture(scope="module")
def alert_receiver() -> Iterator[AlertReceiver]:
    with AlertReceiver() as made:
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory, admin_url, pg_template, alert_receiver) -> Iterator[BillingServer]:
    folder = tmp_path_factory.mktemp("alerts")
    extra = RULES.format(url=alert_receiver.url, secret=SECRET)
    with started(folder, admin_url, pg_template, extra=extra) as running:
        yield running


@pytest.mark.extended("waits for evaluations of alert rules; two such tests stay")
def test_an_unlinked_payment_fires_until_it_is_linked(server: BillingServer, alert_receiver: AlertReceiver):
    waits, known = unique("payment"), unique("payment")
    server.send_payment(known, email=server.user())
    server.await_applied(known)
    server.send_payment(waits)
    told = alert_receiver.await_kind("billing.unlinked_payments", "firing", subject="UNLINKED_PAYMENT")
    assert told["summary"] == "a payment waits for its user: UNLINKED_PAYMENT"
    server.cli("billing", "link", waits, server.user())
    alert_receiver.await_kind("billing.unlinked_payments", "firing", "recovered", subject="UNLINKED_PAYMENT")
    assert alert_receiver.kinds("billing.missing_users") == []
    assert "billing.unlinked_payments" in {one["rule"] for one in server.listing("alerts", "history")}


@pytest.mark.extended("waits for evaluations of alert rules; the rule itself is evaluated below")
def test_a_payment_of_a_wrong_amount_fires(server: BillingServer, alert_receiver: AlertReceiver):
    server.send_payment(unique("payment"), email=server.user(), amount="9.90")
    told = alert_receiver.await_kind("billing.amount_mismatch", "firing", subject="tilda")
    assert told["severity"] == "critical"
    assert told["summary"].startswith("payments of tilda do not cost what their plan does")


def app_rule(folder: Path, name: str) -> Rule:
    """Return one of the app's rules, compiled as a server does."""
    file = folder / "boathook.toml"
    file.write_text('[apps]\nload = ["billing"]\n[billing]\nsecret = "a-secret"\n')
    settings, _ = with_apps(config.load(file))
    return next(rule for rule in compile_rules(settings) if rule.name == f"billing.{name}")


def readings(rule: Rule, *snapshots: MetricSnapshot) -> list[tuple[str, bool]]:
    """Return the subjects of a rule, and whether each is raised, after these samples of the last minutes."""
    now = datetime.now(UTC)
    window = MetricWindow(rule.metrics, rule.lookback_s)
    ages = range(60 * len(snapshots), 0, -60)
    window.add(HostSample("a", now - timedelta(seconds=age), one) for age, one in zip(ages, snapshots, strict=True))
    return [(one.subject, one.is_raised) for one in evaluate_rule(rule, window, now, 60.0)]


def test_one_wrong_amount_raises_the_alert(tmp_path):
    rule = app_rule(tmp_path, "amount_mismatch")
    counters = [{"billing_payments_amount_mismatch_total": {("tilda",): number}} for number in (0, 1)]
    assert rule.settings.severity == "critical"
    assert readings(rule, MetricSnapshot(counters=counters[0])) == [("tilda", False)]
    assert readings(rule, *(MetricSnapshot(counters=one) for one in counters)) == [("tilda", True)]


@pytest.mark.parametrize(("fast", "slow", "is_raised"), [(0, 19, False), (0, 20, True), (95, 5, False), (90, 10, True)])
def test_slow_processing_raises_the_alert(tmp_path, fast: int, slow: int, is_raised: bool):
    rule = app_rule(tmp_path, "slow_processing")
    name = "billing_webhook_processing_seconds"
    bounds = METRICS[name].bounds
    counts = [0] * (len(bounds) + 1)
    counts[0], counts[bounds.index(2.5)] = fast, slow
    snapshot = MetricSnapshot(histograms={name: {("tilda",): Buckets(tuple(counts), 2.0 * slow)}})
    assert readings(rule, snapshot) == [("tilda", is_raised)]


def test_user_settings_override_the_apps_alert_rules(tmp_path):
    file = tmp_path / "boathook.toml"
    table = '[notifications.rules."billing.unlinked_payments"]\nabove = 7\n'
    file.write_text(f'[apps]\nload = ["billing"]\n[billing]\nsecret = "x"\n{table}')
    settings, _ = with_apps(config.load(file))
    rules = settings.notifications.rules
    assert rules["billing.unlinked_payments"].above == 7
    assert rules["billing.unlinked_payments"].metric == "billing_oldest_waiting_seconds"
    assert rules["billing.missing_users"].above == 86_400
