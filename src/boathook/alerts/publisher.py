"""Each host tells the journal what it has counted, of the metrics that rules look at."""

import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from boathook.observability.exporters import MergedMetrics

MAX_SERIES: Final = 1_000
"""Most series of one metric that a host tells of."""


def host_name(data_dir: Path) -> str:
    """Return what a host is called: the machine's name, and the data directory where it is not the usual one."""
    node = platform.node() or "localhost"
    return node if data_dir.name == ".boathook" else f"{node}:{data_dir}"


def pick_series(merged: MergedMetrics, metrics: Iterable[str]) -> dict[str, list[list[Any]]]:
    """Return the series of these metrics as JSON can carry them."""
    found: dict[str, list[list[Any]]] = {}
    for name in metrics:
        numbers = merged.numbers.get(name, {})
        spreads = merged.histograms.get(name, {})
        rows: list[list[Any]] = [[list(labels), value] for labels, value in numbers.items()]
        rows += [[list(labels), list(one.counts), one.total] for labels, one in spreads.items()]
        if rows:
            found[name] = rows[:MAX_SERIES]
    return found
