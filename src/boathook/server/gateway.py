"""Runs a gateway process: the intake, its database connections and the listener."""

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self
from uuid import UUID

import msgspec

from boathook.config import Settings
from boathook.db import buffer_marks, cells, rate_leases, rejections, replies, source_secrets, stored_sources
from boathook.db.database import Database, check_safety, check_usable, translate_errors
from boathook.db.due_notifier import notify_due
from boathook.db.events import EventStore
from boathook.db.health import NOT_REACHED
from boathook.db.live_settings import LiveSettings
from boathook.db.migrations import list_pending
from boathook.db.route_registry import read_router
from boathook.domain.cells import ApplicationAssignment, Assignment
from boathook.domain.due import DueRecipient
from boathook.domain.errors import DatabaseError, DatabaseUnavailable, RedisUnavailable
from boathook.domain.filters import Router
from boathook.domain.model import BufferMark
from boathook.domain.rate_leases import LeaseRequest, LeaseTokens
from boathook.handlers.outbox import Outbox
from boathook.http.asgi import Asgi, Receive, Send
from boathook.http.connection import ConnectionRegistry, WebSocketRefusal, WebSocketRouter
from boathook.http.limits import ByteBudget, ConnectionLimiter, RateLimiter
from boathook.http.listener import Listener
from boathook.http_client.client import Client, unguarded_settings
from boathook.http_client.fetch import Fetcher
from boathook.ingest.app import IngestApp
from boathook.ingest.buffer import Buffer
from boathook.ingest.cells import HELD, CellIntakes, CellReceiver, CellStore
from boathook.ingest.direct import DirectIngest
from boathook.ingest.event_builder import EventBuilder
from boathook.ingest.event_writer import EventWriter
from boathook.ingest.event_writer import MessageStore as MessageSink
from boathook.ingest.handshake_secrets import HandshakeSecrets
from boathook.ingest.health import HealthEndpoints
from boathook.ingest.intake import Intake
from boathook.ingest.quarantine import Quarantine
from boathook.ingest.reply_waiter import ReplyWaiter
from boathook.ingest.secret_reloader import SecretReloader
from boathook.ingest.secrets_cache import SecretsCache
from boathook.ingest.source_paths import SOURCE_PREFIX
from boathook.ingest.source_rate import RateLeaser, SourceRate
from boathook.ingest.sources import (
    CompiledSources,
    dedup_windows_by_source,
    follow_sources,
    report_dedup_windows,
)
from boathook.ingest.spool_records import UNROUTED
from boathook.ingest.stored_sources_file import read_stored_sources, save_stored_sources
from boathook.ingest.tracing import TracedApp, TracedIntake
from boathook.ingest.verification_io import VerificationIO
from boathook.observability import meters, tracing
from boathook.observability.live_metrics import LiveMetrics
from boathook.observability.log import get_logger
from boathook.server import child_config
from boathook.server.child_config import ProcessContext
from boathook.server.console import Console, answer_not_found, answer_root
from boathook.service.receiving.spool import cell_root_of, limits_of, root_of
from boathook.service.sending.message_store import MessageStore
from boathook.spool.spool import Spool

if TYPE_CHECKING:
    from boathook.broker.due_lane import DueLane
    from boathook.broker.redis_leases import RedisLeases
    from boathook.ingest.buffer_drain import BufferDrain

_RETRY_S: Final = 0.5
_PROBLEM_INTERVAL_S: Final = 5.0
_SAMPLE_S: Final = 1.0
_REDIS_INTERVAL_S: Final = 5.0
"""Seconds between two requests that show whether Redis answers."""
_CANCEL_TIMEOUT_S: Final = 3.0
_CONSOLE_START_TIMEOUT_S: Final = 60.0
"""How long a gateway delays its ready notification for the API and the console."""
_RESERVED_FILES: Final = 256
"""Open files a gateway needs in addition to its clients' connections."""
_LEASE_TIMEOUT_S: Final = 0.5
"""Deadline of leasing tokens: a later answer is worth little, as they are valid for a second."""
_QUESTION_TIMEOUT_S: Final = 1.0
"""Deadline of another cell's question for an application: it does not wait longer."""
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
    console = Console(settings, live_metrics) if "console" in server.roles else None
    registry = ConnectionRegistry(_answer_503, limits, connections, server.trusted_proxies, _sockets(sources, console))
    runtime = IngestRuntime(
        settings,
        sources,
        live_metrics,
        prepared=context.prepared,
        console=console,
        is_draining=lambda: registry.is_draining,
        connections=connections,
    )
    registry.app, registry.direct = runtime.app, runtime.direct
    registry.unverified, registry.on_refusal = runtime.unverified, runtime.note_refusal
    listener = Listener(registry)
    async with runtime:
        await listener.start(socket.socket(fileno=context.bound))
        registering = asyncio.create_task(_register_app_metrics(settings)) if console is None else None
        if console is not None:
            console.open(runtime.intake, runtime.due_lane)
        reporting = asyncio.create_task(_report_ready(context, console if runtime.is_connected else None))
        sampling = asyncio.create_task(live_metrics.run())
        child_config.tune_for_latency()
        try:
            await context.stop.wait()
            runtime.begin_shutdown(settings.server.drain_s * _REPLY_WAIT_SHARE)
            if console is not None:
                console.begin_shutdown()
            await _drain(listener, settings)
        finally:
            sampling.cancel()
            reporting.cancel()
            if registering is not None:
                registering.cancel()
            if console is not None:
                await console.close()


class GatewaySources(msgspec.Struct, frozen=True):
    """The sources of a gateway, with what they are compiled from."""

    live: LiveSettings
    added: SecretsCache
    compiled: CompiledSources


def load_sources(settings: Settings) -> GatewaySources:
    """Return the configured sources, and the stored ones that a gateway of this host saved last.

    Raises:
        ConfigError: the settings of a configured source are wrong.
    """
    live, added = LiveSettings(settings), SecretsCache(settings)
    saved = read_stored_sources(settings.server.data_dir)
    if saved is not None:
        live.set_rows(saved)
    return GatewaySources(live, added, CompiledSources(live, added))


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


async def _report_ready(context: ProcessContext, console: Console | None) -> None:
    """Report that this process is ready, once its API and console have started."""
    with contextlib.suppress(TimeoutError):
        if console is not None:
            await asyncio.wait_for(console.startup_done.wait(), _CONSOLE_START_TIMEOUT_S)
    context.ready()


async def _register_app_metrics(settings: Settings) -> None:
    """Load the apps if no console does, because /metrics includes the apps' metrics of all processes."""
    if settings.apps.load or settings.server.app:
        from boathook.server.loading import bind, load_hooks

        await asyncio.to_thread(lambda: bind(settings, load_hooks(settings)))


def _sockets(sources: GatewaySources, console: Console | None) -> WebSocketRouter:
    """Return the router for WebSockets; paths of sources accept none."""

    def at(path: str) -> Asgi | WebSocketRefusal:
        is_source = path in sources.compiled.by_path or path.rstrip("/") in sources.compiled.by_path
        return WebSocketRefusal.NO_HANDLER if console is None or is_source else console.websocket_app(path)

    return at


async def _drain(listener: Listener, settings: Settings) -> None:
    started = time.monotonic()
    is_clean = await listener.drain(linger_s=settings.server.linger_s, drain_s=settings.server.drain_s)
    _LOG.info("gateway_drained", is_clean=is_clean, seconds=round(time.monotonic() - started, 3))


class _GatewayDatabase:
    """The gateway's access to PostgreSQL: retries until connected, then keeps the connections.

    No event is stored before the handlers' routes are registered, because it would get no deliveries.
    """

    def __init__(self, settings: Settings, prepared: asyncio.Event) -> None:
        self._settings = settings
        self._prepared = prepared
        self.database: Database | None = None
        self.problem = NOT_REACHED
        """Why there is no database yet."""
        self.events = EventStore(dedup_days=settings.retention.dedup_days)
        self.connected = asyncio.Event()

    def require_database(self) -> Database:
        """Return the database. Raises DatabaseUnavailable while there is no connection."""
        if self.database is None:
            raise DatabaseUnavailable(NOT_REACHED)
        return self.database

    async def notify_due(self, due: Collection[DueRecipient]) -> None:
        """Notify workers and senders of due deliveries."""
        await notify_due(self.require_database(), due)

    async def store_rejections(self, batch: Sequence[rejections.NewRejection]) -> None:
        """Store rejections."""
        await rejections.insert(self.require_database(), batch)

    async def find_replies(self, event_ids: Sequence[UUID]) -> list[replies.ReplyStatus]:
        """Return the handlers' replies to these events."""
        return await replies.find(self.require_database(), event_ids)

    def is_available(self) -> bool:
        """Return whether PostgreSQL was available a moment ago."""
        return self.database is not None and not self.database.monitor.is_unavailable

    async def advance_mark(
        self, series: int, first: int, last: int, last_event_at: datetime | None
    ) -> buffer_marks.Gap:
        """Note that a batch from the brokers has arrived."""
        return await buffer_marks.advance(self.require_database(), series, first, last, last_event_at)

    async def read_marks(self, series: Sequence[int]) -> dict[int, BufferMark]:
        """Return how far series have arrived, within the time that an event may wait."""
        within_s = self._settings.spool.fallback_after_s
        return await buffer_marks.read(self.require_database(), series, within_s=within_s)

    async def lease_tokens(self, requests: Sequence[LeaseRequest]) -> Mapping[str, object]:
        """Lease tokens of sources' rates from PostgreSQL; see `LeaseTokens`."""
        return await rate_leases.lease_tokens(self.require_database(), requests, within_s=_LEASE_TIMEOUT_S)

    async def count_gateways(self) -> int:
        """Return the number of gateways, this one included."""
        within_s = self._settings.database.statement_timeout_s
        return await rate_leases.count_gateways(self.require_database(), within_s=within_s)

    async def read_secrets(self, live: LiveSettings) -> tuple[source_secrets.SourceSecret, ...]:
        """Read the stored sources into *live*, then the secrets that operators have added to sources.

        In this order, because a source is stored together with its secrets: no source is seen without them.
        """
        database, within_s = self.require_database(), self._settings.database.statement_timeout_s
        async with database.acquire(within_s=within_s) as connection:
            with translate_errors():
                await live.refresh(connection)
        return await source_secrets.list_all(database, within_s=within_s)

    async def read_router(self) -> Router:
        """Read and compile the routes, within the time that an event may wait."""
        return await read_router(self.require_database(), within_s=self._settings.spool.fallback_after_s)

    async def find_cells(self, wanted: Collection[UUID]) -> Sequence[ApplicationAssignment]:
        """Return the cells of applications that this cell has, or that have moved from here."""
        known = await cells.read_applications(self.require_database(), wanted)
        own = self._settings.cells.name
        return [
            ApplicationAssignment(application=one.shown_id, cell=one.cell or own, revision=one.revision)
            for one in known.values()
        ]

    async def has_application(self, organization: str, reference: str) -> bool:
        """Return whether an application with this id or uid is in this cell."""
        async with self.require_database().acquire(within_s=_QUESTION_TIMEOUT_S) as connection:
            with translate_errors():
                return await cells.has_application(connection, organization, reference)

    async def keep_connecting(self) -> None:
        """Connect once the supervisor has prepared the database, retrying until it succeeds."""
        finding = asyncio.create_task(self._find_problem())
        try:
            await self._prepared.wait()
        finally:
            finding.cancel()
        is_logged = False
        while not self.connected.is_set():
            try:
                await self._connect()
            except DatabaseError as error:
                self.problem = str(error)
                if not is_logged:
                    _LOG.warning("database_unavailable", error=str(error), note="trying again until it is back")
                    is_logged = True
                await asyncio.sleep(_RETRY_S)
            except Exception as error:  # noqa: BLE001 - spooled events must reach the database after any error
                _LOG.error("database_not_connected", exc_info=error)
                await asyncio.sleep(_RETRY_S)

    async def _find_problem(self) -> None:
        """Find out why the supervisor has not prepared the database yet, for the health endpoints."""
        while True:
            try:
                await check_usable(self._settings.database_url())
            except DatabaseError as error:
                self.problem = str(error)
            await asyncio.sleep(_PROBLEM_INTERVAL_S)

    async def _connect(self) -> None:
        settings = self._settings
        database = await Database.open(
            settings.database_url(),
            purpose=rate_leases.GATEWAY,
            # In addition to the committers, one each for: spool, rejections, notifications, health checks, replies,
            # secrets, leases of rates; with brokers also for their drain and for its marks.
            size=settings.database.ingest_connections + (9 if settings.has_brokers else 7),
            connect_timeout_s=settings.database.connect_timeout_s,
            statement_timeout_s=settings.database.statement_timeout_s,
            is_reset=False,
            allow_unsafe=settings.database.allow_unsafe,
        )
        try:
            await check_safety(database, allow_unsafe=settings.database.allow_unsafe)
            if missing := await list_pending(database):
                raise DatabaseUnavailable(f"the schema lacks {', '.join(missing)}")
            if settings.cells.name:
                await cells.claim(database, settings.cells.name)
        except BaseException:
            await database.close()
            raise
        self.database = database
        self.events.connect(database)
        self.connected.set()

    async def close(self) -> None:
        """Close the connections."""
        if self.database is not None:
            await self.database.close()


class IngestRuntime:
    """All that receives events, except the listener; starts with the spool if connecting to PostgreSQL takes too long.

    Args:
        settings: the settings, including the database URL.
        sources: the sources; they follow those stored in PostgreSQL.
        live_metrics: the metrics of this host.
        prepared: set when schemas are current and routes are registered.
        console: serves the paths that belong to no source; None answers 503 there.
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
        console: Console | None = None,
        is_draining: Callable[[], bool] = lambda: False,
        connections: ConnectionLimiter | None = None,
    ) -> None:
        self._settings = settings
        self._sources = sources
        self._removed: set[str] = set()
        """Removed sources whose handshake secrets have not been deleted yet."""
        self._gateway_database = _GatewayDatabase(settings, prepared)
        self.due_lane = self._open_due_lane()
        """Notifies workers and senders of due deliveries; None if PostgreSQL does."""
        self._tasks: list[asyncio.Task[None]] = []
        self._client: Client | None = None
        """Makes requests to other cells; None if there are none."""
        database, retention, limits = settings.database, settings.retention, settings.limits
        self._messages = MessageStore(self._gateway_database.require_database, Outbox.of(retention), self._note_move)
        event_builder = EventBuilder(Router((), UNROUTED), self._gateway_database.read_router)
        self._cells = self._open_cells(event_builder) if settings.cells.name else None
        self._elsewhere = None if self._cells is None else partial(self._cells.find_other, settings.cells.name)
        self.intake = Intake(
            self._gateway_database.events,
            announce=self.announce,
            reroute=event_builder.reroute,
            messages=self._messages,
            elsewhere=self._elsewhere,
            buffer=self._open_buffer(live_metrics.slot),
            within_s=settings.spool.fallback_after_s,
            committers=database.ingest_connections,
            batch=database.ingest_batch_size,
            queue=database.ingest_queue_size,
        )
        """Makes events durable."""
        self._follow_dedup_rules()
        if self._cells is not None:
            self._cells.add(settings.cells.name, self.intake)
        self._buffer_drain = self._open_drain(event_builder) if settings.has_brokers else None
        self._redis = self._open_redis()
        lease: LeaseTokens = self._gateway_database.lease_tokens if self._redis is None else self._redis.lease
        self._rate_leaser = RateLeaser(
            self._rates, lease, self._gateway_database.count_gateways, gateways=settings.server.gateways
        )
        self._quarantine = Quarantine(self._gateway_database.store_rejections, per_second=retention.rejections_rate)
        self._secret_reloader = SecretReloader(
            sources.live.current,
            sources.compiled.by_name.values(),
            sources.added,
            lambda: self._gateway_database.read_secrets(sources.live),
            on_read=self._update_sources,
            save=self._save_sources,
        )
        self._reply_waiter = ReplyWaiter(self._gateway_database.find_replies, max_waiting=limits.max_waiting)
        self.unverified = ByteBudget(limits.max_unverified_bytes)
        """The bytes of all bodies that are not verified yet."""
        self._is_started = self._has_reply_tasks = False
        self._fetcher = Fetcher(settings.outbound.allow)
        tracer = tracing.current()
        app = self._ingest_app = IngestApp(
            sources.compiled.by_path,
            self.intake if tracer is None else TracedIntake(self.intake),
            event_builder,
            quarantine=self._quarantine,
            others=HealthEndpoints(
                live_metrics,
                is_draining=is_draining,
                database=lambda: self._gateway_database.database,
                database_problem=lambda: self._gateway_database.problem,
                intake=self.intake,
                compiled_sources=lambda: sources.compiled.by_name,
                event_builder=event_builder,
                fallback=_answer_without_console if console is None else console,
                connections=connections,
                console_problem=lambda: None if console is None else console.problem,
            ),
            client_rate=RateLimiter(limits.client_rate, limits.client_burst) if limits.client_rate > 0 else None,
            trusted_proxies=settings.server.trusted_proxies,
            verification_io=VerificationIO(self._fetcher.fetch, HandshakeSecrets(settings.server.data_dir)),
            reply_waiter=self._reply_waiter,
            unverified=self.unverified,
        )
        self.note_refusal = app.note_refusal
        """Records a request that its connection refused."""
        self._set_sources()
        self.app: Asgi = app if tracer is None else TracedApp(app, tracer)
        if self._cells is not None:
            self.app = CellReceiver(
                self._cells,
                settings.cells_secret(),
                self.intake,
                event_builder,
                applications=self._gateway_database,
                others=self.app,
            )
        """The ASGI application that answers every request."""
        # A trace belongs to the task of its request.
        self.direct = DirectIngest(app, self.intake) if tracer is None else None
        """Answers small requests without ASGI; None if it cannot."""

    def _open_buffer(self, slot: str) -> Buffer | None:
        """Return what holds events while PostgreSQL does not accept them; None to refuse them then."""
        settings = self._settings
        spool = Spool.at(root_of(settings), limits_of(settings.spool)) if settings.has_spool else None
        if not settings.has_brokers:
            return spool
        # Not needed otherwise, and its extra may not be installed.
        from boathook.broker.access import read_access
        from boathook.broker.queues import queue_of
        from boathook.ingest.broker_buffer import BrokerFirstBuffer

        return BrokerFirstBuffer(
            read_access(settings),
            queue=queue_of(f"{socket.gethostname()}/{slot}"),
            confirm_s=settings.buffer.confirm_s,
            spool=spool,
            read_marks=self._gateway_database.read_marks,
        )

    def _open_cells(self, event_builder: EventBuilder) -> CellIntakes:
        """Return the intakes for the other cells."""
        settings = self._settings
        secret, database = settings.cells_secret(), settings.database
        self._client = Client(unguarded_settings(settings))
        opened = CellIntakes(settings.cells.directory, lambda: event_builder.router, self._messages)

        async def on_refusal(assignment: Assignment | ApplicationAssignment) -> None:
            if isinstance(assignment, ApplicationAssignment):
                opened.learn(assignment)
                opened.hold(assignment.application)
                return
            opened.hold(assignment.source)
            known = event_builder.router.assignments.get(assignment.source)
            is_later = assignment.revision > (0 if known is None else known.revision)
            with contextlib.suppress(DatabaseError):  # the events wait, and the cell refuses them again
                # Only a move may assign a source to this cell: it copies the keys of known events first.
                if is_later and assignment.cell != settings.cells.name:
                    await cells.assign(self._gateway_database.require_database(), [assignment])
                await event_builder.refresh()

        def spool_of(name: str) -> Spool:
            return Spool.at(cell_root_of(settings, name), limits_of(settings.spool), cell=name)

        def open_intake(name: str, store: MessageSink) -> Intake:
            return Intake(
                store,
                messages=store,
                buffer=spool_of(name) if settings.spool.enabled else None,
                within_s=settings.spool.fallback_after_s,
                batch=database.ingest_batch_size,
                queue=database.ingest_queue_size,
                dedup_cache_size=0,  # nothing here would notice that the other cell was restored to an earlier state
                elsewhere=partial(opened.find_other, name),
                cell=name,
            )

        for name, cell in settings.cells.others.items():
            store = CellStore(name, cell.url, secret, post=self._post, on_refusal=on_refusal, messages=self._messages)
            opened.add(name, open_intake(name, store), store)
        opened.add(HELD, open_intake(HELD, opened))
        return opened

    def _note_move(self, assignment: ApplicationAssignment) -> None:
        if self._cells is not None:
            self._cells.learn(assignment)

    async def _post(
        self, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float, max_bytes: int
    ) -> tuple[int, bytes]:
        assert self._client is not None
        answer = await self._client.request(
            "POST", url, headers=headers, body=body, timeout_s=timeout_s, max_bytes=max_bytes
        )
        return answer.status, answer.body

    def _open_drain(self, event_builder: EventBuilder) -> "BufferDrain":
        from boathook.broker.access import read_access
        from boathook.ingest.buffer_drain import BufferDrain

        return BufferDrain(
            read_access(self._settings),
            EventWriter(self._gateway_database.events, event_builder.reroute, self._messages, self._elsewhere),
            self._gateway_database.advance_mark,
            is_available=self._gateway_database.is_available,
            note_stored=self.intake.note_stored,
            batch=self._settings.database.ingest_batch_size,
        )

    def _open_due_lane(self) -> "DueLane | None":
        if not self._settings.has_due_lane:
            return None
        from boathook.broker.due_lane import DueLane

        return DueLane.of(self._settings)

    def _open_redis(self) -> "RedisLeases | None":
        """Return the Redis client that leases the rates of sources; None if PostgreSQL leases them."""
        if not self._settings.shared.redis:
            return None
        # Not needed otherwise, and its extra may not be installed.
        from boathook.broker.access import read_redis_url
        from boathook.broker.redis_leases import RedisLeases

        url = read_redis_url(self._settings)
        return RedisLeases(url, within_s=_LEASE_TIMEOUT_S) if url else None

    def _rates(self) -> list[SourceRate]:
        return [compiled.rate for compiled in self._sources.compiled.by_name.values() if compiled.rate is not None]

    async def __aenter__(self) -> Self:
        connecting = asyncio.create_task(self._gateway_database.keep_connecting(), name="database:connect")
        self._tasks.append(connecting)
        await asyncio.wait([connecting], timeout=self._settings.spool.fallback_after_s)
        if self._gateway_database.connected.is_set():
            # Before the first request: the secrets file may be older than a removal.
            await self._secret_reloader.ensure_fresh()
        if self._cells is not None:
            await self._cells.start()
        await self.intake.start(is_store_unavailable=not self._gateway_database.connected.is_set())
        self._quarantine.start()
        self._tasks.append(asyncio.create_task(self._sample()))
        self._tasks.append(asyncio.create_task(self._watch_gaps()))
        self._tasks.append(asyncio.create_task(self._secret_reloader.run(), name="secrets:reload"))
        self._tasks.append(asyncio.create_task(self._rate_leaser.run(), name="rates:lease"))
        if self._redis is not None:
            self._tasks.append(asyncio.create_task(self._watch_redis(self._redis), name="redis:watch"))
        self._tasks.append(asyncio.create_task(self._listen_for_rotations()))
        if self.due_lane is not None:
            self._tasks.append(asyncio.create_task(self.due_lane.run(), name="lane:publish"))
        if self._buffer_drain is not None:
            self._tasks.append(asyncio.create_task(self._buffer_drain.run(), name="buffer:drain"))
        self._is_started = True
        self._follow_replies()
        return self

    def _update_sources(self, has_new_secrets: bool) -> None:
        """Serve the stored sources as they are now, from the next request on."""
        sources = self._sources
        if not sources.compiled.is_outdated(has_new_secrets=has_new_secrets):
            return
        former = set(sources.compiled.by_name)
        sources.compiled.update()
        self._removed |= former - {row.name for row in sources.live.rows} - sources.live.current.sources.keys()
        self._secret_reloader.set_sources(sources.live.current, sources.compiled.by_name.values())
        self._follow_dedup_rules()
        self._set_sources()
        self._rate_leaser.follow_sources()
        self._follow_replies()
        self._secret_reloader.save_soon()
        _LOG.info("sources_changed", sources=len(sources.compiled.by_name), stored=len(sources.live.current.stored))

    def _set_sources(self) -> None:
        compiled = self._sources.compiled
        self._ingest_app.set_sources(compiled.by_path, compiled.unavailable, has_all_sources=compiled.is_known)

    def _save_sources(self) -> None:
        """Save what a start without PostgreSQL needs, and delete handshake secrets of removed sources; in a thread."""
        sources, data_dir = self._sources, self._settings.server.data_dir
        sources.added.save()
        save_stored_sources(data_dir, sources.live.rows)
        while self._removed:
            name = self._removed.pop()
            if name not in sources.live.current.sources:
                HandshakeSecrets(data_dir).forget(name)

    def _follow_dedup_rules(self) -> None:
        """Remember keys, and report for how long, as the settings of the current sources say."""
        settings = self._sources.live.current
        follow_sources(self._gateway_database.events, settings)
        self.intake.set_dedup_windows(dedup_windows_by_source(settings))
        report_dedup_windows(settings)

    def _follow_replies(self) -> None:
        """Begin to read the replies of handlers once there is a source whose senders wait for them."""
        has_inline = any(compiled.inline for compiled in self._sources.compiled.by_name.values())
        if self._is_started and has_inline and not self._has_reply_tasks:
            self._has_reply_tasks = True
            self._tasks.append(asyncio.create_task(self._listen_for_replies(self._reply_waiter)))
            self._tasks.append(asyncio.create_task(self._reply_waiter.run()))

    @property
    def is_connected(self) -> bool:
        """Whether PostgreSQL has been reached."""
        return self._gateway_database.connected.is_set()

    async def announce(self, due: Collection[DueRecipient]) -> None:
        """Notify workers and senders of due deliveries. Raises DatabaseError."""
        if self.due_lane is None:
            await self._gateway_database.notify_due(due)
        else:
            await self.due_lane.announce(self._gateway_database.notify_due, due)

    def begin_shutdown(self, within_s: float) -> None:
        """Let no sender wait for a handler longer than *within_s*."""
        self._reply_waiter.close(within_s)

    async def _listen_for_rotations(self) -> None:
        await self._gateway_database.connected.wait()
        database = self._gateway_database.require_database()
        await database.listen(source_secrets.CHANNEL, self._secret_reloader.on_notification)
        await database.listen(stored_sources.CHANNEL, self._secret_reloader.on_notification)
        self._secret_reloader.on_notification("")

    async def _listen_for_replies(self, reply_waiter: ReplyWaiter) -> None:
        await self._gateway_database.connected.wait()
        await self._gateway_database.require_database().listen(replies.CHANNEL, reply_waiter.on_notification)

    async def _watch_gaps(self) -> None:
        await self._gateway_database.connected.wait()
        self._gateway_database.require_database().monitor.on_reconnect(self.intake.clear_dedup_cache)

    async def _sample(self) -> None:
        while True:
            meters.gauge("boathook_ingest_queue_events", self.intake.waiting)
            meters.gauge("boathook_dedup_cache_keys", self.intake.cached_keys)
            await asyncio.sleep(_SAMPLE_S)

    async def _watch_redis(self, redis: "RedisLeases") -> None:
        while True:
            try:
                await redis.check()
            except RedisUnavailable:
                meters.gauge("boathook_redis_unavailable", 1.0)
            else:
                meters.gauge("boathook_redis_unavailable", 0.0)
            await asyncio.sleep(_REDIS_INTERVAL_S)

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks, timeout=_CANCEL_TIMEOUT_S)
        self._fetcher.close()
        await self.intake.drain()
        if self._cells is not None:
            await self._cells.drain()
        if self._client is not None:
            self._client.close()
        await self._quarantine.drain()
        if self._redis is not None:
            await self._redis.close()
        await self._gateway_database.close()


async def _answer_without_console(scope: dict[str, Any], receive: Receive, send: Send) -> None:
    """Describe this server at ``/``; paths but those of sources may be served by another host that runs the console."""
    if scope["path"] == "/" and scope["method"] in {"GET", "HEAD"}:
        await answer_root(scope, send, has_console=False)
    elif scope["path"].startswith(SOURCE_PREFIX):
        await answer_not_found(send)
    else:
        await _answer_503(scope, receive, send)


async def _answer_503(_scope: dict[str, Any], _receive: Receive, send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"5")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"ok":false,"error":"not available, try again later"}'})
