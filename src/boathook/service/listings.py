"""Lists events, deliveries, dead letters, rejections and conflicts, and reads one of them with all that is stored."""

import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar
from uuid import UUID

from boathook.db.database import Database
from boathook.db.delivery_commands import Key
from boathook.db.queries import listings
from boathook.db.queries.listings import AuditRow, RejectionRow, SideEffectRow
from boathook.db.queries.listings import ConflictRow as ConflictRow  # noqa: PLC0414 - what these functions return
from boathook.db.queries.listings import DeliveryRow as DeliveryRow  # noqa: PLC0414 - what these functions return
from boathook.db.queries.listings import EventRow as EventRow  # noqa: PLC0414 - what these functions return
from boathook.db.queries.listings import ListFilter as ListFilter  # noqa: PLC0414 - what these functions are asked for
from boathook.db.queries.listings import StoredRequest as StoredRequest  # noqa: PLC0414 - what these functions return
from boathook.domain.model import Attempt

PAGE: Final = 1_000
"""Rows that are read at once."""
_MAX_AUDIT_ROWS: Final = 1_000


class _Row(Protocol):
    @property
    def id(self) -> str: ...


Row = TypeVar("Row", bound=_Row)


@dataclass(frozen=True, slots=True, kw_only=True)
class EventDetail:
    """An event with its headers and bytes, and its deliveries."""

    row: EventRow
    stored: StoredRequest
    deliveries: Sequence[DeliveryRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryDetail:
    """A delivery with its event and all that was done about it."""

    row: DeliveryRow
    event: EventRow
    stored: StoredRequest
    attempts: Sequence[Attempt]
    side_effects: Sequence[SideEffectRow]
    audit: Sequence[AuditRow]
    """What operators did to it, the latest first."""


def list_events(database: Database, wanted: ListFilter) -> AsyncIterator[Sequence[EventRow]]:
    """Yield events in pages, newest first, so that few rows are in memory; a limit of 0 means all."""
    return _pages(database, listings.list_events, wanted)


def list_deliveries(database: Database, wanted: ListFilter) -> AsyncIterator[Sequence[DeliveryRow]]:
    """Yield deliveries in pages as `list_events` does, those of the newest events first."""
    return _pages(database, listings.list_deliveries, wanted)


def list_dead_letters(database: Database, wanted: ListFilter) -> AsyncIterator[Sequence[DeliveryRow]]:
    """Yield dead letters in pages as `list_events` does, those of the newest events first."""
    return _pages(database, listings.list_dead_letters, wanted)


def list_rejections(database: Database, wanted: ListFilter) -> AsyncIterator[Sequence[RejectionRow]]:
    """Yield rejected requests in pages as `list_events` does."""
    return _pages(database, listings.list_rejections, wanted)


def list_conflicts(database: Database, wanted: ListFilter) -> AsyncIterator[Sequence[ConflictRow]]:
    """Yield conflicts in pages as `list_events` does."""
    return _pages(database, listings.list_conflicts, wanted)


async def get_event(database: Database, event_id: UUID) -> EventDetail:
    """Return one event. Raises NotFound."""
    row, stored = await listings.get_event(database, event_id)
    return EventDetail(row=row, stored=stored, deliveries=await listings.list_deliveries_of(database, event_id))


async def get_delivery(database: Database, key: Key) -> DeliveryDetail:
    """Return one delivery. Raises NotFound."""
    row = await listings.get_delivery(database, *key)
    event, stored = await listings.get_event(database, key[0])
    return DeliveryDetail(
        row=row,
        event=event,
        stored=stored,
        attempts=await listings.list_attempts(database, *key),
        side_effects=await listings.list_side_effects(database, key[0], row.recipient, row.item_path),
        audit=await listings.list_audit(database, ListFilter(limit=_MAX_AUDIT_ROWS), subject=row.id),
    )


async def get_rejection(database: Database, rejection_id: UUID) -> tuple[RejectionRow, StoredRequest]:
    """Return one rejected request with its headers and bytes. Raises NotFound."""
    return await listings.get_rejection(database, rejection_id)


async def _pages(
    database: Database, read: Callable[[Database, ListFilter], Awaitable[Sequence[Row]]], wanted: ListFilter
) -> AsyncIterator[Sequence[Row]]:
    left = wanted.limit or sys.maxsize
    after = wanted.after
    while left > 0:
        most = min(PAGE, left)
        rows = await read(database, replace(wanted, after=after, limit=most))
        if rows:
            yield rows
        if len(rows) < most:
            return
        left -= len(rows)
        after = rows[-1].id
