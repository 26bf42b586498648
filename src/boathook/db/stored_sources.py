"""Stores the sources that operators add to those of boathook.toml, with encrypted settings."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final
from uuid import UUID

from boathook.db import source_secrets
from boathook.db.database import Connection, Database, Record
from boathook.db.statements import load

SQL = load(__file__)
CHANNEL: Final = "boathook_source"
"""The channel that announces changes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSource:
    """A stored source; its settings are one encrypted JSON text."""

    name: str
    id: UUID
    """Differs from that of an earlier source with this name."""
    paths: tuple[str, ...]
    """The paths besides ``/in/NAME``, readable without the encryption key."""
    encrypted: bytes = field(repr=False)
    created_by: str = ""
    created_at: datetime | None = None
    changed_by: str = ""
    changed_at: datetime | None = None

    @property
    def context(self) -> str:
        """The encryption context that the settings are bound to."""
        return encryption_context(self.name, self.id)


def encryption_context(name: str, id: UUID) -> str:
    """Return the encryption context of a source's settings."""
    return f"source_settings:{name}:{id}"


async def read_version(database: Database | Connection) -> str:
    """Return a text that differs after each change of the stored sources."""
    version: str = await database.fetchval(SQL["read_version"])
    return version


async def list_all(database: Database | Connection) -> tuple[StoredSource, ...]:
    """Return all stored sources by name."""
    return tuple(map(_source, await database.fetch(SQL["list_sources"])))


async def lock(connection: Connection) -> None:
    """Lock the stored sources against other changes until this transaction ends: each may clash with any other."""
    await connection.execute(SQL["lock_sources"])


async def insert(
    connection: Connection, *, name: str, id: UUID, paths: Sequence[str], encrypted: bytes, by: str
) -> StoredSource | None:
    """Store a source, and notify all processes; return None if there is one of this name.

    Secrets that were added to an earlier source of this name are deleted.
    """
    await connection.fetch(SQL["delete_secrets"], name)
    row = await connection.fetchrow(SQL["insert_source"], name, id, list(paths), encrypted, by)
    await _announce(connection)
    return None if row is None else _source(row)


async def update(
    connection: Connection, name: str, *, paths: Sequence[str], encrypted: bytes, by: str
) -> StoredSource | None:
    """Replace the settings of a source, and notify all processes; return None if there is none of this name."""
    row = await connection.fetchrow(SQL["update_source"], name, list(paths), encrypted, by)
    await _announce(connection)
    return None if row is None else _source(row)


async def insert_later(connection: Connection, sources: Sequence[StoredSource]) -> None:
    """Store sources as another database has them, unless there are later ones, and notify all processes."""
    for source in sources:
        await connection.execute(
            SQL["insert_later"], source.name, source.id, list(source.paths), source.encrypted, source.created_by,
            source.created_at, source.changed_by, source.changed_at,
        )  # fmt: skip
    if sources:
        await _announce(connection)


async def delete(connection: Connection, name: str, *, with_secrets: bool) -> bool:
    """Delete a source, and notify all processes; return whether it existed.

    Args:
        name: the name of the source.
        with_secrets: whether to delete the secrets that were added to it, which a later source must not accept.
    """
    is_deleted = await connection.fetchval(SQL["delete_source"], name) is not None
    if is_deleted and with_secrets:
        await connection.fetch(SQL["delete_secrets"], name)
        await source_secrets.announce(connection)
    await _announce(connection)
    return is_deleted


async def _announce(connection: Connection) -> None:
    await connection.execute(SQL["announce_change"], CHANNEL)


def _source(row: Record) -> StoredSource:
    return StoredSource(**{**dict(row), "paths": tuple(row["paths"])})
