"""The start and the end of a mounted ASGI application that wants to know of them."""

import asyncio
from itertools import chain, repeat
from typing import Any, Final

from boathook.http.asgi import Asgi
from boathook.observability.log import get_logger

_STOP_WITHIN_S: Final = 5.0
_RETRY_S: Final = (1.0, 2.0, 5.0, 15.0, 30.0)
_LOG = get_logger("server")


class _NotStarted(Exception):
    """The application said that it could not start."""


class Lifespan:
    """One application's life: begun again while it fails to start, and ended when the gateway stops.

    An application that raises on an event that it does not know, or returns from it, lives without one.
    """

    def __init__(self, app: Asgi) -> None:
        self._app = app
        self._events: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._task: asyncio.Task[None] | None = None
        self._is_closing = False
        self.is_up = False
        """Whether requests may be handed to the application."""
        self.state: dict[str, Any] = {}
        """What the application keeps for its requests."""

    def open(self) -> None:
        """Begin to start the application."""
        self._task = asyncio.create_task(self._run_with_retry(), name="mount:lifespan")

    async def close(self) -> None:
        """Tell the application that it ends, and wait a little for it to have ended."""
        self.is_up, self._is_closing = False, True
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
            if self._is_closing:
                return
            await asyncio.sleep(wait_s)

    async def _run(self) -> None:
        """Let the application live once."""
        self._events, self.state = asyncio.Queue(), {}
        self._events.put_nowait({"type": "lifespan.startup"})
        scope = {"type": "lifespan", "asgi": {"version": "3.0", "spec_version": "2.0"}, "state": self.state}
        try:
            await self._app(scope, self._events.get, self._on_message)
        except _NotStarted:
            raise
        except (Exception, SystemExit) as error:  # noqa: BLE001 - so applications without a lifespan say so
            if self.is_up:
                _LOG.error("mount_lifespan_fault", exc_info=error)
        self.is_up = not self._is_closing

    async def _on_message(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "lifespan.startup.complete":
                self.is_up = not self._is_closing
            case "lifespan.startup.failed":
                raise _NotStarted(message.get("message") or "it gave no reason")
            case "lifespan.shutdown.failed":
                _LOG.error("mount_not_stopped", error=message.get("message", ""))
            case "lifespan.shutdown.complete":
                pass
            case kind:
                raise RuntimeError(f"a lifespan has no {kind}")
