"""Assignments of sources to cells in PostgreSQL, and what a move copies."""

import pytest

from boathook.db import cells
from boathook.db.database import Database
from boathook.db.route_registry import read_routes
from boathook.domain.cells import Assignment
from boathook.domain.errors import DatabaseUrlRejected


def to(cell: str, revision: int) -> list[Assignment]:
    return [Assignment(source="shop", cell=cell, revision=revision)]


async def test_only_a_later_assignment_counts_and_changes_the_version_of_the_routes(db: Database):
    before = (await read_routes(db)).version
    assert await cells.assign(db, to("c1", 2)) == ["shop"]
    changed = await read_routes(db)
    assert (changed.version > before, changed.assignments) == (True, tuple(to("c1", 2)))
    for ignored in (to("c2", 1), to("c2", 2), to("c1", 2)):
        assert await cells.assign(db, ignored) == []
    assert await read_routes(db) == changed
    assert await cells.assign(db, to("c2", 3)) == ["shop"]
    assert await cells.read_assignments(db) == {"shop": to("c2", 3)[0]}


async def test_a_database_belongs_to_one_cell(db: Database):
    await cells.claim(db, "c1")
    await cells.claim(db, "c1")
    with pytest.raises(DatabaseUrlRejected, match="belongs to the cell c1, not to c2"):
        await cells.claim(db, "c2")
