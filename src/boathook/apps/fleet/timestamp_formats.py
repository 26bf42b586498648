"""Parses timestamps of senders: ISO 8601, Ruby's and Russian formats, seconds and milliseconds since 1970."""

import re
from datetime import UTC, datetime
from typing import Any, Final

_FIRST: Final = datetime(1990, 1, 1, tzinfo=UTC)
_LAST: Final = datetime(2200, 1, 1, tzinfo=UTC)
_MAX_LENGTH: Final = 64
_NUMBER: Final = re.compile(r"\d{9,16}(?:\.\d{1,9})?")
_RUSSIAN: Final = re.compile(r"(\d\d)\.(\d\d)\.(\d{4})(.*)", re.ASCII)
_ZONE: Final = re.compile(r"\s*(?:[A-Z]{1,5})?\s*([+-]\d\d):?(\d\d)$")
_RUBY: Final = re.compile(r"[A-Z][a-z]{2}, (\d{1,2}) ([A-Z][a-z]{2}) (\d{4})(.*)", re.ASCII)
_MONTHS: Final = "JanFebMarAprMayJunJulAugSepOctNovDec"


def read_timestamp(value: Any) -> datetime | None:
    """Return a time in UTC, which is also the default zone, or None if it is invalid or implausible."""
    try:
        at = _read(value)
    except (ValueError, OverflowError, OSError):  # the C library raises OSError for some numbers
        return None
    return at if at is not None and _FIRST <= at <= _LAST else None


def _read(value: Any) -> datetime | None:
    match value:
        case bool():
            return None
        case int() | float():
            return _since_1970(float(value))
        case str() if _NUMBER.fullmatch(value.strip()):
            return _since_1970(float(value))
        case str() if 8 <= len(value) <= _MAX_LENGTH:
            at = datetime.fromisoformat(_as_iso(value.strip()))
            return (at if at.tzinfo else at.replace(tzinfo=UTC)).astimezone(UTC)
        case _:
            return None


def _since_1970(number: float) -> datetime:
    if number > 1e17:
        raise OverflowError
    while number > 1e11:
        number /= 1_000
    return datetime.fromtimestamp(number, UTC)


def _as_iso(text: str) -> str:
    if found := _RUSSIAN.fullmatch(text):
        text = f"{found[3]}-{found[2]}-{found[1]}{found[4]}"
    elif (found := _RUBY.fullmatch(text)) and found[2] in _MONTHS:
        text = f"{found[3]}-{_MONTHS.index(found[2]) // 3 + 1:02}-{int(found[1]):02}{found[4]}"
    text = _ZONE.sub(r"\1:\2", text) if _ZONE.search(text) and ":" in text else text
    return re.sub(r"\s*(?:UTC|GMT)$", "+00:00", text)
