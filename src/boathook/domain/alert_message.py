"""Alert messages: one message about one or more alerts, independent of the channel."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
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
