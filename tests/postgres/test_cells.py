"""Assignments of sources to cells in PostgreSQL, and the data copied by a move."""

import pytest

from boathook.config import load
from boathook.config.tables import CellsSettings
from boathook.db import cells
from boathook.db.database import Database
from boathook.db.route_registry import read_routes
from boathook.domain.cells import Assignment
from boathook.domain.errors import DatabaseUrlRejected
from boathook.service.doctor.handlers import CheckStatus
from boathook.service.doctor.setup import _cells
from tests.sender_harness import add_application


def to(cell: str, revision: int) -> list[Assignment]:
    return [Assignment(source="shop", cell=cell, revision=revision)]


async def test_only_a_later_assignment_applies_and_changes_the_routes_version(db: Database):
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


async def test_the_doctor_finds_applications_in_an_unconfigured_cell(db: Database):
    members = {"c1": {"url": "http://127.0.0.1:9", "accepts_new": True}}
    given = {"name": "c1", "secret": "whsec_" + "A" * 32, "members": members}
    settings = load(None, {}).model_copy(update={"cells": CellsSettings.model_validate(given)})
    assert [one.verdict async for one in _cells(settings, db)] == [CheckStatus.OK]
    await add_application(db, cell="c9")
    found = [one async for one in _cells(settings, db)]
    assert [one.verdict for one in found] == [CheckStatus.FAIL, CheckStatus.OK]
    assert "applications have moved to c9, which cells.members lacks" in found[0].found
