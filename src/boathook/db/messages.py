"""Messages as an application's owner sees them: the published events and their status at each endpoint."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from enum import IntEnum
from typing import Any, Final, Generic, TypeVar
from uuid import UUID

import msgspec

from boathook.db.database import Connection, Record
from boathook.db.ordering import unblock
from boathook.db.statements import load, with_direction
from boathook.domain import ids
from boathook.domain.endpoints import recipient_of
from boathook.domain.model import NewEvent, Route
from boathook.domain.windows import Cursor, Window

SQL = load(__file__)
STANDING: Final = SQL["list_standing"]
STATUS: Final = SQL["tell_status"]

MAX_PAGE_BYTES: Final = 16_777_216
"""Bytes of contents after which a page ends; it holds at least one row."""

Row = TypeVar("Row")


class MessageStatus(IntEnum):
    """The status of a message at an endpoint."""

    SUCCESS = 0
    PENDING = 1
    FAIL = 2
    SENDING = 3
    CANCELED = 4


class Page(msgspec.Struct, Generic[Row], frozen=True):
    """A page of a list, in the list's order."""

    rows: list[Row]
    is_last: bool
    """Whether there is nothing further in the direction of reading."""


class MessageFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filters messages; None matches everything."""

    types: Sequence[str] | None = None
    channel: str | None = None
    tag: str | None = None

    def arguments(self) -> tuple[object, ...]:
        """Return the statement arguments: types, channel, tag."""
        return None if self.types is None else list(self.types), self.channel, self.tag


ALL_MESSAGES: Final = MessageFilter()


class MessageRow(msgspec.Struct, frozen=True, kw_only=True):
    """One message."""

    id: UUID
    type: str
    uid: str | None
    """The id given by its publisher, if any."""
    channels: tuple[str, ...] | None
    tags: tuple[str, ...] | None
    deliver_at: datetime | None
    """When it is scheduled to be sent, if not immediately."""
    body: bytes | None
    """None if it was not requested."""
    is_gone: bool
    """Whether its content was deleted or has expired."""

    @property
    def shown_id(self) -> str:
        """The public id, which is also sent as ``webhook-id``."""
        return ids.show(ids.MESSAGE, self.id)


class EndpointMessage(msgspec.Struct, frozen=True):
    """A message and its status at one endpoint."""

    message: MessageRow
    status: MessageStatus
    next_at: datetime | None
    """When the next attempt is due."""


class MessageDestination(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint, deleted or not, and the status of one message there."""

    id: UUID
    uid: str | None
    url: str
    description: str
    event_types: tuple[str, ...] | None
    channels: tuple[str, ...] | None
    throttle_rate: int | None
    api_version: int
    is_disabled: bool
    created_at: datetime
    updated_at: datetime
    status: MessageStatus
    next_at: datetime | None
    """When the next attempt there is due."""
    paused_until: datetime | None
    """When the next probe of the endpoint goes, if the message is pending there and it is paused."""


class ExampleMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message for one endpoint only."""

    application: str
    endpoint_id: UUID
    type: str
    body: bytes


def fill_statement(statement: str, *, is_upward: bool = False) -> str:
    """Replace the parts in braces in a statement."""
    whole = statement.replace("{standing}", STANDING).replace("{status}", STATUS)
    return with_direction(whole, is_ascending=is_upward)


def size_limited_statement(page: str, *, is_upward: bool) -> str:
    """Fill in a statement that reads a page with contents; see `to_size_limited_page`."""
    bounded = SQL["bound_page"].replace("{page}", page).replace("{most}", str(MAX_PAGE_BYTES))
    return fill_statement(bounded, is_upward=is_upward)


def to_size_limited_page(
    records: Sequence[Record], read: Callable[[Record], Row], limit: int, *, is_reversed: bool
) -> Page[Row]:
    """Build a page like `to_page`, which ends early if its contents are large in total."""
    rows = [read(record) for record in records[:limit]]
    is_last = not records or len(rows) == records[0]["found"]
    return Page(rows[::-1] if is_reversed else rows, is_last)


def to_page(rows: list[Row], limit: int, *, is_reversed: bool) -> Page[Row]:
    """Build a page of *limit* rows from one row more, reversed if it was read against the list's order."""
    page_rows = rows[:limit]
    return Page(page_rows[::-1] if is_reversed else page_rows, len(rows) <= limit)


async def record_conflict(connection: Connection, message: NewEvent, first: UUID) -> None:
    """Keep a message that is not stored, because *first* has its id or idempotency key, if the two differ."""
    publication = message.publication
    await connection.execute(
        SQL["record_message_conflict"],
        message.id,
        first,
        message.application,
        message.dedup_key,
        message.headers,
        message.content_type,
        message.body,
        message.body_sha256,
        message.type,
        message.grade,
        publication and (publication.channels or None),
        publication and (publication.tags or None),
        publication and publication.content_until,
    )


async def find(connection: Connection, application: str, reference: str) -> MessageRow | None:
    """Return an application's message by its id or its publisher's id; None if there is none."""
    if reference.startswith(f"{ids.MESSAGE}_"):
        identifier = _read(reference)
        row = None if identifier is None else await connection.fetchrow(SQL["find_message"], application, identifier)
    else:
        key = ids.message_key(application, reference)
        row = await connection.fetchrow(SQL["find_message_by_key"], application, key, reference)
    return None if row is None else to_message(row)


async def list_page(
    connection: Connection,
    application: str,
    window: Window,
    message_filter: MessageFilter = ALL_MESSAGES,
    *,
    limit: int,
    has_content: bool = True,
) -> Page[MessageRow]:
    """Return a page of an application's messages, newest first."""
    sql = size_limited_statement(SQL["list_messages"], is_upward=window.is_upward)
    arguments = (application, window.low, window.high, has_content, *message_filter.arguments(), limit + 1)
    return to_size_limited_page(
        await connection.fetch(sql, *arguments), to_message, limit, is_reversed=window.is_upward
    )


async def list_endpoint_messages(
    connection: Connection,
    application: str,
    endpoint_id: UUID,
    window: Window,
    message_filter: MessageFilter = ALL_MESSAGES,
    *,
    status: MessageStatus | None = None,
    limit: int,
    has_content: bool = True,
) -> Page[EndpointMessage]:
    """Return a page of the messages with deliveries to one endpoint, newest first, with their status there."""
    sql = size_limited_statement(endpoint_messages_statement(status), is_upward=window.is_upward)
    filters = (application, window.low, window.high, has_content, *message_filter.arguments(), limit + 1)
    rows = await connection.fetch(sql, *filters, _recipient(endpoint_id), status)
    return to_size_limited_page(rows, _endpoint_message, limit, is_reversed=window.is_upward)


def endpoint_messages_statement(status: MessageStatus | None) -> str:
    """Return the statement that reads an endpoint's messages with this status, or with any."""
    # Few messages are open or dead and most succeed, so each status is read from where it is found fastest.
    is_open = status not in {None, MessageStatus.SUCCESS}
    return SQL["list_pending_messages"].replace("{messages}", SQL["walk_open" if is_open else "walk_all"])


def _endpoint_message(row: Record) -> EndpointMessage:
    return EndpointMessage(to_message(row), MessageStatus(row["status"]), row["next_at"])


async def list_destinations(
    connection: Connection, application_id: UUID, message_id: UUID, cursor: Cursor | None, *, limit: int
) -> Page[MessageDestination]:
    """Return a page of the endpoints with deliveries of a message, including deleted ones, ordered by id."""
    low, high = recipient_of(ids.ENDPOINT), recipient_of(ids.ENDPOINT) + "~"
    is_back = cursor is not None and cursor.is_back
    if cursor is not None:
        position = _recipient(cursor.id)
        low, high = (low, position) if is_back else (position, high)
    sql = fill_statement(SQL["list_destinations"], is_upward=not is_back)
    rows = await connection.fetch(sql, message_id, low, high, limit + 1, application_id)
    return to_page([_destination(row) for row in rows], limit, is_reversed=is_back)


async def insert_example(connection: Connection, message_id: UUID, example: ExampleMessage) -> None:
    """Store a message for one endpoint, whatever it subscribes to, with a single attempt."""
    uid = ids.show(ids.EVENT, message_id)
    await connection.execute(
        SQL["insert_example"],
        message_id,
        example.application,
        example.type,
        uid,
        ids.message_key(example.application, uid),
        example.body,
        _recipient(example.endpoint_id),
    )


async def list_endpoint_routes(connection: Connection, application_id: UUID) -> list[Route]:
    """Return the subscriptions of an application's active endpoints, without their filters."""
    rows = await connection.fetch(SQL["list_listeners"], application_id)
    name = ids.show(ids.APPLICATION, application_id)
    return [
        Route(
            recipient=_recipient(row["id"]),
            app="",
            application=name,
            types=tuple(row["event_types"] or ("*",)),
            channels=row["channels"] and tuple(row["channels"]),
        )
        for row in rows
    ]


async def expunge(connection: Connection, application: str, message_ids: Sequence[UUID]) -> list[UUID]:
    """Delete the contents of an application's messages permanently; return those that had content.

    Their pending deliveries are dead-lettered, because there is nothing left to send.
    """
    await connection.execute(SQL["lock_pending"], list(message_ids))
    row = await connection.fetchrow(SQL["expunge_messages"], application, list(message_ids))
    assert row is not None
    await unblock(connection, zip(row["recipients"], row["order_keys"], strict=True))
    return list(row["gone"])


async def count_contents(connection: Connection, application: str, *, limit: int) -> int:
    """Count the messages of an application that have content, up to *limit*."""
    return int(await connection.fetchval(SQL["count_contents"], application, limit))


async def find_ids(connection: Connection, application: str, references: Sequence[str]) -> Mapping[str, UUID]:
    """Return the ids of an application's messages by reference: ids, or publisher ids."""
    parsed_ids = {name: identifier for name in references if (identifier := _read(name)) is not None}
    own = [name for name in references if name not in parsed_ids]
    keys = [ids.message_key(application, name) for name in own]
    rows = await connection.fetch(SQL["find_messages"], application, list(parsed_ids.values()), keys)
    by_id, by_uid = {row["id"] for row in rows}, {row["dedup_key"]: row["id"] for row in rows}
    ids_by_reference = {name: identifier for name, identifier in parsed_ids.items() if identifier in by_id}
    return ids_by_reference | {name: by_uid[name] for name in own if name in by_uid}


async def page_ids(connection: Connection, application: str, window: Window, *, limit: int) -> list[UUID]:
    """Return the oldest messages of an application in a window."""
    rows = await connection.fetch(SQL["page_messages"], application, window.low, window.high, limit)
    return [row["id"] for row in rows]


def endpoint_id_of(recipient: str) -> UUID:
    """Return the endpoint of a recipient."""
    return ids.read(ids.ENDPOINT, recipient.removeprefix(recipient_of("")))


def uid_of(event_id: UUID, dedup_key: str) -> str | None:
    """Return the id that a message's publisher gave it; None if it has only its own."""
    return None if dedup_key == ids.show(ids.EVENT, event_id) else dedup_key


def to_message(row: Record | Mapping[str, Any]) -> MessageRow:
    """Build a message from its columns."""
    return MessageRow(
        id=row["id"],
        type=row["type"],
        uid=uid_of(row["id"], row["dedup_key"]),
        channels=None if row["channels"] is None else tuple(row["channels"]),
        tags=None if row["tags"] is None else tuple(row["tags"]),
        deliver_at=row["deliver_at"],
        body=row["body"],
        is_gone=row["is_gone"],
    )


def _destination(row: Record) -> MessageDestination:
    values = dict(row)
    for name in ("event_types", "channels"):
        values[name] = None if row[name] is None else tuple(row[name])
    return MessageDestination(**values | {"status": MessageStatus(row["status"])})


def _read(reference: str) -> UUID | None:
    try:
        return ids.read(ids.MESSAGE, reference) if reference.startswith(f"{ids.MESSAGE}_") else None
    except ValueError:
        return None


def _recipient(endpoint_id: UUID) -> str:
    return recipient_of(ids.show(ids.ENDPOINT, endpoint_id))
