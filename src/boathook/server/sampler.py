"""Tells PostgreSQL every 15 seconds what all processes of this host have counted, for charts and alarms.

It runs in the supervisor, which every host has and which lives as long as anything here does. What PostgreSQL does not
take is kept for an hour, also on disk, and told later. Of the processes that share a data directory, one samples.
"""

import asyncio
import contextlib
import fcntl
import time
from collections import deque
from datetime import UTC, datetime
from typing import IO, Final

import msgspec

from boathook.config import Settings
from boathook.db import metric_samples
from boathook.db.database import Database
from boathook.db.metric_samples import STEP_S, HostSample
from boathook.domain.errors import DatabaseError
from boathook.observability.exporters import MergedMetrics, merge
from boathook.observability.log import get_logger
from boathook.observability.metric_snapshot import host_name, snapshot_between

_MAX_UNSENT: Final = 3600 // STEP_S
_FINAL_SAMPLE_TIMEOUT_S: Final = 2.0
_LOG = get_logger("server")


class Sampler:
    """Samples one data directory.

    Args:
        settings: with the journal's URL.
        slot: of this process, whose own counts are read from memory.
        step_s: seconds between two samples.
    """

    def __init__(self, settings: Settings, slot: str, *, step_s: float = STEP_S) -> None:
        self._settings = settings
        self._slot = slot
        self._step_s = step_s
        self._host = host_name(settings.server.data_dir)
        self._unsent_file = settings.server.data_dir / "samples.json"
        self._lock: IO[str] | None = None
        self._before: MergedMetrics | None = None
        self._unsent: deque[HostSample] = deque(maxlen=_MAX_UNSENT)
        self._database: Database | None = None
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Begin to sample."""
        self._task = asyncio.create_task(self._run(), name="sampler")

    async def close(self) -> None:
        """Sample once more, as far as PostgreSQL takes it at once, and end."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_FINAL_SAMPLE_TIMEOUT_S):
                await self._turn()
        if self._database is not None:
            await self._database.close()
        if self._lock is not None:
            self._lock.close()

    async def _run(self) -> None:
        while True:
            try:
                await self._turn()
            except Exception as error:  # noqa: BLE001 - one sample that fails must not end all that would follow
                _LOG.error("sampler_fault", exc_info=error)
            await asyncio.sleep(self._step_s - time.time() % self._step_s)

    async def _turn(self) -> None:
        try:
            if self._is_elected():
                await self._sample()
                await self._publish()
        except OSError as error:
            _LOG.warning("samples_not_kept", error=str(error), folder=str(self._settings.server.data_dir))

    def _is_elected(self) -> bool:
        """Return whether it is us who sample this data directory; whoever is first does so to its end."""
        if self._lock is None:
            lock = (self._settings.server.data_dir / "sampler.lock").open("w")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                lock.close()
                return False
            self._lock = lock
            self._unsent.extend(self._load_unsent())
        return True

    async def _sample(self) -> None:
        before = self._before
        self._before = await asyncio.to_thread(merge, self._settings.server.data_dir, self._slot, time.time())
        if before is not None:
            middle = datetime.fromtimestamp((before.at + self._before.at) / 2, UTC)
            self._unsent.append(HostSample(self._host, middle, snapshot_between(before, self._before)))

    async def _publish(self) -> None:
        telling = list(self._unsent)
        if not telling:
            return
        try:
            await metric_samples.insert(await self._connected_database(), telling)
        except DatabaseError as error:
            self._unsent_file.write_bytes(msgspec.json.encode(telling))
            _LOG.debug("samples_wait", samples=len(telling), error=str(error))
        else:
            self._unsent.clear()
            self._unsent_file.unlink(missing_ok=True)

    def _load_unsent(self) -> list[HostSample]:
        """Return what an earlier process could not tell."""
        try:
            return msgspec.json.decode(self._unsent_file.read_bytes(), type=list[HostSample])
        except (OSError, msgspec.DecodeError):
            return []

    async def _connected_database(self) -> Database:
        if self._database is None:
            database = self._settings.database
            self._database = await Database.open(
                database.url, purpose="sampler", size=1, connect_timeout_s=database.connect_timeout_s, is_reset=False
            )
        return self._database
