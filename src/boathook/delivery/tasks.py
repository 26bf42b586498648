"""Runs background tasks in steps: each step is one transaction, which also advances the task's cursor.

Any number of processes may run them. A process that is killed loses only its current step; the next one continues
import msgspec
from the last commit.
"""

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, assert_never
from uuid import UUID

from msgspec.structs import replace

from boathook.db import messages, resends, tasks
from boathook.db.database import Connection, Database
from boathook.db.delivery_commands import AuditContext
from boathook.db.messages import MessageFilter, MessageStatus
from boathook.db.resends import ResendFilter, ResendResult
from boathook.db.sql_functions import RETRYABLE_STATES, sqlstate
from boathook.db.tasks import EndpointTarget, Task, TaskOperation, TaskState
from boathook.delivery.bulk_jobs import StepResult, run_bulk_step
from boathook.domain import ids
from boathook.domain.errors import DatabaseUnavailable
from boathook.domain.windows import Window, range_of
from boathook.handlers.operational import publish_operational_event
from boathook.handlers.outbox import Outbox
from boathook.observability.log import get_logger

_BEGINNING: Final = UUID(int=0)
_APPLICATIONS: Final = 200
_COUNTED: Final = 50
"""Applications in a step that counts their messages."""
_PURGED: Final = 200


class _Impossible(Exception):
    """A task can no longer be completed; the message says why."""


async def run_tasks(database: Database, outbox: Outbox, *, budget_s: float = 1.0) -> int:
    """Run steps of the pending tasks, in turn, until none is left or *budget_s* seconds have passed.

    Returns:
        The number of steps that were run.
    """
    ends, steps = time.monotonic() + budget_s, 0
    while await run_step(database, outbox):
        steps += 1
        if time.monotonic() > ends:
            break
    return steps


async def run_step(database: Database, outbox: Outbox) -> bool:
    """Run the next step of the task that has waited longest; return whether there was one.

    A task that meets a permanent error is marked as failed.

    Raises:
        DatabaseError: PostgreSQL is unavailable, or aborted this transaction in a conflict; the task continues later.
    """
    task: Task | None = None
    try:
        async with database.transaction() as connection:
            task = await tasks.lock_next(connection)
            if task is not None:
                await advance(connection, outbox, task)
    except DatabaseUnavailable:
        raise
    except Exception as error:
        if task is None or sqlstate(error) in RETRYABLE_STATES:
            raise
        get_logger("tasks").exception("task_failed", task=task.shown_id, kind=task.kind)
        await _give_up(database, outbox, task, f"{type(error).__name__}: {error}")
    return task is not None


async def advance(connection: Connection, outbox: Outbox, task: Task) -> None:
    """Run the next step of a task in the transaction of *connection*, which holds the task's lock."""
    try:
        step = await _work(connection, task, _place(task))
    except _Impossible as reason:
        await _end(connection, outbox, task, TaskState.FAILED, {**task.data, "error": str(reason)})
        return
    if step.place is None:
        await _end(connection, outbox, task, TaskState.FINISHED, step.data)
    else:
        await tasks.save(connection, task, TaskState.RUNNING, place=step.place, data=step.data)


async def _give_up(database: Database, outbox: Outbox, task: Task, reason: str) -> None:
    async with database.transaction() as connection:
        await _end(connection, outbox, task, TaskState.FAILED, {**task.data, "error": reason})


async def _end(connection: Connection, outbox: Outbox, task: Task, state: TaskState, data: Mapping[str, Any]) -> None:
    await tasks.save(connection, task, state, place=task.place, data=data)
    if task.kind not in tasks.API_OPERATIONS:
        return
    payload = {"taskId": task.shown_id, "task": task.kind.value, "status": state.value, "data": data}
    await publish_operational_event(
        outbox, connection, organization=task.organization, type="background_task.finished", data=payload
    )


async def _work(connection: Connection, task: Task, after: UUID) -> StepResult:
    match task.kind:
        case TaskOperation.RECOVER | TaskOperation.REPLAY_MISSING | TaskOperation.BULK_REPLAY:
            return await _resend(connection, task, after)
        case TaskOperation.PURGE_CONTENT:
            return await _purge(connection, task, after)
        case TaskOperation.AGGREGATE_TYPES:
            return await _aggregate(connection, task, after)
        case TaskOperation.COUNT_USAGE:
            return await _count(connection, task, after)
        case (
            TaskOperation.REPLAY_GROUP
            | TaskOperation.IGNORE_GROUP
            | TaskOperation.PURGE_GROUP
            | TaskOperation.REPLAY_EVENTS
            | TaskOperation.ROUTE_EVENTS
        ):
            return await run_bulk_step(connection, task, task.kind)
        case _:
            assert_never(task.kind)


async def _resend(connection: Connection, task: Task, after: UUID) -> StepResult:
    target = await tasks.find_target(connection, task)
    if target is None:
        raise _Impossible("the endpoint was deleted")
    action = AuditContext(actor=f"task:{task.shown_id}", note=task.kind.value)
    step = await _step(connection, task, target, _window(task, after), action)
    return StepResult({"messagesSent": task.data.get("messagesSent", 0) + step.number}, _from(step.place))


async def _step(
    connection: Connection, task: Task, target: EndpointTarget, window: Window, action: AuditContext
) -> ResendResult:
    if task.kind is TaskOperation.RECOVER:
        return await resends.recover(connection, target.recipient, window, task.created_at, action)
    if task.kind is TaskOperation.REPLAY_MISSING:
        return await resends.resend_missing(
            connection, target.application, target.recipient, window, target.router, action,
            reads_body=target.reads_body,
        )  # fmt: skip
    return await resends.resend_matching(
        connection, target.application, target.recipient, window, _choice(task.request), task.created_at, action
    )


def _choice(request: Mapping[str, Any]) -> ResendFilter:
    status = request.get("status")
    return ResendFilter(
        wanted=MessageFilter(types=request.get("types"), channel=request.get("channel"), tag=request.get("tag")),
        status=None if status is None else MessageStatus(status),
        status_class=request.get("status_class"),
    )


async def _purge(connection: Connection, task: Task, after: UUID) -> StepResult:
    application = _application(task)
    found = await messages.page_ids(connection, application, _window(task, after), limit=_PURGED)
    gone = await messages.expunge(connection, application, found) if found else []
    data = {"messagesPurged": task.data.get("messagesPurged", 0) + len(gone)}
    return StepResult(data, _from(found[-1] if len(found) == _PURGED else None))


async def _aggregate(connection: Connection, task: Task, after: UUID) -> StepResult:
    rows = await tasks.page_subscriptions(connection, task.organization, after, limit=_APPLICATIONS)
    stats = [
        {
            "appId": ids.show(ids.APPLICATION, row.application_id),
            "explicitlySubscribedEventTypes": list(row.types),
            "hasCatchAllEndpoint": row.has_all,
        }
        for row in rows
    ]
    data = {"event_types": [*task.data.get("event_types", ()), *stats]}
    return StepResult(data, _from(rows[-1].application_id if len(rows) == _APPLICATIONS else None))


async def _count(connection: Connection, task: Task, after: UUID) -> StepResult:
    chosen = task.request.get("application_ids")
    application_ids = None if chosen is None else [UUID(one) for one in chosen]
    window = range_of(_moment(task, "since"), _moment(task, "until"))
    rows = await tasks.page_usage(connection, task.organization, after, window, application_ids, limit=_COUNTED)
    stats = [
        {
            "appId": ids.show(ids.APPLICATION, row.application_id),
            "appUid": row.uid,
            "messageDestinations": row.destinations,
        }
        for row in rows
    ]
    data = {"appStats": [*task.data.get("appStats", ()), *stats]}
    return StepResult(data, _from(rows[-1].application_id if len(rows) == _COUNTED else None))


def _place(task: Task) -> UUID:
    return UUID(task.place["after"]) if "after" in task.place else _BEGINNING


def _from(last: UUID | None) -> Mapping[str, Any] | None:
    """Return the cursor after the last processed row; None at the end."""
    return None if last is None else {"after": str(last)}


def _window(task: Task, after: UUID) -> Window:
    """Return the window of the remaining messages: created before the task unless it names an earlier end."""
    whole = range_of(_moment(task, "since"), _moment(task, "until"))
    return replace(whole, low=max(whole.low, UUID(int=after.int + 1)))


def _moment(task: Task, name: str) -> datetime:
    return datetime.fromisoformat(task.request[name])


def _application(task: Task) -> str:
    if task.application_id is None:
        raise _Impossible("it names no application")
    return ids.show(ids.APPLICATION, task.application_id)
