"""Conflicts: requests whose key or body, but not both, belonged to an event already."""

from uuid import UUID

from starlette.responses import Response

from boathook.admin import comparing, contents
from boathook.admin.authorization import Permission
from boathook.admin.console import asking
from boathook.admin.console.one_event import attachment, content_of
from boathook.admin.console.pages import BASE, Routes, Visit
from boathook.domain import ids
from boathook.domain.differences import pair
from boathook.domain.errors import InvalidValue, NotFound
from boathook.journal import ledger, timeline
from boathook.journal.ledger import Filter

routes = Routes()

_PAGE = 50
_FIELDS = ("source", "application", "since", "until")


@routes.get("/conflicts", Permission.CONFLICT_VIEW)
async def list_conflicts(visit: Visit) -> Response:
    """Show conflicts, the latest first."""
    fields = asking.words(visit.query, _FIELDS)
    sources = asking.sources(visit.desk.settings.sources, fields["source"])
    try:
        wanted = Filter(
            source=fields["source"] or None,
            application=fields["application"] or None,
            since=asking.moment(visit.query, "since"),
            until=asking.moment(visit.query, "until"),
            after=_after(visit.query.get("after", "")),
            limit=_PAGE + 1,
        )
    except InvalidValue as error:
        errors = {str(error.where[0]): str(error)}
        return visit.page(
            "conflicts/list.html", 400, fields=fields, sources=sources, errors=errors, rows=[], older=None
        )
    rows = await ledger.list_conflicts(visit.desk.database, wanted)
    older = asking.link(f"{BASE}/conflicts", fields, after=rows[_PAGE - 1].id) if len(rows) > _PAGE else None
    return visit.page("conflicts/list.html", fields=fields, sources=sources, errors={}, rows=rows[:_PAGE], older=older)


@routes.get("/conflicts/{id}", Permission.CONFLICT_VIEW)
async def show_conflict(visit: Visit) -> Response:
    """Show a conflict beside the event that came first."""
    found = await comparing.compare_conflict(visit.desk.database, _conflict_id(visit))
    is_unified = visit.query.get("view") == "unified"
    twin = found.twin
    return visit.page(
        "conflicts/show.html",
        found=found,
        row=twin.row,
        is_unified=is_unified,
        pairs=pair(found.lines or ()),
        later=await content_of(twin.stored.body[: contents.MOST], twin.row.size, None, twin.content_type),
        earlier=found.first and await content_of(found.first.body[: contents.MOST], len(found.first.body), None, ""),
        headers=contents.mask(dict(twin.stored.headers)),
        first_headers=contents.mask(dict(found.first.headers)) if found.first else {},
    )


@routes.get("/conflicts/{id}/body", Permission.CONFLICT_VIEW)
async def download(visit: Visit) -> Response:
    """Give the bytes of the conflicting request."""
    twin = await timeline.get_conflict(visit.desk.database, _conflict_id(visit))
    return attachment(twin.stored.body, f"{twin.row.id}.bin")


def _conflict_id(visit: Visit) -> UUID:
    try:
        return ids.read(ids.CONFLICT, visit.path["id"])
    except ValueError as error:
        raise NotFound(str(error)) from None


def _after(text: str) -> str | None:
    try:
        return ids.show(ids.CONFLICT, ids.read(ids.CONFLICT, text)) if text else None
    except ValueError as error:
        raise InvalidValue(str(error), "since") from None
