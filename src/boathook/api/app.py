"""The API as one ASGI application."""

import asyncio
import copy
import functools
from collections.abc import Sequence
from typing import Any, Final, cast

import msgspec
from fastapi import FastAPI, Request
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.routing import Match

from boathook.api import (
    applications,
    attempts,
    dead_letters,
    derived,
    endpoints,
    event_feed,
    event_types,
    events,
    messages,
    operational,
    rejections,
    sources,
    tasks,
)
from boathook.api.errors import IGNORED, document_formats, document_responses, to_response
from boathook.api.publish import PublishRoute
from boathook.api.route import router
from boathook.http.asgi import Asgi, Receive, Send
from boathook.observability.log import get_logger
from boathook.service.access.authorization import Permission, check_routes, requires
from boathook.service.sending.buffered_publisher import BufferedPublisher
from boathook.service.sending.destinations import document_destinations
from boathook.service.unit_of_work import AppContext

health_routes = router("Health")


@health_routes.api_route(
    "/health", methods=["GET"], status_code=204, operation_id="v1.health.get", summary="Check that the API works"
)
@health_routes.api_route("/health", methods=["HEAD"], status_code=204, include_in_schema=False)
@requires(Permission.PUBLIC)
async def check_health(request: Request) -> None:
    """Respond with 204 if the database is available."""
    app_context: AppContext = request.state.app_context
    await app_context.database.ping()


@health_routes.api_route(
    "/health/ping", methods=["GET"], status_code=204, operation_id="v1.health.ping", summary="Ping"
)
@health_routes.api_route("/health/ping", methods=["HEAD"], status_code=204, include_in_schema=False)
@requires(Permission.PUBLIC)
async def ping() -> None:
    """Respond with 204."""


BASE: Final = "/api/v1"
ROUTERS: Final = (
    applications.routes,
    endpoints.routes,
    event_types.routes,
    applications.tokens,
    health_routes,
    messages.routes,
    attempts.routes,
    attempts.counting,
    tasks.routes,
    tasks.expunging,
    tasks.background,
    tasks.statistics,
    operational.routes,
    event_types.environment,
    event_feed.routes,
    sources.routes,
    events.routes,
    events.deliveries,
    tasks.bulk,
    dead_letters.routes,
    rejections.routes,
    rejections.conflict_routes,
    derived.routes,
)
_CORS_AGE_S: Final = 600
_DESCRIPTION: Final = """
Sends webhooks: messages for applications, delivered to their endpoints. The official Svix clients speak this API.
Paths accept ids and uids alike. Lists come in pages: pass `iterator` on until `done`.
"""


def build_api(app_context: AppContext, buffered: BufferedPublisher | None = None) -> "Api":
    """Return the API below /api/v1; *buffered* publishes messages while PostgreSQL is unavailable."""
    return Api(app_context, PublishRoute(app_context, cast("Asgi", build_app()), buffered), buffered)


@functools.cache
def build_app() -> FastAPI:
    """Return the application with every route of the API; cached, as building the routes is slow."""
    app = FastAPI(
        title="boathook",
        version="1",
        description=_DESCRIPTION,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_route(f"{BASE}/openapi.json", _describe, include_in_schema=False)
    check_routes([*app.routes, *(route for routes in ROUTERS for route in routes.routes)])
    # include_router would build each of them again.
    app.router.routes += [route for routes in ROUTERS for route in routes.routes]
    app.add_exception_handler(HTTPException, _answer_error)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=["*"],
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=[IGNORED, "retry-after"],
        max_age=_CORS_AGE_S,
    )
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    response = to_response(error)
    if response.status_code == 405 and (methods := _methods_of(request)):
        response.headers["allow"] = ", ".join(sorted(methods))
    return response


def _methods_of(request: Request) -> set[str]:
    """Return the allowed methods of a path over all routes; Starlette returns only those of the first one."""
    routes = (route for router in ROUTERS for route in router.routes if isinstance(route, APIRoute))
    matching_routes = (route for route in routes if route.matches(request.scope)[0] is not Match.NONE)
    return {method for route in matching_routes for method in route.methods or ()}


@requires(Permission.PUBLIC)
async def _describe(request: Request) -> Response:
    app_context: AppContext = request.state.app_context
    kinds = app_context.settings.outbound.destinations
    return Response(await asyncio.to_thread(_encoded_document, kinds), media_type="application/json")


def openapi_document(destinations: Sequence[str] = ()) -> dict[str, Any]:
    """Return the OpenAPI document of the API, with the fields of these kinds of destinations."""
    document = copy.deepcopy(build_app().openapi())
    derived.document_operations(document)
    document_responses(document)
    document_formats(document)
    document_destinations(document, destinations)
    return document


@functools.cache
def _encoded_document(destinations: tuple[str, ...]) -> bytes:
    """Return the OpenAPI document, cached: generating it is too slow for each unauthenticated request."""
    return msgspec.json.encode(openapi_document(destinations))


class Api:
    """The API as an ASGI application; accepts paths with and without a trailing slash."""

    def __init__(self, app_context: AppContext, answer: Asgi, buffered: BufferedPublisher | None = None) -> None:
        self._app_context = app_context
        self._answer = answer
        self._buffered = buffered

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request; exceptions outside of routes are returned as JSON too."""
        is_begun = False
        scope.setdefault("state", {}).update(app_context=self._app_context, buffered=self._buffered)

        async def watch(message: dict[str, Any]) -> None:
            nonlocal is_begun
            is_begun = is_begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self._answer(_without_slash(scope), receive, watch)
        except Exception as error:  # noqa: BLE001 - a traceback belongs in the log
            response = to_response(error)
            if is_begun:
                get_logger("api").warning("answer_cut_off")
            else:
                await cast("Asgi", response)(scope, receive, send)


def _without_slash(scope: dict[str, Any]) -> dict[str, Any]:
    path = scope.get("path", "")
    if scope["type"] != "http" or not path.endswith("/"):
        return scope
    raw = scope.get("raw_path", path.encode())
    return {**scope, "path": path.rstrip("/") or "/", "raw_path": raw.rstrip(b"/") or b"/"}
