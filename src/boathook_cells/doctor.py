"""Diagnoses the cells: whether the others accept events, and whether all know the same of each other."""

from collections.abc import AsyncIterator, Iterator
from typing import Final

from boathook.config import Settings
from boathook.db.database import Database
from boathook.domain.errors import DatabaseError
from boathook.domain.plurals import counted
from boathook.service.operating.doctor.handlers import CheckStatus, Finding
from boathook.service.receiving.spool import root_of, summarize_folder
from boathook.spool.inspection import list_folders
from boathook_cells import store
from boathook_cells.forwarding import CellUnavailable
from boathook_cells.settings import CellsSettings, find_cells
from boathook_cells.spools import HELD, list_spools
from boathook_cells.status import probe

_CHECK: Final = "cells"


async def examine(settings: Settings, database: Database | None) -> AsyncIterator[Finding]:
    """Yield the findings about the cells; if this installation is not one of several, only about what is left of them.

    Args:
        settings: the settings.
        database: the database of this cell, for what is stored there; None for the other cells and this host.
    """
    cells = find_cells(settings)
    if database is not None:
        if cells is not None:
            async for finding in _stored(settings, cells, database):
                yield finding
        return
    for finding in _left_behind(settings, cells):
        yield finding
    if cells is None:
        return
    for name, member in cells.others.items():
        try:
            await probe(settings, name)
        except CellUnavailable as error:
            text = f"{error}; events of its sources wait in the spools of this cell"
            yield Finding(_CHECK, CheckStatus.WARN, text, f"see that {member.url} leads to its gateways")
    if not settings.spool.enabled:
        text = "requests for sources of another cell are answered 503 while it does not accept events"
        yield Finding(_CHECK, CheckStatus.WARN, text, "set spool.enabled = true")


async def _stored(settings: Settings, cells: CellsSettings, database: Database) -> AsyncIterator[Finding]:
    """Yield the findings about what this cell knows of the others."""
    try:
        assignments = await store.read_assignments(database)
        moved = await store.list_moved_applications(database)
    except DatabaseError:
        return  # reported as the state of the schema
    unknown = sorted({assignment.home for assignment in assignments.values()} - cells.members.keys())
    if unknown:
        text = f"sources are assigned to {', '.join(unknown)}, which cells.members lacks; their events wait"
        yield Finding(_CHECK, CheckStatus.FAIL, text, "add the cell, or move its sources")
    lost = sorted({str(application.home) for application in moved} - cells.members.keys())
    if lost:
        text = f"applications have moved to {', '.join(lost)}, which cells.members lacks; their messages wait"
        yield Finding(_CHECK, CheckStatus.FAIL, text, "add the cell, or move its applications")
    missing = sorted(settings.sources.keys() - assignments.keys())
    if missing:
        text = f"{counted(len(missing), 'source')} not assigned to a cell: {', '.join(missing[:5])}"
        yield Finding(_CHECK, CheckStatus.WARN, text, "run `boathook cells assign` before you add a cell")
    else:
        total = len(cells.members)
        yield Finding(_CHECK, CheckStatus.OK, f"this is {cells.name} of {total}; all sources are assigned")


def _left_behind(settings: Settings, cells: CellsSettings | None) -> Iterator[Finding]:
    """Report accepted events in the spool for a cell that is no longer configured: no gateway opens it."""
    opened = set() if cells is None else {*cells.others, HELD}
    for spool in list_spools(settings):
        if spool.name in opened:
            continue
        waiting = sum(summarize_folder(folder).waiting for folder in list_folders(spool.root))
        if waiting:
            text = f"{counted(waiting, 'accepted event')} in {spool.root} will reach no cell"
            fix = f"add {spool.name} to cells.members again, or move the folders in it into {root_of(settings)}"
            yield Finding(_CHECK, CheckStatus.FAIL, text, fix)
