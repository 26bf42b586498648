"""Decides what happens next to a delivery, as a pure function of plain values.

A worker passes in how an attempt ended, and `decide` returns the next action. This module reads no clock and no random
numbers: the time and the jitter come from the caller, so that a test or a simulation can replay any decision.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, Literal, assert_never

import msgspec
from msgspec.structs import force_setattr, replace

MAX_CODE = 100
MAX_NOTE = 2_000
CONNECTION_LOST = "CONNECTION_LOST"
MAX_FREE_RETRIES = 20
"""Maximum number of free retries after lost connections. A payload that always breaks its connection is
dead-lettered."""
MAX_SECONDS: Final = 36_500 * 86_400.0
"""A century: the longest time that code may ask for, so that no due time is outside of the calendar."""
_MAX_STRETCH = 2.0
_MIN_STRETCH_S = 3_600.0
OUTAGE_FIRST_S = 1.0
_OUTAGE_LONGEST_S = 60.0


class Ignore(msgspec.Struct, frozen=True):
    """Return value of a handler: the event needs no effect, and the delivery is settled as ignored."""

    reason: str


class Retry(msgspec.Struct, frozen=True):
    """Return value of a handler: roll back and try again later, within the limits of the retry policy."""

    after: float | None = None
    """Seconds until the next attempt; None to use the retry policy's delay."""
    code: str = "RETRY"
    """A short reason for metrics and filters, such as ``USER_MISSING``."""
    dependency: str | None = None
    """The service that failed, such as ``crm``, if one did."""


class Dead(msgspec.Struct, frozen=True):
    """Return value of a handler: roll back and dead-letter the delivery immediately, for an operator to inspect."""

    code: str
    note: str = ""
    dependency: str | None = None
    """The service that failed, such as ``crm``, if one did."""


class WaitFor(msgspec.Struct, frozen=True):
    """Return value of a handler: roll back, and try again once something has come, such as the row of another system.

    The code that brings it signals the key in the same transaction, by `Boathook.signal`, or in SQL by
    ``boathook.signal(key)``. A signal that commits while the handler still runs is not missed. Waiting costs neither
    attempts nor the time of the retry policy.
    """

    key: str
    """What it waits for, such as ``music.track:abc``, in at most 200 characters; all apps share the keys."""
    until: datetime
    """When it is tried for the last time, with a time zone, such as a day after ``event.accepted_at``."""
    reason: str = ""
    """Why, in words for operators."""
    code: str = "WAITING"
    """A short reason for metrics and filters, such as ``TRACK_MISSING``."""
    on_timeout: Literal["dead", "ignore"] = "dead"
    """What becomes of the delivery if the handler returns this again at `until`."""


MAX_KEY: Final = 200
"""Maximum characters of `WaitFor.key`."""


def is_key(key: object) -> bool:
    """Return whether a delivery can wait for *key*."""
    return isinstance(key, str) and 0 < len(key) <= MAX_KEY and key.isprintable()


class Success(msgspec.Struct, frozen=True):
    """The attempt succeeded."""


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """The attempt ended in an error."""

    code: str
    """The exception's name, ``TIMEOUT``, or ``LEASE_LOST`` for a worker that disappeared."""
    error: str
    """A human-readable message of one line."""
    traceback: str | None = None
    is_final: bool = False
    """Whether a retry cannot help."""
    retry_after_s: float | None = None
    """The delay in seconds that the receiver requested; honored within limits, see `decide`."""
    dependency: str | None = None
    """The name of the service whose failure this is, such as ``crm`` or its host; None if it is unknown."""


class Interruption(msgspec.Struct, frozen=True, kw_only=True):
    """PostgreSQL became unavailable or aborted the transaction, for example in a deadlock.

    The attempt was rolled back and is not the handler's fault.
    """

    error: str
    """A human-readable message of one line."""
    traceback: str | None = None
    code: str = CONNECTION_LOST
    """The code that is recorded."""


Outcome = Success | Ignore | Retry | Dead | WaitFor | Failure | Interruption
"""How an attempt ended, as input to `decide`."""


class Completed(msgspec.Struct, frozen=True):
    """The handler's effects and the delivery's final state are committed."""

    state: str
    """``succeeded`` or ``ignored``."""


class Superseded(msgspec.Struct, frozen=True):
    """Another worker holds the lease; nothing of this attempt was committed, and nothing is recorded."""


class Stopped(msgspec.Struct, frozen=True):
    """The attempt was aborted because its process is stopping; it does not count."""


class NotStarted(msgspec.Struct, frozen=True):
    """PostgreSQL was unavailable before the attempt started, so no attempt is counted."""


Result = Outcome | Completed | Superseded | Stopped | NotStarted
"""The result of an attempt: an outcome that needs a decision, or the reason why none is needed."""


class Complete(msgspec.Struct, frozen=True):
    """Finish the delivery as succeeded, or as ignored with a reason."""

    ignored_because: str | None = None


class RetryAt(msgspec.Struct, frozen=True):
    """Return the delivery to the queue, due at `due_at`."""

    due_at: datetime
    code: str
    error: str
    is_free: bool = False
    """Whether the attempt does not count against the policy's budget."""


class DeadLetter(msgspec.Struct, frozen=True):
    """Make the delivery a dead letter."""

    code: str
    error: str


class WaitUntil(msgspec.Struct, frozen=True):
    """Return the delivery to the queue, due once `key` is signalled, at latest at `until`."""

    key: str
    until: datetime
    code: str
    error: str


Decision = Complete | RetryAt | WaitUntil | DeadLetter


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """When to retry and when to give up; the fields' defaults are those of a policy that leaves them out."""

    first_s: float = 1.0
    """Delay in seconds before the second attempt."""
    factor: float = 2.0
    """Factor by which each further delay grows."""
    max_delay_s: float = 300.0
    """Maximum delay in seconds, before jitter."""
    delays_s: tuple[float, ...] | None = None
    """Delays in seconds instead of the exponential ones; there is no attempt after the last one."""
    jitter: float = 0.2
    """Maximum fraction by which jitter lengthens or shortens each delay."""
    max_attempts: int = 5
    """Maximum number of attempts, including the first; with `delays_s`, their number plus one."""
    max_age_s: float = 900.0
    """No attempt is scheduled later than this many seconds after the event was accepted or replayed."""

    def __post_init__(self) -> None:
        for name in ("first_s", "factor", "max_delay_s", "jitter", "max_attempts", "max_age_s"):
            if not isinstance(value := getattr(self, name), int if name == "max_attempts" else (int, float)):
                raise TypeError(f"RetryPolicy.{name} must be a number, not {value!r}")
        delays: object = self.delays_s
        if delays is not None and not (isinstance(delays, Sequence) and all(map(_is_number, delays))):
            raise TypeError(f"RetryPolicy.delays_s must be seconds such as (5, 60), not {self.delays_s!r}")
        if self.delays_s is not None:
            force_setattr(self, "max_attempts", len(self.delays_s) + 1)
        for name in ("first_s", "max_delay_s", "max_age_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"RetryPolicy.{name} must not be negative")
        if self.delays_s is not None and any(delay < 0 for delay in self.delays_s):
            raise ValueError("RetryPolicy.delays_s must not contain a negative delay")
        if self.max_attempts < 1:
            raise ValueError("RetryPolicy.max_attempts must be at least 1")
        if not 0 <= self.jitter < 1:
            raise ValueError("RetryPolicy.jitter must be at least 0 and less than 1")
        if self.factor < 1:
            raise ValueError("RetryPolicy.factor must be at least 1")

    def wait_s(self, attempt: int, jitter: float) -> float:
        """Return the delay in seconds after *attempt* (1 for the first); *jitter* is in [0, 1)."""
        if self.delays_s is not None:
            base = self.delays_s[attempt - 1]
        else:
            # The exponent is bounded so that many attempts cannot overflow a float.
            base = min(self.max_delay_s, self.first_s * self.factor ** min(attempt - 1, 64))
        return base * (1 + self.jitter * (2 * jitter - 1))


_MINUTE, _HOUR, _DAY = 60.0, 3_600.0, 86_400.0


def _schedule(*delays_s: float, jitter: float) -> RetryPolicy:
    # Pauses and outages use up time without an attempt; one day beyond the sum of the delays covers them.
    return RetryPolicy(delays_s=delays_s, jitter=jitter, max_age_s=sum(delays_s) * (1 + jitter) + _DAY)


RETRY_PRESETS: Final[Mapping[str, RetryPolicy]] = {
    "standard-webhooks": _schedule(
        5, 5 * _MINUTE, 30 * _MINUTE, 2 * _HOUR, 5 * _HOUR, 10 * _HOUR, 14 * _HOUR, 20 * _HOUR, 24 * _HOUR, jitter=0.1
    ),
    "svix": _schedule(5, 5 * _MINUTE, 30 * _MINUTE, 2 * _HOUR, 5 * _HOUR, 10 * _HOUR, 10 * _HOUR, jitter=0.2),
    "cashdesk": _schedule(5, _MINUTE, _HOUR, 3 * _HOUR, 24 * _HOUR, jitter=0.0),
    "exponential": _schedule(*(5 * 3.0**n for n in range(8)), 5 * _HOUR, 5 * _HOUR, 5 * _HOUR, jitter=0.2),
    "none": _schedule(jitter=0.0),
}
"""Retry schedules by name: the delays between attempts. The first attempt is made immediately."""
_MAX_DELAYS: Final = 50
_MAX_DELAY_S: Final = 30 * _DAY


def read_retry(schedule: str | Sequence[float]) -> RetryPolicy:
    """Return the policy for a preset's name, comma-separated seconds, or a list of seconds.

    Raises:
        ValueError: *schedule* is none of these; the message names the valid forms.
    """
    if isinstance(schedule, str):
        if schedule in RETRY_PRESETS:
            return RETRY_PRESETS[schedule]
        try:
            schedule = [float(part) for part in schedule.split(",")]
        except ValueError:
            names = ", ".join(RETRY_PRESETS)
            raise ValueError(f"write one of {names}, or seconds such as 5, 60, 3600; not {schedule!r}") from None
    if len(schedule) > _MAX_DELAYS:
        raise ValueError(f"a retry schedule has at most {_MAX_DELAYS} waits, not {len(schedule)}")
    for delay in schedule:
        if not 0 <= delay <= _MAX_DELAY_S:
            raise ValueError(f"a wait is 0 to {_MAX_DELAY_S:.0f} seconds, not {delay}")
    return _schedule(*map(float, schedule), jitter=0.1)


class RetryDefaults(msgspec.Struct, frozen=True, kw_only=True):
    """The retry policies of handlers and endpoints that set none, as the settings give them."""

    policy: RetryPolicy = msgspec.field(default_factory=RetryPolicy)
    """The policy of handlers."""
    by_source: Mapping[str, RetryPolicy] = msgspec.field(default_factory=dict)
    """Policies of handlers for individual sources."""
    endpoints: RetryPolicy = RETRY_PRESETS["standard-webhooks"]

    def of(self, source: str | None) -> RetryPolicy:
        """Return the policy of handlers for events of *source*; None means published events."""
        return self.policy if source is None else self.by_source.get(source, self.policy)


class AttemptState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a delivery that a decision depends on."""

    attempt: int
    """The number of the attempt that just ended, from 1, since the event was accepted or last replayed; free retries
    are not counted."""
    enqueued_at: datetime
    free_retries: int = 0
    """Free retries since then, without this one."""


def complete_ignored(reason: str) -> Complete:
    """Return the action for a delivery whose handler returned `Ignore`, with the reason truncated for storage."""
    return Complete(ignored_because=_clip(reason, MAX_NOTE) or "no reason given")


def decide(state: AttemptState, outcome: Outcome, policy: RetryPolicy, now: datetime, jitter: float) -> Decision:
    """Return the action that follows *outcome*; *jitter* is in [0, 1).

    A `Failure.retry_after_s` can lengthen the delay to at most twice its length or one hour, whichever is longer, and
    not beyond the policy's maximum age.
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
            decision = _try_again(state, policy, now, jitter, None, outcome.code, outcome.error)
            return _apply_retry_after(decision, state, policy, now, outcome.retry_after_s)
        case Retry(after=after, code=code):
            return _try_again(state, policy, now, jitter, after, code, f"the handler requested a retry: {code}")
        case WaitFor():
            return _wait(outcome, now)
        case Interruption():
            return _retry_free(state, policy, now, jitter, outcome)
        case _:
            assert_never(outcome)


def _try_again(
    state: AttemptState,
    policy: RetryPolicy,
    now: datetime,
    jitter: float,
    after_s: float | None,
    code: str,
    error: str,
) -> Decision:
    code, error = _code(code), _clip(error, MAX_NOTE)
    if state.attempt >= policy.max_attempts:
        return DeadLetter(code, error)
    wait_s = max(0.0, policy.wait_s(state.attempt, jitter) if after_s is None else after_s)
    if (now - state.enqueued_at).total_seconds() + wait_s > policy.max_age_s:
        return DeadLetter(code, error)
    return RetryAt(now + timedelta(seconds=wait_s), code, error)


def describe_wait(wait: WaitFor, *, is_over: bool = False) -> str:
    """Return what a delivery waits for, until when and why; *is_over* says that it has not come."""
    until = wait.until.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    text = f"{wait.key} did not come until {until}" if is_over else f"waits for {wait.key} until {until}"
    return _clip(f"{text}: {wait.reason}" if wait.reason else text, MAX_NOTE)


def _wait(wait: WaitFor, now: datetime) -> Decision:
    if now < wait.until:
        return WaitUntil(wait.key, wait.until, _code(wait.code), describe_wait(wait))
    text = describe_wait(wait, is_over=True)
    return complete_ignored(text) if wait.on_timeout == "ignore" else DeadLetter(_code(wait.code), text)


def _apply_retry_after(
    decision: Decision, state: AttemptState, policy: RetryPolicy, now: datetime, asked_s: float | None
) -> Decision:
    if asked_s is None or not isinstance(decision, RetryAt):
        return decision
    planned_s = (decision.due_at - now).total_seconds()
    left_s = policy.max_age_s - (now - state.enqueued_at).total_seconds()
    wait_s = min(asked_s, max(_MAX_STRETCH * planned_s, _MIN_STRETCH_S), left_s)
    return decision if wait_s <= planned_s else replace(decision, due_at=now + timedelta(seconds=wait_s))


def _retry_free(
    state: AttemptState, policy: RetryPolicy, now: datetime, jitter: float, outcome: Interruption
) -> Decision:
    code, error = _code(outcome.code), _clip(outcome.error, MAX_NOTE)
    base_s = min(_OUTAGE_LONGEST_S, OUTAGE_FIRST_S * 2.0 ** min(state.free_retries, MAX_FREE_RETRIES))
    wait_s = base_s * (0.5 + jitter)
    age_s = (now - state.enqueued_at).total_seconds()
    if state.free_retries >= MAX_FREE_RETRIES or age_s + wait_s > policy.max_age_s:
        return DeadLetter(code, error)
    return RetryAt(now + timedelta(seconds=wait_s), code, error, is_free=True)


def _code(text: str) -> str:
    return _clip(text, MAX_CODE) or "UNKNOWN"


def _clip(text: str, longest: int) -> str:
    # PostgreSQL stores neither NUL nor lone surrogates in text.
    text = text.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode("utf-8")
    return text if len(text) <= longest else text[: longest - 1] + "…"


ErrorRule = type[BaseException] | Callable[[BaseException], bool]
"""Selects exceptions: a class, or a function that returns whether an exception is selected."""


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors of an exception group, or the error itself if it is none."""
    waiting = [error]
    while waiting:
        current = waiting.pop()
        if isinstance(current, BaseExceptionGroup):
            waiting += reversed(current.exceptions)
        else:
            yield current


def matches(error: BaseException, rules: Sequence[ErrorRule]) -> bool:
    """Return whether one of the rules selects an error; they select a group if they select each error in it.

    A function among the rules may raise.
    """
    return all(
        any(isinstance(leaf, rule) if isinstance(rule, type) else rule(leaf) for rule in rules)
        for leaf in leaves(error)
    )


class BreakerState(StrEnum):
    """The state of a circuit breaker."""

    CLOSED = "closed"
    OPEN = "open"
    PROBING = "probing"


class Breaker(msgspec.Struct, frozen=True, kw_only=True):
    """Circuit breaker: stops calling the handlers of a failing dependency, then probes it with single attempts.

    Handlers that name the same dependency share one breaker within a worker process.
    """

    dependency: str
    """The name of the dependency, such as ``crm``."""
    errors: tuple[ErrorRule, ...] = (ConnectionError, TimeoutError)
    """Exceptions that count as failures of the dependency; others do not affect the breaker. Classes, and functions
    that take an exception, such as those of `HTTP_DEFAULTS`."""
    failure_threshold: int = 5
    """Number of consecutive failures that open it."""
    pause_s: float = 10.0
    """Seconds that it stays open before the first probe; doubled after each failed probe."""
    max_pause_s: float = 300.0
    """Maximum seconds that it stays open."""


def is_failure_of(breaker: Breaker, error: BaseException) -> bool:
    """Return whether an error is a failure of a breaker's dependency; a function that raises says that it is not."""
    try:
        return matches(error, breaker.errors)
    except Exception:  # noqa: BLE001 - a user's function must not stop the worker
        return False


class BreakerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a breaker; `after` and `may_run` define its behavior."""

    failures: int = 0
    opened_at: datetime | None = None
    pauses: int = 0
    """Number of pauses since it was last closed."""

    def state(self, breaker: Breaker, now: datetime) -> BreakerState:
        """Return the breaker's state at *now*."""
        until = self.open_until(breaker)
        if until is None:
            return BreakerState.CLOSED
        return BreakerState.PROBING if now >= until else BreakerState.OPEN

    def open_until(self, breaker: Breaker) -> datetime | None:
        """Return when the next probe may start; None while the breaker is closed."""
        if self.opened_at is None:
            return None
        pause_s = min(breaker.max_pause_s, breaker.pause_s * 2 ** min(self.pauses - 1, 32))
        return self.opened_at + timedelta(seconds=pause_s)

    def may_run(self, breaker: Breaker, now: datetime, running: int) -> bool:
        """Return whether another attempt may start while *running* are in progress: one at a time when probing."""
        match self.state(breaker, now):
            case BreakerState.CLOSED:
                return True
            case BreakerState.PROBING:
                return running == 0
            case BreakerState.OPEN:
                return False

    def after(self, breaker: Breaker, error: BaseException | None, now: datetime) -> "BreakerStatus":
        """Return the status after an attempt that raised *error*; None means success."""
        if error is None:
            return BreakerStatus()
        if not is_failure_of(breaker, error):
            return self
        state = self.state(breaker, now)
        if state is BreakerState.OPEN:
            return self
        failures = self.failures + 1
        if state is BreakerState.PROBING or failures >= breaker.failure_threshold:
            return BreakerStatus(failures=failures, opened_at=now, pauses=self.pauses + 1)
        return BreakerStatus(failures=failures, opened_at=None, pauses=self.pauses)
