"""The actions of users in their cabinets. Each runs in one transaction, which holds the change and its events."""

from collections.abc import Mapping
from typing import Any

from boathook import Transaction
from boathook_cashdesk import ledger, users
from boathook_cashdesk.app import hook
from boathook_cashdesk.cabinet_errors import BadField, Conflict, Missing
from boathook_cashdesk.entities import Entity, Object
from boathook_cashdesk.forms import (
    DeviceForm,
    EncashmentChange,
    EncashmentForm,
    ItemForm,
    ProductForm,
    ReceiptForm,
    ShiftChange,
    ShiftForm,
)
from boathook_cashdesk.users import User

OWN = "cashdesk"
"""The application to which the app publishes work for its own handlers."""
FISCALISE = "receipt.fiscalise"
_UNTAXED = "none"


async def add_product(tx: Transaction, user: User, form: ProductForm) -> Object:
    """Create a product."""
    return _sure(await ledger.create(tx, user, Entity.PRODUCTS, form.model_dump()))


async def change_product(tx: Transaction, user: User, id: int, form: ProductForm) -> Object:
    """Change a product; existing receipts keep their values."""
    return await ledger.change(tx, user, Entity.PRODUCTS, id, form.model_dump())


async def remove_product(tx: Transaction, user: User, id: int) -> Object:
    """Delete a product."""
    return await ledger.remove(tx, user, Entity.PRODUCTS, id)


async def register_device(tx: Transaction, user: User, form: DeviceForm) -> Object:
    """Register a cash register. Raises Conflict if its serial number is already registered."""
    await users.lock(tx, user)
    made = await ledger.create(tx, user, Entity.DEVICES, form.model_dump())
    if made is None:
        raise Conflict(f"serial: you have a device with the serial number {form.serial} already")
    return made


async def change_device(tx: Transaction, user: User, id: int, form: DeviceForm) -> Object:
    """Change a device. Raises Conflict if another one has the serial number."""
    await users.lock(tx, user)
    await ledger.get(tx, user, Entity.DEVICES, id)
    taken = "select exists (select from cashdesk.devices where user_id = $1 and serial = $2 and id <> $3)"
    if await tx.fetchval(taken, user.id, form.serial, id):
        raise Conflict(f"serial: you have a device with the serial number {form.serial} already")
    return await ledger.change(tx, user, Entity.DEVICES, id, form.model_dump())


async def remove_device(tx: Transaction, user: User, id: int) -> Object:
    """Delete a device. Raises Conflict if it has shifts."""
    await ledger.get(tx, user, Entity.DEVICES, id, "for update")
    used = "select exists (select from cashdesk.shifts where user_id = $1 and device_id = $2)"
    if await tx.fetchval(used, user.id, id):
        raise Conflict("shifts were worked at this device, so it stays on record")
    return await ledger.remove(tx, user, Entity.DEVICES, id)


async def open_shift(tx: Transaction, user: User, form: ShiftForm) -> Object:
    """Open a shift at a device. Raises Conflict if one is already open there."""
    await _owned(tx, user, Entity.DEVICES, form.device_id, "device_id")
    made = await ledger.create(tx, user, Entity.SHIFTS, form.model_dump())
    if made is None:
        raise Conflict("device_id: a shift is open at this device; close it first")
    return made


async def change_shift(tx: Transaction, user: User, id: int, form: ShiftChange) -> Object:
    """Change the cashier of an open shift. Raises Conflict."""
    await _open_shift(tx, user, id)
    return await ledger.change(tx, user, Entity.SHIFTS, id, form.model_dump())


async def close_shift(tx: Transaction, user: User, id: int) -> Object:
    """Close an open shift. Raises Conflict if receipts of it are still being fiscalised."""
    await _open_shift(tx, user, id)
    pending = "select count(*) from cashdesk.receipts where user_id = $1 and shift_id = $2 and state = 'PENDING'"
    if count := await tx.fetchval(pending, user.id, id):
        raise Conflict(f"{count} receipts of this shift are not fiscalised yet; close it when they are")
    closed_at = await tx.fetchval("select to_jsonb(clock_timestamp()) #>> '{}'")
    return await ledger.change(tx, user, Entity.SHIFTS, id, {"closed_at": closed_at})


async def remove_shift(tx: Transaction, user: User, id: int) -> Object:
    """Delete a shift that was just opened. Raises Conflict if it is closed or was used."""
    await _open_shift(tx, user, id)
    used = """
        select exists (select from cashdesk.receipts where user_id = $1 and shift_id = $2)
            or exists (select from cashdesk.encashments where user_id = $1 and shift_id = $2)"""
    if await tx.fetchval(used, user.id, id):
        raise Conflict("this shift has receipts or encashments, so it cannot be deleted")
    return await ledger.remove(tx, user, Entity.SHIFTS, id)


async def add_encashment(tx: Transaction, user: User, form: EncashmentForm) -> Object:
    """Record a deposit or withdrawal of cash. Raises Conflict if the shift is closed."""
    await _shift_of(tx, user, form.shift_id)
    return _sure(await ledger.create(tx, user, Entity.ENCASHMENTS, form.model_dump()))


async def change_encashment(tx: Transaction, user: User, id: int, form: EncashmentChange) -> Object:
    """Correct an encashment of an open shift. Raises Conflict."""
    await _encashment_of_open_shift(tx, user, id)
    return await ledger.change(tx, user, Entity.ENCASHMENTS, id, form.model_dump())


async def remove_encashment(tx: Transaction, user: User, id: int) -> Object:
    """Delete an encashment of an open shift. Raises Conflict."""
    await _encashment_of_open_shift(tx, user, id)
    return await ledger.remove(tx, user, Entity.ENCASHMENTS, id)


async def add_receipt(tx: Transaction, user: User, form: ReceiptForm) -> Object:
    """Create a receipt and start its fiscalisation; return ``receipt`` and the ``operation``.

    Names, prices and VAT that the form leaves out are those of the products now. If the external id is known, the
    existing receipt is returned in its current state.

    Raises:
        Conflict: the shift is closed, or another receipt has the external id.
        BadField: the shift or a product is not the user's.
    """
    if known := await _known_receipt(tx, user, form):
        return known
    shift_id = await _shift_at(tx, user, form.device_id) if form.shift_id is None else form.shift_id
    await _shift_of(tx, user, shift_id)
    items = await _priced(tx, user, form)
    total = sum(item["price"] * item["quantity"] for item in items)
    values = form.model_dump(exclude={"items", "device_id"})
    values |= {"shift_id": shift_id, "items": items, "total": total, "state": "PENDING"}
    receipt = await ledger.create(tx, user, Entity.RECEIPTS, values)
    if receipt is None:  # the same request was sent twice concurrently
        return _sure(await _known_receipt(tx, user, form))
    wanted = {"receipt_id": receipt["id"], "kind": FISCALISE, "state": "PENDING"}
    operation = _sure(await ledger.create(tx, user, Entity.OPERATIONS, wanted))
    await hook.publish(tx, application=OWN, type=FISCALISE, payload={"user": user.id, "operation": operation["id"]})
    return {"receipt": receipt, "operation": operation}


async def remove_receipt(tx: Transaction, user: User, id: int) -> Object:
    """Delete a failed receipt with its operations. Raises Conflict if it did not fail."""
    receipt = await ledger.get(tx, user, Entity.RECEIPTS, id, "for update")
    if receipt["state"] != "FAILED":
        raise Conflict(f"this receipt is {receipt['state']}; only one that FAILED can be discarded")
    owned = "select id from cashdesk.operations where user_id = $1 and receipt_id = $2 order by id"
    for row in await tx.fetch(owned, user.id, id):
        await ledger.remove(tx, user, Entity.OPERATIONS, row["id"])
    return await ledger.remove(tx, user, Entity.RECEIPTS, id)


async def remove_operation(tx: Transaction, user: User, id: int) -> Object:
    """Delete a finished operation. Raises Conflict if it is not finished."""
    operation = await ledger.get(tx, user, Entity.OPERATIONS, id, "for update")
    if operation["state"] == "PENDING":
        raise Conflict("this operation is in progress; retry later")
    return await ledger.remove(tx, user, Entity.OPERATIONS, id)


async def _owned(tx: Transaction, user: User, entity: Entity, id: int, field: str) -> Object:
    """Return the object that a form's field refers to, locked against deletion. Raises BadField."""
    try:
        return await ledger.get(tx, user, entity, id, "for key share")
    except Missing as error:
        raise BadField(field, str(error)) from None


async def _shift_of(tx: Transaction, user: User, id: int) -> None:
    """Check that a form's shift is open, and lock it."""
    try:
        shift = await ledger.get(tx, user, Entity.SHIFTS, id, "for share")
    except Missing as error:
        raise BadField("shift_id", str(error)) from None
    if shift["closed_at"] is not None:
        raise Conflict("shift_id: this shift is closed; open another one")


async def _shift_at(tx: Transaction, user: User, device_id: int | None) -> int:
    """Return the open shift at a form's device. Raises BadField, and Conflict if none is open."""
    if device_id is None:
        raise BadField("shift_id", "this field is required")
    await _owned(tx, user, Entity.DEVICES, device_id, "device_id")
    shift_id: int | None = await tx.fetchval(
        "select id from cashdesk.shifts where user_id = $1 and device_id = $2 and closed_at is null", user.id, device_id
    )
    if shift_id is None:
        raise Conflict("device_id: no shift is open at this device; open one first")
    return shift_id


async def _open_shift(tx: Transaction, user: User, id: int) -> None:
    shift = await ledger.get(tx, user, Entity.SHIFTS, id, "for update")
    if shift["closed_at"] is not None:
        raise Conflict("this shift is closed, and stays as it is")


async def _encashment_of_open_shift(tx: Transaction, user: User, id: int) -> None:
    encashment = await ledger.get(tx, user, Entity.ENCASHMENTS, id)
    await _shift_of(tx, user, encashment["shift_id"])


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
                raise BadField(f"items.{index}.{field}", "this field is required where there is no product_id")
        return {"product_id": None, "vat": _UNTAXED} | item.given()
    if item.product_id not in products:
        raise BadField(f"items.{index}.product_id", f"you have no product with the id {item.product_id}")
    return {**products[item.product_id], **item.given()}


async def _known_receipt(tx: Transaction, user: User, form: ReceiptForm) -> Object | None:
    """Return the receipt with the form's external id, if there is one, in the form of `add_receipt`."""
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
        raise Conflict(f"external_id: you have another receipt with the external id {form.external_id}")
    operation = row["operation"] and await ledger.get(tx, user, Entity.OPERATIONS, row["operation"])
    return {"receipt": receipt, "operation": operation}


def _same_items(receipt: Object, form: ReceiptForm) -> bool:
    """Return whether a receipt can be made of a form, whose omitted fields may have any value."""
    items = receipt["items"]
    return len(items) == len(form.items) and all(
        item["product_id"] == item_form.product_id and item_form.given().items() <= item.items()
        for item, item_form in zip(items, form.items, strict=True)
    )


def _sure(made: Object | None) -> Object:
    assert made is not None, "these have no unique values that could be taken"
    return made
