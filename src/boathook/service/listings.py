"""Lists stored rows, newest first, and reads one event or delivery with its details.

Each listing takes a `ListFilter` and returns a page of at most its limit; the id of the last row continues it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from boathook.db.database import Database
from boathook.db.delivery_commands import Key
from boathook.db.queries import listings
from boathook.db.queries.listings import AuditRow, SideEffectRow
from boathook.db.queries.listings import ConflictRow as ConflictRow  # noqa: PLC0414 - re-exported
from boathook.db.queries.listings import DeliveryRow as DeliveryRow  # noqa: PLC0414 - re-exported
from boathook.db.queries.listings import EventRow as EventRow  # noqa: PLC0414 - re-exported
from boathook.db.queries.listings import ListFilter as ListFilter  # noqa: PLC0414 - re-exported
from boathook.db.queries.listings import RejectionRow as RejectionRow  # noqa: PLC0414 - re-exported
from boathook.db.queries.listings import StoredRequest as StoredRequest  # noqa: PLC0414 - re-exported
from boathook.domain.model import Attempt

list_events = listings.list_events
list_deliveries = listings.list_deliveries
list_dead_letters = listings.list_dead_letters
list_rejections = listings.list_rejections
list_conflicts = listings.list_conflicts
get_rejection = listings.get_rejection
_MAX_AUDIT_ROWS: Final = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDetail:
    """An event with its headers and body, and its deliveries."""

    row: EventRow
    stored: StoredRequest
    deliveries: Sequence[DeliveryRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryDetail:
    """A delivery with its event, attempts, side effects and audit."""

    row: DeliveryRow
    event: EventRow
    stored: StoredRequest
    attempts: Sequence[Attempt]
    side_effects: Sequence[SideEffectRow]
    audit: Sequence[AuditRow]
    """Operators' actions on the delivery, newest first."""


async def get_event(database: Database, event_id: UUID) -> EventDetail:
    """Return one event. Raises NotFound."""
    row, stored = await listings.get_event(database, event_id)
    return EventDetail(row=row, stored=stored, deliveries=await listings.list_deliveries_of(database, event_id))


async def get_delivery(database: Database, key: Key) -> DeliveryDetail:
    """Return one delivery, its state and its attempts as of one moment. Raises NotFound."""
    async with database.snapshot() as snapshot:
        row = await listings.get_delivery(snapshot, *key)
        event, stored = await listings.get_event(snapshot, key[0])
        return DeliveryDetail(
            row=row,
            event=event,
            stored=stored,
            attempts=await listings.list_attempts(snapshot, *key),
            side_effects=await listings.list_side_effects(snapshot, key[0], row.recipient, row.item_path),
            audit=await listings.list_audit(snapshot, ListFilter(limit=_MAX_AUDIT_ROWS), subject=row.id),
        )
