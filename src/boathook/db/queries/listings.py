"""Lists the contents of the database, newest first, in pages."""

import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, cast
from uuid import UUID

import msgspec
from msgspec.structs import replace

from boathook.db.database import Connection, Database, Record
from boathook.db.statements import load, with_direction
from boathook.domain import ids
from boathook.domain.errors import NotFound
from boathook.domain.model import MAX_DELIVERIES, Attempt

SQL = load(__file__)
SCAN_ROWS: Final = 2_000
"""Rows that one statement of a scan looks at."""
SCAN_BUDGET_S: Final = 0.1
"""A scan continues until its page is full or this much time has passed."""
_MIN_ID: Final = UUID(int=0)
_MAX_ID: Final = UUID(int=2**128 - 1)
_AFTER_LAST: Final = MAX_DELIVERIES + 1
"""An ordinal above that of every delivery."""


class ListFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filters a list of deliveries, dead letters, rejections, conflicts or actions; None matches everything.

    Events are selected by `event_search.EventFilter`.
    """

    source: str | None = None
    application: str | None = None
    """Its id or uid, or a name that is neither."""
    type: str | None = None
    """A pattern for the event's type or, for a batch, an item's type; ``*`` matches any characters."""
    recipient: str | None = None
    """A pattern, like `type`."""
    state: str | None = None
    code: str | None = None
    """A dead letter's or delivery's error code, a rejection's reason, or what differs in a conflict."""
    since: datetime | None = None
    """Inclusive. For dead letters the time of death, otherwise the time of acceptance or rejection."""
    until: datetime | None = None
    """Exclusive."""
    after: str | None = None
    """The id of the last row of the previous page."""
    limit: int = 50


class EventRow(msgspec.Struct, frozen=True, kw_only=True):
    """An event without its bytes."""

    id: str
    source: str | None
    application: str | None
    type: str
    dedup_key: str
    grade: str
    origin: str
    accepted_at: datetime
    content_type: str
    size: int
    fanout: int
    """Number of deliveries created when it was accepted."""
    channels: Sequence[str] | None
    """For a message: its channels."""
    tags: Sequence[str] | None
    expunged_at: datetime | None
    """When its content was deleted."""
    same_body_as: str | None = None
    """The id of the first event with the same signed body, which came under another id."""

    @property
    def received_at(self) -> datetime:
        """When boathook received it, by which events are sorted and searched; a spooled one is accepted later."""
        return ids.created_at(ids.read_event(self.id))


class FirstEvent(msgspec.Struct, frozen=True, kw_only=True):
    """The first event of a chain of events that handlers have published."""

    id: str
    source: str | None
    application: str | None
    type: str | None
    """None if retention has dropped it."""


class DeliveryRow(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery, open or ended."""

    id: str
    event_id: str
    recipient: str
    source: str | None
    application: str | None
    type: str
    """The type of the event or of the delivered item."""
    grade: str
    """The proof strength of the event's request."""
    item_path: str | None
    """Path of the delivered batch item in the JSON body; None for the whole event."""
    state: str
    attempts: int
    due_at: datetime | None
    """When the next attempt of a pending delivery is due."""
    code: str | None
    note: str | None
    """The last error of an open delivery or dead letter, or why the delivery was ignored."""
    ended_at: datetime | None
    """When it succeeded, was ignored or became a dead letter."""
    order_key: str | None
    replays: int
    is_replay: bool
    """Whether it was added by replaying its event."""
    is_manual: bool
    """Whether it was requested manually: it gets one attempt."""
    paused_until: datetime | None = None
    """When the next probe of its endpoint goes, if it is pending and the endpoint is paused."""
    first: FirstEvent | None = None
    """Of a dead letter: the event that its chain began with, if a handler published its own event."""


class DeliveryPage(msgspec.Struct, frozen=True):
    """The result of a scan for deliveries."""

    rows: Sequence[DeliveryRow]
    place: tuple[UUID, int] | None
    """Where the next scan continues; None if there is nothing further."""


class SideEffectRow(msgspec.Struct, frozen=True, kw_only=True):
    """A completed side effect, which will not run again."""

    name: str
    result: str
    """As JSON text."""
    done_at: datetime


class RejectionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A rejected request without its bytes."""

    id: str
    source: str | None
    """None if no source is at the path of the request."""
    refused_at: datetime
    status: int
    reason: str
    detail: str
    client_address: str
    method: str
    url: str
    content_type: str
    body_size: int
    """Bytes that were sent; fewer may be stored."""
    event_id: str | None
    """The event that was created when it was verified again."""


class ConflictRow(msgspec.Struct, frozen=True, kw_only=True):
    """A request whose key or body, but not both, matches an existing event."""

    id: str
    event_id: str
    source: str | None
    application: str | None
    dedup_key: str
    type: str
    differs: str
    seen: int
    first_seen_at: datetime
    last_seen_at: datetime
    size: int
    accepted_as: str | None
    """The event that it became when an operator accepted it."""


class AuditRow(msgspec.Struct, frozen=True, kw_only=True):
    """An action with its actor and subject."""

    id: int
    at: datetime
    actor: str
    action: str
    subject: str
    note: str | None


class StoredRequest(msgspec.Struct, frozen=True):
    """The headers and bytes of an event or a rejected request."""

    headers: Mapping[str, str]
    body: bytes


async def get_event(database: Database | Connection, event_id: UUID) -> tuple[EventRow, StoredRequest]:
    """Return one event with its headers and bytes.

    Raises:
        NotFound: there is no such event.
    """
    row = await database.fetchrow(SQL["get_event"], event_id)
    if row is None:
        raise NotFound(f"there is no event {ids.show(ids.EVENT, event_id)}; retention may have dropped it")
    return event_row(row), stored_request(row)


async def list_deliveries(database: Database, filters: ListFilter) -> list[DeliveryRow]:
    """Return deliveries, those of the newest events first."""
    rows = await database.fetch(
        SQL["list_deliveries"], filters.source, filters.application, like_pattern(filters.type),
        *_id_range(filters), filters.state,
        like_pattern(filters.recipient), filters.code, *_after_delivery(filters), filters.limit,
    )  # fmt: skip
    return [delivery_row(row) for row in rows]


async def scan_deliveries(
    connection: Connection,
    filters: ListFilter,
    *,
    organization: str,
    event_id: UUID | None = None,
    is_upward: bool = False,
) -> DeliveryPage:
    """Return the next deliveries of an organization within a time limit, those of the newest events first.

    Args:
        connection: the connection.
        filters: the filter.
        organization: only deliveries of events that belong to it.
        event_id: only deliveries of this event, whatever `since` and `until` say.
        is_upward: return those of the oldest events first.
    """
    rows: list[DeliveryRow] = []
    ends = time.monotonic() + SCAN_BUDGET_S
    sql = with_direction(SQL["scan_deliveries"], is_ascending=is_upward)
    low, high = _key_range(filters, event_id)
    place = None if filters.after is None else ids.read_delivery(filters.after)
    filter_arguments = (
        filters.source, filters.application, like_pattern(filters.type), filters.state, like_pattern(filters.recipient),
        filters.code,
    )  # fmt: skip
    while True:
        if place is not None:
            low, high = (max(low, (place[0], place[1] + 1)), high) if is_upward else (low, min(high, place))
        rows_left = filters.limit - len(rows)
        scanned = await connection.fetch(sql, *low, *high, *filter_arguments, rows_left, SCAN_ROWS, organization)
        fitting = [row for row in scanned if row["fits"]]
        rows += [scanned_row(row) for row in fitting]
        if len(fitting) == rows_left:
            return DeliveryPage(rows, (fitting[-1]["event_id"], fitting[-1]["ordinal"]))
        if not scanned or scanned[-1]["number"] < SCAN_ROWS:
            return DeliveryPage(rows, None)
        place = (scanned[-1]["event_id"], scanned[-1]["ordinal"])
        if time.monotonic() > ends:
            return DeliveryPage(rows, place)


def scanned_row(row: Record) -> DeliveryRow:
    """Build a delivery from a row of a scan."""
    return delivery_row({name: value for name, value in row.items() if name not in {"fits", "number"}})


def _key_range(filters: ListFilter, event_id: UUID | None) -> tuple[tuple[UUID, int], tuple[UUID, int]]:
    """Return the inclusive lower and the exclusive upper bound of the keys of deliveries."""
    if event_id is not None:
        return (event_id, 0), (event_id, _AFTER_LAST)
    first, last = _id_range(filters)
    return (first or _MIN_ID, 0), (last, 0) if last is not None else (_MAX_ID, _AFTER_LAST)


async def list_dead_letters(database: Database, filters: ListFilter) -> list[DeliveryRow]:
    """Return dead letters, those of the newest events first; `since` and `until` bound the time of death."""
    rows = await database.fetch(
        SQL["list_dead"], filters.source, filters.application, like_pattern(filters.type), filters.since, filters.until,
        like_pattern(filters.recipient), filters.code, *_after_delivery(filters), filters.limit,
    )  # fmt: skip
    return await with_first_events(database, [delivery_row(row) for row in rows])


async def with_first_events(database: Database | Connection, rows: Sequence[DeliveryRow]) -> list[DeliveryRow]:
    """Return deliveries with the first events of their chains."""
    if not rows:
        return []
    first_rows = await database.fetch(SQL["find_first"], [ids.read(ids.EVENT, row.event_id) for row in rows])
    firsts = {
        ids.show(ids.EVENT, row["event_id"]): FirstEvent(
            id=ids.show(ids.EVENT, row["first_id"]),
            source=row["source"],
            application=row["application"],
            type=row["type"],
        )
        for row in first_rows
    }
    return [replace(row, first=firsts.get(row.event_id)) for row in rows]


async def list_deliveries_of(
    database: Database | Connection, event_id: UUID, ordinal: int | None = None
) -> list[DeliveryRow]:
    """Return the deliveries of one event in order, or only the one with this ordinal."""
    return [delivery_row(row) for row in await database.fetch(SQL["list_deliveries_of_event"], event_id, ordinal)]


async def get_delivery(database: Database | Connection, event_id: UUID, ordinal: int) -> DeliveryRow:
    """Return one delivery.

    Raises:
        NotFound: there is no such delivery.
    """
    for delivery in await list_deliveries_of(database, event_id, ordinal):
        return delivery
    raise NotFound(f"there is no delivery {ids.show_delivery(event_id, ordinal)}; it may have been purged or dropped")


async def list_attempts(database: Database | Connection, event_id: UUID, ordinal: int) -> list[Attempt]:
    """Return the recorded attempts of one delivery, in order."""
    return [Attempt(**dict(row)) for row in await database.fetch(SQL["list_attempts"], event_id, ordinal)]


async def find_keys(database: Database | Connection, event_ids: Sequence[UUID]) -> dict[UUID, str]:
    """Return the dedup keys of events, by event id."""
    return {row["id"]: row["dedup_key"] for row in await database.fetch(SQL["find_keys"], event_ids)}


async def list_side_effects(
    database: Database | Connection, event_id: UUID, recipient: str, item_path: str | None = None
) -> list[SideEffectRow]:
    """Return the completed side effects of a recipient for an event, or for one item of it."""
    rows = await database.fetch(SQL["list_effects"], event_id, recipient, item_path)
    return [SideEffectRow(**dict(row)) for row in rows]


class RequestCount(msgspec.Struct, frozen=True, kw_only=True):
    """The number of rejected requests, or of conflicts, of one source or application with the same cause."""

    source: str | None
    application: str | None
    cause: str
    """The reason of the rejections, or what differs in the conflicts."""
    number: int


async def list_rejections(
    database: Database | Connection, criteria: ListFilter, *, organization: str | None = None, is_upward: bool = False
) -> list[RejectionRow]:
    """Return rejections, newest first unless *is_upward*; with *organization*, none unless these are its own.

    Of the filter, `state` is ``open`` or ``accepted``, and `code` a reason.
    """
    rows = await database.fetch(
        with_direction(SQL["list_rejections"], is_ascending=is_upward), *_rejection_arguments(criteria, organization),
        _after(ids.REJECTION, criteria), criteria.limit,
    )  # fmt: skip
    return [_rejection(row) for row in rows]


async def count_rejections(
    database: Database | Connection, criteria: ListFilter, *, organization: str | None = None
) -> list[RequestCount]:
    """Return the numbers of rejections that match a filter, as `list_rejections` selects them."""
    rows = await database.fetch(SQL["count_rejections"], *_rejection_arguments(criteria, organization))
    return [RequestCount(**dict(row)) for row in rows]


def _rejection_arguments(criteria: ListFilter, organization: str | None) -> Sequence[object]:
    return criteria.source, criteria.code, *_id_range(criteria), criteria.state, organization


async def get_rejection(
    database: Database | Connection, rejection_id: UUID, organization: str | None = None
) -> tuple[RejectionRow, StoredRequest]:
    """Return one rejected request with its headers and bytes.

    Raises:
        NotFound: there is no such rejection, or *organization* may not reach it.
    """
    row = await database.fetchrow(SQL["get_rejection"], rejection_id, organization)
    if row is None:
        name = ids.show(ids.REJECTION, rejection_id)
        raise NotFound(f"there is no rejection {name}; the quarantine may have dropped it")
    return _rejection(row), stored_request(row)


async def list_conflicts(
    database: Database | Connection, criteria: ListFilter, *, organization: str | None = None, is_upward: bool = False
) -> list[ConflictRow]:
    """Return conflicts, newest first unless *is_upward*; with *organization*, only those with events of its own.

    Of the filter, `state` is ``open`` or ``accepted``, and `code` what differs.
    """
    rows = await database.fetch(
        with_direction(SQL["list_conflicts"], is_ascending=is_upward), *_conflict_arguments(criteria, organization),
        _after(ids.CONFLICT, criteria), criteria.limit,
    )  # fmt: skip
    return [conflict_row(row) for row in rows]


async def count_conflicts(
    database: Database | Connection, criteria: ListFilter, *, organization: str | None = None
) -> list[RequestCount]:
    """Return the numbers of conflicts that match a filter, as `list_conflicts` selects them."""
    rows = await database.fetch(SQL["count_conflicts"], *_conflict_arguments(criteria, organization))
    return [RequestCount(**dict(row)) for row in rows]


def _conflict_arguments(criteria: ListFilter, organization: str | None) -> Sequence[object]:
    return criteria.source, criteria.application, *_id_range(criteria), criteria.code, criteria.state, organization


async def find_owner(connection: Connection, application: str | None) -> str:
    """Return the organization of an application; for None, the one that received events belong to."""
    owner: str = await connection.fetchval(SQL["find_owner"], application)
    return owner


async def list_audit(
    database: Database | Connection, filters: ListFilter, *, subject: str | None = None, action: str | None = None
) -> list[AuditRow]:
    """Return operator actions, newest first; of the filter only `since`, `until`, `after` and `limit` apply."""
    after = None if filters.after is None else int(filters.after)
    rows = await database.fetch(SQL["list_audit"], subject, action, filters.since, filters.until, after, filters.limit)
    return [AuditRow(**dict(row)) for row in rows]


def like_pattern(pattern: str | None) -> str | None:
    """Convert a pattern with ``*`` for any characters to a pattern for SQL ``like``."""
    if pattern is None:
        return None
    for special in "\\%_":
        pattern = pattern.replace(special, f"\\{special}")
    return pattern.replace("*", "%")


def _id_range(filters: ListFilter) -> tuple[UUID | None, UUID | None]:
    return (
        None if filters.since is None else ids.first_of(filters.since),
        None if filters.until is None else ids.first_of(filters.until),
    )


def _after(prefix: str, filters: ListFilter) -> UUID | None:
    return None if filters.after is None else ids.read(prefix, filters.after)


def _after_delivery(filters: ListFilter) -> tuple[UUID | None, int | None]:
    return (None, None) if filters.after is None else ids.read_delivery(filters.after)


def event_row(row: Record) -> EventRow:
    """Build an event from a row with all listing columns."""
    values = {name: row[name] for name in EventRow.__struct_fields__}
    first = row["same_body_as"]
    same_body_as = None if first is None else ids.show(ids.EVENT, first)
    return EventRow(**values | {"id": ids.show(ids.EVENT, row["id"]), "same_body_as": same_body_as})


def delivery_row(row: Record | Mapping[str, Any]) -> DeliveryRow:
    """Build a delivery from a row with all listing columns."""
    values = dict(row)
    ordinal = values.pop("ordinal")
    values["id"] = ids.show_delivery(row["event_id"], ordinal)
    return DeliveryRow(**values | {"event_id": ids.show(ids.EVENT, row["event_id"])})


def _rejection(row: Record) -> RejectionRow:
    values: dict[str, Any] = {name: row[name] for name in RejectionRow.__struct_fields__ if name != "refused_at"}
    values["id"] = ids.show(ids.REJECTION, row["id"])
    values["event_id"] = None if row["event_id"] is None else ids.show(ids.EVENT, row["event_id"])
    return RejectionRow(**values, refused_at=ids.created_at(row["id"]))


def conflict_row(row: Record | Mapping[str, Any]) -> ConflictRow:
    """Build a conflict from a row with all listing columns."""
    values = dict(row)
    values["id"] = ids.show(ids.CONFLICT, row["id"])
    values["event_id"] = ids.show(ids.EVENT, row["event_id"])
    values["accepted_as"] = row["accepted_as"] and ids.show(ids.EVENT, row["accepted_as"])
    return ConflictRow(**values, first_seen_at=ids.created_at(row["id"]))


def stored_request(row: Record, column: str = "body") -> StoredRequest:
    """Build a stored request from a row with its headers as JSON text, and its bytes in *column*."""
    return StoredRequest(cast("Mapping[str, str]", msgspec.json.decode(row["headers"])), row[column])
