"""Moments as people write them."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final

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
