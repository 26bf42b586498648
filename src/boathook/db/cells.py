"""Stores the cell of each source, and copies what belongs to a source from one cell's database to another's."""

from collections.abc import Sequence
from typing import Final

from boathook.db import source_secrets, stored_sources
from boathook.db.database import Connection, Database, translate_errors
from boathook.db.statements import load
from boathook.domain.cells import Assignment
from boathook.domain.errors import DatabaseUrlRejected

SQL = load(__file__)

_PAGE: Final = 5_000


async def claim(database: Database, cell: str) -> None:
    """Note that a database belongs to a cell.

    Raises:
        DatabaseUrlRejected: it belongs to another one.
    """
    owner = await database.fetchval(SQL["claim_database"], cell)
    if owner != cell:
        raise DatabaseUrlRejected(
            f"this database belongs to the cell {owner}, not to {cell}; correct cells.name or its URL"
        )


async def assign(database: Database, assignments: Sequence[Assignment]) -> list[str]:
    """Assign sources to cells, unless the database knows a later assignment; return the sources that have changed.

    When this returns, no gateway stores another event under the former assignment.
    """
    columns = (
        [one.source for one in assignments],
        [one.cell for one in assignments],
        [one.revision for one in assignments],
    )
    return [row["source"] for row in await database.fetch(SQL["assign_sources"], *columns)]


async def list_assignments(where: Database | Connection) -> list[Assignment]:
    """Return the assignments of all sources that have one."""
    return [Assignment(**row) for row in await where.fetch(SQL["list_assignments"])]


async def copy_keys(origin: Database, target: Database, source: str, cell: str) -> int:
    """Copy the dedup keys of a source to another cell's database; return their number. Safe to repeat.

    Args:
        origin: the database of the cell that has stored the source's events.
        target: the database that must recognize them as duplicates.
        source: the source.
        cell: the name of the origin's cell.
    """
    copied = 0
    async with origin.snapshot() as connection:
        with translate_errors():
            cursor = await connection.cursor(SQL["read_keys"], source, cell)
            while page := await cursor.fetch(_PAGE):
                await target.execute(SQL["insert_keys"], *map(list, zip(*page, strict=True)))
                copied += len(page)
    return copied


async def copy_source(origin: Database, target: Database, source: str) -> None:
    """Copy a stored source, and the secrets that operators have added, unless the target has later ones.

    All cells must have the same encryption keys, because both stay encrypted.
    """
    row = await origin.fetchrow(SQL["read_stored_source"], source)
    secrets = await origin.fetch(SQL["read_secrets"], source)
    if row is None and not secrets:
        return
    async with target.transaction() as connection:
        if row is not None:
            await connection.execute(SQL["insert_stored_source"], *row)
        for secret in secrets:
            await connection.execute(SQL["insert_secret"], *secret)
        await connection.execute(SQL["announce_changes"], [stored_sources.CHANNEL, source_secrets.CHANNEL])
