"""Stores a sample of this host's metrics every ten seconds in PostgreSQL, for charts and alerts.

It runs in the supervisor, which exists on every host and outlives all other processes. Samples that PostgreSQL does not
accept are kept for an hour, also on disk, and stored later. Meanwhile this host evaluates its own alert rules. Of the
processes that share a data directory, only one samples.
"""

import asyncio
import contextlib
import fcntl
import time
from collections import deque
from datetime import UTC, datetime
from typing import IO, Final

import msgspec

from boathook.alerts.evaluator import LocalEvaluator
from boathook.alerts.notifier import Notifier
from boathook.alerts.rules import known_rules
from boathook.config import Settings
from boathook.config.data_dir import open_lock
from boathook.db import metric_samples
from boathook.db.database import Database
from boathook.db.metric_samples import STEP_S, HostSample
from boathook.domain.errors import DatabaseError
from boathook.observability.live_metrics import gather
from boathook.observability.log import get_logger
from boathook.observability.metric_snapshot import MetricSnapshot, concatenate, decode, encode, host_name

_MAX_FINE_UNSENT: Final = 30
"""Number of unsent samples kept at full resolution; later ones are merged to two minutes each."""
_COARSE_S: Final = 120.0
_MAX_UNSENT: Final = _MAX_FINE_UNSENT + int(3600 / _COARSE_S)
_STORE_TIMEOUT_S: Final = 5.0
"""How long PostgreSQL may take before it counts as unavailable."""
_FINAL_SAMPLE_TIMEOUT_S: Final = 2.0
_LOG = get_logger("server")


class _State(msgspec.Struct):
    """The state that a sampler leaves to the next one, in case it is killed."""

    at: float
    """When the last sample was taken."""
    before: str
    """The metrics at that time."""
    unsent: list[tuple[float, str]]
    """The unsent samples, each with its time."""


class Sampler:
    """Samples the metrics of one data directory.

    Args:
        settings: the settings, including the database URL.
        slot: the slot of this process, whose own metrics are read from memory.
        step_s: seconds between two samples; None uses the smaller of `STEP_S` and the rule evaluation interval.
    """

    def __init__(self, settings: Settings, slot: str, *, step_s: float | None = None) -> None:
        self._settings = settings
        self._slot = slot
        self._step_s = min(STEP_S, settings.notifications.evaluation_interval_s) if step_s is None else step_s
        self._host = host_name(settings.server.data_dir)
        self._notifier = Notifier(settings)
        self._local_evaluator = LocalEvaluator(settings, known_rules(settings), self._host, self._notifier)
        self._state_file = settings.server.data_dir / "samples.json"
        self._lock: IO[str] | None = None
        self.before: MetricSnapshot | None = None
        self._skew_s = 0.0
        """The server's clock minus ours, at the last successful store."""
        self.unsent: deque[HostSample] = deque(maxlen=_MAX_UNSENT)
        self._database: Database | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to sample."""
        self._task = asyncio.create_task(self._run(), name="sampler")

    async def stop(self) -> None:
        """Take a last sample, store it if PostgreSQL responds within two seconds, and stop."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FINAL_SAMPLE_TIMEOUT_S):
                await self.turn()
        self._notifier.close()
        if self._database is not None:
            await self._database.close()
        if self._lock is not None:
            self._lock.close()

    async def _run(self) -> None:
        while True:
            try:
                await self.turn()
            except Exception as error:  # noqa: BLE001 - a failed sample must not end the loop
                _LOG.error("sampler_fault", exc_info=error)
            await asyncio.sleep(self._step_s - time.time() % self._step_s)

    async def turn(self) -> None:
        """Take a sample if this process is the one of its data directory that does."""
        if self.is_elected():
            await self.sample()

    def is_elected(self) -> bool:
        """Return whether this process samples the data directory; the first one does, until it ends."""
        if self._lock is None:
            lock = open_lock(self._settings.server.data_dir / "sampler.lock")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                return False
            self._lock = lock
            self._load_state()
        return True

    async def sample(self) -> None:
        """Count what has changed since the last sample, and store it with those that could not be stored."""
        before = self.before
        # Reading the files of all processes may wait for a slow disk, so keep it off the event loop.
        now = self.before = await asyncio.to_thread(gather, self._settings.server.data_dir, self._slot, time.time())
        counted = now.since(before or now)
        if before is not None:
            self._add_unsent(counted, before.at)
        try:
            await asyncio.to_thread(self._save_state, now)
        except OSError as error:
            _LOG.warning("samples_not_kept", error=str(error), file=str(self._state_file))
        try:
            async with asyncio.timeout(_STORE_TIMEOUT_S):
                await self._store()
        except (DatabaseError, TimeoutError) as error:
            _LOG.debug("samples_wait", samples=len(self.unsent), error=str(error))
            await self._local_evaluator.run_once(counted)

    def _add_unsent(self, counted: MetricSnapshot, since: float) -> None:
        if counted.span_s > _COARSE_S:  # no process sampled during all that time
            counted.span_s = self._step_s
        at = datetime.fromtimestamp(since + counted.span_s / 2 + self._skew_s, UTC)
        last = self.unsent[-1] if self.unsent else None
        if last is not None and len(self.unsent) > _MAX_FINE_UNSENT and last.snapshot.span_s < _COARSE_S:
            self.unsent.pop()
            counted = concatenate([last.snapshot, counted])
        self.unsent.append(HostSample(self._host, at, counted))

    async def _store(self) -> None:
        """Store the unsent samples. Raises DatabaseError."""
        database = await self._connected_database()
        await self._local_evaluator.sync_to_database(database)
        now = await metric_samples.insert(database, list(self.unsent))
        if now is not None:
            self._skew_s = now.timestamp() - time.time()
            self.unsent.clear()

    def _save_state(self, now: MetricSnapshot) -> None:
        unsent = [(sample.at.timestamp(), encode(sample.snapshot)) for sample in self.unsent]
        fresh = self._state_file.with_suffix(".new")
        fresh.write_bytes(msgspec.json.encode(_State(now.at, encode(now), unsent)))
        fresh.replace(self._state_file)

    def _load_state(self) -> None:
        """Resume from the state of an earlier process. PostgreSQL ignores samples that it has already."""
        with contextlib.suppress(OSError, msgspec.DecodeError):
            state = msgspec.json.decode(self._state_file.read_bytes(), type=_State)
            self.before = decode(state.before, state.at)
            self.unsent.extend(
                HostSample(self._host, datetime.fromtimestamp(at, UTC), decode(text)) for at, text in state.unsent
            )

    async def _connected_database(self) -> Database:
        if self._database is None:
            database = self._settings.database
            self._database = await Database.open(
                database.url,
                purpose="sampler",
                size=1,
                connect_timeout_s=database.connect_timeout_s,
                statement_timeout_s=database.statement_timeout_s,
                is_reset=False,
            )
        return self._database
