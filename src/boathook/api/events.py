"""Routes of events and deliveries: lists, single ones with their content and attempts, and replays.

These are the events of both directions: the organization "default" has the inbound ones, and each organization has the
messages of its applications.
"""

import base64
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import Depends, Path, Query
from pydantic import ConfigDict, Field

from boathook.api.errors import invalid
from boathook.api.pages import DeliveryPage, EventPage, ListOf
from boathook.api.route import AnyCall, read_path_id, router
from boathook.domain import ids
from boathook.domain.errors import InvalidValue
from boathook.domain.model import Attempt, Origin, State
from boathook.domain.windows import clamp
from boathook.service.access.authorization import Permission, requires
from boathook.service.body_view import mask
from boathook.service.catalogue import events as actions
from boathook.service.fields import fields_by_name
from boathook.service.operating import listings, search
from boathook.service.operating.event_query import EventQuery
from boathook.service.operating.listings import EventRow, ListFilter, StoredRequest
from boathook.service.schemas.fields import Input, Output, Text, Timestamp

routes = router("Event")
deliveries = router("Delivery")

Shown = TypeVar("Shown", bound="EventOut")

EventRef = Annotated[
    str, Path(description="The event's id, or the id of its message.", examples=["evt_01h455vb4pex5vsknk084sn02q4"])
]
DeliveryRef = Annotated[str, Path(description="The delivery's id.", examples=["dlv_01h455vb4pex5vsknk084sn02q4_0"])]

FilterText = Annotated[Text, Field(max_length=256)]
SourceParam = Annotated[FilterText | None, Query(description="Only of this source.", examples=["stripe"])]
ApplicationParam = Annotated[FilterText | None, Query(description="Only of this application: its id or uid.")]
TypeParam = Annotated[
    FilterText | None,
    Query(
        description="Only with a type, or an item's type, that fits; `*` matches any characters.",
        examples=["invoice.*"],
    ),
]
RecipientParam = Annotated[
    FilterText | None,
    Query(
        description="Only to recipients that fit; `*` matches any characters.",
        examples=["handler:invoice", "endpoint:*"],
    ),
]
BeforeParam = Annotated[Timestamp | None, Query(description="Only before this.")]
AfterParam = Annotated[Timestamp | None, Query(description="Only then or later.")]
CodeParam = Annotated[FilterText | None, Query(description="Only with this error code.", examples=["TIMEOUT"])]


class ReplayEventIn(Input):
    """Why the event is replayed."""

    note: Text = Field(default="", description="Kept in the audit.", examples=["the handler is fixed"])


class ReplayedEventOut(Output):
    """The result of replaying an event."""

    added: int = Field(description="New deliveries, for recipients whose deliveries had all ended.")
    revived: int = Field(description="Dead letters that are pending again.")


class EventOut(Output):
    """An event without its content."""

    id: str = Field(examples=["evt_01h455vb4pex5vsknk084sn02q4"])
    source: str | None = Field(examples=["stripe"], description="Null for a message of an application.")
    application: str | None = Field(description="Null for an inbound event.")
    type: str = Field(examples=["invoice.paid"])
    dedup_key: str
    proof: str = Field(description="What the verified signature covers.", examples=["body signed"])
    origin: Origin = Field(
        description="received: sent to a source. published: a message. accepted_conflict: a conflict that was accepted."
    )
    received_at: Timestamp = Field(description="When boathook received it; lists are sorted and filtered by it.")
    accepted_at: Timestamp = Field(description="When PostgreSQL had it; later if it was in the spool before.")
    content_type: str = Field(examples=["application/json"])
    size: int = Field(description="Bytes of the body.")
    expunged_at: Timestamp | None = Field(description="When its content was deleted.")
    same_body_as: str | None = Field(
        description="The first event with the same signed body, if this one came later under another id."
    )
    delivery_counts: dict[str, int] = Field(
        description="Deliveries by state; at most a thousand are counted.", examples=[{"succeeded": 2, "dead": 1}]
    )


class ContentOut(Output):
    """The headers and the body of a request."""

    headers: dict[str, str] = Field(description="Values that may hold secrets are hidden.")
    body: str | None = Field(description="The body, if it is UTF-8.")
    body_base64: str | None = Field(description="Any other body.")


class FirstEventOut(Output):
    """The event that a chain of events began with, of which handlers published all others."""

    model_config = ConfigDict(from_attributes=True)

    id: str
    source: str | None
    application: str | None
    type: str | None = Field(description="Null if retention has dropped it.")


class DeliveryOut(Output):
    """A delivery: one event for one recipient."""

    id: str = Field(examples=["dlv_01h455vb4pex5vsknk084sn02q4_0"])
    event_id: str
    recipient: str = Field(examples=["handler:invoice", "endpoint:ep_01h455vb4pex5vsknk084sn02q4"])
    source: str | None
    application: str | None
    type: str = Field(description="The type of the event or of the delivered item.")
    item_path: str | None = Field(description="The delivered item of a batch; null for the whole event.")
    state: State
    attempts: int
    due_at: Timestamp | None = Field(description="When the next attempt of a pending delivery is due.")
    code: str | None = Field(description="The last error's code.", examples=["TIMEOUT"])
    note: str | None = Field(description="The last error, or why the delivery was ignored.")
    ended_at: Timestamp | None = Field(description="When it succeeded, was ignored or became a dead letter.")
    order_key: str | None
    replays: int
    is_replay: bool = Field(description="Whether a replay of the event added it.")
    is_manual: bool = Field(description="Whether it was requested by hand, for one attempt.")
    paused_until: Timestamp | None = Field(
        default=None,
        description="When the next probe of its endpoint goes, if it is pending and the endpoint is paused.",
    )
    first: FirstEventOut | None = Field(
        default=None,
        description="Of a dead letter: the first event of its chain, if a handler published the event of the delivery.",
    )


class AttemptOut(Output):
    """One try of a delivery."""

    number: int
    outcome: str
    code: str | None
    error: str | None
    dependency: str | None = Field(
        description="The service that a handler called and that failed, such as `crm` or its host; null if unknown."
    )
    traceback: str | None
    started_at: Timestamp
    ended_at: Timestamp
    worker: str


class DeliveryWithAttemptsOut(DeliveryOut):
    """A delivery with its attempts."""

    attempts_made: list[AttemptOut]


class EventWithContentOut(EventOut, ContentOut):
    """An event with its content and its deliveries."""

    deliveries: list[DeliveryOut] = Field(
        description=f"The first {listings.MAX_EMBEDDED}; the list of deliveries with `event` has all."
    )


def _show_event(model: type[Shown], row: EventRow, counts: Mapping[State, int], **more: Any) -> Shown:
    numbers = {str(state): number for state, number in counts.items()}
    return model.of(row, proof=row.grade, delivery_counts=numbers, **more)


def show_content(request: StoredRequest) -> dict[str, Any]:
    """Return headers, with values hidden that may hold secrets, and the body as text or, if it is none, in base64."""
    content: dict[str, Any] = {"headers": mask(dict(request.headers)), "body": None, "body_base64": None}
    try:
        return content | {"body": request.body.decode()}
    except UnicodeDecodeError:
        return content | {"body_base64": base64.b64encode(request.body).decode()}


def show_attempts(attempts: Sequence[Attempt]) -> list[AttemptOut]:
    """Return the attempts of a delivery as the API shows them."""
    return [AttemptOut.of(attempt) for attempt in attempts]


def _filter(name: str, example: str | None = None) -> Any:
    """Return the parameter of a filter of events, as the table of filters describes it."""
    rule = fields_by_name(EventQuery)[name].rule
    sample = rule.example or example
    examples = None if sample is None else [sample]
    return Query(description=rule.help, max_length=rule.max_length, examples=examples)


class EventParams(msgspec.Struct, frozen=True):
    """The filters of a list of events, with the names of its times."""

    source: Annotated[Text | None, _filter("source")] = None
    application: Annotated[Text | None, _filter("application")] = None
    type: Annotated[Text | None, _filter("type")] = None
    state: Annotated[Text | None, _filter("state", "dead")] = None
    key: Annotated[Text | None, _filter("key")] = None
    text: Annotated[Text | None, _filter("text")] = None
    where: Annotated[Text | None, _filter("where")] = None
    q: Annotated[Text | None, _filter("words")] = None
    before: BeforeParam = None
    after: AfterParam = None

    def value(self) -> EventQuery:
        """Return the filters as service functions take them."""
        names = ("source", "application", "type", "state", "key", "text", "where")
        return EventQuery(
            **{name: getattr(self, name) or None for name in names},
            words=self.q or None,
            since=self.after and clamp(self.after),
            until=self.before and clamp(self.before),
        )


def _located(error: InvalidValue) -> InvalidValue:
    """Return the error for a filter with its name in the query."""
    names = {"since": "after", "until": "before"}
    return invalid(str(error), "query", *(names.get(str(part), str(part)) for part in error.where))


@routes.get("/event", operation_id="v1.event.list", summary="List events")
@requires(Permission.EVENT_VIEW)
async def list_events(call: AnyCall, page: EventPage, query: Annotated[EventParams, Depends()]) -> ListOf[EventOut]:
    """List events, newest first.

    A request searches for a short time only. A page may thus have few events or none although there are more: continue
    with its iterator until `done`.
    """
    try:
        result = await search.find_own(call.work, query.value(), limit=page.limit, below=page.place_id)
    except InvalidValue as error:
        raise _located(error) from None
    place = ids.show(ids.EVENT, result.place) if result.place is not None else None
    return ListOf(
        data=[_show_event(EventOut, event.event, event.states) for event in result.events],
        iterator=place or (result.events[-1].event.id if result.events else page.place),
        done=place is None,
    )


@routes.get("/event/{event_id}", operation_id="v1.event.get", summary="Get an event")
@requires(Permission.EVENT_VIEW)
async def get_event(call: AnyCall, event_id: EventRef) -> EventWithContentOut:
    """Return an event with its headers, body and deliveries."""
    detail = await listings.read_event(call.work, read_path_id(ids.read_event, event_id))
    return _show_event(
        EventWithContentOut,
        detail.found.event,
        detail.found.states,
        **show_content(detail.stored),
        deliveries=[DeliveryOut.of(row) for row in detail.deliveries],
    )


@routes.post("/event/{event_id}/replay", status_code=202, operation_id="v1.event.replay", summary="Replay an event")
@requires(Permission.EVENT_REPLAY)
async def replay_event(call: AnyCall, event_id: EventRef, body: ReplayEventIn | None = None) -> ReplayedEventOut:
    """Deliver an event again to each of its recipients whose deliveries have ended; its dead letters are retried."""
    note = "" if body is None else body.note
    name = ids.show(ids.EVENT, read_path_id(ids.read_event, event_id))
    acted = await actions.replay(call.work, actions.ReplayEvents(ids=[name], note=note))
    for skipped in acted.skipped:
        raise skipped.error()
    return ReplayedEventOut(added=acted.added, revived=acted.revived)


class DeliveryQuery(msgspec.Struct, frozen=True):
    """The filters of a list of deliveries or dead letters."""

    source: SourceParam = None
    application: ApplicationParam = None
    type: TypeParam = None
    recipient: RecipientParam = None
    code: CodeParam = None
    before: BeforeParam = None
    after: AfterParam = None

    def value(self, limit: int, state: State | None = None, after: str | None = None) -> ListFilter:
        """Return the filter as service functions take it."""
        return ListFilter(
            source=self.source,
            application=self.application,
            type=self.type,
            recipient=self.recipient,
            code=self.code,
            state=state,
            since=self.after and clamp(self.after),
            until=self.before and clamp(self.before),
            after=after,
            limit=limit,
        )


@deliveries.get("/delivery", operation_id="v1.delivery.list", summary="List deliveries")
@requires(Permission.EVENT_VIEW)
async def list_deliveries(
    call: AnyCall,
    page: DeliveryPage,
    query: Annotated[DeliveryQuery, Depends()],
    state: Annotated[State | None, Query(description="Only in this state.")] = None,
    event: Annotated[FilterText | None, Query(description="Only of this event: its id.")] = None,
) -> ListOf[DeliveryOut]:
    """List deliveries, those of the newest events first; before and after are times of acceptance.

    A request searches for a short time only, as the list of events does.
    """
    try:
        event_id = None if event is None else ids.read_event(event)
    except ValueError as error:
        raise invalid(str(error), "query", "event") from None
    result = await listings.scan_deliveries(
        call.work, query.value(page.limit, state, page.place), event_id=event_id, is_upward=page.is_upward
    )
    return page.answer_scan(
        result.rows,
        None if result.place is None else ids.show_delivery(*result.place),
        lambda row: row.id,
        DeliveryOut.of,
    )


@deliveries.get("/delivery/{delivery_id}", operation_id="v1.delivery.get", summary="Get a delivery")
@requires(Permission.EVENT_VIEW)
async def get_delivery(call: AnyCall, delivery_id: DeliveryRef) -> DeliveryWithAttemptsOut:
    """Return a delivery with its attempts."""
    row, attempts = await listings.read_delivery(call.work, read_path_id(ids.read_delivery, delivery_id))
    return DeliveryWithAttemptsOut.of(row, attempts_made=show_attempts(attempts))
