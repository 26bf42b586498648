"""Secrets of sources that operators added to those of boathook.toml: encrypted, some with an expiry."""

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
"""Where a change is announced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSecret:
    """A secret as it is kept."""

    id: UUID
    source: str
    encrypted: bytes = field(repr=False)
    note: str = ""
    added_by: str
    added_at: datetime
    ends_at: datetime | None = None
    """From when on it proves nothing; None: it has no end yet."""

    @property
    def shown_id(self) -> str:
        """The id as people see it."""
        return ids.show(ids.SOURCE_SECRET, self.id)

    @property
    def context(self) -> str:
        """The place it is encrypted for."""
        return encryption_context(self.source, self.id)

    def is_valid_at(self, moment: datetime) -> bool:
        """Return whether it proves requests at *moment*."""
        return self.ends_at is None or moment < self.ends_at


def encryption_context(source: str, id: UUID) -> str:
    """Return the place that a secret of a source is encrypted for."""
    return f"source_secret:{source}:{ids.show(ids.SOURCE_SECRET, id)}"


async def list_all(database: Database, *, within_s: float | None = None) -> tuple[SourceSecret, ...]:
    """Return the secrets of all sources that have not ended, the youngest first.

    Raises:
        DatabaseUnavailable: PostgreSQL is away, or did not answer within *within_s* seconds.
    """
    async with database.acquire(within_s=within_s) as connection:
        with translate_errors():
            return _secrets(await connection.fetch(SQL["list_secrets"]))


async def list_by_source(connection: Connection, source: str) -> tuple[SourceSecret, ...]:
    """Return the secrets of one source, the youngest first; those that ended lately too."""
    return _secrets(await connection.fetch(SQL["list_of_source"], source))


async def lock(connection: Connection, source: str) -> None:
    """Keep others from changing the secrets of a source until this transaction ends."""
    await connection.execute(SQL["lock_source"], source)


async def insert(
    connection: Connection, *, id: UUID, source: str, encrypted: bytes, note: str, by: str
) -> SourceSecret:
    """Store a secret, and tell every gateway."""
    row = await connection.fetchrow(SQL["insert_secret"], id, source, encrypted, note, by)
    assert row is not None
    await connection.execute(SQL["forget_ended"])
    await _announce(connection)
    return SourceSecret(**dict(row))


async def expire(connection: Connection, source: str, id: UUID, after: timedelta | None) -> SourceSecret | None:
    """Let a secret end after a while, or not at all; None where there is none that has not ended."""
    row = await connection.fetchrow(SQL["end_secret"], source, id, after)
    await _announce(connection)
    return None if row is None else SourceSecret(**dict(row))


async def expire_others(connection: Connection, source: str, id: UUID, after: timedelta) -> int:
    """Let all secrets of a source but one end after a while; return how many end then that would not have."""
    rows = await connection.fetch(SQL["end_others"], source, id, after)
    await _announce(connection)
    return len(rows)


async def delete(connection: Connection, source: str, id: UUID) -> bool:
    """Delete a secret; return whether there was one."""
    gone = await connection.fetchval(SQL["remove_secret"], source, id) is not None
    await _announce(connection)
    return gone


async def _announce(connection: Connection) -> None:
    await connection.execute(SQL["announce_change"], CHANNEL)


def _secrets(rows: Sequence[Record]) -> tuple[SourceSecret, ...]:
    return tuple(SourceSecret(**dict(row)) for row in rows)
