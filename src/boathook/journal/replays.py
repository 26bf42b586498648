"""Owes one recipient an event once more, when its delivery has ended."""

from typing import Final
from uuid import UUID

import asyncpg

from boathook.domain import ids
from boathook.domain.errors import IllegalMove, NotFound, NotPossible
from boathook.domain.model import MAX_DELIVERIES
from boathook.journal import moves
from boathook.journal.audit import note
from boathook.journal.database import Connection, Database, Record
from boathook.journal.lines import unblock
from boathook.journal.moves import Action, Key
from boathook.journal.statements import load

SQL = load(__file__)
REPLAY_DELIVERY: Final = "delivery.replay"


async def owe_again(database: Database, key: Key, action: Action) -> Key:
    """Owe the event, or the item, of an ended delivery to its recipient once more; return the delivery that was added.

    Raises:
        NotFound: no delivery with this key has ended.
        NotPossible: the event's content is gone, or its endpoint is.
        IllegalMove: it is owed there, or a dead letter, already; or the event can be owed no more deliveries.
    """
    async with database.transaction() as connection:
        await connection.execute(SQL["lock_event"], key[0])
        row = await _owe(connection, *key)
        made = (key[0], _made(row, ids.show_delivery(*key)))
        await unblock(connection, [(row["recipient"], row["order_key"])])
        await note(connection, action.actor, REPLAY_DELIVERY, ids.show_delivery(*key), action.note)
        await moves.announce_due(connection)
        return made


async def _owe(connection: Connection, event_id: UUID, ordinal: int) -> Record:
    try:
        row: Record | None = await connection.fetchrow(SQL["owe_again"], event_id, ordinal)
    except asyncpg.NumericValueOutOfRangeError:
        most = f"an event can be owed {MAX_DELIVERIES} deliveries with all its replays, and this one was"
        raise IllegalMove(most) from None
    if row is None:
        raise NotFound(f"no delivery {ids.show_delivery(event_id, ordinal)} has ended")
    return row


def _made(row: Record, name: str) -> int:
    """Return the number of the delivery that was added. Raises what keeps it from being."""
    made: int | None = row["made"]
    if made is not None:
        return made
    if row["is_gone"]:
        raise NotPossible("the event's content was deleted, so there is nothing to be replayed", "missing_payload")
    if not row["takes"]:
        text = f"{row['recipient']} is deleted or disabled; enable the endpoint first, then replay {name}"
        raise NotPossible(text, "endpoint_disabled")
    raise IllegalMove(f"{row['recipient']} is owed this already, or has it as a dead letter: see its other deliveries")
