"""Assignments of sources to cells in PostgreSQL, and the data copied by a move."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from boathook.config import Settings, load
from boathook.db.database import Database
from boathook.db.events import EventStore
from boathook.db.route_registry import read_routes
from boathook.domain.errors import DatabaseError, DatabaseUrlRejected, InvalidState
from boathook.domain.homes import Assignment
from boathook.domain.model import Duplicate, Receipt
from boathook.service.database import open_database
from boathook.service.operating.doctor.handlers import CheckStatus
from boathook_cells import keys, moves, store
from boathook_cells.doctor import examine
from boathook_cells.settings import CellsSettings, require_cells
from tests.databases import Pool
from tests.postgres.cells.cells_without_gateways import Cells, open_cells
from tests.postgres.db.test_events import event
from tests.sender_harness import add_application


def to(cell: str, revision: int) -> list[Assignment]:
    return [Assignment(source="shop", home=cell, revision=revision)]


async def test_only_a_later_assignment_applies_and_changes_the_routes_version(db: Database):
    before = (await read_routes(db)).version
    assert await store.assign(db, to("c1", 2)) == ["shop"]
    changed = await read_routes(db)
    assert (changed.version > before, changed.assignments) == (True, tuple(to("c1", 2)))
    for ignored in (to("c2", 1), to("c2", 2), to("c1", 2)):
        assert await store.assign(db, ignored) == []
    assert await read_routes(db) == changed
    assert await store.assign(db, to("c2", 3)) == ["shop"]
    assert await store.read_assignments(db) == {"shop": to("c2", 3)[0]}


async def test_a_database_belongs_to_one_cell(db: Database):
    await store.claim(db, "c1")
    await store.claim(db, "c1")
    with pytest.raises(DatabaseUrlRejected, match="belongs to the cell c1, not to c2"):
        await store.claim(db, "c2")


async def test_a_cell_has_the_applications_of_an_organization_that_are_here(db: Database):
    await add_application(db, uid="acme")
    async with db.acquire() as connection:
        assert await store.has_application(connection, "default", "acme")
        assert not await store.has_application(connection, "other", "acme")
        await connection.execute("update boathook.application set home = 'c9'")
        assert not await store.has_application(connection, "default", "acme")


async def test_the_doctor_finds_applications_in_an_unconfigured_cell(db: Database):
    members = {"c1": {"url": "http://127.0.0.1:9", "accepts_new": True}}
    given = {"name": "c1", "secret": "whsec_" + "A" * 32, "members": members}
    section = {"cells": CellsSettings.model_validate(given)}
    settings = load(None, {}).model_copy(update={"tables": {"boathook_cells:package": section}})
    assert [one.verdict async for one in examine(settings, db)] == [CheckStatus.OK]
    await add_application(db, home="c9")
    found = [one async for one in examine(settings, db)]
    assert [one.verdict for one in found] == [CheckStatus.FAIL, CheckStatus.OK]
    assert "applications have moved to c9, which cells.members lacks" in found[0].found


# Moves of a source.


@pytest.fixture
async def trio(databases: Pool) -> AsyncIterator[Cells]:
    """Three cells; the source and one event of it are in the first."""
    async with open_cells(databases) as made:
        for cell in made.values():
            await store.assign(cell.db, to("c1", 1))
        await send(made, "c1")
        yield made


async def send(trio: Cells, name: str) -> Receipt | None:
    """Send the event to a cell; return its receipt, or None if the source does not belong to that cell."""
    cell = trio[name]
    routes = await read_routes(cell.db)
    assignments = {one.source: one for one in routes.assignments}
    if require_cells(cell.settings).directory.find("shop", assignments) != name:
        return None
    (receipt,) = await EventStore(cell.db).append([event("evt_1", source="shop", version=routes.version)])
    return receipt


async def count_events(trio: Cells) -> int:
    return sum([await cell.db.fetchval("select count(*) from boathook.event") for cell in trio.values()])


async def move(trio: Cells, target: str) -> moves.Move:
    return await moves.move_source(trio["c1"].settings, "shop", target)


async def events_after_a_move(trio: Cells, monkeypatch: pytest.MonkeyPatch) -> int:
    """Move the source while its sender repeats the event in the new cell; return how many events are stored."""
    copy_keys = keys.copy_keys

    async def copy_slowly(*arguments: Any) -> int:
        await send(trio, "c2")
        return await copy_keys(*arguments)

    monkeypatch.setattr(keys, "copy_keys", copy_slowly)
    await move(trio, "c2")
    assert await send(trio, "c2") is not None
    return await count_events(trio)


async def test_a_source_moves_after_its_keys(trio: Cells, monkeypatch: pytest.MonkeyPatch):
    assert await events_after_a_move(trio, monkeypatch) == 1


async def test_mutant_moved_before_its_keys_an_event_is_stored_twice(trio: Cells, monkeypatch: pytest.MonkeyPatch):
    assign = store.assign

    async def assign_new_cell_too(database: Database, assignments: Sequence[Assignment]) -> list[str]:
        changed = await assign(database, assignments)
        await assign(trio["c2"].db, assignments)
        return changed

    monkeypatch.setattr(store, "assign", assign_new_cell_too)
    assert await events_after_a_move(trio, monkeypatch) == 2


async def test_a_key_that_outlives_its_event_moves_too(trio: Cells):
    await trio["c1"].db.execute("delete from boathook.event")
    assert (await move(trio, "c2")).keys == 1
    assert isinstance(await send(trio, "c2"), Duplicate)


async def events_after_an_interruption(trio: Cells, monkeypatch: pytest.MonkeyPatch) -> int:
    """Interrupt a move before the keys are copied, and assign all sources; return how many events are stored."""

    async def fail(*_: Any) -> int:
        raise DatabaseError("cut off")

    with monkeypatch.context() as patch:
        patch.setattr(keys, "copy_keys", fail)
        with pytest.raises(DatabaseError, match="cut off"):
            await move(trio, "c2")
    await moves.assign_sources(trio["c1"].settings)
    await send(trio, "c2")
    await move(trio, "c2")
    await send(trio, "c2")
    return await count_events(trio)


async def test_only_a_move_completes_an_interrupted_one(trio: Cells, monkeypatch: pytest.MonkeyPatch):
    assert await events_after_an_interruption(trio, monkeypatch) == 1


async def test_mutant_if_assigning_completes_it_an_event_is_stored_twice(trio: Cells, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(moves.SourceCell, "is_moving", False)
    assert await events_after_an_interruption(trio, monkeypatch) == 2


async def test_after_an_interrupted_move_every_cell_must_be_reached(trio: Cells, monkeypatch: pytest.MonkeyPatch):
    """Which of them has stored the latest events is unknown."""
    for name in ("c1", "c3"):
        await store.assign(trio[name].db, to("c2", 2))

    @asynccontextmanager
    async def open_but_one(settings: Settings, **options: Any) -> AsyncIterator[Database]:
        if settings.database.url == trio["c1"].settings.database.url:
            raise DatabaseError("away")
        async with open_database(settings, **options) as database:
            yield database

    monkeypatch.setattr(moves, "open_database", open_but_one)
    with pytest.raises(DatabaseError, match="cell c1: away"):
        await moves.move_source(trio["c2"].settings, "shop", "c3")


async def test_a_move_that_another_has_overtaken_is_an_error(trio: Cells, monkeypatch: pytest.MonkeyPatch):
    list_sources = moves._list_sources

    async def list_before_another_move(*arguments: Any) -> list[moves.SourceCell]:
        found = await list_sources(*arguments)
        await store.assign(trio["c1"].db, to("c3", 2))
        return found

    monkeypatch.setattr(moves, "_list_sources", list_before_another_move)
    with pytest.raises(InvalidState, match="another move of shop is running, or has ended"):
        await move(trio, "c2")
    assert await send(trio, "c2") is None


async def cells_after_two_moves(trio: Cells, monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Move the source to the third cell while its move to the second waits; return the cells it is assigned to."""
    copy_keys, is_copying, may_go_on = keys.copy_keys, asyncio.Event(), asyncio.Event()

    async def wait_first(*arguments: Any) -> int:
        if not is_copying.is_set():
            is_copying.set()
            await may_go_on.wait()
        return await copy_keys(*arguments)

    monkeypatch.setattr(keys, "copy_keys", wait_first)
    slow = asyncio.create_task(move(trio, "c2"))
    await is_copying.wait()
    await move(trio, "c3")
    may_go_on.set()
    await slow
    return {(await store.read_assignments(cell.db))["shop"].home for cell in trio.values()}


async def test_an_older_assignment_does_not_replace_a_later_one(trio: Cells, monkeypatch: pytest.MonkeyPatch):
    assert await cells_after_two_moves(trio, monkeypatch) == {"c3"}


async def test_mutant_without_the_revision_two_cells_have_the_source(trio: Cells, monkeypatch: pytest.MonkeyPatch):
    unchecked = store.SQL["assign_sources"].replace("where a.revision < excluded.revision", "")
    assert unchecked != store.SQL["assign_sources"]
    monkeypatch.setitem(store.SQL, "assign_sources", unchecked)
    assert await cells_after_two_moves(trio, monkeypatch) == {"c2", "c3"}
