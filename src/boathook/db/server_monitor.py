"""Monitors a PostgreSQL server with a dedicated connection, which also receives notifications.

A stopped server refuses connections. A server that hangs, or is behind a broken network, does not respond, and callers
would wait for the whole statement timeout. A dedicated connection next to each pool therefore sends a heartbeat query
every second, which also reads whether commits are durable. If it gets no response and a new connection fails too, the
server counts as unavailable: every connection of the pool is closed, so that all waiting callers get an error. New
callers get an error without waiting, until the server responds again.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from typing import Any, Final

import asyncpg
import msgspec

from boathook.db.connection import CONNECTION_ERRORS, DRIVER_ERRORS, Connection, first_line, terminate, time_limit
from boathook.db.statements import load
from boathook.domain.errors import DatabaseUnavailable
from boathook.observability import meters
from boathook.observability.log import get_logger

SQL: Final = load(__file__)
HEARTBEAT_INTERVAL_S: Final = 1.0
"""Interval between heartbeats."""
MIN_TIMEOUT_S: Final = 1.5
"""Minimum timeout in seconds of a heartbeat, and of a new connection; longer if the network is known to be slow."""
_RETRY_INTERVAL_S: Final = 0.25
_TIMEOUT_FACTOR: Final = 4
"""Timeout of a response as a multiple of the usual duration."""
_EWMA_WEIGHT: Final = 0.2

_NO_ANSWER: Final = "PostgreSQL does not answer"
OpenConnection = Callable[[], Awaitable[asyncpg.Connection]]
"""Opens a connection."""
NotificationCallback = Callable[[str], None]

MIN_SERVER_VERSION: Final = 140000
MAX_STALLED: Final = 32
"""Commits waiting for a synchronous standby at which no more are started: each occupies a server connection."""
MAX_COMMIT_S: Final = 3.0
"""How long a statement that commits may take while commits wait for a synchronous standby."""

_REMEDIES: Final = {
    "fsync": "Set fsync = on in postgresql.conf and restart it.",
    "full_page_writes": "Set full_page_writes = on in postgresql.conf and reload it.",
    "synchronous_commit": "Set synchronous_commit = on in postgresql.conf, for the role and for the database.",
}
_WEAK: Final = {
    "off": "so a crash can lose what handlers commit in sessions of their own",
    "local": "so what handlers commit in sessions of their own does not wait for the synchronous standby",
    "remote_write": "so what handlers commit in sessions of their own may not be on the synchronous standby's disk",
}


class Safety(msgspec.Struct, frozen=True):
    """The safety problems of a server, as sentences with their fixes."""

    lossy: tuple[str, ...] = ()
    """Settings that lose commits in a crash, whatever a session requests."""
    weak: tuple[str, ...] = ()
    """Defaults of sessions that request nothing, such as handlers' own. boathook's sessions request durable commits."""
    stalled: int = 0
    """Commits of this role that have waited for a synchronous standby for more than three seconds."""
    read_only: str | None = None
    """Why sessions that request nothing cannot write; None if they can."""

    @property
    def kind(self) -> tuple[object, ...]:
        """The part that is compared; the number of waiting commits changes all the time."""
        return self.lossy, self.weak, bool(self.stalled), self.read_only

    @property
    def is_doubtful(self) -> bool:
        """Whether commits may be lost, so that an operator should check the server."""
        return bool(self.lossy or self.weak or self.stalled)

    def reasons(self, *, allow_lossy: bool = False) -> list[str]:
        """Return why commits on the server are not safe, or impossible."""
        return [
            *([self.read_only] if self.read_only else ()),
            *(() if allow_lossy else self.lossy),
            *([describe_stall(self.stalled)] if self.stalled else ()),
        ]


def assess_safety(row: asyncpg.Record | Mapping[str, Any]) -> Safety:
    """Evaluate a row of `read_safety`."""
    lossy = tuple(
        f"{name} is off on this server, so it can lose events after boathook has answered 2xx. {_REMEDIES[name]}"
        for name in ("fsync", "full_page_writes")
        if row[name] == "off"
    )
    weak = _weak(row["synchronous_commit"], row["synchronous_standby_names"])
    return Safety(lossy, weak, row["stalled"], _read_only(row))


def _read_only(row: asyncpg.Record | Mapping[str, Any]) -> str | None:
    if row["is_standby"]:
        return "the database is read-only: database.url leads to a standby. Use the primary's address."
    if not row["is_read_only"]:
        return None
    return (
        "the database is read-only: default_transaction_read_only is on for the role, the database or the server."
        f' Turn it off, such as with: alter role "{row["role"]}" set default_transaction_read_only = off'
    )


def _weak(level: str, standbys: str) -> tuple[str, ...]:
    if level != "off" and not (level in _WEAK and standbys):
        return ()
    return (f"synchronous_commit is {level} on this server, {_WEAK[level]}. {_REMEDIES['synchronous_commit']}",)


def describe_stall(commits: int) -> str:
    """Return a sentence about commits that wait for a standby."""
    return (
        f"{commits} commits have waited for a synchronous standby for more than 3 s. Start the standby, or take it out"
        " of synchronous_standby_names."
    )


def heartbeat_name(purpose: str) -> str:
    """Return the application name of the dedicated connection of a pool with a purpose."""
    return f"boathook:{purpose}:monitor"


class ServerMonitor:
    """Monitors one server for the pools that share the monitor.

    Args:
        dial: opens the dedicated connection.
        purpose: purpose of the pools, for the log.
        max_connect_s: timeout of connecting while the server is unavailable.
        min_timeout_s: minimum timeout of a heartbeat, and of a new connection; `MIN_TIMEOUT_S` if None.
    """

    def __init__(
        self, dial: OpenConnection, *, purpose: str, max_connect_s: float, min_timeout_s: float | None = None
    ) -> None:
        self._answers = asyncio.Event()
        self._answers.set()
        self._dial = dial
        self._max_connect_s = max_connect_s
        self._min_timeout_s = MIN_TIMEOUT_S if min_timeout_s is None else min_timeout_s
        self._cuts: dict[Callable[[], None], None] = {}
        """In insertion order, so that simulations are reproducible."""
        self._dialling: dict[asyncio.Timeout, None] = {}
        self._committing: dict[Connection, float] = {}
        """Connections of `committing`, with the time (monotonic) from which they are used."""
        self._reconnect_callbacks: list[Callable[[], None]] = []
        self._channels: dict[str, list[NotificationCallback]] = {}
        self._listening_callbacks: dict[str, list[Callable[[], None]]] = {}
        self._wake = asyncio.Event()
        self._answer_s = 0.0
        self._dial_s = 0.0
        self._away_since = 0.0
        self.safety = Safety()
        """Whether commits are durable, as of the last heartbeat."""
        self.level = ""
        """The synchronous_commit level for new sessions; empty while it is unknown."""
        self._task: asyncio.Task[None] | None = None
        self._log = get_logger("db").bind(purpose=purpose)

    def start(self) -> None:
        """Start the heartbeat task."""
        self._task = asyncio.create_task(self._run(), name="server-monitor")

    async def stop(self) -> None:
        """Stop the heartbeats and close the connection."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def add_outage_callback(self, cut_all: Callable[[], None]) -> None:
        """Call *cut_all* when the server becomes unavailable."""
        self._cuts[cut_all] = None

    def remove_outage_callback(self, cut_all: Callable[[], None]) -> None:
        """Remove a callback of `add_outage_callback`."""
        self._cuts.pop(cut_all, None)

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call *callback* when the dedicated connection ends and when it is reopened, possibly to another server."""
        self._reconnect_callbacks.append(callback)

    def listen(
        self, channel: str, callback: NotificationCallback, on_listening: Callable[[], None] = lambda: None
    ) -> None:
        """Call *callback* with the payload of each notification on *channel*; listening starts soon.

        *on_listening* is called whenever it starts on a new connection: earlier notifications are lost.
        """
        self._channels.setdefault(channel, []).append(callback)
        self._listening_callbacks.setdefault(channel, []).append(on_listening)
        self._wake.set()

    @property
    def is_unavailable(self) -> bool:
        """Whether the last heartbeat failed."""
        return not self._answers.is_set()

    async def wait_until_available(self) -> None:
        """Wait until the server is available."""
        await self._answers.wait()

    @contextlib.asynccontextmanager
    async def dialling(self) -> AsyncIterator[None]:
        """Cancel the block, which opens a connection, when the server becomes unavailable.

        Raises:
            ConnectionError: the server is unavailable.
        """
        if self.is_unavailable:
            raise ConnectionError(_NO_ANSWER)
        block = asyncio.timeout(None)
        self._dialling[block] = None
        try:
            async with block:
                yield
        except TimeoutError:
            if not block.expired():
                raise
            raise ConnectionError(_NO_ANSWER) from None
        finally:
            self._dialling.pop(block, None)

    @contextlib.contextmanager
    def committing(self, connection: Connection) -> Iterator[None]:
        """Close *connection* in the block when it is used for three seconds while commits wait for a standby.

        Its commit goes on waiting on the server.

        Raises:
            DatabaseUnavailable: it was closed: its transaction may be committed later.
        """
        self._committing[connection] = time.monotonic()
        try:
            yield
        except (DatabaseUnavailable, *DRIVER_ERRORS) as error:
            if connection in self._committing:
                raise
            raise DatabaseUnavailable(describe_stall(self.safety.stalled)) from error
        finally:
            self._committing.pop(connection, None)

    def _close_stalled(self) -> None:
        latest = time.monotonic() - MAX_COMMIT_S
        for connection in [candidate for candidate, since in self._committing.items() if since < latest]:
            del self._committing[connection]
            terminate(connection)

    async def _run(self) -> None:
        await self._pause(HEARTBEAT_INTERVAL_S)
        while True:
            try:
                line = await self._connect()
            except (DatabaseUnavailable, *CONNECTION_ERRORS) as error:
                self._mark_unavailable(error)
                await asyncio.sleep(_RETRY_INTERVAL_S)
                continue
            except asyncpg.PostgresError as error:
                # The server responds, but rejects the connection; callers that use the pool get that error themselves.
                self._mark_available()
                self._log.debug("heartbeat_refused", error=first_line(error))
                await asyncio.sleep(HEARTBEAT_INTERVAL_S)
                continue
            self._mark_available()
            self._call_reconnect_callbacks()
            try:
                await self._send_heartbeats(line)
            except (DatabaseUnavailable, *DRIVER_ERRORS) as error:
                self._log.debug("heartbeat_interrupted", error=first_line(error))
            finally:
                terminate(line)
                self._call_reconnect_callbacks()
            await asyncio.sleep(_RETRY_INTERVAL_S)

    async def _connect(self) -> asyncpg.Connection:
        timeout_s = self._max_connect_s if self.is_unavailable else self._timeout_after(self._dial_s)
        timeout_s = min(timeout_s, self._max_connect_s)
        began = time.monotonic()
        async with time_limit(timeout_s):
            line = await self._dial()
        self._dial_s = time.monotonic() - began
        return line

    def _timeout_after(self, usual_s: float) -> float:
        return max(self._min_timeout_s, _TIMEOUT_FACTOR * usual_s)

    async def _send_heartbeats(self, line: asyncpg.Connection) -> None:
        """Send heartbeats until one fails."""
        line.add_termination_listener(lambda _line: self._wake.set())
        listened: set[str] = set()
        while not line.is_closed():
            self._wake.clear()
            began = time.monotonic()
            async with time_limit(self._timeout_after(self._answer_s)) as connections:
                connections.append(line)
                for channel in [name for name in self._channels if name not in listened]:
                    await line.add_listener(channel, self._on_notification)
                    listened.add(channel)
                    for on_listening in self._listening_callbacks[channel]:
                        on_listening()
                row = await line.fetchrow(SQL["read_safety"])
            took_s = time.monotonic() - began
            self._answer_s += _EWMA_WEIGHT * (took_s - self._answer_s)
            if row is not None:
                self._update_safety(row)
            await self._pause(HEARTBEAT_INTERVAL_S)

    def _update_safety(self, row: asyncpg.Record) -> None:
        assessment, before = assess_safety(row), self.safety
        self.safety = assessment
        if assessment.stalled:
            self._close_stalled()
        meters.gauge("boathook_database_unsafe", float(assessment.is_doubtful))
        if assessment.kind != before.kind:
            notes = [*assessment.reasons(), *assessment.weak]
            note = " ".join(notes) or "the server keeps what it commits again"
            self._log.warning("unsafe_database" if notes else "safe_database", note=note)
        self.level = "remote_apply" if row["synchronous_commit"] == "remote_apply" else "on"

    def _on_notification(self, _connection: object, _pid: int, channel: str, payload: object) -> None:
        for callback in self._channels.get(channel, ()):
            callback(str(payload))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def _call_reconnect_callbacks(self) -> None:
        for callback in self._reconnect_callbacks:
            callback()

    def _mark_unavailable(self, error: BaseException) -> None:
        if not self.is_unavailable:
            self._away_since = time.monotonic()
            self._log.warning("postgresql_away", error=first_line(error))
        self._answers.clear()
        for cut_all in self._cuts:
            cut_all()
        now = asyncio.get_running_loop().time()
        for block in self._dialling:
            if not block.expired():
                block.reschedule(now)

    def _mark_available(self) -> None:
        if self.is_unavailable:
            self._log.warning("postgresql_back", away_s=round(time.monotonic() - self._away_since, 1))
        self._answers.set()
