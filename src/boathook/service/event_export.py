"""Exports the events that match a search, with their payloads, up to a number, a size and a time."""

import base64
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from datetime import datetime
from typing import Final

import msgspec

from boathook.db.audit import record
from boathook.db.queries.event_feed import read_events
from boathook.domain import ids
from boathook.service import search
from boathook.service.search import FoundEvent, SearchQuery
from boathook.service.unit_of_work import AppContext, UnitOfWork

MAX_EVENTS: Final = 10_000
MAX_BYTES: Final = 256 << 20
"""Maximum total size of the payloads."""
MAX_S: Final = 60.0
"""How long a search for further events is continued."""
_PAGE: Final = 200
_PORTION_BYTES: Final = 4 << 20


class ExportedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an export."""

    id: str
    accepted_at: datetime
    source: str | None
    application: str | None
    type: str
    dedup_key: str
    origin: str
    proof: str
    content_type: str
    size: int
    deliveries: dict[str, int]
    """Number of deliveries by state; at most a thousand are counted."""
    body: str | None = None
    """The payload, if it is UTF-8."""
    body_base64: str | None = None
    """Any other payload."""


class ExportEnd(msgspec.Struct, frozen=True):
    """The last line of an export that is not complete."""

    truncated: str
    """Why, and how to get the rest."""


async def record_export(work: UnitOfWork, kind: str, query: str) -> None:
    """Record in the audit that an operator exports the events of a query string."""
    await record(work.connection, work.actor, "event.export", "events", f"{kind}: {query or 'all events'}"[:2_000])


async def export_events(
    app_context: AppContext, query: SearchQuery, *, has_bodies: bool
) -> AsyncIterator[Sequence[ExportedEvent] | ExportEnd]:
    """Yield the matching events, newest first; at a limit, end with the reason.

    Raises:
        InvalidValue: a field of the query is invalid.
        DatabaseUnavailable: PostgreSQL is unavailable or too busy.
    """
    left, left_bytes, ends = MAX_EVENTS, MAX_BYTES, time.monotonic() + MAX_S
    last = ""
    async for found in search.scan_pages(app_context.database, query, limit=_PAGE):
        has_more = found.place is not None or len(found.events) > left
        for portion in _split_by_size(found.events[:left]):
            yield await _read(app_context, portion) if has_bodies else [_exported(one) for one in portion]
            left -= len(portion)
            left_bytes -= sum(one.event.size for one in portion) if has_bodies else 0
            last = portion[-1].event.accepted_at.isoformat(timespec="milliseconds")
            if left_bytes < 0:
                yield ExportEnd(f"more than {MAX_BYTES >> 20} MiB; continue with Before = {last}")
                return
        if not has_more:
            return
        if left <= 0:
            yield ExportEnd(f"more than {MAX_EVENTS} events; continue with Before = {last}")
            return
        if found.place is not None and time.monotonic() > ends:
            reached = ids.created_at(found.place).isoformat(timespec="milliseconds")
            yield ExportEnd(f"the search takes more than {MAX_S:.0f} s; continue with Before = {reached}")
            return


def _split_by_size(events: Sequence[FoundEvent]) -> Iterator[list[FoundEvent]]:
    portion: list[FoundEvent] = []
    size = 0
    for one in events:
        if portion and size + one.event.size > _PORTION_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(one)
        size += one.event.size
    if portion:
        yield portion


async def _read(app_context: AppContext, events: Sequence[FoundEvent]) -> list[ExportedEvent]:
    stored = await read_events(app_context.database, [ids.read_event(one.event.id) for one in events])
    bodies = {ids.show(ids.EVENT, one.id): one.body for one in stored}
    return [_exported(one, bodies.get(one.event.id)) for one in events]


def _exported(found: FoundEvent, body: bytes | None = None) -> ExportedEvent:
    event = found.event
    text: str | None = None
    encoded: str | None = None
    if body is not None:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            encoded = base64.b64encode(body).decode("ascii")
    return ExportedEvent(
        id=event.id,
        accepted_at=event.accepted_at,
        source=event.source,
        application=event.application,
        type=event.type,
        dedup_key=event.dedup_key,
        origin=event.origin,
        proof=event.grade,
        content_type=event.content_type,
        size=event.size,
        deliveries={str(state): number for state, number in found.states.items()},
        body=text,
        body_base64=encoded,
    )
