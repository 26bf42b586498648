"""Which part of a list of ids a page shows: ids carry their time, so a window of time is a range of ids.

Lists are shown newest first. A cursor is the id of a row: a page goes on behind it, towards older rows, or in front of
it, towards newer ones. The rules are those of Svix's API, whose lists never look further than 90 days at once.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from boathook.domain import ids

LONGEST: Final = timedelta(days=90)
_AHEAD: Final = timedelta(hours=1)
"""Clocks of several hosts differ; rows of the near future are shown."""
_MILLISECOND: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Final = _EPOCH + LONGEST
_LAST: Final = datetime(9000, 1, 1, tzinfo=UTC)
_MOST_MS: Final = (_LAST - _EPOCH) // _MILLISECOND


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a page begins: next to the row with this id."""

    id: UUID
    is_back: bool = False
    """Whether the page leads back, to the rows in front of this one, which are newer."""


@dataclass(frozen=True, slots=True)
class Window:
    """A range of ids."""

    low: UUID
    """Inclusive."""
    high: UUID
    """Exclusive."""
    is_upward: bool = False
    """Whether a page of it is filled from `low` upwards rather than from `high` downwards."""


def open_window(
    now: datetime, *, cursor: Cursor | None = None, before: datetime | None = None, after: datetime | None = None
) -> Window:
    """Return the window that a request names; both times are exclusive.

    Without either it ends at *now*, or at the cursor. With `after` alone and no cursor the page is filled upwards.
    """
    low, high = _times(now, cursor, before, after)
    low_id, high_id = ids.first_of(low), ids.first_of(min(high, now + _AHEAD))
    if cursor is None:
        return Window(low_id, high_id, is_upward=after is not None and before is None)
    if cursor.is_back:
        return Window(max(low_id, _successor(cursor.id)), high_id, is_upward=True)
    return Window(low_id, min(high_id, cursor.id))


def range_of(since: datetime, until: datetime) -> Window:
    """Return the ids made from *since*, inclusive, to *until*, exclusive, to be walked from the oldest."""
    return Window(ids.first_of(_sane(since)), ids.first_of(_sane(until)), is_upward=True)


def _times(
    now: datetime, cursor: Cursor | None, before: datetime | None, after: datetime | None
) -> tuple[datetime, datetime]:
    # Ids know milliseconds only: one made in the millisecond of `after` is not after it as far as can be told.
    start = None if after is None else _floor(_sane(after)) + _MILLISECOND
    end = None if before is None else _floor(_sane(before) + _MILLISECOND - timedelta(microseconds=1))
    if start is not None and end is not None:
        return max(start, end - LONGEST), end
    if end is not None:
        return end - LONGEST, end
    if start is not None:
        return start, start + LONGEST
    if cursor is None:
        return now - LONGEST, now + _AHEAD
    made = _made_at(cursor.id)
    return (made, made + LONGEST) if cursor.is_back else (made - LONGEST, now + _AHEAD)


def _made_at(identifier: UUID) -> datetime:
    # A cursor is a stranger's word: it may claim a time that no calendar has.
    return _sane(_EPOCH + min(identifier.int >> 80, _MOST_MS) * _MILLISECOND)


def _sane(moment: datetime) -> datetime:
    return min(max(moment, _FIRST), _LAST)


def _floor(moment: datetime) -> datetime:
    return _EPOCH + (moment - _EPOCH) // _MILLISECOND * _MILLISECOND


def _successor(identifier: UUID) -> UUID:
    return UUID(int=min(identifier.int + 1, (1 << 128) - 1))
