"""The console as one ASGI application: its areas put together."""

import time
from typing import Any, Final, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from boathook.admin.authorization import Permission, check_routes, needs
from boathook.admin.console import (
    alarms,
    applications,
    audit,
    conflicts,
    dead,
    endpoint_lists,
    endpoint_secrets,
    endpoint_sending,
    endpoints,
    event_types,
    events,
    jobs,
    keys,
    now,
    people,
    rejections,
    settings,
    signing_in,
    sources,
    verify,
)
from boathook.admin.console.application_visits import to_console
from boathook.admin.console.frame import REPORTS, STATIC, Frame, State
from boathook.admin.console.pages import BASE, route_of
from boathook.admin.console.portal import portal_routes
from boathook.admin.console.signing_in import SigningIn
from boathook.admin.desk import Desk
from boathook.inbound.app import Asgi, Receive, Send
from boathook.telemetry import emit
from boathook.telemetry.exporters import History
from boathook.telemetry.log import get_logger

AREAS: Final = (
    signing_in.routes,
    now.routes,
    events.routes,
    conflicts.routes,
    dead.routes,
    jobs.routes,
    rejections.routes,
    audit.routes,
    sources.routes,
    event_types.routes,
    keys.routes,
    alarms.routes,
    verify.routes,
    settings.routes,
    people.routes,
    endpoints.routes,
    applications.routes,
    to_console(endpoints.pages),
    to_console(endpoint_secrets.pages),
    to_console(endpoint_sending.pages),
    to_console(endpoint_lists.pages),
)  # fmt: skip
"""The routes of each area; where two paths fit an address, the first counts."""
_LARGEST_REPORT: Final = 16_384
_REPORTED: Final = 300
_LOG = get_logger("console")


def build_console(desk: Desk, history: History) -> "Console":
    """Return the console below /console, standing on *desk*."""
    return Console(Frame(State(desk, history)))


class Console:
    """The console as an ASGI application."""

    def __init__(self, frame: Frame) -> None:
        self._frame = frame
        routes = [
            Route(f"{STATIC}/{{path:path}}", frame.serve_file, methods=["GET"]),
            Route(REPORTS, _Reports().note, methods=["POST"]),
            *SigningIn(frame).routes,
            *(route_of(frame, entry) for area in AREAS for entry in area.entries),
            *portal_routes(frame.state),
        ]
        check_routes(routes)
        self._router = Router(
            routes,
            redirect_slashes=False,
            default=cast("Any", self._answer_404),
        )

    def warm(self) -> None:
        """Do beforehand what would hold up the first request; it may run in a thread."""
        self._frame.warm()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        path = scope["path"]
        if path.endswith("/"):
            scope = {**scope, "path": path.rstrip("/")}
        answer = _Guarded(self._frame, send)
        try:
            # A route with another method raises within an application, and answers in words of its own without.
            await cast("Asgi", self._router)({**scope, "app": self}, receive, answer.send)
        except Exception as error:
            if answer.is_begun:
                raise
            response = self._frame.show_error(error, visit=None)
            await cast("Asgi", response)(scope, receive, answer.send)

    async def _answer_404(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        response = self._frame.show(
            "error.html", 404, visit=None, title="Not found", text="There is no such page.", back=BASE
        )
        await cast("Asgi", response)(scope, receive, send)


class _Guarded:
    """Sends an answer with the headers of every page, whoever made it: files, refusals and faults need them too."""

    def __init__(self, frame: Frame, send: Send) -> None:
        self._frame = frame
        self._send = send
        self.is_begun = False

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.is_begun = True
            message = {**message, "headers": self._frame.completed(message.get("headers", ()))}
        await self._send(message)


class _Reports:
    """Counts what browsers have kept pages from doing; what one of them was is logged at most once a second."""

    def __init__(self) -> None:
        self._quiet_until = 0.0

    @needs(Permission.PUBLIC)
    async def note(self, request: Request) -> Response:
        """Take one report."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _LARGEST_REPORT:
                return Response(status_code=413)
        emit.count("boathook_csp_reports_total")
        if time.monotonic() > self._quiet_until:
            self._quiet_until = time.monotonic() + 1
            _LOG.warning("csp_report", report=_shortened(body))
        # A page that was kept from showing one of ours within it sends its report from its own origin.
        return Response(status_code=204, headers={"cross-origin-resource-policy": "cross-origin"})


def _shortened(body: bytes) -> str:
    try:
        report = msgspec.json.decode(body)["csp-report"]
        text = f"{report['effective-directive']} kept {report['blocked-uri']} from {report['document-uri']}"
    except (msgspec.DecodeError, KeyError, TypeError, RecursionError):
        return "unreadable"
    return text[:_REPORTED]
