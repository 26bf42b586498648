"""Routes stored events again: to handlers registered now that never had a delivery of them."""

import contextlib
from collections import defaultdict
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from difflib import get_close_matches
from typing import Any, Final
from uuid import UUID

import asyncpg
import msgspec
from msgspec.structs import astuple, replace

from boathook.db import delivery_commands
from boathook.db.database import Connection, Database, Record
from boathook.db.delivery_commands import PURGE_DEAD, ROUTE_EVENT, AuditContext, ReplaySchedule
from boathook.db.due_notifier import notify_due
from boathook.db.ordering import unblock
from boathook.db.route_registry import READ_ROUTES, decode_routes
from boathook.db.statements import load
from boathook.domain import ids, json_document
from boathook.domain.errors import InvalidTransition, NotFound
from boathook.domain.filters import Pattern, Router
from boathook.domain.model import DEFAULT_ORGANIZATION, MAX_DELIVERIES

SQL = load(__file__, fragments_of=(delivery_commands.__file__,))

MAX_COUNTED: Final = 10_000
"""Maximum number of unhandled events that are counted."""
MAX_BYTES: Final = 8 << 20
"""Maximum bytes of bodies per query, unless a single body is larger."""
_PREFIX: Final = "handler:"


class _Rollback(Exception):
    """Rolls back a transaction."""


class RerouteResult(msgspec.Struct, frozen=True):
    """The result of rerouting events."""

    events: int = 0
    """Events that were examined."""
    routed: int = 0
    """Events that got a delivery."""
    added: int = 0
    """Deliveries added."""
    left: int = 0
    """Skipped events: batches whose items are not all known, or events with a purged dead letter."""

    def __add__(self, other: "RerouteResult") -> "RerouteResult":
        return RerouteResult(
            self.events + other.events, self.routed + other.routed, self.added + other.added, self.left + other.left
        )


class _NewDelivery(msgspec.Struct, frozen=True):
    """A delivery of an event, or an item of it, to a handler that matches."""

    event_id: UUID
    recipient: str
    order_key: str | None
    item_path: str | None = None
    item_type: str | None = None


class _Candidate(msgspec.Struct, frozen=True):
    """An event that a route matches, without its bytes."""

    row: Record
    applications: tuple[str | None, ...]
    """The names by which handlers may refer to its application."""
    items: Sequence[tuple[str, str]] | None
    """Path and type of each item of a batch; None if it is not a batch."""
    reads_body: bool


async def reroute_events_in(
    connection: Connection,
    event_ids: Sequence[UUID],
    action: AuditContext,
    *,
    pace: ReplaySchedule,
    to: str | None = None,
    type: str | None = None,
    is_dry_run: bool = False,
) -> RerouteResult:
    """Add deliveries of events to handlers that match them now and never had a delivery of them.

    Each item of a batch is routed separately. A repeated call adds nothing.

    Args:
        connection: the caller's transaction.
        event_ids: the events.
        action: the actor and note for the audit.
        pace: when the deliveries are due.
        to: the name of the only handler; None: all handlers.
        type: a pattern for the event's type, or for the item's type; None routes every item.
        is_dry_run: roll back, so that only the numbers are returned.

    Raises:
        NotFound: no handler of this name is registered.
        InvalidTransition: an event would exceed its maximum number of deliveries.
    """
    rerouted = RerouteResult()
    with contextlib.suppress(_Rollback):
        async with connection.transaction():
            rerouted = await _reroute(connection, event_ids, action, pace, to=to, type=type)
            if is_dry_run:
                raise _Rollback
    return rerouted


async def _reroute(
    connection: Connection,
    event_ids: Sequence[UUID],
    action: AuditContext,
    pace: ReplaySchedule,
    *,
    to: str | None,
    type: str | None,
) -> RerouteResult:
    await connection.execute(delivery_commands.SQL["lock_replays"], list(event_ids))
    router = await _read_router(connection, to)
    rows = await connection.fetch(SQL["read_routable"], list(event_ids), DEFAULT_ORGANIZATION)
    candidates, unclear = await _candidates(connection, router, rows, type or "*")
    delivery_rows: list[Record] = []
    async for deliveries in _match_candidates(connection, router, candidates):
        later = replace(pace, place=pace.place + len(delivery_rows))
        delivery_rows += await _insert_deliveries(connection, deliveries, later, is_named=to is not None)
    added = [row for row in delivery_rows if row["recipient"] is not None]
    await unblock(connection, [(row["recipient"], row["order_key"]) for row in added])
    routed = await record(connection, action, added)
    await notify_due(connection)
    return RerouteResult(len(event_ids), routed, len(added), len(delivery_rows) - len(added) + unclear)


async def list_new_recipients(database: Database, event_id: UUID) -> list[str]:
    """Return the handlers that would get a delivery of an event, or of an item of it, if it were rerouted now."""
    async with database.transaction() as connection:
        router = await _read_router(connection, None)
        rows = await connection.fetch(SQL["read_routable"], [event_id], DEFAULT_ORGANIZATION)
        candidates, _ = await _candidates(connection, router, rows, "*")
        deliveries = [delivery async for part in _match_candidates(connection, router, candidates) for delivery in part]
        if not deliveries:
            return []
        existing = await connection.fetch(SQL["list_recipients"], event_id)
    existing_targets = {(row["recipient"], row["item_path"]) for row in existing}
    return list(
        dict.fromkeys(
            delivery.recipient
            for delivery in deliveries
            if (delivery.recipient, delivery.item_path) not in existing_targets
        )
    )


async def check_handler(connection: Connection | Database, name: str) -> str:
    """Return the recipient of a handler, given its name with or without ``handler:``.

    Raises:
        NotFound: no handler of this name is registered; the message names a similar one.
    """
    recipient = name if name.startswith(_PREFIX) else _PREFIX + name
    recipients = {route.recipient for route in decode_routes(await connection.fetchval(READ_ROUTES)).routes}
    if recipient in recipients:
        return recipient
    near = get_close_matches(recipient, recipients, 1)
    hint = f"did you mean {near[0]}?" if near else f"registered are: {', '.join(sorted(recipients)) or 'none'}."
    raise NotFound(f"no handler {recipient} is registered; {hint} `boathook serve` registers them when it starts")


async def count_unhandled(database: Database | Connection, since: datetime) -> Mapping[str, int]:
    """Count the unhandled events accepted since a time by source or name, up to `MAX_COUNTED`."""
    rows = await database.fetch(SQL["count_unhandled"], ids.first_of(since), MAX_COUNTED)
    return {row["subject"]: row["number"] for row in rows}


async def _read_router(connection: Connection, to: str | None) -> Router:
    if to is not None:
        to = await check_handler(connection, to)
    active_routes = decode_routes(await connection.fetchval(READ_ROUTES))
    return Router([route for route in active_routes.routes if to in {None, route.recipient}], active_routes.version)


async def _candidates(
    connection: Connection, router: Router, rows: Sequence[Record], type: str
) -> tuple[list[_Candidate], int]:
    """Return the events that a route matches, and the number of others that may be batches with unknown items."""
    unclear = [row["id"] for row in rows if row["is_unclear"]]
    items_by_event = await _known_items(connection, unclear) if unclear else {}
    type_pattern = Pattern(type)
    candidates: list[_Candidate] = []
    unknown_batches = 0
    for row in rows:
        if row["is_unclear"] and row["id"] not in items_by_event:
            unknown_batches += router.fits(source=row["source"], application=None, type=row["type"])
            continue
        items = items_by_event[row["id"]] if row["is_unclear"] else _items_of(row)
        if items is not None and not type_pattern.matches(row["type"]):
            items = [item for item in items if type_pattern.matches(item[1])]
        candidates += _candidate(router, row, items)
    return candidates, unknown_batches


def _candidate(router: Router, row: Record, items: Sequence[tuple[str, str]] | None) -> Iterator[_Candidate]:
    names = tuple(dict.fromkeys((row["application"], *(row["other_names"] or ()))))
    types = {row["type"]} if items is None else {type for _, type in items}
    origins = [{"source": row["source"], "application": name, "type": type} for name in names for type in types]
    if any(router.fits(**origin) for origin in origins):
        yield _Candidate(row, names, items, any(router.reads_body(**origin) for origin in origins))


async def _known_items(
    connection: Connection, event_ids: Sequence[UUID]
) -> Mapping[UUID, Sequence[tuple[str, str]] | None]:
    """Return the delivered items of events that were stored before the items of batches were recorded.

    None means that the whole event was delivered, so it is not a batch. Events without deliveries are missing.
    """
    items_by_event: dict[UUID, list[tuple[str, str]] | None] = {}
    for row in await connection.fetch(SQL["list_pending"], event_ids):
        items = items_by_event.setdefault(row["event_id"], None if row["item_path"] is None else [])
        if items is not None:
            items.append((row["item_path"], row["item_type"]))
    return items_by_event


def _items_of(row: Record) -> Sequence[tuple[str, str]] | None:
    return None if row["items"] is None else msgspec.json.decode(row["items"], type=list[tuple[str, str]])


async def _match_candidates(
    connection: Connection, router: Router, candidates: Sequence[_Candidate]
) -> AsyncIterator[list[_NewDelivery]]:
    """Yield the deliveries of matching events, in portions of limited body size."""
    for portion in _split_by_size(candidates):
        wanting = [candidate.row["id"] for candidate in portion if candidate.reads_body]
        bodies = (
            {row["id"]: row["body"] for row in await connection.fetch(SQL["read_bodies"], wanting)} if wanting else {}
        )
        yield [
            delivery
            for candidate in portion
            for delivery in _match_candidate(router, candidate, bodies.get(candidate.row["id"], b""))
        ]


def _split_by_size(candidates: Iterable[_Candidate]) -> Iterator[list[_Candidate]]:
    portion: list[_Candidate] = []
    size = 0
    for candidate in candidates:
        weight = candidate.row["size"] if candidate.reads_body else 0
        if portion and size + weight > MAX_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(candidate)
        size += weight
    if portion:
        yield portion


def _match_candidate(router: Router, candidate: _Candidate, body: bytes) -> Iterator[_NewDelivery]:
    row, headers = candidate.row, msgspec.json.decode(candidate.row["headers"], type=dict[str, str])
    if candidate.items is not None:
        document: Any = json_document.parse(body) if candidate.reads_body else None
        items = [(type, json_document.get_path(document, path.split("."))) for path, type in candidate.items]
        for delivery in router.route_items(source=row["source"], headers=headers, items=items):
            yield _NewDelivery(row["id"], delivery.recipient, delivery.order_key, *candidate.items[delivery.item or 0])
        return
    seen: set[str] = set()
    for application in candidate.applications:
        for delivery in router.route(
            source=row["source"], application=application, type=row["type"], headers=headers, body=body
        ):
            if delivery.recipient not in seen:
                seen.add(delivery.recipient)
                yield _NewDelivery(row["id"], delivery.recipient, delivery.order_key)


async def _insert_deliveries(
    connection: Connection, deliveries: Sequence[_NewDelivery], pace: ReplaySchedule, *, is_named: bool
) -> list[Record]:
    if not deliveries:
        return []
    columns = zip(*map(astuple, deliveries), strict=True)
    try:
        rows: list[Record] = await connection.fetch(
            SQL["add_routed"], *columns, pace.start, pace.place, pace.gap_s, is_named, PURGE_DEAD
        )
    except asyncpg.NumericValueOutOfRangeError:
        raise InvalidTransition(
            f"an event can have {MAX_DELIVERIES} deliveries including replays, and one of these would exceed that; "
            "route it to one handler, by --to"
        ) from None
    return rows


async def record(connection: Connection, action: AuditContext, added: Sequence[Record]) -> int:
    """Record for each event its new recipients in the audit; return the number of events."""
    recipients: dict[UUID, dict[str, None]] = defaultdict(dict)
    for row in added:
        recipients[row["event_id"]][row["recipient"]] = None
    notes = ["; ".join(filter(None, (action.note, f"to {', '.join(names)}"))) for names in recipients.values()]
    subjects = [ids.show(ids.EVENT, event_id) for event_id in recipients]
    await connection.execute(SQL["record_routed"], action.actor, ROUTE_EVENT, subjects, notes)
    return len(recipients)
