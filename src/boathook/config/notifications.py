"""The settings of notifications: channels, alert rules and limits."""

import copy
import functools
import re
import tomllib
from datetime import time
from importlib import resources
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import quote
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, Field, model_validator

from boathook.config.channels import Channel, Severity
from boathook.config.types import Days, Hours, NotNegative, Positive, PositiveInt, Table

Measure = Literal["value", "increase", "share", "p50", "p95", "p99"]
Rows = Literal[
    "",
    "checked",
    "dead_letter_causes",
    "dead_letters",
    "disabled_endpoints",
    "fired",
    "paused_endpoints",
    "repeated_body",
    "unhandled",
]

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_QUIET: Final = re.compile(r"([01]\d|2[0-3]):([0-5]\d)-([01]\d|2[0-3]):([0-5]\d)")
_METRIC: Final = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")


def _metric(text: str) -> str:
    if text and not _METRIC.fullmatch(text):
        raise ValueError('must be the name of a metric, such as "boathook_oldest_due_seconds"')
    return text


def _page(text: str) -> str:
    if text and not text.startswith("/"):
        raise ValueError('must be a page of this server, such as "/console/dead"')
    return text


def _zone(text: str) -> str:
    try:
        ZoneInfo(text)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError('must be the name of a time zone, such as "Europe/Berlin" or "UTC"') from None
    return text


def _quiet(text: str) -> str:
    if text and not _QUIET.fullmatch(text):
        raise ValueError('must be hours such as "22:00-07:00", or empty')
    return text


def _one_or_more(value: str | tuple[str, ...]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else value


MetricName = Annotated[str, AfterValidator(_metric)]
Labels = dict[str, Annotated[str | tuple[str, ...], AfterValidator(_one_or_more)]]
"""Labels with the value, or the values, that a series must have."""


_ROW_SUBJECTS: Final = {
    "dead_letter_causes": "cause",
    "dead_letters": "recipient",
    "disabled_endpoints": "endpoint",
    "paused_endpoints": "endpoint",
    "unhandled": "source",
}
"""What the subjects of rules about rows are."""


class Selection(Table):
    """Selects series of a metric by their labels."""

    metric: MetricName
    """The metric to read."""
    labels: Labels = Field(default_factory=dict)
    """Label values that its series must have; by default any."""


class RuleSettings(Table):
    """An alert rule: a value computed from a metric, compared with a threshold."""

    enabled: bool = True
    """Whether the rule is evaluated."""
    severity: Severity = "warning"
    """`"warning"` or `"critical"`, which quiet hours do not hold back."""
    summary: str = ""
    """The meaning in one sentence; `{subject}` stands for the subject's name, `{value}`, `{threshold}` and `{period}`
    for the figures."""
    advice: str = ""
    """How to fix the cause."""
    page: Annotated[str, AfterValidator(_page)] = ""
    """Path of the console page with details; lists of failed deliveries, rejections, conflicts, events, handlers and
    failing endpoints open at the subject."""
    metric: MetricName = ""
    """The metric to evaluate."""
    labels: Labels = Field(default_factory=dict)
    """Label values that its series must have: `{ outcome = ["retry", "dead"] }`; by default any."""
    by: tuple[str, ...] = ()
    """Labels whose values each get an alert of their own; every metric also has the label `host`. By default one
    alert."""
    rows: Rows = ""
    """Rows to count in PostgreSQL instead of a metric: `"dead_letters"` by recipient, `"dead_letter_causes"` of those
    that died within `over_s`, `"disabled_endpoints"`, `"paused_endpoints"`, and of the events accepted within `over_s`,
    by source, those of one signed body (`"repeated_body"`) or without a handler (`"unhandled"`). Of an alert of
    an app: how often it was fired, no more than `over_s` apart (`"fired"`), or what its check returns (`"checked"`)."""
    measure: Measure = "value"
    """Of a gauge `"value"`; of a counter `"increase"`, or `"share"` of itself and `against`; of a histogram `"p50"`,
    `"p95"` or `"p99"`."""
    against: tuple[Selection, ...] = ()
    """What a share is compared with, as a list of `{ metric, labels }`: it is metric / (metric + these)."""
    unless: tuple[Selection, ...] = ()
    """Counters, as in `against`, that must not have increased within `over_s`."""
    above: float | None = None
    """The threshold that the value exceeds; either this or `below`."""
    below: float | None = None
    """The threshold that the value falls below; either this or `above`."""
    clear: float | None = None
    """Threshold at which a firing alert recovers; by default the same."""
    times: NotNegative = 0
    """An increase must also be this many times that of the previous day for the same duration; 0 for no minimum."""
    at_least: NotNegative = 0
    """Minimum number of observations of shares and percentiles."""
    over_s: Positive = 300.0
    """Window in seconds of increases, shares and percentiles."""
    for_s: NotNegative = 0
    """Seconds that the condition must hold before the alert fires."""
    clear_s: NotNegative = 60.0
    """Seconds that the condition must be false before the alert recovers."""
    channels: tuple[str, ...] | None = None
    """Names of the channels to notify; by default all. With `[]`, the alert is shown only in the console."""
    repeat_interval_s: NotNegative | None = None
    """Seconds between reminders while the alert fires, 0 for none; by default `notifications.repeat_interval_s`."""

    def figures(self, value: float) -> dict[str, str]:
        """Return the texts of the figures in the summary."""
        # Imported only here, as every command reads the settings.
        from boathook.domain.alerts import show_period

        limit = self.above if self.above is not None else self.below
        return {
            "value": self._show(value),
            "threshold": "nothing" if limit is None else self._show(limit),
            "period": show_period(self.over_s),
        }

    def _show(self, value: float) -> str:
        from boathook.domain.alerts import show_number

        match self.measure:
            case "share":
                return f"{show_number(round(100 * value, 1))} %"
            case "p50" | "p95" | "p99":
                return f"{show_number(value)} s"
            case _:
                return show_number(value)

    def page_of(self, subject: str) -> str:
        """Return the path of the console page about a subject; empty if the rule names none."""
        label = _ROW_SUBJECTS.get(self.rows, ", ".join(self.by))
        return subject_page(self.page, label, subject) if subject else self.page


def subject_page(page: str, label: str, subject: str) -> str:
    """Return a console page at the subject of an alert; a page that cannot show one subject is returned as it is.

    Args:
        page: the page of the rule.
        label: what the subject is: ``recipient``, ``cause``, ``source`` or ``endpoint``; others have no page.
        subject: the subject.
    """
    kind, _, name = subject.partition(":")
    match page.partition("?")[0], label:
        case ("/console/dead", "recipient") | (
            "/console/rejections" | "/console/conflicts" | "/console/events",
            "source",
        ):
            return f"{page}{'&' if '?' in page else '?'}{label}={quote(subject, safe='')}"
        case "/console/dead", "cause":
            return f"{page}/groups/{quote(subject, safe='')}"
        case "/console/handlers", "recipient" if kind == "handler":
            return f"/console/handlers/{quote(name)}"
        case "/console/handlers", "recipient" if kind == "endpoint":
            return f"/console/endpoints/{quote(name)}" if name else "/console/applications/unhealthy"
        case "/console/applications/unhealthy", "endpoint":
            return f"/console/endpoints/{quote(subject)}"
        case _:
            return page


class NotificationSettings(Table):
    """The channels, rules and limits of notifications."""

    channels: dict[str, Channel]
    rules: dict[str, RuleSettings]
    evaluation_interval_s: Annotated[float, Field(ge=1)]
    group_wait_s: NotNegative
    repeat_interval_s: NotNegative
    min_interval_s: NotNegative
    max_per_hour: PositiveInt
    quiet_hours: Annotated[str, AfterValidator(_quiet)]
    quiet_zone: Annotated[str, AfterValidator(_zone)]
    timeout_s: Positive
    retry_for_h: Hours
    retention_days: Days

    @model_validator(mode="before")
    @classmethod
    def _add_own_rules(cls, values: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(values.get("rules"), dict):
            return values
        rules = values["rules"]
        own = {name: {**rule, **rules.get(name, {})} for name, rule in default_rules().items()}
        return {**values, "rules": {**own, **{name: rule for name, rule in rules.items() if name not in own}}}

    @model_validator(mode="after")
    def _check(self) -> Self:
        for name in (*self.channels, *self.rules):
            if not _NAME.fullmatch(name):
                raise ValueError(f"invalid name {name!r} of a channel or rule; use letters, digits, . _ and -")
        for name, rule in self.rules.items():
            for channel in rule.channels or ():
                if channel not in self.channels:
                    raise ValueError(f"rules.{name}.channels: unknown channel {channel!r}; add it under channels")
        return self

    @property
    def quiet(self) -> tuple[time, time] | None:
        """The local times at which the quiet hours begin and end."""
        match = _QUIET.fullmatch(self.quiet_hours)
        return (time(int(match[1]), int(match[2])), time(int(match[3]), int(match[4]))) if match else None

    @property
    def error_share(self) -> float:
        """The share of failed attempts from which on a handler, endpoint or source is failing: of rule `error_rate`."""
        above = self.rules["error_rate"].above
        return 1.0 if above is None else above

    def channels_of(self, rule: RuleSettings) -> tuple[str, ...]:
        """Return the names of the channels that receive a rule's alerts."""
        channels = tuple(self.channels) if rule.channels is None else rule.channels
        return tuple(
            name for name in channels if rule.severity == "critical" or self.channels[name].min_severity == "warning"
        )


def default_rules() -> dict[str, dict[str, Any]]:
    """Return the built-in rules from `alert_rules.toml`."""
    return copy.deepcopy(_read_default_rules())


@functools.cache
def _read_default_rules() -> dict[str, dict[str, Any]]:
    text = resources.files("boathook.config").joinpath("alert_rules.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)
