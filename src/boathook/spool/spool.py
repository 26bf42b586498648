"""A gateway's spool: what many requests append at once is made durable together, by one thread that owns the disk."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

from boathook.domain.errors import SpoolUnavailable
from boathook.observability import meters
from boathook.observability.failpoints import failpoint
from boathook.observability.log import get_logger
from boathook.spool.segment_store import Segment, SegmentStore, SpoolLimits

T = TypeVar("T")
RunInThread = Callable[[Callable[[], T]], Awaitable[T]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SpoolStatus:
    """What waits in the spool, as of the last write or drain."""

    records: int = 0
    size: int = 0
    """In bytes."""
    is_empty: bool = True
    filled: float = 0.0
    """Share of the spool's room that is used, from 0 to 1."""
    oldest_at: float | None = None
    """About when the oldest event was written, in seconds since 1970; None where nothing waits."""
    is_failing: bool = False
    """Whether the disk is left alone for some seconds, as it failed twice to make something durable."""


_MAX_GROUP: Final = 1024
_STUCK_AFTER_S: Final = 5.0
"""A disk that has not answered for so long hangs."""
_REJECTING_FOR_S: Final = 5.0
"""For how long a refusal says that the next event would be refused as well."""
_LOG = get_logger("spool")


class Spool:
    """Appends events durably and gives them back in order.

    Args:
        shelf: the folders; used from one thread only.
        run: calls a function in that thread; None: in one of its own. Simulations call it at once.
        queue: most events waiting to be written.
    """

    def __init__(self, shelf: SegmentStore, *, run: RunInThread[Any] | None = None, queue: int = 8192) -> None:
        self._shelf = shelf
        self._thread = None if run is not None else ThreadPoolExecutor(1, thread_name_prefix="boathook-spool")
        self._run: RunInThread[Any] = run or self._in_thread
        self._queue_size = queue
        self._pending: list[tuple[bytes, asyncio.Future[None]]] = []
        self._has_work = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._call_times: list[float] = []
        """When the thread was asked for what it has not answered yet."""
        self._refused_at = -_REJECTING_FOR_S
        self._last_error = ""
        """Why the spool could not be read the last time."""
        self.depth = SpoolStatus()

    @classmethod
    def at(cls, root: Path, bounds: SpoolLimits) -> "Spool":
        """Return the spool under *root* on this machine's disk."""
        return cls(SegmentStore(root, bounds))

    async def open(self) -> bool:
        """Start writing, adopt what dead processes have left, and return whether anything waits."""
        # From nought on, so that the first one is an increase.
        meters.count("boathook_spool_rejected_total", 0)
        meters.count("boathook_spool_damaged_segments_total", 0)
        self._writer = asyncio.create_task(self._write_groups(), name="spool:write")
        return await self.adopt()

    async def adopt(self) -> bool:
        """Adopt what processes that have died since have left, and return whether anything waits."""
        try:
            refused, damaged = await self._call(self._adopt)
        except SpoolUnavailable as error:
            if str(error) != self._last_error:
                _LOG.error("spool_unreadable", error=str(error))
            self._last_error = str(error)
        else:
            self._last_error = ""
            meters.gauge("boathook_spool_set_aside", refused, kind="refused")
            meters.gauge("boathook_spool_set_aside", damaged, kind="damaged")
        return not self.is_empty

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits here, and nothing is on its way in."""
        return self.depth.is_empty and self._is_idle.is_set()

    @property
    def is_stuck(self) -> bool:
        """Whether the disk neither answers nor fails."""
        return bool(self._call_times) and time.monotonic() - self._call_times[0] > _STUCK_AFTER_S

    @property
    def is_rejecting(self) -> bool:
        """Whether the disk is stuck, or an event was refused a moment ago."""
        return self.is_stuck or time.monotonic() - self._refused_at < _REJECTING_FOR_S

    def append(self, payload: bytes) -> "asyncio.Future[None]":
        """Return what is done once *payload* is durable; appended in the order of the calls.

        It ends with `SpoolUnavailable` where the spool is full or its disk fails or hangs.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        if self._writer is None or len(self._pending) >= self._queue_size:
            done.set_exception(SpoolUnavailable("too many events are waiting to be written to the spool"))
            return done
        if self.is_stuck:
            done.set_exception(SpoolUnavailable("the spool's disk does not answer"))
            return done
        self._pending.append((payload, done))
        self._is_idle.clear()
        self._has_work.set()
        return done

    async def flush(self) -> None:
        """Return once all that was appended so far is written, or refused."""
        await self._is_idle.wait()

    async def check_writable(self) -> None:
        """Try whether the disk makes a small file durable, leaving nothing behind. Raises SpoolUnavailable."""
        await self._call(self._shelf.check_writable)

    async def oldest(self) -> Segment | None:
        """Return the segment to drain next; None where nothing waits.

        Raises:
            SpoolUnavailable: it cannot be read.
        """
        return await self._call(self._shelf.oldest)

    async def finish(self, segment: Segment) -> None:
        """Put aside a segment whose events are all in PostgreSQL, or refused.

        Where the disk does not let it be renamed, it is passed over for as long as this process lives: it must not
        keep the others waiting, and the next life that offers its events again changes nothing.
        """
        failpoint("drain.before_finish")
        try:
            await self._call(partial(self._shelf.finish, segment))
        except SpoolUnavailable as error:
            _LOG.error("spool_not_put_aside", segment=str(segment.path), error=str(error))
        if segment.is_damaged:
            meters.count("boathook_spool_damaged_segments_total")
            _LOG.error("spool_damaged", segment=str(segment.path), lost=segment.contents.lost, note="kept as .bad")
        failpoint("drain.after_finish")

    async def refuse(self, segment: Segment, sequence: int, payload: bytes) -> None:
        """Keep one event of a segment that PostgreSQL refuses to take. Raises SpoolUnavailable."""
        await self._call(partial(self._shelf.refuse, segment, sequence, payload))

    async def close(self) -> None:
        """Write what was appended, and let go of the folders; what waits there is drained by the next life."""
        await self.flush()
        if self._writer is not None:
            self._writer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._writer
            self._writer = None
        with contextlib.suppress(OSError):
            await self._run(self._shelf.close)
        if self._thread is not None:
            self._thread.shutdown(wait=False)

    async def _write_groups(self) -> None:
        while True:
            if not self._pending:
                self._is_idle.set()
                self._has_work.clear()
                await self._has_work.wait()
                continue
            group, self._pending = self._pending[:_MAX_GROUP], self._pending[_MAX_GROUP:]
            await self._write(group)

    async def _write(self, group: list[tuple[bytes, "asyncio.Future[None]"]]) -> None:
        began = time.perf_counter()
        try:
            failpoint("spool.before_write")
            await self._call(partial(self._shelf.write, [payload for payload, _ in group]))
            failpoint("spool.after_sync")
        except Exception as error:  # noqa: BLE001 - the writer must outlive any surprise, and its callers must hear of it
            meters.count("boathook_spool_rejected_total", len(group))
            self._refused_at = time.monotonic()
            told = (
                error if isinstance(error, SpoolUnavailable) else SpoolUnavailable(str(error) or type(error).__name__)
            )
            for _, done in group:
                if not done.done():
                    done.set_exception(told)
        else:
            self._refused_at = -_REJECTING_FOR_S
            meters.observe("boathook_spool_sync_seconds", time.perf_counter() - began)
            meters.count("boathook_spool_appended_total", len(group))
            for _, done in group:
                if not done.done():
                    done.set_result(None)

    async def _call(self, call: Callable[[], T]) -> T:
        """Have the shelf do something, and learn what waits there afterwards; only that thread may look."""

        def call_and_look() -> tuple[T | Exception, SpoolStatus]:
            try:
                return call(), self._read_status()
            except (OSError, SpoolUnavailable) as error:
                return error, self._read_status()

        asked = time.monotonic()
        self._call_times.append(asked)
        try:
            answer, depth = await self._run(call_and_look)
        finally:
            self._call_times.remove(asked)
        self._set_status(depth)
        if isinstance(answer, OSError):
            raise SpoolUnavailable(f"the spool cannot be read: {answer.strerror or answer}") from answer
        if isinstance(answer, Exception):
            raise answer
        return cast("T", answer)

    def _adopt(self) -> tuple[int, int]:
        try:
            self._shelf.adopt()
        finally:
            self._shelf.tidy(time.time())
        return self._shelf.count_set_aside()

    def _read_status(self) -> SpoolStatus:
        shelf = self._shelf
        return SpoolStatus(
            records=shelf.records,
            size=shelf.size,
            is_empty=shelf.is_empty,
            filled=shelf.filled,
            oldest_at=shelf.oldest_at,
            is_failing=shelf.is_failing,
        )

    def _set_status(self, depth: SpoolStatus) -> None:
        self.depth = depth
        meters.gauge("boathook_spool_events", depth.records)
        meters.gauge("boathook_spool_bytes", depth.size)
        meters.gauge("boathook_spool_used_ratio", depth.filled)
        meters.gauge("boathook_spool_oldest_seconds", 0.0 if depth.oldest_at is None else time.time() - depth.oldest_at)
        meters.gauge("boathook_spool_failing", float(depth.is_failing))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
