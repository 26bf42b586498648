"""Tools that find events, explain what became of one, and wait for new ones."""

import asyncio
import base64
import contextlib
import struct
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Annotated, Any, Final
from uuid import UUID

from boathook.domain import ids
from boathook.domain.errors import InvalidValue, LimitReached, NotFound
from boathook.domain.filters import Pattern
from boathook.domain.model import Event, State
from boathook.service.access.authorization import Permission
from boathook.service.fields import Input, Rule
from boathook.service.operating import dead_letters, event_feed, listings, search
from boathook.service.operating.event_feed import EventFeed, FeedFilter, ListenerSlots
from boathook.service.operating.event_query import FILTERS, EventQuery
from boathook.service.operating.listings import AttemptDetail, DeliveryRow, EventRow
from boathook.service.operating.search import FoundEvent
from boathook.service.sending import applications, endpoints
from boathook.service.sending.applications import PageRequest
from boathook.service.sending.endpoints import Endpoint
from boathook_mcp import inputs
from boathook_mcp.outside import MAX_REDACTED, outside, show_body, show_headers, show_url
from boathook_mcp.session import Reach, Session
from boathook_mcp.tool import compact, tool

_MAX_DELIVERIES: Final = 20
_MAX_ATTEMPTS: Final = 5
_MAX_ENDPOINTS: Final = 50
_POLL_S: Final = 0.5
_MAX_WAIT_S: Final = 20
MAX_WAITS: Final = 8
"""Maximum of calls of one process that wait for events."""
_MAX_SEEN: Final = 64
"""Events that a cursor remembers; more than that within a minute may be returned twice."""
_CURSOR: Final = struct.Struct(">q")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
SLOTS: Final = ListenerSlots(MAX_WAITS)


class FindEvents(EventQuery, frozen=True, kw_only=True):
    """The filters of events."""

    cursor: Annotated[str, Rule(help="next_cursor of the previous result.", max_length=64)] = ""
    limit: inputs.Limit = 20


@tool(Permission.EVENT_VIEW, of_application=Permission.MESSAGE_VIEW)
async def find_events(session: Session, request: FindEvents) -> dict[str, Any]:
    """Find events, newest first: webhooks received by sources, and messages published to applications.

    `deliveries` counts them by state; dead means that all attempts failed. A call searches for a short time: while
    there is a next_cursor, there may be more.
    """
    async with session.reading() as reach:
        application = await reach.find_application(request.application or "")
        if reach.application is not None and request.state:
            raise InvalidValue("a token of one application cannot filter by state; use list_failures", "state")
        filters = {name: getattr(request, name) for name in FILTERS}
        query = EventQuery(**filters | {"application": None if application is None else application.shown_id})
        page = await search.find_page(
            reach.work.connection, query, limit=request.limit, organization=reach.tenant,
            below=_read_event_id(request.cursor, "cursor") if request.cursor else None,
        )  # fmt: skip
        events = [event for event in page.events if await reach.owns(event.event.application)]
        return compact(
            events=[_show_match(reach, event) for event in events],
            next_cursor=None if page.place is None else ids.show(ids.EVENT, page.place),
        ) | ({} if events else {"events": []})


def _show_match(reach: Reach, match: FoundEvent) -> dict[str, Any]:
    # The counts include deliveries to handlers, which an application's users do not know of.
    counts = {} if reach.application is not None else {str(state): number for state, number in match.states.items()}
    return {**_show_event(match.event), "deliveries": counts} if counts else _show_event(match.event)


def _show_event(row: EventRow, **more: Any) -> dict[str, Any]:
    return compact(
        id=row.id,
        received_at=row.received_at,
        source=row.source,
        application=row.application,
        proof=row.grade,
        size=row.size,
        expunged_at=row.expunged_at,
        untrusted=outside(type=row.type, key=row.dedup_key, content_type=row.content_type, **more),
    )


def _read_event_id(text: str, field: str) -> UUID:
    try:
        return ids.read_event(text)
    except ValueError as error:
        raise InvalidValue(str(error), field) from None


class ExplainEvent(Input, frozen=True, kw_only=True):
    """The event to explain."""

    id: Annotated[str, Rule(help="Id of an event, a message or a delivery.", max_length=64, example="evt_...")]
    body: Annotated[bool, Rule(help="Include headers and body, redacted and cut.")] = False


@tool(Permission.EVENT_VIEW, of_application=Permission.MESSAGE_VIEW)
async def explain_event(session: Session, request: ExplainEvent) -> dict[str, Any]:
    """Explain what became of an event: use it to answer why a recipient did not get it.

    Shows each delivery with its state, latest attempts, last error and advice, and for a message the endpoints that it
    was not sent to, with the reason.
    """
    event_id, ordinal = _read_target(request.id)
    async with session.reading() as reach:
        row, content = await listings.read_event_preview(
            reach.work.connection, event_id, MAX_REDACTED if request.body else 0
        )
        await reach.require(f"event {row.id}", row.application)
        rows = await listings.list_deliveries_of(reach.work.connection, event_id, ordinal)
        visible = [
            delivery for delivery in rows if reach.application is None or delivery.recipient.startswith("endpoint:")
        ]
        outer: dict[str, Any] = {}
        if request.body and row.expunged_at is None:
            outer = {"headers": show_headers(content.headers), "body": show_body(content.body, row.size)}
        return compact(
            event=_show_event(row) | {"content": {"untrusted": outer}} if outer else _show_event(row),
            deliveries=[await _explain_delivery(reach, delivery) for delivery in visible[:_MAX_DELIVERIES]],
            further_deliveries=max(0, len(visible) - _MAX_DELIVERIES) or None,
            not_sent_to=await _list_missed(reach, row, rows),
        ) | ({} if visible else {"deliveries": []})


def _read_target(text: str) -> tuple[UUID, int | None]:
    """Return the event of an id, and the ordinal of the delivery if it is one's."""
    if not text.startswith(f"{ids.DELIVERY}_"):
        return _read_event_id(text, "id"), None
    try:
        return ids.read_delivery(text)
    except ValueError as error:
        raise InvalidValue(str(error), "id") from None


async def _explain_delivery(reach: Reach, row: DeliveryRow) -> dict[str, Any]:
    is_for_application = reach.application is not None
    attempts = await listings.list_attempt_details(reach.work.connection, *ids.read_delivery(row.id))
    has_failed = row.state == State.DEAD or row.code is not None
    hides_note = is_for_application and row.state == State.IGNORED  # an operator's own words
    return compact(
        id=row.id,
        recipient=row.recipient,
        state=row.state,
        attempts=row.attempts,
        summary=dead_letters.describe_failure(row.recipient, row.attempts, row.code, None) if has_failed else None,
        advice=dead_letters.advise(row.recipient, row.code) if has_failed else None,
        code=row.code,
        next_attempt_at=row.due_at,
        endpoint_paused_until=row.paused_until,
        ended_at=row.ended_at,
        replays=row.replays or None,
        waits_for_order=row.order_key is not None or None,
        untrusted=outside(note=None if hides_note else row.note, item=row.item_path),
        latest_attempts=[_show_attempt(attempt, is_for_application) for attempt in attempts[-_MAX_ATTEMPTS:]],
    )


def _show_attempt(attempt: AttemptDetail, is_for_application: bool) -> dict[str, Any]:
    response = (attempt.response or b"").decode("utf-8", "replace")
    internal = {} if is_for_application else {"dependency": attempt.dependency, "traceback_end": _last_line(attempt)}
    return compact(
        number=attempt.number,
        at=attempt.started_at,
        took_ms=round(attempt.took_s * 1_000),
        outcome=attempt.outcome,
        code=attempt.code,
        status=attempt.status or None,
        untrusted=outside(
            url=None if attempt.url is None else show_url(attempt.url),
            error=attempt.error,
            response=response,
            **internal,
        ),
    )


def _last_line(attempt: AttemptDetail) -> str:
    lines = (attempt.traceback or "").strip().splitlines()
    return " | ".join(line.strip() for line in lines[-3:])


async def _list_missed(reach: Reach, row: EventRow, deliveries: Sequence[DeliveryRow]) -> list[dict[str, Any]]:
    """Return the endpoints of a message's application that it was not sent to, with the reasons."""
    if row.application is None or not row.application.startswith(f"{ids.APPLICATION}_"):
        return []
    work = reach.work
    try:
        application = reach.application or await applications.get(work, row.application)
    except NotFound:  # it was deleted, or belongs to another organization than the one that an operator works on
        return []
    page = await endpoints.list_page(work, application, PageRequest(None, is_ascending=True, limit=_MAX_ENDPOINTS))
    reached = {delivery.recipient for delivery in deliveries}
    return [
        {"endpoint": endpoint.shown_id, "reason": _reason(endpoint, row)}
        for endpoint in page
        if endpoint.recipient not in reached
    ]


def _reason(endpoint: Endpoint, row: EventRow) -> str:
    """Return why an endpoint has no delivery of a message, by its present settings."""
    if endpoint.created_at is not None and endpoint.created_at > row.accepted_at:
        return "it was created after the message was published"
    if endpoint.is_disabled:
        return f"it is disabled ({endpoint.disabled_because or 'manual'})"
    if endpoint.event_types is not None and not any(Pattern(name).matches(row.type) for name in endpoint.event_types):
        return "its event types do not include the message's type"
    if endpoint.channels is not None and not set(endpoint.channels) & set(row.channels or ()):
        return "it only receives channels that the message does not have"
    if endpoint.filter is not None:
        return "its content filter did not match, or it was changed since"
    return "its settings match now, so they were changed since the message was published"


class WaitForEvents(Input, frozen=True, kw_only=True):
    """The events to wait for."""

    application: inputs.Application = ""
    source: inputs.Source = ""
    type: inputs.EventType = ""
    cursor: Annotated[str, Rule(help="cursor of the previous result; empty: from now on.", max_length=512)] = ""
    seconds: Annotated[int, Rule(help="How long to wait.", minimum=0, maximum=_MAX_WAIT_S)] = 10


@tool(Permission.EVENT_VIEW, of_application=Permission.MESSAGE_VIEW)
async def wait_for_events(session: Session, request: WaitForEvents) -> dict[str, Any]:
    """Wait until matching events are accepted, for some seconds, and return them, oldest first.

    Call it with the returned cursor to continue without a gap; to catch an event that you are about to cause, first
    call it with seconds 0 to get a cursor.
    """
    async with session.reading() as reach:
        application = await reach.find_application(request.application)
    now = datetime.now(UTC)
    since, seen = _read_cursor(request.cursor) if request.cursor else (now, frozenset[bytes]())
    if since < now - event_feed.MAX_LOOKBACK:
        raise InvalidValue("this cursor is more than a day old; use find_events for what happened since", "cursor")
    feed = EventFeed(
        session.app_context.database,
        FeedFilter(
            organization=session.organization,
            source=request.source or None,
            application=None if application is None else application.shown_id,
            type=request.type or None,
        ),
        since,
    )
    with SLOTS.acquire() as has_slot:
        if not has_slot:
            raise LimitReached(f"{MAX_WAITS} calls are waiting for events already; try again later")
        events = await _poll(session, feed, seen, time.monotonic() + request.seconds)
    return {
        "events": [_show_fed(event) for event in events],
        "cursor": _show_cursor(feed.caught_up_to, seen, [event.id for event in events]),
    }


async def _poll(session: Session, feed: EventFeed, seen: frozenset[bytes], until: float) -> list[Event]:
    """Return the next events that a cursor has not seen; none once the time is up or the process stops."""
    while True:
        page, has_more = await feed.poll(datetime.now(UTC))
        if events := [event for event in page if _mark(event.id) not in seen]:
            return events
        if has_more:
            continue
        if time.monotonic() >= until or session.app_context.closing.is_set():
            return []
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(session.app_context.closing.wait(), _POLL_S)


def _show_fed(event: Event) -> dict[str, Any]:
    prefix = ids.EVENT if event.source is not None else ids.MESSAGE
    return compact(
        id=ids.show(prefix, event.id),
        accepted_at=event.accepted_at,
        source=event.source,
        application=event.application,
        untrusted=outside(type=event.type, key=event.dedup_key),
    )


def _mark(event_id: UUID) -> bytes:
    """Return the random end of an id, which tells it from the others of a minute."""
    return event_id.bytes[-4:]


def _show_cursor(since: datetime, seen: frozenset[bytes], latest: Sequence[UUID]) -> str:
    """Return where a feed continues: a time, and the events since then that were returned."""
    marks = [*(_mark(event_id) for event_id in reversed(latest)), *sorted(seen)][:_MAX_SEEN]
    milliseconds = (since - _EPOCH) // timedelta(milliseconds=1)
    return base64.urlsafe_b64encode(_CURSOR.pack(milliseconds) + b"".join(marks)).decode().rstrip("=")


def _read_cursor(text: str) -> tuple[datetime, frozenset[bytes]]:
    try:
        packed = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        (milliseconds,) = _CURSOR.unpack_from(packed)
        since = _EPOCH + timedelta(milliseconds=milliseconds)
    except (ValueError, struct.error, OverflowError):
        raise InvalidValue("pass the cursor of an earlier result of this tool unchanged", "cursor") from None
    marks = packed[_CURSOR.size :]
    return since, frozenset(marks[place : place + 4] for place in range(0, len(marks), 4))
