"""What a notification of due deliveries says: who has one, and from when on."""

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Final

DueRecipient = tuple[str, float]
"""A recipient, and the time at which it has a due delivery, in seconds since 1970 by PostgreSQL's clock; 0 is now."""
ANY_RECIPIENT: Final = ""
"""Stands for recipients that are not known to the notifier."""
ANY_DUE: Final[tuple[DueRecipient, ...]] = ((ANY_RECIPIENT, 0.0),)
"""Something is due now, or at a time that is not known to the notifier."""
_TICKS: Final = 50
"""Times are rounded up to so many parts of a second: what is due at about the same time shares a name."""


def due_recipients(recipients: Iterable[str], deliver_at: datetime | None = None) -> frozenset[DueRecipient]:
    """Return these recipients, each with a delivery that is due at *deliver_at*; None is now."""
    due_at = 0.0 if deliver_at is None else math.ceil(deliver_at.timestamp() * _TICKS) / _TICKS
    return frozenset((recipient, due_at) for recipient in recipients)
