"""Routes of rejected requests, and of conflicts: requests with the same key or body as an event, but not both."""

from enum import StrEnum
from typing import Annotated
from uuid import UUID

from fastapi import Path, Query
from pydantic import Field
from starlette.responses import Response

from boathook.api.errors import answer_json
from boathook.api.events import (
    AfterParam,
    ApplicationParam,
    BeforeParam,
    ContentOut,
    FilterText,
    SourceParam,
    show_content,
)
from boathook.api.pages import ConflictPage, ListOf, RejectionPage
from boathook.api.route import AnyCall, read_path_id, remembers_itself, router
from boathook.api.sources import SourceCall
from boathook.domain import ids
from boathook.domain.windows import clamp
from boathook.service.access.authorization import Permission, requires
from boathook.service.catalogue import conflicts as conflict_actions
from boathook.service.catalogue import rejections as rejection_actions
from boathook.service.catalogue.conflicts import Difference
from boathook.service.catalogue.stored_requests import Outcome, RequestsActed
from boathook.service.operating import listings
from boathook.service.operating.listings import ListFilter
from boathook.service.receiving import conflicts
from boathook.service.schemas.fields import Input, Output, Text, Timestamp

routes = router("Rejection")
conflict_routes = router("Conflict")

RejectionRef = Annotated[str, Path(description="The rejection's id.", examples=["rej_01h455vb4pex5vsknk084sn02q4"])]
ConflictRef = Annotated[str, Path(description="The conflict's id.", examples=["cfl_01h455vb4pex5vsknk084sn02q4"])]


class RejectionState(StrEnum):
    """Whether a rejected request was accepted later."""

    OPEN = "open"
    ACCEPTED = "accepted"


class RejectionOut(Output):
    """A rejected request without its content."""

    id: str = Field(examples=["rej_01h455vb4pex5vsknk084sn02q4"])
    source: str | None = Field(description="Null if no source has the path of the request.", examples=["stripe"])
    rejected_at: Timestamp
    status: int = Field(description="The status of the response.", examples=[401])
    reason: str = Field(examples=["signature_mismatch"])
    detail: str = Field(description="What was wrong, with the likely cause; never shown to the sender.")
    client_address: str
    method: str
    url: str
    content_type: str
    size: int = Field(description="Bytes that were sent or announced; fewer may be stored.")
    event_id: str | None = Field(description="The event that it became when it was verified again.")


class RejectionWithContentOut(RejectionOut, ContentOut):
    """A rejected request with its content; credentials are never stored."""


class ReverifiedOut(Output):
    """The result of verifying a rejected request again."""

    id: str
    outcome: str = Field(description="accepted, duplicate, conflict, refused or impossible.", examples=["accepted"])
    detail: str
    event_id: str | None
    proof: str | None = Field(description="What the verified signature covers; null if no event was created.")


class AcceptConflictIn(Input):
    """Why the conflict is accepted."""

    note: Text = Field(default="", description="Kept in the audit.", examples=["the customer's second order"])


class AcceptedConflictOut(Output):
    """A conflict with the event that it became."""

    id: str = Field(examples=["cfl_01h455vb4pex5vsknk084sn02q4"])
    event_id: str = Field(examples=["evt_01h455vb4pex5vsknk084sn02q4"])
    is_new: bool = Field(description="Whether this request accepted it; false if it had been accepted before.")


class ConflictOut(Output):
    """A request with the key or the body of an event, but not both; without its content."""

    id: str = Field(examples=["cfl_01h455vb4pex5vsknk084sn02q4"])
    event_id: str
    source: str | None
    application: str | None
    dedup_key: str
    type: str = Field(examples=["invoice.paid"])
    differs: Difference
    seen: int = Field(description="How often it has arrived.")
    first_seen_at: Timestamp
    last_seen_at: Timestamp
    size: int = Field(description="Bytes of the body.")
    accepted_as: str | None = Field(description="The event that it became when it was accepted.")


class ConflictWithContentOut(ConflictOut, ContentOut):
    """A conflict with its content, compared with its event."""

    content_type: str
    item_path: str | None = Field(description="The item of the event that it is about; null for the whole event.")
    verdict: str = Field(description="The difference, in one sentence.")
    difference: str | None = Field(description="Both bodies by line; null if they cannot be compared.")


@routes.get("/rejection", operation_id="v1.rejection.list", summary="List rejected requests")
@requires(Permission.REJECTION_VIEW)
async def list_rejections(
    call: SourceCall,
    page: RejectionPage,
    source: SourceParam = None,
    reason: Annotated[FilterText | None, Query(description="Only rejected for this reason.")] = None,
    state: Annotated[RejectionState | None, Query(description="open: not accepted; accepted: accepted later.")] = None,
    before: BeforeParam = None,
    after: AfterParam = None,
) -> ListOf[RejectionOut]:
    """List rejected requests, newest first."""
    filters = ListFilter(
        source=source,
        code=reason,
        state=state,
        since=after and clamp(after),
        until=before and clamp(before),
        after=page.place,
        limit=page.limit + 1,
    )
    rows = await listings.list_rejections(call.work.connection, filters, is_upward=page.is_upward)
    return page.answer(
        rows, lambda row: row.id, lambda row: RejectionOut.of(row, rejected_at=row.refused_at, size=row.body_size)
    )


@routes.get("/rejection/{rejection_id}", operation_id="v1.rejection.get", summary="Get a rejected request")
@requires(Permission.REJECTION_VIEW)
async def get_rejection(call: SourceCall, rejection_id: RejectionRef) -> RejectionWithContentOut:
    """Return a rejected request with its headers and body."""
    row, stored_request = await listings.get_rejection(call.work.connection, _rejection_id(rejection_id))
    return RejectionWithContentOut.of(
        row, rejected_at=row.refused_at, size=row.body_size, **show_content(stored_request)
    )


@routes.post(
    "/rejection/{rejection_id}/reverify",
    operation_id="v1.rejection.reverify",
    summary="Verify a rejected request again",
    response_model=ReverifiedOut,
)
@requires(Permission.REJECTION_REVERIFY)
@remembers_itself
async def reverify_rejection(call: SourceCall, rejection_id: RejectionRef) -> Response:
    """Verify a rejected request with the current secrets, as of its arrival, and accept it if it passes.

    Repeating it accepts nothing twice: the outcome is then `duplicate`, with the event.
    """
    identifier = ids.show(ids.REJECTION, _rejection_id(rejection_id))
    result = _only(await rejection_actions.reverify(call.work, rejection_actions.Reverify(ids=[identifier])))
    return answer_json(200, ReverifiedOut.of(result).model_dump(mode="json", by_alias=True))


def _only(acted: RequestsActed) -> Outcome:
    """Return what became of the only request. Raises NotFound or InvalidState if it could not be handled."""
    (outcome,) = acted.results
    if (error := outcome.error()) is not None:
        raise error
    return outcome


@conflict_routes.get("/conflict", operation_id="v1.conflict.list", summary="List conflicts")
@requires(Permission.CONFLICT_VIEW)
async def list_conflicts(
    call: AnyCall,
    page: ConflictPage,
    source: SourceParam = None,
    application: ApplicationParam = None,
    differs: Annotated[Difference | None, Query(description="Only with a different body, or a different key.")] = None,
    before: BeforeParam = None,
    after: AfterParam = None,
) -> ListOf[ConflictOut]:
    """List conflicts, newest first."""
    filters = ListFilter(
        source=source,
        application=application,
        code=differs,
        since=after and clamp(after),
        until=before and clamp(before),
        after=page.place,
        limit=page.limit + 1,
    )
    rows = await listings.page_conflicts(call.work, filters, is_upward=page.is_upward)
    return page.answer(rows, lambda row: row.id, ConflictOut.of)


@conflict_routes.get("/conflict/{conflict_id}", operation_id="v1.conflict.get", summary="Get a conflict")
@requires(Permission.CONFLICT_VIEW)
async def get_conflict(call: AnyCall, conflict_id: ConflictRef) -> ConflictWithContentOut:
    """Return a conflict with its headers and body, compared with its event."""
    comparison = await conflicts.read_comparison(call.work, _conflict_id(conflict_id))
    return ConflictWithContentOut.of(
        comparison.conflict.row,
        **show_content(comparison.conflict.stored),
        content_type=comparison.conflict.content_type,
        item_path=comparison.item_path,
        verdict=comparison.verdict,
        difference=None if comparison.lines is None else conflicts.unified_diff(comparison),
    )


@conflict_routes.post("/conflict/{conflict_id}/accept", operation_id="v1.conflict.accept", summary="Accept a conflict")
@requires(Permission.CONFLICT_ACCEPT)
async def accept_conflict(call: AnyCall, conflict_id: ConflictRef, body: AcceptConflictIn) -> AcceptedConflictOut:
    """Make a conflict a new event with its own headers, body and type, delivered by the current routes.

    Repeating it creates no second event; the response then names the first one.
    """
    identifier = ids.show(ids.CONFLICT, _conflict_id(conflict_id))
    accepted = conflict_actions.Accept(ids=[identifier], note=body.note)
    result = _only(await conflict_actions.accept(call.work, accepted))
    return AcceptedConflictOut.of(result, is_new=result.outcome == "accepted")


def _conflict_id(reference: str) -> UUID:
    return read_path_id(lambda text: ids.read(ids.CONFLICT, text), reference)


def _rejection_id(reference: str) -> UUID:
    return read_path_id(lambda text: ids.read(ids.REJECTION, text), reference)
