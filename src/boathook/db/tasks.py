"""Tasks: what is done in the background for an organization, a bounded piece at a time.

A task's place moves on in the transaction of what was done, so one that is interrupted anywhere goes on where it stood,
leaving out nothing and doing nothing twice.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Literal
from uuid import UUID

import msgspec

from boathook.db import dead_letter_groups
from boathook.db.database import Connection, Record
from boathook.db.messages import Page, fill_statement, to_page
from boathook.db.statements import load
from boathook.domain import ids
from boathook.domain.endpoints import recipient_of
from boathook.domain.filters import Router
from boathook.domain.model import Route
from boathook.domain.windows import Window

SQL = load(__file__)


class TaskOperation(StrEnum):
    """What a task does."""

    RECOVER = "endpoint.recover"
    REPLAY_MISSING = "endpoint.replay"
    BULK_REPLAY = "endpoint.bulk-replay"
    PURGE_CONTENT = "application.purge_content"
    AGGREGATE_TYPES = "event-type.aggregate"
    COUNT_USAGE = "application.stats"
    REPLAY_GROUP = dead_letter_groups.REPLAY_GROUP
    IGNORE_GROUP = dead_letter_groups.IGNORE_GROUP
    PURGE_GROUP = dead_letter_groups.PURGE_GROUP
    REPLAY_EVENTS = "event.replay-many"
    ROUTE_EVENTS = "event.route-many"


API_OPERATIONS: Final = (
    TaskOperation.RECOVER, TaskOperation.REPLAY_MISSING, TaskOperation.BULK_REPLAY,
    TaskOperation.PURGE_CONTENT, TaskOperation.AGGREGATE_TYPES, TaskOperation.COUNT_USAGE,
)  # fmt: skip
"""What customers of the API may ask for; its clients know no other kinds."""

BulkOperation = Literal[
    TaskOperation.REPLAY_GROUP,
    TaskOperation.IGNORE_GROUP,
    TaskOperation.PURGE_GROUP,
    TaskOperation.REPLAY_EVENTS,
    TaskOperation.ROUTE_EVENTS,
]
"""What operators ask for on the console; events are also routed again where a new handler asks for the past."""


class TaskState(StrEnum):
    """Where a task stands."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One task."""

    id: UUID
    organization: str
    application_id: UUID | None
    endpoint_id: UUID | None
    kind: TaskOperation
    state: TaskState
    request: Mapping[str, Any]
    """What was asked for."""
    place: Mapping[str, Any]
    """Where it goes on; empty at the beginning."""
    data: Mapping[str, Any]
    """What it has come to so far, in the API's words."""
    created_at: datetime
    updated_at: datetime

    @property
    def shown_id(self) -> str:
        """The id as people see it."""
        return ids.show(ids.TASK, self.id)

    @property
    def replay_note(self) -> str:
        """What the audit says of each replay that the task makes; it names the task."""
        note = self.request.get("note")
        return f"{self.shown_id}: {note}" if note else f"task {self.shown_id}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointTarget:
    """The endpoint that a task is about, as routing sees it."""

    recipient: str
    application: str
    router: Router
    """Knows this endpoint's route only."""
    reads_body: bool
    """Whether it has a filter or an order, so that messages' bodies are needed."""


@dataclass(frozen=True, slots=True)
class Subscriptions:
    """Which event types an application's endpoints name."""

    application_id: UUID
    types: tuple[str, ...]
    has_all: bool
    """Whether an endpoint takes every type."""


@dataclass(frozen=True, slots=True)
class Usage:
    """How much was sent for an application."""

    application_id: UUID
    uid: str | None
    destinations: int
    """Deliveries that its messages were owed when they were published."""


async def insert(
    connection: Connection,
    id: UUID,
    kind: TaskOperation,
    *,
    organization: str,
    application_id: UUID | None = None,
    endpoint_id: UUID | None = None,
    request: Mapping[str, Any],
) -> Task:
    """Store a task, to be begun soon after this transaction commits."""
    row = await connection.fetchrow(
        SQL["insert_task"], id, organization, application_id, endpoint_id, kind.value, _dump(request)
    )
    return _task(row)


async def count_running(connection: Connection, organization: str, application_id: UUID | None) -> tuple[int, int]:
    """Return how many tasks of an organization run, and how many of these are about an application."""
    (row,) = await connection.fetch(SQL["count_running"], organization, application_id)
    return row["of_organization"], row["of_application"]


async def find(connection: Connection, organization: str, id: UUID) -> Task | None:
    """Return an organization's task."""
    row = await connection.fetchrow(SQL["find_task"], organization, id)
    return None if row is None else _task(row)


async def list_page(
    connection: Connection,
    organization: str,
    window: Window,
    *,
    state: TaskState | None = None,
    kinds: Sequence[TaskOperation] = API_OPERATIONS,
    limit: int,
    is_ascending: bool = False,
) -> Page[Task]:
    """Return a page of an organization's tasks of these kinds, by default the youngest first."""
    sql = fill_statement(SQL["list_tasks"], is_upward=window.is_upward)
    rows = await connection.fetch(sql, organization, window.low, window.high, state, list(kinds), limit + 1)
    return to_page([_task(row) for row in rows], limit, is_reversed=window.is_upward is not is_ascending)


async def lock_next(connection: Connection) -> Task | None:
    """Return the running task whose turn it is, locked until this transaction ends; None where there is none."""
    row = await connection.fetchrow(SQL["take_task"])
    return None if row is None else _task(row)


async def save(
    connection: Connection, task: Task, state: TaskState, *, place: Mapping[str, Any], data: Mapping[str, Any]
) -> Task:
    """Move a task on, in the transaction of what was done for it."""
    return _task(await connection.fetchrow(SQL["save_task"], task.id, state.value, _dump(place), _dump(data)))


async def stop(connection: Connection, organization: str, id: UUID, error: str) -> Task | None:
    """Let a running task end where it stands, once the step under way is done; None where it does not run."""
    row = await connection.fetchrow(SQL["stop_task"], organization, id, _dump({"error": error}))
    return None if row is None else _task(row)


async def find_target(connection: Connection, task: Task) -> EndpointTarget | None:
    """Return the endpoint that a task is about; None where it or its application was deleted."""
    row = await connection.fetchrow(SQL["find_target"], task.application_id, task.endpoint_id)
    if row is None or task.application_id is None:
        return None
    recipient = recipient_of(ids.show(ids.ENDPOINT, row["id"]))
    application = ids.show(ids.APPLICATION, task.application_id)
    route = Route(
        recipient=recipient,
        app="",
        application=application,
        types=tuple(row["event_types"] or ("*",)),
        channels=None if row["channels"] is None else tuple(row["channels"]),
        filter=None if row["filter"] is None else msgspec.json.decode(row["filter"]),
        order_by=row["order_by"],
    )
    reads_body = row["filter"] is not None or row["order_by"] is not None
    return EndpointTarget(
        recipient=recipient, application=application, router=Router([route], 0), reads_body=reads_body
    )


async def page_subscriptions(
    connection: Connection, organization: str, after: UUID, *, limit: int
) -> list[Subscriptions]:
    """Return the next applications of an organization with the event types their live endpoints name."""
    rows = await connection.fetch(SQL["page_subscriptions"], organization, after, limit)
    return [Subscriptions(row["id"], tuple(row["types"]), row["has_all"]) for row in rows]


async def page_usage(
    connection: Connection,
    organization: str,
    after: UUID,
    window: Window,
    application_ids: Sequence[UUID] | None,
    *,
    limit: int,
) -> list[Usage]:
    """Return the next applications of an organization, of those named if any are, with what they sent in a window."""
    chosen = None if application_ids is None else list(application_ids)
    rows = await connection.fetch(SQL["page_usage"], organization, after, limit, window.low, window.high, chosen)
    return [Usage(row["id"], row["uid"], row["destinations"]) for row in rows]


def _task(row: Record | None) -> Task:
    assert row is not None
    values = dict(row)
    for name in ("request", "place", "data"):
        values[name] = msgspec.json.decode(row[name] or "{}")
    return Task(**values | {"kind": TaskOperation(row["kind"]), "state": TaskState(row["state"])})


def _dump(value: Mapping[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
