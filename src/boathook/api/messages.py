"""Routes of messages: publish, read, list and expunge messages, and check for subscribers."""

from typing import Annotated, Any, Final

import msgspec
from fastapi import Path, Request
from msgspec.structs import replace
from pydantic import Field
from starlette.responses import Response

from boathook.api.errors import answer_json, invalid
from boathook.api.pages import ListOf
from boathook.api.route import (
    AnyCall,
    ApplicationCall,
    ApplicationRef,
    Call,
    body_of,
    remembers_itself,
    router,
    works_without_database,
)
from boathook.api.time_ranges import Messages, WithContent
from boathook.domain import ids
from boathook.domain.endpoints import parse_reference
from boathook.domain.errors import InvalidValue, NotFound
from boathook.domain.json_document import UNREADABLE, parse
from boathook.domain.messages import Message, read_object
from boathook.service.access.authorization import Permission, requires
from boathook.service.catalogue import messages as expunging
from boathook.service.catalogue.messages import Expunge
from boathook.service.fields import Rule, check_text
from boathook.service.schemas.fields import Channels, Input, Output, Timestamp, TypeName, format_timestamp
from boathook.service.schemas.messages import ApplicationIn, MessageIn
from boathook.service.sending import applications, messages
from boathook.service.sending.applications import Application
from boathook.service.sending.messages import MessageRow

routes = router("Message")

_MAX_IDS: Final = 250
_EXPIRED: Final = msgspec.Raw(b'{"expired":true}')
_HIDDEN: Final = msgspec.Raw(b"{}")
_MISSING: Final = msgspec.Raw(b"")

MessageRef = Annotated[
    str, Path(description="The message's id or eventId.", examples=["msg_01h455vb4pex5vsknk084sn02q4", "order-17"])
]


class MessageOut(Output):
    """A message."""

    id: str = Field(examples=["msg_01h455vb4pex5vsknk084sn02q4"])
    event_id: str | None = Field(default=None, examples=["order-17"])
    event_type: str = Field(examples=["invoice.paid"])
    payload: dict[str, Any] = Field(examples=[{"id": "inv_17", "amount": 4200}])
    channels: list[str] | None = None
    tags: list[str] | None = None
    deliver_at: Timestamp | None = None
    timestamp: Timestamp


class PrecheckIn(Input):
    """The event type and channels of a potential message."""

    event_type: TypeName = Field(examples=["invoice.paid"])
    channels: Channels | None = None


class PrecheckOut(Output):
    """Whether any endpoint would receive the message."""

    active: bool


class BulkExpungeIn(Input):
    """Messages whose payloads are deleted."""

    ids: list[str] = Field(
        min_length=1, max_length=_MAX_IDS, examples=[["order-17"]], description="Their ids or eventIds."
    )


class BulkExpungeOut(Output):
    """The result for each message: `expunged` or `not-found`."""

    results: dict[str, str] = Field(examples=[{"order-17": "expunged"}])


class _Payload(msgspec.Struct):
    """The raw bytes of a request's payload."""

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
        "deliverAt": None if row.deliver_at is None else format_timestamp(row.deliver_at),
        "timestamp": format_timestamp(ids.created_at(row.id)),
    }


def _content(row: MessageRow) -> Any:
    if row.is_gone or row.body is None:
        return _EXPIRED
    # Payloads are shown as objects; a raw payload may be any text.
    if not row.body.lstrip().startswith(b"{"):
        return {"rawPayload": row.body.decode("utf-8", "replace")}
    if parse(row.body) is UNREADABLE:
        return {"rawPayload": row.body.decode("utf-8", "replace")}
    return msgspec.Raw(row.body)


@routes.get(
    "/app/{app_id}/msg",
    operation_id="v1.message.list",
    summary="List messages",
    response_model=ListOf[MessageOut],
)
@requires(Permission.MESSAGE_VIEW)
async def list_messages(call: ApplicationCall, query: Messages) -> Response:
    """List an application's messages, newest first."""
    result = await messages.list_page(
        call.work,
        call.application,
        query.page.window,
        query.filters,
        limit=query.page.limit,
        has_content=query.with_content,
    )
    return query.page.answer(
        result, lambda row: row.shown_id, lambda row: show_message(row, has_content=query.with_content)
    )


@routes.post(
    "/app/{app_id}/msg",
    status_code=202,
    operation_id="v1.message.create",
    summary="Create a message",
    response_model=MessageOut,
)
@remembers_itself
@works_without_database
@requires(Permission.MESSAGE_PUBLISH)
async def create_message(
    call: AnyCall, request: Request, app_id: ApplicationRef, body: MessageIn, with_content: WithContent = True
) -> Response:
    """Publish a message to the application's endpoints that subscribe to it."""
    if parse_reference(ids.APPLICATION, app_id) is None:
        raise invalid("write an application's id or uid", "path", "app_id_or_uid")
    if call.buffered is None:
        application = await _application(call, app_id, body.application)
        message = await _read_message(call, application.shown_id, body, request)
        row, is_repeated = await messages.create(call.work, application, message)
        call.published = row.id
    else:
        message = await _read_message(call, app_id, body, request)
        identifier, is_repeated = await call.buffered.publish(message)
        row = messages.to_row(message, identifier)
    published = show_message(row, has_content=with_content)
    return answer_json(202, published, {"idempotent-replayed": "true"} if is_repeated else None)


async def _application(call: Call, reference: str, new: ApplicationIn | None) -> Application:
    if new is None:
        return await applications.get(call.work, reference)
    return await applications.ensure(call.work, reference, new.value())


async def _read_message(call: Call, application: str, body: MessageIn, request: Request) -> Message:
    return replace(
        body.value(application, _payload_of(body, await body_of(request))),
        organization=call.principal.organization,
        idempotency=call.idempotency,
        event_id=call.new_id,
    )


def _payload_of(body: MessageIn, raw: bytes) -> bytes:
    raw_payload = None if body.transformations_params is None else body.transformations_params.raw_payload
    if raw_payload is not None:
        try:
            return raw_payload.encode()
        except UnicodeEncodeError:
            raise InvalidValue("it is not text", "transformationsParams", "rawPayload") from None
    parts = msgspec.json.decode(raw, type=_Payload)
    payload = bytes(parts.payload) or bytes(parts.data)
    read_object(payload)
    return payload


@routes.get(
    "/app/{app_id}/msg/{msg_id}",
    operation_id="v1.message.get",
    summary="Get a message",
    response_model=MessageOut,
)
@requires(Permission.MESSAGE_VIEW)
async def get_message(call: ApplicationCall, msg_id: MessageRef, with_content: WithContent = True) -> Response:
    """Return a message by its id or eventId."""
    row = await messages.get(call.work, call.application, msg_id)
    return answer_json(200, show_message(row, has_content=with_content))


@routes.delete(
    "/app/{app_id}/msg/{msg_id}/content",
    status_code=204,
    operation_id="v1.message.expunge-content",
    summary="Delete a message's payload",
)
@requires(Permission.MESSAGE_EXPUNGE)
async def expunge_content(call: ApplicationCall, msg_id: MessageRef) -> None:
    """Permanently delete a message's payload; the message cannot be resent."""
    input = Expunge(application=call.application.shown_id, ids=[msg_id])
    try:
        expunged = await expunging.expunge(call.work, input)
    except InvalidValue as error:
        raise NotFound(str(error)) from None
    if expunged.missing:
        raise NotFound(f"there is no message {msg_id}")


@routes.post(
    "/app/{app_id}/msg/precheck/active",
    operation_id="v1.message.precheck",
    summary="Check whether any endpoint would receive a message",
)
@requires(Permission.MESSAGE_PUBLISH)
async def precheck(call: ApplicationCall, body: PrecheckIn) -> PrecheckOut:
    """Return whether an enabled endpoint subscribes to this event type and these channels."""
    is_active = await messages.has_subscribers(call.work, call.application, body.event_type, body.channels or ())
    return PrecheckOut(active=is_active)


def _is_storable(name: str) -> bool:
    """Return whether a message may have this eventId: PostgreSQL stores no control characters."""
    try:
        check_text(Rule(), name)
    except ValueError:
        return False
    return True


@routes.post(
    "/app/{app_id}/msg/bulk-expunge",
    operation_id="v1.message.bulk-expunge",
    summary="Delete the payloads of several messages",
)
@requires(Permission.MESSAGE_EXPUNGE)
async def bulk_expunge(call: ApplicationCall, body: BulkExpungeIn) -> BulkExpungeOut:
    """Permanently delete the payloads of several messages."""
    names = [name for name in body.ids if _is_storable(name)]
    missing = set(body.ids) - set(names)
    if names:
        input = Expunge(application=call.application.shown_id, ids=names)
        missing |= set((await expunging.expunge(call.work, input)).missing)
    return BulkExpungeOut(results={name: "not-found" if name in missing else "expunged" for name in body.ids})
