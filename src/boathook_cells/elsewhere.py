"""Finds what belongs to other cells, for every process except gateways."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any

from boathook.config import Settings
from boathook.db.database import Database
from boathook.domain.errors import ServedElsewhere, ValueRejected
from boathook.domain.filters import Router
from boathook.domain.model import NewEvent
from boathook.ingest.spool_records import UNROUTED
from boathook_cells import store
from boathook_cells.finder import ApplicationFinder
from boathook_cells.settings import CellsSettings, find_cells


def open_elsewhere(settings: Settings) -> "Cells | None":
    """Return what finds the cells of sources and applications; None if this installation is not one of several."""
    cells = find_cells(settings)
    return None if cells is None else Cells(settings, cells)


class Cells:
    """The other cells; see `boathook.service.elsewhere.Elsewhere`."""

    noun = "cell"

    def __init__(self, settings: Settings, cells: CellsSettings) -> None:
        self._settings = settings
        self._cells = cells

    def url_of(self, home: str) -> str:
        """Return the URL of a cell's gateways; empty if it is not configured."""
        cell = self._cells.members.get(home)
        return "" if cell is None else cell.url.rstrip("/")

    def answer(self, error: ServedElsewhere) -> Mapping[str, Any]:
        """Return the body of the API's answer to a request that belongs to another cell."""
        url = self.url_of(error.home)
        detail = f"{error}: {url}" if url else str(error)
        return {"code": "wrong_cell", "detail": detail, "cell": error.home, "url": url}

    async def find_application(self, organization: str, reference: str) -> str | None:
        """Return the other cell that has an application, given by id or uid; None if none is known."""
        return await self._finder.find(organization, reference)

    @cached_property
    def _finder(self) -> ApplicationFinder:
        return ApplicationFinder(self._settings)

    def reject(self, router: Callable[[], Router]) -> Callable[[NewEvent], None]:
        """Return a function that raises ValueRejected, which names the cell, for events of others' sources.

        Args:
            router: returns the routes last read.
        """
        directory = self._cells.directory

        def reject(event: NewEvent) -> None:
            if event.source is None or router().version == UNROUTED:
                return
            home = directory.find(event.source, router().assignments)
            if home != directory.own:
                raise ValueRejected(f"the source {event.source} belongs to the cell {home}; do this there")

        return reject

    async def select_own(self, database: Database, events: Sequence[NewEvent]) -> list[NewEvent]:
        """Return the events that this cell has stored, received ones first: the others may be in another cell."""
        directory = self._cells.directory
        assignments = await store.read_assignments(database)
        targets = {event.publication.application_id for event in events if event.publication is not None}
        applications = await store.read_applications(database, targets)
        moved = {id for id, application in applications.items() if application.home is not None}
        received = [event for event in events if event.source is not None]
        published = [event for event in events if event.source is None]
        return [
            *(event for event in received if directory.find(str(event.source), assignments) == directory.own),
            *(
                event
                for event in published
                if event.publication is None or event.publication.application_id not in moved
            ),
        ]
