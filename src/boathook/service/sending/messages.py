"""Publishes, lists and resends messages, and sends test messages; scans a long history in steps."""

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar, assert_never
from uuid import UUID

import msgspec
from msgspec.structs import replace

from boathook.db import event_types, messages, resends
from boathook.db.applications import Application
from boathook.db.audit import record
from boathook.db.delivery_commands import AuditContext
from boathook.db.endpoints import Endpoint, probe
from boathook.db.messages import ALL_MESSAGES, ExampleMessage
from boathook.db.messages import EndpointMessage as EndpointMessage  # noqa: PLC0414 - re-exported
from boathook.db.messages import MessageDestination as MessageDestination  # noqa: PLC0414 - re-exported
from boathook.db.messages import MessageFilter as MessageFilter  # noqa: PLC0414 - re-exported
from boathook.db.messages import MessageRow as MessageRow  # noqa: PLC0414 - re-exported
from boathook.db.messages import MessageStatus as MessageStatus  # noqa: PLC0414 - re-exported
from boathook.db.messages import Page as Page  # noqa: PLC0414 - re-exported
from boathook.db.queries import endpoint_stats
from boathook.db.queries.endpoint_stats import MessageSummary
from boathook.db.queries.endpoint_stats import ScanPage as ScanPage  # noqa: PLC0414 - re-exported
from boathook.db.resends import ResendKind
from boathook.domain.errors import AlreadyExists, InvalidMessage, InvalidState, NotFound
from boathook.domain.filters import Router
from boathook.domain.json_document import describe_fault
from boathook.domain.messages import Message
from boathook.domain.model import Accepted, Duplicate, IdempotencyConflict, IdempotentReplay
from boathook.domain.windows import Cursor, Window
from boathook.service.access.idempotency import key_reused
from boathook.service.sending import endpoints
from boathook.service.sending.event_types import check_payload
from boathook.service.unit_of_work import UnitOfWork, new_id, require_here

Row = TypeVar("Row")

BUDGET_S: Final = 0.15
"""Time limit of a search, after which it returns its position."""


async def scan_until_full(
    step: Callable[[UUID | None, int], Awaitable[ScanPage[Row]]], place: UUID | None, limit: int
) -> ScanPage[Row]:
    """Call *step* from *place* on until *limit* rows are found, the end is reached, or time is up."""
    ends, rows = time.monotonic() + BUDGET_S, list[Row]()
    while True:
        page = await step(place, limit - len(rows))
        rows += page.rows
        place = page.place
        if place is None or len(rows) >= limit or time.monotonic() > ends:
            return ScanPage(rows, place)


PING: Final = "svix.ping"
"""The type of a test message that needs no example of its own."""
_PONG: Final = b'{"success":true}'
JSON_TYPE: Final = "application/json"


async def create(work: UnitOfWork, application: Application, message: Message) -> tuple[MessageRow, bool]:
    """Publish a message; return it, and whether an earlier request with its idempotency key had published it.

    Args:
        work: the unit of work, in whose organization the message is published.
        application: the application to publish to.
        message: the message, with a payload in bytes; its own organization and application are not used.

    Raises:
        AlreadyExists: another message has its id, or another request used its idempotency key.
        InvalidMessage: a field breaks a rule, or the payload its event type's schema, and schemas are enforced.
        ServedElsewhere: the application has moved to another installation.
    """
    await require_here(work, application)
    if work.app_context.settings.outbound.validate_payloads:
        payload = _parsed(message.payload)
        await check_payload(work.connection, organization=work.organization, type=message.type, payload=payload)
    message = replace(message, organization=work.organization, application=application.shown_id)
    outcome = await work.app_context.outbox.publish(work.connection, message, passes_on=False)
    match outcome:
        case Accepted():
            return to_row(message, outcome.event_id), False
        case IdempotentReplay():
            # The request is equivalent, so its response is equal too.
            return to_row(message, outcome.event_id), True
        case Duplicate():
            raise event_id_taken(message)
        case IdempotencyConflict():
            raise key_reused()
        case _:
            assert_never(outcome)


def event_id_taken(message: Message) -> AlreadyExists:
    """Return the error for a message whose eventId another message has."""
    return AlreadyExists(f"a message of this application has the eventId {message.id} already")


def _parsed(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise InvalidMessage(f"{describe_fault(body)}; the event type's schema requires JSON", "payload") from None


def to_row(message: Message, identifier: UUID) -> MessageRow:
    """Return a message that was just published."""
    return MessageRow(
        id=identifier,
        type=message.type,
        uid=message.id,
        channels=tuple(dict.fromkeys(message.channels)) or None,
        tags=tuple(dict.fromkeys(message.tags)) or None,
        deliver_at=message.deliver_at,
        body=message.payload,
        is_gone=False,
    )


async def get(work: UnitOfWork, application: Application, reference: str) -> MessageRow:
    """Return a message by its id or its eventId. Raises NotFound."""
    # PostgreSQL stores no NUL in text, so no message can have this eventId.
    is_text = "\x00" not in reference
    message_row = await messages.find(work.connection, application.shown_id, reference) if is_text else None
    if message_row is None:
        raise NotFound(f"there is no message {reference}")
    return message_row


async def list_page(
    work: UnitOfWork,
    application: Application,
    window: Window,
    message_filter: MessageFilter = ALL_MESSAGES,
    *,
    limit: int,
    has_content: bool = True,
) -> Page[MessageRow]:
    """Return a page of an application's messages, newest first."""
    return await messages.list_page(
        work.connection, application.shown_id, window, message_filter, limit=limit, has_content=has_content
    )


async def search(
    work: UnitOfWork,
    application: Application,
    *,
    type: str | None = None,
    channel: str | None = None,
    before: UUID | None = None,
    limit: int,
) -> ScanPage[MessageSummary]:
    """Return the matching messages of an application, newest first, scanning for a bounded time.

    Args:
        work: the unit of work.
        application: the application.
        type: a pattern; ``*`` matches any characters.
        channel: only messages with this channel.
        before: where the previous page ended.
        limit: the maximum number of messages.
    """
    return await scan_until_full(
        lambda place, limit_left: endpoint_stats.scan_messages(
            work.connection, application.shown_id, place, type=type, channel=channel, limit=limit_left
        ),
        before,
        limit,
    )


async def list_endpoint_messages(
    work: UnitOfWork,
    application: Application,
    endpoint: str,
    window: Window,
    message_filter: MessageFilter = ALL_MESSAGES,
    *,
    status: MessageStatus | None = None,
    limit: int,
    has_content: bool = True,
) -> Page[EndpointMessage]:
    """Return a page of an endpoint's messages, newest first, each with its status there. Raises NotFound."""
    target = await endpoints.get(work, application, endpoint)
    return await messages.list_endpoint_messages(
        work.connection,
        application.shown_id,
        target.id,
        window,
        message_filter,
        status=status,
        limit=limit,
        has_content=has_content,
    )


async def list_destinations(
    work: UnitOfWork, application: Application, message: str, cursor: Cursor | None = None, *, limit: int
) -> Page[MessageDestination]:
    """Return a page of a message's endpoints, including deleted ones, each with its status there. Raises NotFound."""
    message_row = await get(work, application, message)
    return await messages.list_destinations(work.connection, application.id, message_row.id, cursor, limit=limit)


async def get_enabled_endpoint(work: UnitOfWork, application: Application, reference: str) -> Endpoint:
    """Return an enabled endpoint. Raises NotFound, and InvalidState if it is disabled."""
    enabled = await endpoints.get(work, application, reference)
    if enabled.is_disabled:
        raise InvalidState("the endpoint is disabled; enable it first, then send again", "endpoint_disabled")
    return enabled


async def resend(work: UnitOfWork, application: Application, message: str, endpoint: str) -> None:
    """Schedule one more attempt to send a message to an endpoint, whatever event types it receives.

    Raises:
        NotFound: there is no such message or endpoint.
        InvalidState: the endpoint is disabled, or the message's content was deleted.
    """
    target = await get_enabled_endpoint(work, application, endpoint)
    message_row = await get(work, application, message)
    action = AuditContext(actor=work.actor, note=f"resent to {target.shown_id}")
    number = 0
    if not message_row.is_gone:
        # Bypass the order key's queue, which may be waiting for this very message.
        single_message = [(message_row.id, None)]
        number = await resends.resend(
            work.connection, target.recipient, single_message, ResendKind.ALL, is_manual=True, action=action
        )
    if number == 0:
        raise InvalidState("the message's content was deleted, so it cannot be sent again", "missing_payload")


async def send_example(
    work: UnitOfWork,
    application: Application,
    endpoint: str,
    type: str,
    *,
    payload: bytes | None = None,
    index: int = 0,
) -> MessageRow:
    """Send a test message to an endpoint, whatever event types it receives.

    Args:
        work: the unit of work.
        application: the application.
        endpoint: the endpoint's id or uid.
        type: an event type, or ``svix.ping``, which needs none.
        payload: the body; None sends the example with this *index* from the event type's schema.
        index: the index of the example.

    Raises:
        NotFound: there is no such endpoint or event type.
        InvalidState: the endpoint is disabled, or the event type has no such example.
        ServedElsewhere: the application has moved to another installation.
    """
    await require_here(work, application)
    target = await get_enabled_endpoint(work, application, endpoint)
    body = payload if payload is not None else await _example(work, type, index)
    identifier = new_id()
    example = ExampleMessage(application=application.shown_id, endpoint_id=target.id, type=type, body=body)
    await messages.insert_example(work.connection, identifier, example)
    await probe(work.connection, [target.recipient], (identifier, 0))
    await record(work.connection, work.actor, "endpoint.send_example", target.shown_id)
    return to_row(Message(application=application.shown_id, type=type, payload=body), identifier)


async def _example(work: UnitOfWork, type: str, index: int) -> bytes:
    if type == PING:
        return _PONG
    event_type = await event_types.find(work.connection, work.organization, type)
    if event_type is None:
        raise NotFound(f"unknown event type {type}")
    examples = _newest(event_type.schemas or {}).get("examples")
    if not isinstance(examples, list) or not 0 <= index < len(examples) or not isinstance(examples[index], Mapping):
        raise InvalidState(f"the schema of {type} has no such example; add one to its examples", "invalid_scheme")
    return msgspec.json.encode(examples[index])


def _newest(schemas: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the schema with the highest version number; other names come before numbers."""
    if not schemas:
        return {}
    newest = max(schemas, key=lambda version: (int(version) if version.isdecimal() else -1, version))
    return schemas[newest] if isinstance(schemas[newest], Mapping) else {}


async def has_subscribers(work: UnitOfWork, application: Application, type: str, channels: Sequence[str]) -> bool:
    """Return whether an enabled endpoint receives this type and these channels; content filters are ignored.

    Raises:
        ServedElsewhere: the application has moved to another installation.
    """
    await require_here(work, application)
    routes = await messages.list_endpoint_routes(work.connection, application.id)
    deliveries = Router(routes, 0).route(
        source=None, application=application.shown_id, type=type, headers={}, body=b"", channels=tuple(channels)
    )
    return bool(deliveries)
