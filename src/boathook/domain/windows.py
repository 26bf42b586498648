"""Reads times and durations, and opens the window of time that a page of a list shows.

A window begins with its start and ends before its end, so windows that meet share no row and miss none. Lists are shown
newest first. A cursor is the id of a row: a page goes on behind it, towards older rows, or in front of it, towards
newer ones. Where nothing bounds a list downwards it looks 90 days back, as Svix's API does.
"""

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from boathook.domain import ids
from boathook.domain.errors import InvalidValue

_AGO: Final = re.compile(r"(\d{1,9})\s*([smhdw])")
_UNITS: Final = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_LONGEST_AGO_S: Final = 50 * 365 * 86_400
_FIRST_YEAR: Final = 1970
_LAST_YEAR: Final = 9000
_BEGINNING: Final = datetime(_FIRST_YEAR, 1, 1, tzinfo=UTC)
"""Where it is east of Greenwich, the first hours of that year are before it."""


def parse_time(text: str, now: datetime, *where: str) -> datetime:
    """Read a moment: ISO 8601 (UTC unless it says otherwise), or so long before *now*, such as ``90s``, ``2h``, ``7d``.

    Args:
        where: the field that holds it, for the error.

    Raises:
        InvalidValue: it is no moment, or one that no id tells of.
    """
    if found := _AGO.fullmatch(text):
        return now - timedelta(seconds=min(int(found[1]) * _UNITS[found[2]], _LONGEST_AGO_S))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValue(f"invalid time {text!r}; use 2h, 7d or 2026-01-31T12:00", *where) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    if not _FIRST_YEAR <= moment.year < _LAST_YEAR:
        raise InvalidValue(f"{text!r} is not between {_FIRST_YEAR} and {_LAST_YEAR}", *where)
    return max(moment, _BEGINNING)


def parse_duration(text: str, *where: str) -> float:
    """Read a length of time, such as ``90s``, ``2h`` or ``7d``, and return its seconds.

    Args:
        where: the field that holds it, for the error.

    Raises:
        InvalidValue: it is none.
    """
    found = _AGO.fullmatch(text.strip())
    if found is None:
        raise InvalidValue(f"invalid duration {text!r}; use 90s, 2h, 7d or 1w", *where)
    return float(int(found[1]) * _UNITS[found[2]])


MAX_WINDOW: Final = timedelta(days=90)
LATEST_COMMIT: Final = timedelta(minutes=2)
"""How long after the time in its id a row may appear: ids are made before commits, an attempt's before its request."""
_AHEAD: Final = timedelta(hours=1)
"""Clocks of several hosts differ; rows of the near future are shown."""
_MILLISECOND: Final = timedelta(milliseconds=1)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST: Final = _EPOCH + MAX_WINDOW
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
    """Return the window that a request names: from *after*, inclusive, to *before*, exclusive.

    Without *before* it ends an hour after *now*, or at the cursor. Without *after* it begins 90 days before its end, or
    behind a cursor that leads back. With *after* alone and no cursor the page is filled upwards.
    """
    end = now if before is None else min(_sane(before), now)
    high = first_from(now + _AHEAD if before is None else min(_sane(before), now + _AHEAD))
    low = None if after is None else first_from(after)
    if cursor is None:
        return Window(low or first_from(end - MAX_WINDOW), high, is_upward=after is not None and before is None)
    if cursor.is_back:
        return Window(max(low or cursor.id, _successor(cursor.id)), high, is_upward=True)
    return Window(low or first_from(_created_at(cursor.id) - MAX_WINDOW), min(high, cursor.id))


def range_of(since: datetime, until: datetime) -> Window:
    """Return the ids made from *since*, inclusive, to *until*, exclusive, to be walked from the oldest."""
    return Window(first_from(since), first_from(until), is_upward=True)


def after_message(message_id: UUID, now: datetime) -> Window:
    """Return the ids that what belongs to a message may have, whichever host's clock made them."""
    return Window(first_from(_created_at(message_id) - _AHEAD), first_from(now + _AHEAD))


def resume_at(last: UUID, now: datetime) -> UUID:
    """Return the id behind which a reader goes on later who has seen everything up to *last*.

    What lies behind it may be read once more, as rows may still appear in between.
    """
    return min(last, first_from(now - LATEST_COMMIT))


def first_from(moment: datetime) -> UUID:
    """Return the bound between ids made before *moment* and those made then or later."""
    # Ids know milliseconds only, and are shown so: one made within the millisecond of a bound lies before it.
    return ids.first_of(_EPOCH - (_EPOCH - _sane(moment)) // _MILLISECOND * _MILLISECOND)


def _created_at(identifier: UUID) -> datetime:
    # A cursor is a stranger's word: it may claim a time that no calendar has.
    return _sane(_EPOCH + min(identifier.int >> 80, _MOST_MS) * _MILLISECOND)


def _sane(moment: datetime) -> datetime:
    return min(max(moment, _FIRST), _LAST)


def _successor(identifier: UUID) -> UUID:
    return UUID(int=min(identifier.int + 1, (1 << 128) - 1))
