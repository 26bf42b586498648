"""Search over pages and objects by name, id or key, for the command palette and the search box of every page."""

from collections.abc import Iterator
from typing import Final
from urllib.parse import quote

import msgspec
from starlette.responses import Response

from boathook.domain.errors import InvalidValue
from boathook.service.access.authorization import Permission
from boathook.service.operating.object_search import ObjectMatches, choose_names, find_objects
from boathook_console.events import match_url
from boathook_console.handlers import HANDLERS_PATH
from boathook_console.routes import BASE, ConsoleContext, Routes
from boathook_console.shared import query_params

routes = Routes()
_EVENTS: Final = f"{BASE}/events"


class SearchHit(msgspec.Struct, frozen=True):
    """One result: a page of the console, or the page of an object."""

    group: str
    title: str
    url: str
    detail: str = ""


@routes.get("/search", Permission.OVERVIEW_VIEW)
async def search(context: ConsoleContext) -> Response:
    """Show what a text names; open it if it is an id or key, and search events if it names nothing."""
    words, error = context.query.get("q", "").strip(), ""
    matches = ObjectMatches()
    try:
        async with context.work() as work:
            matches = await find_objects(work, words, context.may)
    except InvalidValue as problem:
        error = str(problem)
    direct, others = list(_direct_hits(matches)), [*_page_hits(context, words), *_object_hits(matches)]
    events_url = query_params.build_url(_EVENTS, {"q": words}) if words and context.may(Permission.EVENT_VIEW) else ""
    if not context.is_fragment and not error:
        if len(direct) == 1:
            return context.to(direct[0].url)
        if events_url and not direct and not others:
            return context.to(events_url)
    return context.page(
        "search/options.html" if context.is_fragment else "search/show.html",
        hits=[*direct, *others],
        words=words,
        events_url="" if error else events_url,
        error=error,
    )


def _page_hits(context: ConsoleContext, words: str) -> Iterator[SearchHit]:
    pages = {item.title: item for item in context.navigation}
    for title in choose_names(pages, words) if words else pages:
        yield SearchHit("Pages", title, BASE + pages[title].path, pages[title].group)


def _direct_hits(matches: ObjectMatches) -> Iterator[SearchHit]:
    types = {event.event.id: event.event.type for event in matches.direct.events}
    for id_match in matches.direct.named:
        if (url := match_url(id_match, matches.direct.events)) is not None:
            yield SearchHit("By id or key", id_match.id, url, id_match.item_path or types.get(id_match.id, ""))


def _object_hits(matches: ObjectMatches) -> Iterator[SearchHit]:
    for name in matches.sources:
        yield SearchHit("Sources", name, f"{BASE}/sources/{quote(name)}")
    for name in matches.handlers:
        yield SearchHit("Handlers", name, f"{HANDLERS_PATH}/{quote(name)}")
    for application in matches.applications:
        yield SearchHit(
            "Applications", application.name, f"{BASE}/applications/{application.id}", application.uid or application.id
        )
    for endpoint in matches.endpoints:
        url = f"{BASE}/applications/{endpoint.application_id}/endpoints/{endpoint.id}"
        yield SearchHit("Endpoints", endpoint.url, url, endpoint.application_name)
