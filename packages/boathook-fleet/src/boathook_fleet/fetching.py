"""Lets updates of an unknown object wait until the whole object is fetched, and stores what was fetched.

The fetched object becomes a change that creates it, at the time of the request. The waiting updates came before and are
applied before; what the response says then wins over them. It does not win with an empty field, nor with the value that
a waiting update names as the one before it: then the response is the older of the two.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from boathook import Transaction
from boathook_app_tools.statements import load_statements
from boathook_fleet.parse import Change
from boathook_fleet.records import Arrival, note_change
from boathook_fleet.rentprog_api import PATHS
from boathook_fleet.settings import FleetSettings
from boathook_fleet.tables import TABLES, is_empty
from boathook_fleet.words import Action, Entity

SQL: Final = load_statements(__file__)
SOURCE: Final = "rentprog_api"
"""The source of fetched changes."""


async def request_object(tx: Transaction, entity: Entity, id: str, settings: FleetSettings) -> tuple[bool, bool]:
    """Return whether the changes of an object wait for the whole object, and whether it has to be fetched from now on.

    Only updates of an object about which nothing else is known wait, for ``fleet.api.wait_s`` at most.
    """
    if entity not in PATHS or not settings.can_fetch:
        return False, False
    statement = SQL["request"].format(table=TABLES[entity].name)
    row = await tx.fetchrow(statement, entity, id, settings.api.wait_s)
    return (False, False) if row is None else (row["is_waiting"], row["is_new"])


async def end_waits(tx: Transaction) -> list[tuple[Entity, str]]:
    """Return the objects whose updates have waited for too long, each once; they are to be applied."""
    return [(Entity(row["entity"]), row["entity_id"]) for row in await tx.fetch(SQL["end_waits"])]


async def note_object(
    tx: Transaction, event_id: UUID, entity: Entity, id: str, fields: Mapping[str, Any], at: datetime, zone: Any
) -> None:
    """Add what was fetched at a time to the changes of an object; *event_id* is the event that requested it."""
    stale = {
        name
        for row in await tx.fetch(SQL["waiting"], entity, id, at)
        for name, value in json.loads(row["before"]).items()
        if fields.get(name) == value
    }
    data = {name: value for name, value in fields.items() if name not in stale and not is_empty(value)}
    change = Change(
        entity=entity, action=Action.CREATE, id=id, stamp=at, description=f"{entity} {id}: fetched", data=data
    )
    arrival = Arrival(event_id=event_id, source=SOURCE, type="object.missing", accepted_at=at)
    await note_change(tx, arrival, change, at, TABLES[entity].unparsed(data, zone))


async def branch_of(tx: Transaction, entity: Entity, id: str) -> str | None:
    """Return the branch that the updates of an object name, if any."""
    branch: str | None = await tx.fetchval(SQL["branch"], entity, id)
    return branch


async def finish_request(tx: Transaction, entity: Entity, id: str, result: str) -> None:
    """Store how a request for an object has ended."""
    await tx.execute(SQL["finish"], entity, id, result)


async def count_open(tx: Transaction) -> int:
    """Return the number of objects that are still to be fetched."""
    return int(await tx.fetchval(SQL["count_open"]))
