"""Lists stored rows, newest first, and reads one event or delivery with its details and its history.

Each listing takes a `ListFilter` and returns a page of at most its limit; the id of the last row continues it. What
takes a unit of work shows only what belongs to its organization: the default one has the inbound events, and each one
has the messages of its applications.
"""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import msgspec

from boathook.config import Settings
from boathook.config.packages import resolve
from boathook.db import audit, rerouting
from boathook.db.audit import AuditCursor as AuditCursor  # noqa: PLC0414 - re-exported
from boathook.db.audit import AuditFilter
from boathook.db.audit import AuditPage as AuditPage  # noqa: PLC0414 - re-exported
from boathook.db.batches import JsonSlicer
from boathook.db.database import Connection, Database
from boathook.db.delivery_commands import Key
from boathook.db.queries import event_chain, event_history, event_search, listings
from boathook.db.queries.event_chain import ChainLink as ChainLink  # noqa: PLC0414 - re-exported
from boathook.db.queries.event_history import AttemptDetail as AttemptDetail  # noqa: PLC0414 - re-exported
from boathook.db.queries.event_history import EventHistory as EventHistory  # noqa: PLC0414 - re-exported
from boathook.db.queries.event_history import RecipientSideEffect as RecipientSideEffect  # noqa: PLC0414 - re-exported
from boathook.db.queries.event_history import StoredReply as StoredReply  # noqa: PLC0414 - re-exported
from boathook.db.queries.event_search import FoundEvent
from boathook.db.queries.listings import AuditRow as AuditRow  # noqa: PLC0414 - re-exported
from boathook.db.queries.listings import ConflictRow as ConflictRow  # noqa: PLC0414 - re-exported
from boathook.db.queries.listings import DeliveryPage as DeliveryPage  # noqa: PLC0414 - re-exported
from boathook.db.queries.listings import DeliveryRow as DeliveryRow  # noqa: PLC0414 - re-exported
from boathook.db.queries.listings import EventRow as EventRow  # noqa: PLC0414 - re-exported
from boathook.db.queries.listings import FirstEvent as FirstEvent  # noqa: PLC0414 - re-exported
from boathook.db.queries.listings import ListFilter as ListFilter  # noqa: PLC0414 - re-exported
from boathook.db.queries.listings import RejectionRow as RejectionRow  # noqa: PLC0414 - re-exported
from boathook.db.queries.listings import SideEffectRow
from boathook.db.queries.listings import StoredRequest as StoredRequest  # noqa: PLC0414 - re-exported
from boathook.domain import ids
from boathook.domain.errors import NotFound
from boathook.domain.model import Attempt, State
from boathook.service.unit_of_work import UnitOfWork, check_owner

find_owner = listings.find_owner
list_attempt_details = event_history.list_attempts
list_attempts = listings.list_attempts
list_deliveries_of = listings.list_deliveries_of
list_deliveries = listings.list_deliveries
list_dead_letters = listings.list_dead_letters
list_rejections = listings.list_rejections
list_conflicts = listings.list_conflicts
get_rejection = listings.get_rejection
list_audit = listings.list_audit
list_audited_actions = audit.list_actions
read_audit_head = audit.read_head
read_event_preview = event_history.read_event_preview
read_history = event_history.read_history
list_new_handlers = rerouting.list_new_recipients
_MAX_AUDIT_ROWS: Final = 1_000
MAX_EMBEDDED: Final = 100
"""Deliveries that are read with their event."""
_MAX_ITEM_DEPTH: Final = 50


class EventDetail(msgspec.Struct, frozen=True, kw_only=True):
    """An event with its headers and body, and its deliveries."""

    row: EventRow
    stored: StoredRequest
    deliveries: Sequence[DeliveryRow]


class DeliveryDetail(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery with its event, attempts, side effects and audit."""

    row: DeliveryRow
    event: EventRow
    stored: StoredRequest
    attempts: Sequence[AttemptDetail]
    """The latest ones, in order."""
    side_effects: Sequence[SideEffectRow]
    audit: Sequence[AuditRow]
    """Operators' actions on the delivery, newest first."""
    chain: Sequence[ChainLink]
    """The events that led to its event, the first one first; the last one is its event."""
    first: StoredRequest | None
    """The headers and body of the first event of the chain; None if it is its event, or is not stored any more."""


async def get_event(database: Database, event_id: UUID) -> EventDetail:
    """Return one event. Raises NotFound."""
    row, request = await listings.get_event(database, event_id)
    return EventDetail(row=row, stored=request, deliveries=await listings.list_deliveries_of(database, event_id))


async def read_request(
    database: Database, event_id: UUID, *, max_bytes: int | None = None
) -> tuple[EventRow, StoredRequest]:
    """Return an event with its headers and its body, truncated to *max_bytes*. Raises NotFound."""
    if max_bytes is None:
        return await listings.get_event(database, event_id)
    return await event_history.read_event_preview(database, event_id, max_bytes)


async def cut_item(body: bytes, path: str) -> bytes:
    """Return the bytes at a dotted path of a JSON body. Raises NotFound."""
    # Parsing may take long; keep it off the event loop.
    item = body if path.count(".") > _MAX_ITEM_DEPTH else await asyncio.to_thread(JsonSlicer(body).cut, path)
    if item is body:
        raise NotFound(f"unknown item {path[:100]}")
    return item


async def find_endpoint_url(database: Database, deliveries: Sequence[DeliveryRow]) -> str | None:
    """Return the URL of the first endpoint among the recipients; None if there is none or it was deleted."""
    recipient = next(
        (delivery.recipient for delivery in deliveries if delivery.recipient.startswith("endpoint:")), None
    )
    return None if recipient is None else await event_history.find_url(database, recipient)


def find_trace(settings: Settings, event: EventRow, request: StoredRequest) -> tuple[str, str]:
    """Return the id of an event's trace and the URL of the trace; empty if no package in use knows them."""
    headers = {name.lower(): text for name, text in request.headers.items()}
    for package in settings.packages:
        if package.trace is not None:
            trace: tuple[str, str] = resolve(package.trace)(settings, event, headers)
            return trace
    return "", ""


async def get_delivery(database: Database, key: Key) -> DeliveryDetail:
    """Return one delivery, its state and its attempts as of one moment. Raises NotFound."""
    async with database.snapshot() as snapshot:
        row = await listings.get_delivery(snapshot, *key)
        event, request = await listings.get_event(snapshot, key[0])
        chain, first = await _read_chain(snapshot, key[0])
        (row,) = await listings.with_first_events(snapshot, [row])
        return DeliveryDetail(
            row=row,
            chain=chain,
            first=first,
            event=event,
            stored=request,
            attempts=await event_history.list_attempts(snapshot, *key),
            side_effects=await listings.list_side_effects(snapshot, key[0], row.recipient, row.item_path),
            audit=await listings.list_audit(snapshot, ListFilter(limit=_MAX_AUDIT_ROWS), subject=row.id),
        )


async def scan_deliveries(
    work: UnitOfWork, filters: ListFilter, *, event_id: UUID | None = None, is_upward: bool = False
) -> DeliveryPage:
    """Return the next deliveries of the organization within a time limit, those of the newest events first.

    Args:
        work: the unit of work.
        filters: the filter.
        event_id: only deliveries of this event.
        is_upward: return those of the oldest events first.
    """
    return await listings.scan_deliveries(
        work.connection, filters, organization=work.organization, event_id=event_id, is_upward=is_upward
    )


async def search_audit(
    database: Database,
    *,
    actor: str | None = None,
    action: str | None = None,
    subject: str | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    before: AuditCursor | None = None,
    limit: int,
) -> AuditPage:
    """Return the next matching audit rows, newest first, scanning for a bounded time.

    Args:
        database: the database.
        actor: only rows of this actor.
        action: a pattern; ``*`` matches any characters.
        subject: only rows of this subject.
        since: only rows from this time on.
        until: only rows before this time.
        before: where the previous page ended.
        limit: the maximum number of rows.
    """
    if subject is None:
        audit_filter = AuditFilter(actor=actor, action=action, since=since, until=until)
        return await audit.search(database, audit_filter, before=before, limit=limit)
    # A subject has few rows, which are found by index.
    window = ListFilter(since=since, until=until, after=None if before is None else str(before.id), limit=limit)
    rows = await listings.list_audit(database, window, subject=subject, action=action)
    last = AuditCursor(rows[-1].at, rows[-1].id) if len(rows) == limit else None
    return AuditPage([row for row in rows if actor in {None, row.actor}], last, is_full=last is not None)


async def page_conflicts(work: UnitOfWork, filters: ListFilter, *, is_upward: bool = False) -> list[ConflictRow]:
    """Return conflicts with events of the organization, newest first unless *is_upward*."""
    return await listings.list_conflicts(work.connection, filters, organization=work.organization, is_upward=is_upward)


class OwnEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of an organization with its headers and body."""

    found: FoundEvent
    """The event with the number of its deliveries by state."""
    stored: StoredRequest
    deliveries: Sequence[DeliveryRow]
    """The first `MAX_EMBEDDED` of its deliveries."""


async def read_event(work: UnitOfWork, event_id: UUID) -> OwnEvent:
    """Return an event of the organization, as of one moment. Raises NotFound."""
    async with work.snapshot():
        await check_event(work, event_id)
        _, request = await listings.get_event(work.connection, event_id)
        (event,) = await event_search.read_events(work.connection, [event_id])
        first = await scan_deliveries(work, ListFilter(limit=MAX_EMBEDDED), event_id=event_id, is_upward=True)
        return OwnEvent(found=event, stored=request, deliveries=first.rows)


async def record_reveal(work: UnitOfWork, event_id: UUID) -> None:
    """Record in the audit that all headers of an event were shown."""
    await audit.record(work.connection, work.actor, "event.reveal_headers", ids.show(ids.EVENT, event_id))


async def check_event(work: UnitOfWork, event_id: UUID) -> None:
    """Raise NotFound unless the event is stored and belongs to the organization."""
    row, _ = await event_history.read_event_preview(work.connection, event_id, 0)
    await check_owner(work, row.id, row.application)


async def find_delivery(work: UnitOfWork, key: Key) -> DeliveryRow:
    """Return a delivery of the organization. Raises NotFound."""
    row = await listings.get_delivery(work.connection, *key)
    await check_owner(work, row.id, row.application)
    return row


async def read_delivery(work: UnitOfWork, key: Key) -> tuple[DeliveryRow, Sequence[Attempt]]:
    """Return a delivery of the organization with its attempts, as of one moment. Raises NotFound."""
    async with work.snapshot():
        return await find_delivery(work, key), await listings.list_attempts(work.connection, *key)


async def find_newest_traceback(database: Database, key: Key) -> str | None:
    """Return the traceback of a delivery's newest attempt that has one."""
    attempts = await event_history.list_attempts(database, *key)
    return next((attempt.traceback for attempt in reversed(attempts) if attempt.traceback), None)


async def find_event_keys(database: Database, rows: Sequence[DeliveryRow]) -> dict[str, str]:
    """Return the dedup keys of the deliveries' events, by event id."""
    keys = await listings.find_keys(database, [ids.read(ids.EVENT, row.event_id) for row in rows])
    return {ids.show(ids.EVENT, id): key for id, key in keys.items()}


class OwnDeadLetter(msgspec.Struct, frozen=True, kw_only=True):
    """A dead letter of an organization with the events that led to it."""

    row: DeliveryRow
    attempts: Sequence[Attempt]
    chain: Sequence[ChainLink]
    """As `DeliveryDetail.chain`."""
    first: StoredRequest | None
    """As `DeliveryDetail.first`."""


async def read_dead_letter(work: UnitOfWork, key: Key) -> OwnDeadLetter:
    """Return a dead letter of the organization, as of one moment. Raises NotFound, also once it is none any more."""
    async with work.snapshot():
        delivery = await find_delivery(work, key)
        if delivery.state != State.DEAD:
            raise NotFound(f"{delivery.id} is {delivery.state}, not a dead letter")
        chain, first = await _read_chain(work.connection, key[0])
        (row,) = await listings.with_first_events(work.connection, [delivery])
        attempts = await listings.list_attempts(work.connection, *key)
        return OwnDeadLetter(row=row, attempts=attempts, chain=chain, first=first)


async def _read_chain(connection: Connection, event_id: UUID) -> tuple[Sequence[ChainLink], StoredRequest | None]:
    """Return the chain that led to an event, and the request of its first event if that is another one."""
    chain = await event_chain.read_chain(connection, event_id)
    if len(chain) == 1 or chain[0].type is None:
        return chain, None
    _, first = await listings.get_event(connection, ids.read_event(chain[0].event_id))
    return chain, first
