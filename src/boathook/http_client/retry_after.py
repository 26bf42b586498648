"""Reads the Retry-After header of a response."""

import math
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def read_retry_after(text: str, now: float) -> float | None:
    """Return the seconds of a Retry-After header; None if it is neither seconds nor a date (RFC 9110, section 10.2.3).

    Args:
        text: the header's value.
        now: the current time, in seconds since 1970.
    """
    text = text.strip()
    try:
        seconds = float(text) if text.isascii() and text[:1].isdigit() else _read_date(text).timestamp() - now
    except (ValueError, OverflowError, TypeError, IndexError):
        return None
    return max(0.0, seconds) if math.isfinite(seconds) else None


def _read_date(text: str) -> datetime:
    """Parse a date of HTTP; one without a zone, as in asctime's form, or with -0000 is in UTC, not in local time."""
    date = parsedate_to_datetime(text)
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
