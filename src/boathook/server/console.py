"""The API on the gateway's own port, brought up beside the ingest path without slowing it.

What the API stands on takes a second to import, so it is imported in a thread after the gateway is ready; until then,
and until PostgreSQL is there, requests to it are answered 503.
"""

import asyncio
import functools
import gc
from collections.abc import Callable
from typing import Any, Final

from boathook.config import Settings
from boathook.domain.errors import BoathookError, JournalUnavailable
from boathook.inbound.app import Asgi, Receive, Send
from boathook.journal.announcer import Announcer
from boathook.journal.database import Database
from boathook.journal.moves import announce_due
from boathook.telemetry.log import get_logger

_CONNECTIONS: Final = 8
"""Of one gateway for the API: each request that is being answered has one to itself."""
_RETRY_S: Final = 0.5
_PREFIX: Final = "/api/"
_UNAVAILABLE: Final = b'{"code":"unavailable","detail":"the API is not available yet, try again later"}'
_NOT_FOUND: Final = b'{"ok":false,"error":"not found"}'
_LOG = get_logger("server")


class Console:
    """Answers every path that nobody else of a gateway does."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._api: Asgi | None = None
        self._database: Database | None = None
        self._tasks: list[asyncio.Task[None]] = []

    def open(self) -> None:
        """Begin to bring the API up."""
        self._tasks.append(asyncio.create_task(self._open(), name="console:open"))

    async def close(self) -> None:
        """Give its connections back; requests that come now are answered 503."""
        self._api = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._database is not None:
            await self._database.close()

    async def _open(self) -> None:
        try:
            build = await asyncio.to_thread(_prepare, self._settings)
            self._database = await self._reach()
        except BoathookError as error:
            _LOG.error("console_failed", error=str(error))
            return
        announcer = Announcer(functools.partial(announce_due, self._database))
        self._tasks.append(asyncio.create_task(announcer.run(), name="console:announce"))
        self._api = await asyncio.to_thread(build, self._database, announcer.ring)
        gc.freeze()
        _LOG.debug("console_ready")

    async def _reach(self) -> Database:
        database = self._settings.database
        while True:
            try:
                return await Database.open(
                    self._settings.database_url(),
                    purpose="console",
                    size=_CONNECTIONS,
                    connect_timeout_s=database.connect_timeout_s,
                    statement_timeout_s=database.statement_timeout_s,
                    is_reset=False,
                )
            except JournalUnavailable:
                await asyncio.sleep(_RETRY_S)

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        """Answer one HTTP request."""
        if not scope["path"].startswith(_PREFIX):
            await _answer(send, 404, _NOT_FOUND)
        elif self._api is None:
            await _answer(send, 503, _UNAVAILABLE, (b"retry-after", b"1"))
        else:
            await self._api(scope, receive, send)


def _prepare(settings: Settings) -> Callable[[Database, Callable[[], None]], Asgi]:
    """Import what the API stands on, and return what builds it."""
    from boathook.admin.api import build_api
    from boathook.admin.desk import Desk
    from boathook.handlers.outbox import Outbox, memory_days
    from boathook.journal.vault import open_vault

    vault, outbox = open_vault(settings), Outbox(memory_days=memory_days(settings.retention))

    def build(database: Database, rouse: Callable[[], None]) -> Asgi:
        api = build_api(Desk(settings, database, vault, outbox, rouse))
        api.warm()
        return api

    return build


async def _answer(send: Send, status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    head = [(b"content-type", b"application/json"), (b"cache-control", b"no-store"), *headers]
    await send({"type": "http.response.start", "status": status, "headers": head})
    await send({"type": "http.response.body", "body": body})
