"""Diagnoses the cells: whether the others answer, and whether each source and application belongs to one of them."""

from collections.abc import AsyncIterator, Iterator
from typing import Final

from boathook.config import Settings
from boathook.db import cells as assignments
from boathook.db.database import Database
from boathook.domain.errors import CellUnavailable, DatabaseError
from boathook.domain.plurals import counted
from boathook.ingest.spooled_events import summarize_folder
from boathook.service import cells
from boathook.service.doctor.handlers import CheckStatus, Finding
from boathook.service.spool import HELD, cell_roots_of, root_of
from boathook.spool.inspection import list_folders

_NAME: Final = "cells"


async def examine(settings: Settings, database: Database | None) -> AsyncIterator[Finding]:
    """Yield the findings about the cells; none if this installation is not one of several."""
    for finding in _left_behind(settings):
        yield finding
    if not settings.cells.name:
        return
    for name, member in settings.cells.others.items():
        try:
            await cells.probe(settings, name)
        except CellUnavailable as error:
            found = f"{error}; events of its sources wait in the spools of this cell"
            yield Finding(_NAME, CheckStatus.WARN, found, f"see that {member.url} leads to its gateways")
    if not settings.spool.enabled:
        found = "requests for sources of another cell are answered 503 while it does not accept events"
        yield Finding(_NAME, CheckStatus.WARN, found, "set spool.enabled = true")
    if database is None:
        return
    try:
        known = await assignments.read_assignments(database)
        moved = await assignments.list_moved_applications(database)
    except DatabaseError:
        return  # reported as the state of the schema
    unknown = sorted({one.cell for one in known.values()} - settings.cells.members.keys())
    if unknown:
        found = f"sources are assigned to {', '.join(unknown)}, which cells.members lacks; their events wait"
        yield Finding(_NAME, CheckStatus.FAIL, found, "add the cell, or move its sources")
    lost = sorted({str(one.cell) for one in moved} - settings.cells.members.keys())
    if lost:
        found = f"applications have moved to {', '.join(lost)}, which cells.members lacks; their messages wait"
        yield Finding(_NAME, CheckStatus.FAIL, found, "add the cell, or move its applications")
    missing = sorted(settings.sources.keys() - known.keys())
    if missing:
        found = f"{counted(len(missing), 'source')} not assigned to a cell: {', '.join(missing[:5])}"
        yield Finding(_NAME, CheckStatus.WARN, found, "run `boathook cells assign` before you add a cell")
    else:
        total = len(settings.cells.members)
        yield Finding(_NAME, CheckStatus.OK, f"this is {settings.cells.name} of {total}; all sources are assigned")


def _left_behind(settings: Settings) -> Iterator[Finding]:
    """Report accepted events in the spool for a cell that is no longer configured: no gateway opens it."""
    opened = {*settings.cells.others, HELD} if settings.cells.name else set()
    for cell, folder in cell_roots_of(settings).items():
        if cell in opened:
            continue
        waiting = sum(summarize_folder(one).waiting for one in list_folders(folder))
        if waiting:
            found = f"{counted(waiting, 'accepted event')} in {folder} will reach no cell"
            fix = f"add {cell} to cells.members again, or move the folders in it into {root_of(settings)}"
            yield Finding(_NAME, CheckStatus.FAIL, found, fix)
