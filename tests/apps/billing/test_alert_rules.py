"""The app's alert rule on payments waiting for a user, which users may change."""

from collections.abc import Iterator

import pytest

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


def test_user_settings_override_the_apps_alert_rules(tmp_path):
    from boathook import config

    file = tmp_path / "boathook.toml"
    table = '[notifications.rules."billing.unlinked_payments"]\nabove = 7\n'
    file.write_text(f'[apps]\nload = ["boathook.apps.billing"]\n[billing]\nsecret = "x"\n{table}')
    settings, _ = with_apps(config.load(file))
    rules = settings.notifications.rules
    assert rules["billing.unlinked_payments"].above == 7
    assert rules["billing.unlinked_payments"].metric == "billing_oldest_waiting_seconds"
    assert rules["billing.missing_users"].above == 86_400
