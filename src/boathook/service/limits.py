"""Checks of actions, which the functions of service call for every interface: notes, rates and durations.

The limits of the fields of resources are in their tables, see `boathook.service.fields`.
"""

import contextlib
from collections.abc import Iterator
from datetime import timedelta
from typing import Annotated, Final

from msgspec.structs import replace

from boathook.db.delivery_commands import AuditContext
from boathook.domain.errors import InvalidValue
from boathook.service.common_fields import Note, Pace
from boathook.service.fields import Rule, check_value

MIN_PORTAL_LIFETIME: Final = timedelta(hours=1)
MAX_PORTAL_LIFETIME: Final = timedelta(days=7)
MAX_EXPIRY_DELAY: Final = timedelta(days=3)
"""Until the tokens of a portal expire."""
MAX_OPERATOR_TOKENS: Final = 20
"""Valid tokens of one operator."""
MIN_OPERATOR_TOKEN_LIFETIME: Final = timedelta(minutes=1)
MAX_OPERATOR_TOKEN_LIFETIME: Final = timedelta(days=90)
MAX_SOURCE_SECRET_GRACE: Final = timedelta(days=30)
"""For which an added secret of a source that expires stays valid."""
MAX_SECRET_GRACE: Final = timedelta(days=7)
"""For which the old secret of an endpoint stays valid."""


def _seconds(low: timedelta, high: timedelta) -> Rule:
    return Rule(unit="seconds", minimum=int(low.total_seconds()), maximum=int(high.total_seconds()))


PortalLifetime = Annotated[int, _seconds(MIN_PORTAL_LIFETIME, MAX_PORTAL_LIFETIME)]
ExpiryDelay = Annotated[int, _seconds(timedelta(0), MAX_EXPIRY_DELAY)]
SecretGrace = Annotated[int, _seconds(timedelta(0), MAX_SECRET_GRACE)]


@contextlib.contextmanager
def field(*location: str | int) -> Iterator[None]:
    """Convert a ValueError inside the block to `InvalidValue` for this field."""
    try:
        yield
    except ValueError as error:
        raise InvalidValue(str(error), *location) from None


def check_rate(rate: float | None) -> float | None:
    """Return the deliveries a second of a replay. Raises InvalidValue."""
    return None if rate is None else check_value(Pace, rate, "rate")


def check_note(note: str) -> str:
    """Return a note, stripped. Raises InvalidValue."""
    return check_value(Note, note.strip(), "note")


def require_note(note: str) -> str:
    """Return a note that is not empty. Raises InvalidValue."""
    note = check_note(note)
    if not note:
        raise InvalidValue("write a note that says why; it is kept", "note")
    return note


def check_action(action: AuditContext, *, needs_note: bool = False) -> AuditContext:
    """Return an operator's action with its note checked, and required if *needs_note*. Raises InvalidValue."""
    note = action.note or ""
    return replace(action, note=(require_note(note) if needs_note else check_note(note)) or None)


def check_duration(length: timedelta, low: timedelta, high: timedelta, *location: str) -> timedelta:
    """Return a duration from *low* to *high*. Raises InvalidValue."""
    if not low <= length <= high:
        raise InvalidValue(f"write {low.total_seconds():,.0f} to {high.total_seconds():,.0f} seconds", *location)
    return length
