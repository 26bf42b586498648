"""The bodies of webhooks: Dreamkas' documented format, and boathook's own.

The envelope is that of the article about Dreamkas' webhooks. Fields of ``data`` have the names of Dreamkas' API; what
this cabinet does not have is left out. ``revision`` is an addition.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, Literal
from uuid import uuid4

from boathook_cashdesk.entities import Action, Entity, Object

Format = Literal["dreamkas", "boathook"]

TYPES: Final[Mapping[Entity, str]] = {entity: entity.removesuffix("s").upper() for entity in Entity}
"""Dreamkas' names of the kinds of objects: singular, in upper case."""
TEST_TYPE: Final = "WEBHOOK"
"""The type of test events, which Dreamkas does not document."""
_TAXES: Final = {"none": "NDS_NO_TAX", **{rate: f"NDS_{rate}" for rate in ("0", "5", "7", "10", "20", "22")}}
_PAYMENTS: Final = {"cash": "CASH", "card": "CASHLESS"}
_ENCASHMENTS: Final = {"deposit": "MONEY_IN", "withdrawal": "MONEY_OUT"}
_STATUSES: Final = {"PENDING": "PENDING", "DONE": "SUCCESS", "FAILED": "ERROR"}
_PIECES: Final = "COUNTABLE"
"""The type of a product that is sold by the piece, as all products of this cabinet are."""
_PIECE: Final = 1_000
"""Quantities on a receipt are in thousandths."""


def change_body(format: Format, entity: Entity, action: Action, state: Object, owner: Object) -> dict[str, Any]:
    """Return the body that reports a change.

    Args:
        format: the format of the cabinet's webhooks.
        entity: the kind of the object.
        action: what was done with it.
        state: its row after the change, or before its deletion.
        owner: fields of the row that it belongs to, see `owner_of`.
    """
    if format == "dreamkas":
        data = _DATA[entity](state, owner) | {"revision": state["revision"]}
        return {"action": action, "type": TYPES[entity], "data": data}
    at = datetime.now(UTC).isoformat()
    return {"id": str(uuid4()), "type": entity, "action": action, "at": at, "object": state}


def test_body(format: Format, webhook: int) -> dict[str, Any]:
    """Return the body of a test event for a webhook."""
    if format == "dreamkas":
        return {"action": "TEST", "type": TEST_TYPE, "data": {"id": webhook}}
    return {"type": "test", "action": "TEST", "object": {"webhook": webhook}}


def owner_of(format: Format, entity: Entity, state: Object) -> tuple[Entity, int] | None:
    """Return the object with fields that the body needs in addition to *state*, as ``owner``; None without one."""
    if format == "dreamkas":
        match entity:
            case Entity.RECEIPTS | Entity.ENCASHMENTS:
                return Entity.SHIFTS, state["shift_id"]
            case Entity.OPERATIONS:
                return Entity.RECEIPTS, state["receipt_id"]
    return None


def _product(state: Object, _owner: Object) -> dict[str, Any]:
    return {
        "id": state["id"],
        "name": state["name"],
        "type": _PIECES,
        "price": state["price"],
        "tax": _TAXES[state["vat"]],
        "barcodes": [] if state["barcode"] is None else [state["barcode"]],
        "createdAt": _time(state["created_at"]),
        "updatedAt": _time(state["updated_at"]),
    }


def _receipt(state: Object, shift: Object) -> dict[str, Any]:
    return {
        "id": state["id"],
        "type": state["kind"].upper(),
        "amount": state["total"],
        "deviceId": shift["device_id"],
        "shiftId": state["shift_id"],
        "date": _time(state["created_at"]),
        "payments": [{"type": _PAYMENTS[state["payment"]], "amount": state["total"]}],
        "positions": [_position(item) for item in state["items"]],
        "cashier": {"name": shift["cashier"]},
        "fiscalDocumentNumber": None if state["document"] is None else str(state["document"]),
        "fiscalDocumentSign": state["sign"],
        "fnNumber": state["drive"],
    }


def _position(item: Object) -> dict[str, Any]:
    position = {
        "name": item["name"],
        "type": _PIECES,
        "quantity": item["quantity"] * _PIECE,
        "price": item["price"],
        "tax": _TAXES[item["vat"]],
    }
    return position if item["product_id"] is None else {"id": item["product_id"]} | position


def _shift(state: Object, _owner: Object) -> dict[str, Any]:
    return {
        "id": state["id"],
        "shiftId": state["id"],
        "deviceId": state["device_id"],
        "openedAt": _time(state["opened_at"]),
        "closedAt": _time(state["closed_at"]),
        "isClosed": state["closed_at"] is not None,
    }


def _encashment(state: Object, shift: Object) -> dict[str, Any]:
    return {
        "id": state["id"],
        "deviceId": shift["device_id"],
        "type": _ENCASHMENTS[state["kind"]],
        "shiftId": state["shift_id"],
        "cashier": {"name": shift["cashier"]},
        "sum": state["amount"],
        "date": _time(state["created_at"]),
    }


def _device(state: Object, _owner: Object) -> dict[str, Any]:
    return {"id": state["id"], "name": state["name"]}


def _operation(state: Object, receipt: Object) -> dict[str, Any]:
    data: dict[str, Any] = {"receiptId": state["receipt_id"]}
    if state["error"] is not None:
        code, _, message = state["error"].partition(": ")
        data["error"] = {"code": code, "message": message}
    return {
        "id": state["id"],
        "externalId": receipt["external_id"],
        "createdAt": _time(state["created_at"]),
        "status": _STATUSES[state["state"]],
        "data": data,
        "completedAt": _time(state["finished_at"]),
    }


_DATA: Final[Mapping[Entity, Callable[[Object, Object], dict[str, Any]]]] = {
    Entity.PRODUCTS: _product,
    Entity.RECEIPTS: _receipt,
    Entity.SHIFTS: _shift,
    Entity.ENCASHMENTS: _encashment,
    Entity.DEVICES: _device,
    Entity.OPERATIONS: _operation,
}


def _time(text: str | None) -> str | None:
    """Return a time as Dreamkas writes it: in UTC, with milliseconds."""
    if text is None:
        return None
    return datetime.fromisoformat(text).astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
