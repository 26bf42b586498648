"""Each rule on a real server: its condition occurs, the alert fires, is sent, and recovers."""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import psycopg
import pytest

from tests.acceptance.conftest import BoathookProcess, free_port, payload, signed
from tests.alert_harness import QUICK, SECRET, AlertReceiver
from tests.support import until

SETTINGS = (
    QUICK
    + """
max_per_hour = 10000
[notifications.rules.dead_letters]
clear_s = 0.0
[notifications.rules.error_rate]
over_s = 10.0
at_least = 6.0
clear_s = 0.0
[notifications.rules.sending_error_rate]
over_s = 20.0
at_least = 3.0
clear_s = 0.0
[notifications.rules.slow_acknowledgements]
over_s = 6.0
above = 0.0001
clear = 0.00005
at_least = 5.0
for_s = 0.0
clear_s = 0.0
[notifications.rules.signature_failures]
over_s = 6.0
above = 4.0
clear_s = 0.0
[notifications.rules.all_signatures_failing]
over_s = 6.0
clear_s = 0.0
[notifications.rules.conflict_seen]
over_s = 6.0
clear_s = 0.0
[notifications.rules.nothing_processed]
over_s = 10.0
for_s = 3.0
clear_s = 0.0
[notifications.rules.spool_in_use]
for_s = 0.0
clear_s = 0.0
[notifications.rules.mine]
metric = "boathook_duplicates_total"
by = ["source"]
measure = "increase"
over_s = 6.0
above = 2.0
clear_s = 0.0
summary = "{{subject}} sends everything again"
"""
)


@pytest.fixture(scope="module")
def alert_receiver() -> Iterator[AlertReceiver]:
    with AlertReceiver() as made:
        yield made


@pytest.fixture(scope="module")
def gateway(shared_boathook: Callable[..., BoathookProcess], alert_receiver: AlertReceiver) -> BoathookProcess:
    extra = SETTINGS.format(url=alert_receiver.url, secret=SECRET).replace("{{", "{").replace("}}", "}")
    return shared_boathook(
        senders=1,
        extra=f"""
[sources.other]
provider = "stripe"
secrets = ["whsec_another_of_the_tests"]
[outbound]
allow = ["127.0.0.0/8"]
{extra}
""",
    )


def post(
    gateway: BoathookProcess, key: str, kind: str, source: str = "stripe", secret: str | None = None, **more: Any
) -> int:
    body, headers = signed(payload(key, kind, **more), **({"secret": secret} if secret else {}))
    return httpx.post(f"{gateway.base}/in/{source}", content=body, headers=headers).status_code


@pytest.mark.extended("waits for evaluations of alert rules; two such tests stay")
def test_dead_letters_growing_and_the_error_rate(gateway: BoathookProcess, alert_receiver: AlertReceiver) -> None:
    for number in range(3):
        assert post(gateway, f"dead_{number}", "broken.thing") == 200
    alert = alert_receiver.await_kind("dead_letters", "firing", subject="handler:broken")
    assert (alert["severity"], alert["value"]) == ("critical", pytest.approx(3, abs=2))
    assert alert["summary"] == "handler:broken has new dead letters"
    alert_receiver.await_kind("error_rate", "firing", subject="handler:broken")
    alert_receiver.await_kind("error_rate", "firing", "recovered", subject="handler:broken")
    assert alert_receiver.kinds("dead_letters", "handler:broken") == ["firing"]
    gateway.cli("dead", "ignore", "--recipient", "handler:broken", "--note", "tested", "--yes")
    alert_receiver.await_kind("dead_letters", "firing", "recovered", subject="handler:broken")


@pytest.mark.extended("waits for evaluations of alert rules; two such tests stay")
def test_healthy_subjects_have_no_alert(gateway: BoathookProcess, alert_receiver: AlertReceiver) -> None:
    for number in range(8):
        assert post(gateway, f"well_{number}", "payment.paid") == 200
    test_signature_failures_and_a_wrong_secret(gateway, alert_receiver)
    assert (
        alert_receiver.kinds("error_rate", "handler:pay") == alert_receiver.kinds("dead_letters", "handler:pay") == []
    )
    assert (
        alert_receiver.kinds("signature_failures", "stripe")
        == alert_receiver.kinds("all_signatures_failing", "stripe")
        == []
    )
    assert alert_receiver.kinds("spool_in_use") == alert_receiver.kinds("nothing_processed") == []


def test_signature_failures_and_a_wrong_secret(gateway: BoathookProcess, alert_receiver: AlertReceiver) -> None:
    if alert_receiver.kinds("all_signatures_failing"):
        return  # seen already
    for number in range(6):
        assert post(gateway, f"wrong_{number}", "payment.paid", "other", "whsec_wrong") == 401
    alert_receiver.await_kind("signature_failures", "firing", subject="other")
    alert = alert_receiver.await_kind("all_signatures_failing", "firing", subject="other")
    assert alert["summary"] == "all requests for other fail verification: check its secret"
    assert post(gateway, "right", "payment.paid", "other", "whsec_another_of_the_tests") == 200
    alert_receiver.await_kind("all_signatures_failing", "firing", "recovered", subject="other")
    alert_receiver.await_kind("signature_failures", "firing", "recovered", subject="other")


@pytest.mark.extended("waits for evaluations of alert rules; two such tests stay")
def test_slow_acknowledgements(gateway: BoathookProcess, alert_receiver: AlertReceiver) -> None:
    for number in range(12):
        post(gateway, f"ack_{number}", "payment.paid")
    until(lambda: alert_receiver.kinds("slow_acknowledgements")[-2:] == ["firing", "recovered"])


@pytest.mark.extended("waits for evaluations of alert rules; two such tests stay")
def test_a_conflict_fires_and_recovers(gateway: BoathookProcess, alert_receiver: AlertReceiver) -> None:
    assert post(gateway, "same", "payment.paid", amount=1) == 200
    assert post(gateway, "same", "payment.paid", amount=2) in {200, 409}
    alert_receiver.await_kind("conflict_seen", "firing", subject="stripe")
    alert_receiver.await_kind("conflict_seen", "firing", "recovered", subject="stripe")


@pytest.mark.extended("waits for evaluations of alert rules; two such tests stay")
def test_a_custom_rule_works_on_any_metric(gateway: BoathookProcess, alert_receiver: AlertReceiver) -> None:
    body, headers = signed(payload("again", "payment.paid"))
    for _ in range(6):
        httpx.post(f"{gateway.base}/in/stripe", content=body, headers=headers)
    alert = alert_receiver.await_kind("mine", "firing", subject="stripe")
    assert alert["summary"] == "stripe sends everything again"
    alert_receiver.await_kind("mine", "firing", "recovered", subject="stripe")


@pytest.mark.extended("starts several servers of its own")
def test_an_endpoint_is_disabled(gateway: BoathookProcess, alert_receiver: AlertReceiver) -> None:
    application = gateway.listing("applications", "create", "Acme")[0]["id"]
    endpoint = gateway.listing(
        "endpoints", "create", "--application", application, "--url", "https://example.com/hook"
    )[0]["id"]
    with psycopg.connect(gateway.database_url, autocommit=True) as connection:
        disable = "update boathook.endpoint set is_disabled = {}, disabled_because = {}, disabled_at = {}"
        connection.execute(disable.format("true", "'manual'", "now()"))
        until(lambda: rounds(gateway, 3))
        assert alert_receiver.kinds("endpoint_disabled") == []  # an operator's own decision is no alert
        connection.execute(disable.format("true", "'failing'", "now()"))
        assert alert_receiver.await_kind("endpoint_disabled", "firing")["subject"] == endpoint
        connection.execute(disable.format("false", "null", "null"))
        alert_receiver.await_kind("endpoint_disabled", "firing", "recovered")


@pytest.mark.extended("waits for evaluations of alert rules; two such tests stay")
def test_requests_to_endpoints_fail(gateway: BoathookProcess, alert_receiver: AlertReceiver) -> None:
    application = gateway.listing("applications", "create", "Remote")[0]["id"]
    to = ("--application", application)
    gateway.cli("endpoints", "create", *to, "--url", f"https://127.0.0.1:{free_port()}/nobody")
    for _ in range(3):
        gateway.cli("send", *to, "--type", "invoice.paid", "--data", "{}")
    alert = alert_receiver.await_kind("sending_error_rate", "firing")
    assert alert["severity"] == "warning"
    assert alert["summary"].startswith("100 % of requests to endpoints failed in ")
    alert_receiver.await_kind("sending_error_rate", "firing", "recovered")


_seen: list[Any] = []


def rounds(gateway: BoathookProcess, number: int) -> bool:
    """Return whether the rules have been looked at so often since the first call."""
    with psycopg.connect(gateway.database_url) as connection:
        row = connection.execute("select at from boathook.alert_evaluation").fetchone()
    if row and row[0] not in _seen:
        _seen.append(row[0])
    if len(_seen) > number:
        _seen.clear()
        return True
    return False


def test_commands_list_silence_and_test_alerts(gateway: BoathookProcess, alert_receiver: AlertReceiver) -> None:
    until(lambda: gateway.listing("alerts", "list") == [] or not _fires(gateway, "mine"))
    (silence,) = gateway.listing("alerts", "silence", "--rule", "mine", "--for", "1h", "--note", "a test")
    before = len(alert_receiver.kinds("mine"))
    body, headers = signed(payload("silenced", "payment.paid"))
    for _ in range(6):
        httpx.post(f"{gateway.base}/in/stripe", content=body, headers=headers)
    until(lambda: _fires(gateway, "mine"))
    assert [one["is_silenced"] for one in gateway.listing("alerts", "list") if one["rule"] == "mine"] in ([True], [])
    until(lambda: not _fires(gateway, "mine"))
    assert len(alert_receiver.kinds("mine")) == before
    gateway.cli("alerts", "silence", "--end", silence["id"])
    assert "mine" in {one["rule"] for one in gateway.listing("alerts", "history")}
    gateway.environment["COLUMNS"] = "200"  # summaries wrap on a narrow terminal
    assert "stripe sends everything again" in gateway.cli("alerts", "history").stdout
    assert gateway.listing("alerts", "test", "ops") == [{"channel": "ops", "sent": True, "error": None}]
    assert alert_receiver.kinds("test") == ["test"]
    assert gateway.cli("alerts", "test", "nobody", check=False).returncode == 1
    assert "note" in gateway.cli("alerts", "silence", "--rule", "mine", check=False).stderr
    unknown = gateway.cli("alerts", "silence", "--rule", "my", "--for", "1m", "--note", "a test")
    assert "no rule matches 'my', so this silences nothing; the rules are " in unknown.stderr
    pattern = gateway.cli(
        "alerts", "silence", "--rule", "m*", "--subject", "nothing", "--for", "1m", "--note", "a test"
    )
    assert pattern.stderr == ""


def _fires(gateway: BoathookProcess, rule: str) -> bool:
    return rule in {one["rule"] for one in gateway.listing("alerts", "list")}


@pytest.mark.extended("waits for evaluations of alert rules; two such tests stay")
def test_nothing_processed_fires_while_workers_are_stuck(
    gateway: BoathookProcess, alert_receiver: AlertReceiver
) -> None:
    workers = gateway.children("worker")
    try:
        for worker in workers:
            worker.suspend()
        for number in range(3):
            assert post(gateway, f"stuck_{number}", "payment.paid") == 200
        alert_receiver.await_kind("nothing_processed", "firing")
    finally:
        for worker in workers:
            with contextlib.suppress(Exception):
                worker.resume()
    alert_receiver.await_kind("nothing_processed", "firing", "recovered")


def test_sent_alert_messages_are_counted_in_metrics(gateway: BoathookProcess) -> None:
    def shown() -> bool:
        text = httpx.get(f"{gateway.base}/metrics").text
        return (
            'boathook_alert_messages_total{channel="ops",outcome="sent"}' in text and "boathook_alerts_firing{" in text
        )

    until(shown)


def test_an_invalid_rule_fails_the_config_check(shared_boathook: Callable[..., BoathookProcess]) -> None:
    extra = '[notifications.rules.typo]\nmetric = "boathook_nothing"\nabove = 1'
    running = shared_boathook(start=False, extra=extra)
    done = running.cli("config", "check", check=False)
    assert done.returncode == 2
    assert "notifications.rules.typo.metric: unknown metric 'boathook_nothing'" in done.stderr


def test_secrets_of_channels_are_never_shown(gateway: BoathookProcess) -> None:
    shown = json.loads(gateway.cli("config", "show", "--json").stdout)
    assert shown["notifications"]["channels"]["ops"]["secret"] == "(hidden)"
    assert SECRET not in gateway.cli("config", "show").stdout
    assert SECRET not in gateway.log()
