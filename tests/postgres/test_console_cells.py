"""The console's page of all cells."""

import pytest

from boathook.config.tables import CellsSettings
from boathook.db import cells
from boathook.db.database import Database
from boathook.domain.cells import Assignment
from boathook.domain.model import Role
from tests.postgres.portal_client import ConsoleApp, PageClient, open_console

MEMBERS = {
    "c1": {"url": "http://127.0.0.1:9", "accepts_new": True},
    "c2": {"url": "http://127.0.0.1:9/two"},
}


@pytest.fixture
async def console(db: Database):
    async with open_console(db, sources__shop__provider="stripe") as console:
        yield console


@pytest.fixture
async def vera(console: ConsoleApp) -> PageClient:
    return await console.operator("vera", Role.VIEWER)


async def test_it_shows_what_each_cell_answers_and_has(console: ConsoleApp, vera: PageClient, db: Database):
    settings = console.context.settings
    secret = "whsec_" + "A" * 32
    console.context.settings = settings.model_copy(
        update={"cells": CellsSettings.model_validate({"name": "c1", "secret": secret, "members": MEMBERS})}
    )
    await cells.assign(db, [Assignment(source="bank", cell="c2", revision=1)])
    page = (await vera.get("/console/cells")).text
    assert page.count("its gateways do not answer") == 2
    assert '<a href="http://127.0.0.1:9/two/console"' in page
    assert "<td>shop</td>" in page
    assert "<td>bank</td>" in page
    assert 'href="/console/cells"' in page
    assert secret not in page


async def test_without_cells_the_page_is_not_in_the_navigation(vera: PageClient):
    page = (await vera.get("/console/cells")).text
    assert "not one of several cells" in page
    assert 'href="/console/cells"' not in page


async def test_an_application_that_has_moved_links_to_its_cell(console: ConsoleApp, db: Database):
    tenant = await console.tenant("acme")
    settings = console.context.settings
    console.context.settings = settings.model_copy(
        update={
            "cells": CellsSettings.model_validate({"name": "c1", "secret": "whsec_" + "A" * 32, "members": MEMBERS})
        }
    )
    rosa = await console.operator("rosa", Role.ADMIN)
    path = f"/console/applications/{tenant.application.shown_id}"
    assert "New endpoint" in await rosa.get_page(path)
    await db.execute("update boathook.application set cell = 'c2' where uid = 'acme'")
    page = await rosa.get_page(path)
    assert f'<a href="http://127.0.0.1:9/two{path}" rel="noreferrer">c2</a>' in page
    assert "New endpoint" not in page
    refused = await rosa.submit_form(f"{path}/edit", {"name": "Other"}, status=400)
    assert "belongs to the cell c2" in refused.text
