"""Alerts: the states and transitions of one, silences, and messages independent of the channel.

    (none) -> pending -> firing -> clearing -> recovered
                 |          ^          |
                 v          +----------+
               (none)

A rule's condition must hold for a while before its alert fires, and must have ceased for a while before it recovers, so
that one that comes and goes is one alert and not many.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum


class AlertMessageKind(StrEnum):
    """Why an alert is sent."""

    FIRING = "fires"
    REPEATED = "still"
    """It was sent before and still fires."""
    RECOVERED = "recovered"
    TEST = "test"
    """A test message of an operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertEntry:
    """One alert of a message."""

    id: str
    kind: AlertMessageKind
    rule: str
    subject: str
    """Untrusted text: no channel may interpret it as markup."""
    severity: str
    summary: str
    advice: str
    page: str
    """Where the console shows more; a path, or empty."""
    value: float
    worst: float
    fired_at: datetime
    recovered_at: datetime | None = None

    @property
    def sentence(self) -> str:
        """What is the matter, with the subject put in."""
        return self.summary.replace("{subject}", clean(self.subject)) if self.summary else self.rule

    @property
    def figure(self) -> str:
        """Its figure, short."""
        return show_number(self.worst if self.kind is AlertMessageKind.RECOVERED else self.value)


@dataclass(frozen=True, slots=True)
class AlertMessage:
    """One message."""

    id: str
    """The same however often it is sent."""
    at: datetime
    alerts: Sequence[AlertEntry]
    home: str
    """Where the console is reached, such as ``https://hooks.example.com``; empty if not configured."""

    @property
    def firing(self) -> list[AlertEntry]:
        """What is told to be the matter, the critical first."""
        found = [one for one in self.alerts if one.kind is not AlertMessageKind.RECOVERED]
        return sorted(found, key=lambda one: (one.severity != "critical", one.rule, one.subject))

    @property
    def recovered(self) -> list[AlertEntry]:
        """What is told to be over."""
        return [one for one in self.alerts if one.kind is AlertMessageKind.RECOVERED]

    @property
    def title(self) -> str:
        """All of it in a line."""
        if any(one.kind is AlertMessageKind.TEST for one in self.alerts):
            return "boathook: test message"
        parts = [
            f"{len(found)} {word}"
            for word, found in (
                ("critical", [one for one in self.firing if one.severity == "critical"]),
                ("warning", [one for one in self.firing if one.severity != "critical"]),
                ("recovered", self.recovered),
            )
            if found
        ]
        only = f": {self.alerts[0].sentence}" if len(self.alerts) == 1 else ""
        return f"boathook: {', '.join(parts)}{only}"

    def link(self, page: str) -> str:
        """Return the address of a page of the console; empty where nobody has said where it is reached."""
        return f"{self.home}{page}" if self.home and page else ""


def collapse(alerts: Sequence[AlertEntry]) -> list[AlertEntry]:
    """Return one entry per alert; an alert that recovered meanwhile is reported as recovered."""
    found: dict[str, AlertEntry] = {}
    for one in alerts:
        known = found.get(one.id)
        if known is None or known.kind is not AlertMessageKind.RECOVERED:
            found[one.id] = one
    return list(found.values())


def clean(text: str, most: int = 120) -> str:
    """Return untrusted text as one printable line, truncated."""
    plain = "".join(char if char.isprintable() else " " for char in text)
    return plain if len(plain) <= most else f"{plain[: most - 1]}…"


def show_number(value: float) -> str:
    """Write a figure with three digits or so, and whole numbers whole."""
    if value == int(value) and abs(value) < 1e15:
        return f"{int(value):,}"
    return f"{value:.3g}"


def show_length(seconds: float) -> str:
    """Write a length of time in its two largest units."""
    left, parts = int(max(0, seconds)), list[str]()
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1)):
        if left >= size or (unit == "s" and not parts):
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join(parts[:2])


class AlertState(StrEnum):
    """Where an alert stands."""

    PENDING = "pending"
    """Its condition holds, but not yet long enough."""
    FIRING = "firing"
    CLEARING = "clearing"
    """It fires, but its condition has ceased, though not yet long enough."""
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class Reading:
    """What a rule sees of one subject."""

    subject: str
    """Whom it is about; empty for a rule about the whole deployment."""
    value: float
    is_raised: bool
    """Whether the condition to fire is met."""
    is_held: bool
    """Whether one that fires goes on: the condition to recover is not met."""


@dataclass(frozen=True, slots=True)
class AlertDelays:
    """How long a rule waits before it believes."""

    for_s: float
    clear_s: float


@dataclass(frozen=True, slots=True)
class AlertStatus:
    """Where an alert stands, and since when."""

    state: AlertState
    since: datetime
    """When this state began."""
    value: float


def transition(
    status: AlertStatus | None, reading: Reading | None, delays: AlertDelays, now: datetime
) -> AlertStatus | None:
    """Return where an alert stands after a look; None where there is none, or a pending one has come to nothing.

    Args:
        standing: before the look; None where the subject has no open alert.
        reading: None where the subject was not seen at all, which counts as ceased.
        patience: of the rule.
        now: of the look.
    """
    if status is None:
        return None if reading is None or not reading.is_raised else _begin(reading, delays, now)
    seen = replace(status, value=reading.value) if reading is not None else status
    match status.state:
        case AlertState.PENDING:
            if reading is None or not reading.is_raised:
                return None
            return _moved(seen, AlertState.FIRING, now) if _has_lasted(status, delays.for_s, now) else seen
        case AlertState.FIRING:
            return seen if reading is not None and reading.is_held else _cease(seen, delays, now)
        case AlertState.CLEARING:
            if reading is not None and reading.is_held:
                return _moved(seen, AlertState.FIRING, now)
            return _moved(seen, AlertState.RECOVERED, now) if _has_lasted(status, delays.clear_s, now) else seen
        case AlertState.RECOVERED:
            return status


def _begin(reading: Reading, delays: AlertDelays, now: datetime) -> AlertStatus:
    state = AlertState.PENDING if delays.for_s else AlertState.FIRING
    return AlertStatus(state, now, reading.value)


def _cease(status: AlertStatus, delays: AlertDelays, now: datetime) -> AlertStatus:
    return _moved(status, AlertState.CLEARING if delays.clear_s else AlertState.RECOVERED, now)


def _moved(status: AlertStatus, state: AlertState, now: datetime) -> AlertStatus:
    return replace(status, state=state, since=now)


def _has_lasted(status: AlertStatus, seconds: float, now: datetime) -> bool:
    return now - status.since >= timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class Silence:
    """A time in which nobody is told of some alerts."""

    rule: str
    """A pattern in which ``*`` stands for any run of characters."""
    subject: str
    until: datetime

    def covers(self, rule: str, subject: str, now: datetime) -> bool:
        """Return whether nobody is told of this subject's alert by this rule."""
        return now < self.until and matches_pattern(self.rule, rule) and matches_pattern(self.subject, subject)


def matches_pattern(pattern: str, text: str) -> bool:
    """Return whether a text fits a pattern whose only wildcard is ``*``."""
    first, *rest = pattern.split("*")
    if not rest:
        return text == pattern
    *middle, last = rest
    if len(text) < len(first) + len(last) or not text.startswith(first) or not text.endswith(last):
        return False
    place, end = len(first), len(text) - len(last)
    for part in middle:
        found = text.find(part, place, end)
        if found < 0:
            return False
        place = found + len(part)
    return True
