"""Windows of time over lists of ids: what is shown with which of cursor, before and after."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from boathook.domain import ids
from boathook.domain.windows import LONGEST, Cursor, Window, open_window, range_of

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
MS = timedelta(milliseconds=1)


def made(moment: datetime, entropy: int = 7) -> UUID:
    return ids.make((moment - datetime(1970, 1, 1, tzinfo=UTC)) // MS, entropy)


def holds(window: Window, moment: datetime) -> bool:
    return window.low <= made(moment) < window.high


def test_without_anything_the_last_90_days_and_a_little_of_the_future_are_shown():
    window = open_window(NOW)
    assert not window.is_upward
    assert holds(window, NOW)
    assert holds(window, NOW + timedelta(minutes=59))
    assert holds(window, NOW - LONGEST)
    assert not holds(window, NOW - LONGEST - MS)
    assert not holds(window, NOW + timedelta(hours=1))


def test_before_and_after_are_exclusive_to_the_millisecond():
    early, late = NOW - timedelta(days=2), NOW - timedelta(days=1)
    window = open_window(NOW, before=late, after=early)
    assert not window.is_upward
    assert not holds(window, early)
    assert holds(window, early + MS)
    assert holds(window, late - MS)
    assert not holds(window, late)


def test_every_millisecond_is_its_own_bound():
    for milliseconds in range(1000):
        moment = NOW - timedelta(days=3) + milliseconds * MS
        assert not holds(open_window(NOW, before=moment), moment)
        assert holds(open_window(NOW, before=moment + timedelta(microseconds=1)), moment)
        assert not holds(open_window(NOW, after=moment), moment)
        assert holds(open_window(NOW, after=moment - timedelta(microseconds=1)), moment)


def test_before_alone_looks_back_90_days_and_after_alone_ahead_as_many():
    moment = NOW - timedelta(days=200)
    back = open_window(NOW, before=moment)
    assert holds(back, moment - LONGEST)
    assert not holds(back, moment - LONGEST - MS)
    assert not back.is_upward
    ahead = open_window(NOW, after=moment)
    assert holds(ahead, moment + LONGEST)
    assert not holds(ahead, moment + LONGEST + 2 * MS)
    assert ahead.is_upward


def test_a_cursor_looks_90_days_from_its_own_time():
    old = made(NOW - timedelta(days=300))
    onward = open_window(NOW, cursor=Cursor(old))
    assert onward.high == old
    assert not onward.is_upward
    assert holds(onward, NOW - timedelta(days=390))
    assert not holds(onward, NOW - timedelta(days=391))
    back = open_window(NOW, cursor=Cursor(old, is_back=True))
    assert back.low.int == old.int + 1
    assert back.is_upward
    assert holds(back, NOW - timedelta(days=211))
    assert not holds(back, NOW - timedelta(days=209))


def test_a_cursor_stays_inside_before_and_after():
    early, late, place = (NOW - timedelta(days=days) for days in (9, 3, 5))
    onward = open_window(NOW, cursor=Cursor(made(place)), before=late, after=early)
    assert holds(onward, early + MS)
    assert not holds(onward, early)
    assert not holds(onward, place + MS)
    back = open_window(NOW, cursor=Cursor(made(place), is_back=True), before=late, after=early)
    assert holds(back, late - MS)
    assert not holds(back, late)
    assert not holds(back, place - MS)


@pytest.mark.parametrize("moment", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
def test_times_at_the_ends_of_the_calendar_are_no_surprise(moment: datetime):
    for window in (open_window(NOW, before=moment), open_window(NOW, after=moment), range_of(moment, moment)):
        assert window.low.int >= 0


@pytest.mark.parametrize("number", [0, (1 << 128) - 1])
def test_cursors_of_impossible_times_are_no_surprise(number: int):
    for is_back in (False, True):
        open_window(NOW, cursor=Cursor(UUID(int=number), is_back))
