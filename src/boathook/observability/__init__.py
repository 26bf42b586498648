"""Metrics, logs and traces: `metrics` declares metrics, `meters` counts, `log` writes log lines."""

from pathlib import Path
from typing import Final

ALERT_RULES: Final = Path(__file__).with_name("alerts.yml")
"""Prometheus alert rules for boathook itself."""
DASHBOARDS: Final = {
    name: Path(__file__).with_name("grafana") / f"{name}.json"
    for name in ("overview", "inbound", "handlers", "sending", "storage")
}
"""Grafana dashboards, by name."""
