"""A standing connection to PostgreSQL that asks whether the server still answers, and hears what it announces.

A server that is stopped refuses; one that hangs, or is behind a cut network, says nothing, and whoever has sent it
something would wait for as long as a statement may take. So a connection beside each pool asks for a sign of life every
second, and with it whether the server keeps what it commits. Where none comes, and a new connection cannot be had
either, the server is away: every connection of the pool is cut, so that all who wait are told at once, and those who
ask for one are told without waiting until it answers again.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

import asyncpg

from boathook.db.availability import CONNECTION_ERRORS, DRIVER_ERRORS, first_line, terminate, time_limit
from boathook.db.safety import SQL, Safety, assess_safety, commit_level
from boathook.domain.errors import DatabaseUnavailable
from boathook.observability import meters
from boathook.observability.log import get_logger

HEARTBEAT_INTERVAL_S: Final = 1.0
"""Seconds between two signs of life."""
MIN_TIMEOUT_S: Final = 1.5
"""Seconds within which each has to come, and then a new connection; longer where the network is known to be slow."""
_RETRY_INTERVAL_S: Final = 0.25
_TIMEOUT_FACTOR: Final = 4
"""How many times as long as usual an answer may take."""
_EWMA_WEIGHT: Final = 0.2

_NO_ANSWER: Final = "PostgreSQL does not answer"
OpenConnection = Callable[[], Awaitable[asyncpg.Connection]]
"""Makes a connection."""
NotificationCallback = Callable[[str], None]
_READ: Final = SQL["read_safety"]


class ServerMonitor:
    """Whether one server answers, as those see it who share this.

    Args:
        dial: makes the standing connection.
        purpose: what the pools are for that share this, for the log.
        longest_s: how long a connection may take to be made while the server is away.
    """

    def __init__(self, dial: OpenConnection, *, purpose: str, longest_s: float) -> None:
        self._answers = asyncio.Event()
        self._answers.set()
        self._dial = dial
        self._longest_s = longest_s
        self._cuts: dict[Callable[[], None], None] = {}
        """In the order they came, as a simulation has to see the same course of events again."""
        self._dialling: dict[asyncio.Timeout, None] = {}
        self._reconnect_callbacks: list[Callable[[], None]] = []
        self._channels: dict[str, list[NotificationCallback]] = {}
        self._wake = asyncio.Event()
        self._answer_s = 0.0
        self._dial_s = 0.0
        self._away_since = 0.0
        self.safety = Safety()
        """Whether the server keeps what it commits, as it said with its last sign of life."""
        self.level = ""
        """The level of synchronous_commit that new sessions are to have; empty while it is unknown."""
        self._task: asyncio.Task[None] | None = None
        self._log = get_logger("db").bind(purpose=purpose)

    def start(self) -> None:
        """Begin to watch, a moment from now: who is gone by then does without."""
        self._task = asyncio.create_task(self._run(), name="pulse")

    async def close(self) -> None:
        """End it and give its connection back."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def add_outage_callback(self, cut_all: Callable[[], None]) -> None:
        """Call *cut_all* when the server is found to be away."""
        self._cuts[cut_all] = None

    def remove_outage_callback(self, cut_all: Callable[[], None]) -> None:
        """Do so no more."""
        self._cuts.pop(cut_all, None)

    def on_reconnect(self, told: Callable[[], None]) -> None:
        """Call *told* when the standing connection ends and when it is made: the server may be another one since."""
        self._reconnect_callbacks.append(told)

    def listen(self, channel: str, heard: NotificationCallback) -> None:
        """Call *heard* with the payload of each notification on *channel*, from soon on."""
        self._channels.setdefault(channel, []).append(heard)
        self._wake.set()

    @property
    def is_unavailable(self) -> bool:
        """Whether it did not answer the last time."""
        return not self._answers.is_set()

    async def wait_until_available(self) -> None:
        """Wait while the server is away."""
        await self._answers.wait()

    @contextlib.asynccontextmanager
    async def dialling(self) -> AsyncIterator[None]:
        """Break the block, which makes a connection, off when the server is found to be away.

        Raises:
            ConnectionError: it is.
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

    async def _run(self) -> None:
        await self._pause(HEARTBEAT_INTERVAL_S)
        while True:
            try:
                line = await self._connect()
            except asyncpg.PostgresError as error:
                # It answers, though not as wished: that is for those to see who wish for more.
                self._mark_available()
                self._log.debug("pulse_refused", error=first_line(error))
                await asyncio.sleep(HEARTBEAT_INTERVAL_S)
                continue
            except (DatabaseUnavailable, *CONNECTION_ERRORS) as error:
                self._mark_unavailable(error)
                await asyncio.sleep(_RETRY_INTERVAL_S)
                continue
            self._mark_available()
            self._call_reconnect_callbacks()
            try:
                await self._send_heartbeats(line)
            except (DatabaseUnavailable, *DRIVER_ERRORS) as error:
                self._log.debug("pulse_interrupted", error=first_line(error))
            finally:
                terminate(line)
                self._call_reconnect_callbacks()
            await asyncio.sleep(_RETRY_INTERVAL_S)

    async def _connect(self) -> asyncpg.Connection:
        patience_s = self._longest_s if self.is_unavailable else max(MIN_TIMEOUT_S, _TIMEOUT_FACTOR * self._dial_s)
        patience_s = min(patience_s, self._longest_s)
        began = time.monotonic()
        async with time_limit(patience_s):
            line = await self._dial()
        self._dial_s = time.monotonic() - began
        return line

    async def _send_heartbeats(self, line: asyncpg.Connection) -> None:
        """Ask for signs of life until none comes."""
        line.add_termination_listener(lambda _line: self._wake.set())
        heard: set[str] = set()
        while not line.is_closed():
            self._wake.clear()
            began = time.monotonic()
            async with time_limit(max(MIN_TIMEOUT_S, _TIMEOUT_FACTOR * self._answer_s)) as lent:
                lent.append(line)
                for channel in self._channels.keys() - heard:
                    await line.add_listener(channel, self._on_notification)
                    heard.add(channel)
                row = await line.fetchrow(_READ)
            took_s = time.monotonic() - began
            self._answer_s += _EWMA_WEIGHT * (took_s - self._answer_s)
            if row is not None:
                self._update_safety(row)
            await self._pause(HEARTBEAT_INTERVAL_S)

    def _update_safety(self, row: asyncpg.Record) -> None:
        found, before = assess_safety(row), self.safety
        self.safety = found
        meters.gauge("boathook_database_unsafe", float(found.is_doubtful))
        if found.kind != before.kind:
            notes = [*found.reasons(), *found.weak] or ["the server keeps what it commits again"]
            self._log.warning("unsafe_database" if found.is_doubtful else "safe_database", note=" ".join(notes))
        self.level = commit_level(row["synchronous_commit"])

    def _on_notification(self, _connection: object, _pid: int, channel: str, payload: object) -> None:
        for heard in self._channels.get(channel, ()):
            heard(str(payload))

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._wake.wait()

    def _call_reconnect_callbacks(self) -> None:
        for told in self._reconnect_callbacks:
            told()

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
