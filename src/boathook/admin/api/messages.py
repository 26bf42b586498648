"""Routes of messages: publish, read, list, forget; and whether anybody listens."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final

import msgspec
from fastapi import Path, Request
from pydantic import AfterValidator, Field, model_validator
from starlette.responses import Response

from boathook.admin import applications, messages
from boathook.admin.api.applications import ApplicationIn
from boathook.admin.api.calls import AnyCall, ApplicationCall, ApplicationRef, Call, body_of, remembers_itself, router
from boathook.admin.api.errors import answer_json, invalid
from boathook.admin.api.fields import Channels, Input, Moment, Output, Part, TypeName, Whole, either, show_moment
from boathook.admin.api.pages import ListOf
from boathook.admin.api.spans import Messages, WithContent
from boathook.admin.authorization import Permission, needs
from boathook.admin.messages import JSON_TYPE, NewMessage
from boathook.domain import ids
from boathook.domain.endpoints import check_tags, check_uid
from boathook.domain.errors import InvalidValue
from boathook.journal import messages as journal
from boathook.journal.applications import Application, split_reference
from boathook.journal.messages import MessageRow

routes = router("Message")

_FURTHEST: Final = timedelta(hours=24, minutes=1)
_MOST_IDS: Final = 250
_LONGEST_MEDIA_TYPE: Final = 256
_WORD: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_MEDIA_TYPE: Final = re.compile(rf'{_WORD}/{_WORD}(?: *; *{_WORD}=(?:{_WORD}|"[ !#-\[\]-~]*"))*', re.ASCII)
_EXPIRED: Final = msgspec.Raw(b'{"expired":true}')
_HIDDEN: Final = msgspec.Raw(b"{}")
_MISSING: Final = msgspec.Raw(b"")

MessageRef = Annotated[
    str, Path(description="The message's id or eventId.", examples=["msg_01h455vb4pex5vsknk084sn02q4", "order-17"])
]
MessageUid = Annotated[str, AfterValidator(lambda uid: check_uid(uid, ids.MESSAGE))]
Days = Annotated[Whole, Field(ge=1, le=90)]
Hours = Annotated[Whole, Field(ge=1, le=2160)]
Tags = Annotated[list[str], AfterValidator(lambda names: list(check_tags(names)) if names else [])]


def _content_type(headers: Mapping[str, str]) -> Mapping[str, str]:
    for name, value in headers.items():
        if name.lower() != "content-type":
            raise ValueError(f"only content-type may be given, not {name}; other headers belong to the endpoint")
        if len(value) > _LONGEST_MEDIA_TYPE or not _MEDIA_TYPE.fullmatch(value):
            raise ValueError("write a content type such as text/plain; charset=utf-8")
    if len(headers) > 1:
        raise ValueError("content-type is given twice")
    return headers


class TransformationsParams(Part):
    """How a message's body is made."""

    raw_payload: str | None = Field(default=None, description="Sent as it is, in place of the payload.")
    headers: Annotated[dict[str, str], AfterValidator(_content_type)] | None = Field(
        default=None, description="The body's content type.", examples=[{"content-type": "text/plain"}]
    )

    @property
    def content_type(self) -> str:
        """How the body is labelled."""
        return next(iter((self.headers or {}).values()), JSON_TYPE)


class MessageIn(Input):
    """A message."""

    event_type: TypeName = Field(examples=["invoice.paid"])
    payload: Any = Field(
        default=None,
        validation_alias=either("payload", "data"),
        examples=[{"id": "inv_17", "amount": 4200}],
        description="A JSON object, sent byte for byte as it is given; `data` is another name for it.",
        json_schema_extra={"type": "object"},
    )
    event_id: MessageUid | None = Field(default=None, examples=["order-17"], description="Unique for the application.")
    channels: Channels | None = Field(default=None, examples=[["project_1337"]])
    tags: Tags | None = Field(default=None, examples=[["billing"]])
    deliver_at: Moment | None = Field(default=None, description="Sent then and not at once; at most 24 hours ahead.")
    payload_retention_period: Days | None = Field(default=None, description="Days the payload is kept.")
    payload_retention_hours: Hours | None = Field(default=None, description="Hours the payload is kept.")
    transformations_params: TransformationsParams | None = None
    application: ApplicationIn | None = Field(
        default=None, description="Makes the application where there is none; its uid must be that of the path."
    )

    @model_validator(mode="after")
    def _check(self) -> "MessageIn":
        if self.payload_retention_hours is not None and self.payload_retention_period is not None:
            raise ValueError("write payloadRetentionPeriod or payloadRetentionHours, not both")
        if self.deliver_at is not None and self.deliver_at > datetime.now(UTC) + _FURTHEST:
            raise ValueError("deliverAt lies more than 24 hours ahead")
        return self

    @property
    def content_until(self) -> datetime | None:
        """When the payload may be forgotten."""
        days, hours = self.payload_retention_period, self.payload_retention_hours
        if days is None and hours is None:
            return None
        return datetime.now(UTC) + timedelta(days=days or 0, hours=hours or 0)


class MessageOut(Output):
    """A message."""

    id: str = Field(examples=["msg_01h455vb4pex5vsknk084sn02q4"])
    event_id: str | None = Field(default=None, examples=["order-17"])
    event_type: str = Field(examples=["invoice.paid"])
    payload: dict[str, Any] = Field(examples=[{"id": "inv_17", "amount": 4200}])
    channels: list[str] | None = None
    tags: list[str] | None = None
    deliver_at: Moment | None = None
    timestamp: Moment


class PrecheckIn(Input):
    """What would be published."""

    event_type: TypeName = Field(examples=["invoice.paid"])
    channels: Channels | None = None


class PrecheckOut(Output):
    """Whether anybody listens."""

    active: bool


class BulkExpungeIn(Input):
    """Messages whose contents are to be forgotten."""

    ids: list[str] = Field(
        min_length=1, max_length=_MOST_IDS, examples=[["order-17"]], description="Their ids or eventIds."
    )


class BulkExpungeOut(Output):
    """What came of each: `expunged` or `not-found`."""

    results: dict[str, str] = Field(examples=[{"order-17": "expunged"}])


class _Payload(msgspec.Struct):
    """The bytes of a payload within a request."""

    payload: msgspec.Raw = _MISSING
    data: msgspec.Raw = _MISSING


def show_message(row: MessageRow, *, has_content: bool = True) -> dict[str, Any]:
    """Return a message as the API shows it."""
    return {
        "id": row.shown_id,
        "eventId": row.uid,
        "eventType": row.type,
        "payload": _content(row) if has_content else _HIDDEN,
        "channels": row.channels,
        "tags": row.tags,
        "deliverAt": None if row.deliver_at is None else show_moment(row.deliver_at),
        "timestamp": show_moment(ids.made_at(row.id)),
    }


def _content(row: MessageRow) -> Any:
    if row.is_gone or row.body is None:
        return _EXPIRED
    # Payloads are shown as objects; one that was given raw may be anything.
    if not row.body.lstrip().startswith(b"{"):
        return {"rawPayload": row.body.decode("utf-8", "replace")}
    try:
        msgspec.json.decode(row.body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return {"rawPayload": row.body.decode("utf-8", "replace")}
    return msgspec.Raw(row.body)


@routes.get(
    "/app/{app_id}/msg",
    operation_id="v1.message.list",
    summary="List messages",
    response_model=ListOf[MessageOut],
)
@needs(Permission.MESSAGE_VIEW)
async def list_messages(call: ApplicationCall, query: Messages) -> Response:
    """List an application's messages, newest first."""
    found = await journal.list_some(
        call.connection,
        call.application.shown_id,
        query.page.window,
        query.filters,
        limit=query.page.limit,
        has_content=query.with_content,
    )
    return query.page.answer(
        found, lambda row: row.shown_id, lambda row: show_message(row, has_content=query.with_content)
    )


@routes.post(
    "/app/{app_id}/msg",
    status_code=202,
    operation_id="v1.message.create",
    summary="Create a message",
    response_model=MessageOut,
)
@remembers_itself
@needs(Permission.MESSAGE_PUBLISH)
async def create_message(
    call: AnyCall, request: Request, app_id: ApplicationRef, body: MessageIn, with_content: WithContent = True
) -> Response:
    """Publish a message to the application's endpoints that listen to it."""
    application = await _application(call, app_id, body.application)
    new = _new(call, body, await body_of(request))
    row, is_repeated = await messages.create(call.work, application, new)
    shown = show_message(row, has_content=with_content)
    return answer_json(202, shown, {"idempotent-replayed": "true"} if is_repeated else None)


async def _application(call: Call, reference: str, new: ApplicationIn | None) -> Application:
    if split_reference(ids.APPLICATION, reference) is None:
        raise invalid("write an application's id or uid", "path", "app_id_or_uid")
    if new is None:
        return await applications.get(call.work, reference)
    return await applications.ensure(call.work, reference, new.value())


def _new(call: Call, body: MessageIn, raw: bytes) -> NewMessage:
    identity, params = call.idempotency, body.transformations_params
    return NewMessage(
        type=body.event_type,
        body=_body(body, raw),
        content_type=JSON_TYPE if params is None else params.content_type,
        uid=body.event_id,
        channels=tuple(body.channels or ()),
        tags=tuple(body.tags or ()),
        deliver_at=body.deliver_at,
        content_until=body.content_until,
        idempotency=None if identity is None else (identity.key, identity.fingerprint, identity.canonical),
    )


def _body(body: MessageIn, raw: bytes) -> bytes:
    given = None if body.transformations_params is None else body.transformations_params.raw_payload
    if given is not None:
        try:
            return given.encode()
        except UnicodeEncodeError:
            raise InvalidValue("it is no text", "transformationsParams", "rawPayload") from None
    parts = msgspec.json.decode(raw, type=_Payload)
    return messages.object_of(bytes(parts.payload) or bytes(parts.data))


@routes.get(
    "/app/{app_id}/msg/{msg_id}",
    operation_id="v1.message.get",
    summary="Get a message",
    response_model=MessageOut,
)
@needs(Permission.MESSAGE_VIEW)
async def get_message(call: ApplicationCall, msg_id: MessageRef, with_content: WithContent = True) -> Response:
    """Return a message by its id or eventId."""
    row = await messages.get(call.work, call.application, msg_id)
    return answer_json(200, show_message(row, has_content=with_content))


@routes.delete(
    "/app/{app_id}/msg/{msg_id}/content",
    status_code=204,
    operation_id="v1.message.expunge-content",
    summary="Forget a message's content",
)
@needs(Permission.MESSAGE_EXPUNGE)
async def expunge_content(call: ApplicationCall, msg_id: MessageRef) -> None:
    """Forget a message's payload for good; it cannot be sent again."""
    await messages.expunge(call.work, call.application, msg_id)


@routes.post(
    "/app/{app_id}/msg/precheck/active",
    operation_id="v1.message.precheck",
    summary="Ask whether anybody listens",
)
@needs(Permission.MESSAGE_PUBLISH)
async def precheck(call: ApplicationCall, body: PrecheckIn) -> PrecheckOut:
    """Say whether a live endpoint listens to this event type and these channels."""
    is_active = await messages.is_listened_to(call.work, call.application, body.event_type, body.channels or ())
    return PrecheckOut(active=is_active)


@routes.post(
    "/app/{app_id}/msg/bulk-expunge",
    operation_id="v1.message.bulk-expunge",
    summary="Forget the contents of several messages",
)
@needs(Permission.MESSAGE_EXPUNGE)
async def bulk_expunge(call: ApplicationCall, body: BulkExpungeIn) -> BulkExpungeOut:
    """Forget the payloads of several messages for good."""
    found: Mapping[str, bool] = await messages.expunge_some(call.work, call.application, body.ids)
    return BulkExpungeOut(results={name: "expunged" if known else "not-found" for name, known in found.items()})
