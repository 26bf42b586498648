"""The site that console and portal are parts of: routing, security headers, static files and error pages."""

import time
from collections.abc import Iterable, Mapping
from ipaddress import ip_address
from typing import Any, Final, cast
from urllib.parse import urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from boathook.config.tables import ServerSettings
from boathook.http.asgi import Asgi, Receive, Send
from boathook.observability import meters
from boathook.observability.log import get_logger
from boathook.pages.rendering import CSP_REPORT_PATH, STATIC, PageRenderer
from boathook.service.access.authorization import Permission, check_routes, requires

_MAX_REPORT_BYTES: Final = 16_384
_MAX_LOGGED_CHARS: Final = 300
_LOG = get_logger("console")


class Site:
    """Console and portal as one ASGI application.

    Args:
        routes: the routes of both; each names its permission.
        home: the console's path, which error pages link to.
    """

    def __init__(self, renderer: PageRenderer, routes: Iterable[Route], *, home: str) -> None:
        self._renderer = renderer
        self._home = home
        self._hosts = _AllowedHosts(renderer.state.app_context.settings.server)
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
        is_console = f"{path}/".startswith(f"{self._home}/") and path != CSP_REPORT_PATH
        if is_console and not self._hosts.allows(scope):
            await self._answer_421(scope, receive, answer.send)
            return
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

    async def _answer_421(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        text = "The console does not answer for this host name. Set server.public_url to the address in your browser."
        response = self._renderer.show(
            "error.html", 421, visit=None, title="Unknown host name", text=text, back=self._home
        )
        await cast("Asgi", response)(scope, receive, send)


class _AllowedHosts:
    """The host names that the console answers for, so that no page of another site can rebind its name to us.

    They are those of ``server.public_url``, ``server.bind`` and loopback; any IP address if ``server.bind`` is every
    address of this machine.
    """

    def __init__(self, server: ServerSettings) -> None:
        self._names = {"localhost", server.host.lower(), (urlsplit(server.public_url).hostname or "").lower()} - {""}
        self._is_any_address = server.host in {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound

    def allows(self, scope: Mapping[str, Any]) -> bool:
        """Return whether the Host header of a request names this server."""
        header = next((value for name, value in scope["headers"] if name == b"host"), b"").decode("latin-1")
        try:
            name = urlsplit(f"//{header}").hostname or ""
        except ValueError:
            return False
        if name in self._names:
            return True
        try:
            address = ip_address(name)
        except ValueError:
            return name.endswith(".localhost")
        return self._is_any_address or address.is_loopback


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
