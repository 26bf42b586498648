"""Brings a database's schema up to date, by the revisions in `migrations/`.

A revision is a pair of files, `NNNN_pre_what.py` for its place in the order and `NNNN_pre_what.sql` for what it does.
What is named *pre* is safe while the older boathook still runs, what is named *post* only once it is gone; so
a rolling upgrade runs `migrate(url, only_pre=True)`, replaces the processes, and runs `migrate(url)`.
A `.sql` file is applied in one transaction. Where it builds an index on a table that grows, it begins with the line
``-- concurrently`` and holds nothing else (`building`), so that nobody waits for it who writes to the table.
`schema.sql` stays the whole schema as it is after all of them; a test compares the two.
"""

import asyncio
import functools
from pathlib import Path
from typing import TYPE_CHECKING

import asyncpg

from boathook.journal.database import Database, translated
from boathook.journal.revising import apply, connected, turn

if TYPE_CHECKING:
    from alembic.script import ScriptDirectory

MIGRATIONS = Path(__file__).with_name("migrations")

_FIND_VERSION_TABLE = "select to_regclass('boathook.alembic_version') is not null"
_READ_VERSION = "select version_num from boathook.alembic_version"
_CREATE_VERSION_TABLE = """
    create table if not exists boathook.alembic_version (
        version_num varchar(32) constraint alembic_version_pkc primary key
    )
"""
_FORGET_VERSION = "delete from boathook.alembic_version"
_WRITE_VERSION = "insert into boathook.alembic_version (version_num) values ($1)"


async def migrate(url: str, *, only_pre: bool = False) -> list[str]:
    """Apply what the database lacks, revision by revision; return the names of those applied.

    Processes that start together may all call it. A database that a newer boathook has migrated is left alone.

    Raises:
        JournalUnavailable: the server cannot be reached, another process has been migrating for too long, or an index
            waits for transactions that began before it; what was done stands, and calling again goes on from there.
        JournalError: a revision was refused; the message names it.
    """
    async with turn(url) as connection:
        with translated():
            version = await _version(connection)
        applied = []
        for name in await _after(version):
            if only_pre and "_post_" in name:
                break
            await _apply(url, connection, name)
            applied.append(name)
        return applied


async def pending(where: Database | str) -> list[str]:
    """Return the names of the revisions that a database, or the one at a URL, still lacks.

    Raises:
        JournalUnavailable: the server cannot be reached.
    """
    if isinstance(where, Database):
        return await _after(await _version(where))
    async with connected(where) as connection:
        with translated():
            version = await _version(connection)
    return await _after(version)


async def _version(where: Database | asyncpg.Connection) -> str | None:
    if not await where.fetchval(_FIND_VERSION_TABLE):
        return None
    version: str | None = await where.fetchval(_READ_VERSION)
    return version


async def _apply(url: str, connection: asyncpg.Connection, name: str) -> None:
    async def note() -> None:
        await connection.execute(_CREATE_VERSION_TABLE)
        await connection.execute(_FORGET_VERSION)
        await connection.execute(_WRITE_VERSION, name)

    await apply(url, connection, name, (MIGRATIONS / f"{name}.sql").read_text(encoding="utf-8"), note)


async def _after(version: str | None) -> list[str]:
    """Return the revisions after *version* in order; none where a newer boathook made it."""
    if version == max(path.stem for path in MIGRATIONS.glob("*.sql")):
        return []
    # What knows their order takes half a second to import, which the event loop is not to wait for.
    names = await asyncio.to_thread(_revisions)
    if version is None:
        return names
    return names[names.index(version) + 1 :] if version in names else []


def _revisions() -> list[str]:
    return [script.revision for script in _scripts().walk_revisions()][::-1]


@functools.cache
def _scripts() -> "ScriptDirectory":
    from alembic.script import ScriptDirectory

    return ScriptDirectory(str(MIGRATIONS), version_locations=[str(MIGRATIONS)])
