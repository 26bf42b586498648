"""The health of a handler, an endpoint or a source over a range of time: one rule for every interface."""

from datetime import datetime
from enum import StrEnum

import msgspec


class HealthState(StrEnum):
    """The states, the first that applies counts."""

    NOT_REGISTERED = "not registered"
    """No app declares the handler, or no settings the source."""
    DISABLED = "disabled"
    PAUSED = "paused"
    """Its circuit breaker is open."""
    FAILING = "failing"
    IDLE = "idle"
    """It had no attempt in the range."""
    HEALTHY = "healthy"


class AttemptResults(msgspec.Struct, frozen=True):
    """The results of the attempts, or of the requests at a source, in a range."""

    succeeded: int = 0
    failed: int = 0
    is_newest_failed: bool = False
    """Whether the newest one failed."""

    @property
    def error_share(self) -> float:
        """The share that failed; 0 without any."""
        return self.failed / (self.succeeded + self.failed) if self.succeeded + self.failed else 0.0


class Health(msgspec.Struct, frozen=True):
    """The health of one handler, endpoint or source."""

    state: HealthState
    paused_until: datetime | None = None
    """When the next probe may go; None if it is not paused or the time is unknown."""

    def pause_text(self, now: datetime) -> str:
        """Return when the next probe goes, if it is paused: ``paused, next probe in 246 s``."""
        if self.paused_until is None:
            return "paused"
        rest_s = round((self.paused_until - now).total_seconds())
        return f"paused, next probe in {rest_s} s" if rest_s > 0 else "paused, the next probe is due"


def judge_health(
    results: AttemptResults,
    threshold: float,
    *,
    is_registered: bool = True,
    is_disabled: bool = False,
    is_paused: bool = False,
    paused_until: datetime | None = None,
) -> Health:
    """Return the health by the results in a range.

    Args:
        results: of the range.
        threshold: the share of failed attempts at which the alert rule ``error_rate`` fires.
        is_registered: whether it is still declared.
        is_disabled: whether it was disabled.
        is_paused: whether its circuit breaker is open.
        paused_until: when the next probe may go, if that is known.
    """
    if not is_registered:
        return Health(HealthState.NOT_REGISTERED)
    if is_disabled:
        return Health(HealthState.DISABLED)
    if is_paused:
        return Health(HealthState.PAUSED, paused_until)
    if results.is_newest_failed and (not results.succeeded or results.error_share >= threshold):
        return Health(HealthState.FAILING)
    return Health(HealthState.HEALTHY if results.succeeded + results.failed else HealthState.IDLE)
