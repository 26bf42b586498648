"""Serves MCP at ``/mcp``, by streamable HTTP: each request is answered by itself, in JSON.

A request is rejected before its body is read if its ``Host`` or ``Origin`` is foreign (DNS rebinding), or its token is
not valid. The SDK is imported by the first request that passes, in a thread, as that takes a second of processor time.
"""

import asyncio
import contextlib
from collections.abc import Mapping
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import urlsplit

from boathook.api.authentication import authenticate, forbidden
from boathook.api.errors import ApiError, to_response
from boathook.http.asgi import IS_AUTHENTICATED, Asgi, Receive, Send, is_own_origin, read_headers
from boathook.service.access.authorization import Principal
from boathook.service.unit_of_work import AppContext
from boathook_mcp.session import Session
from boathook_mcp.settings import PATH, McpTable

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

_MAX_BODY: Final = 262_144
_SESSION: Final = "boathook_mcp_session"
_LOCAL: Final = frozenset({"localhost"})


class McpEndpoint:
    """The ASGI application at ``/mcp``.

    Args:
        app_context: the dependencies of the service functions.
        table: the settings.
    """

    def __init__(self, app_context: AppContext, table: McpTable) -> None:
        self._app_context = app_context
        self._table = table
        self._starting: asyncio.Task[StreamableHTTPSessionManager] | None = None
        self._running: asyncio.Task[None] | None = None

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        try:
            headers = read_headers(scope["headers"])
            self._check_sender(headers)
            session = await self._authenticate(scope, headers)
            scope[IS_AUTHENTICATED] = True
            if scope["method"] != "POST":
                # Without sessions there is no stream to open and nothing to end.
                raise ApiError(405, "method_not_allowed", "use POST", {"allow": "POST"})
            manager = await self._manager()
        except Exception as error:  # noqa: BLE001 - every response is JSON
            await cast("Asgi", to_response(error))(scope, receive, send)
            return
        scope.setdefault("state", {})[_SESSION] = session
        await manager.handle_request(scope, receive, send)  # type: ignore[arg-type]

    def _check_sender(self, headers: dict[str, str]) -> None:
        """Raise ApiError for a host that this server does not have, and for a page of another origin."""
        host, origin = headers.get("host", ""), headers.get("origin")
        public_url = self._app_context.settings.server.public_url or ""
        if not (is_local(host) or host in self._table.hosts or host == urlsplit(public_url).netloc):
            text = "this host name is not one of this server; set server.public_url, or add it to mcp.hosts"
            raise ApiError(421, "unknown_host", text)
        is_own = origin is None or is_own_origin(origin, host, public_url) or origin in self._table.origins
        if not is_own:
            raise ApiError(403, "unknown_origin", "pages of this origin may not call it; add it to mcp.origins")

    async def _authenticate(self, scope: dict[str, Any], headers: dict[str, str]) -> Session:
        async with self._app_context.reading() as connection:
            caller = await authenticate(connection, headers, (scope.get("client") or ("",))[0])
        session = Session(
            app_context=self._app_context,
            caller=caller,
            organization=caller.organization,
            actor=caller.actor,
            allows_writes=self._table.allow_writes,
        )
        if isinstance(caller, Principal) and caller.mount is not None:
            raise forbidden()
        return session

    async def _manager(self) -> "StreamableHTTPSessionManager":
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(), name="mcp:start")
        return await asyncio.shield(self._starting)

    async def _start(self) -> "StreamableHTTPSessionManager":
        manager = await asyncio.to_thread(_build)
        ready = asyncio.Event()
        self._running = asyncio.create_task(self._run(manager, ready), name="mcp:run")
        await ready.wait()
        return manager

    async def _run(self, manager: "StreamableHTTPSessionManager", ready: asyncio.Event) -> None:
        """Run the manager until the process stops: it must be left by the task that has entered it."""
        async with manager.run():
            ready.set()
            await self._app_context.closing.wait()

    async def stop(self) -> None:
        """Stop answering."""
        for task in (self._starting, self._running):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task


def open_mounts(app_context: AppContext) -> Mapping[str, Asgi]:
    """Return the application at ``/mcp``, if it is enabled."""
    table = app_context.settings.table(McpTable)
    return {PATH: McpEndpoint(app_context, table)} if table is not None and table.enabled else {}


def _build() -> "StreamableHTTPSessionManager":
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from boathook_mcp.server import build_server

    server = build_server(lambda context: cast("Session", cast("Any", context.request).scope["state"][_SESSION]))
    return StreamableHTTPSessionManager(server, json_response=True, stateless=True, max_request_body_size=_MAX_BODY)


def is_local(host: str) -> bool:
    """Return whether a host is localhost or an address: no name that a foreign page could let point here."""
    try:
        name = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    if name in _LOCAL:
        return True
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
