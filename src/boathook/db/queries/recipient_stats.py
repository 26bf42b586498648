"""Reads the backlog and the latest failures of one recipient, a handler or an endpoint, by index."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from boathook.db.database import Connection
from boathook.db.statements import load
from boathook.domain import ids
from boathook.domain.model import State

SQL = load(__file__)
MAX_COUNTED: Final = 10_000
_MAX_SCHEDULED: Final = 200
"""Number of scheduled deliveries that are searched for failed ones."""


class RecipientBacklog(msgspec.Struct, frozen=True):
    """A recipient's pending deliveries and dead letters, each counted up to `MAX_COUNTED`."""

    pending: int
    dead: int
    oldest_due_at: datetime | None
    """Since when its oldest due delivery is due; None if none is."""


class FailedDelivery(msgspec.Struct, frozen=True):
    """A dead letter, or a failed delivery that is scheduled for a retry."""

    event_id: UUID
    ordinal: int
    state: State
    attempts: int
    at: datetime
    """When it failed permanently, or when the next attempt is due."""
    code: str
    error: str | None
    """The beginning of the error."""
    type: str

    @property
    def is_dead(self) -> bool:
        """Whether it is a dead letter."""
        return self.state is State.DEAD

    @property
    def shown_id(self) -> str:
        """The delivery's public id."""
        return ids.show_delivery(self.event_id, self.ordinal)


async def count_backlog(connection: Connection, recipient: str) -> RecipientBacklog:
    """Count a recipient's pending deliveries and dead letters."""
    (row,) = await connection.fetch(SQL["count_backlog"], recipient, MAX_COUNTED)
    return RecipientBacklog(min(row["pending"], MAX_COUNTED), row["dead"], row["oldest_due_at"])


async def list_failures(connection: Connection, recipient: str, *, limit: int) -> Sequence[FailedDelivery]:
    """Return a recipient's latest dead letters, and then its failed deliveries that are retried next.

    Args:
        connection: reads them.
        recipient: the handler or endpoint.
        limit: maximum number of each.
    """
    rows = await connection.fetch(SQL["list_failures"], recipient, limit, _MAX_SCHEDULED)
    return [FailedDelivery(**{**dict(row), "state": State(row["state"])}) for row in rows]
