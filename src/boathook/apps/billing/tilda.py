"""Parses Tilda's own order webhook: a form, sent once when an order is placed and again when it is paid.

The fields are those of https://help-ru.tilda.cc/forms/webhook; the plan is identified by its price.
"""

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any, Final
from urllib.parse import parse_qsl

from boathook.apps.billing.payload import Notice, notice_of

_MAX_FIELDS: Final = 1_000


def read_order(body: bytes) -> Notice:
    """Parse an order, whose payment is in fields such as ``payment[orderid]``, or in one field as JSON.

    Raises:
        ValueError: it is not an order; the message names the field.
    """
    text = body.decode("utf-8", "replace")
    fields = dict(parse_qsl(text, keep_blank_values=True, max_num_fields=_MAX_FIELDS))
    payment = _payment(fields)
    order, amount = payment.get("orderid"), payment.get("amount")
    if not order or amount in (None, ""):
        raise ValueError("missing payment.orderid or payment.amount: the form is not an order")
    # The payment's number is 0 until it is paid.
    is_paid = str(payment.get("systranid") or "0").strip() != "0"
    return notice_of(
        {
            "external_payment_id": order,
            "status": "paid" if is_paid else "received",
            "email": next((value for name, value in fields.items() if name.lower() == "email"), None),
            "amount": amount,
            "currency": payment.get("currency"),
        }
    )


def _payment(fields: Mapping[str, str]) -> Mapping[str, Any]:
    try:
        nested = json.loads(fields["payment"], parse_float=Decimal) if fields.get("payment") else {}
    except RecursionError:
        raise ValueError("payment nests too deep") from None
    if not isinstance(nested, dict):
        raise ValueError("payment is not a JSON object")  # noqa: TRY004 - one error type for all invalid payloads
    flat = {name[8:-1]: value for name, value in fields.items() if name.startswith("payment[") and name.endswith("]")}
    return {**nested, **flat}
