"""A gateway process: the intake, its connections to the journal, and the listener in front of them."""

import asyncio
import contextlib
import functools
import gc
import socket
import time
from collections.abc import Mapping
from typing import Any, Final

from boathook.config import Settings
from boathook.domain.errors import JournalUnavailable
from boathook.domain.filters import Router
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
from boathook.journal import rejections, replies
from boathook.journal.database import Database
from boathook.journal.events import EventStore
from boathook.journal.moves import announce_due
from boathook.journal.registry import read_routes
from boathook.outbound.fetch import Fetcher
from boathook.server.console import Console
from boathook.server.order import Life
from boathook.telemetry import emit
from boathook.telemetry.exporters import History
from boathook.telemetry.log import get_logger

_RETRY_S: Final = 0.5
_SAMPLE_S: Final = 1.0
_WAITED_FOR: Final = 0.8
"""Share of the time for stopping that senders may go on waiting for a handler."""
_LOG = get_logger("server")


async def run_gateway(life: Life) -> None:
    """Serve the supervisor's socket until told to stop, then drain."""
    settings = life.settings
    gates = compile_gates(settings)
    limits, server = settings.limits, settings.server
    history = History(server.data_dir, life.order.slot)
    connections = Connections(limits.max_connections, limits.max_connections_per_client)
    console = Console(settings, history) if "console" in server.roles else None
    house = House(_answer_503, limits, connections, server.trusted_proxies, _sockets(gates, console))
    waiting = Probes(history, is_draining=lambda: house.is_draining, fallback=_answer_503)
    house.app = waiting
    listener = Listener(house)
    await listener.start(socket.socket(fileno=life.order.socket))
    life.ready()
    learning = asyncio.create_task(_learn_metrics(settings)) if console is None else None
    if console is not None:
        console.open()
    sampling = asyncio.create_task(history.keep_sampling())
    try:
        desk = await _open_desk(settings, gates, house, history, console, life.stop)
        if desk is not None:
            _calm_collector()
            async with desk:
                await life.stop.wait()
                desk.hurry(settings.server.drain_s * _WAITED_FOR)
                await _drain(listener, settings)
        else:
            await _drain(listener, settings)
    finally:
        sampling.cancel()
        if learning is not None:
            learning.cancel()
        if console is not None:
            await console.close()


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


def _calm_collector() -> None:
    """Leave what start-up made out of every garbage collection: walking through it shows in the slowest answers."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 20, 50)


async def _drain(listener: Listener, settings: Settings) -> None:
    started = time.monotonic()
    is_clean = await listener.drain(linger_s=settings.server.linger_s, drain_s=settings.server.drain_s)
    _LOG.info("gateway_drained", is_clean=is_clean, seconds=round(time.monotonic() - started, 3))


class _Desk:
    """What takes events in, once PostgreSQL is there."""

    def __init__(
        self,
        database: Database,
        intake: Intake,
        quarantine: Quarantine,
        waiting_room: WaitingRoom | None,
        fetcher: Fetcher,
    ) -> None:
        self._database = database
        self._fetcher = fetcher
        self._intake = intake
        self._quarantine = quarantine
        self._waiting_room = waiting_room
        self._chores: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        self._intake.start()
        self._quarantine.start()
        self._chores.append(asyncio.create_task(self._sample()))
        if self._waiting_room is not None:
            await self._database.listen(replies.CHANNEL, self._waiting_room.hear)
            self._chores.append(asyncio.create_task(self._waiting_room.run()))

    def hurry(self, within_s: float) -> None:
        """Keep no sender waiting for a handler longer than *within_s*."""
        if self._waiting_room is not None:
            self._waiting_room.close(within_s)

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
        await self._database.close()


async def _open_desk(
    settings: Settings,
    gates: dict[str, Gate],
    house: House,
    history: History,
    console: Console | None,
    stop: asyncio.Event,
) -> _Desk | None:
    """Reach PostgreSQL, trying until told to stop, and let the house take events in."""
    opened = await _reach(settings, stop)
    if opened is None:
        return None
    database, router = opened
    arrivals = Arrivals(router, functools.partial(_read_router, database))
    store = EventStore(database, dedup_days=settings.retention.dedup_days, dedup_days_of=dedup_days_of(settings))
    intake = Intake(
        store,
        announce=functools.partial(announce_due, database),
        lanes=settings.database.intake_connections,
        batch=settings.database.intake_batch,
        queue=settings.database.intake_queue,
    )
    quarantine = Quarantine(
        functools.partial(rejections.insert, database), per_second=settings.retention.rejections_rate
    )
    limits = settings.limits
    waiting_room = None
    if any(gate.inline for gate in gates.values()):
        waiting_room = WaitingRoom(functools.partial(replies.find, database), places=limits.max_waiting)
    probes = Probes(
        history,
        is_draining=lambda: house.is_draining,
        database=database,
        gates=gates.values(),
        arrivals=arrivals,
        fallback=console,
    )
    fetcher = Fetcher(settings.outbound.allow)
    house.app = IngestApp(
        gates,
        intake,
        arrivals,
        quarantine=quarantine,
        others=probes,
        client_rate=Rate(limits.client_rate, limits.client_burst) if limits.client_rate > 0 else None,
        trusted_proxies=settings.server.trusted_proxies,
        errands=Errands(fetcher.fetch, CapturedSecrets(settings.server.data_dir)),
        waiting_room=waiting_room,
    )
    return _Desk(database, intake, quarantine, waiting_room, fetcher)


async def _reach(settings: Settings, stop: asyncio.Event) -> tuple[Database, Router] | None:
    is_told = False
    while not stop.is_set():
        try:
            database = await Database.open(
                settings.database_url(),
                purpose="gateway",
                # One besides the lanes for each of: rejections, announcements, probes, replies.
                size=settings.database.intake_connections + 4,
                connect_timeout_s=settings.database.connect_timeout_s,
                statement_timeout_s=settings.database.statement_timeout_s,
                is_reset=False,
            )
            return database, await _read_router(database)
        except JournalUnavailable as error:
            if not is_told:
                _LOG.warning("journal_unavailable", error=str(error), note="answering 503 until it is back")
                is_told = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), _RETRY_S)
    return None


async def _read_router(database: Database) -> Router:
    found = await read_routes(database)
    return Router(found.routes, found.version)


async def _answer_503(_scope: dict[str, Any], _receive: Receive, send: Send) -> None:
    headers = [(b"content-type", b"application/json"), (b"retry-after", b"5")]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": b'{"ok":false,"error":"not available, try again later"}'})
