"""The app's alerts reach a built-in channel: a webhook on loopback, on a real server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from boathook import config
from boathook.server.loading import with_apps
from boathook_alert_channels.settings import TelegramChannel
from boathook_fleet.settings import FleetSettings
from tests.alert_harness import QUICK, SECRET, AlertReceiver
from tests.apps.fleet.server import FleetServer, new_id, started

RULES = "".join(
    f'[notifications.rules."fleet.{name}"]\nfor_s = 0.0\nclear_s = 0.0\n'
    for name in ("branch_silent", "slow_acknowledgements", "unparsed_field")
)


@pytest.fixture(scope="module")
def alert_receiver() -> Iterator[AlertReceiver]:
    with AlertReceiver() as receiver:
        yield receiver


@pytest.fixture(scope="module")
def server(tmp_path_factory, admin_url, pg_template, alert_receiver) -> Iterator[FleetServer]:
    """A boathook that finds every acknowledgement too slow, and a branch silent after a third of a second."""
    fleet = 'ack_sla_ms = 0.0001\nwindow_s = 0.05\n[fleet.branches.4310]\nname = "Tbilisi"\nsilence_h = 0.0001\n'
    extra = QUICK.format(url=alert_receiver.url, secret=SECRET) + RULES
    with started(tmp_path_factory.mktemp("alerts"), admin_url, pg_template, fleet=fleet, extra=extra) as running:
        yield running


def test_a_silent_branch_is_reported(server: FleetServer, alert_receiver: AlertReceiver):
    alert = alert_receiver.await_kind("fleet.branch_silent", "firing", subject="4310")
    assert "No webhook of branch Tbilisi for" in alert["summary"]
    state = server.client.get("/webhooks/_selftest").json()["branches"]["4310"]
    assert (state["name"], state["is_silent"], state["last_webhook_at"]) == ("Tbilisi", True, None)
    car = new_id()
    server.send_event("car_create", {"id": car, "company_id": 4310})
    server.known("cars", car)
    assert server.client.get("/webhooks/_selftest").json()["branches"]["4310"]["last_webhook_at"]


@pytest.mark.extended("waits for evaluations of alert rules; two such tests stay")
def test_a_field_that_is_not_understood_is_reported(server: FleetServer, alert_receiver: AlertReceiver):
    server.send_event("car_create", {"id": new_id(), "mileage": "many"})
    alert = alert_receiver.await_kind("fleet.unparsed_field", "firing")
    assert (alert["subject"], alert["severity"]) == ("car.mileage", "warning")


@pytest.mark.extended("waits for evaluations of alert rules; two such tests stay")
def test_slow_acknowledgements_are_reported(server: FleetServer, alert_receiver: AlertReceiver):
    server.send_event("car_create", {"id": new_id()})
    assert (
        "Acknowledging webhooks takes" in alert_receiver.await_kind("fleet.slow_acknowledgements", "firing")["summary"]
    )


def test_a_chat_of_the_apps_settings_is_a_channel_for_critical_alerts(tmp_path: Path):
    file = tmp_path / "boathook.toml"
    file.write_text('[apps]\nload = ["fleet"]\n[fleet.telegram]\ntoken = "111:AAA"\nchat_id = "-100123"\n')
    channel = with_apps(config.load(file))[0].notifications.channels["fleet"]
    assert isinstance(channel, TelegramChannel)
    assert (channel.kind, channel.token, channel.chat, channel.min_severity) == (
        "telegram",
        "111:AAA",
        "-100123",
        "critical",
    )
    file.write_text(f"{file.read_text()}[notifications.channels.fleet]\nkind = 'telegram'\ntoken = '2:B'\nchat = '7'\n")
    own = with_apps(config.load(file))[0].notifications.channels["fleet"]
    assert isinstance(own, TelegramChannel)
    assert own.chat == "7", "the operator's own prevails"


def test_the_chat_may_be_named_by_the_environment(monkeypatch: pytest.MonkeyPatch):
    assert FleetSettings().channels() == {}
    monkeypatch.setenv("TELEGRAM_BOT_TOKEN", "111:AAA")
    assert FleetSettings().channels() == {}, "a token alone may be that of another channel"
    monkeypatch.setenv("TELEGRAM_CHAT_ID", "-100123")
    assert FleetSettings().channels()["fleet"]["token"] == "env:TELEGRAM_BOT_TOKEN"
    assert FleetSettings(telegram={"token": "x", "chat_id": "7"}).channels()["fleet"]["chat"] == "7"


@pytest.mark.parametrize(
    ("telegram", "says"),
    [
        ({"token": "x"}, "write both, or neither"),
        ({"token": "x", "chat_id": "1", "per_minute": 20}, "per_minute is now notifications.max_per_hour"),
        ({"token": "x", "chat_id": "1", "quiet_s": 60}, "quiet_s is now notifications.min_interval_s"),
    ],
)
def test_a_wrong_chat_names_the_setting_to_write(telegram: dict[str, Any], says: str):
    with pytest.raises(ValidationError, match=says):
        FleetSettings.model_validate({"telegram": telegram})
