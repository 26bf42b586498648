"""Pages of one event: its content, its history, and the actions on it."""

import asyncio
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar
from uuid import UUID

import msgspec
from msgspec.structs import replace
from starlette.responses import Response

from boathook.domain import ids
from boathook.domain.endpoints import CUSTOM, REDACTED
from boathook.domain.errors import NotFound
from boathook.domain.model import State
from boathook.domain.plurals import counted
from boathook.service import body_view
from boathook.service.access.authorization import Permission
from boathook.service.body_view import BodyView, CurlRequest, Shell
from boathook.service.catalogue import deliveries as delivery_actions
from boathook.service.catalogue import events as actions
from boathook.service.operating import listings
from boathook.service.operating.listings import (
    AttemptDetail,
    AuditRow,
    DeliveryRow,
    EventHistory,
    EventRow,
    RecipientSideEffect,
    StoredReply,
    StoredRequest,
)
from boathook_console.derived import read_form
from boathook_console.routes import ConsoleContext, Routes

routes = Routes()

_PLACEHOLDER_URL: Final = "https://receiver.example/"

Value = TypeVar("Value")


class EqualAttempts(msgspec.Struct, frozen=True):
    """Consecutive attempts of one delivery with the same result, latest first."""

    attempts: Sequence[AttemptDetail]

    @property
    def last(self) -> AttemptDetail:
        """The latest of them."""
        return self.attempts[0]


TimelineValue = EventRow | EqualAttempts | RecipientSideEffect | StoredReply | AuditRow


class TimelineEntry(msgspec.Struct, frozen=True):
    """One entry of the timeline."""

    at: datetime
    kind: str
    """One of accepted, attempts, effect, reply or note."""
    value: TimelineValue
    after_s: float | None = None
    """Seconds since the entry before; None for the first."""


@routes.get("/events/{id}", Permission.EVENT_VIEW)
async def show_event(context: ConsoleContext) -> Response:
    """Show an event with its content and history."""
    if context.path["id"].startswith(f"{ids.DELIVERY}_"):
        event_id, ordinal = _read(ids.read_delivery, context.path["id"])
        return context.to(f"/console/events/{ids.show(ids.EVENT, event_id)}?delivery={ordinal}")
    return await _show(context, _event_id(context))


@routes.get("/events/{id}/history", Permission.EVENT_VIEW)
async def show_history(context: ConsoleContext) -> Response:
    """Show the history of an event, for live updates of its page."""
    event_id = _event_id(context)
    event, _ = await listings.read_request(context.app_context.database, event_id, max_bytes=0)
    return context.page("events/history.html", **await _history_values(context, event, event_id))


@routes.get("/events/{id}/body", Permission.EVENT_VIEW)
async def download(context: ConsoleContext) -> Response:
    """Download an event's body."""
    event, request = await listings.read_request(context.app_context.database, _event_id(context))
    return attachment(request.body, f"{event.id}.bin")


@routes.get("/events/{id}/curl", Permission.EVENT_VIEW)
async def show_curl(context: ConsoleContext) -> Response:
    """Show a curl command that repeats the request, without secrets."""
    return await _curl(context, has_secrets=False)


@routes.post("/events/{id}/curl", Permission.EVENT_REVEAL)
async def reveal_curl(context: ConsoleContext) -> Response:
    """Show the curl command with all headers; the access is recorded in the audit log."""
    async with context.work() as work:
        await listings.record_reveal(work, _event_id(context))
    return await _curl(context, has_secrets=True)


@routes.post("/events/{id}/replay", Permission.EVENT_REPLAY)
async def replay(context: ConsoleContext) -> Response:
    """Replay the event for all recipients with finished deliveries, or only for one."""
    event_id = _event_id(context)
    name = ids.show(ids.EVENT, event_id)
    only = context.field("delivery")
    if only:
        delivery = ids.show_delivery(event_id, _ordinal(only))
        async with context.work() as work:
            replay_input = read_form(context, delivery_actions.replay, "note", id=delivery)
            again = await delivery_actions.replay(work, replay_input)
        return context.to(f"/console/events/{name}", again.message)
    async with context.work() as work:
        acted = await actions.replay(work, read_form(context, actions.replay, "note", ids=[name]))
    _check_found(acted)
    number = acted.added + acted.revived
    if number == 0:
        text = "Nothing to replay: every delivery is still pending, or its endpoint is disabled or deleted"
        return context.to(f"/console/events/{name}", text, kind="bad")
    return context.to(f"/console/events/{name}", f"{counted(number, 'delivery')} replayed")


@routes.post("/events/{id}/route", Permission.EVENT_REPLAY)
async def route(context: ConsoleContext) -> Response:
    """Add deliveries for the handlers that match the event now and have none, or for the named one."""
    event_id = _event_id(context)
    name = ids.show(ids.EVENT, event_id)
    page = f"/console/events/{name}"
    to = context.field("to").strip() or None
    try:
        async with context.work() as work:
            acted = await actions.route(work, read_form(context, actions.route, "note", ids=[name], to=to))
        _check_found(acted)
    except NotFound as error:
        return context.to(page, str(error), kind="bad")
    if acted.left:
        text = "Not routed: a dead letter of this event was purged, or an older boathook stored it as a batch."
        return context.to(page, f"{text} Name a handler to route it anyway", kind="bad")
    if not acted.added:
        return context.to(page, "No delivery added: every matching handler already has or had one", kind="bad")
    return context.to(page, f"{counted(acted.added, 'delivery')} added")


def _check_found(acted: actions.EventsActed) -> None:
    """Raise NotFound if the event does not exist."""
    for skipped in acted.skipped:
        raise skipped.error()


def attachment(body: bytes, name: str) -> Response:
    """Return untrusted bytes as a download that browsers neither display nor execute."""
    headers = {"content-disposition": f'attachment; filename="{name}"', "x-content-type-options": "nosniff"}
    return Response(body, media_type="application/octet-stream", headers=headers)


async def render_body(head: bytes, size: int, view: str | None, content_type: str) -> BodyView:
    """Return the start of a body formatted for display; runs in a thread so that it does not block the event loop."""
    return await asyncio.to_thread(body_view.render, head, size, view, content_type=content_type)


async def _show(context: ConsoleContext, event_id: UUID) -> Response:
    item = context.query.get("item", "")
    # An item can only be extracted from the whole body.
    max_bytes = None if item else body_view.MAX_BYTES
    event, content = await listings.read_request(context.app_context.database, event_id, max_bytes=max_bytes)
    body, size = content.body, event.size
    if item:
        whole = await listings.cut_item(content.body, item)
        body, size = whole[: body_view.MAX_BYTES], len(whole)
    history = await _history_values(context, event, event_id)
    request = await _request_of(context, event, content, history["history"].deliveries)
    trace_id, trace_url = listings.find_trace(context.app_context.settings, event, content)
    return context.page(
        "events/show.html",
        item=item,
        headers=body_view.mask(dict(content.headers)),
        content=await render_body(body, size, context.query.get("view"), event.content_type),
        shown_size=size,
        shown_most=body_view.MAX_BYTES,
        command=body_view.render_command(request),
        needs_file=body_view.needs_file(request),
        failure=_newest_failure(history["history"]),
        trace_id=trace_id,
        trace_url=trace_url,
        **history,
    )


async def _history_values(context: ConsoleContext, event: EventRow, event_id: UUID) -> dict[str, Any]:
    only = context.query.get("delivery", "")
    first = context.query.get("from", "")
    history = await listings.read_history(
        context.app_context.database,
        event_id,
        first=_ordinal(first) if first else 0,
        only=_ordinal(only) if only else None,
    )
    return {
        "event": event,
        "history": history,
        "only": only,
        "entries": _timeline(event, history),
        "recipients": {_number(delivery): delivery for delivery in history.deliveries},
        "responses": {
            (attempt.ordinal, attempt.number): _response_of(attempt) for attempt in history.attempts if attempt.response
        },
        "reply": history.answer and body_view.snippet(history.answer.body, history.answer.size),
        "new_handlers": await _new_handlers(context, event, event_id),
        "is_open": any(delivery.state in {State.PENDING, State.LEASED} for delivery in history.deliveries),
    }


async def _new_handlers(context: ConsoleContext, event: EventRow, event_id: UUID) -> list[str]:
    if not context.may(Permission.EVENT_REPLAY) or event.expunged_at is not None:
        return []
    return await listings.list_new_handlers(context.app_context.database, event_id)


def _timeline(event: EventRow, history: EventHistory) -> list[TimelineEntry]:
    """Return the entries, latest first, each with the time since the one before."""
    entries = sorted(_entries(event, history), key=lambda entry: entry.at)
    waits = [None, *((late.at - early.at).total_seconds() for early, late in itertools.pairwise(entries))]
    return [replace(entry, after_s=after_s) for entry, after_s in zip(entries, waits, strict=True)][::-1]


def _entries(event: EventRow, history: EventHistory) -> Iterator[TimelineEntry]:
    yield TimelineEntry(event.accepted_at, "accepted", event)
    yield from (TimelineEntry(group.last.ended_at, "attempts", group) for group in _fold(history.attempts))
    yield from (TimelineEntry(effect.done_at, "effect", effect) for effect in history.effects)
    yield from (TimelineEntry(note.at, "note", note) for note in history.notes)
    if history.answer is not None:
        yield TimelineEntry(history.answer.created_at, "reply", history.answer)


def _fold(attempts: Sequence[AttemptDetail]) -> Iterator[EqualAttempts]:
    """Yield the attempts, latest first, those of a delivery in a row that ended alike as one."""
    latest_first = sorted(attempts, key=lambda attempt: (attempt.ordinal, attempt.number), reverse=True)
    for _, alike in itertools.groupby(latest_first, key=_result_of):
        yield EqualAttempts(list(alike))


def _result_of(attempt: AttemptDetail) -> tuple[object, ...]:
    return (
        attempt.ordinal,
        attempt.outcome,
        attempt.code,
        attempt.error,
        attempt.dependency,
        attempt.traceback,
        attempt.status,
        attempt.url,
        attempt.is_manual,
    )


def _newest_failure(history: EventHistory) -> AttemptDetail | None:
    """Return the latest attempt that failed, unless its delivery has succeeded since."""
    open_or_dead = {
        _number(delivery) for delivery in history.deliveries if delivery.state not in {State.SUCCEEDED, State.IGNORED}
    }
    failed = (
        attempt for attempt in history.attempts if attempt.ordinal in open_or_dead and (attempt.error or attempt.code)
    )
    return max(failed, key=lambda attempt: attempt.ended_at, default=None)


def _response_of(attempt: AttemptDetail) -> BodyView:
    return body_view.snippet(attempt.response or b"", attempt.response_size or 0)


async def _curl(context: ConsoleContext, *, has_secrets: bool) -> Response:
    event_id = _event_id(context)
    shell = Shell(context.query["shell"]) if context.query.get("shell") in set(Shell) else Shell.SH
    event, content = await listings.read_request(
        context.app_context.database, event_id, max_bytes=body_view.MAX_INLINE_BYTES + 1
    )
    only = context.query.get("delivery", "")
    history = await listings.read_history(context.app_context.database, event_id, only=_ordinal(only) if only else None)
    request = await _request_of(context, event, content, history.deliveries)
    attempt = _attempt_of(history.attempts, context.query.get("attempt", "")) if only else None
    is_masked = any(body_view.is_sensitive(name) for name in request.headers)
    if attempt is not None:
        is_masked = not {CUSTOM, REDACTED}.isdisjoint(attempt.request_headers.values())
        request = CurlRequest(
            url=attempt.url or _PLACEHOLDER_URL,
            headers=attempt.request_headers,
            body=content.body,
            file=request.file,
        )
    return context.page(
        "events/curl.html",
        event=event,
        delivery=only,
        attempt=attempt,
        shell=shell,
        shells=[(Shell.SH, "sh, bash, zsh, dash"), (Shell.FISH, "fish"), (Shell.CONFIG, "other: curl config file")],
        command=body_view.render_command(request, shell, has_secrets=has_secrets),
        needs_file=body_view.needs_file(request),
        has_secrets=has_secrets,
        is_masked=is_masked,
    )


async def _request_of(
    context: ConsoleContext, event: EventRow, request: StoredRequest, deliveries: Sequence[DeliveryRow]
) -> CurlRequest:
    """Return the request that delivered an event to its source, or that an endpoint receives."""
    headers = {"content-type": event.content_type} | {name.lower(): text for name, text in request.headers.items()}
    if event.source is not None:
        base = context.app_context.settings.server.public_url or str(context.request.base_url)
        url = f"{str(base).rstrip('/')}/in/{event.source}"
    else:
        url = await listings.find_endpoint_url(context.app_context.database, deliveries) or _PLACEHOLDER_URL
    return CurlRequest(url=url, headers=headers, body=request.body, file=f"{event.id}.bin")


def _attempt_of(attempts: Sequence[AttemptDetail], number: str) -> AttemptDetail | None:
    return next((attempt for attempt in attempts if str(attempt.number) == number and attempt.url), None)


def _event_id(context: ConsoleContext) -> UUID:
    return _read(ids.read_event, context.path["id"])


def _read(reader: Callable[[str], Value], text: str) -> Value:
    try:
        return reader(text)
    except ValueError as error:
        raise NotFound(str(error)) from None


def _ordinal(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 32_767:
        raise NotFound(f"unknown delivery number {text[:20]}")
    return int(text)


def _number(delivery: DeliveryRow) -> int:
    return ids.read_delivery(delivery.id)[1]
