"""Counts metrics from anywhere in boathook, with three functions over plain dictionaries; no reader is required.

A series is found by its name and label values, so a call is one dictionary lookup and an addition. Hot paths that know
their labels in advance keep a `Counter` or `Histogram` instead, which saves the lookup. All state belongs to one
process and one event loop; calls from threads may lose an increment, nothing more.
"""

import contextlib
from bisect import bisect_left
from typing import Any, Final

from boathook.observability.metrics import METRICS, MetricKind

MAX_SERIES: Final = 2_000
"""Maximum number of series of one metric in one process; further label values are counted under ``other``."""

MAX_LABEL_LENGTH: Final = 200
"""Maximum characters of a label value; longer ones are truncated."""

_OWN_PREFIX: Final = "boathook_"

SeriesKey = tuple[str, ...]


class Counter:
    """A number that increases or, for a gauge, is set."""

    __slots__ = ("value",)

    def __init__(self, value: float = 0) -> None:
        self.value = value

    def add(self, n: float = 1) -> None:
        """Increase it by *n*."""
        self.value += n


class Histogram:
    """Counts of observations by bucket, with their sum."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Record one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


Snapshot = dict[str, list[list[object]]]
"""The series by metric name: label values, then the value, or bucket counts and sum for a histogram."""

_unregistered: Snapshot = {}
"""Values from an earlier process for metrics that are not registered or not used yet: their app may be loaded later,
or not at all."""


class _Tables(dict[str, Any]):
    """The series of all metrics of one kind; those of an app are added at their first use."""

    def __init__(self, kind: MetricKind) -> None:
        super().__init__({name: {} for name, metric in METRICS.items() if metric.kind is kind})
        self._kind = kind

    def __missing__(self, name: str) -> dict[SeriesKey, Any]:
        if METRICS[name].kind is not self._kind:
            raise KeyError(f"{name} is a {METRICS[name].kind}")
        table: dict[SeriesKey, Any] = self.setdefault(name, {})
        with contextlib.suppress(TypeError, ValueError):  # the file may be from another version
            restore({name: _unregistered.pop(name, [])})
        return table


_counters: dict[str, dict[SeriesKey, Counter]] = _Tables(MetricKind.COUNTER)
_gauges: dict[str, dict[SeriesKey, Counter]] = _Tables(MetricKind.GAUGE)
_histograms: dict[str, dict[SeriesKey, Histogram]] = _Tables(MetricKind.HISTOGRAM)


_series_cache: dict[tuple[object, ...], Counter] = {}
"""Counters and gauges by name and labels as the caller passed them, so that the usual call is one lookup."""


def count(name: str, n: float = 1, /, **labels: object) -> None:
    """Increase a counter by *n*. Raises KeyError for a name or labels that are not in `metrics.METRICS`."""
    series = _series_cache.get((name, *labels.items()))
    if series is None:
        series = _cache_series(_counters, name, labels)
    series.value += n


def gauge(name: str, value: float, /, **labels: object) -> None:
    """Set a gauge. Raises KeyError for a name or labels that are not in `metrics.METRICS`."""
    series = _series_cache.get((name, *labels.items()))
    if series is None:
        series = _cache_series(_gauges, name, labels)
    series.value = value


def observe(name: str, value: float, /, **labels: object) -> None:
    """Record one observation of a histogram, in its unit. Raises KeyError as `count` does."""
    histogram(name, **labels).observe(value)


def counter(name: str, /, **labels: object) -> Counter:
    """Return the counter for a name and labels, to be kept by a hot path."""
    return _series(_counters[name], name, labels)


def gauge_handle(name: str, /, **labels: object) -> Counter:
    """Return the gauge for a name and labels; set its `value`."""
    return _series(_gauges[name], name, labels)


def histogram(name: str, /, **labels: object) -> Histogram:
    """Return the histogram for a name and labels, to be kept by a hot path."""
    table = _histograms[name]
    key = _key(table, name, labels)
    series = table.get(key)
    if series is None:
        series = table[key] = Histogram(METRICS[name].bounds)
    return series


def _cache_series(tables: dict[str, dict[SeriesKey, Counter]], name: str, labels: dict[str, object]) -> Counter:
    series = _series(tables[name], name, labels)
    if len(_series_cache) < MAX_SERIES and all(len(str(value)) <= MAX_LABEL_LENGTH for value in labels.values()):
        _series_cache[(name, *labels.items())] = series
    return series


def drop_series(name: str) -> None:
    """Drop all series of a gauge, so that removed recipients do not keep their last value."""
    _gauges[name].clear()
    for key in [key for key in _series_cache if key[0] == name]:
        del _series_cache[key]


def app_gauges() -> list[str]:
    """Return the names of the gauges that apps have registered."""
    return [name for name in _gauges if not name.startswith(_OWN_PREFIX)]


def _series(table: dict[SeriesKey, Counter], name: str, labels: dict[str, object]) -> Counter:
    key = _key(table, name, labels)
    counter = table.get(key)
    if counter is None:
        counter = table[key] = Counter()
    return counter


def _key(
    table: dict[SeriesKey, Counter] | dict[SeriesKey, Histogram], name: str, labels: dict[str, object]
) -> SeriesKey:
    label_names = METRICS[name].labels
    if len(labels) != len(label_names):
        raise KeyError(f"{name} has the labels {label_names}, not {tuple(labels)}")
    key = tuple(_label_text(labels[label]) for label in label_names)
    if key in table or len(table) < MAX_SERIES:
        return key
    return ("other",) * len(label_names)


def _label_text(value: object) -> str:
    """Return a label's value in a form that every format can encode; apps may pass untrusted text."""
    text = str(value)[:MAX_LABEL_LENGTH]
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def snapshot() -> Snapshot:
    """Return everything counted so far, in a form that JSON can encode."""
    out: Snapshot = {name: series for name, series in _unregistered.items() if not _is_gauge(name)}
    for tables in (_counters, _gauges):
        for name, table in list(tables.items()):
            out[name] = [[list(key), series.value] for key, series in list(table.items())]
    for name, buckets in list(_histograms.items()):
        out[name] = [[list(key), list(series.counts), series.total] for key, series in list(buckets.items())]
    return out


def restore(earlier: Snapshot) -> None:
    """Continue counters and histograms from an earlier process's snapshot; gauges start empty.

    Metrics that are not registered yet, such as those of an app that is loaded later, continue at their first use.
    """
    for name, series in earlier.items():
        metric = METRICS.get(name)
        if metric is None:
            _unregistered[name] = series
        elif metric.kind is not MetricKind.GAUGE:
            for labels, *values in series:
                if isinstance(labels, list) and len(labels) == len(metric.labels):
                    _restore_series(name, dict(zip(metric.labels, labels, strict=True)), values)


def _is_gauge(name: str) -> bool:
    return name in METRICS and METRICS[name].kind is MetricKind.GAUGE


def _restore_series(name: str, labels: dict[str, object], values: list[object]) -> None:
    match values:
        case [int() | float() as value] if METRICS[name].kind is MetricKind.COUNTER:
            counter(name, **labels).value += value
        case [list() as counts, int() | float() as total] if METRICS[name].kind is MetricKind.HISTOGRAM:
            series = histogram(name, **labels)
            if len(counts) == len(series.counts):
                series.counts[:] = [a + b for a, b in zip(series.counts, counts, strict=True)]
                series.total += total


def reset() -> None:
    """Drop everything counted; for tests."""
    _series_cache.clear()
    _unregistered.clear()
    for table in (*_counters.values(), *_gauges.values()):
        table.clear()
    for buckets in _histograms.values():
        buckets.clear()
