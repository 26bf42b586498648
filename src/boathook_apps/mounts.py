"""Serves the ASGI applications of apps: authentication, limits, lifespan and error responses."""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from itertools import chain, count, repeat
from typing import TYPE_CHECKING, Any, Final, cast

from boathook.api.authentication import read_bearer_token
from boathook.api.errors import ApiError, to_response
from boathook.config import Settings
from boathook.config.tables import MountSettings
from boathook.db.database import Database
from boathook.domain.errors import BoathookError, DatabaseError
from boathook.handlers.manifest import Mount
from boathook.http.asgi import Asgi, Receive, Send, read_headers
from boathook.observability.log import get_logger
from boathook.server.asgi_guard import HttpGuard, WebSocketGuard, apply_forwarded_headers
from boathook.server.loading import check_mounts
from boathook.service.access.authorization import Permission
from boathook_apps.browser_access import SAFE_METHODS, BrowserAccess, check_target
from boathook_apps.mount_access import POLICY_VIOLATION, TRY_AGAIN_LATER, Caller, FirstMessage, MountAccess

if TYPE_CHECKING:
    from boathook.service.access.user_tokens import UserTokens

STOP_WITHIN_S: Final = 5.0
RETRY_S: Final = (1.0, 2.0, 5.0, 15.0, 30.0)
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

    def start(self) -> None:
        """Start the application in a task."""
        self._task = asyncio.create_task(self._run_with_retry(), name="mount:lifespan")

    async def stop(self) -> None:
        """Send the shutdown event, and wait up to five seconds for the application to end."""
        self.is_up = False
        self._closing.set()
        if self._task is None:
            return
        self._events.put_nowait({"type": "lifespan.shutdown"})
        await asyncio.wait({self._task}, timeout=STOP_WITHIN_S)
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _run_with_retry(self) -> None:
        for wait_s in chain(RETRY_S, repeat(RETRY_S[-1])):
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


_RECHECK_S: Final = 30.0
"""A WebSocket is closed within this time after its token was revoked."""
_MIN_RECHECK_S: Final = 1.0
"""Minimum time between two checks of a WebSocket's token."""

Scope = dict[str, Any]


class Mounts:
    """All mounted applications of a gateway.

    Args:
        mounts: mounts by the name of their app.
        settings: the settings.
        database: stores the API keys.

    Raises:
        ConfigError: two apps use the same path, one uses a reserved path, or the settings name one that none uses.
    """

    def __init__(self, mounts: Mapping[str, Iterable[Mount]], settings: Settings, database: Database) -> None:
        self._settings = settings
        self._lifespans: dict[int, Lifespan] = {}
        self._user_tokens = _open_user_tokens(settings)
        apps = [
            MountedApp(mount, self._lifespan(mount.app), settings, database, self._user_tokens)
            for mount in check_mounts(mounts, settings)
        ]
        self._mounted_apps = sorted(apps, key=lambda app: len(app.path), reverse=True)

    def _lifespan(self, app: Asgi) -> Lifespan:
        """Return the lifespan of an application, which its mounts share."""
        return self._lifespans.setdefault(id(app), Lifespan(app))

    @asynccontextmanager
    async def opened(self) -> AsyncIterator["Mounts"]:
        """Start the applications, and stop them at the end of the block."""
        for lifespan in self._lifespans.values():
            lifespan.start()
        try:
            yield self
        finally:
            await asyncio.gather(*(lifespan.stop() for lifespan in self._lifespans.values()))
            if self._user_tokens is not None:
                self._user_tokens.close()

    def at(self, path: str) -> "MountedApp | None":
        """Return the mounted application with the longest path that equals *path* or is a parent of it.

        The paths of boathook and of packages in use have none, even if an application is mounted at ``/``.
        """
        if self._settings.owns_path(path):
            return None
        return next(
            (mounted for mounted in self._mounted_apps if path == mounted.path or path.startswith(mounted.path + "/")),
            None,
        )


def _open_user_tokens(settings: Settings) -> "UserTokens | None":
    if not settings.jwt.is_on:
        return None
    # Imported only here, as the cryptography behind it takes longer to import than most apps.
    from boathook.service.access.user_tokens import UserTokens

    return UserTokens(settings)


class MountedApp:
    """Authorizes the requests to one mounted application; itself an ASGI application."""

    def __init__(
        self,
        mount: Mount,
        lifespan: Lifespan,
        settings: Settings,
        database: Database,
        user_tokens: "UserTokens | None" = None,
        *,
        recheck_s: float = _RECHECK_S,
    ) -> None:
        self.path = mount.path
        self._recheck_s = recheck_s
        self._mount = mount
        self._lifespan = lifespan
        self._settings = settings
        own = settings.mounts.get(mount.shown_path, MountSettings())
        self._browsers = BrowserAccess(own.origins, settings.server.public_url, is_open=mount.is_open)
        self._access = MountAccess(mount.shown_path, own.roles, database, user_tokens)
        self._request_prefix = f"req_{os.urandom(6).hex()}"
        self._numbers = count()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one HTTP request, or serve one WebSocket."""
        scope = apply_forwarded_headers(scope, self._settings.server.trusted_proxies)
        if scope["type"] == "http":
            send = self._browsers.restrict(scope, send)
        try:
            preflight = self._browsers.preflight(scope)
            if preflight is not None:
                await send({"type": "http.response.start", "status": 204, "headers": preflight})
                await send({"type": "http.response.body", "body": b""})
                return
            self._check(scope)
            token, caller = await self._authenticate(scope)
        except (ApiError, BoathookError) as error:
            await cast("Asgi", to_response(error))(scope, receive, send)
            return
        if scope["type"] == "http":
            app_scope = self._mounted(scope, caller)
            guard = HttpGuard(receive, send, app_scope["state"]["request_id"], self._settings.limits.max_body)
            await guard.run(self._mount.app, app_scope)
        elif caller is None and not self._mount.is_open:
            await self._serve_after_first_message(scope, FirstMessage(receive, send))
        else:
            await self._serve_socket(scope, receive, send, token, caller)

    def _check(self, scope: Scope) -> None:
        """Check what needs no token. Raises ApiError."""
        if not self._lifespan.is_up:
            raise ApiError(503, "unavailable", "this app is starting, try again later", {"retry-after": "1"})
        check_target(scope, is_open=self._mount.is_open)
        if scope["type"] == "websocket" and not self._browsers.may_open_socket(scope):
            raise ApiError(403, "cross_origin", "this page may not open WebSockets here")

    async def _authenticate(self, scope: Scope) -> tuple[str, Caller | None]:
        """Return the token of a request and its holder; no holder for an open mount, or one whose token will follow.

        Raises:
            ApiError: the request is rejected.
            DatabaseError: the database cannot be reached to check it.
        """
        headers = read_headers(scope["headers"])
        is_socket = scope["type"] == "websocket"
        if self._mount.is_open or (is_socket and "authorization" not in headers):
            return "", None
        may_only_read = is_socket or scope["method"] in SAFE_METHODS
        permission = Permission.APP_READ if may_only_read else Permission.APP_CALL
        token = read_bearer_token(headers)
        return token, await self._access.authenticate(token, permission)

    async def _serve_after_first_message(self, scope: Scope, socket: FirstMessage) -> None:
        """Serve a WebSocket once its first message was a valid token."""
        token = await socket.read_token()
        if token is None:
            return
        try:
            caller = await self._access.authenticate(token, Permission.APP_READ)
        except ApiError as error:
            await socket.close(TRY_AGAIN_LATER if error.status >= 500 else POLICY_VIOLATION, error.detail)
        except DatabaseError:
            await socket.close(TRY_AGAIN_LATER, "the token cannot be checked now")
        else:
            # The handshake has been answered, without a subprotocol.
            await self._serve_socket({**scope, "subprotocols": []}, socket.receive, socket.send, token, caller)

    async def _serve_socket(
        self, scope: Scope, receive: Receive, send: Send, token: str, caller: Caller | None
    ) -> None:
        app_scope = self._mounted(scope, caller)
        rechecking = None if caller is None else asyncio.create_task(self._recheck(token, caller, send))
        try:
            await WebSocketGuard(receive, send, app_scope["state"]["request_id"]).run(self._mount.app, app_scope)
        finally:
            if rechecking is not None:
                rechecking.cancel()

    async def _recheck(self, token: str, caller: Caller, send: Send) -> None:
        """Close a WebSocket once its token has ended or was revoked."""
        while True:
            left_s = self._recheck_s if caller.valid_for_s is None else caller.valid_for_s
            await asyncio.sleep(min(self._recheck_s, max(left_s, _MIN_RECHECK_S)))
            try:
                caller = await self._access.authenticate(token, Permission.APP_READ)
            except DatabaseError:
                continue
            except ApiError as error:
                if error.status >= 500:
                    continue
                with contextlib.suppress(OSError):
                    reason = "this token is not valid any more"
                    await send({"type": "websocket.close", "code": POLICY_VIOLATION, "reason": reason})
                return

    def _mounted(self, scope: Scope, caller: Caller | None) -> Scope:
        """Return the scope for the application: its ``root_path`` is the mounted path, which itself is its ``/``."""
        path = scope["path"]
        state = {**self._lifespan.state, "request_id": f"{self._request_prefix}{next(self._numbers):08x}"}
        if caller is not None:
            state |= {"actor": caller.actor, "role": str(caller.role)}
        return {
            **scope,
            "root_path": self.path,
            "path": f"{path}/" if path == self.path else path,
            "state": state,
        }
