"""What a check of the books finds, as values: the balance, and everything that does not add up."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True, slots=True)
class ViolationExample:
    """One thing that breaks a rule."""

    subject: str | None
    """The id of the event, delivery, conflict or rejection; None where it is the store as a whole."""
    expected: str
    found: str
    look: str | None
    """The command that shows it."""

    def __str__(self) -> str:
        named = f"{self.subject}: " if self.subject else ""
        return f"{named}expected {self.expected}; found {self.found}"


@dataclass(frozen=True, slots=True)
class Violation:
    """One rule that does not hold."""

    check: str
    count: int
    """How often it is broken in all."""
    examples: tuple[ViolationExample, ...]
    """The first few."""
    meaning: str
    """One sentence for people."""
    remedy: str
    """What an operator can do then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What the store holds, each event as of the moment at which it was looked at."""

    begun_at: datetime
    events: int
    received: int
    published: int
    owed: int
    """Deliveries owed when their events were accepted."""
    replayed: int
    """Deliveries added later: by replaying events whose first deliveries had ended, or by routing events again."""
    succeeded: int
    ignored: int
    dead: int
    pending: int
    leased: int
    purged: int
    """Dead letters of stored events that operators deleted."""
    attempts: int
    remembered: int
    """Dedup keys in memory."""
    conflicts: int
    conflicting_requests: int
    rejections: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    """What retention and operators deleted, by kind and reason, over all time."""

    @property
    def missing(self) -> int:
        """Deliveries owed that are neither open, nor ended, nor purged; 0 where the books balance."""
        ended = self.succeeded + self.ignored + self.dead
        return self.owed + self.replayed - (ended + self.pending + self.leased + self.purged)


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrityReport:
    """The result of a check."""

    balance: Balance
    violations: tuple[Violation, ...]
    checks: int
    """How many rules were looked at."""
    looks: int
    longest_query_s: float
    """How long the longest look, and so its snapshot, was open."""

    @property
    def is_consistent(self) -> bool:
        """Whether every rule holds."""
        return not self.violations


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckProgress:
    """Where a check has come to."""

    title: str
    number: int
    """Of what is looked at, from 1."""
    of: int
    share: float
    """How much of this is done, by time of the events: 0 to 1."""
    events: int
    """Looked at so far."""
    reached: datetime | None
    """The moment of the events it has come to; None before the first, and where it does not go by time."""
