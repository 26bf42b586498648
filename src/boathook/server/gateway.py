"""Runs a gateway process: the intake, its database connections and the listener."""

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import Callable, Collection, Iterable
from contextlib import AsyncExitStack
from typing import Any, Final, Self, TypeVar

from boathook.config import Settings
from boathook.config.packages import resolve
from boathook.delivery.due_receiver import open_notifier
from boathook.domain.due import DueRecipient
from boathook.domain.errors import ServedElsewhere
from boathook.domain.filters import Router
from boathook.handlers.outbox import Outbox
from boathook.http.asgi import Asgi, Receive, Send
from boathook.http.connection import ConnectionRegistry, WebSocketRefusal, WebSocketRouter
from boathook.http.limits import ByteBudget, ConnectionLimiter, RateLimiter
from boathook.http.listener import Listener
from boathook.http_client.fetch import Fetcher
from boathook.ingest.app import IngestApp
from boathook.ingest.direct import DirectIngest
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.event_writer import EventSink, EventWriter
from boathook.ingest.handshake_secrets import HandshakeSecrets
from boathook.ingest.health import HealthEndpoints
from boathook.ingest.intake import Intake
from boathook.ingest.pipeline import IngestPipeline
from boathook.ingest.quarantine import Quarantine
from boathook.ingest.reply_waiter import ReplyWaiter
from boathook.ingest.source_paths import SOURCE_PREFIX
from boathook.ingest.spool_records import UNROUTED
from boathook.ingest.verification_io import VerificationIO
from boathook.observability import meters
from boathook.observability.live_metrics import LiveMetrics
from boathook.observability.log import get_logger
from boathook.server import child_config
from boathook.server.background import BackgroundTasks
from boathook.server.child_config import ProcessContext
from boathook.server.gateway_database import GatewayDatabase
from boathook.server.gateway_part import Gateway, GatewayPart, OpenGatewayPart
from boathook.server.gateway_sources import GatewaySources, SourceFollower, load_sources
from boathook.server.interfaces import Interfaces, answer_not_found, answer_root
from boathook.service.receiving.spool import limits_of, root_of
from boathook.service.sending.message_store import MessageStore
from boathook.spool.spool import Spool

T = TypeVar("T")

_SAMPLE_S: Final = 1.0
_INTERFACES_START_TIMEOUT_S: Final = 60.0
"""How long a gateway delays its ready notification for the API and the pages."""
_RESERVED_FILES: Final = 256
"""Open files a gateway needs in addition to its clients' connections."""
_REPLY_WAIT_SHARE: Final = 0.8
"""Share of the drain time during which senders may still wait for a handler."""
_LOG = get_logger("server")


async def run_gateway(context: ProcessContext) -> None:
    """Serve the supervisor's socket until stopped, then drain."""
    settings = context.settings
    sources = load_sources(settings)
    limits, server = settings.limits, settings.server
    live_metrics = LiveMetrics(server.data_dir, context.config.slot)
    connections = ConnectionLimiter(limit_connections(limits.max_connections), limits.max_connections_per_client)
    interfaces = Interfaces(settings, live_metrics) if "console" in server.roles else None
    registry = ConnectionRegistry(
        _answer_503, limits, connections, server.trusted_proxies, _sockets(sources, interfaces)
    )
    runtime = IngestRuntime(
        settings,
        sources,
        live_metrics,
        prepared=context.prepared,
        interfaces=interfaces,
        is_draining=lambda: registry.is_draining,
        connections=connections,
    )
    registry.app, registry.direct = runtime.app, runtime.direct
    registry.unverified, registry.on_refusal = runtime.unverified, runtime.note_refusal
    listener = Listener(registry)
    async with runtime:
        await listener.start(socket.socket(fileno=context.bound))
        registering = asyncio.create_task(_register_app_metrics(settings)) if interfaces is None else None
        if interfaces is not None:
            interfaces.start(runtime.intake, runtime.notifier)
        reporting = asyncio.create_task(_report_ready(context, interfaces if runtime.is_connected else None))
        sampling = asyncio.create_task(live_metrics.run())
        child_config.tune_for_latency()
        try:
            await context.stop.wait()
            runtime.begin_shutdown(settings.server.drain_s * _REPLY_WAIT_SHARE)
            if interfaces is not None:
                interfaces.begin_shutdown()
            await _drain(listener, settings)
        finally:
            sampling.cancel()
            reporting.cancel()
            if registering is not None:
                registering.cancel()
            if interfaces is not None:
                await interfaces.stop()


def limit_connections(max_connections: int) -> int:
    """Return how many connections the open-file limit allows, after raising that limit as far as possible.

    Beyond the limit no connection could be accepted at all, so none could replace an idle one.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max_connections + _RESERVED_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return max_connections
    allowed = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    connections = max(1, min(max_connections, soft - min(_RESERVED_FILES, soft // 2)))
    if connections < max_connections:
        _LOG.warning("few_open_files", allowed=soft, connections=connections, fix=f"ulimit -n {needed}")
    return connections


async def _report_ready(context: ProcessContext, interfaces: Interfaces | None) -> None:
    """Report that this process is ready, once its API and pages have started."""
    with contextlib.suppress(TimeoutError):
        if interfaces is not None:
            await asyncio.wait_for(interfaces.startup_done.wait(), _INTERFACES_START_TIMEOUT_S)
    context.ready()


async def _register_app_metrics(settings: Settings) -> None:
    """Load the apps if no interfaces do, because /metrics includes the apps' metrics of all processes."""
    if settings.apps.load or settings.server.app:
        from boathook.server.loading import bind, load_hooks

        await asyncio.to_thread(lambda: bind(settings, load_hooks(settings)))


def _sockets(sources: GatewaySources, interfaces: Interfaces | None) -> WebSocketRouter:
    """Return the router for WebSockets; paths of sources accept none."""

    def at(path: str) -> Asgi | WebSocketRefusal:
        is_source = path in sources.compiled.by_path or path.rstrip("/") in sources.compiled.by_path
        return WebSocketRefusal.NO_HANDLER if interfaces is None or is_source else interfaces.websocket_app(path)

    return at


async def _drain(listener: Listener, settings: Settings) -> None:
    started = time.monotonic()
    is_clean = await listener.drain(linger_s=settings.server.linger_s, drain_s=settings.server.drain_s)
    _LOG.info("gateway_drained", is_clean=is_clean, seconds=round(time.monotonic() - started, 3))


class IngestRuntime:
    """All that receives events, except the listener; starts with the spool if connecting to PostgreSQL takes too long.

    It is a list of parts, which start in order and stop in reverse.

    Args:
        settings: the settings, including the database URL.
        sources: the sources; they follow those stored in PostgreSQL.
        live_metrics: the metrics of this host.
        prepared: set when schemas are current and routes are registered.
        interfaces: serves the paths that belong to no source; None answers 503 there.
        is_draining: whether the process is stopping.
        connections: the connection limiter of the listener.
    """

    def __init__(
        self,
        settings: Settings,
        sources: GatewaySources,
        live_metrics: LiveMetrics,
        *,
        prepared: asyncio.Event,
        interfaces: Interfaces | None = None,
        is_draining: Callable[[], bool] = lambda: False,
        connections: ConnectionLimiter | None = None,
    ) -> None:
        self._settings = settings
        database = self._database = GatewayDatabase(settings, prepared)
        self.notifier = open_notifier(settings, None)
        """Notifies workers and senders of due deliveries; None if PostgreSQL does."""
        retention, limits = settings.retention, settings.limits
        self._messages = MessageStore(database.require_database, Outbox.of(retention), self._note_move)
        event_builder = self._event_builder = EventBuilder(Router((), UNROUTED), database.read_router)
        spool = Spool.at(root_of(settings), limits_of(settings.spool)) if settings.has_spool else None
        self._parts = self._open_parts(live_metrics.slot, spool)
        """What optional packages add."""
        database.checks += [part.check_database for part in self._parts]
        self._elsewhere = _first(part.elsewhere for part in self._parts)
        self.intake = Intake(
            database.events,
            announce=self.announce,
            reroute=event_builder.reroute,
            messages=self._messages,
            elsewhere=self._elsewhere,
            buffer=_first(part.buffer for part in self._parts) or spool,
            within_s=settings.spool.fallback_after_s,
            committers=settings.database.ingest_connections,
            batch=settings.database.ingest_batch_size,
            queue=settings.database.ingest_queue_size,
        )
        """Makes events durable."""
        self._quarantine = Quarantine(database.store_rejections, per_second=retention.rejections_rate)
        self._reply_waiter = ReplyWaiter(database.find_replies, max_waiting=limits.max_waiting)
        self.unverified = ByteBudget(limits.max_unverified_bytes)
        """The bytes of all bodies that are not verified yet."""
        self._fetcher = Fetcher(settings.outbound.allow)
        intake: EventSink = self.intake
        for part in self._parts:
            intake = part.wrap_intake(intake)
        pipeline = IngestPipeline(
            sources.compiled.by_path,
            intake,
            event_builder,
            quarantine=self._quarantine,
            client_rate=RateLimiter(limits.client_rate, limits.client_burst) if limits.client_rate > 0 else None,
            trusted_proxies=settings.server.trusted_proxies,
            verification_io=VerificationIO(self._fetcher.fetch, HandshakeSecrets(settings.server.data_dir)),
            unverified=self.unverified,
        )
        self.note_refusal = pipeline.note_refusal
        """Records a request that its connection refused."""
        app = IngestApp(
            pipeline,
            others=HealthEndpoints(
                live_metrics,
                is_draining=is_draining,
                database=lambda: database.database,
                database_problem=lambda: database.problem,
                intake=self.intake,
                compiled_sources=lambda: sources.compiled.by_name,
                event_builder=event_builder,
                fallback=answer_without_interfaces if interfaces is None else interfaces,
                connections=connections,
                interfaces_problem=lambda: None if interfaces is None else interfaces.problem,
            ),
            has_proxies=bool(settings.server.trusted_proxies),
            reply_waiter=self._reply_waiter,
        )
        self._source_follower = SourceFollower(
            settings,
            sources,
            database,
            intake=self.intake,
            pipeline=pipeline,
            lease_tokens=_first(part.lease_tokens for part in self._parts) or database.lease_tokens,
            reply_waiter=self._reply_waiter,
        )
        self.app: Asgi = app
        """The ASGI application that answers every request."""
        for part in self._parts:
            self.app = part.wrap(self.app)
        self.direct = None if any(part.needs_every_request for part in self._parts) else DirectIngest(pipeline)
        """Answers small requests without ASGI; None if it cannot."""
        self._tasks = BackgroundTasks(
            {"gateway:measure": self._measure} | ({} if self.notifier is None else {"due:notify": self.notifier.run})
        )
        self._stack = AsyncExitStack()

    def _open_parts(self, slot: str, spool: Spool | None) -> list[GatewayPart]:
        gateway = Gateway(
            settings=self._settings,
            slot=slot,
            database=self._database,
            event_builder=self._event_builder,
            messages=self._messages,
            spool=spool,
            make_writer=self._make_writer,
            get_intake=lambda: self.intake,
        )
        makers: list[OpenGatewayPart] = [
            resolve(package.gateway) for package in self._settings.packages if package.gateway
        ]
        return [part for make in makers if (part := make(gateway)) is not None]

    def _make_writer(self) -> EventWriter:
        return EventWriter(self._database.events, self._event_builder.reroute, self._messages, self._elsewhere)

    def _note_move(self, error: ServedElsewhere) -> None:
        for part in self._parts:
            part.note_move(error)

    async def __aenter__(self) -> Self:
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(self._database)
            self._quarantine.start()
            stack.push_async_callback(self._quarantine.drain)
            for part in self._parts:
                await stack.enter_async_context(part)
            await stack.enter_async_context(self._source_follower)
            await self.intake.start(is_store_unavailable=not self.is_connected)
            stack.push_async_callback(self.intake.drain)
            stack.callback(self._fetcher.close)
            await stack.enter_async_context(self._tasks)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _measure(self) -> None:
        while True:
            meters.gauge("boathook_ingest_queue_events", self.intake.waiting)
            meters.gauge("boathook_dedup_cache_keys", self.intake.cached_keys)
            await asyncio.sleep(_SAMPLE_S)

    @property
    def is_connected(self) -> bool:
        """Whether PostgreSQL has been reached."""
        return self._database.connected.is_set()

    async def announce(self, due: Collection[DueRecipient]) -> None:
        """Notify workers and senders of due deliveries. Raises DatabaseError."""
        if self.notifier is None:
            await self._database.notify_due(due)
        else:
            await self.notifier.announce(self._database.notify_due, due)

    def begin_shutdown(self, within_s: float) -> None:
        """Let no sender wait for a handler longer than *within_s*."""
        self._reply_waiter.close(within_s)


def _first(offers: Iterable[T | None]) -> T | None:
    """Return the first that is offered, of parts of which at most one is in use."""
    return next((offer for offer in offers if offer is not None), None)


async def answer_without_interfaces(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Describe this server at ``/``; paths but those of sources may be served by another host that runs the console."""
    if scope["path"] == "/" and scope["method"] in {"GET", "HEAD"}:
        await answer_root(scope, send, has_api=False)
    elif scope["path"].startswith(SOURCE_PREFIX):
        await answer_not_found(send)
    else:
        await _answer_503(scope, receive, send)


async def _answer_503(_scope: dict[str, Any], _receive: Receive, send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"5")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"ok":false,"error":"not available, try again later"}'})
