"""Stores applications: the tenants that receive messages, each with its organization and its endpoints."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final
from uuid import UUID

import msgspec

from boathook.db.database import Connection, Record, translate_unique_violation
from boathook.db.statements import load, with_direction
from boathook.domain import ids
from boathook.domain.endpoints import parse_reference
from boathook.domain.errors import AlreadyExists

SQL = load(__file__)
_UID_TAKEN: Final = "another application has this uid"
MIN_ID: Final = UUID(int=0)
MAX_ID: Final = UUID(int=(1 << 128) - 1)


class Application(msgspec.Struct, frozen=True, kw_only=True):
    """A tenant that receives messages."""

    id: UUID
    organization: str
    uid: str | None
    """The organization's own id for it, unique there."""
    imported_id: str | None = None
    """Its id on the server that it was imported from, unique in the organization; also a name of it."""
    name: str
    throttle_rate: int | None
    """Maximum messages per second to each endpoint without its own rate."""
    metadata: Mapping[str, str] = msgspec.field(default_factory=dict)
    is_operational: bool = False
    """Whether it receives the organization's operational events; only its own routes show it."""
    home: str | None = None
    """The installation that it has moved to; None if it is here."""
    created_at: datetime
    updated_at: datetime

    @property
    def shown_id(self) -> str:
        """The public id."""
        return ids.show(ids.APPLICATION, self.id)


class PageRequest(msgspec.Struct, frozen=True):
    """A page of a list: at most *limit* rows after *place* (exclusive), ascending or descending."""

    place: UUID | None
    is_ascending: bool
    limit: int

    @property
    def bound(self) -> UUID:
        """The cursor, or the end of the list where the page starts."""
        return self.place or (MIN_ID if self.is_ascending else MAX_ID)


async def insert(
    connection: Connection,
    id: UUID,
    organization: str,
    *,
    uid: str | None,
    name: str,
    throttle_rate: int | None,
    metadata: Mapping[str, str],
) -> Application:
    """Store an application. Raises AlreadyExists if the uid is in use; the transaction can go on then."""
    row = await connection.fetchrow(
        SQL["insert_application"], id, organization, uid, name, throttle_rate, _dump(metadata)
    )
    if row is None:
        raise AlreadyExists(_UID_TAKEN)
    return _application(row)


async def find(
    connection: Connection, organization: str, reference: str, *, only: UUID | None = None
) -> Application | None:
    """Return an organization's application by id, uid or imported id; *only* is the only one that it may be."""
    return await _find("find_application", connection, organization, reference, only)


async def lock(connection: Connection, organization: str, reference: str) -> Application | None:
    """Return an organization's application by id, uid or imported id, locked for an update in this transaction."""
    return await _find("lock_application", connection, organization, reference)


async def _find(
    statement: str, connection: Connection, organization: str, reference: str, *only: UUID | None
) -> Application | None:
    names = parse_reference(ids.APPLICATION, reference)
    row = await connection.fetchrow(SQL[statement], organization, *names, *only) if names else None
    return None if row is None else _application(row)


async def save(connection: Connection, application: Application) -> Application:
    """Store an application's changed fields. Raises AlreadyExists if the uid is in use."""
    with translate_unique_violation(_UID_TAKEN):
        row = await connection.fetchrow(
            SQL["save_application"],
            application.organization,
            application.id,
            application.uid,
            application.name,
            application.throttle_rate,
            _dump(application.metadata),
        )
    return _application(row)


async def set_imported_id(connection: Connection, id: UUID, imported_id: str) -> None:
    """Store an application's id on the server that it was imported from. Raises AlreadyExists if another has it."""
    with translate_unique_violation("another application has this imported id"):
        await connection.execute(SQL["set_imported_id"], id, imported_id)


async def list_page(
    connection: Connection,
    organization: str,
    window: PageRequest,
    *,
    only_with_endpoints: bool = False,
    only_all_enabled: bool = False,
) -> list[Application]:
    """Return a page of an organization's applications, in the order of the window.

    Args:
        only_with_endpoints: exclude applications without endpoints.
        only_all_enabled: exclude applications with a disabled endpoint.
    """
    sql = with_direction(SQL["list_applications"], is_ascending=window.is_ascending)
    rows = await connection.fetch(sql, organization, window.bound, window.limit, only_with_endpoints, only_all_enabled)
    return [_application(row) for row in rows]


async def lock_home(connection: Connection, id: UUID) -> str | None:
    """Return the installation that an application has moved to; a move that begins now waits for this transaction."""
    home: str | None = await connection.fetchval(SQL["lock_home"], id)
    return home


async def delete(connection: Connection, application: Application) -> None:
    """Mark an application and its endpoints as deleted; their uids may be used again."""
    await connection.execute(SQL["delete_application"], application.organization, application.id)


async def find_operational(connection: Connection, organization: str) -> Application | None:
    """Return the application for an organization's operational events, if it was created."""
    row = await connection.fetchrow(SQL["find_operational_application"], organization)
    return None if row is None else _application(row)


async def ensure_operational(connection: Connection, id: UUID, organization: str) -> Application:
    """Return the application for an organization's operational events; create it with this id if it is missing."""
    await connection.execute(SQL["insert_operational_application"], id, organization)
    return _application(await connection.fetchrow(SQL["find_operational_application"], organization))


async def bump_routes_version(connection: Connection, application_id: UUID) -> None:
    """Make all publishers of the application reload its endpoints."""
    await connection.execute(SQL["raise_routes_version"], application_id)


_PLAIN_COLUMNS: Final = [name for name in Application.__struct_fields__ if name != "metadata"]


def _application(row: Record | None) -> Application:
    assert row is not None
    metadata: dict[str, Any] = msgspec.json.decode(row["metadata"])
    return Application(**{name: row[name] for name in _PLAIN_COLUMNS}, metadata=metadata)


def _dump(value: Mapping[str, str]) -> str:
    return msgspec.json.encode(value).decode()
