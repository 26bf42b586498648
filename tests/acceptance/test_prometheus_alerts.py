"""boathook's alert rules, checked by promtool and against a gateway's real metrics."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import yaml

from boathook.config.packages import ALWAYS_USED, own_packages, resolve
from boathook.delivery.dispatcher import OUTCOMES as SENDS
from boathook.observability import DASHBOARDS, prometheus_rules
from boathook.observability.metrics import METRICS, TABLE, MetricKind
from scripts import write_dashboards, write_docs
from tests.acceptance.conftest import BoathookProcess, payload, signed
from tests.alert_harness import play_alerts
from tests.support import until

RULES_TEXT = prometheus_rules(own_packages())
"""The rules of boathook and of the optional packages in its distribution."""
ALERTS = {rule["alert"]: rule for group in yaml.safe_load(RULES_TEXT)["groups"] for rule in group["rules"]}
ROOT = Path(__file__).parents[2]
BY_CHOICE = {metric.name for metric in write_docs.own_metrics() if metric not in TABLE} - {
    metric.name
    for package in map(resolve, ALWAYS_USED.values())
    if package.metrics is not None
    for metric in resolve(package.metrics)
}
"""The metrics of packages that are not used by default, which a gateway that uses none of them does not show."""

AWAY = 'boathook_database_unavailable{instance="a"}'
OLD = 'boathook_spool_oldest_seconds{instance="a"}'
ASIDE = 'boathook_spool_set_aside{{kind="{}"}}'
ANSWERED = 'boathook_requests_total{{source="stripe", status="{}"}}'
ENDED = 'boathook_attempts_total{{recipient="handler:pay", outcome="{}"}}'
SENT = 'boathook_endpoint_requests_total{{outcome="{}"}}'
REFUSED = 'boathook_rejections_total{{source="{}", reason="{}"}}'
UNPROVEN = 'boathook_rejections_total{source="stripe", reason="signature_mismatch"}'
ACCEPTED = 'boathook_events_accepted_total{source="stripe"}'
DEAD = 'boathook_backlog{{recipient="{}", state="dead"}}'
CHECKS_FAILED = 'boathook_alert_checks_failed_total{rule="shop.overdue"}'
OPEN = 'boathook_handler_circuit_breaker_open{recipient="handler:pay", dependency="crm"}'
DUE = 'boathook_backlog{recipient="handler:pay", state="due"}'


def acknowledged(quick: str, slow: str) -> dict[str, str]:
    """Return the series of replies: those within half a second, and all of them."""
    return {
        'boathook_ack_seconds_bucket{le="0.5"}': quick,
        'boathook_ack_seconds_bucket{le="1.0"}': slow,
        'boathook_ack_seconds_bucket{le="+Inf"}': slow,
        "boathook_ack_seconds_count": slow,
    }


CASES = [
    # alert, whether it fires, after how long, series by the minute
    ("BoathookDatabaseUnavailable", True, "3m", {AWAY: "0 1x60"}),
    ("BoathookDatabaseUnavailable", False, "1m", {AWAY: "0 1x60"}),
    ("BoathookDatabaseUnavailable", False, "10m", {AWAY: "0 1 0x60"}),
    ("BoathookDatabaseUnsafe", True, "3m", {"boathook_database_unsafe": "0 1x60"}),
    ("BoathookDatabaseUnsafe", False, "3m", {"boathook_database_unsafe": "0 1 0x60"}),
    ("BoathookSpoolFilling", True, "2m", {"boathook_spool_used_ratio": "0.4 0.51x60"}),
    ("BoathookSpoolFilling", False, "2m", {"boathook_spool_used_ratio": "0.5x60"}),
    ("BoathookSpoolOld", True, "10m", {OLD: "901x60", AWAY: "0x60"}),
    ("BoathookSpoolOld", False, "10m", {OLD: "901x60", AWAY: "1x60"}),
    ("BoathookSpoolOld", False, "10m", {OLD: "899x60", AWAY: "0x60"}),
    ("BoathookSpoolOld", True, "10m", {OLD: "901x60", AWAY.replace('"a"', '"b"'): "1x60"}),
    ("BoathookSpoolFailing", True, "2m", {"boathook_spool_failing": "0 1x60"}),
    ("BoathookSpoolFailing", False, "2m", {"boathook_spool_failing": "0x60"}),
    ("BoathookBufferLost", True, "2m", {"boathook_buffer_lost_total": "0 3x60"}),
    ("BoathookBufferLost", False, "2m", {"boathook_buffer_lost_total": "0x60"}),
    ("BoathookBufferDamaged", True, "2m", {"boathook_buffer_damaged_total": "0 1x60"}),
    ("BoathookBufferDamaged", False, "2m", {"boathook_buffer_damaged_total": "0x60"}),
    ("BoathookBufferUnavailable", True, "5m", {"boathook_buffer_unavailable": "1x60"}),
    ("BoathookBufferUnavailable", False, "5m", {"boathook_buffer_unavailable": "0x60"}),
    ("BoathookBufferRejected", True, "10m", {"boathook_buffer_rejected_total": "0x5 1x60"}),
    ("BoathookBufferRejected", True, "10m", {"boathook_buffer_rejected_total": "_x5 1x60"}),
    ("BoathookBufferRejected", False, "30m", {"boathook_buffer_rejected_total": "4x60"}),
    ("BoathookCellUnavailable", True, "2m", {'boathook_cell_events_waiting{cell="c2"}': "3x60"}),
    ("BoathookCellUnavailable", False, "2m", {'boathook_cell_events_waiting{cell="c2"}': "0x60"}),
    ("BoathookDueLaneUnavailable", True, "5m", {"boathook_due_lane_unavailable": "1x60"}),
    ("BoathookDueLaneUnavailable", False, "5m", {"boathook_due_lane_unavailable": "0x60"}),
    ("BoathookLateDuplicates", True, "2m", {'boathook_messages_late_duplicates_total{reason="event_id"}': "0 1x60"}),
    ("BoathookLateDuplicates", False, "2m", {'boathook_messages_late_duplicates_total{reason="event_id"}': "0x60"}),
    ("BoathookRateLeasesUnavailable", True, "10m", {"boathook_rate_leases_unavailable": "1x60"}),
    ("BoathookRateLeasesUnavailable", False, "10m", {"boathook_rate_leases_unavailable": "0x60"}),
    ("BoathookSpoolRefusedByPostgres", True, "2m", {ASIDE.format("refused"): "0 1x60"}),
    ("BoathookSpoolRefusedByPostgres", False, "2m", {ASIDE.format("refused"): "0x60", ASIDE.format("damaged"): "3x60"}),
    ("BoathookSpoolDamaged", True, "2m", {ASIDE.format("damaged"): "0 1x60"}),
    ("BoathookSpoolDamaged", True, "10m", {"boathook_spool_damaged_segments_total": "0x5 1x60"}),
    ("BoathookSpoolDamaged", True, "10m", {"boathook_spool_damaged_segments_total": "_x5 1x60"}),
    ("BoathookSpoolDamaged", False, "90m", {"boathook_spool_damaged_segments_total": "1x120", ASIDE.format("refused"): "3x120"}),
    ("BoathookRequestsAnswered503", True, "10m", {ANSWERED.format(503): "0x5 1x60"}),
    ("BoathookRequestsAnswered503", True, "10m", {ANSWERED.format(503): "_x5 1x60"}),
    ("BoathookRequestsAnswered503", True, "10m", {"boathook_spool_rejected_total": "0x5 1x60"}),
    ("BoathookRequestsAnswered503", False, "30m", {ANSWERED.format(503): "9x60", ANSWERED.format(200): "0+5x60"}),
    ("BoathookRequestsAnswered503", False, "30m", {ANSWERED.format(401): "0+5x60", "boathook_spool_rejected_total": "4x60"}),
    ("BoathookSpoolInUse", True, "10m", {'boathook_spool_events{instance="a"}': "0x3 5x60"}),
    ("BoathookSpoolInUse", False, "10m", {'boathook_spool_events{instance="a"}': "0 5 0x60"}),
    ("BoathookDeadLetters", True, "10m", {DEAD.format("handler:pay"): "0x5 1x60"}),
    ("BoathookDeadLetters", True, "10m", {DEAD.format("endpoint"): "_x5 1x60"}),
    ("BoathookDeadLetters", True, "20h", {DEAD.format("handler:pay"): "0 28x1300", ENDED.format("dead"): "28x1300"}),
    ("BoathookDeadLetters", True, "12m", {DEAD.format("handler:pay"): "28x10 _x60"}),
    ("BoathookDeadLetters", False, "10m", {DEAD.format("handler:pay"): "28x3 0x60", ENDED.format("dead"): "0+3x60"}),
    ("BoathookDeadLetters", False, "10m", {DUE: "28x60"}),
    ("BoathookErrorRate", True, "20m", {ENDED.format("retry"): "0+3x60", ENDED.format("succeeded"): "0+6x60"}),
    ("BoathookErrorRate", False, "20m", {ENDED.format("retry"): "0+1x60", ENDED.format("succeeded"): "0+6x60"}),
    ("BoathookErrorRate", False, "20m", {ENDED.format("retry"): "0+1x60", ENDED.format("succeeded"): "0x60"}),
    ("BoathookSendingErrorRate", True, "20m", {SENT.format("retry"): "0+6x60", SENT.format("succeeded"): "0+4x60"}),
    ("BoathookSendingErrorRate", False, "20m", {SENT.format("retry"): "0+4x60", SENT.format("succeeded"): "0+6x60"}),
    ("BoathookSendingErrorRate", False, "20m", {SENT.format("retry"): "0+4x60", SENT.format("succeeded"): "0x60"}),
    ("BoathookSlowAcknowledgements", True, "20m", acknowledged("0+9x60", "0+10x60")),
    ("BoathookSlowAcknowledgements", False, "20m", acknowledged("0+99x60", "0+100x60")),
    ("BoathookSlowAcknowledgements", False, "20m", acknowledged("0x60", "0+2x60")),
    ("BoathookSignatureFailures", True, "30m", {UNPROVEN: "0x20 0+3x60"}),
    ("BoathookSignatureFailures", False, "30m", {UNPROVEN: "0x20 0+1x60"}),
    ("BoathookSignatureFailures", False, "24h", {UNPROVEN: "0+3x1500"}),
    ("BoathookAllSignaturesFailing", True, "40m", {UNPROVEN: "0+1x60", ACCEPTED: "7x60"}),
    ("BoathookAllSignaturesFailing", True, "40m", {UNPROVEN: "0+1x60"}),
    ("BoathookAllSignaturesFailing", False, "40m", {UNPROVEN: "0+1x60", ACCEPTED: "0x20 0+1x60"}),
    ("BoathookAllSignaturesFailing", False, "40m", {UNPROVEN: "0+1x60", 'boathook_duplicates_total{source="stripe"}': "0+1x60"}),
    ("BoathookRequestsRefusedUnread", True, "10m", {REFUSED.format("github", "body_too_large"): "0x5 1x60"}),
    ("BoathookRequestsRefusedUnread", True, "10m", {REFUSED.format("github", "content_encoding"): "_x5 1x60"}),
    ("BoathookRequestsRefusedUnread", False, "90m", {REFUSED.format("github", "body_too_large"): "4x120"}),
    ("BoathookRequestsRefusedUnread", False, "40m", {UNPROVEN: "0+1x60", REFUSED.format("", "unknown_path"): "0+9x60"}),
    ("BoathookWrongAddress", True, "30m", {REFUSED.format("", "unknown_path"): "0+1x60"}),
    ("BoathookWrongAddress", True, "30m", {REFUSED.format("github", "method_not_allowed"): "0+1x60"}),
    ("BoathookWrongAddress", False, "30m", {REFUSED.format("", "unknown_path"): "0x10 3x60"}),
    ("BoathookWrongAddress", False, "30m", {REFUSED.format("github", "body_too_large"): "0+9x60"}),
    ("BoathookConflictSeen", True, "10m", {'boathook_conflicts_total{source="stripe"}': "0x5 1x60"}),
    ("BoathookConflictSeen", True, "10m", {'boathook_conflicts_total{source="stripe"}': "_x5 1x60"}),
    ("BoathookConflictSeen", False, "90m", {'boathook_conflicts_total{source="stripe"}': "4x120"}),
    ("BoathookRepeatedBody", True, "10m", {'boathook_repeated_bodies{source="stripe"}': "0x5 11x60"}),
    ("BoathookRepeatedBody", True, "12m", {'boathook_repeated_bodies{source="stripe"}': "11x10 _x60"}),
    ("BoathookRepeatedBody", False, "10m", {'boathook_repeated_bodies{source="stripe"}': "11x3 10x60"}),
    ("BoathookAlertCheckFailed", True, "10m", {CHECKS_FAILED: "0x5 1x60"}),
    ("BoathookAlertCheckFailed", True, "10m", {CHECKS_FAILED: "_x5 1x60"}),
    ("BoathookAlertCheckFailed", False, "90m", {CHECKS_FAILED: "4x120"}),
    ("BoathookRepeatingCause", True, "10m", {"boathook_repeating_cause": "0x5 10x60"}),
    ("BoathookRepeatingCause", True, "12m", {"boathook_repeating_cause": "10x10 _x60"}),
    ("BoathookRepeatingCause", False, "10m", {"boathook_repeating_cause": "10x3 9x60"}),
    ("BoathookBreakerOpen", True, "10m", {OPEN: "0x5 1x60"}),
    ("BoathookBreakerOpen", False, "10m", {OPEN: "1x5 0x60"}),
    ("BoathookEndpointPaused", True, "10m", {"boathook_endpoint_circuit_breakers_open": "0x5 2x60"}),
    ("BoathookEndpointPaused", False, "20m", {"boathook_endpoint_circuit_breakers_open": "2x5 0x60"}),
    ("BoathookUnhandledEvents", True, "10m", {'boathook_events_unhandled_total{source="stripe"}': "0x5 1x60"}),
    ("BoathookUnhandledEvents", True, "10m", {'boathook_events_unhandled_total{source="stripe"}': "_x5 1x60"}),
    ("BoathookUnhandledEvents", False, "40m", {'boathook_events_unhandled_total{source="stripe"}': "4x60"}),
    ("BoathookBufferInUse", True, "10m", {'boathook_buffer_events{instance="a"}': "0x3 5x60"}),
    ("BoathookBufferInUse", False, "10m", {'boathook_buffer_events{instance="a"}': "0 5 0x60"}),
    ("BoathookEndpointDisabled", True, "10m", {'boathook_endpoints_disabled_total{reason="gone"}': "0x5 1x60"}),
    ("BoathookEndpointDisabled", True, "10m", {'boathook_endpoints_disabled_total{reason="gone"}': "_x5 1x60"}),
    ("BoathookEndpointDisabled", False, "90m", {'boathook_endpoints_disabled_total{reason="gone"}': "2x120"}),
    ("BoathookNothingProcessed", True, "20m", {DUE: "5x60", ENDED.format("succeeded"): "7x60"}),
    ("BoathookNothingProcessed", False, "20m", {DUE: "5x60", ENDED.format("succeeded"): "0+1x60"}),
    ("BoathookNothingProcessed", False, "20m", {DUE: "5x60", SENT.format("succeeded"): "0+1x60"}),
    ("BoathookNothingProcessed", False, "20m", {DUE: "0x60", ENDED.format("succeeded"): "7x60"}),
    ("BoathookAlertMessagesFail", True, "20m", {'boathook_alert_messages_total{channel="ops", outcome="failed"}': "0+1x60"}),
    ("BoathookAlertMessagesFail", False, "20m", {'boathook_alert_messages_total{channel="ops", outcome="sent"}': "0+1x60"}),
]  # fmt: skip


@pytest.fixture(scope="module")
def promtool() -> str:
    if shutil.which("promtool") is None:
        subprocess.run([ROOT / "scripts/need-program", "promtool", "prometheus"], check=True, timeout=110)
    found = shutil.which("promtool")
    assert found
    return found


@pytest.fixture(scope="module")
def rules_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rules") / "boathook.yml"
    file.write_text(RULES_TEXT)
    return file


def test_promtool_accepts_the_rules(promtool: str, rules_file: Path):
    done = subprocess.run([promtool, "check", "rules", rules_file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


@pytest.mark.extended("plays alert rules with promtool; that their metrics exist stays")
def test_each_alert_fires_only_in_its_case(promtool: str, rules_file: Path, tmp_path: Path):
    assert play_alerts(promtool, rules_file, CASES, tmp_path) == ""


def test_mutant_a_wrong_expectation_is_reported(promtool: str, rules_file: Path, tmp_path: Path):
    alert, fires, after, series = CASES[0]
    assert alert in play_alerts(promtool, rules_file, [(alert, not fires, after, series)], tmp_path)


def test_each_alert_has_a_firing_and_a_non_firing_case():
    assert {(case[0], case[1]) for case in CASES} == {(alert, fires) for alert in ALERTS for fires in (True, False)}


def test_the_page_documents_exactly_the_alerts():
    page = (ROOT / "docs/how-to/alerts.md").read_text()
    section = page.partition("\n## Prometheus rules\n")[2].partition("\n## ")[0]
    told = re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)
    assert told == list(ALERTS)


@pytest.fixture(scope="module")
def gateway(shared_boathook: Callable[..., BoathookProcess]) -> BoathookProcess:
    running = shared_boathook()
    for key, kind in (("alerts_1", "invoice.paid"), ("alerts_2", "broken.thing")):
        body, headers = signed(payload(key, kind))
        assert httpx.post(f"{running.base}/in/stripe", content=body, headers=headers).status_code == 200
    return running


@pytest.fixture(scope="module")
def gateway_with_packages(shared_boathook: Callable[..., BoathookProcess]) -> BoathookProcess:
    """Return a gateway that uses the packages whose metrics have rules; their servers do not run."""
    return shared_boathook(extra=OPTIONAL)


OPTIONAL = """
    [buffer]
    hosts = ["127.0.0.1:1"]
    user = "u"
    password = "p"
    [cells]
"""
RULES = " ".join(rule["expr"] for rule in ALERTS.values())
OWN_RULES = " ".join(
    rule["expr"] for group in yaml.safe_load(prometheus_rules(()))["groups"] for rule in group["rules"]
)
BOARDS = [
    target["expr"]
    for name in DASHBOARDS
    for panel in json.loads(DASHBOARDS[name].read_text())["panels"]
    for target in panel["targets"]
]
UNSEEN = {"boathook_endpoint_requests_total": set(SENDS.values()), "boathook_alert_messages_total": {"sent", "failed"}}
"""Metrics that count nothing here, with what their label may say."""


def named(expression: str) -> set[str]:
    """Return the metrics that an expression names."""
    return set(re.findall(r"\bboathook_\w+", expression))


def known(gateway: BoathookProcess) -> dict[str, str]:
    """Return the kinds of the metrics that are really shown."""
    return dict(re.findall(r"^# TYPE (\w+) (\w+)$", metrics(gateway), re.MULTILINE))


def family(name: str) -> str:
    """Return the metric that a series belongs to."""
    short = re.sub(r"_(bucket|count|sum)$", "", name)
    return short if short in METRICS and METRICS[short].kind is MetricKind.HISTOGRAM else name


def unseen(gateway: BoathookProcess, expression: str) -> set[str]:
    """Return the metrics that an expression names and a gateway does not show."""
    assert named(expression)
    shown = known(gateway)
    return {name for name in named(expression) if family(name) not in shown}


@pytest.mark.parametrize("expression", [OWN_RULES, *BOARDS], ids=lambda text: text[:60])
def test_every_metric_that_rules_and_dashboards_name_is_really_shown(gateway: BoathookProcess, expression: str):
    assert unseen(gateway, expression) == set()


def test_every_metric_that_rules_of_packages_name_is_shown_where_they_are_used(
    gateway: BoathookProcess, gateway_with_packages: BoathookProcess
):
    assert unseen(gateway_with_packages, RULES) == set()
    # A gateway shows no metric of a package that it does not use.
    assert unseen(gateway, RULES) == named(RULES) & BY_CHOICE != set()
    assert not known(gateway).keys() & BY_CHOICE


@pytest.mark.parametrize(
    "expression", [*(rule["expr"] for rule in ALERTS.values()), *BOARDS], ids=lambda text: text[:60]
)
def test_every_label_that_they_name_is_one_of_the_metric(expression: str):
    scraped = {"instance", "job", "le"}
    allowed = scraped.union(*(METRICS[family(name)].labels for name in named(expression)))
    grouped = [
        word.strip() for words in re.findall(r"\b(?:by|on) \(([^)]*)\)", expression) for word in words.split(",")
    ]
    assert set(grouped) <= allowed
    for name, chosen in re.findall(r"\b(boathook_\w+)\{([^}]*)\}", expression):
        labels = set(re.findall(r"(\w+)(?:=~|!=|!~|=)", chosen))
        assert labels <= {*METRICS[family(name)].labels, *scraped}, name


def test_every_value_that_the_rules_choose_by_is_really_there(gateway: BoathookProcess):
    chosen = [
        (name, label, value)
        for expression in (RULES, *BOARDS)
        for name, inner in re.findall(r"\b(boathook_\w+)\{([^}]*)\}", expression)
        for label, value in re.findall(r'(\w+)="(\w+)"', inner)
    ]
    assert len(chosen) > 6
    for name, label, value in chosen:
        if name in UNSEEN:
            assert value in UNSEEN[name]
        elif (label, value) not in {("recipient", "endpoint"), ("status", "503")}:
            until(lambda name=name, label=label, value=value: has(gateway, name, label, value))  # type: ignore[misc]


def has(gateway: BoathookProcess, name: str, label: str, value: str) -> bool:
    return re.search(rf'^{name}\{{[^}}]*{label}="{value}"', metrics(gateway), re.MULTILINE) is not None


def metrics(gateway: BoathookProcess) -> str:
    return httpx.get(f"{gateway.base}/metrics").text


def test_prometheus_understands_every_expression_of_the_dashboards(promtool: str, tmp_path: Path):
    expressions = [text.replace("$__rate_interval", "5m").replace("$instance", ".*") for text in BOARDS]
    rules = [{"record": f"panel:{number}", "expr": text} for number, text in enumerate(expressions)]
    file = tmp_path / "panels.yml"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    done = subprocess.run([promtool, "check", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rules[0]["expr"] += " by by"
    file.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": rules}]}))
    assert subprocess.run([promtool, "check", "rules", file], capture_output=True, check=False).returncode != 0


def test_the_dashboards_are_up_to_date():
    for path, text in write_dashboards.pages().items():
        assert path.read_text(encoding="utf-8") == text, "run make docs"
    assert tuple(write_dashboards.BOARDS) == tuple(DASHBOARDS)


def test_the_panels_of_a_dashboard_have_names_and_places_of_their_own():
    for name in DASHBOARDS:
        panels = json.loads(DASHBOARDS[name].read_text())["panels"]
        assert len({panel["title"] for panel in panels}) == len({panel["id"] for panel in panels}) == len(panels) > 5
        assert len({(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in panels}) == len(panels)
        assert all(panel["description"] for panel in panels)


def test_the_command_prints_the_rules(gateway: BoathookProcess):
    assert gateway.cli("alerts", "rules").stdout == RULES_TEXT


def test_the_command_prints_the_dashboards_or_writes_them(gateway: BoathookProcess):
    printed = [json.loads(line)["uid"] for line in gateway.cli("dashboards").stdout.splitlines()]
    assert printed == [f"boathook-{name}" for name in DASHBOARDS]
    gateway.cli("dashboards", "--out", "boards/of/ours")
    written = {path.name for path in (gateway.folder / "boards/of/ours").iterdir()}
    assert written == {f"boathook-{name}.json" for name in DASHBOARDS}
    refused = gateway.cli("dashboards", "--out", "boathook.toml", check=False)
    assert refused.returncode == 2
    assert "--out" in refused.stderr
