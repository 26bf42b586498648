"""The history of an app's metrics, as apps read it."""

from collections.abc import Mapping
from datetime import datetime
from typing import TypeVar

import msgspec

from boathook.domain.errors import ConfigError
from boathook.handlers.manifest import AppMetric
from boathook.observability.metric_snapshot import Buckets, MetricSnapshot, SeriesKey
from boathook.observability.metrics import Merge, Metric, MetricKind


class MetricPoint(msgspec.Struct, frozen=True):
    """The metrics of an app in one step, over all hosts.

    Each method takes a metric or its name, and label values that a series must have; other labels are summed over.
    """

    at: datetime
    """When the step began, in UTC."""
    _snapshot: MetricSnapshot
    _metrics: Mapping[str, Metric]

    def value(self, metric: AppMetric | str, **labels: object) -> float | None:
        """Return the increase of a counter, the highest value of a gauge, or the number of observations of a histogram.

        None if the metric was not set, or nothing was observed. A gauge's labels are added up, as in /metrics.
        """
        declared = self._declared(metric, labels)
        if declared.kind is MetricKind.HISTOGRAM:
            buckets = self._buckets(declared, labels)
            return None if buckets is None else float(sum(buckets.counts))
        tables = self._snapshot.counters if declared.kind is MetricKind.COUNTER else self._snapshot.gauges
        values = _matching(declared, tables.get(declared.name, {}), labels)
        if not values:
            return None
        is_highest = declared.kind is MetricKind.GAUGE and declared.merge is Merge.MAX
        return max(values) if is_highest else sum(values)

    def mean(self, histogram: AppMetric | str, **labels: object) -> float | None:
        """Return the mean of a histogram's observations; None without any."""
        buckets = self._buckets(self._declared(histogram, labels), labels)
        return None if buckets is None else buckets.total / sum(buckets.counts)

    def quantile(self, histogram: AppMetric | str, share: float, **labels: object) -> float | None:
        """Return the value below which *share*, such as 0.95, of a histogram's observations lie; None without any."""
        declared = self._declared(histogram, labels)
        buckets = self._buckets(declared, labels)
        return None if buckets is None else buckets.quantile(declared.bounds, share)

    def series(self, metric: AppMetric | str) -> list[tuple[str, ...]]:
        """Return the label values of a metric's series, in the order of its labels."""
        name = self._declared(metric, {}).name
        tables = (self._snapshot.counters, self._snapshot.gauges, self._snapshot.histograms)
        return sorted(key for table in tables for key in table.get(name, {}))

    def _declared(self, metric: AppMetric | str, labels: Mapping[str, object]) -> Metric:
        name = metric if isinstance(metric, str) else metric.metric.name
        declared = self._metrics.get(name)
        if declared is None:
            names = ", ".join(sorted(self._metrics)) or "none"
            raise ConfigError(f"the app declares no metric {name}; it declares {names}")
        if unknown := labels.keys() - set(declared.labels):
            raise ConfigError(f"{name} has the labels {', '.join(declared.labels) or 'none'}, not {min(unknown)}")
        return declared

    def _buckets(self, declared: Metric, labels: Mapping[str, object]) -> Buckets | None:
        if declared.kind is not MetricKind.HISTOGRAM:
            raise ConfigError(f"{declared.name} is a {declared.kind}, not a histogram; read its value")
        buckets = _matching(declared, self._snapshot.histograms.get(declared.name, {}), labels)
        merged = sum(buckets[1:], buckets[0]) if buckets else None
        return merged if merged is not None and any(merged.counts) else None


Value = TypeVar("Value")


def _matching(declared: Metric, series: Mapping[SeriesKey, Value], labels: Mapping[str, object]) -> list[Value]:
    values = {declared.labels.index(label): str(value) for label, value in labels.items()}
    return [value for key, value in series.items() if all(key[index] == text for index, text in values.items())]
