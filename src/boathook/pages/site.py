"""The site that console and portal are parts of: routing, security headers, static files and error pages."""

import time
from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from boathook.http.asgi import Asgi, Receive, Send
from boathook.observability import meters
from boathook.observability.log import get_logger
from boathook.pages.rendering import CSP_REPORT_PATH, STATIC, PageRenderer
from boathook.service.authorization import Permission, check_routes, requires

_MAX_REPORT_BYTES: Final = 16_384
_MAX_LOGGED_CHARS: Final = 300
_LOG = get_logger("console")


class Site:
    """Console and portal as one ASGI application.

    Args:
        routes: the routes of both; each names its permission.
        home: the path that the error page links to.
    """

    def __init__(self, renderer: PageRenderer, routes: Iterable[Route], *, home: str) -> None:
        self._renderer = renderer
        self._home = home
        served = [
            Route(f"{STATIC}/{{path:path}}", renderer.serve_file, methods=["GET"]),
            Route(CSP_REPORT_PATH, _CspReports().note, methods=["POST"]),
            *routes,
        ]
        check_routes(served)
        self._router = Router(
            served,
            redirect_slashes=False,
            default=cast("Any", self._answer_404),
        )

    def warm(self) -> None:
        """Load everything that would delay the first request; may run in a thread."""
        self._renderer.warm()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request."""
        path = scope["path"]
        if path.endswith("/"):
            scope = {**scope, "path": path.rstrip("/")}
        answer = _SecurityHeadersSender(self._renderer, send)
        try:
            # With "app" in the scope, the router raises for a wrong method instead of sending its own response.
            await cast("Asgi", self._router)({**scope, "app": self}, receive, answer.send)
        except Exception as error:
            if answer.has_started:
                raise
            response = self._renderer.show_error(error, visit=None)
            await cast("Asgi", response)(scope, receive, answer.send)

    async def _answer_404(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        response = self._renderer.show(
            "error.html", 404, visit=None, title="Not found", text="There is no such page.", back=self._home
        )
        await cast("Asgi", response)(scope, receive, send)


class _SecurityHeadersSender:
    """Sends a response with the security headers; files and errors need them too."""

    def __init__(self, renderer: PageRenderer, send: Send) -> None:
        self._renderer = renderer
        self._send = send
        self.has_started = False

    async def send(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.has_started = True
            message = {**message, "headers": self._renderer.complete_headers(message.get("headers", ()))}
        await self._send(message)


class _CspReports:
    """Counts reports of Content-Security-Policy violations, and logs at most one per second."""

    def __init__(self) -> None:
        self._quiet_until = 0.0

    @requires(Permission.PUBLIC)
    async def note(self, request: Request) -> Response:
        """Receive one report."""
        body = b""
        async for chunk in request.stream():
            body += chunk
            if len(body) > _MAX_REPORT_BYTES:
                return Response(status_code=413)
        meters.count("boathook_csp_reports_total")
        if time.monotonic() > self._quiet_until:
            self._quiet_until = time.monotonic() + 1
            _LOG.warning("csp_report", report=_summarize_report(body))
        # A page that was prevented from embedding one of ours sends its report from its own origin.
        return Response(status_code=204, headers={"cross-origin-resource-policy": "cross-origin"})


def _summarize_report(body: bytes) -> str:
    try:
        report = msgspec.json.decode(body)["csp-report"]
        text = f"{report['effective-directive']} kept {report['blocked-uri']} from {report['document-uri']}"
    except (msgspec.DecodeError, KeyError, TypeError, RecursionError):
        return "unreadable"
    return text[:_MAX_LOGGED_CHARS]
