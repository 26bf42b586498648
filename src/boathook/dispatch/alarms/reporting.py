"""Each host tells the journal what it has counted, of the metrics that rules look at."""

import asyncio
import platform
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from boathook.journal.alarms import put_sample
from boathook.journal.database import Database
from boathook.telemetry.exporters import Merged, merge

MOST_SERIES: Final = 1_000
"""Most series of one metric that a host tells of."""


def host_name(data_dir: Path) -> str:
    """Return what a host is called: the machine's name, and the data directory where it is not the usual one."""
    node = platform.node() or "localhost"
    return node if data_dir.name == ".boathook" else f"{node}:{data_dir}"


def pick_series(merged: Merged, metrics: Iterable[str]) -> dict[str, list[list[Any]]]:
    """Return the series of these metrics as JSON can carry them."""
    found: dict[str, list[list[Any]]] = {}
    for name in metrics:
        numbers = merged.numbers.get(name, {})
        spreads = merged.histograms.get(name, {})
        rows: list[list[Any]] = [[list(labels), value] for labels, value in numbers.items()]
        rows += [[list(labels), list(one.counts), one.total] for labels, one in spreads.items()]
        if rows:
            found[name] = rows[:MOST_SERIES]
    return found


async def report(database: Database, data_dir: Path, metrics: Iterable[str], own_slot: str | None) -> None:
    """Tell the journal what all processes of this host have counted. Raises JournalError."""
    # Reading the other processes' files may wait for a slow disk, which the event loop is not to do.
    merged = await asyncio.to_thread(merge, data_dir, own_slot, time.time())
    await put_sample(database, host_name(data_dir), pick_series(merged, metrics))


