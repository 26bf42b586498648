"""Stores the secrets of sources that operators added to those of boathook.toml: encrypted, some with an expiry."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from boathook.db.database import Connection, Database, Record, translate_errors
from boathook.db.statements import load
from boathook.domain import ids

SQL = load(__file__)
CHANNEL: Final = "boathook_source_secret"
"""The channel that announces changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSecret:
    """A stored secret."""

    id: UUID
    source: str
    encrypted: bytes = field(repr=False)
    note: str = ""
    added_by: str
    added_at: datetime
    expires_at: datetime | None = None
    """From this time on it is invalid; None: no expiry yet."""

    @property
    def shown_id(self) -> str:
        """The public id."""
        return ids.show(ids.SOURCE_SECRET, self.id)

    @property
    def context(self) -> str:
        """The encryption context that the secret is bound to."""
        return encryption_context(self.source, self.id)

    def is_valid_at(self, at: datetime) -> bool:
        """Return whether it is valid at *at*."""
        return self.expires_at is None or at < self.expires_at


def encryption_context(source: str, id: UUID) -> str:
    """Return the encryption context of a source's secret."""
    return f"source_secret:{source}:{ids.show(ids.SOURCE_SECRET, id)}"


async def list_all(database: Database, *, within_s: float | None = None) -> tuple[SourceSecret, ...]:
    """Return the unexpired secrets of all sources, newest first.

    Raises:
        DatabaseUnavailable: PostgreSQL is unavailable, or did not respond within *within_s* seconds.
    """
    async with database.acquire(within_s=within_s) as connection:
        with translate_errors():
            return await list_active(connection)


async def list_active(connection: Connection) -> tuple[SourceSecret, ...]:
    """Return the unexpired secrets of all sources, newest first, as the transaction sees them."""
    return _secrets(await connection.fetch(SQL["list_secrets"]))


async def list_by_source(connection: Connection, source: str) -> tuple[SourceSecret, ...]:
    """Return the secrets of one source, newest first, including recently expired ones."""
    return _secrets(await connection.fetch(SQL["list_of_source"], source))


async def lock(connection: Connection, source: str) -> None:
    """Lock the secrets of a source against other changes until this transaction ends."""
    await connection.execute(SQL["lock_source"], source)


async def insert(
    connection: Connection, *, id: UUID, source: str, encrypted: bytes, note: str, by: str
) -> SourceSecret:
    """Store a secret, and notify all gateways."""
    row = await connection.fetchrow(SQL["insert_secret"], id, source, encrypted, note, by)
    assert row is not None
    await connection.execute(SQL["forget_ended"])
    await announce(connection)
    return SourceSecret(**dict(row))


async def insert_later(connection: Connection, secrets: Sequence[SourceSecret]) -> None:
    """Store secrets as another database has them, and notify all gateways; a known one ends when either copy does."""
    for secret in secrets:
        await connection.execute(
            SQL["insert_later"],
            secret.id,
            secret.source,
            secret.encrypted,
            secret.note,
            secret.added_by,
            secret.added_at,
            secret.expires_at,
        )
    if secrets:
        await announce(connection)


async def expire(connection: Connection, source: str, id: UUID, after: timedelta | None) -> SourceSecret | None:
    """Let a secret expire after a delay, or never; return None if there is no unexpired one."""
    row = await connection.fetchrow(SQL["expire_secret"], source, id, after)
    await announce(connection)
    return None if row is None else SourceSecret(**dict(row))


async def expire_others(connection: Connection, source: str, id: UUID, after: timedelta) -> int:
    """Let all secrets of a source but one expire after a delay; return how many now expire sooner."""
    rows = await connection.fetch(SQL["expire_others"], source, id, after)
    await announce(connection)
    return len(rows)


async def delete(connection: Connection, source: str, id: UUID) -> bool:
    """Delete a secret; return whether it existed."""
    was_deleted = await connection.fetchval(SQL["remove_secret"], source, id) is not None
    await announce(connection)
    return was_deleted


async def announce(connection: Connection) -> None:
    """Notify all gateways that secrets have changed, once this transaction commits."""
    await connection.execute(SQL["announce_change"], CHANNEL)


def _secrets(rows: Sequence[Record]) -> tuple[SourceSecret, ...]:
    return tuple(SourceSecret(**dict(row)) for row in rows)
