"""Replays a single ended delivery: delivers its event to its recipient again."""

from typing import Final
from uuid import UUID

import asyncpg

from boathook.db import delivery_commands
from boathook.db.audit import record
from boathook.db.database import Connection, Database, Record
from boathook.db.delivery_commands import AuditContext, Key
from boathook.db.ordering import unblock
from boathook.db.statements import load
from boathook.domain import ids
from boathook.domain.errors import InvalidState, InvalidTransition, NotFound
from boathook.domain.model import MAX_DELIVERIES

SQL = load(__file__)
REPLAY_DELIVERY: Final = "delivery.replay"


async def replay_delivery(database: Database, key: Key, action: AuditContext) -> Key:
    """Add a delivery of the same event, or item, to the recipient of an ended delivery; return the new delivery.

    Raises:
        NotFound: no delivery with this key has ended.
        InvalidState: the event's content was deleted, or its endpoint is deleted or disabled.
        InvalidTransition: the recipient already has an open delivery or dead letter of it, or the event has the maximum
            number of deliveries.
    """
    async with database.transaction() as connection:
        await connection.execute(SQL["lock_event"], key[0])
        row = await _insert_replay(connection, *key)
        made = (key[0], _made(row, ids.show_delivery(*key)))
        await unblock(connection, [(row["recipient"], row["order_key"])])
        await record(connection, action.actor, REPLAY_DELIVERY, ids.show_delivery(*key), action.note)
        await delivery_commands.notify_due(connection)
        return made


async def _insert_replay(connection: Connection, event_id: UUID, ordinal: int) -> Record:
    try:
        row: Record | None = await connection.fetchrow(SQL["owe_again"], event_id, ordinal)
    except asyncpg.NumericValueOutOfRangeError:
        message = f"an event can have {MAX_DELIVERIES} deliveries including replays, and this one has them"
        raise InvalidTransition(message) from None
    if row is None:
        raise NotFound(f"no delivery {ids.show_delivery(event_id, ordinal)} has ended")
    return row


def _made(row: Record, name: str) -> int:
    """Return the ordinal of the new delivery. Raises the reason if none was added."""
    made: int | None = row["made"]
    if made is not None:
        return made
    if row["is_gone"]:
        raise InvalidState("the event's content was deleted, so there is nothing to be replayed", "missing_payload")
    if not row["takes"]:
        text = f"{row['recipient']} is deleted or disabled; enable the endpoint first, then replay {name}"
        raise InvalidState(text, "endpoint_disabled")
    raise InvalidTransition(
        f"{row['recipient']} already has a pending delivery or dead letter of this event: see its other deliveries"
    )
