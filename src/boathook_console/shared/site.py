"""The site of the console, and that of the portal: routing, security headers, static files and error pages."""

import time
from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_address
from typing import Any, Final, cast
from urllib.parse import urlsplit

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from boathook.config.tables import ServerSettings
from boathook.http.asgi import Asgi, Receive, Send
from boathook.observability import meters
from boathook.observability.log import get_logger
from boathook.service.access.authorization import Permission, check_routes, requires
from boathook_console.shared.rendering import PageRenderer

_MAX_REPORT_BYTES: Final = 16_384
_MAX_LOGGED_CHARS: Final = 300
_LOG = get_logger("console")


class Site:
    """The console or the portal as an ASGI application.

    Args:
        routes: its routes; each names its permission.
        show_error: returns the page for an error.
        is_host_checked: whether it answers for the host names of this server only.
    """

    def __init__(
        self,
        renderer: PageRenderer,
        routes: Iterable[Route],
        *,
        show_error: Callable[[Request, Exception], Response],
        is_host_checked: bool = False,
    ) -> None:
        self._renderer = renderer
        self._show_error = show_error
        self._hosts = AllowedHosts(renderer.state.app_context.settings.server) if is_host_checked else None
        served = [
            Route(f"{renderer.static_path}/{{path:path}}", renderer.serve_file, methods=["GET"]),
            Route(renderer.report_path, _CspReports().note, methods=["POST"]),
            *routes,
        ]
        check_routes(served)
        self._router = Router(
            served,
            redirect_slashes=False,
            default=cast("Any", _answer_404),
        )

        renderer.warm()

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Handle one request."""
        path = scope["path"]
        if path.endswith("/"):
            scope = {**scope, "path": path.rstrip("/")}
        answer = _SecurityHeadersSender(self._renderer, send)
        try:
            if self._hosts is not None and path != self._renderer.report_path:
                self._hosts.check(scope)
            # With "app" in the scope, the router raises for a wrong method instead of sending its own response.
            await cast("Asgi", self._router)({**scope, "app": self}, receive, answer.send)
        except Exception as error:
            if answer.has_started:
                raise
            response = self._show_error(Request(scope), error)
            await cast("Asgi", response)(scope, receive, answer.send)


async def _answer_404(_scope: dict[str, Any], _receive: Receive, _send: Send) -> None:
    raise HTTPException(404, "There is no such page.")


class AllowedHosts:
    """The host names that the console answers for, so that no page of another site can rebind its name to us.

    They are those of ``server.public_url``, ``server.bind`` and loopback; any IP address if ``server.bind`` is every
    address of this machine.
    """

    def __init__(self, server: ServerSettings) -> None:
        self._names = {"localhost", server.host.lower(), (urlsplit(server.public_url).hostname or "").lower()} - {""}
        self._is_any_address = server.host in {"0.0.0.0", "::"}  # noqa: S104 - compared, not bound

    def check(self, scope: Mapping[str, Any]) -> None:
        """Check the Host header of a request. Raises HTTPException 421."""
        if not self.allows(scope):
            text = (
                "The console does not answer for this host name. Set server.public_url to the address in your browser."
            )
            raise HTTPException(421, text)

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
