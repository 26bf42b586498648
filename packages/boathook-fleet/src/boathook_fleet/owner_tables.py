"""The tables of a system before this one: how `boathook fleet import` reads them, and the views under their names.

They are ``rentprog_cars``, ``rentprog_clients``, ``rentprog_bookings``, ``rentprog_webhook_events`` and
``rentprog_webhook_dead``. A car, client or booking becomes a change that creates it, so the app applies it like any
other, and later changes follow it.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from boathook import Boathook, BoathookError, Transaction
from boathook_app_tools.compatibility_views import Views
from boathook_app_tools.table_import import (
    ID,
    INTEGER,
    JSON,
    TEXT,
    TIME,
    BadValue,
    Import,
    Row,
    Source,
    SourceTable,
    Values,
    by_row,
    read_json,
    require,
)
from boathook_fleet.handlers import announce
from boathook_fleet.parse import MAX_ID
from boathook_fleet.records import REMIND_S
from boathook_fleet.records import SQL as RECORDS
from boathook_fleet.tables import TABLES
from boathook_fleet.words import Action, Entity

_FIRST: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""The time of an object whose row names none: any change is newer."""
_OBJECTS: Final = {
    "rentprog_cars": Entity.CAR,
    "rentprog_clients": Entity.CLIENT,
    "rentprog_bookings": Entity.BOOKING,
}
_ANY_ID: Final = (*ID, *TEXT)
_OPEN_DEAD: Final = "select count(*) from fleet.imported_dead where status = 'worker_fail'"


def make_import(hook: Boathook) -> Import:
    """Return the import for *hook*."""
    return Import(
        app="fleet",
        tables=(*(_objects(hook, name, entity) for name, entity in _OBJECTS.items()), _EVENTS, _DEAD),
        finish=_finish,
    )


def _objects(hook: Boathook, name: str, entity: Entity) -> SourceTable:
    def convert(row: Row) -> Values:
        data = read_json(row, "document", name="row")
        stamp = row["updated_at"] or row["created_at"]
        odd = TABLES[entity].unparsed(data, hook.settings.zone)
        return {
            "source": "import",
            "entity": entity.value,
            "entity_id": _object_id(row),
            "action": Action.CREATE.value,
            "stamp": stamp or _FIRST,
            "accepted_at": datetime.now(UTC),
            "description": f"imported from {name}",
            "data": json.dumps({key: value for key, value in data.items() if key not in odd}),
            "unparsed": json.dumps(odd),
            "is_stamped": True,
            "is_late": False,
        }

    async def stored(tx: Transaction, _source: Source, row: Row, _key: str) -> None:
        stamp = row["updated_at"] or row["created_at"] or _FIRST
        if not await tx.fetchval(RECORDS["mark"], entity, _object_id(row), stamp, REMIND_S):
            return
        try:
            await announce(hook, tx, entity, _object_id(row))
        except BoathookError as error:
            if error.name != "ApplicationNotFound":
                raise
            raise BoathookError(
                "the handlers of this app are not registered yet, so what is imported cannot be applied; "
                "start `boathook serve` once, then import"
            ) from None

    return SourceTable(
        name=name,
        columns={"id": _ANY_ID},
        optional={"rentprog_id": _ANY_ID, "created_at": TIME, "updated_at": TIME},
        is_whole_row=True,
        target="fleet.change",
        target_key="event_id",
        convert=by_row(convert),
        stored=stored,
    )


def _object_id(row: Row) -> str:
    column = "id" if row["rentprog_id"] is None else "rentprog_id"
    identifier = str(row[column]).strip()
    if not identifier or len(identifier) > MAX_ID or not identifier.isprintable():
        raise BadValue(column, f"{identifier[:50]!r} is not an id of 1 to {MAX_ID} printable characters")
    return identifier


def _words(row: Row, names: Sequence[str]) -> Mapping[str, str | None]:
    return {name: None if row[name] is None else str(row[name]) for name in names}


def _event(row: Row) -> Values:
    require(row, "received_at")
    words = _words(row, ("id", "entity", "action", "branch", "actor_id", "description"))
    return {**words, "received_at": row["received_at"], "document": row["document"]}


def _dead_letter(row: Row) -> Values:
    require(row, "created_at")
    return {
        **_words(row, ("id", "error", "status", "event_id", "event_name")),
        **{name: row[name] for name in ("created_at", "payload", "retry_count", "last_retry_at", "document")},
    }


async def _finish(tx: Transaction, _source: Source) -> Sequence[str]:
    notes = ["cars, clients and bookings are applied by the running `boathook serve`"]
    if dead := await tx.fetchval(_OPEN_DEAD):
        notes.append(
            f"{dead} dead letters with the status worker_fail are history: their requests are older than the imported"
            " rows, and are not replayed"
        )
    return notes


_EVENTS: Final = SourceTable(
    name="rentprog_webhook_events",
    columns={
        "id": _ANY_ID, "received_at": TIME, "entity": TEXT, "action": TEXT, "branch": _ANY_ID, "actor_id": _ANY_ID,
        "description": TEXT,
    },
    is_whole_row=True,
    target="fleet.imported_events",
    convert=by_row(_event),
    existing="id = $1",
    match=("id",),
)  # fmt: skip
_DEAD: Final = SourceTable(
    name="rentprog_webhook_dead",
    columns={
        "id": _ANY_ID, "created_at": TIME, "payload": JSON, "error": TEXT, "status": TEXT, "event_id": _ANY_ID,
        "event_name": TEXT, "retry_count": INTEGER, "last_retry_at": TIME,
    },
    is_whole_row=True,
    target="fleet.imported_dead",
    convert=by_row(_dead_letter),
    existing="id = $1",
    match=("id",),
)  # fmt: skip
VIEWS: Final = Views(
    app="fleet",
    names=("rentprog_webhook_events", "rentprog_webhook_dead"),
    file=Path(__file__).with_name("views.sql"),
)
