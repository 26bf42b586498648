"""The console's page of all cells."""

import pytest

from boathook.db.database import Database
from boathook.domain.homes import Assignment
from boathook.domain.model import Role
from boathook_cells import store
from boathook_cells.settings import CellsSettings
from tests.postgres.api_client import make_context
from tests.postgres.portal_client import ConsoleApp, open_console

SECRET = "whsec_" + "A" * 32
MEMBERS = {
    "c1": {"url": "http://127.0.0.1:9", "accepts_new": True},
    "c2": {"url": "http://127.0.0.1:9/two"},
}


@pytest.fixture
async def cells(db: Database):
    """Yield the console of the cell c1."""
    section = CellsSettings.model_validate({"name": "c1", "secret": SECRET, "members": MEMBERS})
    context = make_context(db, sources__shop__provider="stripe")
    context.settings = context.settings.model_copy(
        update={"tables": {**context.settings.tables, "boathook_cells:package": {"cells": section}}}
    )
    return ConsoleApp(context)


async def test_it_shows_what_each_cell_answers_and_has(cells: ConsoleApp, db: Database):
    vera = await cells.operator("vera", Role.VIEWER)
    await store.assign(db, [Assignment(source="bank", home="c2", revision=1)])
    page = (await vera.get("/console/cells")).text
    assert page.count("its gateways do not answer") == 2
    assert '<a href="http://127.0.0.1:9/two/console"' in page
    assert "<td>shop</td>" in page
    assert "<td>bank</td>" in page
    assert 'href="/console/cells"' in page
    assert SECRET not in page


async def test_without_cells_there_is_no_such_page(db: Database):
    async with open_console(db) as console:
        vera = await console.operator("vera", Role.VIEWER)
        assert (await vera.get("/console/cells")).status_code == 404
        assert 'href="/console/cells"' not in (await vera.get("/console")).text


async def test_an_application_that_has_moved_links_to_its_cell(cells: ConsoleApp, db: Database):
    tenant = await cells.tenant("acme")
    rosa = await cells.operator("rosa", Role.ADMIN)
    path = f"/console/applications/{tenant.application.shown_id}"
    assert "New endpoint" in await rosa.get_page(path)
    await db.execute("update boathook.application set home = 'c2' where uid = 'acme'")
    page = await rosa.get_page(path)
    assert f'<a href="http://127.0.0.1:9/two{path}" rel="noreferrer">c2</a>' in page
    assert "New endpoint" not in page
    refused = await rosa.submit_form(f"{path}/edit", {"name": "Other"}, status=400)
    assert "belongs to the cell c2" in refused.text
