"""Serves a listening socket: accepts connections, enforces deadlines, and stops without failing requests."""

import asyncio
import socket
import time
from email.utils import formatdate
from typing import Final

from uvicorn.config import Config
from uvicorn.server import ServerState

from boathook.http.backlog import BACKLOG
from boathook.http.connection import Connection, ConnectionRegistry
from boathook.observability import meters

_SWEEP_INTERVAL_S: Final = 0.25
_LAST_HANDSHAKES_S: Final = 0.1


class Listener:
    """Serves one bound socket."""

    def __init__(self, registry: ConnectionRegistry) -> None:
        self._registry = registry
        self._server: asyncio.Server | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self, bound: socket.socket) -> None:
        """Start to accept on *bound*, which other processes may share."""
        loop = asyncio.get_running_loop()
        config = Config(self._registry.app, loop="none", ws="none", lifespan="off", log_config=None)
        config.load()
        state = ServerState()
        self._registry.date_line = _date_line()
        self._server = await loop.create_server(
            lambda: Connection(config, state, loop, self._registry), sock=bound, backlog=BACKLOG
        )
        self._sweeper = asyncio.create_task(self._sweep(loop), name="listener:sweep")

    async def _sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        while True:
            await asyncio.sleep(_SWEEP_INTERVAL_S)
            now = loop.time()
            for connection in list(self._registry.open):
                connection.check(now)
            self._registry.date_line = _date_line()
            self._report()

    def _report(self) -> None:
        registry, connections = self._registry, self._registry.connections
        meters.gauge("boathook_connections", connections.total)
        meters.gauge("boathook_connections_used_ratio", round(connections.total / connections.max_total, 4))
        meters.gauge("boathook_requests_in_flight", sum(connection.is_in_request for connection in registry.open))
        meters.gauge("boathook_gateways_stopping", float(registry.is_draining))

    async def drain(self, *, linger_s: float, drain_s: float) -> bool:
        """Stop without failing a request that has started, or starts on an open connection.

        The backlog is accepted completely, and every response has `Connection: close`. Idle connections stay open for
        *linger_s* so that their clients can see that, and requests in progress may take *drain_s*. Return False if
        something had to be cut off.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + drain_s
        self._registry.is_draining = True
        self._report()
        await asyncio.sleep(_LAST_HANDSHAKES_S)
        if self._server is not None:
            self._server.close()
        await self._until_closed(min(deadline, loop.time() + linger_s))
        while self._registry.open and loop.time() < deadline:
            for connection in list(self._registry.open):
                connection.drain()
            await self._until_closed(min(deadline, loop.time() + 0.05))
        is_clean = not self._registry.open
        self._stop()
        return is_clean

    async def _until_closed(self, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        while self._registry.open and loop.time() < deadline:  # noqa: ASYNC110 - otherwise each connection would need to set an event
            await asyncio.sleep(0.01)

    def _stop(self) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        for connection in list(self._registry.open):
            connection.transport.abort()
        for task in list(self._registry.tasks):
            task.cancel()


def _date_line() -> bytes:
    return f"date: {formatdate(time.time(), usegmt=True)}\r\n".encode("ascii")
