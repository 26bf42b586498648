"""Each built-in alert has a rule among those that boathook prints for Prometheus, over the same metric."""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from boathook import config
from boathook.config import packages
from boathook.delivery.keeper import CAUSE_WITHIN_S, REPEATED_WITHIN_S
from boathook.observability import prometheus_rules

BUILT_IN: Final = tomllib.loads((Path(config.__file__).parent / "alert_rules.toml").read_text(encoding="utf-8")) | {
    name: rule for package in packages.own_packages() for name, rule in packages.alert_rules_of(package).items()
}
"""Also those of the optional packages in boathook's distribution."""
PROMETHEUS: Final = {
    rule["alert"]: rule
    for group in yaml.safe_load(prometheus_rules(packages.own_packages()))["groups"]
    for rule in group["rules"]
}
NOT_EXPRESSED: Final[Mapping[str, str]] = {}
"""Built-in alerts that no metric can express, with the reason. A rule over rows of tables needs a gauge of the keeper."""


def missing(rules: Mapping[str, Any]) -> list[str]:
    """Return the built-in alerts without a rule for Prometheus that reads the same metric."""
    expressions = {name: rules.get(prometheus_name(name), {}).get("expr") for name in BUILT_IN}
    return [
        name
        for name, expression in expressions.items()
        if name not in NOT_EXPRESSED and (expression is None or BUILT_IN[name].get("metric", "") not in expression)
    ]


def prometheus_name(name: str) -> str:
    return "Boathook" + "".join(word.capitalize() for word in name.split("_"))


def test_every_built_in_alert_is_a_rule_for_prometheus():
    assert missing(PROMETHEUS) == []
    assert NOT_EXPRESSED.keys() <= BUILT_IN.keys()


def test_mutant_a_missing_rule_is_reported():
    assert missing({name: rule for name, rule in PROMETHEUS.items() if name != "BoathookRepeatedBody"}) == [
        "repeated_body"
    ]


def test_mutant_a_rule_over_another_metric_is_reported():
    other = {"expr": "boathook_spool_events > 0"}
    assert missing(PROMETHEUS | {"BoathookBufferInUse": other}) == ["buffer_in_use"]


def test_the_gauge_of_a_repeating_cause_has_the_window_of_the_alert():
    assert BUILT_IN["repeating_cause"]["over_s"] == CAUSE_WITHIN_S
    assert PROMETHEUS["BoathookRepeatingCause"]["expr"].endswith(f"> {BUILT_IN['repeating_cause']['above']:g}")


def test_the_gauge_of_repeated_bodies_has_the_window_of_the_alert():
    assert BUILT_IN["repeated_body"]["over_s"] == REPEATED_WITHIN_S
    assert PROMETHEUS["BoathookRepeatedBody"]["expr"].endswith(f"> {BUILT_IN['repeated_body']['above']:g}")


def test_the_rules_of_a_package_are_about_its_own_metrics():
    for package in packages.own_packages():
        metrics = {metric.name for metric in packages.resolve(package.metrics)} if package.metrics else set()
        rules = yaml.safe_load("groups:\n" + packages.prometheus_rules_of(package))["groups"] or []
        for rule in (rule for group in rules for rule in group["rules"]):
            assert set(re.findall(r"boathook_\w+", rule["expr"])) <= metrics, rule["alert"]


def test_the_rules_of_boathook_are_about_no_metric_of_a_package():
    of_packages = {
        metric.name for one in packages.own_packages() if one.metrics for metric in packages.resolve(one.metrics)
    }
    own = set(re.findall(r"boathook_\w+", prometheus_rules(())))
    assert {"boathook_buffer_lost_total", "boathook_cell_events_waiting"} <= of_packages
    assert not own & of_packages
    assert "boathook_database_unavailable" in own
