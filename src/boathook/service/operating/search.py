"""Finds events by id, key, payload text or a value in the payload, or by common properties.

The filters are those of `EventQuery`, as at every interface. An export has the payloads too, up to a number, a size and
a time. Operators save queries under names.
"""

import base64
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import msgspec
from msgspec.structs import replace

from boathook.db import operators
from boathook.db.audit import record
from boathook.db.database import Connection, Database
from boathook.db.operators import Operator, SavedView
from boathook.db.queries import event_feed, event_search
from boathook.db.queries.event_search import MAX_SEARCHED_BODY as MAX_SEARCHED_BODY  # noqa: PLC0414 - re-exported
from boathook.db.queries.event_search import DedupKeyMatch
from boathook.db.queries.event_search import FoundEvent as FoundEvent  # noqa: PLC0414 - re-exported
from boathook.db.queries.event_search import SearchPage as SearchPage  # noqa: PLC0414 - re-exported
from boathook.db.queries.listings import EventRow
from boathook.domain import ids
from boathook.domain.errors import InvalidValue, LimitReached, NotFound
from boathook.ingest.event_builder import dedup_hashes
from boathook.service.fields import check
from boathook.service.operating.event_feed import OVERLAP
from boathook.service.operating.event_query import MAX_TEXT_LENGTH, EventQuery, key_variants
from boathook.service.unit_of_work import AppContext, UnitOfWork

_MAX_KNOWN: Final = 50
_BEGINNING: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""Ids hold no earlier times."""
_MAX_SUGGESTIONS: Final = 50
MAX_EXPORTED: Final = 10_000
MAX_EXPORTED_BYTES: Final = 256 << 20
"""Maximum total size of the payloads."""
_MAX_EXPORT_S: Final = 60.0
"""How long a search for further events is continued."""
_EXPORT_PAGE: Final = 200
_PORTION_BYTES: Final = 4 << 20
MAX_VIEWS: Final = 50
"""Maximum number of views of one operator."""
_MAX_VIEW_NAME: Final = 60


class IdMatch(msgspec.Struct, frozen=True, kw_only=True):
    """An object with the given id or key."""

    id: str
    """The displayed id of an event, a delivery, a conflict or a rejection."""
    item_path: str | None = None
    """The event's item that the key belongs to, if any."""


class DirectMatch(msgspec.Struct, frozen=True, kw_only=True):
    """Exact matches by id or key."""

    named: Sequence[IdMatch]
    events: Sequence[FoundEvent]
    """The matching events that are stored."""


class ExportedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One line of an export."""

    id: str
    accepted_at: datetime
    source: str | None
    application: str | None
    type: str
    dedup_key: str
    same_body_as: str | None
    """As `EventRow.same_body_as`."""
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


async def find_matches(
    database: Database, query: EventQuery, sources: Iterable[str], below: UUID | None = None
) -> DirectMatch | SearchPage:
    """Return the matches of a query: exact ones if it contains a known id or key, else one page of a scan.

    Args:
        database: the database.
        query: the query.
        sources: sources whose keys are tried if the query names none.
        below: where the previous page ended.

    Raises:
        InvalidValue: a field is invalid.
        DatabaseUnavailable: PostgreSQL is unavailable or too busy.
    """
    check(query)
    if below is None and query.words and (direct := await find_named(database, query, sources)):
        return direct
    return await find_page(database, query, limit=event_search.PAGE, below=below)


async def find_page(
    database: Database | Connection,
    query: EventQuery,
    *,
    limit: int,
    below: UUID | None = None,
    organization: str | None = None,
) -> SearchPage:
    """Return one page of a scan, also if the query contains a known id or key. Raises as `find_matches` does.

    Args:
        database: the database.
        query: the query.
        limit: maximum number of events.
        below: where the previous page ended.
        organization: only events that belong to this organization; None: of all.
    """
    check(query)
    compiled = replace(query.compile(organization=organization), below=below)
    return await event_search.search(database, compiled, limit=limit)


async def find_own(work: UnitOfWork, query: EventQuery, *, limit: int, below: UUID | None = None) -> SearchPage:
    """Return one page of a scan of the organization's events. Raises as `find_matches` does."""
    return await find_page(work.connection, query, limit=limit, below=below, organization=work.organization)


async def scan_pages(
    database: Database, query: EventQuery, *, limit: int, below: UUID | None = None
) -> AsyncIterator[SearchPage]:
    """Yield one search after the other until the end of the history; each has at most *limit* matches.

    Raises:
        InvalidValue: a field is invalid.
        DatabaseUnavailable: PostgreSQL is unavailable or too busy.
    """
    while True:
        page = await find_page(database, query, limit=limit, below=below)
        yield page
        if page.place is None:
            return
        below = page.place


async def list_events(
    database: Database, query: EventQuery, *, limit: int, below: UUID | None = None
) -> list[EventRow]:
    """Return the newest matching events, however long the search takes. Raises as `scan_pages` does."""
    rows: list[EventRow] = []
    async for page in scan_pages(database, query, limit=limit, below=below):
        rows += [event.event for event in page.events]
        if len(rows) >= limit:
            break
    return rows[:limit]


async def find_newer(database: Database, query: EventQuery, after: datetime) -> SearchPage:
    """Return the newest matches accepted since a time, or a minute before: ids are created before the commit.

    Raises: as `find_matches` does.
    """
    since = max(after - OVERLAP, query.since or _BEGINNING, _BEGINNING)
    return await find_page(database, replace(query, since=since), limit=event_search.PAGE)


async def suggest_types(database: Database, part: str) -> list[str]:
    """Return event types that contain a text, for completion."""
    return await event_search.list_types(database, part.replace("\x00", "")[:MAX_TEXT_LENGTH], _MAX_SUGGESTIONS)


def read_id(text: str) -> IdMatch | None:
    """Return the object of an id of any kind; None if *text* is not an id."""
    readers: Mapping[str, Callable[[], str]] = {
        ids.EVENT: lambda: ids.show(ids.EVENT, ids.read(ids.EVENT, text)),
        ids.MESSAGE: lambda: ids.show(ids.EVENT, ids.read(ids.MESSAGE, text)),
        ids.DELIVERY: lambda: ids.show_delivery(*ids.read_delivery(text)),
        ids.CONFLICT: lambda: ids.show(ids.CONFLICT, ids.read(ids.CONFLICT, text)),
        ids.REJECTION: lambda: ids.show(ids.REJECTION, ids.read(ids.REJECTION, text)),
    }
    reader = readers.get(text.partition("_")[0], readers[ids.EVENT])
    try:
        return IdMatch(id=reader())
    except ValueError:
        return None


async def find_named(database: Database | Connection, query: EventQuery, sources: Iterable[str]) -> DirectMatch | None:
    """Return the objects that have the words of a query as their id or key; None if there are none."""
    if (id_match := read_id(query.words or "")) is not None:
        event_id = _event_of(id_match.id)
        return DirectMatch(
            named=[id_match], events=await event_search.read_events(database, [event_id] if event_id else [])
        )
    key_matches = await _find_known(database, query, sources)
    if not key_matches:
        return None
    named_events = [
        IdMatch(id=ids.show(ids.EVENT, key_match.event_id), item_path=key_match.item_path) for key_match in key_matches
    ]
    events = await event_search.read_events(database, [key_match.event_id for key_match in key_matches])
    return DirectMatch(named=named_events, events=events) if events else None


async def _find_known(
    database: Database | Connection, query: EventQuery, sources: Iterable[str]
) -> list[DedupKeyMatch]:
    matches: dict[DedupKeyMatch, None] = {}
    if not query.application:
        names = [query.source] if query.source else list(sources)
        keys = [
            key for source in names for name in key_variants(query.words or "") for key in dedup_hashes(source, name)
        ]
        matches |= dict.fromkeys(await event_search.find_keys(database, keys))
    if not query.source:
        matches |= dict.fromkeys(
            await event_search.find_messages(database, query.words or "", query.application or None)
        )
    return list(matches)[:_MAX_KNOWN]


def _event_of(name: str) -> UUID | None:
    if name.startswith(f"{ids.DELIVERY}_"):
        return ids.read_delivery(name)[0]
    return ids.read(ids.EVENT, name) if name.startswith(f"{ids.EVENT}_") else None


async def record_export(work: UnitOfWork, kind: str, query: str) -> None:
    """Record in the audit that an operator exports the events of a query string."""
    await record(work.connection, work.actor, "event.export", "events", f"{kind}: {query or 'all events'}"[:2_000])


async def export_events(
    app_context: AppContext, query: EventQuery, *, has_bodies: bool
) -> AsyncIterator[Sequence[ExportedEvent] | ExportEnd]:
    """Yield the matching events, newest first; at a limit, end with the reason.

    Raises:
        InvalidValue: a field of the query is invalid.
        DatabaseUnavailable: PostgreSQL is unavailable or too busy.
    """
    events_left, left_bytes, ends = MAX_EXPORTED, MAX_EXPORTED_BYTES, time.monotonic() + _MAX_EXPORT_S
    last = ""
    async for scan_page in scan_pages(app_context.database, query, limit=_EXPORT_PAGE):
        has_more = scan_page.place is not None or len(scan_page.events) > events_left
        for portion in _split_by_size(scan_page.events[:events_left]):
            yield (
                await _read_bodies(app_context, portion)
                if has_bodies
                else [_to_export(found_event) for found_event in portion]
            )
            events_left -= len(portion)
            left_bytes -= sum(found_event.event.size for found_event in portion) if has_bodies else 0
            last = _before(ids.read_event(portion[-1].event.id))
            if left_bytes < 0 and (has_more or portion[-1] is not scan_page.events[-1]):
                yield ExportEnd(f"more than {MAX_EXPORTED_BYTES >> 20} MiB; continue with Before = {last}")
                return
        if not has_more:
            return
        if events_left <= 0:
            yield ExportEnd(f"more than {MAX_EXPORTED} events; continue with Before = {last}")
            return
        if scan_page.place is not None and time.monotonic() > ends:
            reached = _before(scan_page.place)
            yield ExportEnd(f"the search takes more than {_MAX_EXPORT_S:.0f} s; continue with Before = {reached}")
            return


def _before(event_id: UUID) -> str:
    """Return the end of a search that continues after this event and repeats those of its millisecond.

    Events are searched by the time in their ids; those that were spooled have been accepted much later.
    """
    return (ids.created_at(event_id) + timedelta(milliseconds=1)).isoformat(timespec="milliseconds")


def _split_by_size(events: Sequence[FoundEvent]) -> Iterator[list[FoundEvent]]:
    portion: list[FoundEvent] = []
    size = 0
    for event in events:
        if portion and size + event.event.size > _PORTION_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(event)
        size += event.event.size
    if portion:
        yield portion


async def _read_bodies(app_context: AppContext, events: Sequence[FoundEvent]) -> list[ExportedEvent]:
    stored_events = await event_feed.read_events(
        app_context.database, [ids.read_event(event.event.id) for event in events]
    )
    bodies = {ids.show(ids.EVENT, stored_event.id): stored_event.body for stored_event in stored_events}
    return [_to_export(event, bodies.get(event.event.id)) for event in events]


def _to_export(found_event: FoundEvent, body: bytes | None = None) -> ExportedEvent:
    event = found_event.event
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
        same_body_as=event.same_body_as,
        origin=event.origin,
        proof=event.grade,
        content_type=event.content_type,
        size=event.size,
        deliveries={str(state): number for state, number in found_event.states.items()},
        body=text,
        body_base64=encoded,
    )


async def list_views(work: UnitOfWork, operator: Operator) -> list[SavedView]:
    """Return the views of an operator, ordered by name."""
    return await operators.list_views(work.connection, operator.id)


async def save_view(work: UnitOfWork, operator: Operator, name: str, query: str) -> SavedView:
    """Save the query string of a search under a name; a view with the same name is replaced.

    Raises:
        InvalidValue: the name is empty, too long or not printable, or the query is empty.
        LimitReached: the operator has too many views.
    """
    name = name.strip()
    if not name or len(name) > _MAX_VIEW_NAME or not name.isprintable():
        raise InvalidValue(f"write a name of at most {_MAX_VIEW_NAME} characters", "name")
    if not query:
        raise InvalidValue("choose a filter or a time range first; a view without one shows all events", "name")
    view = SavedView(name, query)
    if not await operators.save_view(work.connection, operator.id, view, limit=MAX_VIEWS):
        raise LimitReached(f"an operator can save {MAX_VIEWS} views; delete one first")
    return view


async def delete_view(work: UnitOfWork, operator: Operator, name: str) -> None:
    """Delete a view of an operator. Raises NotFound."""
    if not await operators.delete_view(work.connection, operator.id, name):
        raise NotFound(f"there is no saved view {name[:_MAX_VIEW_NAME]!r}")
