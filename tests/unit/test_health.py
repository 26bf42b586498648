"""The health of handlers, endpoints and sources: one rule, over all combinations of its inputs."""

from datetime import UTC, datetime, timedelta
from itertools import product

import pytest

from boathook.domain.health import AttemptResults, Health, HealthState, judge_health

T = datetime(2026, 1, 1, tzinfo=UTC)
RESULTS = {
    (0, 0, False): HealthState.IDLE,
    (3, 0, False): HealthState.HEALTHY,
    (0, 1, True): HealthState.FAILING,
    (0, 9, True): HealthState.FAILING,
    (3, 1, True): HealthState.FAILING,  # exactly the threshold
    (301, 100, True): HealthState.HEALTHY,  # just below it
    (9, 1, True): HealthState.HEALTHY,
    (1, 9, True): HealthState.FAILING,
    (1, 9, False): HealthState.HEALTHY,  # the newest succeeded
    (0, 9, False): HealthState.HEALTHY,  # no such rows exist: the newest is one of these
}


@pytest.mark.parametrize(
    ("is_registered", "is_disabled", "is_paused", "results"),
    list(product([True, False], [True, False], [True, False], RESULTS)),
)
def test_the_first_state_that_applies_is_the_health(
    is_registered: bool, is_disabled: bool, is_paused: bool, results: tuple[int, int, bool]
) -> None:
    found = judge_health(
        AttemptResults(*results),
        0.25,
        is_registered=is_registered,
        is_disabled=is_disabled,
        is_paused=is_paused,
        paused_until=T if is_paused else None,
    )
    if not is_registered:
        assert found == Health(HealthState.NOT_REGISTERED)
    elif is_disabled:
        assert found == Health(HealthState.DISABLED)
    elif is_paused:
        assert found == Health(HealthState.PAUSED, T)
    else:
        assert found == Health(RESULTS[results])


def test_the_states_are_listed_in_their_order() -> None:
    assert [str(state) for state in HealthState] == [
        "not registered", "disabled", "paused", "failing", "idle", "healthy",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("until", "text"),
    [
        (T + timedelta(seconds=246), "paused, next probe in 246 s"),
        (T - timedelta(seconds=1), "paused, the next probe is due"),
        (None, "paused"),
    ],
)
def test_a_pause_says_when_the_next_probe_goes(until: datetime | None, text: str) -> None:
    assert Health(HealthState.PAUSED, until).pause_text(T) == text
