"""Routes of attempts: requests to endpoints with their responses, statistics, resending, and delivery status."""

import base64
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Path, Query, Response
from pydantic import Field

from boathook.api.endpoints import EndpointRef, named
from boathook.api.errors import answer_json
from boathook.api.messages import MessageOut, MessageRef, show_message
from boathook.api.pages import Iterator, Limit, ListOf
from boathook.api.route import ApplicationCall, Call, router
from boathook.api.time_ranges import (
    AttemptPage,
    Filters,
    Messages,
    StatusClassParam,
    StatusParam,
    WithContent,
    answer_page,
    read_cursor,
)
from boathook.domain import ids
from boathook.service.access.authorization import Permission, requires
from boathook.service.catalogue import endpoints as operations
from boathook.service.catalogue import messages as expunging
from boathook.service.catalogue.messages import AttemptNamed
from boathook.service.schemas.endpoints import EndpointBasicsOut
from boathook.service.schemas.fields import DEPRECATED, Output, Timestamp, format_timestamp
from boathook.service.sending import attempts, messages
from boathook.service.sending.attempts import AttemptCounts, AttemptRow
from boathook.service.sending.messages import EndpointMessage, MessageDestination, MessageStatus

routes = router("Message Attempt")
counting = router("Endpoint")

AttemptRef = Annotated[str, Path(description="The attempt's id.", examples=["atmpt_01h455vb4pex5vsknk084sn02q4"])]
EndpointParam = Annotated[str | None, Query(description="Only attempts at this endpoint: its id or uid.")]
WithMessage = Annotated[bool, Query(description="Whether to include each attempt's message.")]
Expanded = Annotated[bool, Query(description="Whether canceled messages are distinguished from successful ones.")]
Since = Annotated[Timestamp | None, Query(description="Start of the range; by default 28 days before until.")]
Until = Annotated[Timestamp | None, Query(description="End of the range; by default now.")]


class AttemptQuery(msgspec.Struct, frozen=True):
    """The parameters of a list of attempts."""

    page: AttemptPage
    filters: Filters
    status: StatusParam = None
    status_code_class: StatusClassParam = None
    with_content: WithContent = True
    with_msg: WithMessage = False


Attempts = Annotated[AttemptQuery, Depends()]


class MessageAttemptOut(Output):
    """One request that was sent to an endpoint."""

    id: str = Field(examples=["atmpt_01h455vb4pex5vsknk084sn02q4"])
    url: str = Field(examples=["https://example.com/hook"])
    response: str = Field(description="The endpoint's response, or the error.")
    response_status_code: int = Field(description="0 if there was no response.")
    response_duration_ms: int
    status: int = Field(description="0 success, 2 failed.")
    status_text: str = Field(examples=["success"])
    trigger_type: int = Field(description="0 scheduled, 1 manual.")
    msg_id: str
    endpoint_id: str
    timestamp: Timestamp
    msg: MessageOut | None = None


class AttemptStatsOut(Output):
    """Counts of an endpoint's attempts by result."""

    success: int
    fail: int
    canceled: int


class EndpointStatsOut(AttemptStatsOut):
    """Counts of an endpoint's attempts by result, and of its pending messages."""

    pending: int
    sending: int


class EmptyOut(Output):
    """An empty object."""


def _show_attempt(row: AttemptRow, *, has_content: bool, has_message: bool) -> dict[str, Any]:
    fields = {
        "id": ids.show(ids.ATTEMPT, row.id),
        "url": row.url,
        "response": _text_of(row) if has_content else "{}",
        "responseStatusCode": row.status,
        "responseDurationMs": row.duration_ms,
        **_show_status(MessageStatus.SUCCESS if row.is_success else MessageStatus.FAIL),
        "triggerType": int(row.is_manual),
        "msgId": row.message.shown_id,
        "endpointId": ids.show(ids.ENDPOINT, row.endpoint_id),
        "timestamp": format_timestamp(row.started_at),
    }
    return fields | {"msg": show_message(row.message)} if has_message else fields


def _show_status(status: MessageStatus, *, is_expanded: bool = True) -> dict[str, Any]:
    """Return a status as the API shows it."""
    # Clients of the first generation do not support canceled messages.
    wire_status = MessageStatus.SUCCESS if status is MessageStatus.CANCELED and not is_expanded else status
    return {"status": int(wire_status), "statusText": wire_status.name.lower()}


def _text_of(row: AttemptRow) -> str:
    if row.response is None or (not row.response and row.status == 0):
        return row.error or ""
    try:
        return row.response.decode()
    except UnicodeDecodeError:
        return base64.b64encode(row.response).decode()


async def _list(
    call: Call, query: AttemptQuery, *, message: str | None = None, endpoint: str | None = None
) -> Response:
    result = await attempts.list_page(
        call.work,
        call.application,
        query.page.window,
        query.filters,
        message=message,
        endpoint=endpoint,
        status=None if query.status is None else MessageStatus(query.status),
        status_class=query.status_code_class,
        limit=query.page.limit,
        has_response=query.with_content,
        has_payload=query.with_msg,
    )
    return query.page.answer(
        result,
        lambda row: ids.show(ids.ATTEMPT, row.id),
        lambda row: _show_attempt(row, has_content=query.with_content, has_message=query.with_msg),
    )


@routes.get(
    "/app/{app_id}/attempt/endpoint/{endpoint_id}",
    operation_id="v1.message-attempt.list-by-endpoint",
    summary="List an endpoint's attempts",
    response_model=ListOf[MessageAttemptOut],
)
@requires(Permission.MESSAGE_VIEW)
async def list_by_endpoint(call: ApplicationCall, endpoint_id: EndpointRef, query: Attempts) -> Response:
    """List the attempts at one endpoint, newest first."""
    return await _list(call, query, endpoint=endpoint_id)


@routes.get("/app/{app_id}/msg/{msg_id}/attempt", operation_id="v1.message-attempt.list", include_in_schema=False)
@routes.get(
    "/app/{app_id}/attempt/msg/{msg_id}",
    operation_id="v1.message-attempt.list-by-msg",
    summary="List a message's attempts",
    response_model=ListOf[MessageAttemptOut],
)
@requires(Permission.MESSAGE_VIEW)
async def list_by_message(
    call: ApplicationCall, msg_id: MessageRef, query: Attempts, endpoint_id: EndpointParam = None
) -> Response:
    """List the attempts at one message, newest first."""
    return await _list(call, query, message=msg_id, endpoint=endpoint_id)


@routes.get(
    "/app/{app_id}/msg/{msg_id}/endpoint/{endpoint_id}/attempt",
    operation_id="v1.message-attempt.list-by-endpoint-deprecated",
    include_in_schema=False,
)
@requires(Permission.MESSAGE_VIEW)
async def list_at_endpoint(
    call: ApplicationCall, msg_id: MessageRef, endpoint_id: EndpointRef, query: Attempts
) -> Response:
    """List the attempts at one message and endpoint, for old clients."""
    return await _list(call, query, message=msg_id, endpoint=endpoint_id)


@routes.get(
    "/app/{app_id}/msg/{msg_id}/attempt/{attempt_id}",
    operation_id="v1.message-attempt.get",
    summary="Get an attempt",
    response_model=MessageAttemptOut,
)
@requires(Permission.MESSAGE_VIEW)
async def get_attempt(call: ApplicationCall, msg_id: MessageRef, attempt_id: AttemptRef) -> Response:
    """Return one attempt at a message."""
    row = await attempts.get(call.work, call.application, msg_id, attempt_id)
    return answer_json(200, _show_attempt(row, has_content=True, has_message=False))


@routes.delete(
    "/app/{app_id}/msg/{msg_id}/attempt/{attempt_id}/content",
    status_code=204,
    operation_id="v1.message-attempt.expunge-content",
    summary="Delete an attempt's response",
)
@requires(Permission.MESSAGE_EXPUNGE)
async def expunge_response(call: ApplicationCall, msg_id: MessageRef, attempt_id: AttemptRef) -> None:
    """Delete the stored response of an attempt."""
    reference = AttemptNamed(application=call.application.shown_id, message=msg_id, attempt=attempt_id)
    await expunging.expunge_response(call.work, reference)


@routes.post(
    "/app/{app_id}/msg/{msg_id}/endpoint/{endpoint_id}/resend",
    status_code=202,
    operation_id="v1.message-attempt.resend",
    summary="Resend a message",
)
@requires(Permission.MESSAGE_RESEND)
async def resend(call: ApplicationCall, msg_id: MessageRef, endpoint_id: EndpointRef) -> EmptyOut:
    """Resend a message to an endpoint, regardless of the endpoint's event types and channels."""
    await operations.resend(call.work, operations.Resend(message=msg_id, **named(call, endpoint_id)))
    return EmptyOut()


@counting.get(
    "/app/{app_id}/endpoint/{endpoint_id}/stats",
    operation_id="v1.endpoint.get-stats",
    summary="Count an endpoint's attempts",
)
@requires(Permission.MESSAGE_VIEW)
async def get_stats(
    call: ApplicationCall, endpoint_id: EndpointRef, since: Since = None, until: Until = None
) -> EndpointStatsOut:
    """Count an endpoint's attempts by result over at most 28 days, and the pending messages of that time."""
    counts = await attempts.count(call.work, call.application, endpoint_id, since, until)
    return EndpointStatsOut(pending=counts.pending, sending=counts.sending, **_show_ended(counts))


@counting.get(
    "/app/{app_id}/endpoint/{endpoint_id}/attempt-stats",
    operation_id="v1.endpoint.get-attempt-stats",
    summary="Count an endpoint's attempts alone",
)
@requires(Permission.MESSAGE_VIEW)
async def get_attempt_stats(
    call: ApplicationCall, endpoint_id: EndpointRef, since: Since = None, until: Until = None
) -> AttemptStatsOut:
    """Count an endpoint's attempts by result over at most 28 days."""
    counts = await attempts.count(call.work, call.application, endpoint_id, since, until)
    return AttemptStatsOut(**_show_ended(counts))


def _show_ended(counts: AttemptCounts) -> dict[str, int]:
    return {"success": counts.success, "fail": counts.fail, "canceled": counts.canceled}


class EndpointMessageOut(MessageOut):
    """A message and its delivery status at an endpoint."""

    status: int = Field(description="0 success, 1 pending, 2 failed, 3 being sent, 4 canceled.")
    status_text: str = Field(examples=["sending"])
    next_attempt: Timestamp | None = None


class MessageEndpointOut(EndpointBasicsOut):
    """An endpoint and the delivery status of a message there."""

    version: int = Field(json_schema_extra=DEPRECATED)
    channels: list[str] | None
    status: int = Field(description="0 success, 1 pending, 2 failed, 3 being sent, 4 canceled.")
    status_text: str = Field(examples=["sending"])
    next_attempt: Timestamp | None


@routes.get(
    "/app/{app_id}/endpoint/{endpoint_id}/msg",
    operation_id="v1.message-attempt.list-attempted-messages",
    summary="List an endpoint's messages",
    response_model=ListOf[EndpointMessageOut],
)
@requires(Permission.MESSAGE_VIEW)
async def list_attempted_messages(
    call: ApplicationCall,
    endpoint_id: EndpointRef,
    query: Messages,
    status: StatusParam = None,
    expanded_statuses: Expanded = False,
) -> Response:
    """List an endpoint's messages, newest first, with the delivery status of each."""
    result = await messages.list_endpoint_messages(
        call.work,
        call.application,
        endpoint_id,
        query.page.window,
        query.filters,
        status=None if status is None else MessageStatus(status),
        limit=query.page.limit,
        has_content=query.with_content,
    )
    return query.page.answer(
        result,
        lambda row: row.message.shown_id,
        lambda row: _show_attempted_message(row, has_content=query.with_content, is_expanded=expanded_statuses),
    )


def _show_attempted_message(row: EndpointMessage, *, has_content: bool, is_expanded: bool) -> dict[str, Any]:
    return {
        **show_message(row.message, has_content=has_content),
        **_show_status(row.status, is_expanded=is_expanded),
        "nextAttempt": None if row.next_at is None else format_timestamp(row.next_at),
    }


@routes.get(
    "/app/{app_id}/msg/{msg_id}/endpoint",
    operation_id="v1.message-attempt.list-attempted-destinations",
    summary="List a message's endpoints",
    response_model=ListOf[MessageEndpointOut],
)
@requires(Permission.MESSAGE_VIEW)
async def list_destinations(
    call: ApplicationCall,
    msg_id: MessageRef,
    limit: Limit = 50,
    iterator: Iterator = None,
    expanded_statuses: Expanded = False,
) -> Response:
    """List the endpoints that a message is sent to, oldest first, including deleted ones."""
    cursor = read_cursor(ids.ENDPOINT, iterator)
    result = await messages.list_destinations(call.work, call.application, msg_id, cursor, limit=limit)
    return answer_page(
        result,
        lambda row: ids.show(ids.ENDPOINT, row.id),
        lambda row: _show_destination(row, is_expanded=expanded_statuses),
    )


def _show_destination(row: MessageDestination, *, is_expanded: bool) -> dict[str, Any]:
    return {
        "id": ids.show(ids.ENDPOINT, row.id),
        "uid": row.uid,
        "url": row.url,
        "description": row.description,
        "disabled": row.is_disabled,
        "version": row.api_version,
        "throttleRate": row.throttle_rate,
        "rateLimit": row.throttle_rate,
        "eventTypes": row.event_types,
        "filterTypes": row.event_types,
        "channels": row.channels,
        "createdAt": format_timestamp(row.created_at),
        "updatedAt": format_timestamp(row.updated_at),
        **_show_status(row.status, is_expanded=is_expanded),
        "nextAttempt": None if row.next_at is None else format_timestamp(row.next_at),
    }
