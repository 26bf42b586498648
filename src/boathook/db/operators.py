"""Stores operators, who may sign in to the console, with their sessions and their saved searches for events.

Passwords and tokens are stored only as hashes.
"""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from boathook.db.database import Connection, Record
from boathook.db.statements import load
from boathook.domain import ids

SQL = load(__file__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """A user who may sign in to the console."""

    id: UUID
    name: str
    role: str
    password_hash: str | None = field(default=None, repr=False)
    """None for operators who sign in only through an identity provider."""
    subject: str | None = None
    """The identity provider's issuer and its id for the operator."""
    created_at: datetime | None = None
    signed_in_at: datetime | None = None
    disabled_at: datetime | None = None
    sessions: int = 0
    """Number of active sessions, if it was requested."""

    @property
    def shown_id(self) -> str:
        """The public id."""
        return ids.show(ids.OPERATOR, self.id)


class ClientInfo(msgspec.Struct, frozen=True):
    """The client of a session."""

    client_address: str
    user_agent: str


class SavedView(msgspec.Struct, frozen=True):
    """A saved search of one operator."""

    name: str
    query: str
    """The query string of the page of events."""


async def insert(connection: Connection, operator: Operator) -> Operator | None:
    """Store an operator; None if the name or the subject is in use."""
    row = await connection.fetchrow(
        SQL["insert_operator"], operator.id, operator.name, operator.role, operator.password_hash, operator.subject
    )
    return None if row is None else _operator(row)


async def find(connection: Connection, name: str) -> Operator | None:
    """Return the operator with this name, ignoring case."""
    row = await connection.fetchrow(SQL["find_operator"], name)
    return None if row is None else _operator(row)


async def find_by_subject(connection: Connection, subject: str) -> Operator | None:
    """Return the operator with this subject at the identity provider."""
    row = await connection.fetchrow(SQL["find_operator_by_subject"], subject)
    return None if row is None else _operator(row)


async def list_all(connection: Connection) -> list[Operator]:
    """Return all operators, ordered by name."""
    return [_operator(row) for row in await connection.fetch(SQL["list_operators"])]


async def update(
    connection: Connection,
    id: UUID,
    *,
    role: str | None = None,
    password_hash: str | None = None,
    is_disabled: bool | None = None,
) -> Operator | None:
    """Change the given fields; return None if there is no operator with this id."""
    row = await connection.fetchrow(SQL["update_operator"], id, role, password_hash, is_disabled)
    return None if row is None else _operator(row)


async def link_subject(connection: Connection, id: UUID, subject: str) -> Operator:
    """Store an operator's subject at the identity provider."""
    row = await connection.fetchrow(SQL["bind_operator"], id, subject)
    assert row is not None
    return _operator(row)


async def lock(connection: Connection, id: UUID) -> Operator | None:
    """Return the operator with this id, locked against changes until the transaction ends."""
    row = await connection.fetchrow(SQL["lock_operator"], id)
    return None if row is None else _operator(row)


async def lock_admins(connection: Connection) -> list[UUID]:
    """Return the ids of the enabled admins, locked until the transaction ends."""
    return [row["id"] for row in await connection.fetch(SQL["lock_admins"])]


async def delete(connection: Connection, id: UUID) -> bool:
    """Delete an operator with all sessions; return False if there was none."""
    return await connection.fetchval(SQL["delete_operator"], id) is not None


async def start_session(
    connection: Connection, token_sha256: bytes, operator: UUID, lifetime: timedelta, browser: ClientInfo
) -> None:
    """Store a new session of an operator."""
    await connection.execute(
        SQL["insert_session"], token_sha256, operator, lifetime, browser.client_address, browser.user_agent
    )


async def find_session(
    connection: Connection, token_sha256: bytes, idle: timedelta, *, is_active: bool = True
) -> Operator | None:
    """Return the operator of this token's session if it was active within *idle*; record activity if *is_active*."""
    row = await connection.fetchrow(SQL["find_session"], token_sha256, idle)
    if row is None:
        return None
    if row["is_stale"] and is_active:
        await connection.execute(SQL["touch_session"], token_sha256)
    return _operator(row)


async def end_session(connection: Connection, token_sha256: bytes) -> None:
    """End one session."""
    await connection.execute(SQL["end_session"], token_sha256)


async def end_sessions(connection: Connection, operator: UUID, *, but: bytes | None = None) -> None:
    """End all sessions of an operator, except the one with the token *but*."""
    await connection.execute(SQL["end_sessions"], operator, but)


async def list_views(connection: Connection, operator_id: UUID) -> list[SavedView]:
    """Return the views of an operator, ordered by name."""
    return [SavedView(**dict(row)) for row in await connection.fetch(SQL["list_views"], operator_id)]


async def save_view(connection: Connection, operator_id: UUID, view: SavedView, *, limit: int) -> bool:
    """Store a view, or replace the one with its name; return False if the operator has *limit* others."""
    return await connection.fetchval(SQL["save_view"], operator_id, view.name, view.query, limit) is not None


async def delete_view(connection: Connection, operator_id: UUID, name: str) -> bool:
    """Delete a view; return False if the operator has none of this name."""
    return await connection.fetchval(SQL["delete_view"], operator_id, name) is not None


def _operator(row: Record) -> Operator:
    names = ("id", "name", "role", "password_hash", "subject", "created_at", "signed_in_at", "disabled_at")
    return Operator(**{name: row[name] for name in names}, sessions=row.get("sessions", 0))
