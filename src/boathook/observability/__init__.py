"""Metrics, logs and traces: `metrics` declares metrics, `meters` counts, `log` writes log lines."""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from boathook.config.packages import Package, prometheus_rules_of

ALERT_RULES: Final = Path(__file__).with_name("alerts.yml")
"""Prometheus alert rules for boathook itself."""
DASHBOARDS: Final = {
    name: Path(__file__).with_name("grafana") / f"{name}.json"
    for name in ("overview", "inbound", "handlers", "sending", "storage")
}
"""Grafana dashboards, by name."""


def prometheus_rules(packages: Iterable[Package]) -> str:
    """Return the alert rules for Prometheus: boathook's own, and those of *packages*."""
    return ALERT_RULES.read_text(encoding="utf-8") + "".join(map(prometheus_rules_of, packages))
