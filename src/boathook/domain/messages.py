"""A message that is to be published, and the rules of its fields, which are the same for every way of publishing."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from boathook.domain import ids
from boathook.domain.endpoints import check_segment, check_type
from boathook.domain.errors import InvalidMessage
from boathook.domain.json_document import describe_fault
from boathook.domain.model import DEFAULT_ORGANIZATION, IdempotencyKey, Origin

MAX_RETENTION_DAYS: Final = 90
"""How long a payload may be kept, if its retention is in days."""
MAX_RETENTION_H: Final = 2_160
"""The same in hours."""
_MAX_AHEAD: Final = timedelta(hours=24, minutes=1)
"""How far ahead a client may publish; a minute is for clocks that differ."""
_MAX_ID: Final = 512
PUBLIC_NAMES: Final[Mapping[str, str]] = {"type": "eventType", "id": "eventId", "deliver_at": "deliverAt"}
"""The names of fields in the API and in forms, where they are not those of `Message`."""


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A message to be published to an application."""

    application: str
    """Its id, uid or imported id. Any other name is for handlers only."""
    type: str
    payload: Any
    """Bytes, stored unchanged, or any JSON-serializable value."""
    organization: str = DEFAULT_ORGANIZATION
    id: str | None = None
    """The publisher's id for it, unique in the application; None if it has only boathook's id."""
    event_id: UUID | None = None
    """boathook's id for it, if it was assigned before; None assigns one."""
    channels: Iterable[str] = ()
    tags: Iterable[str] = ()
    deliver_at: datetime | None = None
    """Earliest time of delivery; None for immediately."""
    content_until: datetime | None = None
    """When its payload may be deleted; None for together with the message."""
    headers: Mapping[str, str] | None = None
    content_type: str | None = None
    """None for application/json, or application/octet-stream for bytes."""
    idempotency: IdempotencyKey | None = None
    """Of the request. The same key with a different request is an `IdempotencyConflict`."""
    origin: Origin = Origin.PUBLISHED
    is_accepted: bool = False
    """Whether it was accepted before, so that no rule of `check_message` may refuse it now."""

    @property
    def request_sha256(self) -> bytes | None:
        """`IdempotencyKey.request_sha256`; None without a key."""
        return None if self.idempotency is None else self.idempotency.request_sha256


def check_message(message: Message, *, is_for_application: bool = True) -> None:
    """Check the fields whose rules depend on the recipients; the outbox checks the others first.

    Args:
        message: the message.
        is_for_application: whether it is for an application, whose users name its types and ids in the API; a name that
            only handlers have may have any printable ones.

    Raises:
        InvalidMessage: a field breaks a rule; the error names the first.
    """
    if not is_for_application or message.is_accepted:
        check_printable(message.type, "type")
        if message.id is not None:
            check_printable(message.id, "id")
        return
    field = "type"
    try:
        check_type(_text(message.type))
        if message.id is not None:
            field = "id"
            check_message_id(_text(message.id))
    except ValueError as error:
        raise InvalidMessage(str(error), field) from None


def _text(value: object) -> str:
    """Return a text; an empty one, which no rule allows, instead of another value that a handler gave."""
    return value if isinstance(value, str) else ""


def check_printable(text: object, field: str) -> None:
    """Check a text that is stored and logged. Raises InvalidMessage."""
    # PostgreSQL stores neither NUL nor lone surrogates, and control characters break log lines.
    if not isinstance(text, str) or not text or not text.isprintable():
        raise InvalidMessage(f"write a text without control characters, not {text!r}", field)


def check_message_id(id: str) -> str:
    """Return a publisher's id of a message if it is valid. Raises ValueError."""
    if not 1 <= len(id) <= _MAX_ID or not id.isprintable():
        raise ValueError(f"write 1 to {_MAX_ID} printable characters")
    check_segment(id)
    if id.startswith(f"{ids.MESSAGE}_"):
        raise ValueError(f"it must not start with {ids.MESSAGE}_, as ids do")
    return id


def check_deliver_at(at: datetime) -> datetime:
    """Return the time at which a client's message is to be delivered if it is valid. Raises ValueError.

    The operator's own handlers and commands may plan further ahead.
    """
    if at > datetime.now(UTC) + _MAX_AHEAD:
        raise ValueError("write a time at most 24 hours ahead")
    return at


def content_until(days: int | None, hours: int | None) -> datetime | None:
    """Return when a payload may be deleted that is kept for days or hours from now on; None if it is for neither.

    Raises:
        ValueError: it is for both.
    """
    if days is None and hours is None:
        return None
    if days is not None and hours is not None:
        raise ValueError("write payloadRetentionPeriod or payloadRetentionHours, not both")
    return datetime.now(UTC) + timedelta(days=days or 0, hours=hours or 0)


def read_object(payload: bytes) -> dict[str, Any]:
    """Return the JSON object in a payload. Raises InvalidMessage."""
    try:
        document = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise InvalidMessage(describe_fault(payload), "payload") from None
    if not isinstance(document, dict):
        raise InvalidMessage("write a JSON object", "payload")
    return document
