"""Parses timestamps of senders: RentProg's ``25-01-2027 9:30``, ISO 8601, Ruby's, seconds and ms since 1970."""

import re
from datetime import UTC, datetime, tzinfo
from typing import Any, Final

_FIRST: Final = datetime(1990, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(2200, 1, 1, tzinfo=UTC)
_MAX_LENGTH: Final = 64
_NUMBER: Final = re.compile(r"\d{9,16}(?:\.\d{1,9})?")
_DAY_FIRST: Final = re.compile(r"(\d\d)([.-])(\d\d)\2(\d{4})(?:(\s+)(\d{1,2})(:.*))?", re.ASCII)
_ZONE: Final = re.compile(r"\s*(?:[A-Z]{1,5})?\s*([+-]\d\d):?(\d\d)$")
_RUBY: Final = re.compile(r"[A-Z][a-z]{2}, (\d{1,2}) ([A-Z][a-z]{2}) (\d{4})(.*)", re.ASCII)
_MONTHS: Final = "JanFebMarAprMayJunJulAugSepOctNovDec"


def read_timestamp(value: Any, zone: tzinfo = UTC) -> datetime | None:
    """Return a time in UTC, or None if it is invalid or implausible; one without a zone is the local time of *zone*."""
    try:
        at = _read(value, zone)
    except (ValueError, OverflowError, OSError):  # the C library raises OSError for some numbers
        return None
    return at if at is not None and _FIRST <= at <= _LAST else None


def _read(value: Any, zone: tzinfo) -> datetime | None:
    match value:
        case bool():
            return None
        case int() | float():
            return _since_1970(float(value))
        case str() if _NUMBER.fullmatch(value.strip()):
            return _since_1970(float(value))
        case str() if 8 <= len(value) <= _MAX_LENGTH:
            at = datetime.fromisoformat(_as_iso(value.strip()))
            return (at if at.tzinfo else at.replace(tzinfo=zone)).astimezone(UTC)
        case _:
            return None


def _since_1970(number: float) -> datetime:
    if number > 1e17:
        raise OverflowError
    while number > 1e11:
        number /= 1_000
    return datetime.fromtimestamp(number, UTC)


def _as_iso(text: str) -> str:
    if match := _DAY_FIRST.fullmatch(text):
        day, _, month, year, _, hour, rest = match.groups()
        text = f"{year}-{month}-{day}" + (f" {hour:0>2}{rest}" if hour else "")
    elif (match := _RUBY.fullmatch(text)) and match[2] in _MONTHS:
        text = f"{match[3]}-{_MONTHS.index(match[2]) // 3 + 1:02}-{int(match[1]):02}{match[4]}"
    text = _ZONE.sub(r"\1:\2", text) if _ZONE.search(text) and ":" in text else text
    return re.sub(r"\s*(?:UTC|GMT)$", "+00:00", text)
