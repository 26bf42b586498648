"""Stores the searches for events that operators have saved."""

from uuid import UUID

import msgspec

from boathook.db.database import Connection
from boathook.db.statements import load

SQL = load(__file__)


class SavedView(msgspec.Struct, frozen=True):
    """A saved search of one operator."""

    name: str
    query: str
    """The query string of the page of events."""


async def list_of(connection: Connection, operator_id: UUID) -> list[SavedView]:
    """Return the views of an operator, ordered by name."""
    return [SavedView(**dict(row)) for row in await connection.fetch(SQL["list_views"], operator_id)]


async def save(connection: Connection, operator_id: UUID, view: SavedView, *, limit: int) -> bool:
    """Store a view, or replace the one with its name; return False if the operator has *limit* others."""
    return await connection.fetchval(SQL["save_view"], operator_id, view.name, view.query, limit) is not None


async def delete(connection: Connection, operator_id: UUID, name: str) -> bool:
    """Delete a view; return False if the operator has none of this name."""
    return await connection.fetchval(SQL["delete_view"], operator_id, name) is not None
