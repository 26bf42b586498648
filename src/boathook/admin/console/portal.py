"""The customers' portal: the way in by a link, and the pages of the one application that the link is for."""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from boathook.admin import event_types, keys
from boathook.admin.authorization import Permission, needs
from boathook.admin.console import endpoint_lists, endpoint_secrets, endpoint_sending, endpoints
from boathook.admin.console.application_visits import Page, Pages, Side
from boathook.admin.console.frame import Frame, State, check_origin, read_form
from boathook.admin.console.portal_visits import (
    admit,
    check,
    find_key,
    let_in,
    let_out,
    plain_values,
    read_look,
    route_of,
    show_error,
    with_icon,
)
from boathook.admin.portal import PATH, Look, stylesheet_of
from boathook.journal.event_types import EventType

STATIC: Final = f"{PATH}/static"
_MOST: Final = 200

pages = Pages()


def all_pages() -> list[Page]:
    """Return every page of an application that the portal has."""
    areas = (endpoints.pages, endpoint_secrets.pages, endpoint_sending.pages, endpoint_lists.pages, pages)
    return [page for area in areas for page in area.entries]


def portal_routes(state: State) -> list[Route]:
    """Return the routes of the portal."""
    frame = Frame(state, embedders=state.desk.settings.console.embed_origins, static=STATIC)
    entrance = _Entrance(frame)
    return [
        Route(f"{STATIC}/{{path:path}}", frame.serve_file, methods=["GET"]),
        *entrance.routes,
        *(route_of(frame, page) for page in all_pages()),
    ]


class _Entrance:
    """The way in: the page that a link leads to, whose script hands over the token that stands in the fragment."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        self.routes = [
            Route(PATH, self._show, methods=["GET"]),
            Route(f"{PATH}/enter", self._enter, methods=["POST"]),
            Route(f"{PATH}/here", self._tell_here, methods=["GET"]),
            Route(f"{PATH}/leave", self._leave, methods=["POST"]),
            Route(f"{PATH}/look.css", self._style, methods=["GET"]),
        ]

    @needs(Permission.PUBLIC)
    async def _show(self, request: Request) -> Response:
        return with_icon(self._frame.show("portal/enter.html", **plain_values(request)), read_look(request))

    @needs(Permission.PUBLIC)
    async def _enter(self, request: Request) -> Response:
        desk = self._frame.state.desk
        try:
            check_origin(request, desk.settings.server.public_url)
            form = await read_form(request)
            token = str(form.get("key", ""))
            look = Look.of({name: str(value) for name, value in form.items()}) or Look()
            return let_in(self._frame, request, await find_key(desk, token), token, look)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, the browser gets a page and the log the rest
            return show_error(self._frame, request, error)

    @needs(Permission.ENDPOINT_VIEW)
    async def _tell_here(self, request: Request) -> Response:
        """Tell the script whether the browser has kept the cookie."""
        try:
            check(await admit(self._frame, request), Permission.ENDPOINT_VIEW)
        except Exception as error:  # noqa: BLE001 - the same
            return show_error(self._frame, request, error)
        return self._frame.guarded(Response(status_code=204))

    @needs(Permission.TOKEN_END)
    async def _leave(self, request: Request) -> Response:
        """End the token, as the API's log-out does: a link that was left open somewhere is worth nothing then."""
        try:
            guest = await admit(self._frame, request)
            check(guest, Permission.TOKEN_END)
            async with guest.work() as work:
                await keys.revoke(work, guest.principal.key_id)
        except Exception as error:  # noqa: BLE001 - the same
            return show_error(self._frame, request, error)
        return let_out(guest, RedirectResponse(PATH, 303))

    @needs(Permission.PUBLIC)
    async def _style(self, request: Request) -> Response:
        headers = {"cache-control": "public, max-age=3600", "x-content-type-options": "nosniff"}
        return Response(stylesheet_of(read_look(request)), media_type="text/css", headers=headers)


@pages.get("/event-types", Permission.EVENT_TYPE_VIEW)
async def list_types(side: Side) -> Response:
    """Show the event types that the visitor may listen to."""
    async with side.work() as (work, application):
        rows = await event_types.list_some(
            work, limit=_MOST, place=side.visit.query.get("after") or None, flags=side.flags
        )
    more = rows[-1].name if len(rows) == _MOST else ""
    return side.page("portal/event_types.html", application=application, rows=rows, more=more)


@pages.get("/event-types/{name}", Permission.EVENT_TYPE_VIEW)
async def show_type(side: Side) -> Response:
    """Show an event type with its schema and its example."""
    async with side.work() as (work, application):
        found = await event_types.get(work, side.visit.path["name"], side.flags)
    version, schema = _newest(found)
    examples = schema.get("examples") if isinstance(schema, dict) else None
    return side.page(
        "portal/event_type.html",
        application=application,
        type=found,
        version=version,
        schema=schema,
        example=examples[0] if isinstance(examples, list) and examples else None,
    )


def _newest(type: EventType) -> tuple[str, Any]:
    schemas = type.schemas or {}
    if not schemas:
        return "", None
    version = max(schemas, key=lambda name: (int(name) if name.isdecimal() else -1, name))
    return version, schemas[version]
