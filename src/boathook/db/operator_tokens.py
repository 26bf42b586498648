"""Stores the bearer tokens of operators, as hashes only."""

from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from boathook.db.database import Connection, Record
from boathook.db.statements import load
from boathook.domain import ids

SQL = load(__file__)


class OperatorToken(msgspec.Struct, frozen=True, kw_only=True):
    """The data stored about an operator's token."""

    id: UUID
    operator_id: UUID
    operator: str
    """The operator's name."""
    name: str
    role: str
    """Its role; it has that of its operator if this is lower."""
    created_at: datetime | None = None
    expires_at: datetime | None = None
    used_at: datetime | None = None
    """When it was last used, to the minute."""
    revoked_at: datetime | None = None

    @property
    def shown_id(self) -> str:
        """The public id."""
        return ids.show(ids.OPERATOR_TOKEN, self.id)


class UsableToken(msgspec.Struct, frozen=True):
    """A valid token, and its enabled operator as of now."""

    id: UUID
    role: str
    operator_id: UUID
    operator: str
    operator_role: str


async def insert(
    connection: Connection, token: OperatorToken, token_sha256: bytes, lifetime: timedelta, *, limit: int
) -> OperatorToken | None:
    """Store a token by its hash; None if its operator, who must be locked, has *limit* valid ones."""
    row = await connection.fetchrow(
        SQL["insert_token"],
        token.id,
        token_sha256,
        token.operator_id,
        token.name,
        token.role,
        lifetime.total_seconds(),
        limit,
    )
    return None if row is None else _token(row)


async def find(connection: Connection, token_sha256: bytes) -> UsableToken | None:
    """Return a token by its hash, if it is valid and its operator is enabled; record that it is used."""
    row = await connection.fetchrow(SQL["find_token"], token_sha256)
    if row is None:
        return None
    if row["is_stale"]:
        await connection.execute(SQL["touch_token"], row["id"])
    return UsableToken(**{name: row[name] for name in UsableToken.__struct_fields__})


async def list_all(
    connection: Connection, operator_id: UUID | None = None, *, before: UUID | None = None, limit: int | None = None
) -> list[OperatorToken]:
    """Return the tokens of all operators, or of one, newest first: at most *limit*, and only older ones than one."""
    return [_token(row) for row in await connection.fetch(SQL["list_tokens"], operator_id, before, limit)]


async def revoke(connection: Connection, id: UUID, operator_id: UUID | None = None) -> bool:
    """Revoke a token, of any operator or of one; return False if there is no valid one."""
    return await connection.fetchval(SQL["revoke_token"], id, operator_id) is not None


async def revoke_all(connection: Connection, operator_id: UUID) -> None:
    """Revoke all tokens of an operator."""
    await connection.execute(SQL["revoke_tokens"], operator_id)


def _token(row: Record) -> OperatorToken:
    return OperatorToken(**{name: row[name] for name in OperatorToken.__struct_fields__})
