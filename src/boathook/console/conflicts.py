"""Conflicts: requests whose key or body, but not both, belonged to an event already."""

from uuid import UUID

from starlette.responses import Response

from boathook.console import query_params
from boathook.console.event_detail import attachment, render_body
from boathook.console.routes import BASE, ConsoleContext, Routes
from boathook.domain import ids
from boathook.domain.errors import InvalidValue, NotFound
from boathook.domain.line_diff import side_by_side
from boathook.service import body_view, conflicts, listings
from boathook.service.authorization import Permission
from boathook.service.listings import ListFilter

routes = Routes()

_PAGE = 50
_FIELDS = ("source", "application", "since", "until")


@routes.get("/conflicts", Permission.CONFLICT_VIEW)
async def list_conflicts(context: ConsoleContext) -> Response:
    """Show conflicts, the latest first."""
    fields = query_params.get_texts(context.query, _FIELDS)
    sources = query_params.source_options(context.app_context.settings.sources, fields["source"])
    try:
        wanted = ListFilter(
            source=fields["source"] or None,
            application=fields["application"] or None,
            since=query_params.get_time(context.query, "since"),
            until=query_params.get_time(context.query, "until"),
            after=_read_cursor(context.query.get("after", "")),
            limit=_PAGE + 1,
        )
        rows = await listings.list_conflicts(context.app_context.database, wanted)
    except InvalidValue as error:
        errors = {str(error.where[0]): str(error)}
        return context.page(
            "conflicts/list.html", 400, fields=fields, sources=sources, errors=errors, rows=[], older=None
        )
    older = query_params.build_url(f"{BASE}/conflicts", fields, after=rows[_PAGE - 1].id) if len(rows) > _PAGE else None
    return context.page(
        "conflicts/list.html", fields=fields, sources=sources, errors={}, rows=rows[:_PAGE], older=older
    )


@routes.get("/conflicts/{id}", Permission.CONFLICT_VIEW)
async def show_conflict(context: ConsoleContext) -> Response:
    """Show a conflict beside the event that came first."""
    found = await conflicts.compare_conflict(context.app_context.database, _conflict_id(context))
    is_unified = context.query.get("view") == "unified"
    twin = found.twin
    return context.page(
        "conflicts/show.html",
        found=found,
        row=twin.row,
        is_unified=is_unified,
        pairs=side_by_side(found.lines or ()),
        later=await render_body(twin.stored.body[: body_view.MAX_BYTES], twin.row.size, None, twin.content_type),
        earlier=found.first
        and await render_body(found.first.body[: body_view.MAX_BYTES], len(found.first.body), None, ""),
        headers=body_view.mask(dict(twin.stored.headers)),
        first_headers=body_view.mask(dict(found.first.headers)) if found.first else {},
    )


@routes.get("/conflicts/{id}/body", Permission.CONFLICT_VIEW)
async def download(context: ConsoleContext) -> Response:
    """Give the bytes of the conflicting request."""
    twin = await conflicts.get(context.app_context.database, _conflict_id(context))
    return attachment(twin.stored.body, f"{twin.row.id}.bin")


def _conflict_id(context: ConsoleContext) -> UUID:
    try:
        return ids.read(ids.CONFLICT, context.path["id"])
    except ValueError as error:
        raise NotFound(str(error)) from None


def _read_cursor(text: str) -> str | None:
    try:
        return ids.show(ids.CONFLICT, ids.read(ids.CONFLICT, text)) if text else None
    except ValueError as error:
        raise InvalidValue(str(error), "since") from None
