"""Pages about rejected requests: why each was rejected, its bytes, and verifying it again."""

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Final
from uuid import UUID

from starlette.responses import Response

from boathook.console import query_params
from boathook.console.event_detail import render_body
from boathook.console.routes import BASE, ConsoleContext, Routes
from boathook.domain import ids
from boathook.domain.errors import InvalidValue, NotFound
from boathook.domain.verification import Reason
from boathook.service import body_view, listings
from boathook.service.authorization import Permission
from boathook.service.diagnosis import diagnose
from boathook.service.listings import ListFilter, RejectionRow
from boathook.service.operations import AuditContext
from boathook.service.reverification import ReverifyResult, reverify

routes = Routes()
REJECTIONS_PATH: Final = f"{BASE}/rejections"
_PAGE: Final = 50
_FILTER_FIELDS: Final = ("source", "reason", "state", "since", "until")
_STATES: Final = (("", "all"), ("open", "not accepted"), ("accepted", "accepted later"))
_REVERIFY_BUDGET_S: Final = 10.0
"""How long one visit judges requests; whoever wants more goes on."""
_MAX_SHOWN: Final = 200


@routes.get("/rejections", Permission.REJECTION_VIEW)
async def list_rejections(context: ConsoleContext) -> Response:
    """Show refused requests, newest first."""
    wishes = query_params.get_texts(context.query, _FILTER_FIELDS)
    rows: Sequence[RejectionRow] = ()
    error = ""
    try:
        rows = await _list_page(context)
    except InvalidValue as problem:
        error = str(problem)
    return context.page(
        "rejections/list.html",
        rows=rows,
        wishes=wishes,
        error=error,
        more=query_params.build_url(REJECTIONS_PATH, wishes, after=rows[-1].id) if len(rows) == _PAGE else "",
        reasons=[("", "any"), *((str(reason), str(reason).replace("_", " ")) for reason in Reason)],
        states=_STATES,
        sources=query_params.source_options(context.app_context.settings.sources, wishes["source"]),
    )


@routes.get("/rejections/{id}", Permission.REJECTION_VIEW)
async def show_rejection(context: ConsoleContext) -> Response:
    """Show one refused request with its diagnosis and its bytes."""
    app_context = context.app_context
    refusal = await diagnose(app_context.database, app_context.settings, _id(context))
    body = refusal.stored.body
    view, content_type = context.query.get("view"), refusal.row.content_type
    shown = await render_body(body[: body_view.MAX_BYTES], len(body), view, content_type)
    return context.page(
        "rejections/one.html",
        row=refusal.row,
        diagnosis=refusal.diagnosis,
        headers=sorted(body_view.mask(dict(refusal.stored.headers)).items()),
        content=shown,
        kept=len(body),
    )


@routes.get("/rejections/{id}/body", Permission.REJECTION_VIEW)
async def download_body(context: ConsoleContext) -> Response:
    """Send the bytes that were kept, as a file."""
    row, stored = await listings.get_rejection(context.app_context.database, _id(context))
    disposition = {"content-disposition": f'attachment; filename="{row.id}.bin"', "x-content-type-options": "nosniff"}
    return Response(stored.body, media_type="application/octet-stream", headers=disposition)


@routes.post("/rejections/{id}/reverify", Permission.REJECTION_REVERIFY)
async def reverify_one(context: ConsoleContext) -> Response:
    """Judge one request again; what holds is accepted."""
    url = f"{REJECTIONS_PATH}/{context.path['id']}"
    (result,) = [one async for one in _reverify(context, [_id(context)])]
    if result.event_id is None:
        return context.to(url, f"Still {result.outcome}: {result.detail}", "bad")
    return context.to(url, f"Verified: {result.outcome} as {result.event_id}.")


@routes.post("/rejections/reverify", Permission.REJECTION_REVERIFY)
async def reverify_source(context: ConsoleContext) -> Response:
    """Judge all refused requests of a source again, for as long as a visit may take."""
    source = query_params.get_text(context.form, "source")
    if source is None:
        return context.to(REJECTIONS_PATH, "Choose a source.", "bad")
    after = query_params.get_text(context.form, "after")
    until = query_params.get_time(context.form, "until")
    place = None if after is None else ids.show(ids.REJECTION, _read_id(after))
    results: list[ReverifyResult] = []
    is_whole = True
    ends = time.monotonic() + _REVERIFY_BUDGET_S
    judged = _reverify(context, ListFilter(source=source, until=until, after=place))
    async with aclosing(judged):
        async for result in judged:
            results.append(result)
            if time.monotonic() > ends:
                is_whole = False
                break
    held = [one for one in results if one.event_id is not None]
    return context.page(
        "rejections/judged.html",
        source=source,
        results=results[-_MAX_SHOWN:],
        number=len(results),
        held=len(held),
        place=results[-1].rejection_id if results and not is_whole else "",
    )


def _reverify(context: ConsoleContext, chosen: ListFilter | Sequence[UUID]) -> AsyncGenerator[ReverifyResult, None]:
    app_context = context.app_context
    return reverify(app_context.database, app_context.settings, chosen, AuditContext(actor=context.actor))


def _id(context: ConsoleContext) -> UUID:
    return _read_id(context.path["id"])


def _read_id(reference: str) -> UUID:
    try:
        return ids.read(ids.REJECTION, reference)
    except ValueError as error:
        raise NotFound(str(error)) from None


async def _list_page(context: ConsoleContext) -> Sequence[RejectionRow]:
    state = query_params.get_text(context.query, "state")
    after = query_params.get_text(context.query, "after")
    wanted = ListFilter(
        source=query_params.get_text(context.query, "source"),
        code=query_params.get_text(context.query, "reason"),
        state=state if state in {"open", "accepted"} else None,
        since=query_params.get_time(context.query, "since"),
        until=query_params.get_time(context.query, "until"),
        after=None if after is None else ids.show(ids.REJECTION, _read_id(after)),
        limit=_PAGE,
    )
    return await listings.list_rejections(context.app_context.database, wanted)
