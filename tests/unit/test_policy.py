"""Properties of the one decision: what follows an attempt."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from boathook.domain.policy import (
    CONNECTION_LOST,
    MAX_FREE_RETRIES,
    AttemptState,
    Breaker,
    BreakerState,
    BreakerStatus,
    Complete,
    Dead,
    DeadLetter,
    Failure,
    Ignore,
    Interruption,
    Retry,
    RetryAt,
    RetryPolicy,
    Success,
    WaitFor,
    WaitUntil,
    decide,
)

START = datetime(2026, 1, 1, tzinfo=UTC)

seconds = st.floats(0, 100_000, allow_nan=False)
jitter = st.floats(0, 1, exclude_max=True)
exponential = st.builds(
    RetryPolicy,
    first_s=st.floats(0, 1_000),
    factor=st.floats(1, 10),
    max_delay_s=st.floats(0, 10_000),
    jitter=st.floats(0, 1, exclude_max=True),
    max_attempts=st.integers(1, 30),
    max_age_s=seconds,
)
listed = st.builds(
    RetryPolicy,
    delays_s=st.lists(st.floats(0, 1_000), max_size=20).map(tuple),
    jitter=st.floats(0, 1, exclude_max=True),
    max_age_s=seconds,
)
policies = exponential | listed
failures = st.builds(
    Failure,
    code=st.text(max_size=200),
    error=st.text(max_size=3_000),
    is_final=st.booleans(),
    retry_after_s=st.none() | st.floats(0, 1_000_000),
)
retries = st.builds(Retry, after=st.none() | st.floats(-10, 1_000_000), code=st.text(max_size=200))
interruptions = st.builds(Interruption, error=st.text(max_size=3_000))
unsuccessful = failures | retries | st.builds(Dead, st.text(max_size=200), st.text(max_size=3_000))


@given(policy=policies, outcome=unsuccessful, jitter=jitter)
def test_attempts_never_exceed_the_maximum(policy: RetryPolicy, outcome: Failure, jitter: float) -> None:
    now, attempt = START, 0
    while True:
        attempt += 1
        assert attempt <= policy.max_attempts
        move = decide(AttemptState(attempt=attempt, enqueued_at=START), outcome, policy, now, jitter)
        if isinstance(move, DeadLetter):
            break
        assert isinstance(move, RetryAt)
        now = move.due_at


@given(policy=policies, outcome=interruptions, jitter=jitter, attempt=st.integers(1, 30))
def test_lost_connections_get_a_limited_number_of_free_retries(
    policy: RetryPolicy, outcome: Interruption, jitter: float, attempt: int
) -> None:
    assume(attempt <= policy.max_attempts)
    now, free_retries = START, 0
    while True:
        standing = AttemptState(attempt=attempt, enqueued_at=START, free_retries=free_retries)
        move = decide(standing, outcome, policy, now, jitter)
        assert isinstance(move, RetryAt | DeadLetter)
        assert move.code == CONNECTION_LOST
        if isinstance(move, DeadLetter):
            break
        assert move.is_free
        assert 0.5 <= (move.due_at - now).total_seconds() < 90.001
        now, free_retries = move.due_at, free_retries + 1
    assert free_retries <= MAX_FREE_RETRIES
    if policy.max_age_s >= 2_000:
        assert free_retries == MAX_FREE_RETRIES, "the policy's few attempts must not matter"


@given(policy=policies, outcome=unsuccessful, jitter=jitter)
def test_only_a_lost_connection_is_excused(policy: RetryPolicy, outcome: Failure, jitter: float) -> None:
    move = decide(AttemptState(attempt=1, enqueued_at=START), outcome, policy, START, jitter)
    assert not (isinstance(move, RetryAt) and move.is_free)


@given(policy=policies, outcome=unsuccessful | interruptions, jitter=jitter, age_s=seconds, attempt=st.integers(1, 30))
def test_no_attempt_is_planned_past_the_maximum_age_or_in_the_past(
    policy: RetryPolicy, outcome: Failure, jitter: float, age_s: float, attempt: int
) -> None:
    assume(attempt <= policy.max_attempts)
    now = START + timedelta(seconds=age_s)
    move = decide(AttemptState(attempt=attempt, enqueued_at=START), outcome, policy, now, jitter)
    if isinstance(move, RetryAt):
        assert now <= move.due_at <= START + timedelta(seconds=policy.max_age_s, microseconds=1)


@given(policy=exponential, jitter=jitter, attempt=st.integers(1, 30))
def test_jitter_stays_within_its_share(policy: RetryPolicy, jitter: float, attempt: int) -> None:
    plain = min(policy.max_delay_s, policy.first_s * policy.factor ** (attempt - 1))
    wait = policy.wait_s(attempt, jitter)
    assert plain * (1 - policy.jitter) * 0.999999 <= wait <= plain * (1 + policy.jitter) * 1.000001


@given(policy=exponential, attempt=st.integers(1, 10_000))
def test_waits_never_shrink_with_equal_luck(policy: RetryPolicy, attempt: int) -> None:
    assert policy.wait_s(attempt, 0.5) <= policy.wait_s(attempt + 1, 0.5)


@given(policy=policies, outcome=unsuccessful | interruptions, jitter=jitter, age_s=seconds, attempt=st.integers(1, 30))
def test_stored_errors_fit_the_database(
    policy: RetryPolicy, outcome: Failure, jitter: float, age_s: float, attempt: int
) -> None:
    assume(attempt <= policy.max_attempts)
    now = START + timedelta(seconds=age_s)
    move = decide(AttemptState(attempt=attempt, enqueued_at=START), outcome, policy, now, jitter)
    assert isinstance(move, RetryAt | DeadLetter)
    assert 1 <= len(move.code) <= 100
    assert len(move.error) <= 2_000
    for text in (move.code, move.error):
        assert "\x00" not in text
        text.encode()


@given(policy=policies, attempt=st.integers(1, 99), jitter=jitter, reason=st.text())
def test_success_and_ignore_complete_under_any_policy(
    policy: RetryPolicy, attempt: int, jitter: float, reason: str
) -> None:
    standing = AttemptState(attempt=attempt, enqueued_at=START)
    assert decide(standing, Success(), policy, START, jitter) == Complete()
    ignored = decide(standing, Ignore(reason), policy, START, jitter)
    assert isinstance(ignored, Complete)
    assert ignored.ignored_because


@pytest.mark.parametrize(
    ("planned_s", "asked_s", "waits_s"),
    [
        (60.0, 10.0, 60.0),  # never sooner than planned
        (60.0, 1_200.0, 1_200.0),
        (60.0, 86_400.0, 3_600.0),  # an hour at most, where that is longer than twice the planned wait
        (7_200.0, 86_400.0, 14_400.0),
        (90_000.0, 1_000_000.0, 100_000.0),  # not past the maximum age
    ],
)
def test_retry_after_extends_the_delay_within_bounds(planned_s: float, asked_s: float, waits_s: float) -> None:
    policy = RetryPolicy(delays_s=(planned_s,), jitter=0.0, max_age_s=100_000.0)
    failure = Failure(code="HTTP_429", error="too many", retry_after_s=asked_s)
    move = decide(AttemptState(attempt=1, enqueued_at=START), failure, policy, START, 0.5)
    assert isinstance(move, RetryAt)
    assert (move.due_at - START).total_seconds() == waits_s


def test_retry_after_adds_no_attempt() -> None:
    failure = Failure(code="HTTP_429", error="too many", retry_after_s=5.0)
    move = decide(AttemptState(attempt=1, enqueued_at=START), failure, RetryPolicy(delays_s=()), START, 0.5)
    assert move == DeadLetter("HTTP_429", "too many")


def test_the_default_waits_are_those_documented() -> None:
    policy = RetryPolicy()
    assert [policy.wait_s(attempt, 0.5) for attempt in (1, 2, 3, 4)] == [1, 2, 4, 8]
    assert (policy.max_attempts, policy.max_age_s) == (5, 900)


def test_a_list_of_delays_sets_the_number_of_attempts() -> None:
    policy = RetryPolicy(delays_s=(5.0, 60.0))
    assert policy.max_attempts == 3
    assert [policy.wait_s(attempt, 0.5) for attempt in (1, 2)] == [5, 60]


@pytest.mark.parametrize(
    ("key", "value"),
    [("first_s", -1), ("max_delay_s", -1), ("max_age_s", -1), ("max_attempts", 0), ("jitter", 1), ("factor", 0.5),
     ("delays_s", (-1,))],
)  # fmt: skip
def test_an_impossible_policy_is_refused_by_name(key: str, value: object) -> None:
    with pytest.raises(ValueError, match=key):
        RetryPolicy(**{key: value})


BREAKER = Breaker(dependency="crm", failure_threshold=3, pause_s=10, max_pause_s=35)


def fail(standing: BreakerStatus, times: int, at: datetime) -> BreakerStatus:
    for _ in range(times):
        standing = standing.after(BREAKER, ConnectionError(), at)
    return standing


def test_a_breaker_opens_probes_one_at_a_time_and_closes() -> None:
    standing = fail(BreakerStatus(), 2, START)
    assert standing.may_run(BREAKER, START, 99)
    standing = fail(standing, 1, START)
    assert standing.state(BREAKER, START) is BreakerState.OPEN
    assert not standing.may_run(BREAKER, START, 0)
    later = START + timedelta(seconds=10)
    assert standing.open_until(BREAKER) == later
    assert standing.state(BREAKER, later) is BreakerState.PROBING
    assert standing.may_run(BREAKER, later, 0)
    assert not standing.may_run(BREAKER, later, 1)
    closed = standing.after(BREAKER, None, later)
    assert closed.state(BREAKER, later) is BreakerState.CLOSED
    assert closed.open_until(BREAKER) is None


def test_each_failed_probe_doubles_the_pause_up_to_the_longest() -> None:
    standing, now, pauses = fail(BreakerStatus(), 3, START), START, []
    for _ in range(4):
        pause = next(s for s in range(1, 100) if standing.may_run(BREAKER, now + timedelta(seconds=s), 0))
        pauses.append(pause)
        now += timedelta(seconds=pause)
        standing = fail(standing, 1, now)
    assert pauses == [10, 20, 35, 35]


@given(st.lists(st.sampled_from([ConnectionError(), TimeoutError(), ValueError(), None]), max_size=50))
def test_only_the_dependencys_own_errors_open_a_breaker(errors: list[BaseException | None]) -> None:
    standing, streak = BreakerStatus(), 0
    for error in errors:
        standing = standing.after(BREAKER, error, START)
        streak = 0 if error is None else streak + (not isinstance(error, ValueError))
        if streak >= 3:
            assert standing.state(BREAKER, START) is BreakerState.OPEN
            return
        assert standing.state(BREAKER, START) is BreakerState.CLOSED


class TestWaitFor:
    @given(
        policies, st.integers(1, 40), st.floats(-1e6, 1e6), st.text(max_size=3_000), st.sampled_from(["dead", "ignore"])
    )
    def test_it_waits_until_its_time_whatever_the_policy_and_then_ends_as_declared(
        self, policy: RetryPolicy, attempt: int, left_s: float, reason: str, on_timeout: str
    ):
        now = START + timedelta(days=400)
        wait = WaitFor("key", now + timedelta(seconds=left_s), reason, "MISSING", on_timeout)
        state = AttemptState(attempt=attempt, enqueued_at=START)
        match decide(state, wait, policy, now, 0.5):
            case WaitUntil() as decision:
                assert wait.until > now
                assert (decision.key, decision.until, decision.code) == ("key", wait.until, "MISSING")
                assert decision.error.startswith("waits for key until 202")
                assert len(decision.error) <= 2_000
            case DeadLetter(code=code, error=error):
                assert (on_timeout, code, wait.until <= now) == ("dead", "MISSING", True)
                assert error.startswith("key did not come until 202")
            case Complete(ignored_because=note):
                assert (on_timeout, wait.until <= now) == ("ignore", True)
                assert note is not None
            case decision:
                raise AssertionError(decision)
