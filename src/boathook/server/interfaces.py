"""Serves the API, the pages of packages and the apps' own paths on the gateway's port.

Until PostgreSQL is available, requests to them are answered 503, except that messages are published into the gateway's
buffer. The API and the pages are imported and built in a thread, because that takes as long as the rest of the start:
once the gateway is ready, or at the first request to them if that comes earlier.
"""

import asyncio
import functools
import gc
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec

from boathook.config import Settings
from boathook.config.packages import Package, find_part, read_declaration, resolve
from boathook.db.database import Database, UnreachedDatabase
from boathook.db.due_notifier import DueNotifier, NotifyDue, notify_due
from boathook.domain.due import ANY_DUE, Notifier
from boathook.domain.errors import BoathookError, ConfigError, DatabaseUnavailable
from boathook.http.asgi import Asgi, Receive, Send
from boathook.http.connection import WebSocketRefusal
from boathook.observability.live_metrics import LiveMetrics
from boathook.observability.log import get_logger
from boathook.server.asgi_guard import apply_forwarded_headers

if TYPE_CHECKING:
    from boathook.ingest.intake import Intake
    from boathook.service.unit_of_work import AppContext


class Mounts(Protocol):
    """The applications that apps have mounted."""

    def at(self, path: str) -> Asgi | None:
        """Return the application at a path; None if there is none."""
        ...


OpenSite = Callable[["AppContext", LiveMetrics], Asgi]
"""What `Package.site` names."""
CONNECTIONS: Final = 8
"""Database connections of one gateway for the API; each request uses one while it is processed."""
_RETRY_S: Final = 0.5
_PREFIX: Final = "/api/"
_API: Final = "/api/v1/"
_UNAVAILABLE: Final = b'{"code":"unavailable","detail":"this is not available yet, try again later"}'
_SECURITY_HEADERS: Final = (
    (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
)
"""Sent with responses at the paths of pages, as strict as on the pages themselves."""
_ROOT: Final = {
    "ok": True,
    "name": "boathook",
    "about": "receives, processes and sends webhooks",
    "health": "/readyz",
}
_STARTING_PAGE: Final = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="color-scheme" content="light dark">
<meta http-equiv="refresh" content="1">
<title>boathook is starting</title>
<p>boathook is starting. This page reloads by itself.</p>
</html>
"""
_FAILED_PAGE: Final = b"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="color-scheme" content="light dark">
<title>boathook did not start</title>
<p>The console or an app failed to start: see console_failed in the log.</p>
</html>
"""
_SWITCH_S: Final = sys.getswitchinterval()
_BUILD_SWITCH_S: Final = 0.0005
"""How long a building thread may keep the event loop waiting; by default, it is 5 ms at each step of the loop."""
_NOT_FOUND: Final = b'{"ok":false,"error":"not found"}'
_HTML: Final = b"text/html; charset=utf-8"
_VARY: Final = (b"vary", b"accept")
_INGEST: Final = "/ingest/"
_NO_INGEST: Final = b'{"code":"not_found","detail":"boathook has no ingest API; its sources are at /api/v1/source"}'
"""In the format that Svix clients parse; they have methods for such an API."""
_LOG = get_logger("server")


class LazyApp:
    """An application that is built when it is first asked for; all requests wait for that.

    Args:
        build: imports and builds the application; runs in a thread.
    """

    def __init__(self, build: Callable[[], Asgi]) -> None:
        self._build = build
        self._building: asyncio.Task[Asgi] | None = None

    async def get(self) -> Asgi:
        """Return the application. Raises what building it raised, at each call."""
        if self._building is None:
            self._building = asyncio.create_task(self._build_in_thread(), name="console:build")
        return await asyncio.shield(self._building)

    async def _build_in_thread(self) -> Asgi:
        sys.setswitchinterval(_BUILD_SWITCH_S)
        try:
            built = await asyncio.to_thread(self._build)
        finally:
            sys.setswitchinterval(_SWITCH_S)
        gc.freeze()
        return built


class Interfaces:
    """Serves every path of a gateway that no source or health endpoint uses."""

    def __init__(self, settings: Settings, live_metrics: LiveMetrics) -> None:
        self._settings = settings
        self._live_metrics = live_metrics
        self._api: LazyApp | None = None
        self._sites: dict[str, LazyApp | None] = dict.fromkeys(site_paths(settings))
        """The pages of packages by the path that they are below; None until they can be built."""
        self._mounts: Mounts | None = None
        self._package_apps: Mapping[str, Asgi] | None = None
        self._has_apps = self._is_loading_apps = bool(settings.apps.load or settings.server.app)
        self._stack = AsyncExitStack()
        self._task: asyncio.Task[None] | None = None
        self._notifier: Notifier | None = None
        self._closing = asyncio.Event()
        self._has_failed = False
        self.startup_done = asyncio.Event()
        """Set once everything is available, or has failed to start."""

    @property
    def problem(self) -> str | None:
        """Why the API, the pages or the apps' paths cannot answer; None if they can."""
        if self._has_failed:
            return "the API, the console or an app's path failed to start: see console_failed in the log"
        if self._api is None or None in self._sites.values():
            return "the API and the console are starting"
        if self._is_loading_apps:
            return "the apps' paths are starting"
        return None

    def start(self, intake: "Intake", notifier: Notifier | None = None) -> None:
        """Start building everything.

        Args:
            intake: publishes messages while PostgreSQL is unavailable.
            notifier: notifies senders and workers of messages; None: PostgreSQL does.
        """
        self._notifier = notifier
        self._task = asyncio.create_task(self._open(intake), name="console:open")

    def begin_shutdown(self) -> None:
        """End streaming responses, because the gateway is about to stop."""
        self._closing.set()

    async def stop(self) -> None:
        """Stop the apps and close the connections; requests that arrive now are answered 503."""
        self._api = self._mounts = self._package_apps = None
        self._sites = dict.fromkeys(self._sites)
        self._is_loading_apps = self._has_apps
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._stack.aclose()

    async def _open(self, intake: "Intake") -> None:
        try:
            await self._open_all(intake)
        except BoathookError as error:
            self._has_failed = True
            _LOG.error("console_failed", error=str(error))
        except Exception as error:  # noqa: BLE001 - apps are third-party code, and errors of a task are not logged by themselves
            self._has_failed = True
            _LOG.error("console_failed", exc_info=error)
        else:
            gc.freeze()
            _LOG.debug("console_ready")
        self.startup_done.set()
        for app in (self._api, *self._sites.values()):
            await self._built(app)

    async def _open_all(self, intake: "Intake") -> None:
        build = await asyncio.to_thread(AppBuilder, self._settings, self._live_metrics, self._closing, intake)
        if build.buffered is not None:
            self._api = LazyApp(functools.partial(build.api, build.context_without_database()))
        database = await self._connect()
        self._stack.push_async_callback(database.close)
        await self._open_api(build, database)
        if self._has_apps:
            opened = await asyncio.to_thread(prepare_mounts, self._settings, self._live_metrics)
            self._mounts = await self._stack.enter_async_context(opened(database))
            self._is_loading_apps = False

    async def _open_api(self, build: "AppBuilder", database: Database) -> None:
        announce = functools.partial(notify_due, database)
        if self._notifier is not None:
            announce = functools.partial(self._notifier.announce, announce)
        announcer = DueNotifier(announce)
        announcing = asyncio.create_task(announcer.run(), name="console:announce")
        self._stack.callback(announcing.cancel)
        app_context = build.context(database, announcer.notify)
        self._api = LazyApp(functools.partial(build.api, app_context))
        for path, package in site_paths(self._settings).items():
            self._sites[path] = LazyApp(functools.partial(build.site, package, app_context))
        mounts = [resolve(package.mounts) for package in self._settings.packages if package.mounts]
        self._package_apps = {path: app for open_apps in mounts for path, app in open_apps(app_context).items()}
        if build.buffered is not None:
            following = asyncio.create_task(build.buffered.follow(database), name="access:follow")
            self._stack.callback(following.cancel)
        await self._stack.enter_async_context(app_context.live_settings.following(database))

    async def _connect(self) -> Database:
        database = self._settings.database
        while True:
            try:
                return await Database.open(
                    self._settings.database_url(),
                    purpose="console",
                    size=CONNECTIONS,
                    connect_timeout_s=database.connect_timeout_s,
                    statement_timeout_s=database.statement_timeout_s,
                    is_reset=False,
                    allow_unsafe=database.allow_unsafe,
                )
            except DatabaseUnavailable:
                await asyncio.sleep(_RETRY_S)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        path = scope["path"]
        mounted = None if self._mounts is None else self._mounts.at(path)
        if mounted is not None:
            await mounted(scope, receive, send)
        elif (site_path := self._site_path(path)) is not None:
            if (site := await self._built(self._sites[site_path])) is None:
                await self._answer_unavailable(scope, send, *_SECURITY_HEADERS)
            else:
                await site(apply_forwarded_headers(scope, self._settings.server.trusted_proxies), receive, send)
        elif self._belongs_to_package(path):
            await self._answer_for_package(path.rstrip("/"), scope, receive, send)
        elif path.startswith(_PREFIX) or self._may_be_mounted(path):
            api = None if self._may_be_mounted(path) else await self._built(self._api)
            if api is None:
                await self._answer_unavailable(scope, send)
            else:
                await api(scope, receive, send)
        elif path == "/" and scope["method"] in {"GET", "HEAD"}:
            await answer_root(scope, send, has_api=True, home=next(iter(self._sites), ""))
        else:
            await _answer(send, 404, _NO_INGEST if path.startswith(_INGEST) else _NOT_FOUND)

    def _belongs_to_package(self, path: str) -> bool:
        return any(path.rstrip("/") in table.own_paths for _, table in self._settings.package_tables)

    async def _answer_for_package(self, path: str, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if self._package_apps is None:
            await self._answer_unavailable(scope, send)
        elif (app := self._package_apps.get(path)) is not None:
            await app(scope, receive, send)
        else:
            await _answer(send, 404, _NOT_FOUND)

    async def _built(self, app: LazyApp | None) -> Asgi | None:
        """Return the application, built by its first request; None if it is not available."""
        if app is None:
            return None
        try:
            return await app.get()
        except Exception as error:  # noqa: BLE001 - the request is answered 503, as if PostgreSQL were unavailable
            if not self._has_failed:
                self._has_failed = True
                _LOG.error("console_failed", exc_info=error)
            return None

    async def _answer_unavailable(self, scope: dict[str, Any], send: Send, *headers: tuple[bytes, bytes]) -> None:
        """Answer 503; a browser gets a page that reloads until the path is available."""
        if not _accepts_html(scope):
            await _answer(send, 503, _UNAVAILABLE, (b"retry-after", b"1"), *headers)
            return
        page = _FAILED_PAGE if self._has_failed else _STARTING_PAGE
        await _answer(send, 503, page, (b"retry-after", b"1"), *_SECURITY_HEADERS, content_type=_HTML)

    def _site_path(self, path: str) -> str | None:
        """Return the path of the site that serves *path*; None if it belongs to none."""
        return next((site for site in self._sites if path == site or path.startswith(f"{site}/")), None)

    def _may_be_mounted(self, path: str) -> bool:
        """Return whether an app may claim this path, but is not loaded yet."""
        return self._is_loading_apps and not path.startswith(_API)

    def websocket_app(self, path: str) -> Asgi | WebSocketRefusal:
        """Return the application that serves WebSockets at *path*, or why none does."""
        if self._may_be_mounted(path):
            return WebSocketRefusal.NOT_READY
        mounted = None if self._mounts is None else self._mounts.at(path)
        return mounted or WebSocketRefusal.NO_HANDLER


def site_paths(settings: Settings) -> Mapping[str, Package]:
    """Return the packages that serve pages, by the path that these are below."""
    return {
        table.site_path: read_declaration(reference)
        for reference, tables in settings.tables.items()
        for table in tables.values()
        if table.site_path
    }


class AppBuilder:
    """Builds the API and the operators' pages; reads what they need without PostgreSQL.

    Args:
        settings: the settings.
        live_metrics: the metrics of this host.
        closing: set when the process begins to stop.
        intake: makes messages durable while PostgreSQL is unavailable.
    """

    def __init__(self, settings: Settings, live_metrics: LiveMetrics, closing: asyncio.Event, intake: "Intake") -> None:
        from boathook.db.secret_box import open_secret_box
        from boathook.handlers.outbox import Outbox
        from boathook.service.sending.buffered_publisher import open_buffered_publisher
        from boathook.service.unit_of_work import AppContext

        self._settings = settings
        self._live_metrics = live_metrics
        self._closing = closing
        self._make_context = AppContext
        self._secret_box = open_secret_box(settings)
        self._outbox = Outbox.of(settings.retention)
        self.buffered = open_buffered_publisher(settings, intake, self._outbox, self._secret_box)
        """Publishes messages while PostgreSQL is unavailable; None if that is not possible."""

    def context(self, database: Database, notify_due: NotifyDue) -> "AppContext":
        """Return the dependencies of the service functions on *database*."""
        return self._make_context(self._settings, database, self._secret_box, self._outbox, notify_due, self._closing)

    def context_without_database(self) -> "AppContext":
        """Return them for the time until PostgreSQL is reached."""
        return self.context(UnreachedDatabase(), lambda _due=ANY_DUE, /: None)

    def api(self, app_context: "AppContext") -> Asgi:
        """Return the API; without a database, it publishes messages, and answers 503 otherwise."""
        _import_rarely_used()
        from boathook.api import build_api

        return build_api(app_context, self.buffered)

    def site(self, package: Package, app_context: "AppContext") -> Asgi:
        """Return the pages of a package."""
        _import_rarely_used()
        assert package.site is not None
        open_site: OpenSite = resolve(package.site)
        return open_site(app_context, self._live_metrics)


def _import_rarely_used() -> None:
    """Import modules that some requests to the API and the pages need; they would import them in the event loop."""
    import_module("boathook.verification.asymmetric")
    import_module("boathook.verification.jwt")
    import_module("boathook.verification.json_schema")


def prepare_mounts(
    settings: Settings, live_metrics: LiveMetrics
) -> Callable[[Database], AbstractAsyncContextManager[Mounts | None]]:
    """Import the apps and the code that serves them; return a function that opens their mounts. Raises ConfigError."""
    from boathook.server.loading import bound, load_hooks

    hooks = load_hooks(settings)
    mounts = {owner: hook.manifest.mounts for owner, hook in hooks.owners.items() if hook.manifest.mounts}
    if mounts:
        serve = find_part("mounts")
        if serve is None:
            paths = ", ".join(sorted(mount.shown_path for each in mounts.values() for mount in each))
            raise ConfigError(f"apps mount {paths}, but this installation is without the package boathook_apps")
        import_module("boathook.http.websocket")

    @asynccontextmanager
    async def opened(database: Database) -> AsyncIterator[Mounts | None]:
        # Apps without mounts are bound too: the names of their metrics may depend on their settings.
        async with bound(settings, hooks, live_metrics):
            if not mounts:
                yield None
                return
            async with serve(mounts, settings, database).opened() as mounted:
                yield mounted

    return opened


async def answer_root(scope: dict[str, Any], send: Send, *, has_api: bool, home: str = "") -> None:
    """Answer ``GET /``: redirect a browser to *home* if there are pages; describe this server to other clients."""
    if home and _accepts_html(scope):
        await _answer(send, 302, b"{}", (b"location", home.encode()), _VARY, *_SECURITY_HEADERS)
        return
    more = {home.removeprefix("/"): home} if home else {}
    if has_api:
        more["api"] = _API.rstrip("/")
    await _answer(send, 200, msgspec.json.encode({**_ROOT, **more}) + b"\n", _VARY, *_SECURITY_HEADERS)


async def answer_not_found(send: Send) -> None:
    """Answer 404."""
    await _answer(send, 404, _NOT_FOUND)


def _accepts_html(scope: dict[str, Any]) -> bool:
    """Return whether a request is a browser's for a page; other clients accept anything or JSON."""
    return scope["method"] in {"GET", "HEAD"} and any(
        name == b"accept" and b"text/html" in value.lower() for name, value in scope["headers"]
    )


async def _answer(
    send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes], content_type: bytes = b"application/json"
) -> None:
    head = [(b"content-type", content_type), (b"cache-control", b"no-store"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
