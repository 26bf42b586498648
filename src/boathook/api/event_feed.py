"""The route that streams events as they are committed, as server-sent events, until the client disconnects.

Each event is one message with its id, ``event: event`` and the JSON of a `service.event_feed.FeedEvent` as data. The
first message is ``event: started``; its data is the start time of the feed. While there are no events,
``event: caught_up`` gives the time up to which all events have been sent. A client that reconnects sends the latest
such time and its last event id, and drops events that it has already received.
"""

import asyncio
import time
from collections.abc import AsyncGenerator
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import msgspec
from fastapi import Header, Query, Request
from starlette.responses import Response

from boathook.api.authentication import authenticate
from boathook.api.errors import ApiError, invalid, to_response
from boathook.api.route import AnyCall, client_of, router
from boathook.domain import ids
from boathook.domain.errors import DatabaseError, InvalidValue, RateLimited
from boathook.http.asgi import stream_body
from boathook.observability.log import get_logger
from boathook.service.access.authorization import Permission, requires
from boathook.service.operating.event_feed import (
    MAX_LISTENERS,
    EventFeed,
    FeedEvent,
    FeedFilter,
    ListenerSlots,
    feed_start,
    to_feed_event,
)
from boathook.service.schemas.fields import Timestamp
from boathook.service.unit_of_work import AppContext

routes = router("Listening")

_POLL_INTERVAL_S: Final = 0.5
_HEARTBEAT_INTERVAL_S: Final = 10.0
"""Seconds without an event after which the current position is sent, so that the client can tell that the connection is
alive."""
_REAUTH_INTERVAL_S: Final = 30.0
"""Interval at which the token is checked again, so that revoked tokens lose access."""
_HEAD: Final = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
_LOG = get_logger("api")


@routes.get("/listen", include_in_schema=False)
@requires(Permission.EVENT_LISTEN)
async def listen(
    call: AnyCall,
    request: Request,
    source: str | None = None,
    application: str | None = None,
    type: str | None = None,
    since: Annotated[Timestamp | None, Query()] = None,
    after: str | None = None,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Stream events until the client disconnects, from now on or from an earlier time or event."""
    now = datetime.now(UTC)
    try:
        last = ids.read_event(name) if (name := last_event_id or after) else None
        since = feed_start(now, since, last)
    except InvalidValue as error:
        raise invalid(str(error), "query", *map(str, error.where)) from None
    except ValueError as error:
        raise invalid(str(error), "query", "after") from None
    feed_filter = FeedFilter(
        organization=call.principal.organization, source=source, application=application, type=type
    )
    tail = EventFeed(call.work.app_context.database, feed_filter, since)
    log = _LOG.bind(actor=call.principal.actor, source=source, application=application, type=type)
    return EventStream(
        call.work.app_context, _listener_slots(request), tail, since, dict(request.headers), client_of(request), log
    )


def _listener_slots(request: Request) -> ListenerSlots:
    """Return the listener slots of this process."""
    state = request.app.state
    if not hasattr(state, "listener_slots"):
        state.listener_slots = ListenerSlots()
    slots: ListenerSlots = state.listener_slots
    return slots


class EventStream(Response):
    """A response that streams events until the client disconnects."""

    def __init__(
        self,
        app_context: AppContext,
        slots: ListenerSlots,
        tail: EventFeed,
        since: datetime,
        headers: dict[str, str],
        client: str,
        log: Any,
    ) -> None:
        super().__init__()
        self._log = log
        self._app_context = app_context
        self._listener_slots = slots
        self._tail = tail
        self._since = since
        self._credentials = headers
        self._client = client
        self._is_paused = False
        """Whether PostgreSQL was unavailable at the latest poll, so that it is logged only once."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Stream until the client disconnects, its token is revoked, or the process stops."""
        with self._listener_slots.acquire() as has_slot:
            if not has_slot:
                full = ApiError(
                    429, "too_many_listeners", f"too many listeners ({MAX_LISTENERS})", {"retry-after": "5"}
                )
                await to_response(full)(scope, receive, send)
                return
            self._log.info("listening")
            await send({"type": "http.response.start", "status": 200, "headers": _HEAD})
            await stream_body(self._chunks(), receive, send, self._app_context.closing)

    async def _chunks(self) -> AsyncGenerator[bytes, None]:
        yield b"retry: 1000\nevent: started\ndata: %s\n\n" % self._since.isoformat().encode()
        notified_at = checked_at = time.monotonic()
        while True:
            events, has_more = await self._poll()
            for event in events:
                yield _encode_event(to_feed_event(self._app_context.settings, event))
                notified_at = time.monotonic()
            if time.monotonic() - checked_at > _REAUTH_INTERVAL_S:
                if not await self._is_still_authorized():
                    return
                checked_at = time.monotonic()
            if time.monotonic() - notified_at > _HEARTBEAT_INTERVAL_S:
                yield b"event: caught_up\ndata: %s\n\n" % self._tail.caught_up_to.isoformat().encode()
                notified_at = time.monotonic()
            if not has_more:
                await asyncio.sleep(_POLL_INTERVAL_S)

    async def _poll(self) -> tuple[list[Any], bool]:
        try:
            batch = await self._tail.poll(datetime.now(UTC))
        except DatabaseError as error:
            if not self._is_paused:
                self._log.warning("listening_paused", error=str(error), note="until PostgreSQL is back")
            self._is_paused = True
            return [], False
        self._is_paused = False
        return batch

    async def _is_still_authorized(self) -> bool:
        try:
            async with self._app_context.reading() as connection:
                await authenticate(connection, self._credentials, self._client)
        except ApiError:
            return False
        except (DatabaseError, RateLimited):
            return True
        return True


def _encode_event(event: FeedEvent) -> bytes:
    """Return an event as a message of the stream."""
    return b"id: %s\nevent: event\ndata: %s\n\n" % (event.id.encode(), msgspec.json.encode(event))
