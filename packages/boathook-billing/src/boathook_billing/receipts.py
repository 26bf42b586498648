"""Issues receipts at a cash desk, as 54-FZ demands: one for each payment, and one for each refund.

The request is Dreamkas' of receipts, which the app `cashdesk` takes too. It is stored before it is sent, so that an
attempt that is repeated sends the same request, with the same external id.
"""

import json
from collections.abc import Iterator, Mapping
from decimal import ROUND_HALF_UP, Decimal
from typing import Any, Final, get_args

from boathook import (
    HTTP_DEFAULTS,
    AlertReading,
    BoathookError,
    Breaker,
    Dead,
    Event,
    Ignore,
    Retry,
    RetryPolicy,
    Transaction,
)
from boathook_app_tools.statements import load_statements
from boathook_billing.app import IMPORTED, RECEIPTS, gettext, hook, settings, shop
from boathook_billing.payload import Notice, Status, parse_object
from boathook_billing.rules import Payment
from boathook_billing.settings import BillingSettings, PaymentMode, PaymentSubject, Plan, ReceiptSettings

SQL: Final = load_statements(__file__)

RECEIPT_RETRY: Final = RetryPolicy(first_s=2.0, max_delay_s=600.0, max_attempts=5_000, max_age_s=30 * 86_400.0)
TIMEOUT_S: Final = 20.0
MAX_ANSWER: Final = 262_144
CURRENCY: Final = "RUB"
_TAX_MODES: Final = {1: "DEFAULT", 2: "SIMPLE", 3: "SIMPLE_WO", 4: "ENVD", 5: "AGRICULT", 6: "PATENT"}
_TAXES: Final = {
    1: "NDS_NO_TAX", 2: "NDS_0", 3: "NDS_10", 4: "NDS_20", 5: "NDS_10_CALCULATED", 6: "NDS_20_CALCULATED", 7: "NDS_5",
    8: "NDS_7", 9: "NDS_5_CALCULATED", 10: "NDS_7_CALCULATED", 11: "NDS_22", 12: "NDS_22_CALCULATED",
}  # fmt: skip
_SUBJECT_TAG: Final = 1212
_MODE_TAG: Final = 1214
_STATES: Final = {"SUCCESS": "DONE", "DONE": "DONE", "ERROR": "FAILED", "FAILED": "FAILED"}
"""Dreamkas' statuses of an operation, and those of the app `cashdesk`."""


failed_receipts = hook.alert("failed_receipts", "{text}: {value}. {hint}", severity="critical")
waiting_receipts = hook.alert("waiting_receipts", "{text}: {value} s. {hint}", above=3_600.0)


@failed_receipts.check
async def find_failed(tx: Transaction) -> list[AlertReading]:
    """Return the number of failed receipts."""
    text = gettext("receipts of payments have failed")
    hint = gettext("`boathook billing receipts list --state FAILED` has the cause; after a fix, `receipts reissue`.")
    return [AlertReading("", await tx.fetchval(SQL["count_failed"]), {"text": text, "hint": hint})]


@waiting_receipts.check
async def find_waiting(tx: Transaction) -> list[AlertReading]:
    """Return how many seconds the oldest pending receipt has waited."""
    text = gettext("a receipt waits for the cash desk")
    hint = gettext(
        "The attempts of `boathook deliveries list --recipient handler:billing.issue_receipt` have the cause."
    )
    return [AlertReading("", await tx.fetchval(SQL["oldest_pending_s"]), {"text": text, "hint": hint})]


@hook.check
def check_currencies(settings: BillingSettings, _is_production: bool) -> Iterator[tuple[str, str]]:
    """Name the plans whose payments have no receipts."""
    if settings.receipts is not None:
        for plan in settings.offers:
            if plan.currency != CURRENCY:
                problem = f"payments of the plan {plan.id} have no receipts, because it costs {plan.currency}"
                yield problem, f"receipts of [billing.receipts] are in {CURRENCY}; issue those yourself"


async def arrange(tx: Transaction, event: Event, notice: Notice, payment: Payment) -> None:
    """Add the receipts that a notice about a payment, which is stored and locked, demands; repeated calls add nothing.

    A refund of a payment whose success was never reported demands that of the sale, too.
    """
    desk = settings().receipts
    plan = shop().plan_of(payment)
    if desk is None or plan is None or plan.currency != CURRENCY or event.application == IMPORTED:
        return
    history = await tx.fetchrow(SQL["see_history"], payment.id)
    assert history is not None, "the payment is stored"
    customer = json.loads(history["customer"]) if history["customer"] else {}
    contact = payment.email or notice.phone or customer.get("email") or customer.get("phone") or desk.contact
    amount = plan.price if payment.amount is None else payment.amount

    async def add(kind: str, refund_id: str, amount: Decimal) -> None:
        external_id = f"billing-{history['uid']}-{kind}" + (f"-{refund_id}" if refund_id else "")
        request = json.dumps(make_request(desk, plan, kind, amount, contact, external_id), ensure_ascii=False)
        id = await tx.fetchval(SQL["add"], payment.id, kind, refund_id, external_id, amount, request)
        if id is not None:
            await publish(tx, id, external_id, payment.id)

    is_refund = notice.status is Status.REFUNDED
    if notice.status is Status.SUCCEEDED or (is_refund and not payment.is_applied and not history["is_reported"]):
        await add("sale", "", amount)
    if is_refund or (payment.status is Status.REFUNDED and not history["is_refunded"]):
        await add("refund", notice.refund_id or "", amount if notice.refund_amount is None else notice.refund_amount)


def make_request(
    desk: ReceiptSettings, plan: Plan, kind: str, amount: Decimal, contact: str, external_id: str
) -> dict[str, Any]:
    """Return Dreamkas' request of a receipt, whose money is in kopecks."""
    kopecks = int((amount * 100).quantize(Decimal(1), ROUND_HALF_UP))
    position = {
        "name": plan.title or plan.id,
        "type": "SERVICE" if desk.payment_subject == "service" else "COUNTABLE",
        "quantity": 1,
        "price": kopecks,
        "priceSum": kopecks,
        "tax": _TAXES[desk.vat_code if plan.vat_code is None else plan.vat_code],
        "tags": [
            {"tag": _SUBJECT_TAG, "value": get_args(PaymentSubject).index(desk.payment_subject) + 1},
            {"tag": _MODE_TAG, "value": get_args(PaymentMode).index(desk.payment_mode) + 1},
        ],
    }
    return {
        "externalId": external_id,
        "deviceId": desk.device_id,
        "type": kind.upper(),
        "timeout": 5,
        "taxMode": _TAX_MODES[desk.tax_system_code],
        "positions": [position],
        "payments": [{"sum": kopecks, "type": "CASHLESS"}],
        "attributes": {"email" if "@" in contact else "phone": contact},
        "total": {"priceSum": kopecks},
    }


async def publish(tx: Transaction, id: int, external_id: str, payment_id: int) -> None:
    """Have a receipt issued, after earlier ones of its payment."""
    payload = {"receipt": id, "external_id": external_id, "payment": payment_id}
    await hook.publish(tx, application=RECEIPTS, type="receipt.issue", payload=payload)


@hook.on(
    application=RECEIPTS,
    order_by="payment",
    retry=RECEIPT_RETRY,
    retry_on=HTTP_DEFAULTS,
    breaker=Breaker(dependency="cashdesk", errors=HTTP_DEFAULTS),
    timeout=4 * TIMEOUT_S,
)
async def issue_receipt(event: Event, tx: Transaction) -> Ignore | Retry | Dead | None:
    """Request a receipt once, and wait until the cash desk has recorded it."""
    desk = settings().receipts
    if desk is None:
        return Dead("RECEIPT_SETTINGS", "[billing.receipts] is missing; it has the cash desk's address and token")
    row = await tx.fetchrow(SQL["see"], event.json["receipt"])
    if row is None or row["state"] == "DONE" or row["external_id"] != event.json["external_id"]:
        return Ignore("SUPERSEDED")
    try:
        operation = await event.once("request", _request, desk, row["request"])
        if operation["state"] == "PENDING":
            id = operation["id"]
            operation = await (_request(desk, row["request"]) if id is None else _look_up(desk, id))
    except Refused as error:
        operation = {"id": None, "state": "FAILED", "error": str(error)}
    if operation["state"] == "PENDING":
        return Retry(code="RECEIPT_PENDING", dependency="cashdesk")
    values = (row["id"], operation["state"], operation["id"], operation["error"], row["external_id"])
    if operation["state"] == "DONE":
        await tx.execute(SQL["end"], *values)
        return None
    async with hook.transaction() as own:  # that of the handler is rolled back with the dead letter
        await own.execute(SQL["end"], *values)
    return Dead("RECEIPT_FAILED", str(operation["error"]), "cashdesk")


class Refused(BoathookError):
    """The cash desk does not take a receipt, and will not take it later; the message is its answer."""


async def _request(desk: ReceiptSettings, request: str) -> Mapping[str, Any]:
    return await _ask(desk, "POST", desk.url, request.encode())


async def _look_up(desk: ReceiptSettings, operation: str) -> Mapping[str, Any]:
    base = desk.url.rstrip("/").removesuffix("/receipts")
    return await _ask(desk, "GET", f"{base}/operations/{operation}")


async def _ask(desk: ReceiptSettings, method: str, url: str, body: bytes = b"") -> Mapping[str, Any]:
    """Return the operation in the cash desk's answer. Raises Refused, FetchFailed."""
    token = hook.resolve(desk.token, "receipts.token")
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json", "accept": "application/json"}
    response = await hook.http.request(
        method, url, headers=headers, body=body, timeout_s=TIMEOUT_S, max_bytes=MAX_ANSWER
    )
    if 400 <= response.status < 500 and response.status not in {408, 425, 429}:
        text = response.body[:500].decode("utf-8", "replace").replace("\x00", "")
        raise Refused(f"the cash desk answers {response.status}: {text}")
    response.raise_for_status()
    try:
        return read_operation(parse_object(response.body, "the cash desk's answer"))
    except ValueError as error:
        raise Refused(str(error)) from None


def read_operation(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return id, state and error of the operation in an answer: Dreamkas', or the app `cashdesk`'s.

    Raises:
        ValueError: there is none.
    """
    operation = document.get("operation") or document.get("receipt") or document
    fields = operation if isinstance(operation, dict) else {}
    state, id = fields.get("status") or fields.get("state"), fields.get("id")
    if not isinstance(state, str) or not isinstance(id, str | int):
        raise ValueError("the cash desk's answer is not an operation with id and status")  # noqa: TRY004 - as all payloads
    data = fields.get("data")
    error = fields.get("error") or (data.get("error") if isinstance(data, dict) else None)
    if isinstance(error, dict):
        error = ": ".join(str(error[name]) for name in ("code", "message") if error.get(name))
    is_operation = document.get("operation") or "receipt" not in document
    return {
        "id": str(id) if is_operation else None,
        "state": _STATES.get(state, "PENDING"),
        "error": None if error is None else str(error)[:1_000],
    }


async def reissue(tx: Transaction, id: int) -> Mapping[str, Any] | None:
    """Issue a failed receipt again, under a new external id; None if it has not failed."""
    row = await tx.fetchrow(SQL["reissue"], id)
    if row is None:
        return None
    await publish(tx, row["id"], row["external_id"], row["payment_id"])
    return dict(row)
