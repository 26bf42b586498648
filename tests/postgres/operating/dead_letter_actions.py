"""The operations on dead letters, as tests of what they do call them: on a selection, or on a group as a job."""

from collections.abc import Callable
from typing import Any

from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext, Selection
from boathook.domain import ids
from boathook.domain.errors import NotFound
from boathook.service.caller import HOST
from boathook.service.catalogue import dead_letters
from boathook.service.catalogue.operation import Operation
from boathook.service.operating import tasks
from boathook.service.operating.tasks import Task
from boathook.service.unit_of_work import UnitOfWork
from tests.postgres.api_client import make_context

_FILTERS = ("source", "application", "type", "recipient", "code", "since", "until")


async def replay_dead(
    db: Database,
    selection: Selection,
    action: AuditContext,
    *,
    rate: float | None = None,
    report: Callable[[int], None] = lambda _done: None,
) -> int:
    """Make the selected dead letters pending again; return how many."""
    return await _act(db, dead_letters.replay, selection, action, report, rate=rate)


async def ignore_dead(db: Database, selection: Selection, action: AuditContext) -> int:
    """Mark the selected dead letters as ignored; return how many."""
    return await _act(db, dead_letters.ignore, selection, action)


async def purge_dead(db: Database, selection: Selection, action: AuditContext) -> int:
    """Delete the selected dead letters; return how many."""
    return await _act(db, dead_letters.purge, selection, action)


async def _act(
    db: Database,
    operation: Operation[Any, Any],
    selection: Selection,
    action: AuditContext,
    report: Callable[[int], None] = lambda _done: None,
    **more: Any,
) -> int:
    context, number = make_context(db), 0
    filters = {name: getattr(selection.filter, name) for name in _FILTERS}
    if selection.keys is not None:
        filters["ids"] = [ids.show_delivery(*key) for key in selection.keys]
    elif not any(filters.values()):
        filters["all"] = True
    wanted = operation.input(**filters, **more, note=action.note or "")
    if selection.keys is not None:
        async with context.work(actor=action.actor, caller=HOST) as work:
            return int((await operation(work, wanted)).done)
    async for done in operation.drive(lambda: context.work(actor=action.actor, caller=HOST), wanted):
        number = done.done
        report(number)
    return number


async def replay_group(work: UnitOfWork, reference: str, *, rate: float | None = None, note: str = "") -> Task:
    """Start the job that replays a group. Raises NotFound if none of it are left."""
    return await _start(work, dead_letters.replay, dead_letters.Replay(group=reference, rate=rate, note=note))


async def ignore_group(work: UnitOfWork, reference: str, *, note: str) -> Task:
    """Start the job that ignores a group. Raises as `replay_group` does."""
    return await _start(work, dead_letters.ignore, dead_letters.Ignore(group=reference, note=note))


async def purge_group(work: UnitOfWork, reference: str) -> Task:
    """Start the job that purges a group. Raises as `replay_group` does."""
    return await _start(work, dead_letters.purge, dead_letters.Purge(group=reference))


async def _start(work: UnitOfWork, operation: Operation[Any, Any], wanted: Any) -> Task:
    acted = await operation(work, wanted)
    if acted.job is None:
        raise NotFound(acted.notes[0])
    return await tasks.get(work, acted.job)
