"""Parses times and durations, and computes the time window of a list page.

A window includes its start and excludes its end, so adjacent windows neither overlap nor leave gaps. Lists are shown
newest first. A cursor is the id of a row; a page continues after it (older rows) or before it (newer rows). Without a
lower bound a list covers 90 days, as in Svix's API.
"""

import re
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec

from boathook.domain import ids
from boathook.domain.errors import InvalidValue

_AGO: Final = re.compile(r"(\d{1,9})\s*([smhdw])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_MAX_AGO_S: Final = 50 * 365 * 86_400
_FIRST_YEAR: Final = 1970
_LAST_YEAR: Final = 9000
_BEGINNING: Final = datetime(_FIRST_YEAR, 1, 1, tzinfo=UTC)
"""In time zones east of Greenwich, the first hours of that year are before it."""


def parse_time(text: str, now: datetime, *location: str) -> datetime:
    """Parse a time: ISO 8601 (UTC by default), or a duration before *now*, such as ``90s``, ``2h``, ``7d``.

    Args:
        location: the field that contains it, for the error.

    Raises:
        InvalidValue: *text* is not a time, or an id cannot represent it.
    """
    if match := _AGO.fullmatch(text):
        return now - timedelta(seconds=min(int(match[1]) * _UNITS[match[2]], _MAX_AGO_S))
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValue(f"invalid time {text!r}; use 2h, 7d or 2026-01-31T12:00", *location) from None
    time = time if time.tzinfo else time.replace(tzinfo=UTC)
    if not _FIRST_YEAR <= time.year < _LAST_YEAR:
        raise InvalidValue(f"{text!r} is not between {_FIRST_YEAR} and {_LAST_YEAR}", *location)
    return max(time, _BEGINNING)


def parse_duration(text: str, *location: str) -> float:
    """Parse a duration such as ``90s``, ``2h`` or ``7d``, and return its seconds.

    Args:
        location: the field that contains it, for the error.

    Raises:
        InvalidValue: *text* is not a duration.
    """
    match = _AGO.fullmatch(text.strip())
    if match is None:
        raise InvalidValue(f"invalid duration {text!r}; use 90s, 2h, 7d or 1w", *location)
    return float(int(match[1]) * _UNITS[match[2]])


MAX_WINDOW: Final = timedelta(days=90)
LATEST_COMMIT: Final = timedelta(minutes=2)
"""Maximum delay between the time in an id and the commit of its row. Ids are created before commits, and an attempt's
id before its request."""
_AHEAD: Final = timedelta(hours=1)
"""Clocks of several hosts differ, so rows of the near future are shown."""
_MILLISECOND: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Final = _EPOCH + MAX_WINDOW
_LAST: Final = datetime(9000, 1, 1, tzinfo=UTC)
_MAX_MS: Final = (_LAST - _EPOCH) // _MILLISECOND


class Cursor(msgspec.Struct, frozen=True):
    """The row next to which a page begins."""

    id: UUID
    is_back: bool = False
    """Whether the page contains newer rows, before this one."""


class Window(msgspec.Struct, frozen=True):
    """A range of ids."""

    low: UUID
    """Inclusive."""
    high: UUID
    """Exclusive."""
    is_upward: bool = False
    """Whether a page is filled from `low` upwards instead of from `high` downwards."""


def open_window(
    now: datetime, *, cursor: Cursor | None = None, before: datetime | None = None, after: datetime | None = None
) -> Window:
    """Return the window of a request: from *after* (inclusive) to *before* (exclusive).

    Without *before* it ends one hour after *now*, or at the cursor. Without *after* it begins 90 days before its end,
    or at a cursor that leads back. With only *after* and no cursor, the page is filled upwards.
    """
    end = now if before is None else min(clamp(before), now)
    high = first_from(now + _AHEAD if before is None else min(clamp(before), now + _AHEAD))
    low = None if after is None else first_from(after)
    if cursor is None:
        return Window(low or first_from(end - MAX_WINDOW), high, is_upward=after is not None and before is None)
    if cursor.is_back:
        return Window(max(low or cursor.id, _successor(cursor.id)), high, is_upward=True)
    return Window(low or first_from(_created_at(cursor.id) - MAX_WINDOW), min(high, cursor.id))


def range_of(since: datetime, until: datetime) -> Window:
    """Return the ids created from *since* (inclusive) to *until* (exclusive), oldest first."""
    return Window(first_from(since), first_from(until), is_upward=True)


def after_message(message_id: UUID, now: datetime) -> Window:
    """Return the ids that objects of a message can have, including the clock differences between hosts."""
    return Window(first_from(_created_at(message_id) - _AHEAD), first_from(now + _AHEAD))


def resume_at(last: UUID, now: datetime) -> UUID:
    """Return the id at which a reader that has seen everything up to *last* can continue later.

    Rows after it may be read twice, because rows can still appear in between.
    """
    return min(last, first_from(now - LATEST_COMMIT))


def first_from(time: datetime) -> UUID:
    """Return the lower bound of ids created at *time* or later."""
    # Ids have millisecond precision: an id created within the millisecond of a bound sorts before the bound.
    return ids.first_of(_EPOCH - (_EPOCH - clamp(time)) // _MILLISECOND * _MILLISECOND)


def _created_at(identifier: UUID) -> datetime:
    # A cursor is untrusted input: its time may be outside of the calendar's range.
    return clamp(_EPOCH + min(identifier.int >> 80, _MAX_MS) * _MILLISECOND)


def clamp(time: datetime) -> datetime:
    """Return the nearest time that a window can begin or end at."""
    return min(max(time, _FIRST), _LAST)


def _successor(identifier: UUID) -> UUID:
    return UUID(int=min(identifier.int + 1, (1 << 128) - 1))
