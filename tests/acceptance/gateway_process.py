"""Gateway process on real sockets with an in-memory intake instead of a database; for tests of the HTTP protocol.

Arguments: the bound socket's descriptor, then JSON: limits to override, sources, linger_s, and commit_s, the time one
commit takes. SIGTERM drains it as it does a real gateway.
"""

import asyncio
import json
import signal
import socket
import sys
import time
from pathlib import Path
from uuid import UUID

import uvloop

from boathook.config import load
from boathook.domain.filters import Router
from boathook.domain.model import Accepted, Duplicate, NewEvent
from boathook.http.connection import ConnectionRegistry
from boathook.http.limits import ConnectionLimiter, RateLimiter
from boathook.http.listener import Listener
from boathook.ingest.app import IngestApp
from boathook.ingest.direct import DirectIngest
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.health import HealthEndpoints
from boathook.ingest.pipeline import IngestPipeline
from boathook.ingest.sources import compile_sources
from boathook.observability import log
from boathook.observability.live_metrics import LiveMetrics


class MemoryIntake:
    """Accepts events in memory after *commit_s* seconds and detects duplicates by their key."""

    def __init__(self, commit_s: float) -> None:
        self.commit_s = commit_s
        self.seen: dict[UUID, NewEvent] = {}

    def put(self, event, waiter):
        asyncio.get_running_loop().call_later(self.commit_s, lambda: waiter.set_result(self._store(event)))

    def _store(self, event):
        first = self.seen.setdefault(event.key_hash, event)
        if first is event:
            return Accepted(event.id)
        return Duplicate(first.id, conflict=first.body_sha256 != event.body_sha256)


async def main() -> None:
    descriptor, options = int(sys.argv[1]), json.loads(sys.argv[2])
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    settings = load(
        Path("/dev/null"),
        {
            "limits": options.get("limits", {}),
            "sources": options["sources"],
            "server.trusted_proxies": options.get("trusted_proxies", []),
        },
    )
    log.configure("info", "json")
    router = Router((), 1)

    async def read_router():
        return router

    limits = settings.limits
    connections_registry = ConnectionRegistry(
        lambda *_: None,
        limits,
        ConnectionLimiter(limits.max_connections, limits.max_connections_per_client),
        settings.server.trusted_proxies,
    )
    memory = MemoryIntake(options.get("commit_s", 0))
    pipeline = IngestPipeline(
        compile_sources(settings),
        memory,
        EventBuilder(router, read_router),
        quarantine=None,
        client_rate=RateLimiter(limits.client_rate, limits.client_burst) if limits.client_rate else None,
        trusted_proxies=settings.server.trusted_proxies,
    )
    connections_registry.app = IngestApp(
        pipeline,
        others=HealthEndpoints(LiveMetrics(None, ""), is_draining=lambda: connections_registry.is_draining),
        has_proxies=bool(settings.server.trusted_proxies),
    )
    connections_registry.direct = DirectIngest(pipeline)
    listener = Listener(connections_registry)
    await listener.start(socket.socket(fileno=descriptor))
    await stop.wait()
    started = time.monotonic()
    is_clean = await listener.drain(linger_s=options.get("linger_s", 0.5), drain_s=10)
    sys.stdout.write(json.dumps({"is_clean": is_clean, "seconds": time.monotonic() - started}))
    sys.stdout.flush()
    log.flush()


uvloop.run(main())
