"""Time windows over lists of ids, with cursor, before and after."""

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from boathook.domain import ids, windows
from boathook.domain.windows import (
    LATEST_COMMIT,
    MAX_WINDOW,
    Cursor,
    Window,
    after_message,
    open_window,
    range_of,
    resume_at,
)
from tests.support import examples

NOW = datetime(2026, 5, 1, 12, 0, 0, tzinfo=UTC)
MS = timedelta(milliseconds=1)
US = timedelta(microseconds=1)


def made(moment: datetime, entropy: int = 7) -> UUID:
    return ids.make((moment - datetime(1970, 1, 1, tzinfo=UTC)) // MS, entropy)


def holds(window: Window, moment: datetime) -> bool:
    return window.low <= made(moment) < window.high


def test_the_default_window_is_90_days_and_an_hour_ahead():
    window = open_window(NOW)
    assert not window.is_upward
    assert holds(window, NOW)
    assert holds(window, NOW + timedelta(minutes=59))
    assert holds(window, NOW - MAX_WINDOW)
    assert not holds(window, NOW - MAX_WINDOW - MS)
    assert not holds(window, NOW + timedelta(hours=1))


def test_after_is_inclusive_and_before_is_exclusive():
    early, late = NOW - timedelta(days=2), NOW - timedelta(days=1)
    window = open_window(NOW, before=late, after=early)
    assert not window.is_upward
    assert not holds(window, early - MS)
    assert holds(window, early)
    assert holds(window, late - MS)
    assert not holds(window, late)


def test_every_millisecond_is_its_own_bound():
    for milliseconds in range(1000):
        moment = NOW - timedelta(days=3) + milliseconds * MS
        assert not holds(open_window(NOW, before=moment), moment)
        assert holds(open_window(NOW, before=moment + US), moment)
        assert holds(open_window(NOW, after=moment), moment)
        assert not holds(open_window(NOW, after=moment + US), moment)


MOMENTS = st.integers(0, 40_000).map(lambda us: NOW - timedelta(days=3) + us * US)
CUTS = st.lists(MOMENTS, min_size=2, max_size=8).map(sorted)


def rows_between(cuts: list[datetime], rows: list[UUID]) -> tuple[list[UUID], list[UUID]]:
    """Return the rows of one window from the first cut to the last, and those of all windows between cuts in turn."""
    whole = open_window(NOW, after=cuts[0], before=cuts[-1])
    parts = [open_window(NOW, after=since, before=until) for since, until in pairwise(cuts)]
    return rows_in(whole, rows), [row for part in parts for row in rows_in(part, rows)]


def rows_in(window: Window, rows: list[UUID]) -> list[UUID]:
    return [row for row in rows if window.low <= row < window.high]


@settings(max_examples=examples(500))
@given(CUTS, st.lists(MOMENTS, max_size=40))
def test_adjacent_windows_share_no_row_and_miss_none(cuts: list[datetime], moments: list[datetime]):
    rows = sorted(made(moment, entropy) for entropy, moment in enumerate(moments))
    whole, parts = rows_between(cuts, rows)
    assert whole == parts
    assert whole == [row for row in rows if cuts[0] <= ids.created_at(row) < cuts[-1]]
    ranges = [range_of(since, until) for since, until in pairwise(cuts)]
    assert whole == [row for window in ranges for row in rows_in(window, rows)]


def test_with_an_exclusive_start_windows_that_meet_would_lose_rows(monkeypatch: pytest.MonkeyPatch):
    """The mutant: rows of the start's millisecond are in no window."""
    rows = [made(NOW - timedelta(days=3) + number * MS) for number in range(40)]
    cuts = [NOW - timedelta(days=3) + number * 10 * MS for number in range(5)]
    bound = windows.first_from

    def open_exclusive(now: datetime, *, before: datetime, after: datetime) -> Window:
        return Window(bound(after + MS), bound(before))

    monkeypatch.setitem(globals(), "open_window", open_exclusive)
    _, parts = rows_between(cuts, rows)
    assert len(parts) == 36


def test_a_window_with_both_ends_is_not_shortened():
    window = open_window(NOW, after=NOW - timedelta(days=300), before=NOW)
    assert holds(window, NOW - timedelta(days=300))


def test_before_alone_spans_90_days_and_after_alone_ends_now():
    moment = NOW - timedelta(days=200)
    back = open_window(NOW, before=moment)
    assert holds(back, moment - MAX_WINDOW)
    assert not holds(back, moment - MAX_WINDOW - MS)
    assert not back.is_upward
    ahead = open_window(NOW, after=moment)
    assert holds(ahead, NOW)
    assert ahead.is_upward


def test_a_cursor_spans_90_days_back_or_forward_to_now():
    old = made(NOW - timedelta(days=300))
    onward = open_window(NOW, cursor=Cursor(old))
    assert onward.high == old
    assert not onward.is_upward
    assert holds(onward, NOW - timedelta(days=390))
    assert not holds(onward, NOW - timedelta(days=391))
    back = open_window(NOW, cursor=Cursor(old, is_back=True))
    assert back.low.int == old.int + 1
    assert back.is_upward
    assert holds(back, NOW)


def test_a_reader_resumes_where_late_rows_may_appear():
    old, young = made(NOW - timedelta(days=1)), made(NOW - timedelta(seconds=1))
    assert resume_at(old, NOW) == old
    assert ids.created_at(resume_at(young, NOW)) == NOW - LATEST_COMMIT


def test_after_message_allows_for_clock_skew():
    window = after_message(made(NOW), NOW)
    assert holds(window, NOW - timedelta(minutes=59))
    assert holds(window, NOW + timedelta(minutes=59))


def test_a_cursor_stays_inside_before_and_after():
    early, late, place = (NOW - timedelta(days=days) for days in (9, 3, 5))
    onward = open_window(NOW, cursor=Cursor(made(place)), before=late, after=early)
    assert holds(onward, early)
    assert not holds(onward, early - MS)
    assert not holds(onward, place + MS)
    back = open_window(NOW, cursor=Cursor(made(place), is_back=True), before=late, after=early)
    assert holds(back, late - MS)
    assert not holds(back, late)
    assert not holds(back, place - MS)


@pytest.mark.parametrize("moment", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
def test_times_at_the_ends_of_the_calendar_are_handled(moment: datetime):
    for window in (open_window(NOW, before=moment), open_window(NOW, after=moment), range_of(moment, moment)):
        assert window.low.int >= 0


@pytest.mark.parametrize("number", [0, (1 << 128) - 1])
def test_cursors_with_impossible_times_are_handled(number: int):
    for is_back in (False, True):
        open_window(NOW, cursor=Cursor(UUID(int=number), is_back))
