"""Events for the owner's own endpoints: ``booking.late`` and ``booking.price_changed``, each once.

They are published in the transaction that writes the price, or that finds the booking late, to ``fleet.application``.
"""

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from boathook import Boathook, Transaction
from boathook_app_tools.statements import load_statements
from boathook_fleet.records import FeedEntry
from boathook_fleet.words import Entity

SQL: Final = load_statements(__file__)
LATE: Final = "booking.late"
PRICE_CHANGED: Final = "booking.price_changed"
DESCRIPTIONS: Final = {
    LATE: "A booking has ended, and its car has not been returned.",
    PRICE_CHANGED: "The price of a booking has changed.",
}
MAX_LATE: Final = 500
"""Bookings found late in one transaction."""


def schemas() -> dict[str, Any]:
    """Return the JSON Schema of each event type, with examples."""
    folder = Path(__file__).with_name("schemas")
    return {name: json.loads((folder / f"{name}.json").read_text(encoding="utf-8")) for name in DESCRIPTIONS}


async def declare_events(hook: Boathook, tx: Transaction) -> None:
    """Create the application and the event types that do not exist yet, so that endpoints can be added."""
    if hook.settings.application:
        await hook.operations.put_application(tx, hook.settings.application, name="Fleet")
        await hook.operations.declare_types(tx, DESCRIPTIONS, schemas())


async def publish_price(hook: Boathook, tx: Transaction, entry: FeedEntry) -> None:
    """Publish that what was written has another price, if that is so."""
    if entry.entity is not Entity.BOOKING or entry.former is None or not hook.settings.application:
        return
    before, price = entry.former["price"], entry.values["price"]
    if before is not None and price is not None and before != price:
        row = await tx.fetchrow(SQL["read_booking"], entry.id)
        assert row is not None
        data = _booking(row) | {"price_before": _money(before), "price": _money(price), "currency": row["currency"]}
        await _publish(hook, tx, PRICE_CHANGED, data)


async def publish_late(hook: Boathook, tx: Transaction) -> int:
    """Publish which bookings are late since the last call; return their number.

    A booking that is prolonged may be late once more.
    """
    settings = hook.settings
    if not settings.application:
        return 0
    rows = await tx.fetch(SQL["take_late"], settings.late_after_s, list(settings.late_states), MAX_LATE)
    for row in rows:
        await _publish(hook, tx, LATE, _booking(row))
    return len(rows)


async def _publish(hook: Boathook, tx: Transaction, type: str, data: Mapping[str, Any]) -> None:
    payload = {"type": type, "timestamp": datetime.now(UTC), "data": data}
    await hook.operations.put_application(tx, hook.settings.application, name="Fleet")
    await hook.publish(tx, application=hook.settings.application, type=type, payload=payload)


def _booking(row: Any) -> dict[str, Any]:
    names = ("state", "starts_at", "ends_at", "car_id", "car_number", "client_id", "branch_id")
    return {"booking_id": row["id"], **{name: row[name] for name in names}}


def _money(amount: Decimal) -> str:
    return f"{amount:.2f}"
