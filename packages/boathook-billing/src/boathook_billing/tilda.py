"""Parses Tilda's own order webhook: a form or JSON, sent once when an order is placed and again when it is paid.

The fields are those of the examples in tests/reality/tilda; the plan is identified by its price.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final
from urllib.parse import parse_qsl

from boathook_billing.payload import Notice, notice_of, parse_object

_MAX_FIELDS: Final = 1_000


def read_order(body: bytes) -> Notice:
    """Parse an order, whose payment is in fields such as ``payment[orderid]``, in one field as JSON, or an object.

    Raises:
        ValueError: it is not an order; the message names the field.
    """
    fields = _fields(body)
    payment = _payment(fields)
    order, amount = payment.get("orderid"), payment.get("amount")
    if not order or amount in (None, ""):
        raise ValueError("missing payment.orderid or payment.amount: the form is not an order")
    # The payment's number is 0 until it is paid.
    is_paid = str(payment.get("systranid") or "0").strip() != "0"
    notice = notice_of(
        {
            "external_payment_id": order,
            "status": "paid" if is_paid else "received",
            "email": next((value for name, value in fields.items() if name.lower() == "email"), None),
            "amount": amount,
            "currency": payment.get("currency"),
            "event_id": fields.get("tranid"),
        }
    )
    # Tilda sends no word for it.
    return replace(notice, reported_status=None)


def _fields(body: bytes) -> Mapping[str, Any]:
    """Return the fields of a form, or of a JSON object: a form never starts with a brace, which it would escape."""
    text = body.decode("utf-8", "replace")
    if not text.lstrip().startswith("{"):
        return dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    return parse_object(text, "the body")


def _payment(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    nested = fields.get("payment") or {}
    if isinstance(nested, str):
        nested = parse_object(nested, "payment")
    if not isinstance(nested, dict):
        raise ValueError("payment is not a JSON object")  # noqa: TRY004 - one error type for all invalid payloads
    flat = {name[8:-1]: value for name, value in fields.items() if name.startswith("payment[") and name.endswith("]")}
    return {**nested, **flat}
