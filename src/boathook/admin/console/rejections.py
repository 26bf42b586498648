"""Refused requests: why each was refused, its bytes, and another judgement once its source was corrected."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Final
from uuid import UUID

from starlette.responses import Response

from boathook.admin import contents
from boathook.admin.authorization import Permission
from boathook.admin.console import asking
from boathook.admin.console.one_event import content_of
from boathook.admin.console.pages import BASE, Routes, Visit
from boathook.domain import ids
from boathook.domain.errors import InvalidValue, NotFound
from boathook.inbound.verdict import Reason
from boathook.journal import ledger
from boathook.journal.ledger import Filter
from boathook.journal.moves import Action

if TYPE_CHECKING:
    from boathook.admin.reverifying import Reverified

routes = Routes()
REJECTIONS: Final = f"{BASE}/rejections"
_PAGE: Final = 50
_WISHES: Final = ("source", "reason", "state", "since", "until")
_STATES: Final = (("", "all"), ("open", "not accepted"), ("accepted", "accepted later"))
_JUDGING_S: Final = 10.0
"""How long one visit judges requests; whoever wants more goes on."""
_TOLD: Final = 200


@routes.get("/rejections", Permission.REJECTION_VIEW)
async def list_rejections(visit: Visit) -> Response:
    """Show refused requests, newest first."""
    wishes = asking.words(visit.query, _WISHES)
    rows: Sequence[ledger.RejectionRow] = ()
    error = ""
    try:
        rows = await ledger.list_rejections(visit.desk.database, _filter(visit))
    except InvalidValue as problem:
        error = str(problem)
    return visit.page(
        "rejections/list.html",
        rows=rows,
        wishes=wishes,
        error=error,
        more=asking.link(REJECTIONS, wishes, after=rows[-1].id) if len(rows) == _PAGE else "",
        reasons=[("", "any"), *((str(reason), str(reason).replace("_", " ")) for reason in Reason)],
        states=_STATES,
        sources=asking.sources(visit.desk.settings.sources, wishes["source"]),
    )


@routes.get("/rejections/{id}", Permission.REJECTION_VIEW)
async def show_rejection(visit: Visit) -> Response:
    """Show one refused request with its diagnosis and its bytes."""
    # What judges requests takes long to import, and most pages do without it.
    from boathook.admin.diagnosing import diagnose

    refusal = await diagnose(visit.desk.database, visit.desk.settings, _id(visit))
    body = refusal.stored.body
    view, content_type = visit.query.get("view"), refusal.row.content_type
    shown = await content_of(body[: contents.MOST], len(body), view, content_type)
    return visit.page(
        "rejections/one.html",
        row=refusal.row,
        diagnosis=refusal.diagnosis,
        headers=sorted(contents.mask(dict(refusal.stored.headers)).items()),
        content=shown,
        kept=len(body),
    )


@routes.get("/rejections/{id}/body", Permission.REJECTION_VIEW)
async def download_body(visit: Visit) -> Response:
    """Send the bytes that were kept, as a file."""
    row, stored = await ledger.get_rejection(visit.desk.database, _id(visit))
    disposition = {"content-disposition": f'attachment; filename="{row.id}.bin"', "x-content-type-options": "nosniff"}
    return Response(stored.body, media_type="application/octet-stream", headers=disposition)


@routes.post("/rejections/{id}/reverify", Permission.REJECTION_REVERIFY)
async def reverify_one(visit: Visit) -> Response:
    """Judge one request again; what holds is accepted."""
    url = f"{REJECTIONS}/{visit.path['id']}"
    async with aclosing(_judge(visit, [_id(visit)])) as judged:
        result = await anext(judged)
        is_good = result.event_id is not None
        told = (
            f"It is {result.outcome} as {result.event_id}." if is_good else f"Still {result.outcome}: {result.detail}"
        )
        return visit.to(url, told, "good" if is_good else "bad")


@routes.post("/rejections/reverify", Permission.REJECTION_REVERIFY)
async def reverify_source(visit: Visit) -> Response:
    """Judge all refused requests of a source again, for as long as a visit may take."""
    source = asking.word(visit.form, "source")
    if source is None:
        return visit.to(REJECTIONS, "Say of which source.", "bad")
    after = asking.word(visit.form, "after")
    wanted = Filter(source=source, until=asking.moment(visit.form, "until"), after=after and _checked(after))
    results: list[Reverified] = []
    is_whole = True
    ends = time.monotonic() + _JUDGING_S
    async with aclosing(_judge(visit, wanted)) as judged:
        async for result in judged:
            results.append(result)
            if time.monotonic() > ends:
                is_whole = False
                break
    held = [one for one in results if one.event_id is not None]
    return visit.page(
        "rejections/judged.html",
        source=source,
        results=results[-_TOLD:],
        number=len(results),
        held=len(held),
        place=results[-1].rejection_id if results and not is_whole else "",
    )


def _judge(visit: Visit, chosen: Filter | Sequence[UUID]) -> "AsyncGenerator[Reverified, None]":
    from boathook.admin.reverifying import reverify

    return reverify(visit.desk.database, visit.desk.settings, chosen, Action(actor=visit.actor))


def _id(visit: Visit) -> UUID:
    return ids.read(ids.REJECTION, _checked(visit.path["id"]))


def _checked(reference: str) -> str:
    try:
        return ids.show(ids.REJECTION, ids.read(ids.REJECTION, reference))
    except ValueError as error:
        raise NotFound(str(error)) from None


def _filter(visit: Visit) -> Filter:
    state = asking.word(visit.query, "state")
    after = asking.word(visit.query, "after")
    return Filter(
        source=asking.word(visit.query, "source"),
        code=asking.word(visit.query, "reason"),
        state=state if state in {"open", "accepted"} else None,
        since=asking.moment(visit.query, "since"),
        until=asking.moment(visit.query, "until"),
        after=after and _checked(after),
        limit=_PAGE,
    )
