"""The part of a gateway that posts events to other cells, and accepts what they post."""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Final, Self
from uuid import UUID

from boathook.db.database import Database, translate_errors
from boathook.domain.errors import DatabaseError, ServedElsewhere
from boathook.domain.homes import Assignment
from boathook.http.asgi import Asgi
from boathook.http_client.client import Client, unguarded_settings
from boathook.ingest.event_writer import MessageStore
from boathook.ingest.intake import Intake
from boathook.observability import meters
from boathook.server.gateway_database import GatewayDatabase
from boathook.server.gateway_part import Gateway, GatewayPart
from boathook.service.receiving.spool import limits_of
from boathook.spool.spool import Spool, SpoolStatus
from boathook_cells import store
from boathook_cells.directory import ApplicationAssignment
from boathook_cells.forwarding import CellIntakes, CellReceiver, CellStore, CellUnavailable
from boathook_cells.settings import find_cells, read_secret, require_cells
from boathook_cells.spools import HELD, root_of

_QUESTION_TIMEOUT_S: Final = 1.0
"""Deadline of another cell's question for an application: it does not wait longer."""


def open_part(gateway: Gateway) -> "CellsPart | None":
    """Return the part of a gateway; None if this installation is not one of several."""
    return None if find_cells(gateway.settings) is None else CellsPart(gateway)


class CellsPart(GatewayPart):
    """The intakes for the other cells, and the receiver of what these post."""

    def __init__(self, gateway: Gateway) -> None:
        settings = gateway.settings
        self._gateway = gateway
        self._own = require_cells(settings).name
        self._secret = read_secret(settings)
        self._client = Client(unguarded_settings(settings))
        self._intakes = self._open_intakes()
        self.elsewhere = partial(self._intakes.find_other, self._own)

    def wrap(self, app: Asgi) -> Asgi:
        """Return *app* with the receiver in front of it."""
        gateway = self._gateway
        self._intakes.add(self._own, gateway.intake)
        return CellReceiver(
            self._intakes,
            self._secret,
            gateway.intake,
            gateway.event_builder,
            applications=_Applications(gateway.database, self._own),
            others=app,
        )

    async def check_database(self, database: Database) -> None:
        """Note that the database belongs to this cell. Raises DatabaseUrlRejected if it belongs to another one."""
        await store.claim(database, self._own)

    def note_move(self, error: ServedElsewhere) -> None:
        """Note where an application has moved to."""
        self._intakes.learn(_assignment_of(error))

    async def __aenter__(self) -> Self:
        await self._intakes.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._intakes.drain()
        self._client.close()

    def _open_intakes(self) -> CellIntakes:
        gateway, cells = self._gateway, require_cells(self._gateway.settings)
        opened = CellIntakes(cells.directory, lambda: gateway.event_builder.router, gateway.messages)

        async def on_refusal(assignment: Assignment | ApplicationAssignment) -> None:
            if isinstance(assignment, ApplicationAssignment):
                opened.learn(assignment)
                opened.hold(assignment.application)
                return
            opened.hold(assignment.source)
            assigned = gateway.event_builder.router.assignments.get(assignment.source)
            is_later = assignment.revision > (0 if assigned is None else assigned.revision)
            with contextlib.suppress(DatabaseError):  # the events wait, and the cell refuses them again
                # Only a move may assign a source to this cell: it copies the keys of known events first.
                if is_later and assignment.home != cells.name:
                    await store.assign(gateway.database.require_database(), [assignment])
                await gateway.event_builder.refresh()

        for name, cell in cells.others.items():
            there = CellStore(
                name, cell.url, self._secret, post=self._post, on_refusal=on_refusal, messages=gateway.messages
            )
            opened.add(name, self._open_intake(opened, name, there), there)
        opened.add(HELD, self._open_intake(opened, HELD, opened))
        return opened

    def _open_intake(self, opened: CellIntakes, name: str, there: MessageStore) -> Intake:
        settings = self._gateway.settings
        spool = None
        if settings.spool.enabled:
            report = partial(_report_waiting, name)
            spool = Spool.at(root_of(settings, name), limits_of(settings.spool), report=report)
        return Intake(
            there,
            messages=there,
            buffer=spool,
            within_s=settings.spool.fallback_after_s,
            batch=settings.database.ingest_batch_size,
            queue=settings.database.ingest_queue_size,
            dedup_cache_size=0,  # nothing here would notice that the other cell was restored to an earlier state
            elsewhere=partial(opened.find_other, name),
            report_unavailable=partial(meters.gauge, "boathook_cell_unavailable", cell=name),
            unavailable=CellUnavailable.reason,
        )

    async def _post(
        self, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float, max_bytes: int
    ) -> tuple[int, bytes]:
        answer = await self._client.request(
            "POST", url, headers=headers, body=body, timeout_s=timeout_s, max_bytes=max_bytes
        )
        return answer.status, answer.body


class _Applications:
    """Reads the applications of this cell for the others.

    Args:
        database: the access to PostgreSQL.
        own: the name of this cell.
    """

    def __init__(self, database: GatewayDatabase, own: str) -> None:
        self._database = database
        self._own = own

    async def find_cells(self, application_ids: Collection[UUID]) -> Sequence[ApplicationAssignment]:
        """Return the cells of applications that this cell has, or that have moved from here."""
        applications = await store.read_applications(self._database.require_database(), application_ids)
        return [
            ApplicationAssignment(
                application=application.shown_id, home=application.home or self._own, revision=application.revision
            )
            for application in applications.values()
        ]

    async def has_application(self, organization: str, reference: str) -> bool:
        """Return whether an application with this id or uid is in this cell."""
        async with self._database.require_database().acquire(within_s=_QUESTION_TIMEOUT_S) as connection:
            with translate_errors():
                return await store.has_application(connection, organization, reference)


def _assignment_of(error: ServedElsewhere) -> ApplicationAssignment:
    return ApplicationAssignment(application=error.application, home=error.home, revision=error.revision)


def _report_waiting(cell: str, status: SpoolStatus) -> None:
    meters.gauge("boathook_cell_events_waiting", status.records, cell=cell)
