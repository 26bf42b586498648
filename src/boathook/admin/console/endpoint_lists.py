"""Lists of an endpoint's attempts and an application's messages, read in bounded looks; and one of each."""

import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from urllib.parse import urlencode
from uuid import UUID

import msgspec
from starlette.responses import Response

from boathook.admin import attempts, endpoints, messages
from boathook.admin.authorization import Permission
from boathook.admin.console.application_visits import Pages, Side
from boathook.admin.desk import Work
from boathook.admin.endpoint_secrets import hide_custom, hide_sensitive
from boathook.domain import ids
from boathook.domain.errors import InvalidValue
from boathook.domain.windows import after_message
from boathook.journal import attempts as attempt_journal
from boathook.journal import endpoint_sights as sights
from boathook.journal import messages as message_journal
from boathook.journal.applications import Application
from boathook.journal.attempts import Listing
from boathook.journal.endpoint_sights import Look
from boathook.journal.messages import MessageRow

pages = Pages()

Row = TypeVar("Row")
_PAGE: Final = 50
_BUDGET_S: Final = 0.15
"""How long a page searches before it says how far it has come."""
_CLASSES: Final = {"none": 0, "2xx": 200, "3xx": 300, "4xx": 400, "5xx": 500}
_MOST_SHOWN: Final = 65_536
"""Bytes of a payload that a page shows; all of it can be downloaded."""


async def look_until_full(
    step: Callable[[UUID | None, int], Awaitable[Look[Row]]], place: UUID | None, limit: int
) -> Look[Row]:
    """Look on until so many rows are found, nothing further is there, or time is up."""
    ends, rows = time.monotonic() + _BUDGET_S, list[Row]()
    while True:
        look = await step(place, limit - len(rows))
        rows += look.rows
        place = look.place
        if place is None or len(rows) >= limit or time.monotonic() > ends:
            return Look(rows, place)


def _further(look: Look[Any], side: Side, prefix: str) -> dict[str, Any]:
    """Return where the list goes on, for a page."""
    if look.place is None:
        return {"more": "", "looked_until": None, "is_full": True}
    kept = [(name, value) for name, value in side.visit.query.multi_items() if name != "before"]
    query = urlencode([*kept, ("before", ids.show(prefix, look.place))])
    until: datetime = ids.made_at(look.place)
    return {"more": f"?{query}", "looked_until": until, "is_full": len(look.rows) >= _PAGE}


def _read_place(side: Side, prefix: str) -> UUID | None:
    text = side.visit.query.get("before", "")
    try:
        return ids.read(prefix, text) if text else None
    except ValueError as error:
        raise InvalidValue(str(error), "before") from None


def _word(side: Side, name: str) -> str | None:
    text = side.visit.query.get(name, "").strip()
    if "\x00" in text:
        raise InvalidValue("it must not hold control characters", name)
    return text or None


@pages.get("/endpoints/{endpoint}/attempts", Permission.MESSAGE_VIEW)
async def list_attempts(side: Side) -> Response:
    """Show an endpoint's attempts, newest first."""
    result, answered, type = (_word(side, name) for name in ("result", "answer", "type"))
    async with side.work() as (work, application):
        endpoint = await endpoints.get(work, application, side.visit.path["endpoint"])
        look = await look_until_full(
            lambda place, limit: sights.look_at_attempts(
                work.connection,
                endpoint.id,
                place,
                is_success={"succeeded": True, "failed": False}.get(result or ""),
                status_class=_CLASSES.get(answered or ""),
                type=type,
                limit=limit,
            ),
            _read_place(side, ids.ATTEMPT),
            _PAGE,
        )
    wanted = {"result": result or "", "answer": answered or "", "type": type or ""}
    return side.page(
        "endpoints/attempts.html",
        application=application,
        endpoint=endpoint,
        rows=look.rows,
        wanted=wanted,
        **_further(look, side, ids.ATTEMPT),
    )


@pages.get("/endpoints/{endpoint}/attempts/{message}/{attempt}", Permission.MESSAGE_VIEW)
async def show_attempt(side: Side) -> Response:
    """Show what was sent with an attempt, and what was answered."""
    path = side.visit.path
    async with side.work() as (work, application):
        endpoint = await endpoints.get(work, application, path["endpoint"])
        row = await attempts.get(work, application, path["message"], path["attempt"])
        request = await sights.find_request(work.connection, row.message.id, row.id)
    if row.endpoint_id != endpoint.id or request is None:
        raise InvalidValue("this attempt was made at another endpoint", "attempt")
    show = hide_sensitive if side.may(Permission.ENDPOINT_HEADERS_VIEW) else hide_custom
    return side.page(
        "endpoints/attempt.html",
        application=application,
        endpoint=endpoint,
        row=row,
        attempt_id=path["attempt"],
        at=ids.made_at(row.id),
        request=request,
        headers=show(request.headers),
        answer=_text_of(row.response),
        payload=_payload_of(row.message),
    )


@pages.get("/messages", Permission.MESSAGE_VIEW)
async def list_messages(side: Side) -> Response:
    """Show an application's messages, newest first."""
    type, channel, wanted_id = (_word(side, name) for name in ("type", "channel", "id"))
    async with side.work() as (work, application):
        if wanted_id is not None:
            return await _find_message(side, work, application, wanted_id)
        look = await look_until_full(
            lambda place, limit: sights.look_at_messages(
                work.connection, application.shown_id, place, type=type, channel=channel, limit=limit
            ),
            _read_place(side, ids.MESSAGE),
            _PAGE,
        )
    return side.page(
        "applications/messages.html",
        application=application,
        rows=look.rows,
        wanted={"type": type or "", "channel": channel or "", "id": ""},
        **_further(look, side, ids.MESSAGE),
    )


async def _find_message(side: Side, work: Work, application: Application, reference: str) -> Response:
    found = await messages.get(work, application, reference)
    return side.to(f"/messages/{found.shown_id}")


@pages.get("/messages/{message}", Permission.MESSAGE_VIEW)
async def show_message(side: Side) -> Response:
    """Show a message, how it stands at its endpoints, and the attempts to send it."""
    async with side.work() as (work, application):
        found = await messages.get(work, application, side.visit.path["message"])
        places = await message_journal.list_destinations(work.connection, application.id, found.id, None, limit=_PAGE)
        listing = Listing(window=after_message(found.id, datetime.now(UTC)), limit=_PAGE, has_response=False)
        tries = await attempt_journal.list_some(work.connection, application.shown_id, listing, message_id=found.id)
    return side.page(
        "applications/message.html",
        application=application,
        message=found,
        at=ids.made_at(found.id),
        payload=_payload_of(found),
        size=len(found.body or b""),
        destinations=places.rows,
        attempts=[(ids.show(ids.ATTEMPT, one.id), ids.show(ids.ENDPOINT, one.endpoint_id), ids.made_at(one.id), one)
                  for one in tries.rows],
        event=ids.show(ids.EVENT, found.id),
        endpoint_name=lambda one: ids.show(ids.ENDPOINT, one),
    )  # fmt: skip


@pages.get("/messages/{message}/payload", Permission.MESSAGE_VIEW)
async def download_payload(side: Side) -> Response:
    """Give a message's payload as a file, byte for byte."""
    async with side.work() as (work, application):
        found = await messages.get(work, application, side.visit.path["message"])
    headers = {"content-disposition": f'attachment; filename="{found.shown_id}.json"'}
    return Response(found.body or b"", media_type="application/octet-stream", headers=headers)


@pages.post("/messages/{message}/resend", Permission.MESSAGE_RESEND)
async def resend(side: Side) -> Response:
    """Send a message to one endpoint once more."""
    async with side.work() as (work, application):
        found = await messages.get(work, application, side.visit.path["message"])
        await messages.resend(work, application, found.shown_id, side.field("endpoint"))
    return side.to(f"/messages/{found.shown_id}", "It is sent once more.")


def _payload_of(message: MessageRow) -> str | None:
    """Return a payload as people read it; None where it is gone."""
    if message.is_gone or message.body is None:
        return None
    body = message.body[:_MOST_SHOWN]
    if len(message.body) <= _MOST_SHOWN:
        try:
            return msgspec.json.format(body, indent=2).decode()
        except (msgspec.MsgspecError, ValueError, RecursionError):
            pass
    return _text_of(body)


def _text_of(content: bytes | None) -> str:
    return (content or b"").decode("utf-8", "replace")
