"""Shows what was counted, over all processes of one data directory: Prometheus text, JSON, and the last hour.

Each process writes its snapshot to `<data_dir>/metrics/<slot>.json` once a second; a slot is a place such as
``gateway-0`` that outlives the process in it, so a restarted process continues its predecessor's counters.
Whoever answers `/metrics` merges the files: counters and histograms are added up, gauges only of live processes.
What apps show under names of their own is computed from the sums.
"""

import asyncio
import contextlib
import json
import re
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from boathook.domain.errors import ConfigError
from boathook.observability import meters
from boathook.observability.meters import SeriesKey, Snapshot
from boathook.observability.metrics import METRICS, MIRRORS, Merge, Metric, MetricKind, Mirror

FLUSH_S: Final = 1.0
_ALIVE_S: Final = 5.0
_SAMPLE_S: Final = 5.0
_QUANTILES: Final = (0.5, 0.95, 0.99)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class SnapshotFile:
    """One slot's snapshot on disk."""

    def __init__(self, data_dir: Path, slot: str) -> None:
        self._path = data_dir / "metrics" / f"{slot}.json"
        self._path.parent.mkdir(parents=True, exist_ok=True)

    def restore(self) -> None:
        """Add what the slot's earlier process had counted; a missing or torn file counts as none."""
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            meters.restore(json.loads(self._path.read_bytes())["series"])

    def write(self, *, is_alive: bool = True) -> None:
        """Replace the file by what is counted so far. A full or read-only disk must not stop the process."""
        content = {"at": time.time() if is_alive else 0, "series": meters.snapshot()}
        fresh = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            fresh.write_text(json.dumps(content, separators=(",", ":")), encoding="utf-8")
            fresh.replace(self._path)

    async def run(self) -> None:
        """Write once a second, until cancelled; then once more, with the gauges withdrawn."""
        try:
            while True:
                self.write()
                await asyncio.sleep(FLUSH_S)
        finally:
            self.write(is_alive=False)


@dataclass(frozen=True, slots=True)
class Buckets:
    """A histogram's counts, one more than its bounds, and the sum of what was observed."""

    counts: tuple[int, ...]
    total: float

    def __add__(self, other: "Buckets") -> "Buckets":
        return Buckets(tuple(map(sum, zip(self.counts, other.counts, strict=True))), self.total + other.total)

    def since(self, earlier: "Buckets | None") -> "Buckets":
        """Return what was observed after *earlier*; a counter that went backwards was started anew."""
        if earlier is None or any(a < b for a, b in zip(self.counts, earlier.counts, strict=True)):
            return self
        differences = tuple(a - b for a, b in zip(self.counts, earlier.counts, strict=True))
        return Buckets(differences, self.total - earlier.total)

    def quantile(self, bounds: tuple[float, ...], share: float) -> float | None:
        """Return the value below which *share* of the observations lie, interpolated within its bucket."""
        wanted, seen = share * sum(self.counts), 0
        if not any(self.counts):
            return None
        for i, n in enumerate(self.counts[:-1]):
            if n and seen + n >= wanted:
                low = bounds[i - 1] if i else 0.0
                return low + (bounds[i] - low) * (wanted - seen) / n
            seen += n
        return bounds[-1]


@dataclass(frozen=True, slots=True)
class MergedMetrics:
    """All processes' metrics at one moment."""

    at: float
    numbers: dict[str, dict[SeriesKey, float]] = field(default_factory=dict)
    histograms: dict[str, dict[SeriesKey, Buckets]] = field(default_factory=dict)
    roles: Counter[str] = field(default_factory=Counter)
    """Processes that are alive, by role."""

    def add(self, series: Snapshot, *, is_alive: bool) -> None:
        """Take in one process's snapshot; gauges of a process that is gone are left out."""
        for name, rows in series.items():
            metric = METRICS.get(name)
            if metric is None or (metric.kind is MetricKind.GAUGE and not is_alive):
                continue
            for labels, *values in rows:
                self._add_series(metric, tuple(labels), values)  # type: ignore[arg-type]  # lists of str in our files

    def _add_series(self, metric: Metric, labels: SeriesKey, values: list[Any]) -> None:
        if len(labels) != len(metric.labels):
            return
        if metric.kind is MetricKind.HISTOGRAM:
            counts, total = values
            if len(counts) == len(metric.bounds) + 1:
                table = self.histograms.setdefault(metric.name, {})
                found = Buckets(tuple(counts), total)
                table[labels] = table[labels] + found if labels in table else found
            return
        numbers = self.numbers.setdefault(metric.name, {})
        before = numbers.get(labels)
        is_highest = metric.kind is MetricKind.GAUGE and metric.merge is Merge.MAX
        numbers[labels] = values[0] if before is None else max(before, values[0]) if is_highest else before + values[0]

    def apply_mirrors(self, mirrors: Iterable[Mirror]) -> None:
        """Add what is shown a second time; a mirror whose words cannot be told yet is left out."""
        for mirror in mirrors:
            with contextlib.suppress(ConfigError):
                self._apply_mirror(mirror, mirror.translator())

    def _apply_mirror(self, mirror: Mirror, translate: Callable[[SeriesKey], SeriesKey | None]) -> None:
        name = mirror.metric.name
        for labels, number in list(self.numbers.get(mirror.of, {}).items()):
            if (shown := translate(labels)) is not None:
                numbers = self.numbers.setdefault(name, {})
                numbers[shown] = numbers.get(shown, 0) + number
        for labels, found in list(self.histograms.get(mirror.of, {}).items()):
            if (shown := translate(labels)) is not None:
                table = self.histograms.setdefault(name, {})
                table[shown] = table[shown] + found if shown in table else found

    def summed(self, name: str) -> Buckets | None:
        """Return a histogram over all its labels."""
        series = list(self.histograms.get(name, {}).values())
        return sum(series[1:], series[0]) if series else None


def merge(data_dir: Path | None, own_slot: str | None, now: float) -> MergedMetrics:
    """Return the sum of all slots' files and of this process's live counts."""
    merged = MergedMetrics(now)
    merged.add(meters.snapshot(), is_alive=True)
    if own_slot is not None:
        merged.roles[_role(own_slot)] += 1
    for path in sorted((data_dir / "metrics").glob("*.json")) if data_dir else ():
        if path.stem == own_slot:
            continue
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(path.read_bytes())
            is_alive = now - content["at"] < _ALIVE_S
            merged.add(content["series"], is_alive=is_alive)
            merged.roles[_role(path.stem)] += is_alive
    merged.apply_mirrors(MIRRORS)
    return merged


def _role(slot: str) -> str:
    """Return the role in a slot's name, such as ``gateway`` of ``gateway-0`` and of ``2-gateway-0``."""
    return slot.rstrip("0123456789").rstrip("-").lstrip("0123456789-")


class MetricHistory:
    """The last minute in steps of five seconds, for rates, and the last hour by the minute, for charts."""

    def __init__(self, data_dir: Path | None, own_slot: str | None = None) -> None:
        self._data_dir, self._own_slot = data_dir, own_slot
        self._steps: deque[MergedMetrics] = deque(maxlen=int(60 / _SAMPLE_S) + 1)
        self._minutes: deque[dict[str, Any]] = deque(maxlen=60)

    def now(self) -> MergedMetrics:
        """Return the present sum over all processes."""
        return merge(self._data_dir, self._own_slot, time.time())

    def before(self, seconds: float) -> MergedMetrics:
        """Return the sum that was so many seconds ago, or the oldest that is remembered."""
        limit = time.time() - seconds
        return next((step for step in self._steps if step.at >= limit), None) or self._newest()

    def _newest(self) -> MergedMetrics:
        return self._steps[-1] if self._steps else self.now()

    async def run(self) -> None:
        """Sample every five seconds, until cancelled."""
        minute_start = self.now()
        self._steps.append(minute_start)
        while True:
            await asyncio.sleep(_SAMPLE_S)
            latest = self.now()
            self._steps.append(latest)
            if latest.at - minute_start.at >= 60 - _SAMPLE_S / 2:
                self._minutes.append(_minute(minute_start, latest))
                minute_start = latest

    def to_json(self) -> dict[str, Any]:
        """Return every series with its rate over the last minute, and quantiles for histograms."""
        latest = self.now()
        earlier = self._steps[0] if self._steps else latest
        span_s = max(latest.at - earlier.at, 0.001)
        metrics = {metric.name: _describe(metric, earlier, latest, span_s) for metric in METRICS.values()}
        return {"at": latest.at, "window_s": round(span_s, 3), "metrics": metrics}

    def last_hour(self) -> list[dict[str, Any]]:
        """Return one object a minute, oldest first."""
        return list(self._minutes)


def _describe(metric: Metric, earlier: MergedMetrics, latest: MergedMetrics, span_s: float) -> dict[str, Any]:
    if metric.kind is MetricKind.HISTOGRAM:
        before = earlier.histograms.get(metric.name, {})
        series = [
            _describe_buckets(metric, labels, buckets, buckets.since(before.get(labels)), span_s)
            for labels, buckets in latest.histograms.get(metric.name, {}).items()
        ]
    else:
        series = list(_describe_numbers(metric, earlier, latest, span_s))
    return {"kind": metric.kind, "help": metric.help, "series": series}


def _describe_numbers(
    metric: Metric, earlier: MergedMetrics, latest: MergedMetrics, span_s: float
) -> Iterator[dict[str, Any]]:
    before = earlier.numbers.get(metric.name, {})
    for labels, value in latest.numbers.get(metric.name, {}).items():
        entry: dict[str, Any] = {"labels": dict(zip(metric.labels, labels, strict=True)), "value": value}
        if metric.kind is MetricKind.COUNTER:
            entry["per_second"] = round(max(0.0, value - before.get(labels, 0)) / span_s, 3)
        yield entry


def _describe_buckets(
    metric: Metric, labels: SeriesKey, whole: Buckets, lately: Buckets, span_s: float
) -> dict[str, Any]:
    shown = lately if any(lately.counts) else whole
    return {
        "labels": dict(zip(metric.labels, labels, strict=True)),
        "count": sum(whole.counts),
        "sum": whole.total,
        "per_second": round(sum(lately.counts) / span_s, 3),
        **_quantiles(metric, shown),
    }


def _quantiles(metric: Metric, buckets: Buckets) -> dict[str, float | None]:
    return {f"p{share * 100:.0f}": buckets.quantile(metric.bounds, share) for share in _QUANTILES}


def _minute(start: MergedMetrics, end: MergedMetrics) -> dict[str, Any]:
    """Sum each metric over its labels: counters as the minute's increase, gauges as they stand at its end."""
    entry: dict[str, Any] = {"at": end.at, "seconds": round(end.at - start.at, 3)}
    for name, numbers in end.numbers.items():
        metric, value = METRICS[name], sum(numbers.values())
        if metric.kind is MetricKind.COUNTER:
            value = max(0.0, value - sum(start.numbers.get(name, {}).values()))
        entry[name] = value
    for name in end.histograms:
        whole = end.summed(name)
        if whole is not None:
            lately = whole.since(start.summed(name))
            entry[name] = {"count": sum(lately.counts), **_quantiles(METRICS[name], lately)}
    return entry


def to_prometheus(merged: MergedMetrics) -> str:
    """Write the text exposition format, version 0.0.4."""
    lines: list[str] = []
    for metric in METRICS.values():
        lines += (f"# HELP {metric.name} {_escape_help(metric.help)}", f"# TYPE {metric.name} {metric.kind}")
        for labels, value in merged.numbers.get(metric.name, {}).items():
            lines.append(f"{metric.name}{_labels(metric.labels, labels)} {value}")
        for labels, buckets in merged.histograms.get(metric.name, {}).items():
            lines += _bucket_lines(metric, labels, buckets)
    return "\n".join(lines) + "\n"


def from_prometheus(text: str, at: float) -> MergedMetrics:
    """Read what `to_prometheus` has written, elsewhere perhaps; what is not known here is left out.

    Raises:
        ValueError: it is no such text.
    """
    merged = MergedMetrics(at)
    below: dict[tuple[str, SeriesKey], list[int]] = {}
    for line in text.splitlines():
        if line and not line.startswith("#"):
            _read_line(merged, below, line)
    for (name, key), counts in below.items():
        found = tuple(b - a for a, b in pairwise((0, *counts)))
        if len(found) == len(METRICS[name].bounds) + 1:
            total = merged.numbers.get(f"{name}_sum", {}).get(key, 0.0)
            merged.histograms.setdefault(name, {})[key] = Buckets(found, total)
    return merged


def _read_line(merged: MergedMetrics, below: dict[tuple[str, SeriesKey], list[int]], line: str) -> None:
    series, _, number = line.rpartition(" ")
    name, _, rest = series.partition("{")
    labels = {label: _unescape(value) for label, value in _LABEL.findall(rest)}
    stem = name.removesuffix("_bucket").removesuffix("_sum")
    metric = METRICS.get(name) or METRICS.get(stem)
    if metric is None or not labels.keys() >= set(metric.labels):
        return
    key = tuple(labels[label] for label in metric.labels)
    if name.endswith("_bucket") and metric.kind is MetricKind.HISTOGRAM:
        below.setdefault((stem, key), []).append(int(float(number)))
    else:
        merged.numbers.setdefault(name, {})[key] = float(number)


def _unescape(value: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], value)


def _bucket_lines(metric: Metric, labels: SeriesKey, buckets: Buckets) -> Iterable[str]:
    seen = 0
    for bound, n in zip((*metric.bounds, float("inf")), buckets.counts, strict=True):
        seen += n
        edge = "+Inf" if bound == float("inf") else repr(float(bound))
        yield f"{metric.name}_bucket{_labels((*metric.labels, 'le'), (*labels, edge))} {seen}"
    yield f"{metric.name}_sum{_labels(metric.labels, labels)} {buckets.total}"
    yield f"{metric.name}_count{_labels(metric.labels, labels)} {seen}"


def _labels(names: Iterable[str], values: Iterable[str]) -> str:
    pairs = ",".join(f'{name}="{_escape(value)}"' for name, value in zip(names, values, strict=True))
    return f"{{{pairs}}}" if pairs else ""


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
