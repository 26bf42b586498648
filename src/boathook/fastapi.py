"""Runs boathook inside a FastAPI application: its webhooks are routes, and its handlers run in the same process.

::

    app = FastAPI()
    webhooks = Webhooks()
    app.include_router(webhooks.router)
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from fastapi import APIRouter, FastAPI
from starlette.routing import Route

from boathook import config
from boathook.domain.errors import ConfigError
from boathook.handlers.api import Boathook
from boathook.handlers.collector import collecting_due
from boathook.http.asgi import Asgi, Receive, Send
from boathook.server.in_process import RunningServer, run_in_process
from boathook.server.loading import with_apps

__all__ = ["Webhooks"]

_NO_CLIENT: Final = ("", 0)
"""The client of a request through a Unix socket."""
_NOT_RUNNING: Final = (
    "boathook does not run: its router's lifespan has not started; include webhooks.router in the application that"
    " the server runs, and in tests use the application as a context manager: with TestClient(app) as client"
)


class Webhooks:
    """Receives webhooks in a FastAPI application, and runs the handlers of `server.app` on its event loop.

    Args:
        file: The configuration file; None reads ``boathook.toml`` in the working folder. `.env` beside it is read too.
        delivers: Whether this process runs handlers, sends messages and maintains the database too; False if
            ``boathook serve --role worker,keeper`` does.

    Raises:
        ConfigError: a setting is wrong; the message names it and the fix.
    """

    def __init__(self, file: Path | None = None, *, delivers: bool = True) -> None:
        config.read_env_file(file)
        self.settings, self._apps = with_apps(config.load(file))
        self._delivers = delivers
        self._running: RunningServer | None = None
        self.router = APIRouter(lifespan=self.lifespan)
        """The routes of all sources, ``/in/NAME`` and their ``paths``; includes `lifespan`."""
        for name, source in self.settings.sources.items():
            for path in (f"/in/{name}", *source.paths):
                self.router.routes.append(Route(path, _SourceRoute(self, path), name=f"webhooks:{name}"))

    @contextlib.asynccontextmanager
    async def lifespan(self, _app: FastAPI | None = None) -> AsyncIterator[None]:
        """Run boathook for the duration of the block; ``include_router`` adds it to the application's lifespan.

        Raises:
            ConfigError: it runs already, or a setting or the handlers are wrong.
            DatabaseError: PostgreSQL is unsafe or refuses the schema.
        """
        if self._running is not None:
            raise ConfigError("boathook runs already in this process: include webhooks.router once")
        async with run_in_process(self.settings, self._apps, delivers=self._delivers) as running:
            self._running = running
            try:
                yield
            finally:
                self._running = None

    async def publisher(self) -> AsyncIterator[Boathook]:
        """Yield the `Boathook` of `server.app` to a route, to publish in the transaction of the route's session.

        Use it as ``Annotated[Boathook, Depends(webhooks.publisher)]``. After the request, senders and handlers are
        notified of what the route has committed.
        """
        running = self.running
        with collecting_due() as collector:
            yield running.hook
        if due := collector.take():
            running.notify_due(due)

    @property
    def running(self) -> RunningServer:
        """The running server. Raises ConfigError before the lifespan has started, and after it has ended."""
        if self._running is None:
            raise ConfigError(_NOT_RUNNING)
        return self._running


class _SourceRoute:
    """An ASGI application that receives the requests for one path of a source, wherever the router is included."""

    def __init__(self, webhooks: Webhooks, path: str) -> None:
        self._webhooks = webhooks
        self._path = path

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one request."""
        app: Asgi = self._webhooks.running.app
        # The path selects the source; the signed URL uses the raw path.
        raw_path = scope.get("raw_path") or quote(scope["path"]).encode("ascii")
        client = scope.get("client") or _NO_CLIENT
        await app({**scope, "path": self._path, "raw_path": raw_path, "client": client}, receive, send)
