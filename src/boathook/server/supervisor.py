"""The supervisor: prepares the database, starts children, restarts dead ones, kills blocked ones and stops them all."""

import asyncio
import contextlib
import errno
import fcntl
import functools
import getpass
import math
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Final

from boathook.config import Settings
from boathook.config.data_dir import open_lock, prepare_data_dir
from boathook.db.database import Database, check_safety
from boathook.db.embedded import EmbeddedServer, start_embedded
from boathook.db.live_settings import LiveSettings
from boathook.db.migrations import migrate
from boathook.db.route_registry import register
from boathook.domain.errors import BoathookError, ConfigError, DatabaseError, DatabaseUnavailable, DatabaseUrlRejected
from boathook.handlers.hooks import Hooks
from boathook.http.backlog import BACKLOG, refuse_new_handshakes
from boathook.ingest.stored_sources_file import read_stored_sources
from boathook.observability import log
from boathook.observability.live_metrics import SnapshotFile
from boathook.server.child_process import ChildProcess, ServiceNotifier
from boathook.server.fork_server import ForkServer
from boathook.server.loading import check_mounts, load_hooks, migrations_of, with_apps
from boathook.server.sampler import Sampler
from boathook.service.database import check_connections, with_url
from boathook.service.gateway_address import published_address, socket_url
from boathook.service.operating.doctor import setup as settings_checks
from boathook.service.operating.doctor.handlers import CheckStatus, examine_loaded
from boathook.service.operating.doctor.handlers import examine as examine_handlers
from boathook.spool import inspection

_LOG = log.get_logger("server")
_CHECK_S: Final = 0.1
_GRACE_S: Final = 15.0
_START_S: Final = 600.0
"""How long a starting process may be silent: importing the user's code blocks its event loop."""
_FORK_SERVER_S: Final = 10.0
"""A fork server that was started again must run for so long; otherwise it would end each time."""
BIND_S: Final = 3.0
_KILL_AFTER_S: Final = 3.0
_RETRY_S: Final = 1.0

Prepare = Callable[[], Awaitable[None]]


def supervise(settings: Settings) -> int:
    """Run boathook; see `boathook.server.serve`."""
    fork_server = ForkServer.start(
        settings.server.roles, preloaded(settings)
    )  # before any thread exists, such as the logger's
    log.configure(settings.log.level, settings.log.format, process="supervisor")
    try:
        return asyncio.run(_serve(settings, fork_server))
    finally:
        fork_server.close()
        log.flush()


async def _serve(settings: Settings, fork_server: ForkServer) -> int:
    fork_server.attach()
    stop = StopSignal()
    stop.listen()
    settings, apps = with_apps(settings)
    hooks = load_hooks(settings)
    check_settings(settings, hooks)
    bound = bind(settings) if "gateway" in settings.server.roles else None
    try:
        async with contextlib.AsyncExitStack() as stack:
            prefix = stack.enter_context(instance_prefix(settings.server.data_dir))
            warn_of_undrained_spool(settings)
            ready, embedded = await stack.enter_async_context(open_postgresql(settings))
            prepare = functools.partial(prepare_database, ready, hooks, migrations_of(apps))
            is_prepared = await try_prepare(prepare, can_wait=bound is not None and settings.accepts_without_database)
            if bound is not None:
                _listen(bound, settings)
                stack.enter_context(published_address(settings.server.data_dir, prefix, *bound.getsockname()[:2]))
            supervisor = Supervisor(ready, fork_server, bound, prefix, embedded, _handlers_by_source(settings, hooks))
            return await supervisor.run(stop, None if is_prepared else prepare)
    finally:
        if bound is not None:
            bound.close()


class StopSignal:
    """Set by signals: the first stops gracefully, a second SIGINT immediately."""

    def __init__(self) -> None:
        self.graceful = asyncio.Event()
        self.immediate = asyncio.Event()

    def listen(self) -> None:
        """Set the events on signals from now on."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if self.graceful.is_set() and number == signal.SIGINT:
            self.immediate.set()
        self.graceful.set()


def check_settings(settings: Settings, hooks: Hooks) -> None:
    """Check all that can be checked without PostgreSQL, and warn of what is valid but not meant. Raises ConfigError."""
    settings_checks.check_settings(settings)
    check_handlers(settings, hooks)
    check_mounts({owner: hook.manifest.mounts for owner, hook in hooks.owners.items()}, settings)
    for finding in (*settings_checks.examine_settings(settings), *examine_loaded(settings, hooks.owners)):
        if finding.verdict is CheckStatus.FAIL:
            raise ConfigError(finding.found)
        _LOG.warning("settings_doubtful", note=finding.found, fix=finding.fix)


def _with_saved_sources(settings: Settings) -> Settings:
    """Return the settings with the stored sources that a gateway of this host saved last."""
    live = LiveSettings(settings)
    live.set_rows(read_stored_sources(settings.server.data_dir) or ())
    return live.current


def check_handlers(settings: Settings, hooks: Hooks) -> None:
    """Warn of handlers for unknown sources, and reject handlers of types that a sender never sends."""
    routes = list(
        chain.from_iterable(
            hooks.routes(timeout_s=settings.worker.timeout_s, retries=settings.retry_defaults()).values()
        )
    )
    for finding in examine_handlers(settings, routes):
        if finding.verdict is CheckStatus.FAIL:
            raise ConfigError(f"{finding.found}; {finding.fix}")
    # A stored source may be changed at any time, so that it must not prevent a start.
    for finding in examine_handlers(_with_saved_sources(settings), routes):
        _LOG.warning("handler_without_events", note=finding.found, fix=finding.fix)


def _handlers_by_source(settings: Settings, hooks: Hooks) -> dict[str, list[str]]:
    """Return the names of the handlers that get events of each source."""
    lines = [(handler.name, line) for handler in hooks.handlers.values() for line in handler.lines]
    return {
        source: sorted({name for name, line in lines if line.application is None and line.source in {None, source}})
        for source in settings.sources
    }


def bind(settings: Settings) -> socket.socket:
    """Bind the gateway's address, retrying for three seconds while an earlier process closes it."""
    host, port = settings.server.host, settings.server.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError as error:
        raise ConfigError(f"server.bind: {host!r} is not an address of this machine: {error.strerror}") from None
    deadline = time.monotonic() + BIND_S
    while True:
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind(address)
        except OSError as error:
            bound.close()
            if error.errno != errno.EADDRINUSE or time.monotonic() > deadline:
                raise _cannot_listen(settings, error) from None
            time.sleep(0.1)
        else:
            return bound


def _listen(bound: socket.socket, settings: Settings) -> None:
    try:
        bound.listen(BACKLOG)
    except OSError as error:
        raise _cannot_listen(settings, error) from None


def _cannot_listen(settings: Settings, error: OSError) -> ConfigError:
    prefix = f"server.bind: cannot listen on {settings.server.bind}"
    if error.errno == errno.EADDRINUSE:
        return ConfigError(
            f"{prefix}: another process, perhaps another boathook, listens there."
            " Stop it, or choose another port with --port or server.bind."
        )
    if error.errno == errno.EACCES:
        return ConfigError(f"{prefix}: ports below 1024 need a privilege. Choose a higher port.")
    return ConfigError(f"{prefix}: {error.strerror}. Choose an address of this machine.")


@contextlib.contextmanager
def instance_prefix(data_dir: Path) -> Iterator[str]:
    """Yield a slot prefix that is unique among the instances on one data directory; empty for the first."""
    try:
        prepare_data_dir(data_dir)
        lock, number = _first_free(data_dir)
    except OSError as error:
        raise ConfigError(
            f"server.data_dir: cannot use {data_dir}: {error.strerror}; name a folder that"
            f" {getpass.getuser()} may write to"
        ) from None
    with lock:
        yield "" if number == 1 else f"{number}-"


def _first_free(data_dir: Path) -> tuple[IO[str], int]:
    number = 1
    while True:
        lock = open_lock(data_dir / f"serve-{number}.lock")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.close()
            number += 1
        else:
            return lock, number


def warn_of_undrained_spool(settings: Settings) -> None:
    """Log an error if spooled events wait and no process of this instance drains them."""
    if settings.has_spool and "gateway" in settings.server.roles:
        return
    root = settings.server.data_dir / "spool"
    try:
        waiting = [
            segment
            for folder in inspection.list_folders(root)
            for segment in folder.segments
            if segment.state is inspection.SegmentState.WAITING
        ]
    except OSError as error:
        _LOG.error("spool_unreadable", folder=str(root), error=error.strerror)
        return
    if waiting:
        _LOG.error("spool_left", folder=str(root), segments=len(waiting), note="run boathook spool drain")


@contextlib.asynccontextmanager
async def open_postgresql(settings: Settings) -> AsyncIterator[tuple[Settings, EmbeddedServer | None]]:
    """Yield the settings with the database URL filled in, and the embedded server if one is used."""
    url = settings.database_url()
    embedded = None
    if not url:
        embedded = await start_embedded(
            settings.server.data_dir, progress=lambda text: _LOG.info("postgresql", note=text)
        )
        url = embedded.url
    try:
        yield with_url(settings, url), embedded
    finally:
        if embedded is not None:
            await embedded.stop()


async def prepare_database(settings: Settings, hooks: Hooks, migrations: Sequence[tuple[str, Path]]) -> None:
    """Check the server, bring the schemas up to date, and register the handlers' routes."""
    url = settings.database_url()
    if (note := await check_connections(settings)) is not None:
        _LOG.warning("few_connections", note=note)
    database = await Database.open(
        url, purpose="supervisor", size=2, connect_timeout_s=settings.database.connect_timeout_s
    )
    try:
        for note in await check_safety(database, allow_unsafe=settings.database.allow_unsafe):
            _LOG.warning("unsafe_database", note=note)
        applied = await migrate(url, migrations)
        if applied:
            _LOG.info("schema_migrated", revisions=applied)
        live = LiveSettings(settings)
        await live.refresh(database)
        routes_by_owner = hooks.routes(timeout_s=settings.worker.timeout_s, retries=live.current.retry_defaults())
        for owner, routes in routes_by_owner.items():
            await register(database, owner, routes)
    finally:
        await database.close()


async def try_prepare(prepare: Prepare, *, can_wait: bool) -> bool:
    """Prepare the database; return False if PostgreSQL is unavailable and gateways can start without it."""
    try:
        await prepare()
    except DatabaseUnavailable as error:
        if not can_wait or isinstance(error, DatabaseUrlRejected):
            raise
        _LOG.warning(
            "database_unavailable", error=str(error), note="only gateways start, and write events to the spool"
        )
        return False
    return True


class Supervisor:
    """Keeps one process running in each slot."""

    def __init__(
        self,
        settings: Settings,
        fork_server: ForkServer,
        bound: socket.socket | None,
        prefix: str,
        embedded: EmbeddedServer | None,
        handlers: Mapping[str, list[str]],
    ) -> None:
        self._settings = settings
        self._handlers = handlers
        """The names of the handlers by source."""
        self._fork_server = fork_server
        self._fork_server_started_at = -math.inf
        self._bound = bound
        self._embedded = embedded
        self._children = [ChildProcess(role, prefix + slot) for role, slot in _slots(settings)]
        self._deferred: list[ChildProcess] = []
        self._service = ServiceNotifier()
        self._has_failed = False
        self._is_prepared = False
        slot = f"{prefix}supervisor-0"
        self._metrics = SnapshotFile(settings.server.data_dir, slot)
        self._sampler = Sampler(settings, slot)
        # A loop that was blocked for this long has lost all its leases, so killing the process loses nothing.
        self._stuck_timeout_s = settings.worker.lease_s + max(settings.worker.lease_s, _GRACE_S)

    async def run(self, stop: StopSignal, prepare: Prepare | None = None) -> int:
        """Start all children, monitor them until a stop is requested, and stop them.

        Args:
            stop: set by the signals that request a stop.
            prepare: must succeed before any child but gateways may start; retried until PostgreSQL is available. None
                if it has succeeded already.
        """
        self._metrics.restore()
        tasks = [asyncio.create_task(self._metrics.run()), asyncio.create_task(self._watch_embedded())]
        self._is_prepared = prepare is None
        self._sampler.start()
        try:
            if prepare is not None:
                tasks.append(asyncio.create_task(self._start_deferred(prepare, stop)))
                self._children, self._deferred = _gateways_first(self._children)
            for child in self._children:
                await self._start(child)
            log_serving(self._settings, self._bound, self._children, self._handlers)
            await self._watch(stop)
            return max(await self._stop(stop), int(self._has_failed))
        finally:
            for child in self._children:
                child.send(signal.SIGKILL)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await self._sampler.stop()

    async def _start(self, child: ChildProcess) -> None:
        await child.start(self._fork_server, self._settings, self._bound, is_prepared=self._is_prepared)

    async def _start_deferred(self, prepare: Prepare, stop: StopSignal) -> None:
        """Start the children that need PostgreSQL once it is available; stop everything if it cannot be used."""
        while not self._is_prepared:
            await asyncio.sleep(_RETRY_S)
            try:
                await prepare()
                self._is_prepared = True
            except DatabaseUnavailable as error:
                _LOG.debug("database_still_unavailable", error=str(error))
            except BoathookError as error:
                _LOG.error("cannot_serve", error=str(error))
                self._has_failed = True
                stop.graceful.set()
                return
        for child in self._children:
            child.notify_prepared()
        if stop.graceful.is_set():
            return
        for child in self._deferred:
            await self._start(child)
            self._children.append(child)
            if stop.graceful.is_set():
                child.send(signal.SIGTERM)  # `_stop` did not know it yet
                return
        _LOG.info("database_connected", children=", ".join(child.slot for child in self._deferred))

    async def _watch(self, stop: StopSignal) -> None:
        checked_at = time.monotonic()
        while not stop.graceful.is_set():
            now = time.monotonic()
            if self._fork_server.has_ended and not self._restart_fork_server(now):
                self._has_failed = True
                return
            if now - checked_at > 1:
                # This process was suspended or delayed, so late heartbeats are not the children's fault.
                for child in self._children:
                    child.beat_at = now
            checked_at = now
            for child in self._children:
                await self._check_child(child, now)
            self._service.beat(is_ready=all(child.is_ready for child in self._children))
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(stop.graceful.wait(), _CHECK_S)

    def _restart_fork_server(self, now: float) -> bool:
        """Start another fork server; return False if the last one has ended at once."""
        is_last = now - self._fork_server_started_at < _FORK_SERVER_S
        note = "stopping, as the one before ended too" if is_last else "the processes go on; starting another"
        _LOG.error("fork_server_ended", note=note)
        if is_last:
            return False
        try:
            self._fork_server.restart(self._settings.server.roles, preloaded(self._settings))
        except OSError as error:
            _LOG.error("fork_server_not_started", error=str(error))
            return False
        self._fork_server_started_at = now
        return True

    async def _check_child(self, child: ChildProcess, now: float) -> None:
        if child.process is None:
            if now >= child.restart_at:
                await self._start(child)
            return
        child.read_heartbeats(now)
        timeout_s = self._stuck_timeout_s if child.is_ready else _START_S
        if child.has_ended():
            child.record_exit(now)
        elif child.silent_s(now) > timeout_s:
            _LOG.error("child_stuck", child=child.slot, pid=child.pid, silent_s=round(now - child.beat_at, 1))
            child.send(signal.SIGKILL)

    async def _watch_embedded(self) -> None:
        while self._embedded is not None:
            await asyncio.sleep(1)
            if self._embedded.pid() is None:
                _LOG.error("postgresql_died", note="starting it again")
                try:
                    await self._embedded.ensure_running()
                except DatabaseError as error:
                    _LOG.error("postgresql_does_not_start", error=str(error))

    async def _stop(self, stop: StopSignal) -> int:
        server = self._settings.server
        self._service.stop()
        _LOG.info("stopping", drain_s=server.drain_s)
        if self._bound is not None:
            refuse_new_handshakes(self._bound)
        for child in self._children:
            if child.has_ended():
                child.record_exit(time.monotonic())  # it had exited for another reason before
            child.send(signal.SIGTERM)
        deadline = time.monotonic() + server.drain_s + server.linger_s + _KILL_AFTER_S
        remaining = await self._until_ended(deadline, stop.immediate)
        for child in remaining:
            _LOG.error("child_killed", child=child.slot, pid=child.pid, note="it did not stop in time")
            child.send(signal.SIGKILL)
        await self._until_ended(time.monotonic() + _KILL_AFTER_S, asyncio.Event())
        is_clean = not remaining and all(child.has_stopped_cleanly() for child in self._children)
        _LOG.info("stopped", is_clean=is_clean)
        return 0 if is_clean else 1

    async def _until_ended(self, deadline: float, immediate: asyncio.Event) -> list[ChildProcess]:
        while True:
            running = [child for child in self._children if child.process is not None and not child.has_ended()]
            if not running or time.monotonic() > deadline or immediate.is_set():
                return running
            self._service.beat(is_ready=False)
            for child in running:
                child.read_heartbeats(time.monotonic())
            await asyncio.sleep(0.02)


def _gateways_first(children: Sequence[ChildProcess]) -> tuple[list[ChildProcess], list[ChildProcess]]:
    gateways = [child for child in children if child.role == "gateway"]
    return gateways, [child for child in children if child.role != "gateway"]


def preloaded(settings: Settings) -> list[str]:
    """Return the modules of packages in use that children of this host's roles need."""
    roles = settings.server.roles
    return [module for package in settings.packages for role in roles for module in package.preload.get(role, ())]


def _slots(settings: Settings) -> list[tuple[str, str]]:
    server = settings.server
    slots = []
    if "gateway" in server.roles:
        slots += [("gateway", f"gateway-{n}") for n in range(server.gateways)]
    if "worker" in server.roles and (server.app or settings.apps.load or settings.has_package_apps):
        slots += [("worker", f"worker-{n}") for n in range(server.workers)] + [("suspects", "suspects-0")]
    if "worker" in server.roles:
        slots += [("sender", f"sender-{n}") for n in range(server.senders)]
    if "keeper" in server.roles:
        slots.append(("keeper", "keeper-0"))
    return slots


def log_serving(
    settings: Settings, bound: socket.socket | None, children: Sequence[ChildProcess], handlers: Mapping[str, list[str]]
) -> None:
    """Log what runs, at which URLs senders reach it, and which handlers get the events of each source."""
    fields: dict[str, object] = {"children": ", ".join(child.slot for child in children)}
    if bound is not None:
        base = settings.server.public_url or socket_url(*bound.getsockname()[:2])
        fields["url"] = base
        for name, source in settings.sources.items():
            paths = " ".join(base + path for path in (f"/in/{name}", *source.paths))
            names = " ".join(handlers.get(name, []))
            _LOG.info("source", name=name, provider=source.provider, urls=paths, handlers=names)
    _LOG.info("serving", **fields)
