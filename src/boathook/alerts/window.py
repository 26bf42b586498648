"""Stores the samples of all hosts for the last day; returns values, increases and distributions by subject."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Final

import msgspec

from boathook.db.metric_samples import WINDOW_S, HostSample
from boathook.observability.metric_snapshot import Buckets, SeriesKey, concatenate
from boathook.observability.metrics import METRICS, Merge

HOST: Final = "host"
"""A label that every series has in addition to its own."""
_THINNED_S: Final = {600.0: 60.0, 7_200.0: 900.0}
"""Sample spacing in seconds by age: long windows need less detail and are faster to compute."""
_CLOCK_TOLERANCE: Final = timedelta(seconds=5)
"""How far ahead of ours a host's clock may be."""
_AT = attrgetter("at")


class SeriesSelector(msgspec.Struct, frozen=True):
    """Selects the series of a metric, and the labels that form their subjects."""

    metric: str
    labels: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Label values that a series must have."""
    by: tuple[str, ...] = ()

    def subject(self, host: str, labels: SeriesKey) -> str | None:
        """Return the subject of a series; None if the series is not selected."""
        values = dict(zip(METRICS[self.metric].labels, labels, strict=False)) | {HOST: host}
        if any(values.get(label) not in wanted for label, wanted in self.labels.items()):
            return None
        return ", ".join(values.get(label, "") for label in self.by)


class MetricWindow:
    """The samples of all hosts, in memory.

    Args:
        metrics: names of the metrics that rules read; other metrics are dropped.
        lookback_s: length of the detailed history that rules need.
    """

    def __init__(self, metrics: Collection[str], lookback_s: float) -> None:
        self._metrics = frozenset(metrics)
        self._lookback_s = lookback_s
        self._hosts: dict[str, list[HostSample]] = {}

    def add(self, samples: Iterable[HostSample]) -> None:
        """Add samples in any order; known samples are ignored."""
        for one in samples:
            known = self._hosts.setdefault(one.host, [])
            index = bisect_left(known, one.at, key=_AT)
            if index == len(known) or known[index].at != one.at:
                insort(known, HostSample(one.host, one.at, one.snapshot.only(self._metrics)), key=_AT)

    def tidy(self, now: datetime) -> None:
        """Drop samples that rules no longer need, and samples with a time in the future."""
        self._drop(now - timedelta(seconds=WINDOW_S), now + _CLOCK_TOLERANCE)
        for age_s, step_s in _THINNED_S.items():
            self._downsample(now - timedelta(seconds=max(age_s, 2 * self._lookback_s if step_s > 60 else 0)), step_s)

    def _drop(self, before: datetime, after: datetime) -> None:
        """Drop samples outside these times, and hosts without samples. Samples after *after* have a wrong clock."""
        for host, samples in list(self._hosts.items()):
            del samples[bisect_right(samples, after, key=_AT) :]
            del samples[: bisect_right(samples, before, key=_AT)]
            if not samples:
                del self._hosts[host]

    def _downsample(self, before: datetime, step_s: float) -> None:
        """Merge the older samples of each host into steps of *step_s* seconds."""
        for host, samples in self._hosts.items():
            old = bisect_right(samples, before, key=_AT)
            groups: dict[int, list[HostSample]] = {}
            for one in samples[:old]:
                groups.setdefault(int(one.at.timestamp() // step_s), []).append(one)
            if len(groups) < old:
                samples[:old] = [
                    HostSample(host, of[0].at, concatenate(one.snapshot for one in of)) for of in groups.values()
                ]

    @property
    def latest(self) -> datetime | None:
        """The time of the latest sample."""
        return max((samples[-1].at for samples in self._hosts.values()), default=None)

    def is_paused(self, metric: str, since: datetime) -> bool:
        """Return whether a gauge was set since a time, but is in no host's latest sample.

        This happens while one keeper has stopped and the next has not reported yet. The gauge then says nothing.
        """
        lately = [one for samples in self._hosts.values() for one in samples[bisect_right(samples, since, key=_AT) :]]
        latest = [samples[-1] for samples in self._hosts.values()]
        return any(metric in one.snapshot.gauges for one in lately) and not any(
            metric in one.snapshot.gauges for one in latest if one.at > since
        )

    def values(self, selector: SeriesSelector, since: datetime) -> dict[str, float]:
        """Return a gauge's latest values by subject, for hosts with a sample since a time."""
        is_highest = METRICS[selector.metric].merge is Merge.MAX
        found: dict[str, float] = {}
        for host, samples in self._hosts.items():
            if samples[-1].at < since:
                continue
            for labels, value in samples[-1].snapshot.gauges.get(selector.metric, {}).items():
                subject = selector.subject(host, labels)
                if subject is not None:
                    before = found.get(subject)
                    found[subject] = value if before is None else max(before, value) if is_highest else before + value
        return found

    def increases(self, selector: SeriesSelector, since: datetime, until: datetime | None = None) -> dict[str, float]:
        """Return the increase of a counter by subject, between two times."""
        return self._sums("counters", selector, since, until)

    def distributions(self, selector: SeriesSelector, since: datetime) -> dict[str, Buckets]:
        """Return the distribution of a histogram since a time, by subject."""
        return self._sums("histograms", selector, since, None)

    def _sums(self, kind: str, selector: SeriesSelector, since: datetime, until: datetime | None) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for host, samples in self._hosts.items():
            first = bisect_right(samples, since, key=_AT)
            last = len(samples) if until is None else bisect_right(samples, until, key=_AT)
            for one in samples[first:last]:
                for labels, value in getattr(one.snapshot, kind).get(selector.metric, {}).items():
                    subject = selector.subject(host, labels)
                    if subject is not None:
                        found[subject] = found[subject] + value if subject in found else value
        return found
