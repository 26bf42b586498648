"""Stores tasks: background work for an organization, done in bounded steps.

A task's cursor advances in the transaction of each step, so an interrupted task continues where it stopped, without
gaps or repetitions.
"""

from collections.abc import Mapping, Sequence
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
from boathook.domain.model import Role, Route
from boathook.domain.windows import Window

SQL = load(__file__)


class TaskOperation(StrEnum):
    """The operation of a task."""

    RECOVER = "endpoint.recover"
    REPLAY_MISSING = "endpoint.replay"
    BULK_REPLAY = "endpoint.bulk-replay"
    PURGE_CONTENT = "application.purge_content"
    AGGREGATE_TYPES = "event-type.aggregate"
    COUNT_USAGE = "application.stats"
    REPLAY_GROUP = dead_letter_groups.REPLAY_GROUP
    IGNORE_GROUP = dead_letter_groups.IGNORE_GROUP
    PURGE_GROUP = dead_letter_groups.PURGE_GROUP
    REPLAY_DEAD = "dead.replay-many"
    IGNORE_DEAD = "dead.ignore-many"
    PURGE_DEAD = "dead.purge-many"
    REPLAY_EVENTS = "event.replay-many"
    ROUTE_EVENTS = "event.route-many"
    ACCEPT_CONFLICTS = "conflict.accept-many"
    REVERIFY_REJECTIONS = "rejection.reverify-many"


API_OPERATIONS: Final = (
    TaskOperation.RECOVER, TaskOperation.REPLAY_MISSING, TaskOperation.BULK_REPLAY,
    TaskOperation.PURGE_CONTENT, TaskOperation.AGGREGATE_TYPES, TaskOperation.COUNT_USAGE,
)  # fmt: skip
"""Operations that API customers may request; API clients support no others."""

BulkOperation = Literal[
    TaskOperation.REPLAY_GROUP,
    TaskOperation.IGNORE_GROUP,
    TaskOperation.PURGE_GROUP,
    TaskOperation.REPLAY_DEAD,
    TaskOperation.IGNORE_DEAD,
    TaskOperation.PURGE_DEAD,
    TaskOperation.REPLAY_EVENTS,
    TaskOperation.ROUTE_EVENTS,
]
"""Operations that operators request in the console; a new handler that requests past events also reroutes them."""


class TaskState(StrEnum):
    """The state of a task."""

    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"


class Task(msgspec.Struct, frozen=True, kw_only=True):
    """One task."""

    id: UUID
    organization: str
    application_id: UUID | None
    endpoint_id: UUID | None
    kind: TaskOperation
    state: TaskState
    request: Mapping[str, Any]
    """The arguments of the request."""
    place: Mapping[str, Any]
    """The cursor; empty at the beginning."""
    data: Mapping[str, Any]
    """The results so far, in the API's format."""
    created_at: datetime
    updated_at: datetime

    @property
    def shown_id(self) -> str:
        """The public id."""
        return ids.show(ids.TASK, self.id)

    @property
    def replay_note(self) -> str:
        """The audit note of each replay by the task; it names the task, or the run whose events are replayed once."""
        if self.request.get("run") is not None:
            return str(self.request["run"])
        note = self.request.get("note")
        return f"{self.shown_id}: {note}" if note else f"task {self.shown_id}"


class EndpointTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The endpoint of a task, as input for routing."""

    recipient: str
    application: str
    router: Router
    """Has only this endpoint's route."""
    reads_body: bool
    """Whether it has a filter or an order, so that message bodies are needed."""


class Subscriptions(msgspec.Struct, frozen=True):
    """The event types that an application's endpoints subscribe to."""

    application_id: UUID
    types: tuple[str, ...]
    has_all: bool
    """Whether an endpoint subscribes to all types."""


class Usage(msgspec.Struct, frozen=True):
    """How much was sent for an application."""

    application_id: UUID
    uid: str | None
    destinations: int
    """Number of deliveries created when its messages were published."""


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
    """Store a task; it starts soon after this transaction commits."""
    row = await connection.fetchrow(
        SQL["insert_task"], id, organization, application_id, endpoint_id, kind.value, _dump(request)
    )
    return _task(row)


async def count_running(connection: Connection, organization: str, application_id: UUID | None) -> tuple[int, int]:
    """Return the number of running tasks of an organization, and of an application."""
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
    """Return a page of an organization's tasks of these kinds, newest first by default."""
    sql = fill_statement(SQL["list_tasks"], is_upward=window.is_upward)
    rows = await connection.fetch(sql, organization, window.low, window.high, state, list(kinds), limit + 1)
    return to_page([_task(row) for row in rows], limit, is_reversed=window.is_upward is not is_ascending)


async def lock_next(connection: Connection) -> Task | None:
    """Return the next running task, locked until this transaction ends; None if there is none."""
    row = await connection.fetchrow(SQL["take_task"])
    return None if row is None else _task(row)


async def save(
    connection: Connection, task: Task, state: TaskState, *, place: Mapping[str, Any], data: Mapping[str, Any]
) -> Task:
    """Advance a task in the transaction of its step."""
    return _task(await connection.fetchrow(SQL["save_task"], task.id, state.value, _dump(place), _dump(data)))


async def stop(connection: Connection, organization: str, id: UUID, error: str) -> Task | None:
    """Stop a running task after its current step; return None if it is not running."""
    row = await connection.fetchrow(SQL["stop_task"], organization, id, _dump({"error": error}))
    return None if row is None else _task(row)


async def find_target(
    connection: Connection, application_id: UUID | None, endpoint_id: UUID | None
) -> EndpointTarget | None:
    """Return the endpoint of a task; None if it or its application was deleted."""
    row = await connection.fetchrow(SQL["find_target"], application_id, endpoint_id)
    if row is None or application_id is None:
        return None
    recipient = recipient_of(ids.show(ids.ENDPOINT, row["id"]))
    application = ids.show(ids.APPLICATION, application_id)
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


async def find_objection(connection: Connection, task: Task) -> str | None:
    """Return why the caller that started a task may not continue it; None if it may, or if it needs no permission.

    ``caller`` of its request names a key, which must still be valid, or an operator, who must still be enabled and have
    the role that the task's permission needs, as must the operator's token, if one was used.
    """
    caller = task.request.get("caller") or {}
    if "key" in caller:
        key = UUID(caller["key"])
        if not await connection.fetchval(SQL["is_key_valid"], key):
            return f"{ids.show(ids.API_KEY, key)}, which started it, is not valid any more"
    if "operator" in caller:
        token = UUID(caller["token"]) if "token" in caller else None
        row = await connection.fetchrow(SQL["find_roles"], UUID(caller["operator"]), token)
        roles = [] if row is None else [row["role"]] if token is None else list(row)
        if not roles or not all(role and Role(role).covers(Role(task.request["role"])) for role in roles):
            return f"{task.request['actor']}, who started it, may not do this any more"
    return None


async def page_subscriptions(
    connection: Connection, organization: str, after: UUID, *, limit: int
) -> list[Subscriptions]:
    """Return the next applications of an organization with the event types of their active endpoints."""
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
    """Return the next applications of an organization, optionally only the named ones, with their usage in a window."""
    selected_ids = None if application_ids is None else list(application_ids)
    rows = await connection.fetch(SQL["page_usage"], organization, after, limit, window.low, window.high, selected_ids)
    return [Usage(row["id"], row["uid"], row["destinations"]) for row in rows]


def _task(row: Record | None) -> Task:
    assert row is not None
    values = dict(row)
    for name in ("request", "place", "data"):
        values[name] = msgspec.json.decode(row[name] or "{}")
    return Task(**values | {"kind": TaskOperation(row["kind"]), "state": TaskState(row["state"])})


def _dump(value: Mapping[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
