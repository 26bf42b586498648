"""Runs bulk operations in steps: replays, ignores or purges dead letters, and replays or reroutes events.

A replay with a rate limit schedules one second of work per step and continues when that second is over. It can
therefore be stopped at any time, and its progress matches what has run.
"""

import math
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final, assert_never
from uuid import UUID

import msgspec

from boathook.db import dead_letter_groups, delivery_commands, rerouting
from boathook.db.database import Connection
from boathook.db.delivery_commands import AuditContext, Key, ReplaySchedule
from boathook.db.queries import event_search
from boathook.db.queries.event_search import EventFilter
from boathook.db.queries.listings import ListFilter
from boathook.db.route_registry import is_registered
from boathook.db.tasks import BulkOperation, Task, TaskOperation

STEP: Final = 500
MAX_PER_STEP: Final = 2_000
"""Upper bound of a step, however high the rate is."""
_SCANNED: Final = 200
"""Events of a step whose contents are compared; there are more steps then, none of them long."""
_AHEAD: Final = timedelta(minutes=10)
_PAUSE: Final = timedelta(seconds=30)
_MAX_AGE: Final = timedelta(days=1)
"""How long a backfill waits for its handler, which an older release may have unregistered again."""


class StepResult(msgspec.Struct, frozen=True):
    """The result of one step."""

    data: Mapping[str, Any]
    place: Mapping[str, Any] | None
    """Cursor of the next step, which must not start before its ``not_before``; None at the end."""


async def run_bulk_step(connection: Connection, task: Task, kind: BulkOperation) -> StepResult:
    """Run the next step of a bulk operation in the transaction of *connection*."""
    now: datetime = await delivery_commands.read_clock(connection)
    match kind:
        case TaskOperation.REPLAY_EVENTS:
            return await _replay_events(connection, task, now)
        case TaskOperation.ROUTE_EVENTS:
            return await _route_events(connection, task, now)
        case TaskOperation.REPLAY_GROUP:
            keys = await _lock(connection, task, is_to_revive=True)
            await delivery_commands.replay_locked(connection, keys, _replay(task), pace=_pace(task, now))
        case TaskOperation.IGNORE_GROUP:
            keys = await _lock(connection, task)
            await delivery_commands.ignore_locked(connection, keys, _action(task))
        case TaskOperation.PURGE_GROUP:
            keys = await _lock(connection, task)
            await delivery_commands.purge_locked(connection, keys, _action(task))
        case _:
            assert_never(kind)
    data = {"done": task.data.get("done", 0) + len(keys)}
    return StepResult(data, _later(task, now, len(keys)) if len(keys) == _step(task) else None)


async def _lock(connection: Connection, task: Task, *, is_to_revive: bool = False) -> list[Key]:
    key = UUID(task.request["group"])
    return await dead_letter_groups.lock_group(
        connection, key, task.created_at, limit=_step(task), is_to_revive=is_to_revive
    )


async def _replay_events(connection: Connection, task: Task, now: datetime) -> StepResult:
    wanted = _filter(task)
    chosen, last = await _next_events(connection, task, wanted)
    done = await delivery_commands.replay_events_in(
        connection, chosen, _replay(task), pace=_pace(task, now), type=wanted.type
    )
    counted = {"done": done.events, "added": done.added, "revived": done.revived}
    data = {name: task.data.get(name, 0) + number for name, number in counted.items()}
    if last is None:
        return StepResult(data, None)
    return StepResult(data, _later(task, now, done.added + done.revived) | {"after": str(last)})


async def _next_events(connection: Connection, task: Task, wanted: ListFilter) -> tuple[list[UUID], UUID | None]:
    """Return the next events to replay, oldest first, and the last one looked at; None at the end."""
    after = UUID(task.place["after"]) if "after" in task.place else None
    step = _step(task)
    matching = task.request.get("matching")
    limit = step if matching is None else _SCANNED
    found = await delivery_commands.page_events(connection, wanted, after=after, limit=limit)
    chosen = found
    if matching is not None:
        chosen = await event_search.select_matching(connection, found, EventFilter.of_selection(matching))
        if len(chosen) > step:
            return chosen[:step], chosen[step - 1]
    return chosen, found[-1] if len(found) == limit else None


async def _route_events(connection: Connection, task: Task, now: datetime) -> StepResult:
    to, wanted = task.request.get("to"), _filter(task)
    is_new = task.request.get("is_first") and now - task.created_at < _MAX_AGE
    if is_new and not await is_registered(connection, str(to)):
        # An older release may keep the handler unregistered while both are deployed.
        return StepResult(task.data, {**task.place, "not_before": (now + _PAUSE).isoformat()})
    after = UUID(task.place["after"]) if "after" in task.place else None
    found = await delivery_commands.page_events(connection, wanted, after=after, limit=_step(task))
    pace = _pace(task, now)
    done = await rerouting.reroute_events_in(connection, found, _action(task), pace=pace, to=to, type=wanted.type)
    counted = {"done": done.events, "added": done.added, "left": done.left}
    data = {name: task.data.get(name, 0) + number for name, number in counted.items()}
    if len(found) < _step(task):
        return StepResult(data, None)
    return StepResult(data, _later(task, now, done.added) | {"after": str(found[-1])})


def _filter(task: Task) -> ListFilter:
    asked = task.request
    # Rerouting adds nothing twice, so it may include events of gateways whose clocks are ahead of the server's.
    latest = task.created_at + (_AHEAD if task.kind is TaskOperation.ROUTE_EVENTS else timedelta(0))
    since, until = (asked.get(name) and datetime.fromisoformat(asked[name]) for name in ("since", "until"))
    return ListFilter(
        source=asked.get("source"),
        application=asked.get("application"),
        type=asked.get("type"),
        since=since,
        until=min(until or latest, latest),
        is_unhandled=bool(asked.get("is_unhandled")),
    )


def _action(task: Task) -> AuditContext:
    return AuditContext(actor=task.request["actor"], note=task.request.get("note") or f"task {task.shown_id}")


def _replay(task: Task) -> AuditContext:
    return AuditContext(actor=task.request["actor"], note=task.replay_note)


def _step(task: Task) -> int:
    rate = task.request.get("rate")
    return STEP if rate is None else min(MAX_PER_STEP, math.ceil(rate))


def _pace(task: Task, now: datetime) -> ReplaySchedule:
    rate = task.request.get("rate")
    return ReplaySchedule(now, 1 / rate if rate else 0.0)


def _later(task: Task, now: datetime, number: int) -> dict[str, str]:
    rate = task.request.get("rate")
    return {} if rate is None else {"not_before": (now + timedelta(seconds=number / rate)).isoformat()}
