"""Confirms YooKassa's notifications: they are not signed, so the payment or refund is fetched again from its API.

What the API answers is published in the app's own format, and handled like the notices of any other provider.
"""

import base64
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from boathook import HTTP_DEFAULTS, BoathookError, Breaker, Dead, Event, Ignore, Retry, RetryPolicy, Transaction
from boathook_billing.app import CONFIRMED, YOOKASSA_SOURCE, hook, settings
from boathook_billing.payload import parse_object
from boathook_billing.settings import YooKassaSettings

CONFIRM_RETRY: Final = RetryPolicy(first_s=2.0, max_delay_s=600.0, max_attempts=2_000, max_age_s=7 * 86_400.0)
TIMEOUT_S: Final = 20.0
MAX_ANSWER: Final = 262_144
_ID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
_PROGRESS: Final = {"pending": 0, "waiting_for_capture": 1, "succeeded": 2, "canceled": 2}
"""How far a payment or refund with this status is."""


class Unconfirmed(BoathookError):
    """The API does not confirm a notification, and will not later.

    Args:
        code: of the dead letter.
        message: what is wrong, and how to fix it.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Notification:
    """What a notification claims."""

    kind: str
    """``payment`` or ``refund``; other kinds of objects do not concern this app."""
    id: str
    status: str


def read_notification(body: bytes) -> Notification:
    """Parse a notification. Raises ValueError, which names the field."""
    document = parse_object(body, "the body")
    event, about = document.get("event"), document.get("object")
    if not isinstance(event, str) or "." not in event:
        raise ValueError("event is not the name of an object and its status, such as payment.succeeded")
    if not isinstance(about, dict) or not isinstance(id := about.get("id"), str) or not _ID.fullmatch(id):
        raise ValueError("object.id is not the id of a payment or refund")
    kind, _, status = event.partition(".")
    return Notification(kind, id, status)


def read_payment(document: Mapping[str, Any], keys: YooKassaSettings) -> dict[str, Any]:
    """Return the fields of a payment in the app's own format. Raises ValueError, which names the field."""
    amount, metadata = document.get("amount"), document.get("metadata") or {}
    if not isinstance(amount, dict) or not isinstance(metadata, dict):
        raise ValueError("amount or metadata is not a JSON object")  # noqa: TRY004 - one error type for all payloads
    return {
        "external_payment_id": document.get("id"),
        "status": document.get("status"),
        "amount": amount.get("value"),
        "currency": amount.get("currency"),
        "email": metadata.get(keys.email_key),
        "phone": metadata.get(keys.phone_key),
        "plan_id": metadata.get(keys.plan_key),
        "paid_at": document.get("captured_at"),
    }


@hook.on(
    YOOKASSA_SOURCE,
    retry=CONFIRM_RETRY,
    retry_on=HTTP_DEFAULTS,
    breaker=Breaker(dependency="yookassa", errors=HTTP_DEFAULTS),
    timeout=4 * TIMEOUT_S,
)
async def confirm(event: Event, tx: Transaction) -> Ignore | Retry | Dead | None:
    """Fetch the notification's payment or refund again, and publish its state as the API answers it."""
    keys = settings().yookassa
    if keys is None:
        return Dead("YOOKASSA_SETTINGS", "[billing.yookassa] is missing; it has the shop's id and its secret key")
    try:
        notified = read_notification(event.body)
        if notified.kind not in {"payment", "refund"}:
            return Ignore(f"OTHER_EVENT: {notified.kind}")
        document = await fetch(keys, notified.kind, notified.id)
        status = str(document.get("status"))
        if _PROGRESS.get(status, 0) < _PROGRESS.get(notified.status, 0):
            return Retry(code="YOOKASSA_BEHIND", dependency="yookassa")
        if notified.kind == "refund":
            if status != "succeeded":
                return Ignore(f"REFUND_{status.upper()}")
            fields = await _refunded(keys, document)
        else:
            fields = read_payment(document, keys)
    except Unconfirmed as error:
        return Dead(error.code, str(error), "yookassa")
    except ValueError as error:
        return Dead("BROKEN_PAYLOAD", str(error))
    fields["event_id"] = event.dedup_key
    body = json.dumps({name: value for name, value in fields.items() if value is not None}).encode()
    await hook.publish(tx, application=CONFIRMED, type=f"{notified.kind}.{status}", payload=body)
    return None


async def fetch(keys: YooKassaSettings, kind: str, id: str) -> dict[str, Any]:
    """Return a payment or refund as YooKassa's API has it now.

    Raises:
        Unconfirmed: the shop has no such object, or the API refuses the shop's credentials.
        FetchFailed: the API is unavailable.
        ValueError: the answer is not that object.
    """
    secret = hook.resolve(keys.secret_key, "yookassa.secret_key")
    credentials = base64.b64encode(f"{keys.shop_id}:{secret}".encode()).decode()
    response = await hook.http.request(
        "GET",
        f"{keys.api_url.rstrip('/')}/{kind}s/{id}",
        headers={"authorization": f"Basic {credentials}", "accept": "application/json"},
        timeout_s=TIMEOUT_S,
        max_bytes=MAX_ANSWER,
    )
    if response.status == 404:
        raise Unconfirmed(
            "YOOKASSA_UNKNOWN",
            f"the shop {keys.shop_id} has no {kind} {id}: the notification is forged, or another shop's",
        )
    if response.status in {401, 403}:
        raise Unconfirmed(
            "YOOKASSA_CREDENTIALS",
            f"the API answers {response.status}: correct billing.yookassa.shop_id or secret_key, then replay",
        )
    response.raise_for_status()
    document = parse_object(response.body, "the API's answer")
    if document.get("id") != id:
        raise ValueError(f"the API's answer is not about {kind} {id}")
    return document


async def _refunded(keys: YooKassaSettings, refund: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a refund's payment, as refunded."""
    payment, amount = refund.get("payment_id"), refund.get("amount")
    if not isinstance(payment, str) or not _ID.fullmatch(payment) or not isinstance(amount, dict):
        raise ValueError("the refund's payment_id or amount is missing")
    fields = read_payment(await fetch(keys, "payment", payment), keys)
    return fields | {"status": "refunded", "refund_id": refund["id"], "refund_amount": amount.get("value")}
