"""A gateway's spool: makes concurrent appends durable in groups, in one thread that owns the disk."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast

import msgspec

from boathook.domain.errors import SpoolUnavailable
from boathook.observability import meters
from boathook.observability.failpoints import failpoint
from boathook.observability.log import get_logger
from boathook.spool.segment_store import Segment, SegmentStore, SpoolLimits

T = TypeVar("T")
RunInThread = Callable[[Callable[[], T]], Awaitable[T]]


class SpoolStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of the spool, as of the last write or drain."""

    records: int = 0
    size: int = 0
    """In bytes."""
    is_empty: bool = True
    filled: float = 0.0
    """Used share of the spool's capacity, from 0 to 1."""
    oldest_at: float | None = None
    """Approximate time at which the oldest event was written, in seconds since 1970; None if the spool is empty."""
    is_failing: bool = False
    """Whether the disk is not used for some seconds because it failed twice."""


_MAX_GROUP: Final = 1024
TICK_S: Final = 1.0
STUCK_AFTER_TICKS: Final = 5
"""A disk that has not responded for so many ticks is stuck. A tick that comes late does not count: then this process
stood still, and the disk was not waited for."""
_REJECTING_FOR_S: Final = 5.0
"""How long after a rejection the next event is expected to be rejected too."""
_LOG = get_logger("spool")


class Spool:
    """Appends events durably and returns them in order.

    Args:
        segments: the segment store; used from one thread only.
        run: calls a function in that thread; None: in the spool's own thread. Simulations call it directly.
        queue: maximum number of events that wait to be written.
        report: takes each new status; None: it becomes the metrics of the spool, whose events wait for PostgreSQL.
    """

    def __init__(
        self,
        segments: SegmentStore,
        *,
        run: RunInThread[Any] | None = None,
        queue: int = 8192,
        report: Callable[[SpoolStatus], None] | None = None,
    ) -> None:
        self._segments = segments
        self._report = report
        self._thread = None if run is not None else ThreadPoolExecutor(1, thread_name_prefix="boathook-spool")
        self._run: RunInThread[Any] = run or self._in_thread
        self._queue_size = queue
        self._pending: list[tuple[bytes, asyncio.Future[bool]]] = []
        self._has_work = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._calls = 0
        """How many calls the thread has not finished."""
        self._ticks = 0
        """Ticks since the thread last finished a call."""
        self._ticker: asyncio.TimerHandle | None = None
        self._refused_at = -_REJECTING_FOR_S
        self._last_error = ""
        """The last error of reading the spool."""
        self.depth = SpoolStatus()
        self.losses = 0
        """Number of drained segments whose events could not all be read."""

    @classmethod
    def at(cls, root: Path, bounds: SpoolLimits, *, report: Callable[[SpoolStatus], None] | None = None) -> "Spool":
        """Return the spool under *root* on this machine's disk."""
        return cls(SegmentStore(root, bounds), report=report)

    async def start(self) -> bool:
        """Start the writer and adopt the folders of dead processes; return whether events are waiting."""
        # Counters start at 0, so that the first event shows as an increase.
        meters.count("boathook_spool_rejected_total", 0)
        meters.count("boathook_spool_damaged_segments_total", 0)
        self._writer = asyncio.create_task(self._write_groups(), name="spool:write")
        return await self.adopt()

    async def adopt(self) -> bool:
        """Adopt the folders of processes that have died since; return whether events are waiting."""
        try:
            refused, damaged = await self._call(self._adopt)
        except SpoolUnavailable as error:
            if str(error) != self._last_error:
                _LOG.error("spool_unreadable", error=str(error))
            self._last_error = str(error)
        else:
            self._last_error = ""
            if self._report is None:
                meters.gauge("boathook_spool_set_aside", refused, kind="refused")
                meters.gauge("boathook_spool_set_aside", damaged, kind="damaged")
        return not self.is_empty

    @property
    def is_empty(self) -> bool:
        """Whether no event is waiting and no write is pending."""
        return self.depth.is_empty and self._is_idle.is_set()

    @property
    def rejection_reason(self) -> str:
        """Why it accepts no events, in one sentence."""
        return "the spool accepts no events: its disk is full, fails or does not respond"

    @property
    def warning(self) -> str:
        """Empty: a spool works, or rejects events."""
        return ""

    @property
    def waiting_events(self) -> int:
        """Number of events that wait to be drained, as of the last write or drain."""
        return self.depth.records

    async def left(self) -> int:
        """Return how many events wait to be drained."""
        return self.depth.records

    async def wait_for_others(self, within_s: float) -> bool:  # noqa: ARG002 - a broker's buffer needs it
        """Return False: only the process that holds a spool drains it."""
        return False

    @property
    def is_stuck(self) -> bool:
        """Whether a disk operation neither completes nor fails."""
        return self._ticks >= STUCK_AFTER_TICKS

    @property
    def is_rejecting(self) -> bool:
        """Whether the disk is stuck, or an event was rejected recently."""
        return self.is_stuck or time.monotonic() - self._refused_at < _REJECTING_FOR_S

    def append(self, payload: bytes) -> "asyncio.Future[bool]":
        """Append *payload*, in call order; return a future that completes with True once it is durable.

        The future raises `SpoolUnavailable` if the spool is full or its disk fails or hangs.
        """
        written: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self._writer is None or len(self._pending) >= self._queue_size:
            written.set_exception(SpoolUnavailable("too many events are waiting to be written to the spool"))
            return written
        if self.is_stuck:
            written.set_exception(SpoolUnavailable("the spool's disk does not respond"))
            return written
        self._pending.append((payload, written))
        self._is_idle.clear()
        self._has_work.set()
        return written

    async def flush(self) -> None:
        """Wait until everything appended so far is written or rejected."""
        await self._is_idle.wait()

    async def check_writable(self) -> None:
        """Test that the disk makes a small file durable, and remove the file. Raises SpoolUnavailable."""
        await self._call(self._segments.check_writable)

    async def oldest(self) -> Segment | None:
        """Return the segment to drain next; None if there is none.

        Raises:
            SpoolUnavailable: it cannot be read.
        """
        return await self._call(self._segments.oldest)

    async def finish(self, segment: Segment) -> None:
        """Set aside a segment whose events are all in PostgreSQL or rejected.

        If it cannot be renamed, this process skips it from then on, so that it does not block the other segments. The
        next process drains it again, which changes nothing.
        """
        failpoint("drain.before_finish")
        try:
            await self._call(partial(self._segments.finish, segment))
        except SpoolUnavailable as error:
            _LOG.error("spool_not_put_aside", segment=str(segment.path), error=str(error))
        if segment.is_damaged:
            self.losses += 1
            meters.count("boathook_spool_damaged_segments_total")
            _LOG.error("spool_damaged", segment=str(segment.path), lost=segment.contents.lost, note="kept as .bad")
        failpoint("drain.after_finish")

    async def refuse(self, segment: Segment, sequence: int, payload: bytes) -> None:
        """Store one event of a segment that PostgreSQL rejects. Raises SpoolUnavailable."""
        await self._call(partial(self._segments.refuse, segment, sequence, payload))

    async def stop(self) -> None:
        """Write what was appended and release the folders; the next process drains them."""
        await self.flush()
        if self._writer is not None:
            self._writer.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._writer
            self._writer = None
        with contextlib.suppress(OSError):
            await self._run(self._segments.close)
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

    async def _write(self, group: list[tuple[bytes, "asyncio.Future[bool]"]]) -> None:
        began = time.perf_counter()
        try:
            failpoint("spool.before_write")
            await self._call(partial(self._segments.write, [payload for payload, _ in group]))
            failpoint("spool.after_sync")
        except Exception as error:  # noqa: BLE001 - the writer must survive any error and pass it to its callers
            meters.count("boathook_spool_rejected_total", len(group))
            self._refused_at = time.monotonic()
            failure = (
                error if isinstance(error, SpoolUnavailable) else SpoolUnavailable(str(error) or type(error).__name__)
            )
            for _, written in group:
                if not written.done():
                    written.set_exception(failure)
        else:
            self._refused_at = -_REJECTING_FOR_S
            meters.observe("boathook_spool_sync_seconds", time.perf_counter() - began)
            meters.count("boathook_spool_appended_total", len(group))
            for _, written in group:
                if not written.done():
                    written.set_result(True)

    async def _call(self, call: Callable[[], T]) -> T:
        """Run *call* in the disk thread and update the status; only that thread may use the store."""

        def call_and_measure() -> tuple[T | Exception, SpoolStatus]:
            try:
                return call(), self._read_status()
            except (OSError, SpoolUnavailable) as error:
                return error, self._read_status()

        self._calls += 1
        if self._ticker is None:
            self._schedule_tick()
        try:
            answer, depth = await self._run(call_and_measure)
        finally:
            self._calls -= 1
            self._ticks = 0
            if not self._calls and self._ticker is not None:
                self._ticker.cancel()
                self._ticker = None
        self._set_status(depth)
        if isinstance(answer, OSError):
            raise SpoolUnavailable(f"the spool cannot be read: {answer.strerror or answer}") from answer
        if isinstance(answer, Exception):
            raise answer
        return cast("T", answer)

    def _schedule_tick(self) -> None:
        loop = asyncio.get_running_loop()
        self._ticker = loop.call_later(TICK_S, self._tick, loop.time() + TICK_S)

    def _tick(self, due: float) -> None:
        if asyncio.get_running_loop().time() - due < TICK_S:
            self._ticks += 1
        self._schedule_tick()

    def _adopt(self) -> tuple[int, int]:
        try:
            self._segments.adopt()
        finally:
            self._segments.tidy(time.time())
        return self._segments.count_set_aside()

    def _read_status(self) -> SpoolStatus:
        shelf = self._segments
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
        if self._report is not None:
            self._report(depth)
            return
        meters.gauge("boathook_spool_events", depth.records)
        meters.gauge("boathook_spool_bytes", depth.size)
        meters.gauge("boathook_spool_used_ratio", depth.filled)
        meters.gauge("boathook_spool_oldest_seconds", 0.0 if depth.oldest_at is None else time.time() - depth.oldest_at)
        meters.gauge("boathook_spool_failing", float(depth.is_failing))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
