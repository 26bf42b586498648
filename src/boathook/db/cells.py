"""Stores the cell of each source, and the cell that the database belongs to."""

from collections.abc import Sequence

from boathook.db.database import Connection, Database
from boathook.db.statements import load
from boathook.domain.cells import Assignment
from boathook.domain.errors import DatabaseUrlRejected

SQL = load(__file__)


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


async def read_assignments(where: Database | Connection) -> dict[str, Assignment]:
    """Return the assignments by source."""
    return {row["source"]: Assignment(**row) for row in await where.fetch(SQL["list_assignments"])}
