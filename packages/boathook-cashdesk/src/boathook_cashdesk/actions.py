"""What users may do with the objects of their cabinets: the rules of each kind, checked in the transaction."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from boathook import Transaction
from boathook_cashdesk import ledger
from boathook_cashdesk.app import User, gettext, hook, webhooks
from boathook_cashdesk.entities import Entity, Object
from boathook_cashdesk.forms import (
    DeviceForm,
    EncashmentChange,
    EncashmentForm,
    Form,
    ItemForm,
    ProductForm,
    ReceiptForm,
    ShiftChange,
    ShiftForm,
)
from boathook_pages import BadField, Conflict, Missing
from boathook_pages.languages import gettext_noop

OWN = "cashdesk"
"""The application to which the app publishes work for its own handlers."""
FISCALISE = "receipt.fiscalise"
_UNTAXED = "none"

CheckNew = Callable[[Transaction, User, Any], Awaitable[None]]
CheckChange = Callable[[Transaction, User, int, Any], Awaitable[None]]
CheckRemoval = Callable[[Transaction, User, int], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules of one kind of objects; a form that is None means that this is not supported."""

    form: type[Form] | None = None
    change_form: type[Form] | None = None
    check_new: CheckNew | None = None
    check_change: CheckChange | None = None
    check_removal: CheckRemoval | None = None
    taken: str = ""
    """The message if another object has the same unique values."""


async def add(tx: Transaction, user: User, entity: Entity, form: Any) -> Object:
    """Create an object, of a receipt with its operation. Raises BadField, Conflict."""
    if entity is Entity.RECEIPTS:
        return await _add_receipt(tx, user, form)
    rules = RULES[entity]
    if rules.check_new is not None:
        await rules.check_new(tx, user, form)
    added = await ledger.create(tx, user, entity, form.model_dump())
    if added is None:
        raise Conflict(gettext(rules.taken))
    return added


async def change(tx: Transaction, user: User, entity: Entity, id: int, form: Any) -> Object:
    """Change an object. Raises Missing, BadField, Conflict."""
    rules = RULES[entity]
    if rules.check_change is not None:
        await rules.check_change(tx, user, id, form)
    return await ledger.change(tx, user, entity, id, form.model_dump())


async def remove(tx: Transaction, user: User, entity: Entity, id: int) -> Object:
    """Delete an object. Raises Missing, Conflict."""
    rules = RULES[entity]
    if rules.check_removal is not None:
        await rules.check_removal(tx, user, id)
    return await ledger.remove(tx, user, entity, id)


async def close_shift(tx: Transaction, user: User, id: int) -> Object:
    """Close an open shift. Raises Conflict if receipts of it are still being fiscalised."""
    await _check_open(tx, user, id)
    pending = "select count(*) from cashdesk.receipts where user_id = $1 and shift_id = $2 and state = 'PENDING'"
    if count := await tx.fetchval(pending, user.id, id):
        raise Conflict(gettext("Receipts of this shift are not fiscalised yet: %(count)s.", count=count))
    closed_at = await tx.fetchval("select to_jsonb(clock_timestamp()) #>> '{}'")
    return await ledger.change(tx, user, Entity.SHIFTS, id, {"closed_at": closed_at})


async def _check_new_device(tx: Transaction, user: User, _form: DeviceForm) -> None:
    await webhooks.lock(tx, user)


async def _check_device(tx: Transaction, user: User, id: int, form: DeviceForm) -> None:
    await webhooks.lock(tx, user)
    await ledger.get(tx, user, Entity.DEVICES, id)
    statement = "select exists (select from cashdesk.devices where user_id = $1 and serial = $2 and id <> $3)"
    if await tx.fetchval(statement, user.id, form.serial, id):
        raise Conflict(gettext(_SERIAL_TAKEN))


async def _check_unused_device(tx: Transaction, user: User, id: int) -> None:
    await ledger.get(tx, user, Entity.DEVICES, id, "for update")
    used = "select exists (select from cashdesk.shifts where user_id = $1 and device_id = $2)"
    if await tx.fetchval(used, user.id, id):
        raise Conflict(gettext("Shifts were worked at this device, so it stays on record."))


async def _check_new_shift(tx: Transaction, user: User, form: ShiftForm) -> None:
    await _check_owned(tx, user, Entity.DEVICES, form.device_id, "device_id")


async def _check_open(tx: Transaction, user: User, id: int, _form: Any = None) -> None:
    shift = await ledger.get(tx, user, Entity.SHIFTS, id, "for update")
    if shift["closed_at"] is not None:
        raise Conflict(gettext("This shift is closed, and stays as it is."))


async def _check_unused_shift(tx: Transaction, user: User, id: int) -> None:
    await _check_open(tx, user, id)
    used = """
        select exists (select from cashdesk.receipts where user_id = $1 and shift_id = $2)
            or exists (select from cashdesk.encashments where user_id = $1 and shift_id = $2)"""
    if await tx.fetchval(used, user.id, id):
        raise Conflict(gettext("This shift has receipts or encashments, so it cannot be deleted."))


async def _check_new_encashment(tx: Transaction, user: User, form: EncashmentForm) -> None:
    await _check_shift_of_form(tx, user, form.shift_id)


async def _check_encashment(tx: Transaction, user: User, id: int, _form: Any = None) -> None:
    encashment = await ledger.get(tx, user, Entity.ENCASHMENTS, id)
    await _check_shift_of_form(tx, user, encashment["shift_id"])


async def _check_failed_receipt(tx: Transaction, user: User, id: int) -> None:
    """Check that a receipt failed, and delete its operations."""
    receipt = await ledger.get(tx, user, Entity.RECEIPTS, id, "for update")
    if receipt["state"] != "FAILED":
        raise Conflict(gettext("This receipt is %(state)s; only a FAILED one can be deleted.", state=receipt["state"]))
    owned = "select id from cashdesk.operations where user_id = $1 and receipt_id = $2 order by id"
    for row in await tx.fetch(owned, user.id, id):
        await ledger.remove(tx, user, Entity.OPERATIONS, row["id"])


async def _check_finished(tx: Transaction, user: User, id: int) -> None:
    operation = await ledger.get(tx, user, Entity.OPERATIONS, id, "for update")
    if operation["state"] == "PENDING":
        raise Conflict(gettext("This operation is in progress; try again later."))


_SERIAL_TAKEN: Final = gettext_noop("serial: you have a device with this serial number already")
RULES: Final[Mapping[Entity, Rules]] = {
    Entity.PRODUCTS: Rules(form=ProductForm, change_form=ProductForm),
    Entity.DEVICES: Rules(
        form=DeviceForm,
        change_form=DeviceForm,
        check_new=_check_new_device,
        check_change=_check_device,
        check_removal=_check_unused_device,
        taken=_SERIAL_TAKEN,
    ),
    Entity.SHIFTS: Rules(
        form=ShiftForm,
        change_form=ShiftChange,
        check_new=_check_new_shift,
        check_change=_check_open,
        check_removal=_check_unused_shift,
        taken=gettext_noop("device_id: a shift is open at this device; close it first"),
    ),
    Entity.ENCASHMENTS: Rules(
        form=EncashmentForm,
        change_form=EncashmentChange,
        check_new=_check_new_encashment,
        check_change=_check_encashment,
        check_removal=_check_encashment,
    ),
    Entity.RECEIPTS: Rules(form=ReceiptForm, check_removal=_check_failed_receipt),
    Entity.OPERATIONS: Rules(check_removal=_check_finished),
}


async def _add_receipt(tx: Transaction, user: User, form: ReceiptForm) -> Object:
    """Create a receipt and start its fiscalisation; return ``receipt`` and ``operation``.

    Names, prices and VAT that the form leaves out are those of the products now. If the external id is known, the
    existing receipt is returned in its current state.

    Raises:
        Conflict: the shift is closed, or another receipt has the external id.
        BadField: the shift or a product is not the user's.
    """
    if earlier := await _known_receipt(tx, user, form):
        return earlier
    shift_id = await _shift_at(tx, user, form.device_id) if form.shift_id is None else form.shift_id
    await _check_shift_of_form(tx, user, shift_id)
    items = await _priced(tx, user, form)
    total = sum(item["price"] * item["quantity"] for item in items)
    values = form.model_dump(exclude={"items", "device_id"})
    values |= {"shift_id": shift_id, "items": items, "total": total, "state": "PENDING"}
    receipt = await ledger.create(tx, user, Entity.RECEIPTS, values)
    if receipt is None:  # the same request was sent twice concurrently
        return _sure(await _known_receipt(tx, user, form))
    fields = {"receipt_id": receipt["id"], "kind": FISCALISE, "state": "PENDING"}
    operation = _sure(await ledger.create(tx, user, Entity.OPERATIONS, fields))
    await hook.publish(tx, application=OWN, type=FISCALISE, payload={"user": user.id, "operation": operation["id"]})
    return {"receipt": receipt, "operation": operation}


async def _check_owned(tx: Transaction, user: User, entity: Entity, id: int, field: str) -> None:
    """Lock the object that a form's field refers to against deletion. Raises BadField."""
    try:
        await ledger.get(tx, user, entity, id, "for key share")
    except Missing as error:
        raise BadField(field, str(error)) from None


async def _check_shift_of_form(tx: Transaction, user: User, id: int) -> None:
    """Check that a form's shift is open, and lock it."""
    try:
        shift = await ledger.get(tx, user, Entity.SHIFTS, id, "for share")
    except Missing as error:
        raise BadField("shift_id", str(error)) from None
    if shift["closed_at"] is not None:
        raise Conflict(gettext("shift_id: this shift is closed; open another one"))


async def _shift_at(tx: Transaction, user: User, device_id: int | None) -> int:
    """Return the open shift at a form's device. Raises BadField, and Conflict if none is open."""
    if device_id is None:
        raise BadField("shift_id", gettext("this field is required"))
    await _check_owned(tx, user, Entity.DEVICES, device_id, "device_id")
    shift_id: int | None = await tx.fetchval(
        "select id from cashdesk.shifts where user_id = $1 and device_id = $2 and closed_at is null", user.id, device_id
    )
    if shift_id is None:
        raise Conflict(gettext("device_id: no shift is open at this device; open one first"))
    return shift_id


async def _priced(tx: Transaction, user: User, form: ReceiptForm) -> list[dict[str, Any]]:
    """Return a receipt's lines, with the current name, price and VAT of each product where the form has none."""
    product_ids = [item.product_id for item in form.items if item.product_id is not None]
    rows = await tx.fetch(
        "select id, name, price, vat from cashdesk.products where user_id = $1 and id = any ($2::bigint[])",
        user.id, product_ids,
    )  # fmt: skip
    products = {row["id"]: {"name": row["name"], "price": row["price"], "vat": row["vat"]} for row in rows}
    return [_line(index, item, products) for index, item in enumerate(form.items)]


def _line(index: int, item: ItemForm, products: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    """Return one line of a receipt. Raises BadField."""
    if item.product_id is None:
        for field in ("name", "price"):
            if getattr(item, field) is None:
                raise BadField(f"items.{index}.{field}", gettext("this field is required without product_id"))
        return {"product_id": None, "vat": _UNTAXED} | item.given()
    if item.product_id not in products:
        raise BadField(
            f"items.{index}.product_id", gettext("you have no product with the id %(id)s", id=item.product_id)
        )
    return {**products[item.product_id], **item.given()}


async def _known_receipt(tx: Transaction, user: User, form: ReceiptForm) -> Object | None:
    """Return the receipt with the form's external id, if there is one, in the form of `_add_receipt`."""
    row = await tx.fetchrow(
        "select r.id, max(o.id) as operation from cashdesk.receipts r"
        " left join cashdesk.operations o on o.user_id = r.user_id and o.receipt_id = r.id"
        " where r.user_id = $1 and r.external_id = $2 group by r.id",
        user.id, form.external_id,
    )  # fmt: skip
    if row is None:
        return None
    receipt = await ledger.get(tx, user, Entity.RECEIPTS, row["id"])
    same = ("kind", "payment") if form.shift_id is None else ("shift_id", "kind", "payment")
    if not _same_items(receipt, form) or any(receipt[field] != getattr(form, field) for field in same):
        raise Conflict(gettext("external_id: another receipt has this external id"))
    operation = row["operation"] and await ledger.get(tx, user, Entity.OPERATIONS, row["operation"])
    return {"receipt": receipt, "operation": operation}


def _same_items(receipt: Object, form: ReceiptForm) -> bool:
    """Return whether a receipt can be made of a form, whose omitted fields may have any value."""
    items = receipt["items"]
    return len(items) == len(form.items) and all(
        item["product_id"] == item_form.product_id and item_form.given().items() <= item.items()
        for item, item_form in zip(items, form.items, strict=True)
    )


def _sure(row: Object | None) -> Object:
    assert row is not None, "these have no unique values that could be taken"
    return row
