"""Decides what happens next to a delivery: one function, from plain values.

A worker hands over how an attempt ended; `decide` answers with the move to make. Nothing here
reads a clock or throws dice: the moment and the jitter come from the caller, so that a test or a
simulation can replay any decision.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import assert_never

MAX_CODE = 100
MAX_NOTE = 2_000
CONNECTION_LOST = "CONNECTION_LOST"
MAX_FREE_RETRIES = 20
"""Attempts in all that a lost connection may cut off; a payload that always takes its connection down is buried."""
_LONGEST_STRETCH = 2.0
_LEAST_STRETCH_S = 3_600.0
_OUTAGE_FIRST_S = 1.0
_OUTAGE_LONGEST_S = 60.0


@dataclass(frozen=True, slots=True)
class Ignore:
    """Return it from a handler: the event needs no effect here, and is settled as ignored."""

    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry:
    """Return it from a handler: roll back and try again later, within the retry policy's bounds."""

    after: float | None = None
    """Seconds until the next attempt; None lets the retry policy choose."""
    code: str = "RETRY"
    """A short reason to count and filter by, such as ``USER_MISSING``."""


@dataclass(frozen=True, slots=True)
class Dead:
    """Return it from a handler: roll back and give up at once; a person should look."""

    code: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Success:
    """The attempt did its work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """The attempt ended in an error."""

    code: str
    """The exception's name, ``TIMEOUT``, or ``LEASE_LOST`` for a worker that vanished."""
    error: str
    """One line for people."""
    traceback: str | None = None
    is_final: bool = False
    """Whether trying again cannot help."""
    retry_after_s: float | None = None
    """Seconds the other side asked to be left alone for; heeded within bounds, see `decide`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Interruption:
    """PostgreSQL went away under the handler or sacrificed it to others: not its fault, and all is rolled back."""

    error: str
    """One line for people."""
    traceback: str | None = None
    code: str = CONNECTION_LOST
    """What it is recorded as."""


Outcome = Success | Ignore | Retry | Dead | Failure | Interruption
"""How an attempt ended, for `decide`."""


@dataclass(frozen=True, slots=True)
class Completed:
    """The attempt's effects and the end of its delivery are committed."""

    state: str
    """``succeeded`` or ``ignored``."""


@dataclass(frozen=True, slots=True)
class Superseded:
    """The lease is another's; nothing of this attempt was committed, and nothing about it is ours to record."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The attempt was broken off because its process stops; it does not count."""


@dataclass(frozen=True, slots=True)
class NotStarted:
    """PostgreSQL was unavailable before the attempt could begin, so there was none to count."""


Result = Outcome | Completed | Superseded | Stopped | NotStarted
"""What came of executing an attempt: an outcome to decide about, or a reason why there is nothing to decide."""


@dataclass(frozen=True, slots=True)
class Complete:
    """End the delivery well: succeeded, or ignored with its reason."""

    ignored_because: str | None = None


@dataclass(frozen=True, slots=True)
class RetryAt:
    """Put the delivery back, due at a moment."""

    due_at: datetime
    code: str
    error: str
    is_free: bool = False
    """Whether the attempt leaves the policy's budget of attempts as it was."""


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """Make the delivery a dead letter."""

    code: str
    error: str


Decision = Complete | RetryAt | DeadLetter


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """When to try again and when to give up."""

    first_s: float = 1.0
    """Seconds before the second attempt."""
    factor: float = 2.0
    """How much longer each following wait is."""
    longest_s: float = 300.0
    """No wait is longer, before jitter."""
    delays_s: tuple[float, ...] | None = None
    """Waits in seconds, in place of the exponential ones; after the last comes no further attempt."""
    jitter: float = 0.2
    """Each wait is stretched or shrunk by up to this share of itself."""
    max_attempts: int = 5
    """Attempts in all, the first included; with `delays_s`, their number plus one."""
    max_age_s: float = 900.0
    """No attempt is planned later than this many seconds after the event was accepted or replayed."""

    def __post_init__(self) -> None:
        if self.delays_s is not None:
            object.__setattr__(self, "max_attempts", len(self.delays_s) + 1)
        for name in ("first_s", "longest_s", "max_age_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"RetryPolicy.{name} must not be negative")
        if self.delays_s is not None and any(delay < 0 for delay in self.delays_s):
            raise ValueError("RetryPolicy.delays_s must not hold a negative delay")
        if self.max_attempts < 1:
            raise ValueError("RetryPolicy.max_attempts must be at least 1")
        if not 0 <= self.jitter < 1:
            raise ValueError("RetryPolicy.jitter must be at least 0 and less than 1")
        if self.factor < 1:
            raise ValueError("RetryPolicy.factor must be at least 1")

    def wait_s(self, attempt: int, jitter: float) -> float:
        """Return the seconds to wait after *attempt* (1 for the first); *luck* in [0, 1) places the jitter."""
        if self.delays_s is not None:
            base = self.delays_s[attempt - 1]
        else:
            # The exponent is bounded so that a long-lived delivery cannot overflow a float.
            base = min(self.longest_s, self.first_s * self.factor ** min(attempt - 1, 64))
        return base * (1 + self.jitter * (2 * jitter - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryDefaults:
    """The retry policies of handlers that name none of their own."""

    policy: RetryPolicy = field(default_factory=RetryPolicy)
    by_source: Mapping[str, RetryPolicy] = field(default_factory=dict)
    """Of sources that have another one."""

    def of(self, source: str | None) -> RetryPolicy:
        """Return the policy for events of *source*, or for published events where it is None."""
        return self.policy if source is None else self.by_source.get(source, self.policy)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptState:
    """What the decision needs to know of a delivery."""

    attempt: int
    """The attempt that just ended, counted since the event was accepted or last replayed; 1 for the first. Excused ones
    are not among them."""
    enqueued_at: datetime
    free_retries: int = 0
    """Free retries since then, without this one."""


def complete_ignored(reason: str) -> Complete:
    """Return the move of a delivery whose handler said `Ignore`, with its reason as it may be stored."""
    return Complete(ignored_because=_clip(reason, MAX_NOTE) or "no reason given")


def decide(standing: AttemptState, outcome: Outcome, policy: RetryPolicy, now: datetime, jitter: float) -> Decision:
    """Return the move that follows *outcome*; *luck* in [0, 1) places the jitter.

    A `Failure.retry_after_s` can stretch the planned wait: to twice its length or to an hour, whichever is longer, and
    not past the policy's maximum age.
    """
    match outcome:
        case Success():
            return Complete()
        case Ignore(reason=reason):
            return complete_ignored(reason)
        case Dead(code=code, note=note):
            return DeadLetter(_code(code), _clip(note, MAX_NOTE))
        case Failure(is_final=True):
            return DeadLetter(_code(outcome.code), _clip(outcome.error, MAX_NOTE))
        case Failure():
            move = _try_again(standing, policy, now, jitter, None, outcome.code, outcome.error)
            return _stretch(move, standing, policy, now, outcome.retry_after_s)
        case Retry(after=after, code=code):
            return _try_again(standing, policy, now, jitter, after, code, f"the handler asked for a retry: {code}")
        case Interruption():
            return _excuse(standing, policy, now, jitter, outcome)
        case _:
            assert_never(outcome)


def _try_again(
    standing: AttemptState,
    policy: RetryPolicy,
    now: datetime,
    jitter: float,
    after_s: float | None,
    code: str,
    error: str,
) -> Decision:
    code, error = _code(code), _clip(error, MAX_NOTE)
    if standing.attempt >= policy.max_attempts:
        return DeadLetter(code, error)
    wait_s = max(0.0, policy.wait_s(standing.attempt, jitter) if after_s is None else after_s)
    if (now - standing.enqueued_at).total_seconds() + wait_s > policy.max_age_s:
        return DeadLetter(code, error)
    return RetryAt(now + timedelta(seconds=wait_s), code, error)


def _stretch(
    move: Decision, standing: AttemptState, policy: RetryPolicy, now: datetime, asked_s: float | None
) -> Decision:
    if asked_s is None or not isinstance(move, RetryAt):
        return move
    planned_s = (move.due_at - now).total_seconds()
    left_s = policy.max_age_s - (now - standing.enqueued_at).total_seconds()
    wait_s = min(asked_s, max(_LONGEST_STRETCH * planned_s, _LEAST_STRETCH_S), left_s)
    return move if wait_s <= planned_s else replace(move, due_at=now + timedelta(seconds=wait_s))


def _excuse(
    standing: AttemptState, policy: RetryPolicy, now: datetime, jitter: float, outcome: Interruption
) -> Decision:
    code, error = _code(outcome.code), _clip(outcome.error, MAX_NOTE)
    base_s = min(_OUTAGE_LONGEST_S, _OUTAGE_FIRST_S * 2.0 ** min(standing.free_retries, MAX_FREE_RETRIES))
    wait_s = base_s * (0.5 + jitter)
    age_s = (now - standing.enqueued_at).total_seconds()
    if standing.free_retries >= MAX_FREE_RETRIES or age_s + wait_s > policy.max_age_s:
        return DeadLetter(code, error)
    return RetryAt(now + timedelta(seconds=wait_s), code, error, is_free=True)


def _code(text: str) -> str:
    return _clip(text, MAX_CODE) or "UNKNOWN"


def _clip(text: str, longest: int) -> str:
    # PostgreSQL stores neither NUL nor lone surrogates in text.
    text = text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= longest else text[: longest - 1] + "…"


class BreakerState(StrEnum):
    """Where a circuit breaker stands."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker:
    """Stop calling handlers of a dependency that keeps failing, then probe it gently.

    Handlers that name the same dependency share one breaker within a worker process.
    """

    dependency: str
    """What fails, such as ``crm``."""
    errors: tuple[type[BaseException], ...] = (ConnectionError, TimeoutError)
    """Which exceptions are the dependency's fault; others neither open nor close the breaker."""
    opens_after: int = 5
    """Consecutive failures that open it."""
    cools_s: float = 10.0
    """Seconds it stays open before the first probe; doubled after each failed probe."""
    longest_s: float = 300.0
    """No pause is longer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakerStatus:
    """A breaker's memory; `after` and `may_run` are its whole behaviour."""

    failures: int = 0
    opened_at: datetime | None = None
    pauses: int = 0
    """Pauses taken since it was last closed."""

    def state(self, breaker: Breaker, now: datetime) -> BreakerState:
        """Return where it stands at *now*."""
        if self.opened_at is None:
            return BreakerState.CLOSED
        pause_s = min(breaker.longest_s, breaker.cools_s * 2 ** min(self.pauses - 1, 32))
        return BreakerState.PROBING if (now - self.opened_at).total_seconds() >= pause_s else BreakerState.OPEN

    def may_run(self, breaker: Breaker, now: datetime, running: int) -> bool:
        """Return whether another attempt may start while *running* are under way: when probing, one at a time."""
        match self.state(breaker, now):
            case BreakerState.CLOSED:
                return True
            case BreakerState.PROBING:
                return running == 0
            case BreakerState.OPEN:
                return False

    def after(self, breaker: Breaker, error: BaseException | None, now: datetime) -> "BreakerStatus":
        """Return the memory after an attempt that ended in *error*, or None where it went well."""
        if error is None:
            return BreakerStatus()
        if not isinstance(error, breaker.errors):
            return self
        state = self.state(breaker, now)
        if state is BreakerState.OPEN:
            return self
        failures = self.failures + 1
        if state is BreakerState.PROBING or failures >= breaker.opens_after:
            return BreakerStatus(failures=failures, opened_at=now, pauses=self.pauses + 1)
        return BreakerStatus(failures=failures, opened_at=None, pauses=self.pauses)
