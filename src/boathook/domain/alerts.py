"""Alerts: states, transitions, silences, and messages independent of the channel.

    (none) -> pending -> firing -> clearing -> recovered
                 |          ^          |
                 v          +----------+
               (none)

A rule's condition must hold for some time before its alert fires, and must be false for some time before the alert
recovers. So a flapping condition causes one alert instead of many.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Final

import msgspec
from msgspec.structs import replace

from boathook.domain.plurals import counted

MAX_SUBJECT: Final = 200
"""Maximum characters of the subject of an app's alert."""
MAX_DETAIL: Final = 500
"""Maximum characters of one of its details."""
_OWN_PLACEHOLDERS: Final = ("subject", "value", "threshold", "period")
_WORD: Final = re.compile(r"\w{1,60}")


class AlertMessageKind(StrEnum):
    """Why an alert is sent."""

    FIRING = "firing"
    REPEATED = "repeated"
    """It was sent before and is still firing."""
    RECOVERED = "recovered"
    TEST = "test"
    """A test message that an operator requested."""


class AlertEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One alert in a message."""

    id: str
    kind: AlertMessageKind
    rule: str
    subject: str
    """Untrusted text: no channel may interpret it as markup."""
    severity: str
    summary: str
    advice: str
    page: str
    """Path of the console page with details, or empty."""
    value: float
    worst: float
    fired_at: datetime
    recovered_at: datetime | None = None
    name: str = ""
    """What the subject is called, such as ``ERP of Acme``; empty if it has no other name."""
    figures: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The text of ``{value}`` and of other figures in the summary."""
    details: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Texts of an app's alert for further placeholders in the summary. Untrusted, as the subject is."""

    @property
    def sentence(self) -> str:
        """The rule's summary with the subject, the figures and the details filled in."""
        return fill_summary(self.summary, self.name or self.subject, self.figures, self.details) or self.rule

    @property
    def has_value(self) -> bool:
        """Whether the sentence says the value."""
        return "{value}" in self.summary


class AlertMessage(msgspec.Struct, frozen=True):
    """One message to a channel."""

    id: str
    """Stays the same when the message is sent again."""
    at: datetime
    alerts: Sequence[AlertEntry]
    home: str
    """Base URL of the console, such as ``https://hooks.example.com``; empty if not configured."""

    @property
    def firing(self) -> list[AlertEntry]:
        """The alerts that are not recovered, critical ones first."""
        entries = [alert for alert in self.alerts if alert.kind is not AlertMessageKind.RECOVERED]
        return sorted(entries, key=lambda entry: (entry.severity != "critical", entry.rule, entry.subject))

    @property
    def recovered(self) -> list[AlertEntry]:
        """The recovered alerts."""
        return [alert for alert in self.alerts if alert.kind is AlertMessageKind.RECOVERED]

    @property
    def title(self) -> str:
        """One-line summary of all alerts."""
        if any(alert.kind is AlertMessageKind.TEST for alert in self.alerts):
            return "boathook: test message"
        parts = [
            f"{len(entries)} {word}"
            for word, entries in (
                ("critical", [entry for entry in self.firing if entry.severity == "critical"]),
                ("warning", [entry for entry in self.firing if entry.severity != "critical"]),
                ("recovered", self.recovered),
            )
            if entries
        ]
        only = f": {self.alerts[0].sentence}" if len(self.alerts) == 1 else ""
        return f"boathook: {', '.join(parts)}{only}"

    def link(self, page: str) -> str:
        """Return the URL of a console page; empty if the console's base URL is not configured."""
        return f"{self.home}{page}" if self.home and page else ""


def fill(text: str, words: Mapping[str, str]) -> str:
    """Return *text* with each ``{name}`` replaced by its word; other braces stay, and words are not filled again."""
    return _PLACEHOLDER.sub(lambda match: words.get(match[1], match[0]), text)


_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")


def fill_summary(summary: str, subject: str, figures: Mapping[str, str], details: Mapping[str, str]) -> str:
    """Return a rule's summary with what is known of an alert filled in; untrusted text becomes one printable line."""
    words = {**{name: clean(text) for name, text in details.items()}, **figures, "subject": clean(subject)}
    return fill(summary, words)


def show_period(seconds: float) -> str:
    """Format a rule's window in its largest whole unit, such as ``10 minutes``."""
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        if seconds >= size and seconds % size == 0:
            return counted(int(seconds // size), unit)
    return counted(int(seconds), "second")


def collapse(alerts: Sequence[AlertEntry]) -> list[AlertEntry]:
    """Return one entry per alert; an alert that has since recovered is reported as recovered."""
    entries: dict[str, AlertEntry] = {}
    for alert in alerts:
        earlier = entries.get(alert.id)
        if earlier is None or earlier.kind is not AlertMessageKind.RECOVERED:
            entries[alert.id] = alert
    return list(entries.values())


def clean(text: str, max_length: int = 120) -> str:
    """Return untrusted text as one printable line of at most *max_length* characters."""
    plain = "".join(char if char.isprintable() else " " for char in text)
    return plain if len(plain) <= max_length else f"{plain[: max_length - 1]}…"


def show_number(value: float) -> str:
    """Format a number with three significant digits; whole numbers are shown exactly."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.3g}"


def show_length(seconds: float) -> str:
    """Format a duration in its two largest units."""
    remaining_s, parts = int(max(0, seconds)), list[str]()
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        if remaining_s >= size or (unit == "s" and not parts):
            parts.append(f"{remaining_s // size} {unit}")
            remaining_s %= size
    return " ".join(parts[:2])


class AlertState(StrEnum):
    """The state of an alert."""

    PENDING = "pending"
    """The condition holds, but not yet for long enough."""
    FIRING = "firing"
    CLEARING = "clearing"
    """The alert is firing; its condition is false, but not yet for long enough."""
    RECOVERED = "recovered"


class Reading(msgspec.Struct, frozen=True):
    """A rule's result for one subject."""

    subject: str
    """The subject, such as an endpoint or a host; empty for a rule about the whole deployment."""
    value: float
    is_raised: bool
    """Whether the condition to fire is met."""
    is_held: bool
    """Whether a firing alert keeps firing: the condition to recover is not met."""
    details: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Texts for the placeholders of an app's alert."""
    renewed_at: datetime | None = None
    """When an app last fired the alert; None for conditions. Reminders need something new."""


class AlertReading(msgspec.Struct, frozen=True):
    """A subject of an app's alert that is not as it should be, as a function under ``@alert.check`` returns it."""

    subject: str
    """What it is about, such as the id of an order; empty if there is only one."""
    value: float = 1.0
    """The figure that is compared with the rule's threshold."""
    details: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Texts by the names of placeholders in the summary."""
    renewed_at: datetime | None = None
    """When the alert was last fired; None in a check."""


def storable_subject(subject: object) -> str:
    """Return the subject of an app's alert as text that PostgreSQL stores."""
    return _storable(str(subject), MAX_SUBJECT)


def storable_details(details: Mapping[str, object]) -> dict[str, str]:
    """Return the details of an app's alert as texts that PostgreSQL stores. Raises ValueError for a wrong name."""
    for name in details:
        if name in _OWN_PLACEHOLDERS or not _WORD.fullmatch(name):
            raise ValueError(f"a detail cannot be named {name!r}: boathook fills in {', '.join(_OWN_PLACEHOLDERS)}")
    return {name: _storable(str(text), MAX_DETAIL) for name, text in details.items()}


def _storable(text: str, longest: int) -> str:
    plain = text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()
    return plain if len(plain) <= longest else f"{plain[: longest - 1]}…"


class AlertDelays(msgspec.Struct, frozen=True):
    """How long a rule's condition must hold before an alert fires or recovers."""

    for_s: float
    clear_s: float


class AlertStatus(msgspec.Struct, frozen=True):
    """The state of an alert and its start."""

    state: AlertState
    since: datetime
    """When this state began."""
    value: float


def transition(
    status: AlertStatus | None, reading: Reading | None, delays: AlertDelays, now: datetime
) -> AlertStatus | None:
    """Return the status of an alert after an evaluation; None if there is no alert or a pending one is dropped.

    Args:
        status: the status before; None if the subject has no open alert.
        reading: None if the rule reported nothing for the subject, which counts as a false condition.
        delays: of the rule.
        now: the time of the evaluation.
    """
    if status is None:
        return None if reading is None or not reading.is_raised else _begin(reading, delays, now)
    seen = replace(status, value=reading.value) if reading is not None else status
    match status.state:
        case AlertState.PENDING:
            if reading is None or not reading.is_raised:
                return None
            return _transition(seen, AlertState.FIRING, now) if _has_lasted(status, delays.for_s, now) else seen
        case AlertState.FIRING:
            return seen if reading is not None and reading.is_held else _cease(seen, delays, now)
        case AlertState.CLEARING:
            if reading is not None and reading.is_held:
                return _transition(seen, AlertState.FIRING, now)
            return _transition(seen, AlertState.RECOVERED, now) if _has_lasted(status, delays.clear_s, now) else seen
        case AlertState.RECOVERED:
            return status


def _begin(reading: Reading, delays: AlertDelays, now: datetime) -> AlertStatus:
    state = AlertState.PENDING if delays.for_s else AlertState.FIRING
    return AlertStatus(state, now, reading.value)


def _cease(status: AlertStatus, delays: AlertDelays, now: datetime) -> AlertStatus:
    return _transition(status, AlertState.CLEARING if delays.clear_s else AlertState.RECOVERED, now)


def _transition(status: AlertStatus, state: AlertState, now: datetime) -> AlertStatus:
    return replace(status, state=state, since=now)


def _has_lasted(status: AlertStatus, seconds: float, now: datetime) -> bool:
    return now - status.since >= timedelta(seconds=seconds)


class Silence(msgspec.Struct, frozen=True):
    """Suppresses notifications of matching alerts until a given time."""

    rule: str
    """A pattern in which ``*`` matches any characters."""
    subject: str
    until: datetime

    def covers(self, rule: str, subject: str, now: datetime) -> bool:
        """Return whether notifications of this rule and subject are suppressed at *now*."""
        return now < self.until and matches_pattern(self.rule, rule) and matches_pattern(self.subject, subject)


def matches_pattern(pattern: str, text: str) -> bool:
    """Return whether *text* matches a pattern whose only wildcard is ``*``."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    *middle, last = rest
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    start, end = len(first), len(text) - len(last)
    for part in middle:
        position = text.find(part, start, end)
        if position < 0:
            return False
        start = position + len(part)
    return True
