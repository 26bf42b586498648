"""Routes of attempts: what was sent to endpoints, how it went, and sending once more."""

import base64
from typing import Annotated, Any

from fastapi import Path, Query, Response
from pydantic import Field

from boathook.admin import endpoints, messages
from boathook.admin.api.calls import ApplicationCall, AttemptCall, OwnApplicationCall, router
from boathook.admin.api.endpoints import EndpointRef
from boathook.admin.api.errors import answer_json
from boathook.admin.api.fields import OLD, Moment, Output, show_moment
from boathook.admin.api.messages import MessageOut, MessageRef, show_message
from boathook.admin.api.pages import Iterator, Limit, ListOf
from boathook.admin.api.spans import (
    AttemptPage,
    Expanded,
    Filters,
    MessagePage,
    StatusClassParam,
    StatusParam,
    TimePage,
    WithContent,
    WithMessage,
    answer_page,
    read_cursor,
)
from boathook.domain import ids
from boathook.journal import attempts as journal
from boathook.journal import messages as message_journal
from boathook.journal.attempts import AttemptRow, Ended
from boathook.journal.messages import Destination, OwedMessage, Page, Status, Wanted

routes = router("Message Attempt")

AttemptRef = Annotated[str, Path(description="The attempt's id.", examples=["atmpt_01h455vb4pex5vsknk084sn02q4"])]
EndpointParam = Annotated[str | None, Query(description="Only attempts at this endpoint: its id or uid.")]


class MessageAttemptOut(Output):
    """One request that was sent to an endpoint."""

    id: str = Field(examples=["atmpt_01h455vb4pex5vsknk084sn02q4"])
    url: str = Field(examples=["https://example.com/hook"])
    response: str = Field(description="What the endpoint answered, or what went wrong.")
    response_status_code: int = Field(description="0 where there was no answer.")
    response_duration_ms: int
    status: int = Field(description="0 success, 2 failed.")
    status_text: str = Field(examples=["success"])
    trigger_type: int = Field(description="0 as scheduled, 1 by hand.")
    msg_id: str
    endpoint_id: str
    timestamp: Moment
    msg: MessageOut | None = None


class EndpointMessageOut(MessageOut):
    """A message and how it stands at an endpoint."""

    status: int = Field(description="0 success, 1 pending, 2 failed, 3 being sent, 4 canceled.")
    status_text: str = Field(examples=["sending"])
    next_attempt: Moment | None = None


class MessageEndpointOut(Output):
    """An endpoint and how a message stands there."""

    id: str
    uid: str | None = None
    url: str
    description: str
    disabled: bool
    version: int = Field(json_schema_extra=OLD)
    throttle_rate: int | None = None
    rate_limit: int | None = Field(default=None, json_schema_extra=OLD)
    event_types: list[str] | None = None
    filter_types: list[str] | None = Field(default=None, json_schema_extra=OLD)
    channels: list[str] | None = None
    created_at: Moment
    updated_at: Moment
    status: int
    status_text: str
    next_attempt: Moment | None = None


class EmptyOut(Output):
    """Nothing."""


def _show_status(status: Status, *, is_expanded: bool) -> dict[str, Any]:
    # Clients of the first generation know no canceled messages.
    shown = Status.SUCCESS if status is Status.CANCELED and not is_expanded else status
    return {"status": int(shown), "statusText": shown.name.lower()}


def _show_attempt(row: AttemptRow, *, has_content: bool, has_message: bool) -> dict[str, Any]:
    shown = {
        "id": ids.show(ids.ATTEMPT, row.id),
        "url": row.url,
        "response": _text_of(row) if has_content else "{}",
        "responseStatusCode": row.status,
        "responseDurationMs": row.duration_ms,
        **_show_status(Status.SUCCESS if row.is_success else Status.FAIL, is_expanded=True),
        "triggerType": int(row.is_manual),
        "msgId": row.message.shown_id,
        "endpointId": ids.show(ids.ENDPOINT, row.endpoint_id),
        "timestamp": show_moment(ids.made_at(row.id)),
    }
    return shown | {"msg": show_message(row.message)} if has_message else shown


def _text_of(row: AttemptRow) -> str:
    if row.response is None or (not row.response and row.status == 0):
        return row.error or ""
    try:
        return row.response.decode()
    except UnicodeDecodeError:
        return base64.b64encode(row.response).decode()


def _answer(page: Page[AttemptRow], *, has_content: bool, has_message: bool) -> Response:
    return answer_page(
        page,
        lambda row: ids.show(ids.ATTEMPT, row.id),
        lambda row: _show_attempt(row, has_content=has_content, has_message=has_message),
    )


def _ended(status: int | None, status_code_class: int | None) -> Ended | None:
    """Return the filter; None where no attempt fits, as attempts only ever succeed or fail."""
    if status in {Status.PENDING, Status.SENDING, Status.CANCELED}:
        return None
    return Ended(is_success=None if status is None else status == Status.SUCCESS, status_class=status_code_class)


@routes.get(
    "/app/{app_id}/attempt/endpoint/{endpoint_id}",
    operation_id="v1.message-attempt.list-by-endpoint",
    summary="List an endpoint's attempts",
    response_model=ListOf[MessageAttemptOut],
)
async def list_by_endpoint(
    call: ApplicationCall,
    endpoint_id: EndpointRef,
    page: AttemptPage,
    filters: Filters,
    status: StatusParam = None,
    status_code_class: StatusClassParam = None,
    with_content: WithContent = True,
    with_msg: WithMessage = False,
    _expanded_statuses: Annotated[bool, Query(alias="expanded_statuses")] = False,
) -> Response:
    """List the attempts at one endpoint, newest first."""
    endpoint = await endpoints.get(call.work, call.application, endpoint_id)
    ended = _ended(status, status_code_class)
    found: Page[AttemptRow] = Page([], True)
    if ended is not None:
        found = await journal.list_of_endpoint(
            call.connection,
            call.application.shown_id,
            endpoint.id,
            page.window,
            filters,
            ended,
            limit=page.limit,
            has_response=with_content,
            has_payload=with_msg,
        )
    return _answer(found, has_content=with_content, has_message=with_msg)


@routes.get(
    "/app/{app_id}/attempt/msg/{msg_id}",
    operation_id="v1.message-attempt.list-by-msg",
    summary="List a message's attempts",
    response_model=ListOf[MessageAttemptOut],
)
async def list_by_message(
    call: ApplicationCall,
    msg_id: MessageRef,
    page: AttemptPage,
    filters: Filters,
    endpoint_id: EndpointParam = None,
    status: StatusParam = None,
    status_code_class: StatusClassParam = None,
    with_content: WithContent = True,
    with_msg: WithMessage = False,
    _expanded_statuses: Annotated[bool, Query(alias="expanded_statuses")] = False,
) -> Response:
    """List the attempts at one message, newest first."""
    ended = _ended(status, status_code_class)
    found = await _of_message(
        call, msg_id, endpoint_id, page, filters, ended, has_content=with_content, has_message=with_msg
    )
    return _answer(found, has_content=with_content, has_message=with_msg)


async def _of_message(
    call: ApplicationCall,
    message: str,
    endpoint: str | None,
    page: TimePage,
    filters: Wanted,
    ended: Ended | None,
    *,
    has_content: bool,
    has_message: bool,
) -> Page[AttemptRow]:
    found = await messages.get(call.work, call.application, message)
    chosen = None if endpoint is None else await endpoints.get(call.work, call.application, endpoint)
    if ended is None:
        return Page([], True)
    return await journal.list_of_message(
        call.connection,
        call.application.shown_id,
        found.id,
        page.window,
        filters,
        ended,
        endpoint_id=None if chosen is None else chosen.id,
        limit=page.limit,
        has_response=has_content,
        has_payload=has_message,
    )


@routes.get(
    "/app/{app_id}/msg/{msg_id}/attempt",
    operation_id="v1.message-attempt.list",
    summary="List a message's attempts",
    response_model=ListOf[MessageAttemptOut],
    include_in_schema=False,
)
async def list_attempts(
    call: ApplicationCall,
    msg_id: MessageRef,
    page: AttemptPage,
    filters: Filters,
    endpoint_id: EndpointParam = None,
    status: StatusParam = None,
    status_code_class: StatusClassParam = None,
) -> Response:
    """List the attempts at one message by the route of old clients."""
    ended = _ended(status, status_code_class)
    found = await _of_message(call, msg_id, endpoint_id, page, filters, ended, has_content=True, has_message=False)
    return _answer(found, has_content=True, has_message=False)


@routes.get(
    "/app/{app_id}/msg/{msg_id}/endpoint/{endpoint_id}/attempt",
    operation_id="v1.message-attempt.list-by-endpoint-deprecated",
    summary="List a message's attempts at an endpoint",
    response_model=ListOf[MessageAttemptOut],
    include_in_schema=False,
)
async def list_attempts_at_endpoint(
    call: ApplicationCall,
    msg_id: MessageRef,
    endpoint_id: EndpointRef,
    page: AttemptPage,
    filters: Filters,
    status: StatusParam = None,
    status_code_class: StatusClassParam = None,
) -> Response:
    """List the attempts at one message and endpoint by the route of old clients."""
    ended = _ended(status, status_code_class)
    found = await _of_message(call, msg_id, endpoint_id, page, filters, ended, has_content=True, has_message=False)
    return _answer(found, has_content=True, has_message=False)


@routes.get(
    "/app/{app_id}/msg/{msg_id}/attempt/{attempt_id}",
    operation_id="v1.message-attempt.get",
    summary="Get an attempt",
    response_model=MessageAttemptOut,
)
async def get_attempt(call: ApplicationCall, msg_id: MessageRef, attempt_id: AttemptRef) -> Response:
    """Return one attempt at a message."""
    row = await messages.get_attempt(call.work, call.application, msg_id, attempt_id)
    return answer_json(200, _show_attempt(row, has_content=True, has_message=False))


@routes.delete(
    "/app/{app_id}/msg/{msg_id}/attempt/{attempt_id}/content",
    status_code=204,
    operation_id="v1.message-attempt.expunge-content",
    summary="Forget an attempt's response",
)
async def expunge_response(call: OwnApplicationCall, msg_id: MessageRef, attempt_id: AttemptRef) -> None:
    """Forget what the endpoint answered."""
    await messages.expunge_attempt(call.work, call.application, msg_id, attempt_id)


@routes.get(
    "/app/{app_id}/endpoint/{endpoint_id}/msg",
    operation_id="v1.message-attempt.list-attempted-messages",
    summary="List an endpoint's messages",
    response_model=ListOf[EndpointMessageOut],
)
async def list_attempted_messages(
    call: ApplicationCall,
    endpoint_id: EndpointRef,
    page: MessagePage,
    filters: Filters,
    status: StatusParam = None,
    with_content: WithContent = True,
    expanded_statuses: Expanded = False,
) -> Response:
    """List the messages an endpoint was ever owed, newest first, with how each stands there."""
    endpoint = await endpoints.get(call.work, call.application, endpoint_id)
    found = await message_journal.list_owed(
        call.connection,
        call.application.shown_id,
        endpoint.id,
        page.window,
        filters,
        status=None if status is None else Status(status),
        limit=page.limit,
        has_content=with_content,
    )

    def show(row: OwedMessage) -> dict[str, Any]:
        return {
            **show_message(row.message, has_content=with_content),
            **_show_status(row.status, is_expanded=expanded_statuses),
            "nextAttempt": None if row.next_at is None else show_moment(row.next_at),
        }

    return answer_page(found, lambda row: row.message.shown_id, show)


@routes.get(
    "/app/{app_id}/msg/{msg_id}/endpoint",
    operation_id="v1.message-attempt.list-attempted-destinations",
    summary="List a message's endpoints",
    response_model=ListOf[MessageEndpointOut],
)
async def list_destinations(
    call: ApplicationCall,
    msg_id: MessageRef,
    limit: Limit = 50,
    iterator: Iterator = None,
    expanded_statuses: Expanded = False,
) -> Response:
    """List the endpoints a message is owed to, deleted ones included, the oldest endpoint first."""
    cursor = read_cursor(ids.ENDPOINT, iterator)
    message = await messages.get(call.work, call.application, msg_id)
    found = await message_journal.list_destinations(
        call.connection, call.application.id, message.id, cursor, limit=limit
    )
    return answer_page(
        found,
        lambda row: ids.show(ids.ENDPOINT, row.id),
        lambda row: _show_destination(row, is_expanded=expanded_statuses),
    )


def _show_destination(row: Destination, *, is_expanded: bool) -> dict[str, Any]:
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
        "createdAt": show_moment(row.created_at),
        "updatedAt": show_moment(row.updated_at),
        **_show_status(row.status, is_expanded=is_expanded),
        "nextAttempt": None if row.next_at is None else show_moment(row.next_at),
    }


@routes.post(
    "/app/{app_id}/msg/{msg_id}/endpoint/{endpoint_id}/resend",
    status_code=202,
    operation_id="v1.message-attempt.resend",
    summary="Send a message once more",
)
async def resend(call: AttemptCall, msg_id: MessageRef, endpoint_id: EndpointRef) -> EmptyOut:
    """Send a message to an endpoint once more, whatever the endpoint listens to."""
    await messages.resend(call.work, call.application, msg_id, endpoint_id)
    return EmptyOut()
