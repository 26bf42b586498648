"""Parses a provider's notice: the status of one payment, from the verified JSON body.

The gateway validates bodies with `SCHEMA`, so an invalid one is answered 400 and does not become an event.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import ROUND_05UP, Context, Decimal, InvalidOperation
from enum import StrEnum
from typing import Any, Final

MAX_TEXT: Final = 300
_FINEST: Final = Decimal("1e-30")
_EXACT: Final = Context(prec=60, rounding=ROUND_05UP)
"""Drops digits beyond PostgreSQL's precision, but never makes an amount equal to a different price."""


class Status(StrEnum):
    """The status of a payment; it only moves to later ones."""

    RECEIVED = "RECEIVED"
    FAILED = "FAILED"
    SUCCEEDED = "SUCCEEDED"
    REFUNDED = "REFUNDED"

    @property
    def rank(self) -> int:
        """Its position in that order, from 0."""
        return _ORDER.index(self)


_ORDER: Final = tuple(Status)
_WORDS: Final = {
    Status.RECEIVED: "received created new pending processing authorized waiting in_progress",
    Status.FAILED: "failed failure fail declined rejected canceled cancelled expired error voided",
    Status.SUCCEEDED: "succeeded success successful paid approved completed confirmed captured",
    Status.REFUNDED: "refunded refund chargeback charged_back reversed",
}
_STATUSES: Final = {word: status for status, words in _WORDS.items() for word in words.split()}


def read_status(word: str) -> Status:
    """Return the status for a provider's word; an unknown word does not confirm a payment, so it counts as RECEIVED."""
    return _STATUSES.get(word.strip().lower().replace("-", "_").replace(" ", "_"), Status.RECEIVED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """The data of one payment in one event."""

    external_payment_id: str
    status: Status
    email: str | None = None
    amount: Decimal | None = None
    currency: str | None = None
    """In upper case."""
    plan_id: str | None = None
    paid_at: datetime | None = None
    event_id: str | None = None
    """The provider's own id of the event."""
    reported_status: str | None = None
    """The provider's word for the status."""
    phone: str | None = None
    refund_id: str | None = None
    """The provider's id of the refund that is reported."""
    refund_amount: Decimal | None = None

    def is_late(self, accepted_at: datetime, allowed: timedelta) -> bool:
        """Return whether a success was reported more than *allowed* after the payment."""
        is_reported = self.status is Status.SUCCEEDED and self.paid_at is not None
        return is_reported and accepted_at - self.paid_at > allowed  # type: ignore[operator]  # reported, so not None

    def age_s(self, accepted_at: datetime, now: datetime) -> float:
        """Return the age of the notice, since the payment, or since its acceptance if it has no payment time."""
        return (now - (self.paid_at or accepted_at)).total_seconds()


def read_notice(body: bytes) -> Notice:
    """Parse a body that matches `SCHEMA`.

    Raises:
        ValueError: it does not; the message names the field.
    """
    return notice_of(parse_object(body, "the body"))


def parse_object(text: str | bytes, name: str) -> dict[str, Any]:
    """Parse a JSON object, its fractions as decimal numbers. Raises ValueError, which begins with *name*."""
    try:
        document = json.loads(text, parse_float=Decimal)
    except RecursionError:
        raise ValueError(f"{name} nests too deep") from None
    except ArithmeticError:
        raise ValueError(f"{name} has a number with too large an exponent") from None
    if not isinstance(document, dict):
        raise ValueError(f"{name} is not a JSON object")  # noqa: TRY004 - one error type for all invalid payloads
    return document


def notice_of(fields: Mapping[str, Any]) -> Notice:
    """Return the notice for these fields, named as in the JSON body. Raises ValueError, which names the field."""
    id, status = _text(fields, "external_payment_id"), _text(fields, "status")
    if id is None or status is None:
        raise ValueError("missing external_payment_id or status")
    currency = _text(fields, "currency")
    return Notice(
        external_payment_id=id,
        status=read_status(status),
        email=_text(fields, "email"),
        amount=_amount(fields, "amount"),
        currency=currency and currency.upper(),
        plan_id=_text(fields, "plan_id"),
        paid_at=_moment(_text(fields, "paid_at")),
        event_id=_text(fields, "event_id"),
        reported_status=status,
        # Senders may already have a field of this name for something else.
        phone=_text(fields, "phone") if isinstance(fields.get("phone"), str) else None,
        refund_id=_text(fields, "refund_id"),
        refund_amount=_amount(fields, "refund_amount"),
    )


def _text(fields: Mapping[str, Any], key: str) -> str | None:
    value = fields.get(key)
    # Not of any size: 1e99999999 is short, and converting it would occupy the process for hours.
    if isinstance(value, Decimal) and value.adjusted() < MAX_TEXT and value == value.to_integral_value():
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if value is None:
        return None
    if not isinstance(value, str):
        raise ValueError(f"{key} is not text")  # noqa: TRY004 - the same
    # PostgreSQL stores neither NUL nor lone surrogates.
    text = value.replace("\x00", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode().strip()
    return text[:MAX_TEXT] or None


def _amount(fields: Mapping[str, Any], key: str) -> Decimal | None:
    value = fields.get(key)
    if value is None:
        return None
    try:
        amount = Decimal(value.strip().replace(",", ".") if isinstance(value, str) else value)
    except (InvalidOperation, TypeError, ValueError):
        raise ValueError(f"{key} is not a number") from None
    if isinstance(value, bool) or not amount.is_finite() or amount < 0 or amount.adjusted() > 15:
        raise ValueError(f"{key} is not an amount of money")
    is_endless = int(amount.as_tuple().exponent) < int(_FINEST.as_tuple().exponent)
    return _EXACT.quantize(amount, _FINEST) if is_endless else amount


def _moment(text: str | None) -> datetime | None:
    try:
        parsed = datetime.fromisoformat(text) if text else None
        return parsed and (parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        # The pattern accepts dates that do not exist; the payment is processed anyway.
        return None


_BOUNDS: Final = {"maxLength": MAX_TEXT, "minimum": -(10**30), "maximum": 10**30}
_WORD: Final = {"type": ["string", "integer"], "pattern": r"\S", **_BOUNDS}
_OPTIONAL: Final = {"type": ["string", "integer", "null"], **_BOUNDS}
_MONEY: Final = {
    "type": ["number", "string", "null"],
    "minimum": 0,
    "maximum": 1e15,
    "pattern": r"^\s*\d{1,15}([.,]\d{1,9})?\s*$",
}
_DAY: Final = r"\d{4}-(0[1-9]|1[0-2])-(0[1-9]|[12]\d|3[01])"
_TIME: Final = r"([01]\d|2[0-3]):[0-5]\d(:[0-5]\d([.,]\d{1,9})?)?(Z|[+-]([01]\d|2[0-3])(:?[0-5]\d)?)?"

SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "required": ["external_payment_id", "status"],
    "properties": {
        "event_id": {**_OPTIONAL, "pattern": r"\S|^$"},
        "external_payment_id": _WORD,
        "status": {"type": "string", "pattern": r"\S", "maxLength": MAX_TEXT},
        "email": {"type": ["string", "null"], "maxLength": MAX_TEXT},
        "amount": _MONEY,
        "refund_id": _OPTIONAL,
        "refund_amount": _MONEY,
        "currency": {"type": ["string", "null"], "maxLength": 10},
        "plan_id": _OPTIONAL,
        "paid_at": {"type": ["string", "null"], "pattern": f"^{_DAY}([Tt ]{_TIME})?$"},
    },
}
"""JSON Schema of the provider's bodies; additional fields are allowed."""
