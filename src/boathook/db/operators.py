"""Operators: people who may sign in to the console. Of passwords and session tokens only hashes are kept."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from uuid import UUID

from boathook.db.database import Connection, Record
from boathook.db.statements import load
from boathook.domain import ids

SQL = load(__file__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Somebody who may sign in to the console."""

    id: UUID
    name: str
    role: str
    password_hash: str | None = field(default=None, repr=False)
    """None for those who sign in through an identity provider only."""
    subject: str | None = None
    """Who they are to the identity provider: its issuer and their id there."""
    created_at: datetime | None = None
    signed_in_at: datetime | None = None
    disabled_at: datetime | None = None
    sessions: int = 0
    """In how many browsers they are signed in, where that was asked for."""

    @property
    def shown_id(self) -> str:
        """The id as people see it."""
        return ids.show(ids.OPERATOR, self.id)


@dataclass(frozen=True, slots=True)
class ClientInfo:
    """Where somebody has signed in."""

    client_address: str
    user_agent: str


async def insert(connection: Connection, operator: Operator) -> Operator:
    """Store somebody; the name must be free."""
    row = await connection.fetchrow(
        SQL["insert_operator"], operator.id, operator.name, operator.role, operator.password_hash, operator.subject
    )
    assert row is not None
    return _operator(row)


async def find(connection: Connection, name: str) -> Operator | None:
    """Return who has this name, in whatever case."""
    row = await connection.fetchrow(SQL["find_operator"], name)
    return None if row is None else _operator(row)


async def find_by_subject(connection: Connection, subject: str) -> Operator | None:
    """Return whom the identity provider calls so."""
    row = await connection.fetchrow(SQL["find_operator_by_subject"], subject)
    return None if row is None else _operator(row)


async def list_all(connection: Connection) -> list[Operator]:
    """Return everybody, in the order of their names."""
    return [_operator(row) for row in await connection.fetch(SQL["list_operators"])]


async def update(
    connection: Connection,
    id: UUID,
    *,
    role: str | None = None,
    password_hash: str | None = None,
    is_disabled: bool | None = None,
) -> Operator | None:
    """Change what is given; returns None where there is nobody with this id."""
    row = await connection.fetchrow(SQL["update_operator"], id, role, password_hash, is_disabled)
    return None if row is None else _operator(row)


async def link_subject(connection: Connection, id: UUID, subject: str) -> Operator:
    """Note that the identity provider calls this operator *subject*."""
    row = await connection.fetchrow(SQL["bind_operator"], id, subject)
    assert row is not None
    return _operator(row)


async def lock(connection: Connection, id: UUID) -> Operator | None:
    """Return who has this id, as nobody else can change them until the transaction ends."""
    row = await connection.fetchrow(SQL["lock_operator"], id)
    return None if row is None else _operator(row)


async def lock_admins(connection: Connection) -> list[UUID]:
    """Return the ids of the admins who may sign in, locked until the transaction ends."""
    return [row["id"] for row in await connection.fetch(SQL["lock_admins"])]


async def delete(connection: Connection, id: UUID) -> bool:
    """Remove somebody with all sessions; returns False where there was nobody."""
    return await connection.fetchval(SQL["delete_operator"], id) is not None


async def start_session(
    connection: Connection, token_sha256: bytes, operator: UUID, lifetime: timedelta, browser: ClientInfo
) -> None:
    """Remember a browser in which somebody has signed in."""
    await connection.execute(
        SQL["insert_session"], token_sha256, operator, lifetime, browser.client_address, browser.user_agent
    )


async def find_session(
    connection: Connection, token_sha256: bytes, idle: timedelta, *, is_active: bool = True
) -> Operator | None:
    """Return who has signed in with this token and was seen within *idle*; note that they are there if *is_active*."""
    row = await connection.fetchrow(SQL["find_session"], token_sha256, idle)
    if row is None:
        return None
    if row["is_stale"] and is_active:
        await connection.execute(SQL["touch_session"], token_sha256)
    return _operator(row)


async def end_session(connection: Connection, token_sha256: bytes) -> None:
    """Sign one browser out."""
    await connection.execute(SQL["end_session"], token_sha256)


async def end_sessions(connection: Connection, operator: UUID, *, but: bytes | None = None) -> None:
    """Sign somebody out everywhere, but in the browser with the token *but*."""
    await connection.execute(SQL["end_sessions"], operator, but)


def _operator(row: Record) -> Operator:
    names = ("id", "name", "role", "password_hash", "subject", "created_at", "signed_in_at", "disabled_at")
    return Operator(**{name: row[name] for name in names}, sessions=row.get("sessions", 0))
