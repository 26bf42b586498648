"""Runs background tasks in steps: each step is one transaction, which also advances the task's cursor.

Any number of processes may run them. A process that is killed loses only its current step; the next one continues
from the last commit. A replay with a rate limit schedules one second of work per step and continues when that second is
over, so it can be stopped at any time, and its progress matches what has run.
"""

import math
import time
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from typing import Any, Final, assert_never
from uuid import UUID

import msgspec
from msgspec.structs import replace

from boathook.db import dead_letter_groups, delivery_commands, messages, rerouting, resends, tasks
from boathook.db.database import Connection, Database
from boathook.db.delivery_commands import AuditContext, Key, ReplaySchedule, Selection
from boathook.db.messages import MessageFilter, MessageStatus
from boathook.db.queries import event_search
from boathook.db.queries.event_search import EventFilter
from boathook.db.queries.listings import ListFilter
from boathook.db.resends import ResendFilter, ResendResult
from boathook.db.route_registry import is_registered
from boathook.db.sql_functions import RETRYABLE_STATES, sqlstate
from boathook.db.tasks import BulkOperation, EndpointTarget, Task, TaskOperation, TaskState
from boathook.domain import ids
from boathook.domain.errors import DatabaseUnavailable
from boathook.domain.windows import Window, range_of
from boathook.handlers.operational import publish_operational_event
from boathook.handlers.outbox import Outbox
from boathook.observability.log import get_logger

_BEGINNING: Final = UUID(int=0)
APPLICATIONS: Final = 200
COUNTED: Final = 50
"""Applications in a step that counts their messages."""
PURGED: Final = 200
_COUNTING_S: Final = 2.0
"""How long the messages of a task are counted before it is started."""
STEP: Final = 500
MAX_PER_STEP: Final = 2_000
"""Upper bound of a bulk operation's step, however high its rate is."""
_AHEAD: Final = timedelta(minutes=10)
_PAUSE: Final = timedelta(seconds=30)
_MAX_AGE: Final = timedelta(days=1)
"""How long a backfill waits for its handler, which an older release may have unregistered again."""


class StepResult(msgspec.Struct, frozen=True):
    """The result of one step."""

    data: Mapping[str, Any]
    place: Mapping[str, Any] | None
    """Cursor of the next step, which must not start before its ``not_before``; None at the end."""


ServiceStep = Callable[[Connection, Task], Awaitable[StepResult]]
"""Runs a step of a job in the transaction of the connection, by a function of the service layer."""


class _Impossible(Exception):
    """A task can no longer be completed; the message says why."""


async def run_tasks(
    database: Database, outbox: Outbox, service_step: ServiceStep | None = None, *, budget_s: float = 1.0
) -> int:
    """Run steps of the pending tasks, in turn, until none is left or *budget_s* seconds have passed.

    Args:
        database: the database.
        outbox: publishes the operational webhooks.
        service_step: runs the steps of jobs that the service layer runs; without it, these jobs fail.
        budget_s: the seconds.

    Returns:
        The number of steps that were run.
    """
    ends, steps = time.monotonic() + budget_s, 0
    while await run_step(database, outbox, service_step):
        steps += 1
        if time.monotonic() > ends:
            break
    return steps


async def run_step(database: Database, outbox: Outbox, service_step: ServiceStep | None = None) -> bool:
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
                await advance(connection, outbox, task, service_step)
    except DatabaseUnavailable:
        raise
    except Exception as error:
        if task is None or sqlstate(error) in RETRYABLE_STATES:
            raise
        get_logger("tasks").exception("task_failed", task=task.shown_id, kind=task.kind)
        await _give_up(database, outbox, task, f"{type(error).__name__}: {error}")
    return task is not None


async def advance(connection: Connection, outbox: Outbox, task: Task, service_step: ServiceStep | None = None) -> None:
    """Run the next step of a task in the transaction of *connection*, which holds the task's lock."""
    try:
        step = await _work(connection, task, service_step)
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


async def _work(connection: Connection, task: Task, service_step: ServiceStep | None) -> StepResult:
    after = _place(task)
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
            | TaskOperation.REPLAY_DEAD
            | TaskOperation.IGNORE_DEAD
            | TaskOperation.PURGE_DEAD
            | TaskOperation.REPLAY_EVENTS
            | TaskOperation.ROUTE_EVENTS
        ):
            if (objection := await tasks.find_objection(connection, task)) is not None:
                raise _Impossible(objection)
            return await run_bulk_step(connection, task, task.kind)
        case TaskOperation.ACCEPT_CONFLICTS | TaskOperation.REVERIFY_REJECTIONS:
            if (objection := await tasks.find_objection(connection, task)) is not None:
                raise _Impossible(objection)
            if service_step is None:
                raise _Impossible("this process runs no such jobs; start a keeper with `boathook serve`")
            return await service_step(connection, task)
        case _:
            assert_never(task.kind)


async def _resend(connection: Connection, task: Task, after: UUID) -> StepResult:
    target = await tasks.find_target(connection, task.application_id, task.endpoint_id)
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


async def count_resends(
    connection: Connection, kind: TaskOperation, application_id: UUID, endpoint_id: UUID, request: Mapping[str, Any]
) -> tuple[int, bool]:
    """Return how many messages a task would send to an endpoint, and whether all of its range was counted in time."""
    target = await tasks.find_target(connection, application_id, endpoint_id)
    if target is None:
        return 0, True
    whole, at = _range_of(request), await delivery_commands.read_clock(connection)
    number, window, ends = 0, whole, time.monotonic() + _COUNTING_S
    while True:
        counted = await _count_step(connection, kind, target, window, request, at)
        number += counted.number
        if counted.place is None or time.monotonic() > ends:
            return number, counted.place is None
        window = _rest_of(whole, counted.place)


async def _count_step(
    connection: Connection,
    kind: TaskOperation,
    target: EndpointTarget,
    window: Window,
    request: Mapping[str, Any],
    at: datetime,
) -> ResendResult:
    if kind is TaskOperation.RECOVER:
        return await resends.count_failed(connection, target.recipient, window, at)
    if kind is TaskOperation.REPLAY_MISSING:
        return await resends.count_missing(
            connection, target.application, target.recipient, window, target.router, reads_body=target.reads_body
        )
    return await resends.count_matching(connection, target.application, target.recipient, window, _choice(request), at)


def _choice(request: Mapping[str, Any]) -> ResendFilter:
    status = request.get("status")
    return ResendFilter(
        wanted=MessageFilter(types=request.get("types"), channel=request.get("channel"), tag=request.get("tag")),
        status=None if status is None else MessageStatus(status),
        status_class=request.get("status_class"),
    )


async def _purge(connection: Connection, task: Task, after: UUID) -> StepResult:
    application = _application(task)
    message_ids = await messages.page_ids(connection, application, _window(task, after), limit=PURGED)
    purged_ids = await messages.expunge(connection, application, message_ids) if message_ids else []
    data = {"messagesPurged": task.data.get("messagesPurged", 0) + len(purged_ids)}
    return StepResult(data, _from(message_ids[-1] if len(message_ids) == PURGED else None))


async def _aggregate(connection: Connection, task: Task, after: UUID) -> StepResult:
    rows = await tasks.page_subscriptions(connection, task.organization, after, limit=APPLICATIONS)
    stats = [
        {
            "appId": ids.show(ids.APPLICATION, row.application_id),
            "explicitlySubscribedEventTypes": list(row.types),
            "hasCatchAllEndpoint": row.has_all,
        }
        for row in rows
    ]
    data = {"event_types": [*task.data.get("event_types", ()), *stats]}
    return StepResult(data, _from(rows[-1].application_id if len(rows) == APPLICATIONS else None))


async def _count(connection: Connection, task: Task, after: UUID) -> StepResult:
    requested_ids = task.request.get("application_ids")
    application_ids = None if requested_ids is None else [UUID(application_id) for application_id in requested_ids]
    window = _range_of(task.request)
    rows = await tasks.page_usage(connection, task.organization, after, window, application_ids, limit=COUNTED)
    stats = [
        {
            "appId": ids.show(ids.APPLICATION, row.application_id),
            "appUid": row.uid,
            "messageDestinations": row.destinations,
        }
        for row in rows
    ]
    data = {"appStats": [*task.data.get("appStats", ()), *stats]}
    return StepResult(data, _from(rows[-1].application_id if len(rows) == COUNTED else None))


def _place(task: Task) -> UUID:
    return UUID(task.place["after"]) if "after" in task.place else _BEGINNING


def _from(last: UUID | None) -> Mapping[str, Any] | None:
    """Return the cursor after the last processed row; None at the end."""
    return None if last is None else {"after": str(last)}


def _window(task: Task, after: UUID) -> Window:
    """Return the window of the remaining messages: created before the task unless it names an earlier end."""
    return _rest_of(_range_of(task.request), after)


def _range_of(request: Mapping[str, Any]) -> Window:
    return range_of(datetime.fromisoformat(request["since"]), datetime.fromisoformat(request["until"]))


def _rest_of(window: Window, place: UUID) -> Window:
    return replace(window, low=max(window.low, UUID(int=place.int + 1)))


def _application(task: Task) -> str:
    if task.application_id is None:
        raise _Impossible("it names no application")
    return ids.show(ids.APPLICATION, task.application_id)


async def run_bulk_step(connection: Connection, task: Task, kind: BulkOperation) -> StepResult:
    """Run the next step of a bulk operation in the transaction of *connection*."""
    now: datetime = await delivery_commands.read_clock(connection)
    match kind:
        case TaskOperation.REPLAY_EVENTS:
            return await _replay_events(connection, task, now)
        case TaskOperation.ROUTE_EVENTS:
            return await _route_events(connection, task, now)
        case TaskOperation.REPLAY_GROUP | TaskOperation.REPLAY_DEAD:
            keys = await _lock(connection, task, is_to_revive=True)
            await delivery_commands.replay_locked(connection, keys, _replay(task), pace=_pace(task, now))
        case TaskOperation.IGNORE_GROUP | TaskOperation.IGNORE_DEAD:
            keys = await _lock(connection, task)
            await delivery_commands.ignore_locked(connection, keys, _action(task))
        case TaskOperation.PURGE_GROUP | TaskOperation.PURGE_DEAD:
            keys = await _lock(connection, task)
            await delivery_commands.purge_locked(connection, keys, _action(task))
        case _:
            assert_never(kind)
    data = {"done": task.data.get("done", 0) + len(keys)}
    return StepResult(data, _later(task, now, len(keys)) if len(keys) == _batch_size(task) else None)


async def _lock(connection: Connection, task: Task, *, is_to_revive: bool = False) -> list[Key]:
    limit, tenant = _batch_size(task), task.request.get("tenant")
    if "group" not in task.request:
        selection = Selection(_dead_filter(task), None, tenant)
        return await delivery_commands.lock_dead(connection, selection, limit, is_to_revive=is_to_revive)
    key = UUID(task.request["group"])
    return await dead_letter_groups.lock_group(
        connection, key, task.created_at, limit=limit, is_to_revive=is_to_revive, organization=tenant
    )


def _dead_filter(task: Task) -> ListFilter:
    """Return the filter of dead letters that was frozen when the task started."""
    names = ("source", "application", "type", "recipient", "code")
    since, until = (task.request[name] and datetime.fromisoformat(task.request[name]) for name in ("since", "until"))
    return ListFilter(**{name: task.request[name] for name in names}, since=since, until=until)


async def _replay_events(connection: Connection, task: Task, now: datetime) -> StepResult:
    event_filter = EventFilter.of_request(task.request, task.created_at)
    event_ids, last = await event_search.select_next(
        connection, event_filter, after=_after(task), limit=_batch_size(task)
    )
    is_once = task.request.get("run") is not None
    result = await delivery_commands.replay_events(
        connection, event_ids, _replay(task), pace=_pace(task, now), type=event_filter.type, is_once=is_once
    )
    data = _add(task, {"done": result.events, "added": result.added, "revived": result.revived})
    if last is None:
        return StepResult(data, None)
    return StepResult(data, _later(task, now, result.added + result.revived) | {"after": str(last)})


async def _route_events(connection: Connection, task: Task, now: datetime) -> StepResult:
    to = task.request.get("to")
    is_new = task.request.get("is_first") and now - task.created_at < _MAX_AGE
    if is_new and not await is_registered(connection, str(to)):
        # An older release may keep the handler unregistered while both are deployed.
        return StepResult(task.data, {**task.place, "not_before": (now + _PAUSE).isoformat()})
    # Rerouting adds nothing twice, so it may include events of gateways whose clocks are ahead of the server's.
    event_filter = EventFilter.of_request(task.request, task.created_at + _AHEAD)
    event_ids, last = await event_search.select_next(
        connection, event_filter, after=_after(task), limit=_batch_size(task)
    )
    pace = _pace(task, now)
    result = await rerouting.reroute_events_in(
        connection, event_ids, _action(task), pace=pace, to=to, type=event_filter.type
    )
    data = _add(task, {"done": result.events, "routed": result.routed, "added": result.added, "left": result.left})
    if last is None:
        return StepResult(data, None)
    return StepResult(data, _later(task, now, result.added) | {"after": str(last)})


def _after(task: Task) -> UUID | None:
    return UUID(task.place["after"]) if "after" in task.place else None


def _add(task: Task, numbers: Mapping[str, int]) -> dict[str, int]:
    return {name: task.data.get(name, 0) + number for name, number in numbers.items()}


def _action(task: Task) -> AuditContext:
    return AuditContext(actor=task.request["actor"], note=task.request.get("note") or f"task {task.shown_id}")


def _replay(task: Task) -> AuditContext:
    return AuditContext(actor=task.request["actor"], note=task.replay_note)


def _batch_size(task: Task) -> int:
    rate = task.request.get("rate")
    return STEP if rate is None else min(MAX_PER_STEP, math.ceil(rate))


def _pace(task: Task, now: datetime) -> ReplaySchedule:
    rate = task.request.get("rate")
    return ReplaySchedule(now, 1 / rate if rate else 0.0)


def _later(task: Task, now: datetime, number: int) -> dict[str, str]:
    rate = task.request.get("rate")
    return {} if rate is None else {"not_before": (now + timedelta(seconds=number / rate)).isoformat()}
