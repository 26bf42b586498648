"""What boathook tells about itself: `meters` counts, `metrics` names, `log` writes lines."""

from pathlib import Path
from typing import Final

ALERT_RULES: Final = Path(__file__).with_name("alerts.yml")
"""Prometheus's alert rules for boathook itself."""
