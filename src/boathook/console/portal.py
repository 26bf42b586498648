"""The customers' portal: the way in by a link, and the pages of the one application that the link is for."""

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from boathook.console import endpoint_lists, endpoint_secrets, endpoint_sending, endpoints
from boathook.console.application_pages import ApplicationScope, Page, Pages
from boathook.console.portal_context import (
    allow_icon_origin,
    anonymous_values,
    authenticate,
    build_route,
    end_session,
    find_key,
    read_appearance,
    require_permission,
    show_error,
    start_session,
)
from boathook.console.rendering import ConsoleState, PageRenderer, check_origin, read_form
from boathook.service import event_types, keys
from boathook.service.authorization import Permission, requires
from boathook.service.event_types import EventType
from boathook.service.portal_sessions import PATH, PortalAppearance, stylesheet_of

STATIC: Final = f"{PATH}/static"
_MAX_SHOWN: Final = 200

pages = Pages()


def all_pages() -> list[Page]:
    """Return every page of an application that the portal has."""
    areas = (endpoints.pages, endpoint_secrets.pages, endpoint_sending.pages, endpoint_lists.pages, pages)
    return [page for area in areas for page in area.entries]


def portal_routes(state: ConsoleState) -> list[Route]:
    """Return the routes of the portal."""
    renderer = PageRenderer(state, embed_origins=state.app_context.settings.console.embed_origins, static=STATIC)
    entrance = _SignInPages(renderer)
    return [
        Route(f"{STATIC}/{{path:path}}", renderer.serve_file, methods=["GET"]),
        *entrance.routes,
        *(build_route(renderer, page) for page in all_pages()),
    ]


class _SignInPages:
    """The way in: the page that a link leads to, whose script hands over the token that stands in the fragment."""

    def __init__(self, renderer: PageRenderer) -> None:
        self._renderer = renderer
        self.routes = [
            Route(PATH, self._show, methods=["GET"]),
            Route(f"{PATH}/enter", self._sign_in, methods=["POST"]),
            Route(f"{PATH}/here", self._check_session, methods=["GET"]),
            Route(f"{PATH}/leave", self._sign_out, methods=["POST"]),
            Route(f"{PATH}/look.css", self._serve_stylesheet, methods=["GET"]),
        ]

    @requires(Permission.PUBLIC)
    async def _show(self, request: Request) -> Response:
        return allow_icon_origin(
            self._renderer.show("portal/enter.html", **anonymous_values(request)), read_appearance(request)
        )

    @requires(Permission.PUBLIC)
    async def _sign_in(self, request: Request) -> Response:
        app_context = self._renderer.state.app_context
        try:
            check_origin(request, app_context.settings.server.public_url)
            form = await read_form(request)
            token = str(form.get("key", ""))
            look = PortalAppearance.of({name: str(value) for name, value in form.items()}) or PortalAppearance()
            return start_session(self._renderer, request, await find_key(app_context, token), token, look)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong, the browser gets a page and the log the rest
            return show_error(self._renderer, request, error)

    @requires(Permission.ENDPOINT_VIEW)
    async def _check_session(self, request: Request) -> Response:
        """Tell the script whether the browser has kept the cookie."""
        try:
            require_permission(await authenticate(self._renderer, request), Permission.ENDPOINT_VIEW)
        except Exception as error:  # noqa: BLE001 - the same
            return show_error(self._renderer, request, error)
        return self._renderer.with_security_headers(Response(status_code=204))

    @requires(Permission.TOKEN_END)
    async def _sign_out(self, request: Request) -> Response:
        """End the token, as the API's log-out does: a link that was left open somewhere is worth nothing then."""
        try:
            context = await authenticate(self._renderer, request)
            require_permission(context, Permission.TOKEN_END)
            async with context.work() as work:
                await keys.revoke(work, context.principal.key_id)
        except Exception as error:  # noqa: BLE001 - the same
            return show_error(self._renderer, request, error)
        return end_session(context, RedirectResponse(PATH, 303))

    @requires(Permission.PUBLIC)
    async def _serve_stylesheet(self, request: Request) -> Response:
        headers = {"cache-control": "public, max-age=3600", "x-content-type-options": "nosniff"}
        return Response(stylesheet_of(read_appearance(request)), media_type="text/css", headers=headers)


@pages.get("/event-types", Permission.EVENT_TYPE_VIEW)
async def list_types(scope: ApplicationScope) -> Response:
    """Show the event types that the visitor may listen to."""
    async with scope.work() as (work, application):
        rows = await event_types.list_page(
            work, limit=_MAX_SHOWN, place=scope.context.query.get("after") or None, flags=scope.flags
        )
    more = rows[-1].name if len(rows) == _MAX_SHOWN else ""
    return scope.page("portal/event_types.html", application=application, rows=rows, more=more)


@pages.get("/event-types/{name}", Permission.EVENT_TYPE_VIEW)
async def show_type(scope: ApplicationScope) -> Response:
    """Show an event type with its schema and its example."""
    async with scope.work() as (work, application):
        found = await event_types.get(work, scope.context.path["name"], scope.flags)
    version, schema = _latest_schema(found)
    examples = schema.get("examples") if isinstance(schema, dict) else None
    return scope.page(
        "portal/event_type.html",
        application=application,
        type=found,
        version=version,
        schema=schema,
        example=examples[0] if isinstance(examples, list) and examples else None,
    )


def _latest_schema(type: EventType) -> tuple[str, Any]:
    schemas = type.schemas or {}
    if not schemas:
        return "", None
    version = max(schemas, key=lambda name: (int(name) if name.isdecimal() else -1, name))
    return version, schemas[version]
