"""The samples of all hosts within the last day, as figures by subject: values, increases and distributions."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Final

from boathook.db.metric_samples import WINDOW_S, HostSample
from boathook.observability.metric_snapshot import Buckets, SeriesKey, concatenate
from boathook.observability.metrics import METRICS, Merge

HOST: Final = "host"
"""A label that every series has besides its own."""
_THINNED_S: Final = {600.0: 60.0, 7_200.0: 900.0}
"""How far apart samples are kept, by their age: figures of long windows need no more, and are had sooner."""
_CLOCK_TOLERANCE: Final = timedelta(seconds=5)
"""How far ahead a host's clock may be."""
_AT = attrgetter("at")


@dataclass(frozen=True, slots=True)
class SeriesSelector:
    """Which series of a metric are looked at, and what tells their subjects apart."""

    metric: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Values that a series must have."""
    by: tuple[str, ...] = ()

    def subject(self, host: str, labels: SeriesKey) -> str | None:
        """Return whom a series is about; None where it is not looked at."""
        values = dict(zip(METRICS[self.metric].labels, labels, strict=False)) | {HOST: host}
        if any(values.get(label) not in wanted for label, wanted in self.labels.items()):
            return None
        return ", ".join(values.get(label, "") for label in self.by)


class MetricWindow:
    """The samples of all hosts, in memory.

    Args:
        metrics: those that rules look at; others are not kept.
        lookback_s: how far back rules look in detail.
    """

    def __init__(self, metrics: Collection[str], lookback_s: float) -> None:
        self._metrics = frozenset(metrics)
        self._lookback_s = lookback_s
        self._hosts: dict[str, list[HostSample]] = {}

    def add(self, samples: Iterable[HostSample]) -> None:
        """Take in samples in any order; what is known already is passed over."""
        for one in samples:
            known = self._hosts.setdefault(one.host, [])
            place = bisect_left(known, one.at, key=_AT)
            if place == len(known) or known[place].at != one.at:
                insort(known, HostSample(one.host, one.at, one.snapshot.only(self._metrics)), key=_AT)

    def tidy(self, now: datetime) -> None:
        """Keep no more than rules need, and what is told to be of the future not at all."""
        self._drop(now - timedelta(seconds=WINDOW_S), now + _CLOCK_TOLERANCE)
        for age_s, step_s in _THINNED_S.items():
            self._downsample(now - timedelta(seconds=max(age_s, 2 * self._lookback_s if step_s > 60 else 0)), step_s)

    def _drop(self, before: datetime, after: datetime) -> None:
        """Drop what is older or, as a clock was wrong, later, and hosts of which nothing is left."""
        for host, samples in list(self._hosts.items()):
            del samples[bisect_right(samples, after, key=_AT) :]
            del samples[: bisect_right(samples, before, key=_AT)]
            if not samples:
                del self._hosts[host]

    def _downsample(self, before: datetime, step_s: float) -> None:
        """Add up each host's older samples of so many seconds."""
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
        """When anything was counted last."""
        return max((samples[-1].at for samples in self._hosts.values()), default=None)

    def is_paused(self, metric: str, since: datetime) -> bool:
        """Return whether a gauge was set after a moment, but by no host in its latest sample.

        So it is while one keeper has gone and the next has not counted yet: that says nothing about any figure.
        """
        lately = [one for samples in self._hosts.values() for one in samples[bisect_right(samples, since, key=_AT) :]]
        latest = [samples[-1] for samples in self._hosts.values()]
        return any(metric in one.snapshot.gauges for one in lately) and not any(
            metric in one.snapshot.gauges for one in latest if one.at > since
        )

    def values(self, selector: SeriesSelector, since: datetime) -> dict[str, float]:
        """Return a gauge's latest values by subject, of hosts that have stored a sample since a moment."""
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
        """Return how much a counter has risen by subject, between two moments."""
        return self._sums("counters", selector, since, until)

    def distributions(self, selector: SeriesSelector, since: datetime) -> dict[str, Buckets]:
        """Return what a histogram has observed since a moment, by subject."""
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
