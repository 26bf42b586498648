"""One event: its content, what became of it, and what can be done with it."""

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar, assert_never
from uuid import UUID

from starlette.responses import Response

from boathook.admin import contents, curl, operations
from boathook.admin.authorization import Permission
from boathook.admin.console.pages import Routes, Visit
from boathook.admin.contents import Content
from boathook.admin.curl import Shell
from boathook.admin.endpoint_secrets import hide_custom, hide_sensitive
from boathook.domain import ids
from boathook.domain.errors import NotFound, NotPossible
from boathook.domain.model import State
from boathook.journal import ledger, timeline
from boathook.journal.audit import note
from boathook.journal.batches import Pieces
from boathook.journal.ledger import AuditRow, DeliveryRow, EventRow, StoredRequest
from boathook.journal.moves import Action, Selection
from boathook.journal.replays import owe_again
from boathook.journal.timeline import Answer, Done, Story, Try

routes = Routes()

REVEAL: Final = "event.reveal_headers"
_NOBODY: Final = "https://receiver.example/"
_LONGEST_NOTE: Final = 1_000
_DEEPEST_ITEM: Final = 50

Value = TypeVar("Value")
Happening = EventRow | Try | Done | Answer | AuditRow


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened, as the timeline shows it."""

    at: datetime
    kind: str
    """What it is: accepted, attempt, effect, reply or note."""
    value: Happening


@routes.get("/events/{id}", Permission.EVENT_VIEW)
async def show_event(visit: Visit) -> Response:
    """Show an event with its content and what became of it."""
    if visit.path["id"].startswith(f"{ids.DELIVERY}_"):
        event_id, ordinal = _read(ids.read_delivery, visit.path["id"])
        return visit.to(f"/console/events/{ids.show(ids.EVENT, event_id)}?delivery={ordinal}")
    return await _show(visit, _event_id(visit))


@routes.get("/events/{id}/story", Permission.EVENT_VIEW)
async def show_story(visit: Visit) -> Response:
    """Show what became of an event, for a page that keeps up with it."""
    event_id = _event_id(visit)
    event, _ = await timeline.read_head(visit.desk.database, event_id, 0)
    return visit.page("events/story.html", **await _story(visit, event, event_id))


@routes.get("/events/{id}/body", Permission.EVENT_VIEW)
async def download(visit: Visit) -> Response:
    """Give an event's bytes."""
    event, stored = await ledger.get_event(visit.desk.database, _event_id(visit))
    return attachment(stored.body, f"{event.id}.bin")


@routes.get("/events/{id}/curl", Permission.EVENT_VIEW)
async def show_curl(visit: Visit) -> Response:
    """Show the command that makes the request again, without secrets."""
    return await _curl(visit, has_secrets=False)


@routes.post("/events/{id}/curl", Permission.EVENT_REVEAL)
async def reveal_curl(visit: Visit) -> Response:
    """Show the command with all of its headers; who asked for them stands in the audit."""
    async with visit.work() as work:
        await note(work.connection, work.actor, REVEAL, ids.show(ids.EVENT, _event_id(visit)))
    return await _curl(visit, has_secrets=True)


@routes.post("/events/{id}/replay", Permission.EVENT_REPLAY)
async def replay(visit: Visit) -> Response:
    """Owe the event again: to all recipients that have ended theirs, or to the one of a delivery."""
    event_id = _event_id(visit)
    name = ids.show(ids.EVENT, event_id)
    action = Action(actor=visit.actor, note=str(visit.form.get("note", "")).strip()[:_LONGEST_NOTE] or None)
    only = str(visit.form.get("delivery", ""))
    if only:
        return visit.to(f"/console/events/{name}", await _replay_one(visit, (event_id, _ordinal(only)), action))
    done = await operations.replay_events(visit.desk.database, [event_id], action)
    number = done.added + done.revived
    if number == 0:
        text = "Nothing was replayed: each recipient is still owed it, is gone or disabled, or nobody ever was owed it"
        return visit.to(f"/console/events/{name}", text, kind="bad")
    owed = "delivery is" if number == 1 else "deliveries are"
    return visit.to(f"/console/events/{name}", f"{number} {owed} owed again")


@routes.post("/events/{id}/route", Permission.EVENT_REPLAY)
async def route(visit: Visit) -> Response:
    """Owe the event to the handlers that match it now and never were owed it, or to the one that is named."""
    event_id = _event_id(visit)
    page = f"/console/events/{ids.show(ids.EVENT, event_id)}"
    action = Action(actor=visit.actor, note=str(visit.form.get("note", "")).strip()[:_LONGEST_NOTE] or None)
    to = str(visit.form.get("to", "")).strip() or None
    try:
        done = await operations.route_events(visit.desk.database, [event_id], action, to=to)
    except NotFound as error:
        return visit.to(page, str(error), kind="bad")
    if done.left:
        text = "It was left alone: a dead letter of it was purged, or it may be a batch that an older boathook stored."
        return visit.to(page, f"{text} Name a handler to route it all the same", kind="bad")
    if not done.added:
        return visit.to(page, "No delivery was added: each handler that matches already has or had one", kind="bad")
    owed = "delivery was" if done.added == 1 else "deliveries were"
    return visit.to(page, f"{done.added} {owed} added")


def attachment(body: bytes, name: str) -> Response:
    """Return bytes of strangers as a file that no browser shows or runs."""
    headers = {"content-disposition": f'attachment; filename="{name}"', "x-content-type-options": "nosniff"}
    return Response(body, media_type="application/octet-stream", headers=headers)


async def content_of(head: bytes, size: int, view: str | None, content_type: str) -> Content:
    """Return the beginning of a body as it is shown; laying it out must not hold up who else uses this event loop."""
    return await asyncio.to_thread(contents.show, head, size, view, content_type=content_type)


async def _show(visit: Visit, event_id: UUID) -> Response:
    database, item = visit.desk.database, visit.query.get("item", "")
    # To cut an item out of it, the whole body is needed.
    most = contents.MOST if not item else 2**31 - 1
    event, stored = await timeline.read_head(database, event_id, most)
    body, size = stored.body, event.size
    if item:
        whole = await _item_of(stored.body, item)
        body, size = whole[: contents.MOST], len(whole)
    story = await _story(visit, event, event_id)
    request = await _request_of(visit, event, stored, story["story"].deliveries)
    return visit.page(
        "events/show.html",
        item=item,
        headers=contents.mask(dict(stored.headers)),
        content=await content_of(body, size, visit.query.get("view"), event.content_type),
        shown_size=size,
        shown_most=contents.MOST,
        command=curl.write(request),
        needs_file=curl.needs_file(request),
        **story,
    )


async def _story(visit: Visit, event: EventRow, event_id: UUID) -> dict[str, Any]:
    only = visit.query.get("delivery", "")
    first = visit.query.get("from", "")
    story = await timeline.read_story(
        visit.desk.database,
        event_id,
        first=_ordinal(first) if first else 0,
        only=_ordinal(only) if only else None,
    )
    show = hide_sensitive if visit.may(Permission.ENDPOINT_HEADERS_VIEW) else hide_custom
    return {
        "event": event,
        "story": story,
        "sent": lambda one: show(one.request_headers.items()),
        "only": only,
        "entries": sorted(_entries(event, story), key=lambda entry: entry.at, reverse=True),
        "recipients": {_number(one): one for one in story.deliveries},
        "responses": {(one.ordinal, one.number): _response_of(one) for one in story.tries if one.response},
        "reply": story.answer and contents.snippet(story.answer.body, story.answer.size),
        "is_open": any(one.state in {State.PENDING, State.LEASED} for one in story.deliveries),
    }


async def _item_of(body: bytes, path: str) -> bytes:
    """Return the bytes at a dotted path of a JSON body. Raises NotFound."""
    found = body if path.count(".") > _DEEPEST_ITEM else await asyncio.to_thread(Pieces(body).cut, path)
    if found is body:
        raise NotFound(f"the body has no item {path[:100]}")
    return found


def _entries(event: EventRow, story: Story) -> Iterator[Entry]:
    yield Entry(event.accepted_at, "accepted", event)
    yield from (Entry(one.ended_at, "attempt", one) for one in story.tries)
    yield from (Entry(one.done_at, "effect", one) for one in story.effects)
    yield from (Entry(one.at, "note", one) for one in story.notes)
    if story.answer is not None:
        yield Entry(story.answer.made_at, "reply", story.answer)


def _response_of(one: Try) -> Content:
    return contents.snippet(one.response or b"", one.response_size or 0)


async def _curl(visit: Visit, *, has_secrets: bool) -> Response:
    event_id = _event_id(visit)
    shell = Shell(visit.query["shell"]) if visit.query.get("shell") in set(Shell) else Shell.SH
    event, stored = await timeline.read_head(visit.desk.database, event_id, curl.MOST + 1)
    only = visit.query.get("delivery", "")
    story = await timeline.read_story(visit.desk.database, event_id, only=_ordinal(only) if only else None)
    request = await _request_of(visit, event, stored, story.deliveries)
    attempt = _attempt_of(story.tries, visit.query.get("attempt", "")) if only else None
    is_masked = any(contents.is_secretive(name) for name in request.headers)
    if attempt is not None:
        hidden = dict(hide_custom(attempt.request_headers.items(), hidden=contents.MASK))
        is_masked = hidden != attempt.request_headers or any(map(contents.is_secretive, hidden))
        request = curl.Request(
            url=attempt.url or _NOBODY,
            headers=attempt.request_headers if has_secrets else hidden,
            body=stored.body,
            file=request.file,
        )
    return visit.page(
        "events/curl.html",
        event=event,
        delivery=only,
        attempt=attempt,
        shell=shell,
        shells=[(Shell.SH, "sh, bash, zsh, dash"), (Shell.FISH, "fish"), (Shell.CONFIG, "any other: curl's own file")],
        command=curl.write(request, shell, has_secrets=has_secrets),
        needs_file=curl.needs_file(request),
        has_secrets=has_secrets,
        is_masked=is_masked,
    )


async def _request_of(
    visit: Visit, event: EventRow, stored: StoredRequest, deliveries: Sequence[DeliveryRow]
) -> curl.Request:
    """Return the request that brought an event, or that an endpoint gets of it."""
    headers = {"content-type": event.content_type} | {name.lower(): text for name, text in stored.headers.items()}
    if event.source is not None:
        base = visit.desk.settings.server.public_url or str(visit.request.base_url)
        url = f"{str(base).rstrip('/')}/in/{event.source}"
    else:
        recipients = (one.recipient for one in deliveries if one.recipient.startswith("endpoint:"))
        recipient = next(recipients, None)
        url = (recipient and await timeline.find_url(visit.desk.database, recipient)) or _NOBODY
    return curl.Request(url=url, headers=headers, body=stored.body, file=f"{event.id}.bin")


def _attempt_of(tries: Sequence[Try], number: str) -> Try | None:
    return next((one for one in tries if str(one.number) == number and one.url), None)


async def _replay_one(visit: Visit, key: tuple[UUID, int], action: Action) -> str:
    """Replay what one delivery was about; return what came of it, in a sentence."""
    delivery = await ledger.get_delivery(visit.desk.database, *key)
    match State(delivery.state):
        case State.DEAD:
            selection = Selection(ledger.Filter(), [key])
            done = await operations.replay_dead(visit.desk.database, selection, action)
            if not done:
                text = f"{delivery.recipient} is deleted or disabled, or the event's content is gone"
                raise NotPossible(text, "endpoint_disabled")
            return f"{delivery.id} is owed again, with a new budget of attempts"
        case State.SUCCEEDED | State.IGNORED:
            made = await owe_again(visit.desk.database, key, action)
            return f"{delivery.recipient} is owed it once more, as {ids.show_delivery(*made)}"
        case State.PENDING | State.LEASED:
            return f"{delivery.id} is owed already: nothing was changed"
        case _ as never:
            assert_never(never)


def _event_id(visit: Visit) -> UUID:
    return _read(ids.read_event, visit.path["id"])


def _read(reader: Callable[[str], Value], text: str) -> Value:
    try:
        return reader(text)
    except ValueError as error:
        raise NotFound(str(error)) from None


def _ordinal(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or int(text) > 32_767:
        raise NotFound(f"no delivery has the number {text[:20]}")
    return int(text)


def _number(delivery: DeliveryRow) -> int:
    return ids.read_delivery(delivery.id)[1]
