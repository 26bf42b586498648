"""What users do in their cabinets. Each is called in one transaction, which holds the change and its events."""

from typing import Any

from boathook import Transaction
from boathook.apps.cashdesk import ledger, users
from boathook.apps.cashdesk.app import hook
from boathook.apps.cashdesk.entities import Entity, Object
from boathook.apps.cashdesk.forms import (
    DeviceForm,
    EncashmentChange,
    EncashmentForm,
    ProductForm,
    ReceiptForm,
    ShiftChange,
    ShiftForm,
)
from boathook.apps.cashdesk.refusals import BadField, Conflict, Missing
from boathook.apps.cashdesk.users import User

OWN = "cashdesk"
"""The name under which the app's own handlers hear of work to do."""
FISCALISE = "receipt.fiscalise"


async def add_product(tx: Transaction, user: User, form: ProductForm) -> Object:
    """Put a product up for sale."""
    return _sure(await ledger.create(tx, user, Entity.PRODUCTS, form.model_dump()))


async def change_product(tx: Transaction, user: User, id: int, form: ProductForm) -> Object:
    """Give a product other values; receipts keep those it had when they were made."""
    return await ledger.change(tx, user, Entity.PRODUCTS, id, form.model_dump())


async def remove_product(tx: Transaction, user: User, id: int) -> Object:
    """Take a product from sale."""
    return await ledger.remove(tx, user, Entity.PRODUCTS, id)


async def register_device(tx: Transaction, user: User, form: DeviceForm) -> Object:
    """Register a cash register. Raises Conflict where its serial number is registered already."""
    await users.lock(tx, user)
    made = await ledger.create(tx, user, Entity.DEVICES, form.model_dump())
    if made is None:
        raise Conflict(f"serial: you have a device with the serial number {form.serial} already")
    return made


async def change_device(tx: Transaction, user: User, id: int, form: DeviceForm) -> Object:
    """Give a device other values. Raises Conflict where another one has the serial number."""
    await users.lock(tx, user)
    taken = "select exists (select from cashdesk.devices where user_id = $1 and serial = $2 and id <> $3)"
    if await tx.fetchval(taken, user.id, form.serial, id):
        raise Conflict(f"serial: you have a device with the serial number {form.serial} already")
    return await ledger.change(tx, user, Entity.DEVICES, id, form.model_dump())


async def remove_device(tx: Transaction, user: User, id: int) -> Object:
    """Strike a device off. Raises Conflict where shifts were worked at it."""
    await ledger.get(tx, user, Entity.DEVICES, id, "for update")
    used = "select exists (select from cashdesk.shifts where user_id = $1 and device_id = $2)"
    if await tx.fetchval(used, user.id, id):
        raise Conflict("shifts were worked at this device, so it stays on record")
    return await ledger.remove(tx, user, Entity.DEVICES, id)


async def open_shift(tx: Transaction, user: User, form: ShiftForm) -> Object:
    """Open a shift at a device. Raises Conflict where one is open there."""
    await _owned(tx, user, Entity.DEVICES, form.device_id, "device_id")
    made = await ledger.create(tx, user, Entity.SHIFTS, form.model_dump())
    if made is None:
        raise Conflict("device_id: a shift is open at this device; close it first")
    return made


async def change_shift(tx: Transaction, user: User, id: int, form: ShiftChange) -> Object:
    """Name another cashier of an open shift. Raises Conflict."""
    await _open_shift(tx, user, id)
    return await ledger.change(tx, user, Entity.SHIFTS, id, form.model_dump())


async def close_shift(tx: Transaction, user: User, id: int) -> Object:
    """Close an open shift. Raises Conflict where receipts of it are still with the fiscal drive."""
    await _open_shift(tx, user, id)
    pending = "select count(*) from cashdesk.receipts where user_id = $1 and shift_id = $2 and state = 'PENDING'"
    if count := await tx.fetchval(pending, user.id, id):
        raise Conflict(f"{count} receipts of this shift are not fiscalised yet; close it when they are")
    moment = await tx.fetchval("select to_jsonb(clock_timestamp()) #>> '{}'")
    return await ledger.change(tx, user, Entity.SHIFTS, id, {"closed_at": moment})


async def remove_shift(tx: Transaction, user: User, id: int) -> Object:
    """Undo the opening of a shift. Raises Conflict where it is closed, or anything was done in it."""
    await _open_shift(tx, user, id)
    used = """
        select exists (select from cashdesk.receipts where user_id = $1 and shift_id = $2)
            or exists (select from cashdesk.encashments where user_id = $1 and shift_id = $2)"""
    if await tx.fetchval(used, user.id, id):
        raise Conflict("receipts or encashments were made in this shift, so it stays on record")
    return await ledger.remove(tx, user, Entity.SHIFTS, id)


async def add_encashment(tx: Transaction, user: User, form: EncashmentForm) -> Object:
    """Record money brought or taken. Raises Conflict where the shift is closed."""
    await _shift_of(tx, user, form.shift_id)
    return _sure(await ledger.create(tx, user, Entity.ENCASHMENTS, form.model_dump()))


async def change_encashment(tx: Transaction, user: User, id: int, form: EncashmentChange) -> Object:
    """Correct an encashment of an open shift. Raises Conflict."""
    await _encashment_of_open_shift(tx, user, id)
    return await ledger.change(tx, user, Entity.ENCASHMENTS, id, form.model_dump())


async def remove_encashment(tx: Transaction, user: User, id: int) -> Object:
    """Take back an encashment of an open shift. Raises Conflict."""
    await _encashment_of_open_shift(tx, user, id)
    return await ledger.remove(tx, user, Entity.ENCASHMENTS, id)


async def add_receipt(tx: Transaction, user: User, form: ReceiptForm) -> Object:
    """Take in a receipt and set its fiscalisation going; return ``receipt`` and the ``operation``.

    Prices are those of the moment. A receipt whose external id is known is returned as it stands by then.

    Raises:
        Conflict: the shift is closed, or another receipt has the external id.
        BadField: the shift or a product is not the user's.
    """
    if known := await _known_receipt(tx, user, form):
        return known
    await _shift_of(tx, user, form.shift_id)
    items = await _priced(tx, user, form)
    total = sum(item["price"] * item["quantity"] for item in items)
    values = form.model_dump(exclude={"items"}) | {"items": items, "total": total, "state": "PENDING"}
    receipt = await ledger.create(tx, user, Entity.RECEIPTS, values)
    if receipt is None:  # the same request, sent twice at once
        return _sure(await _known_receipt(tx, user, form))
    wanted = {"receipt_id": receipt["id"], "kind": FISCALISE, "state": "PENDING"}
    operation = _sure(await ledger.create(tx, user, Entity.OPERATIONS, wanted))
    await hook.publish(tx, application=OWN, type=FISCALISE, payload={"user": user.id, "operation": operation["id"]})
    return {"receipt": receipt, "operation": operation}


async def remove_receipt(tx: Transaction, user: User, id: int) -> Object:
    """Discard a receipt that failed, with its operations. Raises Conflict where it did not."""
    receipt = await ledger.get(tx, user, Entity.RECEIPTS, id, "for update")
    if receipt["state"] != "FAILED":
        raise Conflict(f"this receipt is {receipt['state']}; only one that FAILED can be discarded")
    owned = "select id from cashdesk.operations where user_id = $1 and receipt_id = $2 order by id"
    for row in await tx.fetch(owned, user.id, id):
        await ledger.remove(tx, user, Entity.OPERATIONS, row["id"])
    return await ledger.remove(tx, user, Entity.RECEIPTS, id)


async def remove_operation(tx: Transaction, user: User, id: int) -> Object:
    """Clear away an operation that has ended. Raises Conflict where it has not."""
    operation = await ledger.get(tx, user, Entity.OPERATIONS, id, "for update")
    if operation["state"] == "PENDING":
        raise Conflict("this operation is under way; wait for its end")
    return await ledger.remove(tx, user, Entity.OPERATIONS, id)


async def _owned(tx: Transaction, user: User, entity: Entity, id: int, field: str) -> Object:
    """Return what a form's field points at, which cannot be deleted meanwhile. Raises BadField."""
    try:
        return await ledger.get(tx, user, entity, id, "for key share")
    except Missing as error:
        raise BadField(field, str(error)) from None


async def _shift_of(tx: Transaction, user: User, id: int) -> None:
    """Make sure that a form's shift is open, and stays so."""
    try:
        shift = await ledger.get(tx, user, Entity.SHIFTS, id, "for share")
    except Missing as error:
        raise BadField("shift_id", str(error)) from None
    if shift["closed_at"] is not None:
        raise Conflict("shift_id: this shift is closed; open another one")


async def _open_shift(tx: Transaction, user: User, id: int) -> None:
    shift = await ledger.get(tx, user, Entity.SHIFTS, id, "for update")
    if shift["closed_at"] is not None:
        raise Conflict("this shift is closed, and stays as it is")


async def _encashment_of_open_shift(tx: Transaction, user: User, id: int) -> None:
    encashment = await ledger.get(tx, user, Entity.ENCASHMENTS, id)
    await _shift_of(tx, user, encashment["shift_id"])


async def _priced(tx: Transaction, user: User, form: ReceiptForm) -> list[dict[str, Any]]:
    """Return a receipt's lines with name, price and VAT of each product as they are at this moment."""
    wanted = [item.product_id for item in form.items]
    rows = await tx.fetch(
        "select id, name, price, vat from cashdesk.products where user_id = $1 and id = any ($2::bigint[])",
        user.id, wanted,
    )  # fmt: skip
    known = {row["id"]: {"name": row["name"], "price": row["price"], "vat": row["vat"]} for row in rows}
    for place, id in enumerate(wanted):
        if id not in known:
            raise BadField(f"items.{place}.product_id", f"you have none of products with the id {id}")
    return [item.model_dump() | known[item.product_id] for item in form.items]


async def _known_receipt(tx: Transaction, user: User, form: ReceiptForm) -> Object | None:
    """Return the receipt with the form's external id, if there is one, as `add_receipt` does."""
    found = await tx.fetchrow(
        "select r.id, max(o.id) as operation from cashdesk.receipts r"
        " left join cashdesk.operations o on o.user_id = r.user_id and o.receipt_id = r.id"
        " where r.user_id = $1 and r.external_id = $2 group by r.id",
        user.id, form.external_id,
    )  # fmt: skip
    if found is None:
        return None
    receipt = await ledger.get(tx, user, Entity.RECEIPTS, found["id"])
    items = [{"product_id": item["product_id"], "quantity": item["quantity"]} for item in receipt["items"]]
    same = ("shift_id", "kind", "payment")
    if items != form.model_dump()["items"] or any(receipt[field] != getattr(form, field) for field in same):
        raise Conflict(f"external_id: you have another receipt with the external id {form.external_id}")
    operation = found["operation"] and await ledger.get(tx, user, Entity.OPERATIONS, found["operation"])
    return {"receipt": receipt, "operation": operation}


def _sure(made: Object | None) -> Object:
    assert made is not None, "these have no unique values that could be taken"
    return made
