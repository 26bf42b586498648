"""Remembers in the audit which object on the server an object here is.

What an import creates or finds is noted with its id on the server. By these notes the next import knows it again, also
under another uid, and knows what the server has deleted.
"""

from collections.abc import Sequence
from typing import Final

from boathook.db.applications import Application
from boathook.db.audit import find_records, record
from boathook.db.endpoints import Endpoint
from boathook.domain import ids
from boathook.service.svix_import.fields import id_from_uid
from boathook.service.svix_import.report import Kind
from boathook.service.unit_of_work import UnitOfWork

_ACTIONS: Final = {
    Kind.EVENT_TYPE: "event_type.import",
    Kind.APPLICATION: "application.import",
    Kind.ENDPOINT: "endpoint.import",
}


async def record_import(work: UnitOfWork, kind: Kind, shown_id: str, remote_id: str) -> None:
    """Note which object on the server an application or endpoint is."""
    await record(work.connection, work.actor, _ACTIONS[kind], shown_id, remote_id)


async def record_event_type_import(work: UnitOfWork, name: str) -> None:
    """Note that an event type was imported."""
    await record(work.connection, work.actor, _ACTIONS[Kind.EVENT_TYPE], name, work.organization)


async def imported_event_types(work: UnitOfWork, names: Sequence[str]) -> set[str]:
    """Return which of these event types were imported into the organization."""
    noted = await find_records(work.connection, _ACTIONS[Kind.EVENT_TYPE], names)
    return {name for name, organization in noted if organization == work.organization}


async def imported_applications(work: UnitOfWork, rows: Sequence[Application]) -> dict[str, Application]:
    """Return those of these applications that were imported, by their ids on the server."""
    noted = dict(await find_records(work.connection, _ACTIONS[Kind.APPLICATION], [row.shown_id for row in rows]))
    known = {noted.get(row.shown_id) or id_from_uid(row.uid, ids.APPLICATION): row for row in rows}
    return {id: row for id, row in known.items() if id is not None}


async def imported_endpoints(work: UnitOfWork, rows: Sequence[Endpoint]) -> dict[str, Endpoint]:
    """Return those of these endpoints that were imported, by their ids on the server."""
    noted = dict(await find_records(work.connection, _ACTIONS[Kind.ENDPOINT], [row.shown_id for row in rows]))
    known = {noted.get(row.shown_id) or id_from_uid(row.uid, ids.ENDPOINT): row for row in rows}
    return {id: row for id, row in known.items() if id is not None}
