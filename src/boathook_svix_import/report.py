"""The report of an import, and the audit rows that map imported objects to their ids on the server."""

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TypeVar

import msgspec

from boathook.db.applications import Application
from boathook.db.audit import find_records, record
from boathook.db.endpoints import Endpoint
from boathook.domain import ids
from boathook.domain.errors import AdminError, InvalidValue, NotFound, SecretUnreadable
from boathook.service.unit_of_work import UnitOfWork
from boathook_svix_import.fields import id_from_uid

Row = TypeVar("Row", Application, Endpoint)

EXPECTED_ERRORS: Final = (AdminError, NotFound, SecretUnreadable)
"""Errors of service functions for one object; other objects can still be written."""
_WIRE_NAMES: Final = {
    "api_version": "version",
    "is_archived": "archived",
    "is_deprecated": "deprecated",
    "is_disabled": "disabled",
    "retry": "retrySchedule",
    "timeout_s": "timeoutSeconds",
}


class Kind(StrEnum):
    """The kind of an imported object."""

    EVENT_TYPE = "event type"
    APPLICATION = "application"
    ENDPOINT = "endpoint"


class Outcome(StrEnum):
    """The result of importing an object."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    DELETED = "deleted"
    """For an event type: archived."""


class Change(msgspec.Struct, frozen=True):
    """An object that was changed."""

    outcome: Outcome
    object: str
    fields: Sequence[str] = ()


class ImportIssue(msgspec.Struct, frozen=True):
    """An object, or one of its fields, that was not imported, and why."""

    object: str
    field: str
    reason: str


class Report(msgspec.Struct):
    """The changes of an import, or those that it would make."""

    counts: Counter[tuple[Kind, Outcome]] = msgspec.field(default_factory=Counter)
    changes: list[Change] = msgspec.field(default_factory=list)
    gone: list[str] = msgspec.field(default_factory=list)
    """Objects of earlier imports that the server no longer has, and that were left unchanged."""
    not_moved: list[ImportIssue] = msgspec.field(default_factory=list)
    failed: list[ImportIssue] = msgspec.field(default_factory=list)

    def record(self, kind: Kind, outcome: Outcome, object: str, fields: Sequence[str] = ()) -> None:
        """Record the result of importing an object."""
        self.counts[kind, outcome] += 1
        if outcome is not Outcome.UNCHANGED:
            self.changes.append(Change(outcome, object, tuple(fields)))

    def record_write(self, kind: Kind, object: str, *, is_new: bool, fields: Sequence[str] = ()) -> None:
        """Record an object that was created, or whose *fields* were changed; no fields means unchanged."""
        if is_new:
            self.record(kind, Outcome.CREATED, object)
        else:
            outcome = Outcome.CHANGED if fields else Outcome.UNCHANGED
            self.record(kind, outcome, object, [wire_name(name) for name in fields])

    def add_not_moved(self, object: str, reasons: Mapping[str, str]) -> None:
        """Record fields of an object that cannot be imported."""
        self.not_moved += [ImportIssue(object, name, reason) for name, reason in reasons.items()]

    def fail(self, object: str, error: Exception) -> None:
        """Record an object that was not imported."""
        field_path = ".".join(map(str, error.where)) if isinstance(error, InvalidValue) else ""
        self.failed.append(ImportIssue(object, field_path, str(error)))

    def add(self, other: "Report") -> None:
        """Add the contents of another report."""
        self.counts += other.counts
        self.changes += other.changes
        self.gone += other.gone
        self.not_moved += other.not_moved
        self.failed += other.failed

    @property
    def is_empty(self) -> bool:
        """Whether nothing was processed."""
        return not (self.counts or self.failed)

    def plain(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        return {
            "counts": {
                kind: {outcome: self.counts[kind, outcome] for outcome in Outcome if self.counts[kind, outcome]}
                for kind in Kind
            },
            "changes": self.changes,
            "gone": self.gone,
            "not_moved": self.not_moved,
            "failed": self.failed,
        }


def wire_name(name: str) -> str:
    """Return the API's name of a field."""
    first, *rest = _WIRE_NAMES.get(name, name).split("_")
    return first + "".join(map(str.title, rest))


def changed_fields(before: Any, after: msgspec.Struct) -> list[str]:
    """Return the fields of *after* that differ from *before*; empty if *before* is None."""
    if before is None:
        return []
    return [name for name in after.__struct_fields__ if getattr(before, name) != getattr(after, name)]


@contextlib.asynccontextmanager
async def draft_report(work: UnitOfWork, report: Report, object: str) -> AsyncIterator[Report]:
    """Yield the report of a savepoint; if an object fails, only the savepoint is rolled back."""
    draft = Report()
    try:
        async with work.connection.transaction():
            yield draft
    except EXPECTED_ERRORS as error:
        report.fail(object, error)
    else:
        report.add(draft)


_ACTIONS: Final = {
    Kind.EVENT_TYPE: "event_type.import",
    Kind.APPLICATION: "application.import",
    Kind.ENDPOINT: "endpoint.import",
}


async def record_import(work: UnitOfWork, kind: Kind, shown_id: str, remote_id: str) -> None:
    """Record the id on the server of an application or endpoint."""
    await record(work.connection, work.actor, _ACTIONS[kind], shown_id, remote_id)


async def record_event_type_import(work: UnitOfWork, name: str) -> None:
    """Record that an event type was imported."""
    await record(work.connection, work.actor, _ACTIONS[Kind.EVENT_TYPE], name, work.organization)


async def imported_event_types(work: UnitOfWork, names: Sequence[str]) -> set[str]:
    """Return which of these event types were imported into the organization."""
    records = await find_records(work.connection, _ACTIONS[Kind.EVENT_TYPE], names)
    return {name for name, organization in records if organization == work.organization}


async def imported_applications(work: UnitOfWork, rows: Sequence[Application]) -> dict[str, Application]:
    """Return which of these applications were imported, by their ids on the server."""
    records = dict(await find_records(work.connection, _ACTIONS[Kind.APPLICATION], [row.shown_id for row in rows]))
    return _by_remote_id(rows, records, ids.APPLICATION)


async def imported_endpoints(work: UnitOfWork, rows: Sequence[Endpoint]) -> dict[str, Endpoint]:
    """Return which of these endpoints were imported, by their ids on the server."""
    records = dict(await find_records(work.connection, _ACTIONS[Kind.ENDPOINT], [row.shown_id for row in rows]))
    return _by_remote_id(rows, records, ids.ENDPOINT)


def _by_remote_id(rows: Sequence[Row], records: Mapping[str, str | None], prefix: str) -> dict[str, Row]:
    # Rows of imports before there was `imported_id` are known by the audit or their uid.
    earlier = {
        records.get(row.shown_id) or id_from_uid(row.uid, prefix): row for row in rows if row.imported_id is None
    }
    return {id: row for id, row in earlier.items() if id is not None} | {
        row.imported_id: row for row in rows if row.imported_id is not None
    }
