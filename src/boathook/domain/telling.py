"""What is told of alarms: one message about one or many of them, whoever it goes to."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum


class Kind(StrEnum):
    """Why an alarm is told of."""

    FIRES = "fires"
    STILL = "still"
    """It was told before, and goes on."""
    RECOVERED = "recovered"
    TEST = "test"
    """Nothing is the matter: somebody wants to know whether messages arrive."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One alarm as it is told."""

    id: str
    kind: Kind
    rule: str
    subject: str
    """May come from a stranger: no channel may take it for markup."""
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
        return show_number(self.worst if self.kind is Kind.RECOVERED else self.value)


@dataclass(frozen=True, slots=True)
class Bulletin:
    """One message."""

    id: str
    """The same however often it is sent."""
    at: datetime
    told: Sequence[Told]
    home: str
    """Where the console is reached, such as ``https://hooks.example.com``; empty where nobody has said."""

    @property
    def firing(self) -> list[Told]:
        """What is told to be the matter, the critical first."""
        found = [one for one in self.told if one.kind is not Kind.RECOVERED]
        return sorted(found, key=lambda one: (one.severity != "critical", one.rule, one.subject))

    @property
    def recovered(self) -> list[Told]:
        """What is told to be over."""
        return [one for one in self.told if one.kind is Kind.RECOVERED]

    @property
    def title(self) -> str:
        """All of it in a line."""
        if any(one.kind is Kind.TEST for one in self.told):
            return "boathook: a test of this channel"
        parts = [
            f"{len(found)} {word}"
            for word, found in (
                ("critical", [one for one in self.firing if one.severity == "critical"]),
                ("warning", [one for one in self.firing if one.severity != "critical"]),
                ("recovered", self.recovered),
            )
            if found
        ]
        only = f": {self.told[0].sentence}" if len(self.told) == 1 else ""
        return f"boathook: {', '.join(parts)}{only}"

    def link(self, page: str) -> str:
        """Return the address of a page of the console; empty where nobody has said where it is reached."""
        return f"{self.home}{page}" if self.home and page else ""


def collapse(told: Sequence[Told]) -> list[Told]:
    """Return one entry for each alarm: one that has recovered meanwhile is told of as recovered."""
    found: dict[str, Told] = {}
    for one in told:
        known = found.get(one.id)
        if known is None or known.kind is not Kind.RECOVERED:
            found[one.id] = one
    return list(found.values())


def clean(text: str, most: int = 120) -> str:
    """Return a stranger's text in one line of what can be read, cut short."""
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
