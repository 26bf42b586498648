"""Alert states: delays before firing and recovering, and no other transitions."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from boathook.domain.alerts import AlertDelays, AlertState, AlertStatus, Reading, Silence, matches_pattern, transition

START = datetime(2026, 1, 1, tzinfo=UTC)
HIGH = Reading("a", 9.0, is_raised=True, is_held=True)
HALF = Reading("a", 5.0, is_raised=False, is_held=True)
LOW = Reading("a", 1.0, is_raised=False, is_held=False)
PATIENT = AlertDelays(for_s=30, clear_s=60)


def apply_readings(readings, delays, step_s=10):
    """Return the states after each reading, one every *step_s* seconds."""
    status, states = None, []
    for number, reading in enumerate(readings):
        status = transition(status, reading, delays, START + timedelta(seconds=step_s * number))
        states.append(status.state.value if status else None)
        if status is not None and status.state is AlertState.RECOVERED:
            status = None
    return states


def test_it_fires_only_once_the_condition_has_held_long_enough():
    assert apply_readings([HIGH] * 5, PATIENT) == ["pending", "pending", "pending", "firing", "firing"]
    assert apply_readings([HIGH], AlertDelays(0, 0)) == ["firing"]


def test_a_condition_that_ceases_in_time_is_no_alert():
    assert apply_readings([HIGH, HIGH, LOW, HIGH, HIGH], PATIENT) == ["pending", "pending", None, "pending", "pending"]


def test_it_recovers_only_once_the_condition_has_ceased_long_enough():
    states = apply_readings([HIGH] * 4 + [LOW] * 8, PATIENT)
    assert states[4:] == ["clearing"] * 6 + ["recovered", None]


def test_a_flapping_condition_is_one_alert():
    flapping = apply_readings([HIGH] * 4 + [LOW, HIGH] * 20, PATIENT)
    assert flapping.count("recovered") == 0
    assert (
        apply_readings([HIGH] * 4 + [LOW, HIGH] * 20, AlertDelays(0, 0)).count("recovered") == 20
    )  # without patience, it is many


def test_between_the_thresholds_the_alert_state_does_not_change():
    assert apply_readings([HALF, HALF], AlertDelays(0, 0)) == [None, None]
    assert apply_readings([HIGH, HALF, HALF], AlertDelays(0, 0)) == ["firing", "firing", "firing"]


def test_a_missing_subject_recovers():
    assert apply_readings([HIGH, None, None], AlertDelays(0, 10)) == ["firing", "clearing", "recovered"]


@given(st.lists(st.sampled_from([HIGH, HALF, LOW, None]), max_size=60), st.integers(0, 60), st.integers(0, 60))
def test_it_never_recovers_without_having_fired(readings, for_s, clear_s):
    states = apply_readings(readings, AlertDelays(for_s, clear_s))
    for before, after in zip([None, *states], states, strict=False):
        assert after != "recovered" or before in {"firing", "clearing"}
        assert after != "clearing" or before in {"firing", "clearing"}


def test_its_value_is_the_latest():
    status = transition(AlertStatus(AlertState.FIRING, START, 3.0), HIGH, PATIENT, START)
    assert status == AlertStatus(AlertState.FIRING, START, 9.0)


@pytest.mark.parametrize(
    ("pattern", "text", "is_fit"),
    [
        ("*", "", True),
        ("*", "handler:pay", True),
        ("handler:*", "handler:pay", True),
        ("handler:*", "endpoint", False),
        ("*pay", "handler:pay", True),
        ("a*b*c", "a-b-c", True),
        ("a*b*c", "a-c", False),
        ("ab*ba", "aba", False),
        ("a.b", "a+b", False),
        ("", "x", False),
    ],
)
def test_patterns_of_silences(pattern, text, is_fit):
    assert matches_pattern(pattern, text) is is_fit
    assert Silence("*", pattern, START + timedelta(seconds=1)).covers("any", text, START) is is_fit


def test_a_silence_covers_until_its_end():
    silence = Silence("*", "*", START)
    assert not silence.covers("any", "thing", START)
    assert silence.covers("any", "thing", START - timedelta(seconds=1))
