"""The result of a consistency check: the balance and all violations."""

from collections.abc import Mapping
from datetime import datetime

import msgspec


class ViolationExample(msgspec.Struct, frozen=True):
    """One violation of an invariant."""

    subject: str | None
    """The id of the event, delivery, conflict or rejection; None for the store as a whole."""
    expected: str
    found: str
    look: str | None
    """The command that shows the subject."""

    def __str__(self) -> str:
        named = f"{self.subject}: " if self.subject else ""
        return f"{named}expected {self.expected}; found {self.found}"


class Violation(msgspec.Struct, frozen=True):
    """One invariant that does not hold."""

    check: str
    count: int
    """Total number of violations."""
    examples: tuple[ViolationExample, ...]
    """The first few violations."""
    meaning: str
    """One sentence for the operator."""
    remedy: str
    """The fix, as an instruction for the operator."""


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of the store, each event counted at the time when it was checked."""

    begun_at: datetime
    events: int
    received: int
    published: int
    deliveries: int
    """Deliveries that were created when their events were accepted."""
    replayed: int
    """Deliveries added later, by replaying or rerouting events."""
    succeeded: int
    ignored: int
    dead: int
    pending: int
    leased: int
    purged: int
    """Dead letters of stored events that operators deleted."""
    attempts: int
    remembered: int
    """Stored dedup keys."""
    conflicts: int
    conflicting_requests: int
    rejections: int
    dropped: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Number of rows that retention and operators have deleted, by kind and reason."""

    @property
    def missing(self) -> int:
        """Deliveries that are neither open, nor ended, nor purged; 0 if the totals are consistent."""
        ended = self.succeeded + self.ignored + self.dead
        return self.deliveries + self.replayed - (ended + self.pending + self.leased + self.purged)


class IntegrityReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check."""

    balance: Balance
    violations: tuple[Violation, ...]
    checks: int
    """Number of checked invariants."""
    looks: int
    longest_query_s: float
    """Duration of the longest query, and therefore of its snapshot."""

    @property
    def is_consistent(self) -> bool:
        """Whether every invariant holds."""
        return not self.violations


class CheckProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a check."""

    title: str
    number: int
    """Number of the current step, from 1."""
    of: int
    share: float
    """Completed share of this step, by time of the events: 0 to 1."""
    events: int
    """Events checked so far."""
    reached: datetime | None
    """Time of the events that the check has reached; None before the first, and for steps without a time order."""
