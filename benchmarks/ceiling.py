"""Runs boathook's own gateway with nothing behind it: ``python -m benchmarks.ceiling PORT``.

Everything up to the database is the real thing: sockets, limits, verification, routing, replies. Only the commit is
missing, so its rate is the most the durable path could reach.
"""

import asyncio
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.handlers import hook
from benchmarks.load import SECRET
from boathook.config import load
from boathook.domain.filters import Router
from boathook.domain.model import Accepted, NewEvent
from boathook.http.asgi import Receive, Send
from boathook.http.connection import ConnectionRegistry
from boathook.http.limits import ConnectionLimiter
from boathook.http.listener import Listener
from boathook.ingest.app import IngestApp
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.event_writer import ReceiptWaiter
from boathook.ingest.pipeline import IngestPipeline
from boathook.ingest.sources import compile_sources


class _NullEventWriter:
    """Says that every event is accepted."""

    def put(self, event: NewEvent, waiter: ReceiptWaiter) -> None:
        waiter.set_result(Accepted(event.id))


async def _serve(port: int) -> None:
    settings = load(Path("/dev/null"), {"sources.stripe.secrets": [SECRET], "log.level": "warning"})
    router = Router(hook.routes("benchmark"), 1)

    async def reload() -> Router:
        return router

    limits = settings.limits
    registry = ConnectionRegistry(
        _not_found, limits, ConnectionLimiter(limits.max_connections, limits.max_connections_per_client), ()
    )
    events = EventBuilder(router, reload)
    pipeline = IngestPipeline(compile_sources(settings), _NullEventWriter(), events, quarantine=None)
    registry.app = IngestApp(pipeline, others=_not_found)
    listener = Listener(registry)
    await listener.start(socket.create_server(("127.0.0.1", port), backlog=1024))
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await stop.wait()
    await listener.drain(linger_s=0, drain_s=1)


async def _not_found(_scope: dict[str, Any], _receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 404, "headers": [(b"content-length", b"0")]})
    await send({"type": "http.response.body", "body": b""})


def main() -> None:
    """Serve until told to stop."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
