"""Pages that search for events."""

import re
from collections.abc import Mapping
from typing import Final
from uuid import UUID

from starlette.datastructures import FormData, QueryParams
from starlette.responses import Response

from boathook.console.background_work import JOBS_PATH
from boathook.console.event_detail import routes
from boathook.console.routes import BASE, ConsoleContext
from boathook.domain import ids
from boathook.domain.errors import InvalidValue, LimitReached, NotFound
from boathook.domain.model import State
from boathook.pages import query_params
from boathook.service import bulk_jobs, search
from boathook.service.authorization import Permission
from boathook.service.search import MAX_SEARCHED_BODY, UNHANDLED, DirectMatch, SearchPage, SearchQuery

__all__ = ["list_events", "routes"]

_EVENTS: Final = f"{BASE}/events"
_MAX_AUTO_SEARCHES: Final = 100
"""Maximum number of automatic searches of a page that continues to search."""
_FIELDS: Final = ("q", "text", "key", "source", "application", "type", "state", "since", "until")


@routes.get("/events", Permission.EVENT_VIEW)
async def list_events(context: ConsoleContext) -> Response:
    """Show the events that match a search."""
    fields = {name: context.query.get(name, "").strip() for name in _FIELDS}
    try:
        query = _search_query(context.query, fields)
        found = await search.find_matches(context.app_context.database, query, context.app_context.settings.sources)
    except InvalidValue as error:
        return _list(context, 400, fields, None, {str(error.where[0]): str(error)}, can_route=False)
    if isinstance(found, DirectMatch) and len(found.named) == 1 and (url := _direct_url(found)) is not None:
        return context.to(url)
    return _list(context, 200, fields, found, {}, can_route=query.can_be_routed)


def _search_query(form: QueryParams | FormData, fields: Mapping[str, str]) -> SearchQuery:
    return SearchQuery(
        words=fields["q"],
        text=fields["text"],
        key=fields["key"],
        source=fields["source"],
        application=fields["application"],
        type=fields["type"],
        state=fields["state"],
        since=query_params.get_time(form, "since"),
        until=query_params.get_time(form, "until"),
        below=_read_cursor(str(form.get("below", ""))),
    )


def _read_cursor(text: str) -> UUID | None:
    try:
        return ids.read_event(text) if text else None
    except ValueError as error:
        raise InvalidValue(str(error), "q") from None


def _list(
    context: ConsoleContext,
    status: int,
    fields: Mapping[str, str],
    found: DirectMatch | SearchPage | None,
    errors: Mapping[str, str],
    *,
    can_route: bool,
) -> Response:
    search_page = found if isinstance(found, SearchPage) else None
    further = None
    if search_page is not None and search_page.place is not None:
        further = query_params.build_url(_EVENTS, fields, below=ids.show(ids.EVENT, search_page.place))
    return context.page(
        "events/list.html",
        status,
        fields=fields,
        errors=errors,
        states=[
            ("", "any"),
            *((str(state), str(state)) for state in State),
            (UNHANDLED, "unhandled: no handler matched"),
        ],
        can_route=can_route,
        sources=query_params.source_options(context.app_context.settings.sources, fields["source"]),
        look=search_page,
        direct=found if isinstance(found, DirectMatch) else None,
        events=[] if found is None else found.events,
        further=further,
        keep=_read_keep_count(context.query.get("keep", "")),
        most_looks=_MAX_AUTO_SEARCHES,
        largest=MAX_SEARCHED_BODY,
        has_filters=any(text for name, text in fields.items() if name != "q"),
        text_url=query_params.build_url(_EVENTS, {}, text=fields["q"]),
    )


@routes.post("/events/route", Permission.EVENT_REPLAY)
async def route(context: ConsoleContext) -> Response:
    """Start routing the matching events again with the current handlers."""
    fields = {name: str(context.form.get(name, "")).strip() for name in _FIELDS}
    try:
        wanted = search.list_filter_of(_search_query(context.form, fields))
        async with context.work() as work:
            to = str(context.form.get("to", "")).strip() or None
            task = await bulk_jobs.route_events(work, wanted, to=to, note=str(context.form.get("note", "")))
    except (InvalidValue, LimitReached, NotFound) as error:
        return context.to(query_params.build_url(_EVENTS, fields), str(error), kind="bad")
    return context.to(f"{JOBS_PATH}/{task.shown_id}")


def _read_keep_count(text: str) -> int:
    return min(int(text), _MAX_AUTO_SEARCHES) if re.fullmatch(r"[0-9]{1,3}", text) else 0


def _direct_url(found: DirectMatch) -> str | None:
    """Return the URL of the single match by id; None if it is not stored."""
    (named,) = found.named
    kind = named.id.partition("_")[0]
    if kind == ids.CONFLICT:
        return f"{BASE}/conflicts/{named.id}"
    if kind == ids.REJECTION:
        return f"{BASE}/rejections/{named.id}"
    if not found.events:
        return None
    event = found.events[0].event.id
    if kind == ids.DELIVERY:
        return f"{_EVENTS}/{event}?delivery={ids.read_delivery(named.id)[1]}"
    return query_params.build_url(f"{_EVENTS}/{event}", {}, item=named.item_path)
