"""Serves the ASGI applications of apps: authentication, limits, lifespan and error responses."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import chain, count, repeat
from typing import Any, ClassVar, Final, cast

from boathook.api.authentication import authenticate, forbidden
from boathook.api.errors import ApiError, to_response
from boathook.config import Settings
from boathook.config.types import is_own_prefix
from boathook.db.database import Database, translate_errors
from boathook.domain.errors import BoathookError, DatabaseError
from boathook.domain.redaction import RedactedStruct
from boathook.handlers.manifest import Mount
from boathook.http.asgi import Asgi, Receive, Send, is_own_origin, read_headers
from boathook.observability.log import get_logger
from boathook.server.asgi_guard import HttpGuard, WebSocketGuard, apply_forwarded_headers
from boathook.server.loading import check_mounts
from boathook.service.authorization import Permission, Principal

_STOP_WITHIN_S: Final = 5.0
_RETRY_S: Final = (1.0, 2.0, 5.0, 15.0, 30.0)
_LOG = get_logger("server")


class _NotStarted(Exception):
    """The application reported that it could not start."""


class Lifespan:
    """Runs the lifespan of one application: retries a failed start, and ends it when the gateway stops.

    An application that raises on a lifespan event, or returns from it, is served without a lifespan.
    """

    def __init__(self, app: Asgi) -> None:
        self._app = app
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._closing = asyncio.Event()
        self.is_up = False
        """Whether the application can serve requests."""
        self.state: dict[str, Any] = {}
        """The state that the application shares with its requests."""

    def open(self) -> None:
        """Start the application in a task."""
        self._task = asyncio.create_task(self._run_with_retry(), name="mount:lifespan")

    async def close(self) -> None:
        """Send the shutdown event, and wait up to five seconds for the application to end."""
        self.is_up = False
        self._closing.set()
        if self._task is None:
            return
        self._events.put_nowait({"type": "lifespan.shutdown"})
        await asyncio.wait({self._task}, timeout=_STOP_WITHIN_S)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run_with_retry(self) -> None:
        for wait_s in chain(_RETRY_S, repeat(_RETRY_S[-1])):
            try:
                await self._run()
            except _NotStarted as error:
                _LOG.error("mount_not_started", error=str(error), again_in_s=wait_s)
            else:
                return
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._closing.wait(), wait_s)
            if self._closing.is_set():
                return

    async def _run(self) -> None:
        """Run the application's lifespan once."""
        self._events, self.state = asyncio.Queue(), {}
        self._events.put_nowait({"type": "lifespan.startup"})
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self.state}
        try:
            await self._app(scope, self._events.get, self._on_message)
        except _NotStarted:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - applications without a lifespan raise on its events
            if self.is_up:
                _LOG.error("mount_lifespan_fault", exc_info=error)
        self.is_up = not self._closing.is_set()

    async def _on_message(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "lifespan.startup.complete":
                self.is_up = not self._closing.is_set()
            case "lifespan.startup.failed":
                raise _NotStarted(message.get("message") or "it gave no reason")
            case "lifespan.shutdown.failed":
                _LOG.error("mount_not_stopped", error=message.get("message", ""))
            case "lifespan.shutdown.complete":
                pass
            case kind:
                raise RuntimeError(f"a lifespan has no {kind}")


PROTOCOL: Final = "boathook"
"""The WebSocket subprotocol that clients offer with ``bearer.TOKEN``, because browsers require a selected one."""
_BEARER: Final = "bearer."
_RECHECK_S: Final = 30.0
"""A WebSocket is closed within this time after its token was revoked."""
_WAIT_S: Final = 10.0
"""How long a request waits for the database connection that authenticates it."""

Scope = dict[str, Any]


class Mounts:
    """All mounted applications of a gateway.

    Args:
        mounts: mounts by the name of their app.
        settings: the body limit, the public URL and the trusted proxies.
        database: stores the API keys.

    Raises:
        ConfigError: two apps use the same path, or one uses a reserved path.
    """

    def __init__(self, mounts: Mapping[str, Iterable[Mount]], settings: Settings, database: Database) -> None:
        self._lifespans: dict[int, Lifespan] = {}
        apps = [MountedApp(mount, self._lifespan(mount.app), settings, database) for mount in check_mounts(mounts)]
        self._mounted_apps = sorted(apps, key=lambda app: len(app.path), reverse=True)

    def _lifespan(self, app: Asgi) -> Lifespan:
        """Return the lifespan of an application, which its mounts share."""
        return self._lifespans.setdefault(id(app), Lifespan(app))

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Mounts"]:
        """Start the applications, and stop them at the end of the block."""
        for lifespan in self._lifespans.values():
            lifespan.open()
        try:
            yield self
        finally:
            await asyncio.gather(*(lifespan.close() for lifespan in self._lifespans.values()))

    def at(self, path: str) -> "MountedApp | None":
        """Return the mounted application with the longest path that equals *path* or is a parent of it.

        boathook's own paths have none, even if an application is mounted at ``/``.
        """
        if is_own_prefix(path):
            return None
        return next(
            (mounted for mounted in self._mounted_apps if path == mounted.path or path.startswith(mounted.path + "/")),
            None,
        )


class _AuthorizedRequest(RedactedStruct, frozen=True):
    """An authorized request."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"credentials", "scope"})

    scope: Scope
    """The scope that the application receives."""
    credentials: Mapping[str, str]
    """The headers that authenticated it; empty for an open mount."""


class MountedApp:
    """Authorizes the requests to one mounted application; itself an ASGI application."""

    def __init__(
        self,
        mount: Mount,
        lifespan: Lifespan,
        settings: Settings,
        database: Database,
        *,
        recheck_s: float = _RECHECK_S,
    ) -> None:
        self.path = mount.path
        self._recheck_s = recheck_s
        self._mount = mount
        self._lifespan = lifespan
        self._settings = settings
        self._database = database
        self._request_prefix = f"req_{os.urandom(6).hex()}"
        self._numbers = count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, or serve one WebSocket."""
        try:
            authorized = await self._authorize(apply_forwarded_headers(scope, self._settings.server.trusted_proxies))
        except (ApiError, BoathookError) as error:
            await cast("Asgi", to_response(error))(scope, receive, send)
            return
        request_id = authorized.scope["state"]["request_id"]
        if scope["type"] == "http":
            guard = HttpGuard(receive, send, request_id, self._settings.limits.max_body)
            await guard.run(self._mount.app, authorized.scope)
            return
        rechecking = asyncio.create_task(self._recheck(authorized, send))
        protocol = PROTOCOL if authorized.credentials and PROTOCOL in scope["subprotocols"] else None
        try:
            await WebSocketGuard(receive, send, request_id, protocol).run(self._mount.app, authorized.scope)
        finally:
            rechecking.cancel()

    async def _recheck(self, authorized: "_AuthorizedRequest", send: Send) -> None:
        """Close a WebSocket once its token has been revoked."""
        while authorized.credentials:
            await asyncio.sleep(self._recheck_s)
            try:
                await self._authenticate(authorized.credentials)
            except DatabaseError:
                continue
            except ApiError:
                with contextlib.suppress(OSError):
                    await send({"type": "websocket.close", "code": 1008, "reason": "this token is not valid any more"})
                return

    async def _authorize(self, scope: Scope) -> "_AuthorizedRequest":
        """Authenticate a request, and return it with the scope for the application.

        Raises:
            ApiError: the request is rejected.
            DatabaseError: the database cannot be reached to check it.
        """
        if not self._lifespan.is_up:
            raise ApiError(503, "unavailable", "this app is starting, try again later", {"retry-after": "1"})
        if scope["type"] == "websocket" and not is_same_origin(scope, self._settings.server.public_url):
            raise ApiError(403, "cross_origin", "this page may not open WebSockets here")
        state = {**self._lifespan.state, "request_id": f"{self._request_prefix}{next(self._numbers):08x}"}
        scope = self._mounted(scope)
        if self._mount.is_open:
            return _AuthorizedRequest({**scope, "state": state}, {})
        credentials = {"authorization": read_headers(scope["headers"]).get("authorization", "")}
        token = _socket_token(scope) if scope["type"] == "websocket" else None
        if token is not None:
            credentials = {"authorization": f"Bearer {token}"}
            scope = _without_token(scope)
        principal = await self._authenticate(credentials)
        return _AuthorizedRequest({**scope, "state": {**state, "actor": principal.actor}}, credentials)

    def _mounted(self, scope: Scope) -> Scope:
        """Return the scope with the mounted path as ``root_path``; that path itself is the application's ``/``."""
        path = scope["path"]
        return {**scope, "root_path": self.path, "path": f"{path}/" if path == self.path else path}

    async def _authenticate(self, headers: Mapping[str, str]) -> Principal:
        async with self._database.acquire(_WAIT_S) as connection:
            with translate_errors():
                principal = await authenticate(connection, headers)
        if not principal.may(Permission.APP_CALL):
            raise forbidden()
        return principal


def is_same_origin(scope: Scope, public_url: str) -> bool:
    """Return whether a request comes from one of our own pages, or from no page at all.

    Any website may open a WebSocket here with the browser's cookies for us; only the Origin header shows where it comes
    from.
    """
    origins = [value.decode("latin-1") for name, value in scope["headers"] if name == b"origin"]
    if not origins:
        return True
    host = next((value.decode("latin-1") for name, value in scope["headers"] if name == b"host"), "")
    return len(origins) == 1 and is_own_origin(origins[0], host, public_url)


def _socket_token(scope: Scope) -> str | None:
    """Return the token that a browser offers as a subprotocol, because it cannot set other headers."""
    return next((one.removeprefix(_BEARER) for one in scope["subprotocols"] if one.startswith(_BEARER)), None)


def _without_token(scope: Scope) -> Scope:
    kept = [one for one in scope["subprotocols"] if not one.startswith(_BEARER)]
    headers = [(name, value) for name, value in scope["headers"] if name != b"sec-websocket-protocol"]
    if kept:
        headers.append((b"sec-websocket-protocol", ", ".join(kept).encode("latin-1")))
    return {**scope, "subprotocols": kept, "headers": headers}
