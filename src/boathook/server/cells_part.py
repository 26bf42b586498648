"""The part of a gateway that passes events on to the other cells, and takes what they pass on."""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final, Self
from uuid import UUID

from boathook.db import cells
from boathook.db.database import Database, translate_errors
from boathook.domain.cells import ApplicationAssignment, Assignment
from boathook.domain.errors import DatabaseError
from boathook.http.asgi import Asgi
from boathook.http_client.client import Client, unguarded_settings
from boathook.ingest.cells import HELD, CellIntakes, CellReceiver, CellStore
from boathook.ingest.event_writer import MessageStore
from boathook.ingest.intake import Intake
from boathook.observability import meters
from boathook.server.gateway_part import Gateway, GatewayPart
from boathook.service.receiving.spool import cell_root_of, limits_of
from boathook.spool.spool import Spool, SpoolStatus

_QUESTION_TIMEOUT_S: Final = 1.0
"""Deadline of another cell's question for an application: it does not wait longer."""


def open_cells_part(gateway: Gateway) -> "CellsPart | None":
    """Return the part; None if there is only one cell. Raises ConfigError."""
    return CellsPart(gateway) if gateway.settings.cells.name else None


class CellsPart(GatewayPart):
    """The intakes for the other cells, and the receiver of what they post."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._settings = gateway.settings
        self._secret = gateway.settings.cells_secret()
        self._client = Client(unguarded_settings(gateway.settings))
        self._intakes = CellIntakes(
            self._settings.cells.directory, lambda: gateway.event_builder.router, gateway.messages
        )
        for name, cell in self._settings.cells.others.items():
            store = CellStore(
                name, cell.url, self._secret, post=self._post, on_refusal=self._on_refusal, messages=gateway.messages
            )
            self._intakes.add(name, self._open_intake(name, store), store)
        self._intakes.add(HELD, self._open_intake(HELD, self._intakes))
        self.elsewhere = partial(self._intakes.find_other, self._settings.cells.name)

    def wrap(self, app: Asgi) -> Asgi:
        """Return *app* behind the receiver of what other cells post."""
        self._intakes.add(self._settings.cells.name, self._gateway.intake)
        return CellReceiver(
            self._intakes,
            self._secret,
            self._gateway.intake,
            self._gateway.event_builder,
            applications=self,
            others=app,
        )

    async def check_database(self, database: Database) -> None:
        """Check that the database belongs to this cell, or to none yet. Raises DatabaseError."""
        await cells.claim(database, self._settings.cells.name)

    def note_move(self, assignment: ApplicationAssignment) -> None:
        """Note the cell that an application has moved to."""
        self._intakes.learn(assignment)

    async def __aenter__(self) -> Self:
        await self._intakes.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._intakes.drain()
        self._client.close()

    async def find_cells(self, wanted: Collection[UUID]) -> Sequence[ApplicationAssignment]:
        """Return the cells of applications that this cell has, or that have moved from here."""
        known = await cells.read_applications(self._gateway.database.require_database(), wanted)
        own = self._settings.cells.name
        return [
            ApplicationAssignment(application=row.shown_id, cell=row.cell or own, revision=row.revision)
            for row in known.values()
        ]

    async def has_application(self, organization: str, reference: str) -> bool:
        """Return whether an application with this id or uid is in this cell."""
        async with self._gateway.database.require_database().acquire(within_s=_QUESTION_TIMEOUT_S) as connection:
            with translate_errors():
                return await cells.has_application(connection, organization, reference)

    async def _on_refusal(self, assignment: Assignment | ApplicationAssignment) -> None:
        if isinstance(assignment, ApplicationAssignment):
            self._intakes.learn(assignment)
            self._intakes.hold(assignment.application)
            return
        self._intakes.hold(assignment.source)
        event_builder = self._gateway.event_builder
        present = event_builder.router.assignments.get(assignment.source)
        is_later = assignment.revision > (0 if present is None else present.revision)
        with contextlib.suppress(DatabaseError):  # the events wait, and the cell refuses them again
            # Only a move may assign a source to this cell: it copies the keys of known events first.
            if is_later and assignment.cell != self._settings.cells.name:
                await cells.assign(self._gateway.database.require_database(), [assignment])
            await event_builder.refresh()

    def _open_intake(self, name: str, store: MessageStore) -> Intake:
        settings = self._settings
        report = partial(_report_waiting, name)
        spool = Spool.at(cell_root_of(settings, name), limits_of(settings.spool), report=report)
        return Intake(
            store,
            messages=store,
            buffer=spool if settings.spool.enabled else None,
            within_s=settings.spool.fallback_after_s,
            batch=settings.database.ingest_batch_size,
            queue=settings.database.ingest_queue_size,
            dedup_cache_size=0,  # nothing here would notice that the other cell was restored to an earlier state
            elsewhere=partial(self._intakes.find_other, name),
            report_unavailable=partial(meters.gauge, "boathook_cell_unavailable", cell=name),
        )

    async def _post(
        self, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float, max_bytes: int
    ) -> tuple[int, bytes]:
        answer = await self._client.request(
            "POST", url, headers=headers, body=body, timeout_s=timeout_s, max_bytes=max_bytes
        )
        return answer.status, answer.body


def _report_waiting(cell: str, status: SpoolStatus) -> None:
    meters.gauge("boathook_cell_events_waiting", status.records, cell=cell)
