"""What all hosts have counted lately, as figures: values, increases and spreads by subject."""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Final

from boathook.db.alerts import HostSeries
from boathook.observability.exporters import Buckets
from boathook.observability.metrics import METRICS, Merge, MetricKind

HOST: Final = "host"
"""A label that every series has besides its own."""
_SLACK_S: Final = 120.0
"""How much older than a window the sample may be that it is counted from."""
_THINNED_S: Final = {600.0: 60.0, 7_200.0: 900.0}
"""How far apart samples are kept, by their age: figures of long windows need no more, and are had sooner."""
_AT = attrgetter("at")

Key = tuple[str, ...]
Number = float | Buckets


@dataclass(frozen=True, slots=True)
class SeriesSelector:
    """Which series of a metric are looked at, and what tells their subjects apart."""

    metric: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Values that a series must have."""
    by: tuple[str, ...] = ()

    def subject(self, host: str, labels: Key) -> str | None:
        """Return whom a series is about; None where it is not looked at."""
        values = dict(zip(METRICS[self.metric].labels, labels, strict=False)) | {HOST: host}
        if any(values.get(label) not in wanted for label, wanted in self.labels.items()):
            return None
        return ", ".join(values.get(label, "") for label in self.by)


@dataclass(frozen=True, slots=True)
class _Sample:
    at: datetime
    series: Mapping[str, Mapping[Key, Number]]


class MetricWindow:
    """The samples of all hosts, in memory."""

    def __init__(self) -> None:
        self._hosts: dict[str, list[_Sample]] = {}

    def add(self, told: Iterable[HostSeries]) -> None:
        """Take in what hosts have told, in the order of time; what is known already is passed over."""
        for one in told:
            samples = self._hosts.setdefault(one.host, [])
            if not samples or samples[-1].at < one.at:
                samples.append(_Sample(one.at, {name: _read(name, rows) for name, rows in one.series.items()}))

    def forget(self, before: datetime) -> None:
        """Drop what is older, and hosts of which nothing is left."""
        for host, samples in list(self._hosts.items()):
            del samples[: bisect_right(samples, before, key=_AT)]
            if not samples:
                del self._hosts[host]

    def tidy(self, now: datetime, *, kept_s: float, lookback_s: float) -> None:
        """Keep no more than rules need that look back so far in detail, and for what is usual further."""
        self.forget(now - timedelta(seconds=kept_s))
        for age_s, step_s in _THINNED_S.items():
            self.downsample(now - timedelta(seconds=max(age_s, 2 * lookback_s if step_s > 60 else 0)), step_s)

    def downsample(self, before: datetime, step_s: float) -> None:
        """Of what is older, leave each host the first sample of so many seconds."""
        for samples in self._hosts.values():
            old = bisect_right(samples, before, key=_AT)
            firsts = {int(one.at.timestamp() // step_s): one for one in reversed(samples[:old])}
            if len(firsts) < old:
                samples[:old] = reversed(firsts.values())

    def drop_after(self, moment: datetime) -> None:
        """Drop what is told to be of the future, so that a clock that was wrong for a while hides nothing after it."""
        for host, samples in list(self._hosts.items()):
            del samples[bisect_right(samples, moment, key=_AT) :]
            if not samples:
                del self._hosts[host]

    @property
    def latest(self) -> datetime | None:
        """When anything was told last."""
        return max((samples[-1].at for samples in self._hosts.values()), default=None)

    def is_paused(self, metric: str, since: datetime) -> bool:
        """Return whether a metric was told of after a moment, but by no host in what it told last.

        So it is while one keeper has gone and the next has not counted yet: that says nothing about any figure.
        """
        lately = [one for samples in self._hosts.values() for one in samples[bisect_right(samples, since, key=_AT) :]]
        latest = [samples[-1] for samples in self._hosts.values()]
        return any(metric in one.series for one in lately) and not any(
            metric in one.series for one in latest if one.at > since
        )

    def values(self, selector: SeriesSelector, since: datetime) -> dict[str, float]:
        """Return the latest values by subject, of hosts that have told something since a moment."""
        is_highest = METRICS[selector.metric].merge is Merge.MAX
        found: dict[str, float] = {}
        for host, samples in self._hosts.items():
            if samples[-1].at < since:
                continue
            for labels, value in samples[-1].series.get(selector.metric, {}).items():
                subject = selector.subject(host, labels)
                if subject is not None and isinstance(value, int | float):
                    before = found.get(subject)
                    found[subject] = value if before is None else max(before, value) if is_highest else before + value
        return found

    def increases(self, selector: SeriesSelector, since: datetime, until: datetime | None = None) -> dict[str, float]:
        """Return how much counters have risen by subject, between two moments."""
        return {subject: value for subject, value in self._risen(selector, since, until) if isinstance(value, float)}

    def distributions(self, selector: SeriesSelector, since: datetime) -> dict[str, Buckets]:
        """Return what histograms have observed since a moment, by subject."""
        return {subject: value for subject, value in self._risen(selector, since, None) if isinstance(value, Buckets)}

    def _risen(self, selector: SeriesSelector, since: datetime, until: datetime | None) -> Iterable[tuple[str, Number]]:
        found: dict[str, Any] = {}
        for host, samples in self._hosts.items():
            window = _window(samples, since, until)
            for labels in {labels for one in window for labels in one.series.get(selector.metric, {})}:
                subject = selector.subject(host, labels)
                if subject is not None:
                    rise = _rise([one.series.get(selector.metric, {}).get(labels) for one in window])
                    found[subject] = found[subject] + rise if subject in found else rise
        return found.items()


def _window(samples: list[_Sample], since: datetime, until: datetime | None) -> list[_Sample]:
    """Return the samples of a window, and the last one before it as what they are counted from."""
    first = bisect_right(samples, since, key=_AT)
    if first and samples[first - 1].at >= since - timedelta(seconds=_SLACK_S):
        first -= 1
    last = len(samples) if until is None else bisect_right(samples, until, key=_AT)
    return samples[first:last]


def _rise(values: list[Number | None]) -> Number:
    """Return how much a series has risen; one that was not there at first began at nothing, as did one that fell."""
    risen: Any = None
    before = values[0]
    for value in values:
        if value is None:
            continue
        step = _step(before, value)
        risen = step if risen is None else risen + step
        before = value
    return risen if risen is not None else 0.0


def _step(before: Number | None, value: Number) -> Number:
    if isinstance(value, Buckets):
        return value.since(before if isinstance(before, Buckets) else None)
    return float(value - before) if isinstance(before, int | float) and before <= value else float(value)


def _read(name: str, rows: Iterable[list[Any]]) -> dict[Key, Number]:
    """Return a metric's series; those that this process reads otherwise than the one that wrote them are left out."""
    metric = METRICS.get(name)
    if metric is None:
        return {}
    if metric.kind is MetricKind.HISTOGRAM:
        sized = len(metric.bounds) + 1
        return {tuple(row[0]): Buckets(tuple(row[1]), row[2]) for row in rows if len(row) == 3 and len(row[1]) == sized}
    return {tuple(row[0]): row[1] for row in rows if len(row) == 2}
