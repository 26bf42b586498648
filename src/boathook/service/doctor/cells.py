"""Diagnoses the cells: whether the others answer, and whether each source is assigned to one."""

from collections.abc import AsyncIterator
from typing import Final

from boathook.config import Settings
from boathook.db import cells as assignments
from boathook.db.database import Database
from boathook.domain.errors import DatabaseError
from boathook.domain.plurals import counted
from boathook.service import cells
from boathook.service.doctor.handlers import CheckStatus, Finding

_NAME: Final = "cells"


async def examine(settings: Settings, database: Database | None) -> AsyncIterator[Finding]:
    """Yield the findings about the cells; none if this installation is not one of several."""
    if not settings.cells.name:
        return
    for status in await cells.read_statuses(settings):
        if not status.is_own and status.problem:
            found = f"{status.name}: {status.problem}; events of its sources wait in the spools of this cell"
            yield Finding(_NAME, CheckStatus.WARN, found, f"see that {status.url} leads to its gateways")
    if not settings.spool.enabled:
        found = "requests for sources of another cell are answered 503 while it does not accept events"
        yield Finding(_NAME, CheckStatus.WARN, found, "set spool.enabled = true")
    if database is None:
        return
    try:
        known = {one.source for one in await assignments.list_assignments(database)}
    except DatabaseError:
        return  # reported as the state of the schema
    missing = sorted(settings.sources.keys() - known)
    if missing:
        found = f"{counted(len(missing), 'source')} not assigned to a cell: {', '.join(missing[:5])}"
        yield Finding(_NAME, CheckStatus.WARN, found, "run `boathook cells assign` before you add a cell")
    else:
        total = len(settings.cells.members)
        yield Finding(_NAME, CheckStatus.OK, f"this is {settings.cells.name} of {total}; all sources are assigned")
