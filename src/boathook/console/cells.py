"""The page of all cells: how each one is, and which sources it has."""

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.responses import Response

from boathook.console.routes import CELLS, ConsoleContext, Routes
from boathook.service import cells
from boathook.service.cells import CellStatus

routes = Routes()
_MAX_NAMED: Final = 12


class CellRow(msgspec.Struct, frozen=True):
    """A cell, with the sources that this cell has recorded for it."""

    status: CellStatus
    sources: Sequence[str]
    """The first of their names."""
    others: int
    """How many more there are."""


@routes.get(CELLS.path, CELLS.permission)
async def list_cells(context: ConsoleContext) -> Response:
    """Show all cells; queries their gateways."""
    settings = context.app_context.settings
    if not settings.cells.name:
        return context.page("cells/list.html", rows=[])
    statuses = await cells.read_statuses(settings)
    async with context.work() as work:
        homes = await cells.list_known(work)
    rows = []
    for status in statuses:
        names = [source for source, cell in homes.items() if cell == status.name]
        rows.append(CellRow(status, names[:_MAX_NAMED], len(names[_MAX_NAMED:])))
    return context.page("cells/list.html", rows=rows)
