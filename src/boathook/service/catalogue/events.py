"""Operations on events: replay them, or route them to the handlers that match them now.

Events that are named act at once; filters or all become a job, which keeps its filters, its caller and the permission,
and checks these again at each step. The command line drives the steps itself, as there may be no running server.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Generic, TypeVar
from uuid import UUID

import msgspec
from msgspec.structs import replace as replace_fields

from boathook.db import delivery_commands, rerouting
from boathook.db.database import Connection
from boathook.db.delivery_commands import AuditContext, ReplaySchedule
from boathook.db.queries import event_search, listings
from boathook.db.queries.event_search import EventFilter
from boathook.db.tasks import TaskOperation
from boathook.domain import ids
from boathook.domain.errors import NotFound
from boathook.domain.model import State
from boathook.domain.plurals import counted
from boathook.service.access.authorization import Permission
from boathook.service.catalogue.operation import Http, OpenWork, Operation, Scope, operation
from boathook.service.catalogue.selection import (
    BATCH,
    MAX_NAMED,
    Note,
    Rate,
    Skipped,
    first_error,
    freeze_caller,
    read_clock,
)
from boathook.service.catalogue.values import Result
from boathook.service.fields import Input, Problem, Rule
from boathook.service.operating import tasks
from boathook.service.operating.event_query import EventQuery
from boathook.service.unit_of_work import UnitOfWork

# A field of the name `ids` hides the module in the body of a class.
_EVENT: Final = ids.EVENT
_MAX_COUNTED: Final = 100_000
MAX_SEARCHED: Final = 5_000
"""Maximum events that are counted by a search, for filters that need a look at each event."""
_LEFT: Final = (
    "{} skipped: a dead letter was purged (name a handler in `to` to route it anyway), or an older boathook stored the"
    " event as a batch"
)
MAX_TRIED: Final = 2_000
"""Maximum events that a dry run routes, to count the deliveries."""
_MAX_STEPS: Final = 50
"""Maximum steps of a dry run, as few events of a step may match."""


class Events(EventQuery, frozen=True, kw_only=True):
    """The events of an operation: by their ids, by filters, or all of them."""

    ids: Annotated[
        list[Annotated[str, Rule(prefix=_EVENT)]] | None,
        Rule(help="Ids; or use the filters.", max_length=MAX_NAMED, argument="ID"),
    ] = None
    all: Annotated[bool, Rule(help="Select all.")] = False
    dry_run: Annotated[bool, Rule(help="Only count.")] = False

    def conflicts(self) -> list[Problem]:
        """Return what is wrong with the filters, and with the ways to select together: exactly one is needed."""
        if self.ids and (self.all or not self.is_open):
            return [Problem(("ids",), "give ids or filters, not both")]
        if not (self.ids or self.all) and self.is_open:
            return [Problem(("ids",), "nothing selected: give ids, filters such as `source`, or `all`")]
        return super().conflicts()


class EventsActed(Result, frozen=True, kw_only=True):
    """What an operation on events did, or would do."""

    dry_run: bool
    matching: Annotated[int, Rule(help="How many events are selected.")]
    is_exact: Annotated[bool, Rule(help="Whether these are all; else the count stopped at its limit.")] = True
    done: Annotated[int, Rule(help="How many events this request has processed.")] = 0
    added: Annotated[int, Rule(help="How many deliveries were added, or would be.")] = 0
    job: Annotated[str | None, Rule(help="The bulk job that does the rest.", prefix=ids.TASK)] = None
    skipped: Annotated[Sequence[Skipped], Rule(help="The named ones that do not exist.")] = ()
    notes: Annotated[Sequence[str], Rule(help="What to know before.")] = ()
    reason: Annotated[str, Rule(help="Why nothing changed, if one event was named.")] = ""

    def first_error(self) -> Exception | None:
        """Return why an operation on named ones may not run at all."""
        return first_error(self.skipped)

    def count(self, noun: str) -> str:
        """Return how many are selected, in words."""
        return counted(self.matching, noun) if self.is_exact else f"at least {counted(self.matching, noun)}"

    def hints(self) -> Sequence[str]:
        """Return what to know afterwards."""
        return [self.reason] if self.reason else []


class EventsReplayed(EventsActed, frozen=True, kw_only=True):
    """What a replay of events did, or would do."""

    revived: Annotated[int, Rule(help="How many dead letters are pending again.")] = 0

    def describe(self, says: str, noun: str) -> str:
        """Return what was done as a sentence."""
        changes = f"{counted(self.added, 'delivery')} added, {counted(self.revived, 'dead letter')} retried"
        return f"{says} {counted(self.done, noun)}: {changes}"

    def to_line(self, _verb: str) -> dict[str, Any]:
        """Return what was done as a JSON object."""
        fields = {"dry_run": self.dry_run, "matching": self.matching}
        return fields | {"events": self.done, "added": self.added, "revived": self.revived}


class EventsRouted(EventsActed, frozen=True, kw_only=True):
    """What a routing of events did, or would do."""

    routed: Annotated[int, Rule(help="How many events got a delivery, or would.")] = 0
    left: Annotated[
        int,
        Rule(help="How many events were left: a dead letter was purged, or the items of a batch are not known."),
    ] = 0

    def count(self, noun: str) -> str:
        """Return how many are selected and, in a dry run, what would be added."""
        return self.describe("", noun) if self.dry_run and self.done else super().count(noun)

    def hints(self) -> Sequence[str]:
        """Return what to know afterwards."""
        return [_LEFT.format(self.left)] if self.left else []

    def describe(self, _says: str, noun: str) -> str:
        """Return what was done, or would be, as a sentence."""
        added = f"{counted(self.added, 'delivery')} {'would be added' if self.dry_run else 'added'}"
        return f"{counted(self.done, noun)}, {self.routed} routed: {added}"

    def to_line(self, _verb: str) -> dict[str, Any]:
        """Return what was done as a JSON object."""
        fields = {"dry_run": self.dry_run, "matching": self.matching}
        return fields | {"events": self.done, "routed": self.routed, "added": self.added, "left": self.left}


class EventBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Events that a step acts on."""

    connection: Connection
    event_ids: Sequence[UUID]
    actor: str
    pace: ReplaySchedule
    is_dry_run: bool = False

    def audit(self, note: str) -> AuditContext:
        """Return what the audit keeps of it."""
        return AuditContext(actor=self.actor, note=note.strip() or None)


In = TypeVar("In", bound=Events)
Out = TypeVar("Out", bound=EventsActed)
Step = Callable[[EventBatch, In], Awaitable[Mapping[str, int]]]


class SelectedEvents(msgspec.Struct, Generic[In, Out], frozen=True, kw_only=True):
    """How an operation selects its events, and acts on them."""

    step: Step[In]
    result: type[Out]
    permission: Permission
    job: TaskOperation
    is_tried: bool
    """Whether a dry run acts and rolls back."""

    async def run(self, work: UnitOfWork, input: In) -> Out:
        """Act on the named ones in the transaction of *work*, or start a job for the others; or only count."""
        await _check_handler(work, input)
        if input.ids:
            return await self._act_on_named(work, input)
        compiled = compile_filter(work, input)
        number, is_exact = await _count(work.connection, compiled)
        preview = self.result(dry_run=input.dry_run, matching=number, is_exact=is_exact)
        if input.dry_run:
            return await self._try(work, input, compiled, preview) if self.is_tried else preview
        request = {
            **compiled.to_request(),
            **{name: getattr(input, name, None) for name in ("rate", "note", "run", "to")},
            **freeze_caller(work, self.permission),
            "total": number if is_exact else 0,
        }
        subject = input.source or input.application or "events"
        task = await tasks.start(work, self.job, request, subject=subject, note=_note(input))
        return replace_fields(preview, job=task.shown_id)

    async def drive(self, open_work: OpenWork, input: In) -> AsyncIterator[Out]:
        """Act on all of the filters, in one transaction a batch; yield what is done after each."""
        acted, start = self.result(dry_run=False, matching=0), None
        after: UUID | None = None
        while True:
            async with open_work() as work:
                if start is None:
                    await _check_handler(work, input)
                    start = await read_clock(work.connection)
                compiled = _until(compile_filter(work, input), start)
                event_ids, after = await event_search.select_next(work.connection, compiled, after=after, limit=BATCH)
                if event_ids:
                    acted = _add(acted, await self._act(work, input, event_ids, start, acted))
            if event_ids:
                yield acted
            if after is None:
                return

    async def _act(
        self, work: UnitOfWork, input: In, event_ids: Sequence[UUID], start: datetime, acted: EventsActed
    ) -> Mapping[str, int]:
        rate = getattr(input, "rate", None)
        pace = ReplaySchedule(start, 1 / rate if rate else 0.0, acted.added + getattr(acted, "revived", 0))
        batch = EventBatch(
            connection=work.connection, event_ids=event_ids, actor=work.actor, pace=pace, is_dry_run=input.dry_run
        )
        return await self.step(batch, input)

    async def _act_on_named(self, work: UnitOfWork, input: In) -> Out:
        named_ids = list(dict.fromkeys(map(ids.read_event, input.ids or ())))
        own = await _select_own(work, named_ids)
        event_ids = [event_id for event_id in named_ids if event_id in own]
        skipped = [_skipped(event_id) for event_id in named_ids if event_id not in own]
        acted = self.result(dry_run=input.dry_run, matching=len(event_ids), skipped=skipped)
        if event_ids and (self.is_tried or not input.dry_run):
            acted = _add(acted, await self._act(work, input, event_ids, await read_clock(work.connection), acted))
        is_unchanged = acted.done == 1 and not acted.added and not getattr(acted, "revived", 1)
        reason = await _explain(work, event_ids[0]) if len(event_ids) == 1 and is_unchanged else ""
        return replace_fields(acted, reason=reason)

    async def _try(self, work: UnitOfWork, input: In, compiled: EventFilter, preview: Out) -> Out:
        """Act on the oldest events of a filter and roll back, to count what would be added."""
        start, acted = await read_clock(work.connection), preview
        after: UUID | None = None
        for _ in range(_MAX_STEPS):
            if acted.done >= MAX_TRIED:
                break
            event_ids, after = await event_search.select_next(work.connection, compiled, after=after, limit=BATCH)
            acted = _add(acted, await self._act(work, input, event_ids, start, acted))
            if after is None:
                return acted
        return replace_fields(acted, notes=[f"the first {counted(acted.done, 'event')} were tried"])


def on_events(
    name: str,
    permission: Permission,
    scope: Scope,
    http: Http,
    *,
    job: TaskOperation,
    says: str,
    is_tried: bool = False,
    examples: Sequence[str] = (),
) -> Callable[[Step[In]], Operation[In, Any]]:
    """Declare the decorated step as an operation on events that cannot be undone.

    Args:
        name: as of every operation; so the others that are not described.
        permission: the permission, which a job keeps.
        scope: the scope.
        http: the route.
        job: the kind of its jobs.
        says: the verb of what was done, such as ``replayed``.
        is_tried: whether a dry run acts and rolls back.
        examples: examples for the command line.
    """

    def declare(step: Step[In]) -> Operation[In, Any]:
        input_type = list(step.__annotations__.values())[1]
        result = EventsRouted if is_tried else EventsReplayed
        selected: SelectedEvents[In, Any] = SelectedEvents(
            step=step, result=result, permission=permission, job=job, is_tried=is_tried
        )

        async def body(work: UnitOfWork, input: In) -> Any:
            return await selected.run(work, input)

        body.__doc__ = step.__doc__
        return Operation(
            name, body, input=input_type, result=result, permission=permission, scope=scope, http=http,
            tag="Event", undo=None, says=says, warns="", must_confirm=True, secret="", examples=examples,
            selection=selected,
        )  # fmt: skip

    return declare


class ReplayEvents(Events, frozen=True, kw_only=True):
    """The events to replay."""

    rate: Rate = None
    run: Annotated[
        str | None,
        Rule(help="Name of this run; a run replays each event once.", min_length=1, max_length=2_000),
    ] = None
    note: Note = ""

    def conflicts(self) -> list[Problem]:
        """Return what is wrong with the fields together."""
        if self.run is not None and self.note:
            return [Problem(("run",), "give `run` or `note`, not both: the run's name is the note")]
        return super().conflicts()


@on_events(
    "event.replay",
    Permission.EVENT_REPLAY,
    Scope.ORGANIZATION,
    Http("POST", "/event/bulk-replay", 202, "v1.event.bulk-replay"),
    job=TaskOperation.REPLAY_EVENTS,
    says="replayed",
    examples=(
        "boathook events replay evt_01h455vb4pex5vsknk084sn02q4",
        "boathook events replay --source stripe --since 1d --rate 50 --run after-the-fix --yes",
        "boathook events replay --where 'data.object.customer = cus_123' --state dead --dry-run",
    ),
)
async def replay(batch: EventBatch, input: ReplayEvents) -> Mapping[str, int]:
    """Replay events: finished deliveries get a new delivery, dead letters are retried.

    Pending and leased deliveries are not changed. Of a batch whose own type does not match, only the matching items are
    delivered again.
    """
    result = await delivery_commands.replay_events(
        batch.connection, batch.event_ids, batch.audit(input.run or input.note),
        pace=batch.pace, type=input.type, is_once=input.run is not None,
    )  # fmt: skip
    return {"done": result.events, "added": result.added, "revived": result.revived}


class RouteEvents(Events, frozen=True, kw_only=True):
    """The events to route again, and to which handlers."""

    to: Annotated[str | None, Rule(help="To this handler only.", metavar="HANDLER")] = None
    rate: Rate = None
    note: Note = ""


@on_events(
    "event.route",
    Permission.EVENT_ROUTE,
    Scope.DEPLOYMENT,
    Http("POST", "/event/bulk-route", 202, "v1.event.bulk-route"),
    job=TaskOperation.ROUTE_EVENTS,
    says="",
    is_tried=True,
    examples=(
        "boathook events route --state unhandled --since 7d",
        "boathook events route --to handler:invoice --since 7d --dry-run",
    ),
)
async def route(batch: EventBatch, input: RouteEvents) -> Mapping[str, int]:
    """Route events with the current handlers: each matching handler without a delivery of the event gets one.

    Repeating this adds nothing.
    """
    result = await rerouting.reroute_events_in(
        batch.connection, batch.event_ids, batch.audit(input.note),
        pace=batch.pace, to=input.to, type=input.type, is_dry_run=batch.is_dry_run,
    )  # fmt: skip
    return {"done": result.events, "routed": result.routed, "added": result.added, "left": result.left}


class EventNamed(Input, frozen=True, kw_only=True):
    """The event that is meant, and why."""

    id: Annotated[str, Rule(help="The event's id.", argument="ID", prefix=_EVENT)]
    note: Note = ""


class EventWoken(Result, frozen=True, kw_only=True):
    """What became of an event's deliveries."""

    id: Annotated[str, Rule(help="The event's id.", prefix=_EVENT)]
    due: Annotated[int, Rule(help="How many deliveries are due now.")]
    message: Annotated[str, Rule(help="The same in a sentence.")]


@operation(
    "event.wake",
    Permission.EVENT_REPLAY,
    Scope.ORGANIZATION,
    Http("POST", "/event/{id}/wake"),
    tag="Event",
    undo=None,
    says="{message}",
    examples=("boathook events wake evt_01h455vb4pex5vsknk084sn02q4",),
)
async def wake(work: UnitOfWork, event: EventNamed) -> EventWoken:
    """Make an event's pending deliveries due now, and its dead letters pending with their full number of attempts.

    A delivery whose attempt is in progress is retried at once if that attempt fails.
    """
    event_id = ids.read_event(event.id)
    if work.caller.tenant is not None and not await _select_own(work, [event_id]):
        raise NotFound(f"unknown event {event.id}")
    action = AuditContext(actor=work.actor, note=event.note.strip() or None)
    number = await delivery_commands.make_due_now(work.connection, event_id, action)
    text = f"{counted(number, 'delivery')} of {event.id} {'is' if number == 1 else 'are'} due now"
    return EventWoken(id=event.id, due=number, message=text)


async def _explain(work: UnitOfWork, event_id: UUID) -> str:
    """Return why a replay of an event changed nothing; empty if none of the usual reasons holds."""
    deliveries = await listings.list_deliveries_of(work.connection, event_id)
    pending = [delivery for delivery in deliveries if delivery.state in {State.PENDING, State.LEASED}]
    if not deliveries:
        return "it has no recipients; `boathook events route` adds deliveries for current handlers"
    if not pending:
        return ""
    due = [max(row.due_at, row.paused_until or row.due_at) for row in pending if row.due_at is not None]
    paused = " (paused)" if any(row.paused_until for row in pending) else ""
    when = f"; the next attempt is due at {_show_time(min(due))}{paused}" if due else ""
    return f"{counted(len(pending), 'delivery')} still pending{when}, or now by `boathook deliveries retry`"


def _show_time(at: datetime) -> str:
    return at.astimezone(UTC).isoformat(" ", "milliseconds").replace("+00:00", "Z")


async def _check_handler(work: UnitOfWork, input: Events) -> None:
    """Raise NotFound if the input names a handler that is not registered."""
    if (name := getattr(input, "to", None)) is not None:
        await rerouting.check_handler(work.connection, name)


async def _count(connection: Connection, compiled: EventFilter) -> tuple[int, bool]:
    """Return how many events match, and whether these are all."""
    if compiled.is_scanned:
        page = await event_search.search(connection, compiled, limit=MAX_SEARCHED)
        return len(page.events), page.place is None
    number = await event_search.count_events(connection, compiled, limit=_MAX_COUNTED)
    return number, number < _MAX_COUNTED


async def _select_own(work: UnitOfWork, event_ids: Sequence[UUID]) -> set[UUID]:
    """Return those of the events that exist and that the caller may reach."""
    everything = compile_filter(work, Events(all=True))
    return set(await event_search.select_matching(work.connection, event_ids, everything))


def compile_filter(work: UnitOfWork, input: EventQuery) -> EventFilter:
    """Return the filter of a query, within the caller's organization."""
    return input.compile(organization=work.caller.tenant)


def _until(compiled: EventFilter, end: datetime) -> EventFilter:
    """Return a filter of the events that were accepted before a time: later ones are not touched."""
    return replace_fields(compiled, until=min(end, compiled.until or end))


def _add(acted: Out, numbers: Mapping[str, int]) -> Out:
    return replace_fields(acted, **{name: getattr(acted, name) + number for name, number in numbers.items()})


def _note(input: Events) -> str:
    return str(getattr(input, "run", None) or getattr(input, "note", "")).strip()


def _skipped(event_id: UUID) -> Skipped:
    name = ids.show(ids.EVENT, event_id)
    return Skipped(id=name, why=f"there is no event {name}; retention may have dropped it", code="not_found")
