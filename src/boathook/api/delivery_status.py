"""Routes of delivery status: the messages of one endpoint, and the endpoints of one message."""

from typing import Annotated, Any

from fastapi import Query, Response
from pydantic import Field

from boathook.api.endpoints import EndpointRef
from boathook.api.messages import MessageOut, MessageRef, show_message
from boathook.api.pages import Iterator, Limit, ListOf
from boathook.api.route import ApplicationCall, router
from boathook.api.time_ranges import Messages, StatusParam, answer_page, read_cursor
from boathook.domain import ids
from boathook.service import messages
from boathook.service.authorization import Permission, requires
from boathook.service.messages import EndpointMessage, MessageDestination, MessageStatus
from boathook.service.schemas.endpoints import EndpointBasicsOut
from boathook.service.schemas.fields import DEPRECATED, Timestamp, format_timestamp

routes = router("Message Attempt")

Expanded = Annotated[bool, Query(description="Whether canceled messages are distinguished from successful ones.")]


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


def show_status(status: MessageStatus, *, is_expanded: bool = True) -> dict[str, Any]:
    """Return a status as the API shows it."""
    # Clients of the first generation do not support canceled messages.
    shown = MessageStatus.SUCCESS if status is MessageStatus.CANCELED and not is_expanded else status
    return {"status": int(shown), "statusText": shown.name.lower()}


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
    found = await messages.list_endpoint_messages(
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
        found,
        lambda row: row.message.shown_id,
        lambda row: _show_attempted_message(row, has_content=query.with_content, is_expanded=expanded_statuses),
    )


def _show_attempted_message(row: EndpointMessage, *, has_content: bool, is_expanded: bool) -> dict[str, Any]:
    return {
        **show_message(row.message, has_content=has_content),
        **show_status(row.status, is_expanded=is_expanded),
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
    found = await messages.list_destinations(call.work, call.application, msg_id, cursor, limit=limit)
    return answer_page(
        found,
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
        **show_status(row.status, is_expanded=is_expanded),
        "nextAttempt": None if row.next_at is None else format_timestamp(row.next_at),
    }
