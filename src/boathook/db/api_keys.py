"""Stores API keys and their permissions. Only hashes of the tokens are stored."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from boathook.db.database import Connection, Record
from boathook.db.statements import load
from boathook.domain import ids

SQL = load(__file__)


class ApiKey(msgspec.Struct, frozen=True, kw_only=True):
    """The data stored about a token."""

    id: UUID
    organization: str
    application_id: UUID | None
    """The only application that it may access; None: the whole organization."""
    name: str = ""
    is_portal: bool = False
    """Whether it belongs to a portal session."""
    session_id: str | None = None
    capabilities: tuple[str, ...] | None = None
    """The permitted actions of a portal user; None: all of them."""
    feature_flags: tuple[str, ...] | None = None
    mount: str | None = None
    """The only mounted path of an app that it may call; None: any of the organization's."""
    mount_role: str | None = None
    """Its role there, a `MountRole`."""
    created_at: datetime | None = None
    expires_at: datetime | None = None
    revoked_at: datetime | None = None

    @property
    def shown_id(self) -> str:
        """The public id."""
        return ids.show(ids.API_KEY, self.id)


async def insert(connection: Connection, key: ApiKey, token_sha256: bytes, lifetime: timedelta | None) -> ApiKey:
    """Store a key by the hash of its token."""
    row = await connection.fetchrow(
        SQL["insert_key"],
        key.id,
        token_sha256,
        key.organization,
        key.application_id,
        key.name,
        key.is_portal,
        key.session_id,
        key.capabilities,
        key.feature_flags,
        key.mount,
        key.mount_role,
        lifetime,
    )
    assert row is not None
    return _key(row)


async def find(connection: Connection, token_sha256: bytes) -> ApiKey | None:
    """Return the key of a token, if it is valid."""
    row = await connection.fetchrow(SQL["find_key"], token_sha256)
    return None if row is None else _key(row)


async def list_all(
    connection: Connection,
    organization: str | None,
    *,
    with_portal: bool,
    before: UUID | None = None,
    limit: int | None = None,
) -> list[ApiKey]:
    """Return the keys before one, newest first, at most *limit*."""
    return [_key(row) for row in await connection.fetch(SQL["list_keys"], organization, with_portal, before, limit)]


async def get(connection: Connection, id: UUID, organization: str | None) -> ApiKey | None:
    """Return a key, valid or not, of an organization; None for *organization* means of any."""
    row = await connection.fetchrow(SQL["get_key"], id, organization)
    return None if row is None else _key(row)


async def list_portal(connection: Connection, organization: str, *, limit: int) -> list[ApiKey]:
    """Return the latest valid portal keys of an organization."""
    return [_key(row) for row in await connection.fetch(SQL["list_portal"], organization, limit)]


async def revoke(connection: Connection, id: UUID, organization: str | None) -> ApiKey | None:
    """Revoke a key of an organization, or of any if that is None, and return it; None if there is no valid one."""
    row = await connection.fetchrow(SQL["revoke_key"], id, organization)
    return None if row is None else _key(row)


async def expire(
    connection: Connection, application_id: UUID, sessions: Sequence[str] | None, after: timedelta
) -> None:
    """Let the keys of an application, or of some of its sessions, expire after a delay."""
    await connection.execute(SQL["expire_keys"], application_id, sessions, after)


def _key(row: Record) -> ApiKey:
    names = ("id", "organization", "application_id", "name", "is_portal", "session_id", "mount", "mount_role")
    return ApiKey(
        **{name: row[name] for name in (*names, "created_at", "expires_at", "revoked_at")},
        capabilities=None if row["capabilities"] is None else tuple(row["capabilities"]),
        feature_flags=None if row["feature_flags"] is None else tuple(row["feature_flags"]),
    )
