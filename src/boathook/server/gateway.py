"""A gateway process: the intake, its connections to the journal, and the listener in front of them."""

import asyncio
import contextlib
import resource
import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final, Self
from uuid import UUID

from boathook.config import Settings
from boathook.config.tables import SpoolSettings
from boathook.domain.errors import JournalError, JournalUnavailable
from boathook.domain.filters import Router
from boathook.domain.model import NewEvent, Receipt
from boathook.inbound.added import AddedSecrets
from boathook.inbound.app import Asgi, IngestApp, Receive, Send
from boathook.inbound.arrival import Arrivals
from boathook.inbound.captured import CapturedSecrets
from boathook.inbound.errands import Errands
from boathook.inbound.gates import Gate, compile_gates, dedup_days_of
from boathook.inbound.inline import WaitingRoom
from boathook.inbound.intake import Intake
from boathook.inbound.limits import Connections, Rate
from boathook.inbound.listener import Listener
from boathook.inbound.probes import Probes
from boathook.inbound.protocol import House, NoSocket, Sockets
from boathook.inbound.quarantine import Quarantine
from boathook.inbound.records import UNROUTED
from boathook.inbound.rotating import Rotation
from boathook.inbound.traced import TracedApp, TracedIntake
from boathook.journal import rejections, replies, source_secrets
from boathook.journal.database import Database, check_safety
from boathook.journal.events import EventStore
from boathook.journal.migrations import pending
from boathook.journal.moves import announce_due
from boathook.journal.registry import read_router
from boathook.outbound.fetch import Fetcher
from boathook.server import collector
from boathook.server.console import Console
from boathook.server.order import Life
from boathook.spool.shelf import Bounds
from boathook.spool.spool import Spool
from boathook.telemetry import emit, tracing
from boathook.telemetry.exporters import History
from boathook.telemetry.log import get_logger

_RETRY_S: Final = 0.5
_SAMPLE_S: Final = 1.0
_SETTLED_WITHIN_S: Final = 60.0
"""How long a service manager waits for the API and the console of a gateway that takes events in already."""
_FILES_BESIDES: Final = 256
"""Open files a gateway needs besides its clients' connections."""
_WAITED_FOR: Final = 0.8
"""Share of the time for stopping that senders may go on waiting for a handler."""
_LOG = get_logger("server")


async def run_gateway(life: Life) -> None:
    """Serve the supervisor's socket until told to stop, then drain."""
    settings = life.settings
    added = AddedSecrets(settings)
    gates = compile_gates(settings, added)
    limits, server = settings.limits, settings.server
    history = History(server.data_dir, life.order.slot)
    connections = Connections(affordable(limits.max_connections), limits.max_connections_per_client)
    console = Console(settings, history) if "console" in server.roles else None
    house = House(_answer_503, limits, connections, server.trusted_proxies, _sockets(gates, console))
    desk = _Desk(settings, gates, added, house, history, console, life.prepared)
    listener = Listener(house)
    async with desk:
        await listener.start(socket.socket(fileno=life.bound))
        learning = asyncio.create_task(_learn_metrics(settings)) if console is None else None
        if console is not None:
            console.open()
        telling = asyncio.create_task(_tell_ready(life, console if desk.has_reached else None))
        sampling = asyncio.create_task(history.keep_sampling())
        collector.calm()
        try:
            await life.stop.wait()
            desk.hurry(settings.server.drain_s * _WAITED_FOR)
            if console is not None:
                console.hurry()
            await _drain(listener, settings)
        finally:
            sampling.cancel()
            telling.cancel()
            if learning is not None:
                learning.cancel()
            if console is not None:
                await console.close()


def affordable(max_connections: int) -> int:
    """Return how many connections the limit of open files allows, which is raised as far as the system lets us.

    Past that limit no connection is accepted at all, so none could take an idle one's place.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = max_connections + _FILES_BESIDES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        return max_connections
    allowed = needed if hard == resource.RLIM_INFINITY else min(hard, needed)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    connections = max(1, min(max_connections, soft - min(_FILES_BESIDES, soft // 2)))
    if connections < max_connections:
        _LOG.warning("few_open_files", allowed=soft, connections=connections, fix=f"ulimit -n {needed}")
    return connections


async def _tell_ready(life: Life, console: Console | None) -> None:
    """Tell that this process is ready, once its API and console are; those wait for PostgreSQL, this does not."""
    with contextlib.suppress(TimeoutError):
        if console is not None:
            await asyncio.wait_for(console.settled.wait(), _SETTLED_WITHIN_S)
    life.ready()


async def _learn_metrics(settings: Settings) -> None:
    """Load the apps where no console does, as /metrics shows what theirs have counted in any process."""
    if settings.apps.load or settings.server.app:
        from boathook.server.loading import bind, load_hooks

        await asyncio.to_thread(lambda: bind(settings, load_hooks(settings)))


def _sockets(gates: Mapping[str, Gate], console: Console | None) -> Sockets:
    """Say who takes WebSockets at a path: nobody where a source listens."""

    def at(path: str) -> Asgi | NoSocket:
        return NoSocket.NOBODY if console is None or path in gates else console.socket_at(path)

    return at


async def _drain(listener: Listener, settings: Settings) -> None:
    started = time.monotonic()
    is_clean = await listener.drain(linger_s=settings.server.linger_s, drain_s=settings.server.drain_s)
    _LOG.info("gateway_drained", is_clean=is_clean, seconds=round(time.monotonic() - started, 3))


class _Journal:
    """PostgreSQL as a gateway knows it: tried again and again until it is reached, and kept from then on.

    Nothing is brought there before the routes of the handlers are known: they would never get it.
    """

    def __init__(self, settings: Settings, prepared: asyncio.Event) -> None:
        self._settings = settings
        self._prepared = prepared
        self._store: EventStore | None = None
        self.database: Database | None = None
        self.reached = asyncio.Event()

    def there(self) -> Database:
        """Return the connections. Raises JournalUnavailable where there are none yet."""
        if self.database is None:
            raise JournalUnavailable("PostgreSQL has not been reached yet")
        return self.database

    async def append(self, batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        """See `boathook.journal.events.EventStore.append`."""
        if self._store is None:
            raise JournalUnavailable("PostgreSQL has not been reached yet")
        self.there().require_safety()
        return await self._store.append(batch, within_s=within_s)

    async def announce(self) -> None:
        """Tell workers and senders that something is due."""
        await announce_due(self.there())

    async def keep(self, batch: Sequence[rejections.NewRejection]) -> None:
        """Store rejections."""
        await rejections.insert(self.there(), batch)

    async def find(self, event_ids: Sequence[UUID]) -> list[replies.Answered]:
        """Return what handlers have answered to these events."""
        return await replies.find(self.there(), event_ids)

    async def read_secrets(self) -> tuple[source_secrets.SourceSecret, ...]:
        """Read the secrets that operators have added to sources."""
        return await source_secrets.list_all(self.there(), within_s=self._settings.database.statement_timeout_s)

    async def read_router(self) -> Router:
        """Read the routes and compile them, in no more time than an event may wait for that."""
        return await read_router(self.there(), within_s=self._settings.spool.after_s)

    async def keep_reaching(self) -> None:
        """Connect once the ground is prepared, trying until that works."""
        await self._prepared.wait()
        is_told = False
        while not self.reached.is_set():
            try:
                await self._reach()
            except JournalError as error:
                if not is_told:
                    _LOG.warning("journal_unavailable", error=str(error), note="trying again until it is back")
                    is_told = True
                await asyncio.sleep(_RETRY_S)
            except Exception as error:  # noqa: BLE001 - whatever it is, what waits in the spool has to get there
                _LOG.error("journal_not_reached", exc_info=error)
                await asyncio.sleep(_RETRY_S)

    async def _reach(self) -> None:
        settings = self._settings
        database = await Database.open(
            settings.database_url(),
            purpose="gateway",
            # One besides the lanes for each of: the spool, rejections, announcements, probes, replies, secrets.
            size=settings.database.intake_connections + 6,
            connect_timeout_s=settings.database.connect_timeout_s,
            statement_timeout_s=settings.database.statement_timeout_s,
            is_reset=False,
            allow_unsafe=settings.database.allow_unsafe,
        )
        try:
            await check_safety(database, allow_unsafe=settings.database.allow_unsafe)
            if missing := await pending(database):
                raise JournalUnavailable(f"the schema lacks {', '.join(missing)}")
        except BaseException:
            await database.close()
            raise
        self.database = database
        self._store = EventStore(
            database, dedup_days=settings.retention.dedup_days, dedup_days_of=dedup_days_of(settings)
        )
        self.reached.set()

    async def close(self) -> None:
        """Give the connections back."""
        if self.database is not None:
            await self.database.close()


class _Desk:
    """What takes events in: it opens once PostgreSQL is there, or once it is known that the spool must do for now."""

    def __init__(
        self,
        settings: Settings,
        gates: Mapping[str, Gate],
        added: AddedSecrets,
        house: House,
        history: History,
        console: Console | None,
        prepared: asyncio.Event,
    ) -> None:
        self._settings = settings
        self._journal = _Journal(settings, prepared)
        self._chores: list[asyncio.Task[None]] = []
        spool, database, retention, limits = settings.spool, settings.database, settings.retention, settings.limits
        arrivals = Arrivals(Router((), UNROUTED), self._journal.read_router)
        self._intake = Intake(
            self._journal,
            announce=self._journal.announce,
            route=arrivals.route_again,
            spool=Spool.at(settings.server.data_dir / "spool", _bounds(spool)) if spool.enabled else None,
            within_s=spool.after_s,
            lanes=database.intake_connections,
            batch=database.intake_batch,
            queue=database.intake_queue,
        )
        self._quarantine = Quarantine(self._journal.keep, per_second=retention.rejections_rate)
        self._rotation = Rotation(settings, gates.values(), added, self._journal.read_secrets)
        self._waiting_room = None
        if any(gate.inline for gate in gates.values()):
            self._waiting_room = WaitingRoom(self._journal.find, places=limits.max_waiting)
        self._fetcher = Fetcher(settings.outbound.allow)
        tracer = tracing.current()
        app = IngestApp(
            gates,
            self._intake if tracer is None else TracedIntake(self._intake),
            arrivals,
            quarantine=self._quarantine,
            others=Probes(
                history,
                is_draining=lambda: house.is_draining,
                database=lambda: self._journal.database,
                intake=self._intake,
                gates=gates.values(),
                arrivals=arrivals,
                fallback=_answer_503 if console is None else console,
                connections=house.connections,
                console_problem=lambda: None if console is None else console.problem,
            ),
            client_rate=Rate(limits.client_rate, limits.client_burst) if limits.client_rate > 0 else None,
            trusted_proxies=settings.server.trusted_proxies,
            errands=Errands(self._fetcher.fetch, CapturedSecrets(settings.server.data_dir)),
            waiting_room=self._waiting_room,
        )
        house.app = app if tracer is None else TracedApp(app, tracer)

    async def __aenter__(self) -> Self:
        reaching = asyncio.create_task(self._journal.keep_reaching(), name="journal:reach")
        self._chores.append(reaching)
        await asyncio.wait([reaching], timeout=self._settings.spool.after_s)
        if self._journal.reached.is_set():
            # Before the first request: what the disk tells of secrets may be older than a removal.
            await self._rotation.make_sure()
        await self._intake.start(is_away=not self._journal.reached.is_set())
        self._quarantine.start()
        self._chores.append(asyncio.create_task(self._sample()))
        self._chores.append(asyncio.create_task(self._mind_gaps()))
        self._chores.append(asyncio.create_task(self._rotation.run(), name="secrets:follow"))
        self._chores.append(asyncio.create_task(self._hear_rotations()))
        if self._waiting_room is not None:
            self._chores.append(asyncio.create_task(self._hear_replies(self._waiting_room)))
            self._chores.append(asyncio.create_task(self._waiting_room.run()))
        return self

    @property
    def has_reached(self) -> bool:
        """Whether PostgreSQL has been reached."""
        return self._journal.reached.is_set()

    def hurry(self, within_s: float) -> None:
        """Keep no sender waiting for a handler longer than *within_s*."""
        if self._waiting_room is not None:
            self._waiting_room.close(within_s)

    async def _hear_rotations(self) -> None:
        await self._journal.reached.wait()
        await self._journal.there().listen(source_secrets.CHANNEL, self._rotation.hear)
        self._rotation.hear("")

    async def _hear_replies(self, room: WaitingRoom) -> None:
        await self._journal.reached.wait()
        await self._journal.there().listen(replies.CHANNEL, room.hear)

    async def _mind_gaps(self) -> None:
        await self._journal.reached.wait()
        self._journal.there().pulse.on_gap(self._intake.forget)

    async def _sample(self) -> None:
        while True:
            emit.gauge("boathook_intake_queue", self._intake.waiting)
            await asyncio.sleep(_SAMPLE_S)

    async def __aexit__(self, *_: object) -> None:
        for chore in self._chores:
            chore.cancel()
        self._fetcher.close()
        await self._intake.drain()
        await self._quarantine.drain()
        await self._journal.close()


def _bounds(settings: SpoolSettings) -> Bounds:
    return Bounds(
        max_bytes=settings.max_bytes,
        segment_bytes=settings.segment_bytes,
        max_disk_used=settings.max_disk_used,
        keep_s=settings.keep_h * 3600,
    )


async def _answer_503(_scope: dict[str, Any], _receive: Receive, send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"5")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"ok":false,"error":"not available, try again later"}'})
