"""Renders metrics in the Prometheus text format, and as JSON with rates and quantiles."""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from boathook.observability.metric_snapshot import Buckets, MetricSnapshot, SeriesKey
from boathook.observability.metrics import METRICS, Metric, MetricKind

if TYPE_CHECKING:
    from prometheus_client.core import Metric as MetricFamily

_QUANTILES: Final = (0.5, 0.95, 0.99)


class _Families:
    """Adapts a snapshot to the collector interface of prometheus_client."""

    def __init__(self, snapshot: MetricSnapshot) -> None:
        self._snapshot = snapshot

    def collect(self) -> "Iterator[MetricFamily]":
        """Yield each metric with its series."""
        for metric in METRICS.values():
            yield _family(metric, self._snapshot)


def to_prometheus(snapshot: MetricSnapshot) -> bytes:
    """Render the text exposition format, version 0.0.4."""
    # Imported here, so that other processes do not load the standard library's web server.
    from prometheus_client.exposition import generate_latest

    return generate_latest(_Families(snapshot))


def _family(metric: Metric, snapshot: MetricSnapshot) -> "MetricFamily":
    from prometheus_client.core import (
        CounterMetricFamily,
        GaugeMetricFamily,
        HistogramMetricFamily,
        UntypedMetricFamily,
    )

    family: CounterMetricFamily | UntypedMetricFamily | GaugeMetricFamily | HistogramMetricFamily
    match metric.kind:
        case MetricKind.COUNTER:
            # An app may expose a counter under its dashboards' own name; the library would append _total.
            kind = CounterMetricFamily if metric.name.endswith("_total") else UntypedMetricFamily
            family = kind(metric.name, metric.help, labels=metric.labels)
            for labels, value in snapshot.counters.get(metric.name, {}).items():
                family.add_metric(labels, value)
        case MetricKind.GAUGE:
            family = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, value in snapshot.gauges.get(metric.name, {}).items():
                family.add_metric(labels, value)
        case MetricKind.HISTOGRAM:
            family = HistogramMetricFamily(metric.name, metric.help, labels=metric.labels)
            for labels, buckets in snapshot.histograms.get(metric.name, {}).items():
                family.add_metric(labels, list(_cumulative(metric, buckets)), buckets.total)
    return family


def _cumulative(metric: Metric, buckets: Buckets) -> Iterator[tuple[str, float]]:
    seen = 0
    for bound, n in zip((*metric.bounds, float("inf")), buckets.counts, strict=True):
        seen += n
        yield ("+Inf" if bound == float("inf") else repr(float(bound))), seen


def from_prometheus(text: str, at: float) -> MetricSnapshot:
    """Parse the output of `to_prometheus`, which may come from another host; unknown metrics are ignored.

    Raises:
        ValueError: the text is not in this format.
    """
    from prometheus_client.parser import text_string_to_metric_families

    read = MetricSnapshot(at=at)
    for family in text_string_to_metric_families(text):
        metric = METRICS.get(family.name) or METRICS.get(f"{family.name}_total")
        if metric is not None:
            _read_family(read, metric, family)
    return read


def _read_family(read: MetricSnapshot, metric: Metric, family: "MetricFamily") -> None:
    below: dict[SeriesKey, list[int]] = {}
    totals: dict[SeriesKey, float] = {}
    for sample in family.samples:
        if not sample.labels.keys() >= set(metric.labels):
            continue
        key = tuple(sample.labels[label] for label in metric.labels)
        if sample.name == metric.name and metric.kind is MetricKind.COUNTER:
            read.counters.setdefault(metric.name, {})[key] = sample.value
        elif sample.name == metric.name:
            read.gauges.setdefault(metric.name, {})[key] = sample.value
        elif sample.name == f"{metric.name}_bucket":
            below.setdefault(key, []).append(int(sample.value))
        elif sample.name == f"{metric.name}_sum":
            totals[key] = sample.value
    for key, counts in below.items():
        if len(counts) == len(metric.bounds) + 1:
            bucket_counts = tuple(b - a for a, b in pairwise((0, *counts)))
            read.histograms.setdefault(metric.name, {})[key] = Buckets(bucket_counts, totals.get(key, 0.0))


def to_json(now: MetricSnapshot, lately: MetricSnapshot) -> dict[str, Any]:
    """Return every series with its rate over *lately*, and mean and quantiles for histograms."""
    span_s = max(lately.span_s, 0.001)
    metrics = {
        metric.name: {"kind": metric.kind, "help": metric.help, "series": list(_describe(metric, now, lately, span_s))}
        for metric in METRICS.values()
    }
    return {"at": now.at, "window_s": round(span_s, 3), "metrics": metrics}


def _describe(metric: Metric, now: MetricSnapshot, lately: MetricSnapshot, span_s: float) -> Iterator[dict[str, Any]]:
    name = metric.name
    for labels, value in (*now.counters.get(name, {}).items(), *now.gauges.get(name, {}).items()):
        entry: dict[str, Any] = {"labels": dict(zip(metric.labels, labels, strict=True)), "value": value}
        if metric.kind is MetricKind.COUNTER:
            entry["per_second"] = round(lately.counters.get(name, {}).get(labels, 0) / span_s, 3)
        yield entry
    for labels, whole in now.histograms.get(name, {}).items():
        observed = lately.histograms.get(name, {}).get(labels)
        yield {
            "labels": dict(zip(metric.labels, labels, strict=True)),
            "count": sum(whole.counts),
            "sum": whole.total,
            "per_second": round((sum(observed.counts) if observed else 0) / span_s, 3),
            **_quantiles(metric, observed or whole),
        }


def _quantiles(metric: Metric, buckets: Buckets) -> dict[str, float | None]:
    count = sum(buckets.counts)
    quantiles = {f"p{share * 100:.0f}": buckets.quantile(metric.bounds, share) for share in _QUANTILES}
    return {"mean": buckets.total / count if count else None, **quantiles}


def history_to_json(samples: Iterable[tuple[float, MetricSnapshot]]) -> list[dict[str, Any]]:
    """Return one object per sample, with its time.

    Metrics are summed over their labels: counters as their increase, gauges as their maximum in the period.
    """
    return [
        {"at": at, "seconds": sample.span_s}
        | {name: sample.counter(name) for name in sample.counters if name in METRICS}
        | {name: sum(of.values()) for name, of in sample.gauges.items() if name in METRICS}
        | {
            name: _observed(METRICS[name], buckets)
            for name in sample.histograms
            if (buckets := sample.histogram(name)) and name in METRICS
        }
        for at, sample in samples
    ]


def _observed(metric: Metric, buckets: Buckets) -> dict[str, float | None]:
    return {"count": sum(buckets.counts), **_quantiles(metric, buckets)}
