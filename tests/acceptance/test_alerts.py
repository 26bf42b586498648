"""The alert rules for boathook itself, judged by Prometheus's own tool, and by what a gateway really shows."""

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import yaml

from boathook.telemetry import ALERT_RULES
from tests.acceptance.conftest import Running, payload, signed
from tests.support import until

ALERTS = {rule["alert"]: rule for rule in yaml.safe_load(ALERT_RULES.read_text())["groups"][0]["rules"]}
ROOT = Path(__file__).parents[2]

AWAY = 'boathook_journal_away{instance="a"}'
OLD = 'boathook_spool_oldest_seconds{instance="a"}'
ASIDE = 'boathook_spool_aside{{kind="{}"}}'
ANSWERED = 'boathook_requests_total{{source="stripe", status="{}"}}'

CASES = [
    # alert, whether it fires, after how long, series by the minute
    ("BoathookJournalAway", True, "3m", {AWAY: "0 1x60"}),
    ("BoathookJournalAway", False, "1m", {AWAY: "0 1x60"}),
    ("BoathookJournalAway", False, "10m", {AWAY: "0 1 0x60"}),
    ("BoathookSpoolFilling", True, "2m", {"boathook_spool_filled": "0.4 0.51x60"}),
    ("BoathookSpoolFilling", False, "2m", {"boathook_spool_filled": "0.5x60"}),
    ("BoathookSpoolOld", True, "10m", {OLD: "901x60", AWAY: "0x60"}),
    ("BoathookSpoolOld", False, "10m", {OLD: "901x60", AWAY: "1x60"}),
    ("BoathookSpoolOld", False, "10m", {OLD: "899x60", AWAY: "0x60"}),
    ("BoathookSpoolOld", True, "10m", {OLD: "901x60", AWAY.replace('"a"', '"b"'): "1x60"}),
    ("BoathookSpoolFailing", True, "2m", {"boathook_spool_failing": "0 1x60"}),
    ("BoathookSpoolFailing", False, "2m", {"boathook_spool_failing": "0x60"}),
    ("BoathookSpoolRefusedByPostgres", True, "2m", {ASIDE.format("refused"): "0 1x60"}),
    ("BoathookSpoolRefusedByPostgres", False, "2m", {ASIDE.format("refused"): "0x60", ASIDE.format("damaged"): "3x60"}),
    ("BoathookSpoolDamaged", True, "2m", {ASIDE.format("damaged"): "0 1x60"}),
    ("BoathookSpoolDamaged", True, "10m", {"boathook_spool_damaged_total": "0x5 1x60"}),
    ("BoathookSpoolDamaged", True, "10m", {"boathook_spool_damaged_total": "_x5 1x60"}),
    ("BoathookSpoolDamaged", False, "90m", {"boathook_spool_damaged_total": "1x120", ASIDE.format("refused"): "3x120"}),
    ("BoathookEventsTurnedAway", True, "10m", {ANSWERED.format(503): "0x5 1x60"}),
    ("BoathookEventsTurnedAway", True, "10m", {ANSWERED.format(503): "_x5 1x60"}),
    ("BoathookEventsTurnedAway", True, "10m", {"boathook_spool_refused_total": "0x5 1x60"}),
    ("BoathookEventsTurnedAway", False, "30m", {ANSWERED.format(503): "9x60", ANSWERED.format(200): "0+5x60"}),
    ("BoathookEventsTurnedAway", False, "30m", {ANSWERED.format(401): "0+5x60", "boathook_spool_refused_total": "4x60"}),
]  # fmt: skip


@pytest.fixture(scope="module")
def promtool() -> str:
    if shutil.which("promtool") is None:
        subprocess.run([ROOT / "scripts/need-program", "promtool", "prometheus"], check=True, timeout=110)
    found = shutil.which("promtool")
    assert found
    return found


def test_promtool_accepts_the_rules(promtool: str):
    done = subprocess.run([promtool, "check", "rules", ALERT_RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{len(ALERTS)} rules found" in done.stdout


@pytest.mark.parametrize(
    ("alert", "fires", "after", "series"), CASES, ids=[f"{case[0]}-{case[1]}-{n}" for n, case in enumerate(CASES)]
)
def test_it_fires_when_it_should_and_not_otherwise(promtool: str, tmp_path: Path, alert, fires, after, series):
    expression = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0)'
    expected = [{"labels": "{}", "value": int(fires)}]
    case = {
        "rule_files": [str(ALERT_RULES)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [{"expr": f"{expression} > bool 0", "eval_time": after, "exp_samples": expected}],
            }
        ],
    }
    file = tmp_path / "case.yml"
    file.write_text(yaml.safe_dump(case))
    done = subprocess.run([promtool, "test", "rules", file], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not():
    assert {(case[0], case[1]) for case in CASES} == {(alert, fires) for alert in ALERTS for fires in (True, False)}


def test_the_page_says_what_to_do_about_each_alert_and_about_no_other():
    told = re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/alerts.md").read_text(), re.MULTILINE)
    assert told == list(ALERTS)


@pytest.fixture(scope="module")
def gateway(shared_boathook: Callable[..., Running]) -> Running:
    running = shared_boathook(roles="gateway")
    body, headers = signed(payload("alerts_1", "invoice.paid"))
    assert httpx.post(f"{running.base}/in/stripe", content=body, headers=headers).status_code == 200
    return running


def test_every_series_that_the_rules_name_is_really_shown(gateway: Running):
    named = {name for rule in ALERTS.values() for name in re.findall(r"\bboathook_\w+", rule["expr"])}
    assert len(named) > 6
    until(lambda: [name for name in named if not has_series(gateway, name)] == [])


def test_every_label_that_the_rules_choose_by_is_really_there(gateway: Running):
    chosen = [
        pair for rule in ALERTS.values() for pair in re.findall(r"\b(boathook_\w+)\{(\w+)=\"(\w+)\"", rule["expr"])
    ]
    assert chosen
    for name, label, value in chosen:
        shown = r"\d+" if value.isdigit() else value
        assert re.search(rf'^{name}\{{[^}}]*{label}="{shown}"', metrics(gateway), re.MULTILINE), (name, label)


def metrics(gateway: Running) -> str:
    return httpx.get(f"{gateway.base}/metrics").text


def has_series(gateway: Running, name: str) -> bool:
    return re.search(rf"^{name}[ {{]", metrics(gateway), re.MULTILINE) is not None


def test_the_command_prints_the_rules(gateway: Running):
    assert gateway.cli("alerts").stdout == ALERT_RULES.read_text()
