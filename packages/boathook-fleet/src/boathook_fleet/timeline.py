"""The timeline of a car or a booking, from its changes: what was changed by whom, with the values before and after."""

import json
from collections.abc import Mapping
from typing import Any, Final

from boathook import Transaction
from boathook_app_tools.statements import load_statements
from boathook_fleet.records import ORDER
from boathook_fleet.tables import TABLES
from boathook_fleet.words import Entity

SQL: Final = load_statements(__file__)
SHOWN: Final = (Entity.CAR, Entity.BOOKING)
MAX_CHANGES: Final = 500
"""The latest changes of a timeline."""
MAX_FOUND: Final = 50
_MISSING: Final = object()


async def search(tx: Transaction, text: str) -> list[dict[str, Any]]:
    """Return cars and bookings by their id or number plate, or a part of it, or those that were changed last."""
    if not text.strip():
        return [dict(row) for row in await tx.fetch(SQL["list_latest"], MAX_FOUND)]
    plate = "".join(filter(str.isalnum, text)).upper()
    return [dict(row) for row in await tx.fetch(SQL["search"], text.strip(), plate, MAX_FOUND)]


async def read_object(tx: Transaction, entity: Entity, id: str) -> dict[str, Any] | None:
    """Return the row of a car or booking, with the related objects, or None if there is none."""
    row = await tx.fetchrow(SQL[f"read_{entity}"], id)
    if row is None:
        return None
    return {
        **row,
        "unparsed_fields": json.loads(row["unparsed_fields"]),
        "changed": await read_timeline(tx, entity, id),
    }


async def read_timeline(tx: Transaction, entity: Entity, id: str) -> list[dict[str, Any]]:
    """Return the latest changes of an object, newest first."""
    rows = await tx.fetch(SQL["read_changes"].format(order=ORDER), entity, id, MAX_CHANGES)
    state: dict[str, Any] = {}
    steps = []
    for row in rows:
        data, before = json.loads(row["data"]), json.loads(row["before"])
        fields = [
            {"name": name, "before": before.get(name, state.get(name)), "after": value}
            for name, value in data.items()
            if name != "id" and (name in before or state.get(name, _MISSING) != value)
        ]
        if not row["is_late"]:
            state |= data
        steps.append({**row, "fields": fields, "unparsed": json.loads(row["unparsed"])})
    return steps[::-1]


def columns(entity: Entity, row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of an object's columns by their names."""
    return {column.name: row[column.name] for column in TABLES[entity].columns}
