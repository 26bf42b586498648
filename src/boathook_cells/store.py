"""Stores the cell of each source and application, and the cell that the database belongs to.

An application is moved by three functions, in this order: `reserve_application` in the new cell, `close_application` in
the old one, `open_application` in the new one.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec

from boathook.db.database import Connection, Database, translate_unique_violation
from boathook.db.statements import load
from boathook.domain import ids
from boathook.domain.endpoints import parse_reference
from boathook.domain.errors import DatabaseUrlRejected, InvalidState
from boathook.domain.homes import Assignment
from boathook.domain.ids import message_key
from boathook.domain.model import Event, NewEvent, Origin, ProofStrength, Publication
from boathook_cells.directory import APP

SQL = load(__file__)
REPLACED: Final = ("application", "endpoint", "api_key")
"""Tables whose rows move with an application, and replace those of an earlier stay in the new cell."""
ADDED: Final = ("endpoint_secret", "endpoint_health", "event_type")
"""Tables whose rows are added, unless the new cell has them."""


class CellApplication(msgspec.Struct, frozen=True, kw_only=True):
    """An application, with the cell that one database names."""

    id: UUID
    organization: str
    uid: str | None
    name: str
    home: str | None
    """The cell that it has moved to; None if it is in the cell of the database."""
    revision: int
    """If databases disagree, the one with the highest revision is right."""

    @property
    def shown_id(self) -> str:
        """The public id."""
        return ids.show(ids.APPLICATION, self.id)


async def claim(database: Database, cell: str) -> None:
    """Note that a database belongs to a cell.

    Raises:
        DatabaseUrlRejected: it belongs to another one.
    """
    owner = await database.fetchval(SQL["claim_database"], cell, APP)
    if owner != cell:
        raise DatabaseUrlRejected(
            f"this database belongs to the cell {owner}, not to {cell}; correct cells.name or its URL"
        )


async def assign(database: Database, assignments: Sequence[Assignment]) -> list[str]:
    """Assign sources to cells, unless the database has a later assignment; return the sources that have changed.

    When this returns, no gateway stores another event under the former assignment.
    """
    columns = (
        [assignment.source for assignment in assignments],
        [assignment.home for assignment in assignments],
        [assignment.revision for assignment in assignments],
    )
    return [row["source"] for row in await database.fetch(SQL["assign_sources"], *columns)]


async def read_assignments(database: Database | Connection) -> dict[str, Assignment]:
    """Return the assignments by source."""
    return {row["source"]: Assignment(**row) for row in await database.fetch(SQL["list_assignments"])}


async def has_application(connection: Connection, organization: str, reference: str) -> bool:
    """Return whether an organization's application with this id, uid or imported id is in the cell of the database."""
    names = parse_reference(ids.APPLICATION, reference)
    return names is not None and await connection.fetchval(SQL["find_application"], organization, *names) is not None


async def read_applications(database: Database | Connection, ids: Collection[UUID]) -> dict[UUID, CellApplication]:
    """Return the wanted applications that a database has, by id."""
    return {row["id"]: CellApplication(**row) for row in await database.fetch(SQL["read_applications"], list(ids))}


async def list_moved_applications(database: Database) -> list[CellApplication]:
    """Return the applications that have moved to another cell, or are being moved from one."""
    return [CellApplication(**row) for row in await database.fetch(SQL["list_moved_applications"])]


async def read_message(connection: Connection, event: Event, *, min_memory_days: float) -> NewEvent | None:
    """Return a stored message as its publisher would have another cell store it; None if its content was deleted.

    Args:
        connection: in the database that has the message.
        event: the message.
        min_memory_days: how long the other cell must remember its keys at least.
    """
    key = message_key(str(event.application), event.dedup_key)
    row = await connection.fetchrow(SQL["read_message"], event.id, key)
    if row is None:
        return None
    return NewEvent(
        id=event.id,
        source=None,
        application=row["application"],
        type=row["type"],
        dedup_key=row["dedup_key"],
        key_hash=key,
        replay_hash=row["replay_key"],
        grade=ProofStrength.NONE,
        origin=Origin.PUBLISHED,
        headers=row["headers"],
        content_type=row["content_type"],
        body=row["body"],
        body_sha256=row["body_sha256"],
        publication=Publication(
            application_id=row["application_id"],
            organization=row["organization"],
            memory_days=max(row["memory_days"], min_memory_days),
            channels=tuple(row["channels"] or ()),
            tags=tuple(row["tags"] or ()),
            deliver_at=row["deliver_at"],
            content_until=row["content_until"],
            request_sha256=row["request_sha256"],
        ),
    )


async def export_application(origin: Database, id: UUID) -> str:
    """Return everything that moves with an application, as a document for the new cell."""
    document: str = await origin.fetchval(SQL["export_application"], id)
    return document


async def count_open_deliveries(database: Database, id: UUID) -> int:
    """Return how many deliveries of an application's messages have not ended."""
    number: int = await database.fetchval(SQL["count_open_deliveries"], id)
    return number


async def reserve_application(target: Database, id: UUID, document: str, columns: Mapping[str, str], cell: str) -> bool:
    """Store an application in its new cell, which accepts nothing for it yet; return False if it is there already.

    Args:
        target: the database of the new cell.
        id: the application.
        document: the result of `export_application`.
        columns: the result of `read_columns`.
        cell: the name of the old cell.

    Raises:
        AlreadyExists: another application has its uid or imported id there.
    """
    async with target.transaction() as connection:
        present = await connection.fetchrow(SQL["lock_application"], id)
        if present is not None and present["home"] is None:
            return False
        with translate_unique_violation(
            "another application of the new cell has its uid or imported id; change or delete one of them"
        ):
            await connection.execute(_fill("replace_rows", "application", columns), document)
        await connection.execute(SQL["mark_reserved"], id, cell)
    return True


async def close_application(origin: Database, id: UUID, cell: str) -> int:
    """Let an application's old cell accept nothing more for it; return the revision of that.

    When this returns, all transactions that have published to it or changed it have ended there.
    """
    await origin.execute(SQL["name_home"], id, cell, 0)
    async with origin.transaction() as connection:
        # Those that began before hold a lock. Those with an older snapshot fail from this second update on.
        await connection.fetchrow(SQL["lock_application"], id)
        revision: int = await connection.fetchval(SQL["name_home"], id, cell, 0)
    return revision


async def open_application(
    target: Database, id: UUID, document: str, columns: Mapping[str, str], revision: int
) -> dict[str, int]:
    """Let the new cell of an application accept messages for it, with everything that moves; return the rows by table.

    Args:
        target: the database of the new cell.
        id: the application.
        document: the result of `export_application`, after the old cell was closed.
        columns: the result of `read_columns`.
        revision: the result of `close_application`.
    """
    async with target.transaction() as connection:
        await connection.fetchrow(SQL["lock_application"], id)
        await connection.execute(SQL["clear_endpoints"], id)
        copied = {}
        for statement, tables in (("replace_rows", REPLACED), ("add_rows", ADDED)):
            for table in tables:
                tag = await connection.execute(_fill(statement, table, columns), document)
                copied[table] = int(tag.split()[-1])
        await connection.fetchval(SQL["name_home"], id, None, revision)
    return copied


async def read_columns(origin: Database, target: Database) -> dict[str, str]:
    """Return the columns to copy, by table.

    Raises:
        InvalidState: the cells have different ones, because one runs another version.
    """
    columns_by_cell = []
    for database in (origin, target):
        rows = await database.fetch(SQL["list_columns"], [*REPLACED, *ADDED])
        columns_by_cell.append({row["name"]: ", ".join(row["columns"]) for row in rows})
    if columns_by_cell[0] != columns_by_cell[1]:
        raise InvalidState("the cells have different schemas: run the same version in both, then repeat this", "schema")
    return columns_by_cell[0]


def _fill(statement: str, table: str, columns: Mapping[str, str]) -> str:
    names = columns[table]
    new = ", ".join(f"excluded.{name}" for name in names.split(", "))
    return SQL[statement].replace("{table}", table).replace("{columns}", names).replace("{new_columns}", new)
