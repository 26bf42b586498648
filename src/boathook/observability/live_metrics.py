"""Merges the metrics of all processes of one data directory, from memory and from their files.

Each process writes its counters to `<data_dir>/metrics/<slot>.json` once a second. A slot such as ``gateway-0``
outlives its process, so a restarted process continues its predecessor's counters. Counters and histograms are summed;
gauges are taken only from live processes. Metrics that apps expose under other names are computed from the sums.
"""

import asyncio
import contextlib
import json
import time
from collections import deque
from pathlib import Path
from typing import Any, Final

from boathook.domain.errors import ConfigError
from boathook.observability import meters
from boathook.observability.meters import Snapshot
from boathook.observability.metric_snapshot import Buckets, MetricSnapshot, SeriesKey
from boathook.observability.metrics import METRICS, MIRRORS, Merge, Metric, MetricKind, Mirror

FLUSH_S: Final = 1.0
_ALIVE_S: Final = 5.0
_STEP_S: Final = 5.0
_REMEMBERED_S: Final = 60.0
_restored: Final[set[Path]] = set()
"""Files whose counters this process has already."""


class SnapshotFile:
    """The snapshot file of one slot."""

    def __init__(self, data_dir: Path, slot: str) -> None:
        self._path = data_dir / "metrics" / f"{slot}.json"
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def restore(self) -> None:
        """Add the counters of the slot's earlier process; a missing or damaged file counts as empty.

        A program that starts boathook again within the same process still has them in memory.
        """
        path = self._path.resolve()
        if path in _restored:
            return
        _restored.add(path)
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            meters.restore(json.loads(self._path.read_bytes())["series"])

    def write(self, *, is_alive: bool = True) -> None:
        """Replace the file with the current values. A full or read-only disk must not stop the process."""
        content = {"at": time.time() if is_alive else 0, "series": meters.snapshot()}
        fresh = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            fresh.write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")
            fresh.replace(self._path)

    async def run(self) -> None:
        """Write the file once a second until cancelled, then once more, marked as not alive, which drops its gauges."""
        try:
            while True:
                self.write()
                await asyncio.sleep(FLUSH_S)
        finally:
            self.write(is_alive=False)


def gather(data_dir: Path | None, own_slot: str | None, now: float) -> MetricSnapshot:
    """Return the sum of all slots' files and of this process's live counters."""
    gathered = MetricSnapshot(at=now)
    _add(gathered, meters.snapshot(), is_alive=True)
    if own_slot is not None:
        _count_role(gathered, own_slot)
    for path in sorted((data_dir / "metrics").glob("*.json")) if data_dir else ():
        if path.stem == own_slot:
            continue
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(path.read_bytes())
            is_alive = now - content["at"] < _ALIVE_S
            _add(gathered, content["series"], is_alive=is_alive)
            if is_alive:
                _count_role(gathered, path.stem)
    for mirror in MIRRORS:
        with contextlib.suppress(ConfigError):  # the settings that define its labels are not loaded yet
            _apply_mirror(gathered, mirror)
    return gathered


def _add(gathered: MetricSnapshot, series: Snapshot, *, is_alive: bool) -> None:
    """Add one process's series; gauges of a process that has ended are ignored."""
    for name, rows in series.items():
        metric = METRICS.get(name)
        if metric is None or (metric.kind is MetricKind.GAUGE and not is_alive):
            continue
        for labels, *values in rows:
            _add_series(gathered, metric, tuple(labels), values)  # type: ignore[arg-type]  # lists of str in our files


def _add_series(gathered: MetricSnapshot, metric: Metric, labels: SeriesKey, values: list[Any]) -> None:
    if len(labels) != len(metric.labels):
        return
    match metric.kind:
        case MetricKind.HISTOGRAM:
            counts, total = values
            if len(counts) == len(metric.bounds) + 1:
                table = gathered.histograms.setdefault(metric.name, {})
                buckets = Buckets(tuple(counts), total)
                table[labels] = table[labels] + buckets if labels in table else buckets
        case MetricKind.COUNTER:
            counters = gathered.counters.setdefault(metric.name, {})
            counters[labels] = counters.get(labels, 0) + values[0]
        case MetricKind.GAUGE:
            gauges = gathered.gauges.setdefault(metric.name, {})
            before = gauges.get(labels)
            is_highest = metric.merge is Merge.MAX
            gauges[labels] = (
                values[0] if before is None else max(before, values[0]) if is_highest else before + values[0]
            )


def _count_role(gathered: MetricSnapshot, slot: str) -> None:
    """Count a live process by the role in its slot's name, such as ``gateway`` of ``gateway-0`` and ``2-gateway-0``."""
    role = slot.rstrip("0123456789").rstrip("-").lstrip("0123456789-")
    gathered.roles[role] = gathered.roles.get(role, 0) + 1


def _apply_mirror(gathered: MetricSnapshot, mirror: Mirror) -> None:
    translate = mirror.translator()
    for tables in (gathered.counters, gathered.gauges, gathered.histograms):
        for labels, value in list(tables.get(mirror.of, {}).items()):
            if (translated := translate(labels)) is not None:
                table: dict[SeriesKey, Any] = tables.setdefault(mirror.metric.name, {})
                table[translated] = table[translated] + value if translated in table else value


class LiveMetrics:
    """The current metrics of one data directory, and those of the last seconds.

    Args:
        data_dir: where the processes write their files; None: only this process.
        own_slot: the slot of this process, whose counters are read from memory; None if it has no slot.
    """

    def __init__(self, data_dir: Path | None, own_slot: str | None = None) -> None:
        self._data_dir, self._own_slot = data_dir, own_slot
        self._steps: deque[MetricSnapshot] = deque(maxlen=int(_REMEMBERED_S / _STEP_S) + 1)

    @property
    def slot(self) -> str:
        """The slot of this process; empty if it has none."""
        return self._own_slot or ""

    def now(self) -> MetricSnapshot:
        """Return the metrics since the counters began."""
        return gather(self._data_dir, self._own_slot, time.time())

    def recent(self, now: MetricSnapshot, span_s: float = _REMEMBERED_S) -> MetricSnapshot:
        """Return the metrics of about the last *span_s* seconds, as far as `run` has kept them."""
        earlier = next((step for step in self._steps if step.at >= now.at - span_s), None)
        return now.since(earlier or (self._steps[-1] if self._steps else now))

    async def run(self) -> None:
        """Keep snapshots of the last minute, one every five seconds, until cancelled."""
        while True:
            self._steps.append(self.now())
            await asyncio.sleep(_STEP_S)
