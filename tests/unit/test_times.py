"""Times written by users are parsed, or rejected with an example of what to write."""

from datetime import UTC, datetime, timedelta

import pytest

from boathook.domain.errors import InvalidValue
from boathook.domain.windows import parse_duration, parse_time

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("text", "gone"),
    [
        ("90s", timedelta(seconds=90)),
        ("2h", timedelta(hours=2)),
        ("7 d", timedelta(days=7)),
        ("3w", timedelta(weeks=3)),
    ],
)
def test_so_long_ago(text, gone):
    assert parse_time(text, NOW) == NOW - gone


def test_a_very_old_duration_is_clamped():
    assert parse_time("999999999w", NOW).year == 1976


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("2026-01-31", datetime(2026, 1, 31, tzinfo=UTC)),
        ("2026-01-31T12:00", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00:00Z", datetime(2026, 1, 31, 12, tzinfo=UTC)),
        ("2026-01-31T12:00+02:00", datetime(2026, 1, 31, 10, tzinfo=UTC)),
        ("1970-01-01T00:00+14:00", datetime(1970, 1, 1, tzinfo=UTC)),
    ],
)
def test_a_time_without_a_zone_is_utc(text, moment):
    assert parse_time(text, NOW) == moment


@pytest.mark.parametrize("text", ["", "soon", "2x", "-2h", "2026-13-01", "1969-12-31", "9999-12-31T23:59-12:00"])
def test_an_invalid_time_is_refused_at_its_field(text):
    with pytest.raises(InvalidValue) as caught:
        parse_time(text, NOW, "since")
    assert caught.value.where == ("since",)


@pytest.mark.parametrize(("text", "seconds"), [("90s", 90), ("2h", 7_200), (" 7 d ", 604_800), ("1w", 604_800)])
def test_lengths_of_time(text, seconds):
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "soon", "-1d", "1y", "2026-01-01", "1d2h"])
def test_an_invalid_duration_is_refused_with_an_example(text):
    with pytest.raises(InvalidValue, match="use 90s, 2h, 7d or 1w"):
        parse_duration(text)
