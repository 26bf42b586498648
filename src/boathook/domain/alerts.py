"""What becomes of an alarm: one table of states, and the one decision that moves an alarm among them.

    (none) -> pending -> firing -> clearing -> recovered
                 |          ^          |
                 v          +----------+
               (none)

A rule's condition must hold for a while before its alarm fires, and must have ceased for a while before it recovers, so
that one that comes and goes is one alarm and not many.
"""

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum


class AlertState(StrEnum):
    """Where an alarm stands."""

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
    """Where an alarm stands, and since when."""

    state: AlertState
    since: datetime
    """When this state began."""
    value: float


def transition(
    status: AlertStatus | None, reading: Reading | None, delays: AlertDelays, now: datetime
) -> AlertStatus | None:
    """Return where an alarm stands after a look; None where there is none, or a pending one has come to nothing.

    Args:
        standing: before the look; None where the subject has no open alarm.
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
    """A time in which nobody is told of some alarms."""

    rule: str
    """A pattern in which ``*`` stands for any run of characters."""
    subject: str
    until: datetime

    def covers(self, rule: str, subject: str, now: datetime) -> bool:
        """Return whether nobody is told of this subject's alarm by this rule."""
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
