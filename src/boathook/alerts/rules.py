"""Compiles alert rules and evaluates them against metrics."""

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final

import msgspec

from boathook.alerts.window import HOST, MetricWindow, SeriesSelector
from boathook.config.notifications import RuleSettings, Selection
from boathook.config.tables import Settings
from boathook.db.metric_samples import WINDOW_S
from boathook.domain.alerts import AlertDelays, Reading
from boathook.domain.errors import ConfigError
from boathook.observability.log import get_logger
from boathook.observability.metrics import METRICS, MetricKind

MAX_SUBJECTS: Final = 100
"""Maximum number of subjects per rule with open alerts; the worst come first."""
_LOG = get_logger("alerts")
_QUANTILES: Final = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


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
        rule = self.settings
        holds_at = rule.clear
        if rule.above is not None:
            is_met = value > rule.above
            is_held = is_met or (holds_at is not None and value > holds_at)
        else:
            is_met = rule.below is not None and value < rule.below
            is_held = is_met or (holds_at is not None and value < holds_at)
        return Reading(subject, value, is_raised=is_met and can_raise, is_held=is_held)


def open_window(rules: Collection[Rule]) -> MetricWindow:
    """Return a metric window that covers these rules."""
    metrics = {name for rule in rules for name in rule.metrics}
    return MetricWindow(metrics, max((rule.lookback_s for rule in rules), default=0.0))


def compile_rules(settings: Settings) -> tuple[Rule, ...]:
    """Compile the enabled rules.

    Raises:
        ConfigError: a rule is invalid; the message names the key.
    """
    found = settings.notifications.rules
    return tuple(_compile(name, rule) for name, rule in found.items() if rule.enabled)


def known_rules(settings: Settings) -> tuple[Rule, ...]:
    """Compile the rules that are valid in this process; log the others, such as those of an app that is not loaded."""
    found: list[Rule] = []
    for name, rule in settings.notifications.rules.items():
        try:
            if rule.enabled:
                found.append(_compile(name, rule))
        except ConfigError as error:
            _LOG.warning("rule_left_out", rule=name, error=str(error))
    return tuple(found)


def _compile(name: str, rule: RuleSettings) -> Rule:
    def refuse(key: str, what: str) -> ConfigError:
        return ConfigError(f"notifications.rules.{name}.{key}: {what}")

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
    wanted = kinds.get(rule.measure, (MetricKind.HISTOGRAM,))
    problem = _wrong(rule, rule.by, wanted)
    if problem:
        raise refuse(*problem)
    for key, selections in (("against", rule.against), ("unless", rule.unless)):
        for one in selections:
            if wrong := _wrong(one, rule.by if key == "against" else (), (MetricKind.COUNTER,)):
                raise refuse(f"{key}.{wrong[0]}", wrong[1])
    if rule.measure == "share" and not rule.against:
        raise refuse("against", "is missing; a share needs a total")
    against = tuple(SeriesSelector(one.metric, _plain(one), rule.by) for one in rule.against)
    unless = tuple(SeriesSelector(one.metric, _plain(one)) for one in rule.unless)
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
    return sorted(readings, key=lambda one: one.value, reverse=rule.settings.above is not None)


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
