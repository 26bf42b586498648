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


class AlarmState(StrEnum):
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
class Patience:
    """How long a rule waits before it believes."""

    for_s: float
    clear_s: float


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an alarm stands, and since when."""

    state: AlarmState
    since: datetime
    """When this state began."""
    value: float


def move(standing: Standing | None, reading: Reading | None, patience: Patience, now: datetime) -> Standing | None:
    """Return where an alarm stands after a look; None where there is none, or a pending one has come to nothing.

    Args:
        standing: before the look; None where the subject has no open alarm.
        reading: None where the subject was not seen at all, which counts as ceased.
        patience: of the rule.
        now: of the look.
    """
    if standing is None:
        return None if reading is None or not reading.is_raised else _begin(reading, patience, now)
    seen = replace(standing, value=reading.value) if reading is not None else standing
    match standing.state:
        case AlarmState.PENDING:
            if reading is None or not reading.is_raised:
                return None
            return _moved(seen, AlarmState.FIRING, now) if _has_lasted(standing, patience.for_s, now) else seen
        case AlarmState.FIRING:
            return seen if reading is not None and reading.is_held else _cease(seen, patience, now)
        case AlarmState.CLEARING:
            if reading is not None and reading.is_held:
                return _moved(seen, AlarmState.FIRING, now)
            return _moved(seen, AlarmState.RECOVERED, now) if _has_lasted(standing, patience.clear_s, now) else seen
        case AlarmState.RECOVERED:
            return standing


def _begin(reading: Reading, patience: Patience, now: datetime) -> Standing:
    state = AlarmState.PENDING if patience.for_s else AlarmState.FIRING
    return Standing(state, now, reading.value)


def _cease(standing: Standing, patience: Patience, now: datetime) -> Standing:
    return _moved(standing, AlarmState.CLEARING if patience.clear_s else AlarmState.RECOVERED, now)


def _moved(standing: Standing, state: AlarmState, now: datetime) -> Standing:
    return replace(standing, state=state, since=now)


def _has_lasted(standing: Standing, seconds: float, now: datetime) -> bool:
    return now - standing.since >= timedelta(seconds=seconds)


@dataclass(frozen=True, slots=True)
class Silence:
    """A time in which nobody is told of some alarms."""

    rule: str
    """A pattern in which ``*`` stands for any run of characters."""
    subject: str
    until: datetime

    def covers(self, rule: str, subject: str, now: datetime) -> bool:
        """Return whether nobody is told of this subject's alarm by this rule."""
        return now < self.until and fits(self.rule, rule) and fits(self.subject, subject)


def fits(pattern: str, text: str) -> bool:
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
