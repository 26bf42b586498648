"""Stores event types: the types of an organization's messages, with the schemas of their payloads."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from boathook.db.database import Connection, Record
from boathook.db.statements import load, with_direction
from boathook.domain import ids

SQL = load(__file__)
_AFTER_ALL_NAMES: Final = "~"
"""Sorts after every possible name."""


class EventType(msgspec.Struct, frozen=True, kw_only=True):
    """A type of message."""

    organization: str
    name: str
    description: str
    is_archived: bool = False
    """Whether endpoints can no longer subscribe to it."""
    is_deprecated: bool = False
    schemas: Mapping[str, Any] | None = None
    """JSON Schemas of its payloads, by version."""
    feature_flags: tuple[str, ...] | None = None
    """In the portal only users with one of these flags see it; None: all users."""
    group_name: str | None = None
    created_at: datetime | None = None
    updated_at: datetime | None = None


class SubscribedEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """An endpoint that subscribes to an event type."""

    id: UUID
    url: str
    is_disabled: bool
    event_types: tuple[str, ...] | None
    """The names and patterns that it subscribes to; None: all."""
    application_id: UUID
    application_uid: str | None
    application_name: str

    @property
    def shown(self) -> str:
        """The endpoint's public id."""
        return ids.show(ids.ENDPOINT, self.id)

    @property
    def application_shown(self) -> str:
        """The application's public id."""
        return ids.show(ids.APPLICATION, self.application_id)


async def list_subscribed_endpoints(
    connection: Connection, organization: str, name: str, *, limit: int
) -> list[SubscribedEndpoint]:
    """Return endpoints that subscribe to a type; those that name it come first."""
    rows = await connection.fetch(SQL["list_listeners"], organization, name, limit)
    return [
        SubscribedEndpoint(
            **dict(row) | {"event_types": None if row["event_types"] is None else tuple(row["event_types"])}
        )
        for row in rows
    ]


async def insert(connection: Connection, type: EventType) -> EventType | None:
    """Store an event type; return None if the name exists."""
    row = await connection.fetchrow(SQL["insert_event_type"], *_columns(type))
    return None if row is None else _event_type(row)


async def find(
    connection: Connection, organization: str, name: str, flags: Collection[str] | None = None
) -> EventType | None:
    """Return an event type; with *flags*, only if a user with these flags may see it."""
    row = await connection.fetchrow(SQL["find_event_type"], organization, name, None if flags is None else list(flags))
    return None if row is None else _event_type(row)


async def lock(connection: Connection, organization: str, name: str) -> EventType | None:
    """Return an event type, locked for an update in this transaction."""
    row = await connection.fetchrow(SQL["lock_event_type"], organization, name)
    return None if row is None else _event_type(row)


async def save(connection: Connection, type: EventType) -> EventType:
    """Store an event type's changed fields."""
    row = await connection.fetchrow(SQL["save_event_type"], *_columns(type))
    assert row is not None
    return _event_type(row)


async def list_page(
    connection: Connection,
    organization: str,
    *,
    place: str | None,
    is_ascending: bool,
    limit: int,
    with_archived: bool,
    flags: Collection[str] | None = None,
) -> list[EventType]:
    """Return event types after the name *place* (exclusive), in ascending or descending order."""
    sql = with_direction(SQL["list_event_types"], is_ascending=is_ascending)
    bound = place or ("" if is_ascending else _AFTER_ALL_NAMES)
    rows = await connection.fetch(
        sql, organization, bound, limit, with_archived, None if flags is None else list(flags)
    )
    return [_event_type(row) for row in rows]


async def list_missing(connection: Connection, organization: str, names: Sequence[str]) -> list[str]:
    """Return which of these names are not the name of an active event type."""
    return [row["name"] for row in await connection.fetch(SQL["list_missing"], organization, names)]


async def delete(connection: Connection, organization: str, name: str) -> None:
    """Delete an event type; messages and endpoints keep its name."""
    await connection.execute(SQL["delete_event_type"], organization, name)


def _columns(type: EventType) -> tuple[Any, ...]:
    return (
        type.organization,
        type.name,
        type.description,
        type.is_archived,
        type.is_deprecated,
        None if type.schemas is None else msgspec.json.encode(type.schemas).decode(),
        type.feature_flags,
        type.group_name,
    )


def _event_type(row: Record) -> EventType:
    return EventType(
        **{name: row[name] for name in ("organization", "name", "description", "is_archived", "is_deprecated")},
        schemas=None if row["schemas"] is None else msgspec.json.decode(row["schemas"]),
        feature_flags=None if row["feature_flags"] is None else tuple(row["feature_flags"]),
        group_name=row["group_name"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )
