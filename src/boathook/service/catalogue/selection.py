"""Operations on many dead letters: those that are named act at once, a group, filters or all become a job.

`DeadLetters` has the fields that select them, and `on_dead_letters` declares an operation by its step, which acts on a
batch that is locked. Everything else is here: the tenant, the lock, what was skipped and why, the
count of a dry run, and the job, which keeps its selection, its caller and the permission, and checks these again at
each step. The command line drives the steps itself (`Selected.drive`), as there may be no running server.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Final, Generic, TypeVar
from uuid import UUID

import msgspec

from boathook.db import dead_letter_groups, delivery_commands
from boathook.db.audit import record
from boathook.db.database import Connection
from boathook.db.dead_letter_groups import DeadLetterGroup
from boathook.db.delivery_commands import AuditContext, DeliveryState, Key, ReplaySchedule, Selection
from boathook.db.queries.listings import ListFilter
from boathook.db.tasks import TaskOperation
from boathook.domain import ids
from boathook.domain.errors import InvalidState, InvalidTransition, NotFound
from boathook.domain.model import State
from boathook.domain.plurals import counted
from boathook.service.access.authorization import ACCESS_RULES, Permission
from boathook.service.catalogue.operation import Http, OpenWork, Operation, Scope
from boathook.service.catalogue.values import Result
from boathook.service.common_fields import Note as Note  # noqa: PLC0414 - re-exported
from boathook.service.common_fields import Pace
from boathook.service.fields import Input, Problem, Rule
from boathook.service.operating import tasks
from boathook.service.operating.dead_letters import describe_group, escalation_reasons
from boathook.service.unit_of_work import UnitOfWork

read_clock = delivery_commands.read_clock
MAX_NAMED: Final = 500
BATCH: Final = 500
# A field of the name `ids` hides the module in the body of a class.
_DELIVERY: Final = ids.DELIVERY
_APPLICATION: Final = ids.APPLICATION
_GROUP: Final = ids.DEAD_GROUP
_FILTERS: Final = ("source", "application", "type", "recipient", "code", "since", "until")

Rate = Pace | None
Pattern = Annotated[str | None, Rule(help="Only these; * matches any characters.")]


class DeadLetters(Input, frozen=True, kw_only=True):
    """The dead letters of an operation: by their ids, by group, by filters, or all of them."""

    ids: Annotated[
        list[Annotated[str, Rule(prefix=_DELIVERY)]] | None,
        Rule(help="Ids; or use the filters.", max_length=MAX_NAMED, argument="ID"),
    ] = None
    source: Annotated[str | None, Rule(help="Only of this source.")] = None
    application: Annotated[str | None, Rule(help="Only for this application: id or uid.", prefix=_APPLICATION)] = None
    type: Annotated[str | None, Rule(help="Only this event type; * matches any characters.")] = None
    recipient: Annotated[str | None, Rule(help="Only this recipient; * matches any characters.")] = None
    code: Annotated[str | None, Rule(help="Only with this error code.")] = None
    since: Annotated[datetime | None, Rule(help="Failed from this time on: 2h, 7d or ISO 8601.")] = None
    until: Annotated[datetime | None, Rule(help="Failed before this time: 2h, 7d or ISO 8601.")] = None
    all: Annotated[bool, Rule(help="Select all.")] = False
    group: Annotated[
        str | None,
        Rule(help="All of this group, as `boathook dead groups` lists them.", prefix=_GROUP, metavar="ID"),
    ] = None
    dry_run: Annotated[bool, Rule(help="Only count.")] = False

    @property
    def filter(self) -> ListFilter:
        """Its filters."""
        return ListFilter(**{name: getattr(self, name) for name in _FILTERS})

    @property
    def is_filtered(self) -> bool:
        """Whether it has a filter."""
        return self.filter != ListFilter()

    def conflicts(self) -> list[Problem]:
        """Return what is wrong with the ways to select together: exactly one is needed."""
        if self.group is not None and (self.ids or self.all or self.is_filtered):
            return [Problem(("group",), "give `group` alone, without ids or filters")]
        if self.ids and (self.all or self.is_filtered):
            return [Problem(("ids",), "give ids or filters, not both")]
        if not (self.ids or self.group is not None or self.all or self.is_filtered):
            return [Problem(("ids",), "nothing selected: give ids, filters such as `source`, or `all`")]
        return []


class Skipped(Result, frozen=True, kw_only=True):
    """A named dead letter that was left as it is."""

    id: str
    why: str
    code: Annotated[str, Rule(help="not_found, ended, pending, missing_payload, endpoint_disabled or busy.")]

    def error(self) -> Exception:
        """Return the error for an operation that is about this one alone."""
        match self.code:
            case "not_found":
                return NotFound(self.why)
            case "ended" | "pending":
                return InvalidState(self.why, "not_dead")
            case _:
                return InvalidState(self.why, self.code)


def first_error(skipped: Sequence[Skipped]) -> Exception | None:
    """Return the error of the first object that does not exist, or has ended."""
    for item in skipped:
        if item.code == "not_found":
            return NotFound(item.why)
        if item.code == "ended":
            return InvalidTransition(item.why)
    return None


class Count(Result, frozen=True, kw_only=True):
    """Selected dead letters with the same source or application, type, recipient and code."""

    number: int
    source: str | None
    application: str | None
    type: str
    recipient: str
    code: str
    oldest: datetime


class Acted(Result, frozen=True, kw_only=True):
    """What an operation on dead letters did, or would do."""

    dry_run: bool
    matching: Annotated[int, Rule(help="How many are selected and are dead letters.")]
    done: Annotated[int, Rule(help="How many were changed by this request.")] = 0
    job: Annotated[str | None, Rule(help="The bulk job that does the rest.", prefix=ids.TASK)] = None
    skipped: Annotated[Sequence[Skipped], Rule(help="The named ones that were left as they are.")] = ()
    counts: Annotated[Sequence[Count], Rule(help="What is selected, largest first.")] = ()
    notes: Annotated[Sequence[str], Rule(help="What to know before: what would run, or fail again.")] = ()

    def first_error(self) -> Exception | None:
        """Return why an operation on named ones may not run at all."""
        return first_error(self.skipped)

    def count(self, noun: str) -> str:
        """Return how many are selected, in words."""
        return counted(self.matching, noun)

    def describe(self, says: str, noun: str) -> str:
        """Return what was done as a sentence."""
        return f"{says} {counted(self.done, noun)}"

    def hints(self) -> Sequence[str]:
        """Return what to know afterwards."""
        return ()

    def to_line(self, verb: str) -> dict[str, Any]:
        """Return what was done as a JSON object."""
        return {"action": verb, "dry_run": self.dry_run, "matching": self.matching, "done": self.done}


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """Locked dead letters that a step acts on."""

    connection: Connection
    keys: Sequence[Key]
    audit: AuditContext
    start: datetime
    """The server's time when the operation began."""
    place: int = 0
    """How many it has done before."""

    def pace(self, rate: float | None) -> ReplaySchedule:
        """Return when these are due, at most *rate* per second."""
        return ReplaySchedule(self.start, 1 / rate if rate else 0.0, self.place)


In = TypeVar("In", bound=DeadLetters)
Step = Callable[[Batch, In], Awaitable[None]]


class Selected(msgspec.Struct, Generic[In], frozen=True, kw_only=True):
    """How an operation selects its dead letters, and acts on them."""

    step: Step[In]
    permission: Permission
    by_group: TaskOperation
    by_filter: TaskOperation
    revives: bool
    """Whether they become pending, so that those that cannot be sent are skipped."""

    async def run(self, work: UnitOfWork, input: In) -> Acted:
        """Act on the named ones in the transaction of *work*, or start a job for the others; or only count."""
        if input.ids:
            return await self._act_on_named(work, input, _read_keys(input.ids))
        now = await delivery_commands.read_clock(work.connection)
        preview = await self._count(work, input, now)
        if input.dry_run or not preview.matching:
            return preview
        request = self._request(work, input, now) | {"total": preview.matching}
        subject, kind = input.group or _subject(input), self.by_group if input.group else self.by_filter
        task = await tasks.start(work, kind, request, subject=subject, note=request["note"])
        return msgspec.structs.replace(preview, job=task.shown_id)

    async def drive(self, open_work: OpenWork, input: In) -> AsyncIterator[Acted]:
        """Act on all of a group, filters or all, in one transaction a batch; yield what is done after each."""
        number, start = 0, None
        while True:
            async with open_work() as work:
                start = start or await delivery_commands.read_clock(work.connection)
                if not number and input.group:
                    await record(work.connection, work.actor, self.by_group.value, input.group, _note(input) or None)
                keys = await self._lock(work, input, start)
                batch = Batch(
                    connection=work.connection, keys=keys, audit=_audit(work, input), start=start, place=number
                )
                await self.step(batch, input)
            if not keys:
                return
            number += len(keys)
            yield Acted(dry_run=False, matching=number, done=number)

    async def _act_on_named(self, work: UnitOfWork, input: In, keys: Sequence[Key]) -> Acted:
        states = {
            state.key: state for state in await delivery_commands.read_states(work.connection, keys, tenant_of(work))
        }
        dead = [key for key in keys if key in states and states[key].state == State.DEAD]
        locked: list[Key] = []
        if dead and not input.dry_run:
            selection = Selection(ListFilter(), dead, tenant_of(work))
            locked = await delivery_commands.lock_dead(work.connection, selection, len(dead), is_to_revive=self.revives)
            start = await delivery_commands.read_clock(work.connection)
            batch = Batch(connection=work.connection, keys=locked, audit=_audit(work, input), start=start)
            await self.step(batch, input)
        acted = set(dead if input.dry_run else locked)
        skipped = [_skipped(key, states.get(key), revives=self.revives) for key in keys if key not in acted]
        counts = (
            [] if not (dead and input.dry_run) else await _counts(work, Selection(ListFilter(), dead, tenant_of(work)))
        )
        return Acted(dry_run=input.dry_run, matching=len(dead), done=len(locked), skipped=skipped, counts=counts)

    async def _count(self, work: UnitOfWork, input: In, now: datetime) -> Acted:
        if input.group is None:
            counts = await _counts(work, Selection(_until(input.filter, now), None, tenant_of(work)))
            return Acted(dry_run=input.dry_run, matching=sum(count.number for count in counts), counts=counts)
        group = await dead_letter_groups.find_group(work.connection, _group_key(input.group), tenant_of(work))
        if group is None:
            text = f"no dead letters are left in {input.group}"
            return Acted(dry_run=input.dry_run, matching=0, notes=[text])
        return Acted(dry_run=input.dry_run, matching=group.number, notes=await self._notes(work, group))

    async def _notes(self, work: UnitOfWork, group: DeadLetterGroup) -> list[str]:
        """Return what to know of a group before: its cause, and why a replay might be in vain."""
        lines = [describe_group(group), *(f"escalate: {reason}" for reason in escalation_reasons(group))]
        if not self.revives:
            return lines
        preview = await dead_letter_groups.preview_replay(work.connection, group, tenant_of(work))
        lines.append(f"it would run {group.recipient} for {', '.join(group.types)}")
        if not preview.is_open:
            lines.append("none would run: the endpoint is deleted or disabled; enable it first")
        if not preview.has_route:
            lines.append("they would wait: no handler with this name is registered")
        if preview.expunged:
            lines.append(f"{preview.expunged} stay dead letters: their payload was deleted")
        return lines

    async def _lock(self, work: UnitOfWork, input: In, start: datetime) -> list[Key]:
        if input.group is not None:
            return await dead_letter_groups.lock_group(
                work.connection, _group_key(input.group), start,
                limit=BATCH, is_to_revive=self.revives, organization=tenant_of(work),
            )  # fmt: skip
        selection = Selection(_until(input.filter, start), None, tenant_of(work))
        return await delivery_commands.lock_dead(work.connection, selection, BATCH, is_to_revive=self.revives)

    def _request(self, work: UnitOfWork, input: In, now: datetime) -> dict[str, Any]:
        """Return what a job keeps: what it is about as of now, and who started it with which permission."""
        selected = _until(input.filter, now)
        spans = {
            name: value and value.isoformat() for name, value in (("since", selected.since), ("until", selected.until))
        }
        names = ("source", "application", "type", "recipient", "code")
        about: Mapping[str, Any] = {**{name: getattr(selected, name) for name in names}, **spans}
        if input.group is not None:
            about = {"group": str(_group_key(input.group))}
        return {
            **about,
            "rate": getattr(input, "rate", None),
            "note": _note(input),
            **freeze_caller(work, self.permission),
        }


def on_dead_letters(
    name: str,
    permission: Permission,
    scope: Scope,
    http: Http,
    *,
    jobs: tuple[TaskOperation, TaskOperation],
    undo: str | None,
    says: str,
    revives: bool = False,
    warns: str = "",
    must_type: str = "",
    examples: Sequence[str] = (),
) -> Callable[[Step[In]], Operation[In, Acted]]:
    """Declare the decorated step as an operation on dead letters.

    Args:
        name: as of every operation; so the others that are not described.
        permission: the permission.
        scope: the scope.
        http: the route.
        jobs: the kinds of the jobs on a group, and by filters.
        undo: how to undo it.
        says: the verb of what was done, such as ``replayed``.
        revives: whether they become pending.
        warns: what to ask before, in the console; the command line asks before all but named ones.
        must_type: the word that a person types on a page to confirm it.
        examples: examples for the command line.
    """

    def declare(step: Step[In]) -> Operation[In, Acted]:
        by_group, by_filter = jobs
        selected: Selected[In] = Selected(
            step=step, permission=permission, by_group=by_group, by_filter=by_filter, revives=revives
        )

        async def body(work: UnitOfWork, input: In) -> Acted:
            return await selected.run(work, input)

        body.__doc__ = step.__doc__
        input_type = list(step.__annotations__.values())[1]
        return Operation(
            name, body, input=input_type, result=Acted, permission=permission, scope=scope, http=http,
            tag="Dead Letter", undo=undo, says=says, warns=warns, must_confirm=True, must_type=must_type, secret="",
            examples=examples, selection=selected,
        )  # fmt: skip

    return declare


def freeze_caller(work: UnitOfWork, permission: Permission) -> dict[str, Any]:
    """Return what a job keeps of who started it, and of the permission that its caller must still have."""
    return {
        "actor": work.actor,
        "tenant": work.caller.tenant,
        "caller": dict(work.caller.frozen()),
        "permission": permission.value,
        "role": ACCESS_RULES[permission].role,
    }


def tenant_of(work: UnitOfWork) -> str | None:
    """Return the organization that a selection is limited to, or none for an operator."""
    return work.caller.tenant


def _note(input: DeadLetters) -> str:
    return str(getattr(input, "note", "")).strip()


def _audit(work: UnitOfWork, input: DeadLetters) -> AuditContext:
    return AuditContext(actor=work.actor, note=_note(input) or None)


def _until(criteria: ListFilter, end: datetime) -> ListFilter:
    """Return a filter of those that had failed by a time: later ones are not touched."""
    return msgspec.structs.replace(criteria, until=min(end, criteria.until or end))


def _subject(input: DeadLetters) -> str:
    return input.source or input.application or input.recipient or "dead letters"


def _read_keys(names: Sequence[str]) -> list[Key]:
    return [ids.read_delivery(name) for name in dict.fromkeys(names)]


def _group_key(reference: str) -> UUID:
    return ids.read(ids.DEAD_GROUP, reference)


async def _counts(work: UnitOfWork, selection: Selection) -> list[Count]:
    rows = await delivery_commands.count_dead(work.connection, selection)
    return [Count(**{name: getattr(row, name) for name in Count.__struct_fields__}) for row in rows]


def _skipped(key: Key, state: DeliveryState | None, *, revives: bool) -> Skipped:
    name = ids.show_delivery(*key)
    if state is None:
        return Skipped(id=name, why=f"there is no delivery {name}", code="not_found")
    match State(state.state):
        case State.SUCCEEDED | State.IGNORED:
            event = ids.show(ids.EVENT, key[0])
            reason, code = f"is {state.state}, not a dead letter; to run it again, replay its event {event}", "ended"
        case State.PENDING | State.LEASED:
            reason, code = f"is {state.state}, not a dead letter", "pending"
        case State.DEAD if revives and state.is_gone:
            reason, code = "has lost its event's content", "missing_payload"
        case State.DEAD if revives and not state.takes:
            reason, code = f"cannot run: {state.recipient} is deleted or disabled", "endpoint_disabled"
        case _:
            reason, code = "is being changed by another request", "busy"
    return Skipped(id=name, why=f"{name} {reason}", code=code)
