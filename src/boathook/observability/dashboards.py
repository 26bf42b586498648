"""Grafana dashboards for boathook, read from the files in `grafana/`."""

from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).with_name("grafana")
NAMES: Final = ("overview", "inbound", "handlers", "sending", "storage")


def read(name: str) -> str:
    """Return the JSON document of one of `NAMES`."""
    return (FOLDER / f"{name}.json").read_text(encoding="utf-8")
