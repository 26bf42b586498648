"""Starts background tasks and reads their progress."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from boathook.db import applications, tasks
from boathook.db.applications import Application
from boathook.db.audit import record as note_down
from boathook.db.messages import Page
from boathook.db.tasks import API_OPERATIONS as API_OPERATIONS  # noqa: PLC0414 - re-exported
from boathook.db.tasks import Task as Task  # noqa: PLC0414 - re-exported
from boathook.db.tasks import TaskOperation as TaskOperation  # noqa: PLC0414 - re-exported
from boathook.db.tasks import TaskState as TaskState  # noqa: PLC0414 - re-exported
from boathook.domain import ids
from boathook.domain.errors import InvalidValue, LimitReached, NotFound
from boathook.domain.windows import MAX_WINDOW, Window
from boathook.service.unit_of_work import UnitOfWork, new_id

_GRACE: Final = timedelta(minutes=5)
MAX_PER_APPLICATION: Final = 20
MAX_PER_ORGANIZATION: Final = 500
"""Maximum concurrent tasks; tasks take turns, so those of one tenant delay all others."""


class TimeRange(msgspec.Struct, frozen=True):
    """A time range: start inclusive, end exclusive; None means now."""

    since: datetime
    until: datetime | None = None


async def aggregate_types(work: UnitOfWork) -> Task:
    """List, in the background, the event types that each application's endpoints name."""
    return await start(work, TaskOperation.AGGREGATE_TYPES, {}, subject=work.organization)


async def count_usage(work: UnitOfWork, span: TimeRange, names: Sequence[str] | None) -> tuple[Task, list[str]]:
    """Count, in the background, the deliveries of each application's messages of a range.

    Args:
        work: the unit of work.
        span: the time range.
        names: ids or uids of the applications; None means all.

    Returns:
        The task, and those of *names* that belong to no application.

    Raises:
        InvalidValue: none of *names* is known, or the range ends before it begins.
    """
    request = request_of(span.since, span.until, MAX_WINDOW + _GRACE)
    if names is None:
        return await start(work, TaskOperation.COUNT_USAGE, request, subject=work.organization), []
    rows_by_name = {
        name: await applications.find(work.connection, work.organization, name) for name in dict.fromkeys(names)
    }
    existing = [row for row in rows_by_name.values() if row is not None]
    if not existing:
        raise InvalidValue("no application has any of these ids or uids", "appIds")
    request |= {"application_ids": [str(row.id) for row in existing]}
    task = await start(work, TaskOperation.COUNT_USAGE, request, subject=work.organization)
    return task, [name for name, row in rows_by_name.items() if row is None]


async def list_page(
    work: UnitOfWork,
    window: Window,
    *,
    state: TaskState | None = None,
    kinds: Sequence[TaskOperation] = API_OPERATIONS,
    limit: int,
    is_ascending: bool = False,
) -> Page[Task]:
    """Return a page of the organization's tasks of these kinds, by default newest first."""
    return await tasks.list_page(
        work.connection, work.organization, window, state=state, kinds=kinds, limit=limit, is_ascending=is_ascending
    )


async def get(work: UnitOfWork, reference: str) -> Task:
    """Return a task of the organization. Raises NotFound."""
    try:
        identifier = ids.read(ids.TASK, reference) if reference.startswith(f"{ids.TASK}_") else None
    except ValueError:
        identifier = None
    task = await tasks.find(work.connection, work.organization, identifier) if identifier else None
    if task is None:
        raise NotFound(f"there is no task {reference}")
    return task


async def start(
    work: UnitOfWork,
    kind: TaskOperation,
    request: Mapping[str, Any],
    application: Application | None = None,
    *,
    endpoint_id: UUID | None = None,
    subject: str,
    note: str = "",
) -> Task:
    """Start a background task, and record its actor, subject and note in the audit.

    Raises:
        LimitReached: too many tasks are running.
    """
    application_id = None if application is None else application.id
    of_organization, of_application = await tasks.count_running(work.connection, work.organization, application_id)
    if of_organization >= MAX_PER_ORGANIZATION or of_application >= MAX_PER_APPLICATION:
        raise LimitReached(f"{of_application or of_organization} tasks are running; wait until one of them ends")
    task = await tasks.insert(
        work.connection,
        new_id(),
        kind,
        organization=work.organization,
        application_id=application_id,
        endpoint_id=endpoint_id,
        request=request,
    )
    detail = f"{task.shown_id}: {note}" if note else task.shown_id
    await note_down(work.connection, work.actor, kind.value, subject, detail)
    return task


def request_of(since: datetime, until: datetime | None, max_length: timedelta) -> dict[str, Any]:
    """Return a time range as a task keeps it; None is now. Raises InvalidValue if it is too long or ends too early."""
    now = datetime.now(UTC)
    end = min(until or now, now)
    if until is not None and until < since:
        raise InvalidValue("it is before since", "until")
    if end - since > max_length:
        raise InvalidValue(f"the range may cover at most {max_length.days} days", "since")
    return {"since": since.isoformat(), "until": end.isoformat()}
