"""The page of the console that shows all cells."""

from collections.abc import Sequence
from typing import Final

import msgspec
from starlette.responses import Response

from boathook.config import Settings
from boathook.service.access.authorization import Permission
from boathook_cells.moves import list_known
from boathook_cells.settings import find_cells
from boathook_cells.status import CellStatus, read_statuses
from boathook_console.routes import ConsoleContext, ConsolePages, NavItem, Routes

_NAVIGATION: Final = NavItem("Cells", "/cells", "m", Permission.OVERVIEW_VIEW, "servers", "System")
_MAX_SOURCES: Final = 12
_routes: Final = Routes()


def open_pages(settings: Settings) -> ConsolePages | None:
    """Return the pages; None if this installation is not one of several."""
    return None if find_cells(settings) is None else ConsolePages(_routes, (_NAVIGATION,))


class _Row(msgspec.Struct, frozen=True):
    """A cell, with the sources that this cell has recorded for it."""

    status: CellStatus
    sources: Sequence[str]
    """The first of their names."""
    others: int
    """How many more there are."""


@_routes.get(_NAVIGATION.path, _NAVIGATION.permission)
async def list_cells(context: ConsoleContext) -> Response:
    """Show all cells; queries their gateways."""
    statuses = await read_statuses(context.app_context.settings)
    async with context.work() as work:
        homes = await list_known(work)
    rows = []
    for status in statuses:
        names = [source for source, cell in homes.items() if cell == status.name]
        rows.append(_Row(status, names[:_MAX_SOURCES], len(names[_MAX_SOURCES:])))
    return context.page("cells/list.html", rows=rows)
