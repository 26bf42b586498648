"""Operations on stored requests, rejected ones or conflicts: named ones act at once, filters or all become a job.

`StoredRequests` has the fields that select them, and `on_requests` declares an operation by its step, which acts on
some of them in one transaction. The tenant, the count of a dry run, the pages and the job are here. A job keeps its
selection, its caller and the permission, and checks these again at each step; its steps need the sources and secrets,
so the keeper runs them by a `StepRunner`. The command line drives the steps itself (`Selected.drive`).
"""

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, Generic, Protocol, TypeVar
from uuid import UUID

import msgspec
from msgspec.structs import replace

from boathook.config import Settings
from boathook.db import delivery_commands
from boathook.db.database import Connection, Database
from boathook.db.queries.listings import ListFilter, RequestCount
from boathook.db.secret_box import open_secret_box
from boathook.db.tasks import Task, TaskOperation
from boathook.domain import ids
from boathook.domain.errors import InvalidState, NotFound
from boathook.domain.plurals import counted
from boathook.handlers.outbox import Outbox
from boathook.service import catalogue
from boathook.service.access.authorization import ACCESS_RULES, Permission
from boathook.service.caller import TrustedCaller
from boathook.service.catalogue.operation import Http, OpenWork, Operation, Scope
from boathook.service.catalogue.selection import Skipped
from boathook.service.catalogue.values import Result
from boathook.service.field_values import read_json, write_json
from boathook.service.fields import AbstractTable, Input, Problem, Rule
from boathook.service.operating import tasks
from boathook.service.unit_of_work import AppContext, UnitOfWork

if TYPE_CHECKING:
    from boathook.delivery.tasks import StepResult

MAX_NAMED: Final = 100
BATCH: Final = 50
"""Requests of one transaction: a reverification may fetch the public keys of their senders meanwhile."""
FAILED: Final = frozenset({"refused", "impossible", "missing"})
"""The outcomes of requests that became no event."""


class StoredRequests(Input, frozen=True, kw_only=True, metaclass=AbstractTable):
    """The fields that select stored requests; those of one kind add their ids and the filters of their kind."""

    source: Annotated[str | None, Rule(help="Only of this source.")] = None
    since: Annotated[datetime | None, Rule(help="Arrived from this time on: 2h, 7d or ISO 8601.")] = None
    until: Annotated[datetime | None, Rule(help="Arrived before this time: 2h, 7d or ISO 8601.")] = None
    all: Annotated[bool, Rule(help="Select all.")] = False
    dry_run: Annotated[bool, Rule(help="Only count.")] = False

    @property
    def named(self) -> Sequence[str]:
        """The ids; empty if they are selected otherwise."""
        return getattr(self, "ids", None) or ()

    @property
    @abstractmethod
    def filter(self) -> ListFilter:
        """The filter of requests that were not accepted yet."""

    def conflicts(self) -> list[Problem]:
        """Return what is wrong with the ways to select together: exactly one is needed."""
        is_filtered = self.filter != ListFilter(state="open")
        if self.named and (self.all or is_filtered):
            return [Problem(("ids",), "give ids or filters, not both")]
        if not (self.named or self.all or is_filtered):
            return [Problem(("ids",), "nothing selected: give ids, filters such as `source`, or `all`")]
        return []


class Outcome(Result, frozen=True, kw_only=True):
    """What became of one stored request."""

    id: str
    outcome: Annotated[
        str, Rule(help="accepted, duplicate, conflict, refused, impossible, or missing.", example="accepted")
    ]
    detail: str
    event_id: Annotated[str | None, Rule(help="The event that it became.", prefix=ids.EVENT)] = None
    proof: Annotated[str | None, Rule(help="What the verified signature covers.")] = None
    code: Annotated[str, Rule(help="Why it is impossible, if programs need to know.")] = ""

    def error(self) -> Exception | None:
        """Return the error for an interface that is about this request alone; None unless it could not be handled."""
        if self.outcome == "missing":
            return NotFound(self.detail)
        return InvalidState(self.detail, self.code) if self.code else None


class RequestsCount(Result, frozen=True, kw_only=True):
    """Selected requests of one source or application with the same cause."""

    number: int
    source: str | None
    application: str | None
    cause: Annotated[str, Rule(help="The reason of rejections, or what differs in conflicts.")]


class RequestsActed(Result, frozen=True, kw_only=True):
    """What an operation on stored requests did, or would do."""

    dry_run: bool
    matching: Annotated[int, Rule(help="How many are selected.")]
    done: Annotated[int, Rule(help="How many this request has handled.")] = 0
    failed: Annotated[int, Rule(help="How many of these became no event.")] = 0
    job: Annotated[str | None, Rule(help="The bulk job that handles them.", prefix=ids.TASK)] = None
    results: Annotated[Sequence[Outcome], Rule(help="What became of the named ones, in their order.")] = ()
    counts: Annotated[Sequence[RequestsCount], Rule(help="What is selected, largest first.")] = ()
    notes: ClassVar[Sequence[str]] = ()
    """What to know before; nothing."""
    skipped: ClassVar[Sequence[Skipped]] = ()
    """The named ones that were left as they are; all have an outcome."""

    def first_error(self) -> Exception | None:
        """Return why named ones could not be handled at all."""
        return next((result.error() for result in self.results), None)

    def count(self, noun: str) -> str:
        """Return how many are selected, in words."""
        return counted(self.matching, noun)

    def describe(self, says: str, _noun: str) -> str:
        """Return what was done as a sentence."""
        return says.format(done=self.done, accepted=self.done - self.failed, failed=self.failed)

    def hints(self) -> Sequence[str]:
        """Return what to know afterwards."""
        return ()

    def to_line(self, verb: str) -> dict[str, Any]:
        """Return what was done as a JSON object."""
        fields = {"action": verb, "dry_run": self.dry_run, "matching": self.matching, "done": self.done}
        return fields if self.dry_run else fields | {"failed": self.failed}


In = TypeVar("In", bound=StoredRequests)
Step = Callable[[UnitOfWork, Sequence[UUID], In], Awaitable[Sequence[Outcome]]]


class Store(Protocol):
    """The stored requests of one kind; with an organization, only its own."""

    prefix: str

    async def list(self, connection: Connection, criteria: ListFilter, organization: str | None) -> Sequence[str]:
        """Return the ids that a filter selects, newest first."""
        ...

    async def count(
        self, connection: Connection, criteria: ListFilter, organization: str | None
    ) -> Sequence[RequestCount]:
        """Return the numbers of those that a filter selects."""
        ...

    async def find_missing(self, connection: Connection, id: UUID, organization: str | None) -> str:
        """Return why there is no request with this id; empty if there is one."""
        ...


class Selected(msgspec.Struct, Generic[In], frozen=True, kw_only=True):
    """How an operation selects its stored requests, and acts on them."""

    step: Step[In]
    store: Store
    permission: Permission
    job: TaskOperation
    input: type[In]

    async def run(self, work: UnitOfWork, input: In) -> RequestsActed:
        """Act on the named ones in the transaction of *work*, or start a job for the others; or only count."""
        if input.named:
            return await self._act_on_named(work, input, self._read_ids(input.named))
        now = await delivery_commands.read_clock(work.connection)
        input = replace(input, until=min(now, input.until or now))
        rows = await self.store.count(work.connection, input.filter, work.caller.tenant)
        counts = [RequestsCount(**msgspec.structs.asdict(row)) for row in rows]
        preview = RequestsActed(dry_run=input.dry_run, matching=sum(row.number for row in rows), counts=counts)
        if input.dry_run or not preview.matching:
            return preview
        request = self._request(work, input) | {"total": preview.matching}
        subject = input.source or "all"
        task = await tasks.start(work, self.job, request, subject=subject, note=request["note"])
        return replace(preview, job=task.shown_id)

    async def drive(self, open_work: OpenWork, input: In) -> AsyncIterator[RequestsActed]:
        """Act on all that *input* selects, in one transaction a batch.

        Yields what is done after each batch, with the results of the batch.
        """
        after: str | None = None
        number = failed = 0
        while True:
            async with open_work() as work:
                if input.until is None:
                    input = replace(input, until=await delivery_commands.read_clock(work.connection))
                outcomes, after = await self._handle_page(work, input, after)
            if outcomes:
                number += len(outcomes)
                failed += _count_failed(outcomes)
                yield RequestsActed(dry_run=False, matching=number, done=number, failed=failed, results=outcomes)
            if after is None:
                return

    async def run_step(self, work: UnitOfWork, task: Task) -> "StepResult":
        """Run one step of a job in the transaction of *work*."""
        # Imported only here, as the keeper alone runs steps.
        from boathook.delivery.tasks import StepResult

        input = read_json(self.input, task.request["input"])
        outcomes, after = await self._handle_page(work, input, task.place.get("request"))
        failed = _count_failed(outcomes)
        data = {"done": task.data.get("done", 0) + len(outcomes), "left": task.data.get("left", 0) + failed}
        return StepResult(data, None if after is None else {"request": after})

    async def _handle_page(
        self, work: UnitOfWork, input: In, after: str | None
    ) -> tuple[Sequence[Outcome], str | None]:
        """Return the outcomes of the next requests, and the last of them; None at the end."""
        criteria = replace(input.filter, after=after, limit=BATCH)
        rows = await self.store.list(work.connection, criteria, work.caller.tenant)
        outcomes = await self.step(work, self._read_ids(rows), input) if rows else ()
        return outcomes, rows[-1] if len(rows) == BATCH else None

    async def _act_on_named(self, work: UnitOfWork, input: In, request_ids: Sequence[UUID]) -> RequestsActed:
        missing = {}
        for id in request_ids:
            if reason := await self.store.find_missing(work.connection, id, work.caller.tenant):
                missing[id] = Outcome(id=ids.show(self.store.prefix, id), outcome="missing", detail=reason)
        existing = [id for id in request_ids if id not in missing]
        if input.dry_run:
            return RequestsActed(dry_run=True, matching=len(existing), results=list(missing.values()))
        handled = dict(zip(existing, await self.step(work, existing, input) if existing else (), strict=True))
        results = [missing.get(id) or handled[id] for id in request_ids]
        return RequestsActed(
            dry_run=False, matching=len(existing), done=len(results), failed=_count_failed(results), results=results
        )

    def _read_ids(self, names: Sequence[str]) -> list[UUID]:
        return [ids.read(self.store.prefix, name) for name in dict.fromkeys(names)]

    def _request(self, work: UnitOfWork, input: In) -> dict[str, Any]:
        """Return what a job keeps: what it is about as of now, and who started it with which permission."""
        return {
            "input": write_json(input),
            "note": getattr(input, "note", "").strip(),
            "actor": work.actor,
            "tenant": work.caller.tenant,
            "caller": dict(work.caller.frozen()),
            "permission": self.permission.value,
            "role": ACCESS_RULES[self.permission].role,
        }


def _count_failed(outcomes: Sequence[Outcome]) -> int:
    return sum(outcome.outcome in FAILED for outcome in outcomes)


def on_requests(
    name: str,
    permission: Permission,
    http: Http,
    *,
    store: Store,
    job: TaskOperation,
    tag: str,
    says: str,
    must_confirm: bool = False,
    examples: Sequence[str],
) -> Callable[[Step[In]], Operation[In, RequestsActed]]:
    """Declare the decorated step as an operation on stored requests; what it accepts stays accepted.

    Args:
        name: as of every operation; so the others that are not described.
        permission: the permission.
        http: the route.
        store: the requests.
        job: the kind of its jobs.
        tag: the tag.
        says: what was done, with ``{done}``, ``{accepted}`` and ``{failed}``; empty if the outcomes say it.
        must_confirm: whether the command line asks before it acts on others than named ones.
        examples: examples for the command line.
    """

    def declare(step: Step[In]) -> Operation[In, RequestsActed]:
        input_type = list(step.__annotations__.values())[2]
        selected: Selected[In] = Selected(step=step, store=store, permission=permission, job=job, input=input_type)

        async def body(work: UnitOfWork, input: In) -> RequestsActed:
            return await selected.run(work, input)

        body.__doc__ = step.__doc__
        return Operation(
            name, body, input=input_type, result=RequestsActed, permission=permission, scope=Scope.ORGANIZATION,
            http=http, tag=tag, undo=None, says=says, warns="", must_confirm=must_confirm, secret="", examples=examples,
            selection=selected,
        )  # fmt: skip

    return declare


_JOBS: Final = {
    TaskOperation.ACCEPT_CONFLICTS: "conflict.accept",
    TaskOperation.REVERIFY_REJECTIONS: "rejection.reverify",
}


class StepRunner:
    """Runs the steps of these jobs.

    Args:
        settings: the settings, without the stored sources.
        database: the database of the process.
    """

    def __init__(self, settings: Settings, database: Database) -> None:
        self._app_context = AppContext(settings, database, open_secret_box(settings), Outbox.of(settings.retention))

    async def run(self, connection: Connection, task: Task) -> "StepResult":
        """Run one step of a job, whose caller was checked, in the transaction of *connection*."""
        await self._app_context.refresh_settings(connection)
        caller = TrustedCaller(tenant=task.request["tenant"])
        work = UnitOfWork(self._app_context, connection, task.organization, task.request["actor"], caller)
        selected: Selected[Any] = catalogue.find(_JOBS[task.kind]).selection
        return await selected.run_step(work, task)
