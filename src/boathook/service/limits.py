"""Limits of stored values, and their checks, which the functions that store a value call for every interface.

Checks of one value raise ValueError; `field` names the field. Models of the API use the same checks, for all problems
of a request at once.
"""

import contextlib
import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Final

import msgspec
from msgspec.structs import replace

from boathook.db.delivery_commands import AuditContext
from boathook.domain.errors import InvalidValue

MAX_NOTE: Final = 2_000
MAX_NAME: Final = 1_000
"""Characters of an application's name."""
MAX_KEY_NAME: Final = 200
MAX_DESCRIPTION: Final = 4_096
MAX_GROUP: Final = 256
"""Characters of an event type's group, and of a feature flag."""
MAX_USER_NAME: Final = 1_024
MAX_PASSWORD: Final = 4_096
SESSION_NAME: Final = r"^[a-zA-Z0-9@_\-.]{1,64}$"
"""The names of portal sessions."""
MAX_METADATA_BYTES: Final = 4_096
MAX_THROTTLE_RATE: Final = 65_535
"""Messages a second to an endpoint."""
MAX_CONCURRENCY: Final = 1_000
MIN_TIMEOUT_S: Final = 1
MAX_TIMEOUT_S: Final = 60
MAX_API_VERSION: Final = 2_147_483_647
MIN_RATE: Final = 0.001
MAX_RATE: Final = 100_000.0
"""Deliveries a second of a replay."""
MIN_PORTAL_LIFETIME: Final = timedelta(hours=1)
MAX_PORTAL_LIFETIME: Final = timedelta(days=7)
MAX_EXPIRY_DELAY: Final = timedelta(days=3)
"""Until the tokens of a portal expire."""
MAX_OPERATOR_TOKENS: Final = 20
"""Valid tokens of one operator."""
MIN_OPERATOR_TOKEN_LIFETIME: Final = timedelta(minutes=1)
MAX_OPERATOR_TOKEN_LIFETIME: Final = timedelta(days=90)
MAX_SECRET_GRACE: Final = timedelta(days=7)
"""For which the old secret of an endpoint stays valid."""


@contextlib.contextmanager
def field(*where: str | int) -> Iterator[None]:
    """Convert a ValueError inside the block to `InvalidValue` for this field."""
    try:
        yield
    except ValueError as error:
        raise InvalidValue(str(error), *where) from None


def check_text(text: str, limit: int, *, is_required: bool = False) -> str:
    """Return a text of at most *limit* characters; line breaks are allowed, other control characters are not."""
    if any(char <= "\x08" or "\ud800" <= char <= "\udfff" for char in text):
        raise ValueError("it must not contain control characters")
    if is_required and not text.strip():
        raise ValueError(f"write 1 to {limit:,} characters")
    if len(text) > limit:
        raise ValueError(f"write {limit:,} characters at most")
    return text


def check_number(value: float, low: float, high: float) -> float:
    """Return a number from *low* to *high*."""
    if not low <= value <= high:
        raise ValueError(f"write a number from {low:,} to {high:,}")
    return value


def check_name(name: str) -> str:
    """Return the name of an application."""
    return check_text(name, MAX_NAME, is_required=True)


def check_key_name(name: str) -> str:
    """Return the name of an API key."""
    return check_text(name, MAX_KEY_NAME, is_required=True)


def check_description(text: str) -> str:
    """Return a description."""
    return check_text(text, MAX_DESCRIPTION)


def check_flag(flag: str) -> str:
    """Return a feature flag."""
    return check_text(flag, MAX_GROUP, is_required=True)


def check_group(group: str) -> str:
    """Return the name of a group of event types."""
    return check_text(group, MAX_GROUP)


def check_throttle_rate(rate: int) -> int:
    """Return the messages a second to an endpoint."""
    return int(check_number(rate, 1, MAX_THROTTLE_RATE))


def check_concurrency(number: int) -> int:
    """Return the concurrent requests to an endpoint."""
    return int(check_number(number, 1, MAX_CONCURRENCY))


def check_timeout(seconds: float) -> float:
    """Return the seconds of an attempt."""
    return check_number(seconds, MIN_TIMEOUT_S, MAX_TIMEOUT_S)


def check_api_version(version: int) -> int:
    """Return an endpoint's version, which Svix clients set."""
    return int(check_number(version, 1, MAX_API_VERSION))


def check_session_name(name: str) -> str:
    """Return the name of a portal session."""
    if not re.fullmatch(SESSION_NAME, name):
        raise ValueError("write 1 to 64 letters, digits and @ _ - .")
    return name


def check_metadata(metadata: Mapping[str, str]) -> Mapping[str, str]:
    """Return the metadata of an application or endpoint."""
    if len(msgspec.json.encode(metadata)) > MAX_METADATA_BYTES:
        raise ValueError(f"metadata has at most {MAX_METADATA_BYTES} bytes as JSON")
    if any("\x00" in key or "\x00" in value for key, value in metadata.items()):
        raise ValueError("it must not contain control characters")
    return metadata


def check_user_name(name: str) -> str:
    """Return the user name of HTTP basic authentication."""
    if ":" in name:
        raise ValueError("a user name must not contain a colon")
    return check_text(name, MAX_USER_NAME)


def check_credential(text: str) -> str:
    """Return an id or a secret of an OAuth client."""
    return check_text(text, MAX_PASSWORD, is_required=True)


def check_password(password: str) -> str:
    """Return the password of HTTP basic authentication."""
    return check_text(password, MAX_PASSWORD)


def check_rate(rate: float | None) -> float | None:
    """Return the deliveries a second of a replay. Raises InvalidValue."""
    if rate is not None and not MIN_RATE <= rate <= MAX_RATE:
        raise InvalidValue(f"write a number a second from {MIN_RATE:g} to {MAX_RATE:,.0f}, or nothing", "rate")
    return rate


def check_note(note: str) -> str:
    """Return a note, stripped. Raises InvalidValue."""
    with field("note"):
        return check_text(note.strip(), MAX_NOTE)


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


def check_duration(length: timedelta, low: timedelta, high: timedelta, *where: str) -> timedelta:
    """Return a duration from *low* to *high*. Raises InvalidValue."""
    if not low <= length <= high:
        raise InvalidValue(f"write {low.total_seconds():,.0f} to {high.total_seconds():,.0f} seconds", *where)
    return length
