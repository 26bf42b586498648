"""Compiles alert rules, and evaluates them against the metrics of all hosts over the last day."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any, Final

import msgspec

from boathook.config.notifications import RuleSettings, Selection
from boathook.config.tables import Settings
from boathook.db.metric_samples import WINDOW_S, HostSample
from boathook.domain.alerts import AlertDelays, AlertReading, Reading
from boathook.domain.errors import ConfigError
from boathook.observability.log import get_logger
from boathook.observability.metric_snapshot import Buckets, SeriesKey, concatenate
from boathook.observability.metrics import METRICS, Merge, MetricKind

MAX_SUBJECTS: Final = 100
"""Maximum number of subjects per rule with open alerts; the worst come first."""
HOST: Final = "host"
"""A label that every series has in addition to its own."""
_THINNED_S: Final = {600.0: 60.0, 7_200.0: 900.0}
"""Sample spacing in seconds by age: long windows need less detail and are faster to compute."""
_CLOCK_TOLERANCE: Final = timedelta(seconds=5)
"""How far a host's clock may be ahead of this machine's."""
_AT = attrgetter("at")
_LOG = get_logger("alerts")
_QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


class SeriesSelector(msgspec.Struct, frozen=True):
    """Selects the series of a metric, and the labels that form their subjects."""

    metric: str
    labels: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Label values that a series must have."""
    by: tuple[str, ...] = ()

    def subject(self, host: str, labels: SeriesKey) -> str | None:
        """Return the subject of a series; None if the series is not selected."""
        values = dict(zip(METRICS[self.metric].labels, labels, strict=False)) | {HOST: host}
        if any(values.get(label) not in allowed for label, allowed in self.labels.items()):
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
        """Add samples in any order; known samples are ignored unless `tidy` has merged them."""
        for sample in samples:
            of_host = self._hosts.setdefault(sample.host, [])
            index = bisect_left(of_host, sample.at, key=_AT)
            if index == len(of_host) or of_host[index].at != sample.at:
                insort(of_host, HostSample(sample.host, sample.at, sample.snapshot.only(self._metrics)), key=_AT)

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
            for sample in samples[:old]:
                groups.setdefault(int(sample.at.timestamp() // step_s), []).append(sample)
            if len(groups) < old:
                samples[:old] = [
                    HostSample(host, of[0].at, concatenate(sample.snapshot for sample in of)) for of in groups.values()
                ]

    @property
    def latest(self) -> datetime | None:
        """The time of the latest sample."""
        return max((samples[-1].at for samples in self._hosts.values()), default=None)

    def is_paused(self, metric: str, since: datetime) -> bool:
        """Return whether a gauge was set since a time, but is in no host's latest sample.

        This happens while one keeper has stopped and the next has not reported yet. The gauge then says nothing.
        """
        lately = [
            sample for samples in self._hosts.values() for sample in samples[bisect_right(samples, since, key=_AT) :]
        ]
        latest = [samples[-1] for samples in self._hosts.values()]
        return any(metric in sample.snapshot.gauges for sample in lately) and not any(
            metric in sample.snapshot.gauges for sample in latest if sample.at > since
        )

    def values(self, selector: SeriesSelector, since: datetime) -> dict[str, float]:
        """Return a gauge's latest values by subject, for hosts with a sample since a time."""
        is_highest = METRICS[selector.metric].merge is Merge.MAX
        values: dict[str, float] = {}
        for host, samples in self._hosts.items():
            if samples[-1].at < since:
                continue
            for labels, value in samples[-1].snapshot.gauges.get(selector.metric, {}).items():
                subject = selector.subject(host, labels)
                if subject is not None:
                    before = values.get(subject)
                    values[subject] = value if before is None else max(before, value) if is_highest else before + value
        return values

    def increases(self, selector: SeriesSelector, since: datetime, until: datetime | None = None) -> dict[str, float]:
        """Return the increase of a counter by subject, between two times."""
        return self._sums("counters", selector, since, until)

    def distributions(self, selector: SeriesSelector, since: datetime) -> dict[str, Buckets]:
        """Return the distribution of a histogram since a time, by subject."""
        return self._sums("histograms", selector, since, None)

    def _sums(self, kind: str, selector: SeriesSelector, since: datetime, until: datetime | None) -> dict[str, Any]:
        sums: dict[str, Any] = {}
        for host, samples in self._hosts.items():
            first = bisect_right(samples, since, key=_AT)
            last = len(samples) if until is None else bisect_right(samples, until, key=_AT)
            for sample in samples[first:last]:
                for labels, value in getattr(sample.snapshot, kind).get(selector.metric, {}).items():
                    subject = selector.subject(host, labels)
                    if subject is not None:
                        sums[subject] = sums[subject] + value if subject in sums else value
        return sums


class Rule(msgspec.Struct, frozen=True):
    """One compiled rule with its resolved metrics."""

    name: str
    settings: RuleSettings
    selector: SeriesSelector | None
    """None for a rule that counts rows of the database."""
    against: tuple[SeriesSelector, ...] = ()
    unless: tuple[SeriesSelector, ...] = ()

    @property
    def delays(self) -> AlertDelays:
        """How long a condition must hold before the alert fires or clears."""
        return AlertDelays(self.settings.for_s, self.settings.clear_s)

    @property
    def metrics(self) -> frozenset[str]:
        """The names of all metrics that the rule reads."""
        return frozenset(
            selector.metric for selector in (self.selector, *self.against, *self.unless) if selector is not None
        )

    @property
    def lookback_s(self) -> float:
        """Length of the detailed history that the rule needs."""
        return self.settings.over_s

    def compare(self, subject: str, value: float, *, can_raise: bool = True) -> Reading:
        """Compare a value with the threshold."""
        return self.compare_reading(AlertReading(subject, value), can_raise=can_raise)

    def compare_reading(self, reading: AlertReading, *, can_raise: bool = True) -> Reading:
        """Compare the value of an app's reading with the threshold."""
        rule, value = self.settings, reading.value
        holds_at = rule.clear
        if rule.above is not None:
            is_met = value > rule.above
            is_held = is_met or (holds_at is not None and value > holds_at)
        else:
            is_met = rule.below is not None and value < rule.below
            is_held = is_met or (holds_at is not None and value < holds_at)
        return Reading(reading.subject, value, is_met and can_raise, is_held, reading.details, reading.renewed_at)


def open_window(rules: Collection[Rule]) -> MetricWindow:
    """Return a metric window that covers these rules."""
    metrics = {name for rule in rules for name in rule.metrics}
    return MetricWindow(metrics, max((rule.lookback_s for rule in rules), default=0.0))


def compile_rules(settings: Settings) -> tuple[Rule, ...]:
    """Compile the enabled rules.

    Raises:
        ConfigError: a rule is invalid; the message names the key.
    """
    rules = settings.notifications.rules
    return tuple(_compile(name, rule) for name, rule in rules.items() if rule.enabled)


def known_rules(settings: Settings) -> tuple[Rule, ...]:
    """Compile the rules that are valid in this process; log the others, such as those of an app that is not loaded."""
    rules: list[Rule] = []
    for name, rule in settings.notifications.rules.items():
        try:
            if rule.enabled:
                rules.append(_compile(name, rule))
        except ConfigError as error:
            _LOG.warning("rule_left_out", rule=name, error=str(error))
    return tuple(rules)


def _compile(name: str, rule: RuleSettings) -> Rule:
    def refuse(key: str, problem: str) -> ConfigError:
        return ConfigError(f"notifications.rules.{name}.{key}: {problem}")

    if bool(rule.metric) == bool(rule.rows):
        raise refuse("metric", "set either metric or rows")
    if (rule.above is None) == (rule.below is None):
        raise refuse("above", "set either above or below")
    if _is_beyond(rule):
        raise refuse("clear", "the alert would clear while it fires; set clear to the normal side of the threshold")
    if rule.rows:
        return Rule(name, rule, None)
    kinds = {
        "value": (MetricKind.GAUGE,),
        "increase": (MetricKind.COUNTER,),
        "share": (MetricKind.COUNTER,),
    }
    allowed_kinds = kinds.get(rule.measure, (MetricKind.HISTOGRAM,))
    problem = _wrong(rule, rule.by, allowed_kinds)
    if problem:
        raise refuse(*problem)
    for key, selections in (("against", rule.against), ("unless", rule.unless)):
        for selection in selections:
            if wrong := _wrong(selection, rule.by if key == "against" else (), (MetricKind.COUNTER,)):
                raise refuse(f"{key}.{wrong[0]}", wrong[1])
    if rule.measure == "share" and not rule.against:
        raise refuse("against", "is missing; a share needs a total")
    against = tuple(SeriesSelector(selector.metric, _plain(selector), rule.by) for selector in rule.against)
    unless = tuple(SeriesSelector(selector.metric, _plain(selector)) for selector in rule.unless)
    return Rule(name, rule, SeriesSelector(rule.metric, _plain(rule), rule.by), against, unless)


def _is_beyond(rule: RuleSettings) -> bool:
    """Return whether the clear threshold is on the wrong side of the firing threshold."""
    if rule.clear is None:
        return False
    return rule.clear > rule.above if rule.above is not None else rule.below is not None and rule.clear < rule.below


def _plain(selection: RuleSettings | Selection) -> dict[str, tuple[str, ...]]:
    return {label: (words,) if isinstance(words, str) else words for label, words in selection.labels.items()}


def _wrong(
    selection: RuleSettings | Selection, by: Iterable[str], kinds: tuple[MetricKind, ...]
) -> tuple[str, str] | None:
    metric = METRICS.get(selection.metric)
    if metric is None:
        return "metric", f"unknown metric {selection.metric!r}; see the page on metrics and the pages of the apps"
    if metric.kind not in kinds:
        return "measure", f"{metric.name} is a {metric.kind}, which does not support it"
    for label in (*selection.labels, *by):
        if label not in metric.labels and label != HOST:
            return "labels", f"{metric.name} has the labels {', '.join((*metric.labels, HOST))}, not {label!r}"
    return None


def evaluate_rule(rule: Rule, window: MetricWindow, now: datetime, fresh_s: float) -> list[Reading]:
    """Evaluate a rule about a metric; return its readings, worst first.

    Args:
        rule: a rule that has a metric.
        window: the samples of all hosts.
        now: the current time.
        fresh_s: maximum age of a gauge's value.
    """
    assert rule.selector is not None
    since = now - timedelta(seconds=rule.settings.over_s)
    if any(sum(window.increases(selector, since).values()) > 0 for selector in rule.unless):
        return []
    match rule.settings.measure:
        case "value":
            readings = [
                rule.compare(*item) for item in window.values(rule.selector, now - timedelta(seconds=fresh_s)).items()
            ]
        case "increase":
            readings = _increases(rule, rule.selector, window, since, now)
        case "share":
            readings = _shares(rule, rule.selector, window, since)
        case _:
            readings = _percentiles(rule, rule.selector, window, since)
    return sort_readings(rule, readings)


def sort_readings(rule: Rule, readings: Iterable[Reading]) -> list[Reading]:
    """Sort readings, worst first."""
    return sorted(readings, key=lambda reading: reading.value, reverse=rule.settings.above is not None)


def _increases(
    rule: Rule, selector: SeriesSelector, window: MetricWindow, since: datetime, now: datetime
) -> list[Reading]:
    usual: Mapping[str, float] = {}
    if rule.settings.times:
        usual = window.increases(selector, now - timedelta(seconds=WINDOW_S), since)
    part = rule.settings.times * rule.settings.over_s / max(1.0, WINDOW_S - rule.settings.over_s)
    return [
        rule.compare(subject, value, can_raise=value > part * usual.get(subject, 0.0))
        for subject, value in window.increases(selector, since).items()
    ]


def _shares(rule: Rule, selector: SeriesSelector, window: MetricWindow, since: datetime) -> list[Reading]:
    parts = window.increases(selector, since)
    wholes = dict(parts)
    for other in rule.against:
        for subject, value in window.increases(other, since).items():
            wholes[subject] = wholes.get(subject, 0.0) + value
    return [
        rule.compare(subject, parts.get(subject, 0.0) / whole, can_raise=whole >= rule.settings.at_least)
        for subject, whole in wholes.items()
        if whole > 0
    ]


def _percentiles(rule: Rule, selector: SeriesSelector, window: MetricWindow, since: datetime) -> list[Reading]:
    bounds, share = METRICS[selector.metric].bounds, _QUANTILES[rule.settings.measure]
    return [
        rule.compare(subject, value, can_raise=sum(spread.counts) >= rule.settings.at_least)
        for subject, spread in window.distributions(selector, since).items()
        if (value := spread.quantile(bounds, share)) is not None
    ]
