"""Pages that search for events, and act on those that a search finds."""

import re
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from urllib.parse import urlencode
from uuid import UUID

import msgspec
from msgspec.structs import asdict
from starlette.datastructures import FormData, QueryParams
from starlette.responses import Response

from boathook.domain import ids
from boathook.domain.errors import InvalidValue, LimitReached, NotFound
from boathook.domain.model import State
from boathook.service.access.authorization import Permission
from boathook.service.catalogue import events as actions
from boathook.service.catalogue.operation import Operation
from boathook.service.catalogue.values import name_fields
from boathook.service.field_values import parse_texts
from boathook.service.fields import check
from boathook.service.operating import search
from boathook.service.operating.event_query import UNHANDLED, EventQuery
from boathook.service.operating.search import (
    MAX_SEARCHED_BODY,
    DirectMatch,
    ExportedEvent,
    ExportEnd,
    FoundEvent,
    IdMatch,
    SearchPage,
)
from boathook.service.sending import applications
from boathook_console import exports
from boathook_console.derived import read_form
from boathook_console.routes import BASE, ConsoleContext, Routes
from boathook_console.shared import query_params
from boathook_console.system import JOBS_PATH

In = TypeVar("In", bound=actions.Events)
routes = Routes()
_EVENTS: Final = f"{BASE}/events"
_MAX_AUTO_SEARCHES: Final = 100
"""Maximum number of automatic searches of a page that continues to search."""
_FIELDS: Final = ("q", "where", "text", "key", "source", "application", "type", "state", "since", "until")
_RANGES: Final = (("15m", "15 min"), ("1h", "1 h"), ("24h", "24 h"), ("7d", "7 d"), ("", "All"))
_LABELS: Final = {
    "q": "Search",
    "source": "Source",
    "application": "Application",
    "type": "Type",
    "state": "State",
    "where": "Value",
    "text": "Text",
    "key": "Key",
    "since": "Since",
    "until": "Before",
}
"""The fields of a search in the order in which chips show them."""
_MAX_SUGGESTIONS: Final = 50
_CSV_COLUMNS: Final = [name for name in ExportedEvent.__struct_fields__ if not name.startswith("body")]


class _Chip(msgspec.Struct, frozen=True):
    """A filter in use."""

    label: str
    value: str
    url: str
    """The same search without it."""


@routes.get("/events", Permission.EVENT_VIEW)
async def list_events(context: ConsoleContext) -> Response:
    """Show the events that match a search."""
    fields = _fields(context.query)
    try:
        query, below = _read_query(fields), _read_cursor(context.query.get("below", ""))
        result = await search.find_matches(
            context.app_context.database, query, context.app_context.settings.sources, below
        )
    except InvalidValue as error:
        return await _list(context, 400, EventQuery(), None, {str(error.where[0]): str(error)})
    if isinstance(result, DirectMatch) and len(result.named) == 1:
        url = match_url(result.named[0], result.events)
        if url is not None:
            return context.to(url)
    return await _list(context, 200, query, result, {}, can_follow=below is None)


@routes.get("/events/tail", Permission.EVENT_VIEW)
async def show_newest(context: ConsoleContext) -> Response:
    """Show the rows of the newest matches, for a page that follows them."""
    after = query_params.get_time(context.query, "after") or datetime.now(UTC)
    query = _read_query(_fields(context.query))
    newer = await search.find_newer(context.app_context.database, query, after)
    return context.page("events/tail.html", events=newer.events, is_cut=newer.is_full)


@routes.get("/events/suggestions/{field}", Permission.EVENT_VIEW)
async def suggest(context: ConsoleContext) -> Response:
    """Show the values that complete a filter."""
    field = context.path["field"]
    part = query_params.get_text(context.query, field) or ""
    if field == "type":
        values = await search.suggest_types(context.app_context.database, part)
    elif field == "application" and context.may(Permission.APPLICATION_LIST):
        async with context.work() as work:
            page = await applications.search(work, part or None, after=None, limit=_MAX_SUGGESTIONS)
        values = [row.application.uid or row.application.shown_id for row in page]
    else:
        raise NotFound("there are suggestions for type and application only")
    return context.page("events/suggestions.html", values=values)


@routes.post("/events/download/{kind}", Permission.EVENT_EXPORT)
async def download_list(context: ConsoleContext) -> Response:
    """Stream the matching events as a file; the export is recorded in the audit log."""
    kind, fields = context.path["kind"], _fields(context.form)
    exports.check_kind(kind)
    query = check(_read_query(fields))
    async with context.work() as work:
        await search.record_export(work, kind, _query_string(fields))
    return exports.stream_file("boathook-events", kind, _lines(context, query, kind))


async def _lines(context: ConsoleContext, query: EventQuery, kind: str) -> AsyncIterator[bytes]:
    if kind == "csv":
        yield exports.to_csv([_CSV_COLUMNS])
    async for part in search.export_events(context.app_context, query, has_bodies=kind == "jsonl"):
        if isinstance(part, ExportEnd):
            yield exports.to_csv([[f"truncated: {part.truncated}"]]) if kind == "csv" else exports.to_json_lines([part])
        elif kind == "csv":
            yield exports.to_csv([_csv_value(getattr(row, name)) for name in _CSV_COLUMNS] for row in part)
        else:
            yield exports.to_json_lines(part)


def _csv_value(value: object) -> object:
    if isinstance(value, datetime):
        return value.isoformat(timespec="milliseconds")
    return ", ".join(f"{number} {state}" for state, number in value.items()) if isinstance(value, dict) else value


@routes.get("/events/replay", Permission.EVENT_REPLAY)
async def preview_replay(context: ConsoleContext) -> Response:
    """Show how many events a replay covers."""
    return await _preview_replay(context, context.query)


async def _preview_replay(
    context: ConsoleContext, form: QueryParams | FormData, status: int = 200, **errors: str
) -> Response:
    fields = _fields(form)
    query = _read_query(fields)
    preview = actions.EventsReplayed(dry_run=True, matching=0)
    if not query.is_open:
        async with context.work() as work:
            preview = await actions.replay(work, actions.ReplayEvents(**asdict(query), dry_run=True))
    return context.page(
        "events/replay.html",
        status,
        fields=fields,
        chips=_chips(fields),
        is_open=query.is_open,
        number=preview.matching,
        is_exact=preview.is_exact,
        back=query_params.build_url(_EVENTS, fields),
        errors=errors,
        wishes=query_params.get_texts(form, ("rate", "note")),
    )


@routes.post("/events/replay", Permission.EVENT_REPLAY)
async def replay_found(context: ConsoleContext) -> Response:
    """Replay the matching events, in the background."""
    try:
        query = _read_query(_fields(context.form))
        return await _start_job(
            context, actions.replay, read_form(context, actions.replay, "rate", "note", **asdict(query))
        )
    except InvalidValue as error:
        if error.where[:1] not in {("rate",), ("note",)}:
            raise
        return await _preview_replay(context, context.form, 400, **{str(error.where[0]): str(error)})


async def _start_job(context: ConsoleContext, operation: Operation[In, Any], input: In) -> Response:
    """Start the job of an operation, and show it."""
    async with context.work() as work:
        acted = await operation(work, input)
    return context.to(f"{JOBS_PATH}/{acted.job}")


@routes.post("/events/views", Permission.EVENT_VIEW)
async def save_view(context: ConsoleContext) -> Response:
    """Save the search under a name."""
    fields = _fields(context.form)
    page = query_params.build_url(_EVENTS, fields)
    try:
        check(_read_query(fields))
        async with context.work() as work:
            name = context.field("name")
            view = await search.save_view(work, context.operator, name, _query_string(fields))
    except (InvalidValue, LimitReached) as error:
        return context.to(page, str(error), "bad")
    return context.to(page, f"Saved as {view.name}")


@routes.post("/events/views/delete", Permission.EVENT_VIEW)
async def delete_view(context: ConsoleContext) -> Response:
    """Delete a saved search."""
    name = context.field("name")
    async with context.work() as work:
        await search.delete_view(work, context.operator, name)
    return context.to(query_params.build_url(_EVENTS, _fields(context.form)), f"Deleted the view {name}")


@routes.post("/events/route", Permission.EVENT_REPLAY)
async def route(context: ConsoleContext) -> Response:
    """Start routing the matching events again with the current handlers."""
    fields = _fields(context.form)
    try:
        to = context.field("to").strip() or None
        route_input = read_form(context, actions.route, "note", to=to, **asdict(_read_query(fields)))
        return await _start_job(context, actions.route, route_input)
    except (InvalidValue, LimitReached, NotFound) as error:
        return context.to(query_params.build_url(_EVENTS, fields), name_fields(str(error)), kind="bad")


def _fields(form: QueryParams | FormData) -> dict[str, str]:
    return {name: str(form.get(name, "")).strip() for name in _FIELDS}


def _query_string(fields: Mapping[str, str]) -> str:
    return urlencode({name: value for name, value in fields.items() if value})


def _read_query(fields: Mapping[str, str]) -> EventQuery:
    """Return the filters in the fields of a form. Raises InvalidValue."""
    values, problems = parse_texts(EventQuery, fields)
    for problem in problems:
        raise InvalidValue(problem.text, *problem.where)
    return EventQuery(**values)


def _read_cursor(text: str) -> UUID | None:
    try:
        return ids.read_event(text) if text else None
    except ValueError as error:
        raise InvalidValue(str(error), "q") from None


def _chips(fields: Mapping[str, str]) -> list[_Chip]:
    return [
        _Chip(label, fields[name], query_params.build_url(_EVENTS, {**fields, name: ""}))
        for name, label in _LABELS.items()
        if fields[name]
    ]


async def _list(
    context: ConsoleContext,
    status: int,
    query: EventQuery,
    result: DirectMatch | SearchPage | None,
    errors: Mapping[str, str],
    *,
    can_follow: bool = False,
) -> Response:
    fields = _fields(context.query)
    search_page = result if isinstance(result, SearchPage) else None
    further = None
    if search_page is not None and search_page.place is not None:
        further = query_params.build_url(_EVENTS, fields, below=ids.show(ids.EVENT, search_page.place))
    async with context.work() as work:
        views = await search.list_views(work, context.operator)
    can_follow = can_follow and search_page is not None and query.until is None
    return context.page(
        "events/list.html",
        status,
        fields=fields,
        errors=errors,
        ranges=[
            (title, query_params.build_url(_EVENTS, {**fields, "since": since, "until": ""}), since == fields["since"])
            for since, title in _RANGES
        ],
        custom_url=query_params.build_url(_EVENTS, fields, custom="yes") + "#f-since",
        is_custom=bool(fields["until"] or context.query.get("custom"))
        or fields["since"] not in {since for since, _ in _RANGES},
        states=[
            ("", "any"),
            *((str(state), str(state)) for state in State),
            (UNHANDLED, "unhandled: no handler matched"),
        ],
        chips=_chips(fields),
        views=views,
        current=_query_string(fields),
        can_route=not query.is_open,
        can_replay=not query.is_open,
        sources=query_params.source_options(context.app_context.settings.sources, fields["source"]),
        look=search_page,
        direct=result if isinstance(result, DirectMatch) else None,
        events=[] if result is None else result.events,
        further=further,
        tail=query_params.build_url(f"{_EVENTS}/tail", fields, after=_tail_start(result)) if can_follow else "",
        max_exported=search.MAX_EXPORTED,
        replay_url=query_params.build_url(f"{_EVENTS}/replay", fields),
        keep=_read_keep_count(context.query.get("keep", "")),
        most_looks=_MAX_AUTO_SEARCHES,
        largest=MAX_SEARCHED_BODY,
        has_filters=any(fields[name] for name in _FIELDS if name not in {"q", "since", "until"}),
        text_url=query_params.build_url(_EVENTS, {}, text=fields["q"]),
    )


def _tail_start(result: DirectMatch | SearchPage | None) -> str:
    """Return the time from which a page follows new events: that of the newest one shown, or now."""
    newest = result.events[0].event.accepted_at if result is not None and result.events else datetime.now(UTC)
    return newest.isoformat()


def _read_keep_count(text: str) -> int:
    return min(int(text), _MAX_AUTO_SEARCHES) if re.fullmatch(r"[0-9]{1,3}", text) else 0


def match_url(match: IdMatch, events: Sequence[FoundEvent]) -> str | None:
    """Return the URL of a match by id or key; None if it belongs to none of the stored *events*."""
    kind = match.id.partition("_")[0]
    if kind == ids.CONFLICT:
        return f"{BASE}/conflicts/{match.id}"
    if kind == ids.REJECTION:
        return f"{BASE}/rejections/{match.id}"
    event_id, ordinal = ids.read_delivery(match.id) if kind == ids.DELIVERY else (ids.read_event(match.id), None)
    event = ids.show(ids.EVENT, event_id)
    if all(row.event.id != event for row in events):
        return None
    return query_params.build_url(f"{_EVENTS}/{event}", {}, delivery=ordinal, item=match.item_path)
