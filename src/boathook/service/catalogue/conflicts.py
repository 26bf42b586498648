"""Operations on conflicts: requests with the key or the body of an event, but not both."""

from collections.abc import Sequence
from enum import StrEnum
from typing import Annotated, Final
from uuid import UUID

from boathook.db import delivery_commands
from boathook.db.database import Connection
from boathook.db.queries import event_history, listings
from boathook.db.queries.listings import ListFilter, RequestCount
from boathook.db.tasks import TaskOperation
from boathook.domain import ids
from boathook.domain.errors import InvalidState, NotFound
from boathook.service.access.authorization import Permission
from boathook.service.catalogue.operation import Http
from boathook.service.catalogue.stored_requests import MAX_NAMED, Outcome, StoredRequests, on_requests
from boathook.service.common_fields import Note
from boathook.service.fields import Rule
from boathook.service.unit_of_work import UnitOfWork

_PREFIX: Final = ids.CONFLICT
_APPLICATION: Final = ids.APPLICATION


class Difference(StrEnum):
    """The difference between a conflict and its event."""

    BODY = "body"
    KEY = "key"


class _Conflicts:
    prefix = _PREFIX

    async def list(self, connection: Connection, criteria: ListFilter, organization: str | None) -> Sequence[str]:
        return [row.id for row in await listings.list_conflicts(connection, criteria, organization=organization)]

    async def count(
        self, connection: Connection, criteria: ListFilter, organization: str | None
    ) -> Sequence[RequestCount]:
        return await listings.count_conflicts(connection, criteria, organization=organization)

    async def find_missing(self, connection: Connection, id: UUID, organization: str | None) -> str:
        is_stored = await delivery_commands.lock_conflict(connection, id, organization) is not None
        return "" if is_stored else str(event_history.no_conflict(id))


class Accept(StoredRequests, frozen=True, kw_only=True):
    """The conflicts to accept, and why."""

    ids: Annotated[
        list[Annotated[str, Rule(prefix=_PREFIX)]] | None,
        Rule(help="Ids; or use the filters.", max_length=MAX_NAMED, argument="ID"),
    ] = None
    application: Annotated[str | None, Rule(help="Only for this application: id or uid.", prefix=_APPLICATION)] = None
    differs: Annotated[Difference | None, Rule(help="Only with a different body, or with a different key.")] = None
    note: Note = ""

    @property
    def filter(self) -> ListFilter:
        """The filter of conflicts that were not accepted yet."""
        return ListFilter(
            source=self.source, application=self.application, code=self.differs, state="open", since=self.since,
            until=self.until,
        )  # fmt: skip


@on_requests(
    "conflict.accept",
    Permission.CONFLICT_ACCEPT,
    Http("POST", "/conflict/bulk-accept", 202, "v1.conflict.bulk-accept"),
    store=_Conflicts(),
    job=TaskOperation.ACCEPT_CONFLICTS,
    tag="Conflict",
    says="",
    must_confirm=True,
    examples=(
        "boathook conflicts accept cfl_01h455vb4pex5vsknk084sn02q4 --note 'the customer ordered twice'",
        "boathook conflicts accept --source stripe --differs body --since 1d --dry-run",
    ),
)
async def accept(work: UnitOfWork, conflict_ids: Sequence[UUID], input: Accept) -> Sequence[Outcome]:
    """Accept conflicts: each becomes a new event, once, delivered by the current routes.

    The event has the headers, the body and the type of the conflict. Repeating it creates no second event.
    """
    outcomes = {}
    # In one order, so that two operators who accept the same conflicts never wait for each other.
    for id in sorted(conflict_ids):
        outcomes[id] = await _accept(work, id, input.note.strip())
    return [outcomes[id] for id in conflict_ids]


async def _accept(work: UnitOfWork, id: UUID, note: str) -> Outcome:
    # Imported only here, as it imports all provider recipes.
    from boathook.service.receiving import conflicts

    name = ids.show(ids.CONFLICT, id)
    try:
        async with work.connection.transaction():
            accepted = await conflicts.accept(work, id, note=note)
    except InvalidState as error:
        return Outcome(id=name, outcome="impossible", detail=str(error), code=error.kind)
    except NotFound as error:
        return Outcome(id=name, outcome="missing", detail=str(error))
    outcome = "accepted" if accepted.is_new else "duplicate"
    words = "accepted as" if accepted.is_new else "was accepted before as"
    return Outcome(id=name, outcome=outcome, detail=f"{words} {accepted.event_id}", event_id=accepted.event_id)
