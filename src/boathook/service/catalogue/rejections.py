"""Operations on rejected requests."""

from collections.abc import Sequence
from typing import Annotated, Final
from uuid import UUID

from boathook.db.database import Connection
from boathook.db.delivery_commands import AuditContext
from boathook.db.queries import listings
from boathook.db.queries.listings import ListFilter, RequestCount
from boathook.db.tasks import TaskOperation
from boathook.domain import ids
from boathook.domain.errors import ConfigError, InvalidState, NotFound
from boathook.service.access.authorization import Permission
from boathook.service.catalogue.operation import Http
from boathook.service.catalogue.stored_requests import MAX_NAMED, Outcome, StoredRequests, on_requests
from boathook.service.common_fields import Note
from boathook.service.fields import Rule
from boathook.service.unit_of_work import UnitOfWork

_PREFIX: Final = ids.REJECTION


class _Rejections:
    prefix = _PREFIX

    async def list(self, connection: Connection, criteria: ListFilter, organization: str | None) -> Sequence[str]:
        return [row.id for row in await listings.list_rejections(connection, criteria, organization=organization)]

    async def count(
        self, connection: Connection, criteria: ListFilter, organization: str | None
    ) -> Sequence[RequestCount]:
        return await listings.count_rejections(connection, criteria, organization=organization)

    async def find_missing(self, connection: Connection, id: UUID, organization: str | None) -> str:
        try:
            await listings.get_rejection(connection, id, organization)
        except NotFound as error:
            return str(error)
        return ""


class Reverify(StoredRequests, frozen=True, kw_only=True):
    """The rejected requests to verify again."""

    ids: Annotated[
        list[Annotated[str, Rule(prefix=_PREFIX)]] | None,
        Rule(help="Ids; or use the filters.", max_length=MAX_NAMED, argument="ID"),
    ] = None
    reason: Annotated[str | None, Rule(help="Only rejected for this reason.", example="signature_mismatch")] = None
    note: Note = ""

    @property
    def filter(self) -> ListFilter:
        """The filter of requests that were not accepted yet."""
        return ListFilter(source=self.source, code=self.reason, state="open", since=self.since, until=self.until)


@on_requests(
    "rejection.reverify",
    Permission.REJECTION_REVERIFY,
    Http("POST", "/rejection/bulk-reverify", 202, "v1.rejection.bulk-reverify"),
    store=_Rejections(),
    job=TaskOperation.REVERIFY_REJECTIONS,
    tag="Rejection",
    says="{done} verified again, {accepted} accepted, {failed} still rejected",
    examples=(
        "boathook rejections reverify --source stripe --since 1d",
        "boathook rejections reverify rej_01h455vb4pex5vsknk084sn02q4",
    ),
)
async def reverify(work: UnitOfWork, rejection_ids: Sequence[UUID], input: Reverify) -> Sequence[Outcome]:
    """Verify rejected requests again with the current secrets; valid ones are accepted.

    Each is verified as of its arrival. Repeating it accepts nothing twice: the outcome is then
    duplicate, with the event.
    """
    # Imported only here, as importing the verification takes longer than most commands.
    from boathook.service.receiving import reverification

    audit = AuditContext(actor=work.actor, note=input.note.strip() or None)
    settings = work.app_context.settings
    try:
        results = await reverification.reverify(work.connection, settings, rejection_ids, audit, work.caller.tenant)
    except ConfigError as error:
        raise InvalidState(str(error), "unusable_source") from None
    return [
        Outcome(
            id=result.rejection_id,
            outcome=result.outcome,
            detail=result.detail,
            event_id=result.event_id,
            proof=result.grade,
        )
        for result in results
    ]
