"""Chains of events: what a handler publishes has the event that it handled as its cause."""

from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from boathook.db.database import Connection, Database
from boathook.db.statements import load
from boathook.domain import ids

SQL = load(__file__)
MAX_LINKS: Final = 100
"""Links of a chain that are read."""


class ChainLink(msgspec.Struct, frozen=True, kw_only=True):
    """One event of a chain."""

    event_id: str
    source: str | None
    application: str | None
    type: str | None
    """None, as `accepted_at`, if retention has dropped the event."""
    accepted_at: datetime | None
    delivery_id: str | None
    """The delivery whose handler published the next event; None for the last one."""
    recipient: str | None
    """The recipient of that delivery, if it is still stored."""


async def read_chain(database: Database | Connection, event_id: UUID) -> list[ChainLink]:
    """Return the events that led to an event, the first one first; only the event itself if no handler published it."""
    rows = await database.fetch(SQL["read_chain"], event_id, MAX_LINKS)
    return [
        ChainLink(
            event_id=ids.show(ids.EVENT, row["event_id"]),
            source=row["source"],
            application=row["application"],
            type=row["type"],
            accepted_at=row["accepted_at"],
            delivery_id=None if row["ordinal"] is None else ids.show_delivery(row["event_id"], row["ordinal"]),
            recipient=row["recipient"],
        )
        for row in rows
    ]
