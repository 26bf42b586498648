"""The operations on events, as tests of what they do call them: on named events or by filters, or as a job."""

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from msgspec.structs import asdict

from boathook.db.database import Database
from boathook.db.delivery_commands import AuditContext, ReplayResult
from boathook.db.queries import event_search
from boathook.db.queries.event_search import EventFilter
from boathook.db.queries.listings import EventRow
from boathook.db.rerouting import RerouteResult
from boathook.domain import ids
from boathook.service.caller import HOST
from boathook.service.catalogue import events
from boathook.service.catalogue.operation import Operation
from boathook.service.operating import tasks
from boathook.service.operating.event_query import EventQuery
from boathook.service.operating.tasks import Task
from boathook.service.unit_of_work import UnitOfWork
from tests.postgres.api_client import make_context

Chosen = EventQuery | Sequence[UUID]


async def replay_events(
    db: Database,
    chosen: Chosen,
    action: AuditContext,
    *,
    rate: float | None = None,
    is_once: bool = False,
    report: Callable[[int], None] = lambda _done: None,
) -> ReplayResult:
    """Replay the chosen events; *is_once* makes the note the name of a run."""
    name = "run" if is_once else "note"
    done = await _act(db, events.replay, chosen, action, report, rate=rate, **{name: action.note or ""})
    return ReplayResult(done.done, done.added, done.revived)


async def route_events(
    db: Database, chosen: Chosen, action: AuditContext, *, to: str | None = None, is_dry_run: bool = False, **more: Any
) -> RerouteResult:
    """Route the chosen events to their current handlers."""
    done = await _act(db, events.route, chosen, action, to=to, note=action.note or "", dry_run=is_dry_run, **more)
    return RerouteResult(done.done, done.routed, done.added, done.left)


async def start_replay(work: UnitOfWork, query: EventQuery, **more: Any) -> Task:
    """Start the job that replays events."""
    return await _start(work, events.replay, query, more)


async def start_route(work: UnitOfWork, query: EventQuery, **more: Any) -> Task:
    """Start the job that routes events."""
    return await _start(work, events.route, query, more)


async def list_events(db: Database, wanted: EventFilter | None = None, *, limit: int = 50) -> list[EventRow]:
    """Return the newest events of a filter."""
    page = await event_search.search(db, wanted or EventFilter(), limit=limit, budget_s=60)
    return [match.event for match in page.events]


def select(chosen: Chosen) -> dict[str, Any]:
    """Return the fields of an operation that select events."""
    if isinstance(chosen, EventQuery):
        return asdict(chosen) | {"all": chosen.is_open}
    return {"ids": [ids.show(ids.EVENT, event_id) for event_id in chosen]}


async def _start(work: UnitOfWork, operation: Operation[Any, Any], query: EventQuery, more: dict[str, Any]) -> Task:
    acted = await operation(work, operation.input(**asdict(query), **more))
    return await tasks.get(work, str(acted.job))


async def _act(
    db: Database,
    operation: Operation[Any, Any],
    chosen: Chosen,
    action: AuditContext,
    report: Callable[[int], None] = lambda _done: None,
    **more: Any,
) -> Any:
    context = make_context(db)
    wanted = operation.input(**select(chosen), **more)
    if wanted.ids is not None or wanted.dry_run:
        async with context.work(actor=action.actor, caller=HOST) as work:
            done = await operation(work, wanted)
        for skipped in done.skipped:
            raise skipped.error()
        return done
    done = operation.result(dry_run=False, matching=0)
    async for done in operation.drive(lambda: context.work(actor=action.actor, caller=HOST), wanted):
        report(done.done)
    return done
