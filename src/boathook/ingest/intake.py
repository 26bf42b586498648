"""Accepts events by group commit: into PostgreSQL while it responds in time, otherwise into a buffer.

Concurrent requests share one commit, and each gets its own receipt; see `boathook.db.group_commit`. The queue in front
is bounded. Recently accepted keys are answered from memory, so floods of duplicates cause no writes.

With a buffer, which is the spool or brokers before it, the intake is in one of four modes::

    DIRECT       -> SPOOLING when the database fails, or an event waits for longer than `within_s`
    SPOOLING     -> DRAINING when the database has accepted the oldest events of the buffer
    DRAINING     new events go into the buffer, behind the older ones
                 -> CATCHING_UP when little is left, -> SPOOLING when the database fails again
    CATCHING_UP  new events wait in memory -> DIRECT when the buffer is empty

The events of one process therefore reach the database in accept order, whatever happens to it.
"""

import asyncio
import contextlib
import random
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Final, assert_never
from uuid import UUID

from boathook.db.due_notifier import DueNotifier
from boathook.db.group_commit import Entry, GroupCommit, fail
from boathook.domain.due import DueRecipient, due_recipients
from boathook.domain.errors import DatabaseError, IngestError, Overloaded, ValueRejected
from boathook.domain.ids import created_at
from boathook.domain.model import Accepted, Duplicate, NewEvent, Receipt
from boathook.ingest.buffer import Buffer
from boathook.ingest.event_writer import (
    Elsewhere,
    EventWriter,
    MessageStore,
    ReceiptWaiter,
    Refused,
    Reroute,
    Store,
    Stored,
    count_drained,
)
from boathook.ingest.spool_records import encode
from boathook.observability import meters
from boathook.observability.failpoints import failpoint
from boathook.observability.log import get_logger
from boathook.spool.segment import Record
from boathook.spool.segment_store import Segment

PendingEvent = Entry[NewEvent, Receipt]
DRAIN_BACKOFF_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
"""Delay before each attempt to drain the spool."""
_DRAIN_TIMEOUT_S: Final = (2.0, 5.0, 10.0, 30.0)
"""Timeout for a spooled batch, by attempt: short at first to detect a hanging database, longer for a slow one."""
ADOPT_INTERVAL_S: Final = 5.0
_CANCEL_RETRY_S: Final = 0.1
MAX_COMMIT_BYTES: Final = 32 << 20
"""Bytes of bodies that one commit has, if it is more than one event: PostgreSQL takes no gigabyte in one statement."""
_LOG = get_logger("ingest")


class DedupCache:
    """The keys of the events accepted last, in two generations; when the newer one is full, the older one is dropped.

    Keys and values are plain bytes, which the garbage collector need not traverse.

    Args:
        size: maximum number of keys in each generation; 0 caches none.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self.windows_s: Mapping[str | None, float] = {}
        """By source: the seconds after an event's acceptance for which its key is remembered; others are kept longer
        than any cache."""
        self._young: dict[bytes, bytes] = {}
        self._old: dict[bytes, bytes] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def clear(self) -> None:
        """Remove all keys."""
        self._young, self._old = {}, {}

    def find(self, event: NewEvent) -> UUID | None:
        """Return the id of the original if *event* is an exact duplicate of it."""
        key = event.key_hash.bytes
        seen = self._young.get(key) or self._old.get(key)
        if seen is None or seen[16:] != event.body_sha256:
            return None
        first = UUID(bytes=seen[:16])
        window_s = self.windows_s.get(event.source)
        if window_s is not None and (created_at(event.id) - created_at(first)).total_seconds() >= window_s:
            return None
        return first

    def remember(self, event: NewEvent, first: UUID) -> None:
        """Record *first* as the event with this key and body."""
        # Whether an event is the newest of its object, only the database knows.
        if not self._size or event.object_hash is not None:
            return
        if len(self._young) >= self._size:
            self._old, self._young = self._young, {}
        self._young[event.key_hash.bytes] = first.bytes + event.body_sha256


class Mode(StrEnum):
    """The destination of events."""

    DIRECT = "direct"
    SPOOLING = "spooling"
    DRAINING = "draining"
    CATCHING_UP = "catching_up"


class Intake:
    """Group commit in front of a store, with a buffer behind it.

    Args:
        store: stores the events.
        announce: called at most every 5 ms, after events with deliveries were committed.
        reroute: returns events with their deliveries under the current routes; None if routes never change.
        messages: stores published messages, and routes them; None refuses them.
        buffer: holds events while the store is unavailable; None makes `accept` raise instead.
        within_s: how long an event may wait for the store before it goes into the buffer.
        committers: number of concurrent commits.
        batch: maximum number of events in one commit.
        queue: maximum number of waiting events.
        dedup_cache_size: minimum number of recently accepted keys that are answered from memory; 0: none are.
        elsewhere: returns the intake for the home of an event; None if all events are stored here.
        report_unavailable: called with 1 when the store is found to be unavailable, and with 0 when it is not.
        unavailable: why a request is answered 503 if its event is stored neither in the store nor in the buffer.
    """

    def __init__(
        self,
        store: Store,
        *,
        announce: Callable[[Collection[DueRecipient]], Awaitable[None]] | None = None,
        reroute: Reroute | None = None,
        messages: MessageStore | None = None,
        buffer: Buffer | None = None,
        within_s: float = 1.0,
        committers: int = 1,
        batch: int = 128,
        queue: int = 4096,
        dedup_cache_size: int = 65_536,
        elsewhere: Elsewhere | None = None,
        report_unavailable: Callable[[int], None] | None = None,
        unavailable: str = "database_unavailable",
    ) -> None:
        self._store = EventWriter(store, reroute, messages, elsewhere)
        self._elsewhere = elsewhere
        self._report_unavailable = report_unavailable or _report_database
        self.unavailable = unavailable
        self._announcer = None if announce is None else DueNotifier(announce)
        self.buffer = buffer
        self._within_s = within_s
        self._batch = batch
        self._queue_size = queue
        self._commits = GroupCommit(
            self._commit,
            name="intake:commit",
            weigh=_body_size,
            max_weight=MAX_COMMIT_BYTES,
            max_rows=batch,
            max_waiting=queue,
            committers=committers,
            within_s=None if buffer is None else within_s,
            on_failure=self._on_failed_commit,
            is_paused=True,
        )
        self._recent = DedupCache(dedup_cache_size)
        self._has_spooled = asyncio.Event()
        self._is_stopping = False
        self._drain_task: asyncio.Task[None] | None = None
        self._drained: tuple[Path, int] | None = None
        """The segment that is being drained, and the sequence up to which its records are stored or set aside."""
        self._announcing: asyncio.Task[None] | None = None
        self._losses = 0
        self.on_loss: list[Callable[[], None]] = []
        """Called when events that were accepted are found to be missing, or are left behind."""
        self.mode = Mode.DIRECT
        """The current destination of events."""

    @property
    def waiting(self) -> int:
        """Number of events that wait for a commit to begin."""
        return self._commits.waiting

    @property
    def is_direct(self) -> bool:
        """Whether events go to the database, and none that were accepted earlier wait in the buffer."""
        return self.mode is Mode.DIRECT

    @property
    def accepts_without_database(self) -> bool:
        """Whether events can be accepted while the database is unavailable."""
        return self.buffer is not None and not self.buffer.is_rejecting

    @property
    def is_rejecting(self) -> bool:
        """Whether events are refused because they must go into a buffer that accepts none."""
        is_spooling = self.mode is Mode.SPOOLING or self.mode is Mode.DRAINING
        return is_spooling and self.buffer is not None and self.buffer.is_rejecting

    @property
    def rejection_reason(self) -> str:
        """Why the buffer accepts no events, in one sentence."""
        return "" if self.buffer is None else self.buffer.rejection_reason

    async def start(self, *, is_store_unavailable: bool = False) -> None:
        """Start the committers, and drain the buffer if it holds events.

        Args:
            is_store_unavailable: start in spooling mode, because the store is known to be unavailable.
        """
        self._report_unavailable(0)
        if self.buffer is not None and (await self.buffer.start() or is_store_unavailable):
            self._switch_to_spool(
                "events wait in the buffer" if not is_store_unavailable else "it has not been reached yet"
            )
        if self.mode is Mode.DIRECT:
            self._commits.resume()
        if self.buffer is not None:
            self._drain_task = asyncio.create_task(self._run_drain(self.buffer), name="intake:drain")
        if self._announcer is not None:
            self._announcing = asyncio.create_task(self._announcer.run(), name="intake:announce")

    async def drain(self) -> None:
        """Make all waiting events durable, then stop; events in the buffer are left for the next process."""
        self._is_stopping = True
        await _cancel(self._drain_task)
        if self.mode is Mode.CATCHING_UP:
            self._switch_to_spool("stopping")
        await self._commits.drain()
        await _cancel(self._announcing)
        if self.buffer is not None:
            await self.buffer.stop()

    def set_dedup_windows(self, windows_s: Mapping[str | None, float]) -> None:
        """Replace the seconds for which keys of individual sources are remembered."""
        self._recent.windows_s = windows_s

    @property
    def cached_keys(self) -> int:
        """The number of keys in memory."""
        return len(self._recent)

    def clear_dedup_cache(self) -> None:
        """Clear the dedup cache, because the store may have returned to an older state."""
        self._recent.clear()

    async def accept(self, event: NewEvent) -> Receipt:
        """Return a receipt once the event, or the original that it duplicates, is durable.

        Raises:
            Overloaded: too many events are waiting; this one was not stored.
            RoutesChanged: the routes changed too often meanwhile.
            TooManyDeliveries: under the current routes, the event has more deliveries than allowed.
            SpoolUnavailable: neither the database nor the buffer accepts it.
            BufferUnavailable: neither the database nor a package's buffer accepts it, and the spool may not be used.
            DatabaseUnavailable: PostgreSQL is unavailable and there is no spool. The event may have been stored;
                sending it again is safe.
            ValueRejected: PostgreSQL can never store this event.
        """
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self.put(event, receipt)
        return await receipt

    def put(self, event: NewEvent, waiter: ReceiptWaiter) -> None:
        """Accept an event for *waiter*, which gets its receipt or one of the errors of `accept`."""
        if self._elsewhere is not None and (other := self._elsewhere(event)) is not None:
            other.put(event, waiter)
            return
        # What a message repeats is decided with its idempotency key, by the database.
        first_id = self._recent.find(event) if event.publication is None else None
        if first_id is not None:
            meters.count("boathook_dedup_cache_hits_total")
            waiter.set_result(Duplicate(first_id))
            return
        if self._is_stopping or not self._has_room():
            meters.count("boathook_ingest_overloaded_total")
            waiter.set_exception(Overloaded("too many events are waiting to be committed"))
            return
        if self.mode is Mode.DIRECT or (self.mode is Mode.CATCHING_UP and not self._is_disk_stuck()):
            self._commits.put(event, waiter)
        else:
            self._put_into_spool(event, waiter)

    def _is_disk_stuck(self) -> bool:
        return self.buffer is not None and self.buffer.is_stuck

    def _has_room(self) -> bool:
        """Return whether one more event may wait; a full queue is moved into the spool."""
        return not self._commits.is_full or self._switch_to_spool(f"{self._queue_size} events wait for it")

    async def _commit(self, events: list[NewEvent], within_s: float | None) -> list[Receipt]:
        began = time.perf_counter()
        failpoint("accept.before_commit")
        receipts = await self._store.append(events, within_s)
        failpoint("accept.after_commit")
        meters.observe("boathook_commit_seconds", time.perf_counter() - began)
        meters.observe("boathook_commit_batch_events", len(events))
        for event, receipt in zip(events, receipts, strict=True):
            self.note_stored(event, receipt)
        return receipts

    def _on_failed_commit(self, entries: Sequence[PendingEvent], error: DatabaseError) -> None:
        if not self._switch_to_spool(str(error), entries):
            fail(entries, error)

    def note_stored(self, event: NewEvent, receipt: Receipt) -> None:
        """Remember the key of a committed event, count it, and announce its deliveries."""
        if not receipt.conflict and event.publication is None:  # a duplicate of a conflict must be counted as one again
            self._recent.remember(event, receipt.event_id)
        if not isinstance(receipt, Accepted):
            return
        if receipt.is_new and not receipt.has_deliveries and event.source is not None:
            meters.count("boathook_events_unhandled_total", source=event.source)
            _LOG.debug("event_unhandled", source=event.source, type=event.type)
        if self._announcer is not None and receipt.has_deliveries:
            deliver_at = None if event.publication is None else event.publication.deliver_at
            self._announcer.notify(due_recipients([delivery.recipient for delivery in event.deliveries], deliver_at))

    def _switch_to_spool(self, reason: str, failed: Sequence[PendingEvent] = ()) -> bool:
        """Move events into the buffer: *failed* first, then all waiting ones. Return False without a buffer."""
        self.clear_dedup_cache()
        if self.buffer is None:
            return False
        if self.mode is Mode.DIRECT:
            _LOG.warning("spooling_started", reason=reason, note="taking events into the buffer")
            self._report_unavailable(1)
            self.mode = Mode.SPOOLING
        elif self.mode is Mode.CATCHING_UP:
            self.mode = Mode.DRAINING
        for event, waiter, _ in (*failed, *self._commits.pause()):
            self._put_into_spool(event, waiter)
        self._has_spooled.set()
        return True

    def _put_into_spool(self, event: NewEvent, waiter: ReceiptWaiter) -> None:
        assert self.buffer is not None
        try:
            written = self.buffer.append(encode(event))
        except ValueError as error:
            _reject(waiter, ValueRejected(f"the event contains text that cannot be stored: {error}"))
        except Exception as error:  # noqa: BLE001 - the events behind it must not wait forever
            _reject(waiter, error)
        else:
            written.add_done_callback(partial(self._on_spooled, event, waiter))

    def _on_spooled(self, event: NewEvent, waiter: ReceiptWaiter, written: "asyncio.Future[bool]") -> None:
        error = written.exception()
        # Two copies may have been written to the spool concurrently; the first one will be stored. What only brokers
        # hold may be lost with them, and must be accepted if it is sent again.
        is_held = error is None and written.result() and event.publication is None
        first = self._recent.find(event) if is_held else None
        if is_held and first is None:
            self._recent.remember(event, event.id)
        if waiter.done():
            return
        if error is not None:
            waiter.set_exception(error)
        elif first is None:
            waiter.set_result(Accepted(event.id, is_spooled=True))
        else:
            waiter.set_result(Duplicate(first))

    async def _run_drain(self, buffer: Buffer) -> None:
        """Drain the buffer into the database, and check periodically for spools that dead processes left."""
        tries = 0
        while True:
            if self.is_direct:
                tries = 0
                if not await self._has_something_to_drain(buffer):
                    continue
            # Jitter, so that many gateways do not retry at the same time.
            await asyncio.sleep(DRAIN_BACKOFF_S[min(tries, len(DRAIN_BACKOFF_S) - 1)] * random.uniform(0.5, 1))
            try:
                await self._drain_buffer(buffer, _DRAIN_TIMEOUT_S[min(tries, len(_DRAIN_TIMEOUT_S) - 1)])
            except Exception as error:  # noqa: BLE001 - the spool must be drained again after any error
                if isinstance(error, DatabaseError | IngestError):
                    _LOG.debug("database_still_unavailable", error=str(error))
                else:
                    _LOG.error("drain_failed", exc_info=error)
                tries = 1 if self.mode is not Mode.SPOOLING else tries + 1  # an attempt that stored something succeeded
                self._return_to_spooling()

    async def _has_something_to_drain(self, buffer: Buffer) -> bool:
        """Wait for events in the buffer, with a timeout; then look for events that dead processes left."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._has_spooled.wait(), ADOPT_INTERVAL_S)
        if self.is_direct:
            is_waiting = await buffer.adopt()
            self._look_for_losses(buffer)
            if not is_waiting:
                return False
            self._switch_to_spool("a process that has died left events in its spool")
        return True

    def _return_to_spooling(self) -> None:
        if self.mode is Mode.CATCHING_UP:
            self._switch_to_spool("it failed again")
        if self.mode is not Mode.SPOOLING:  # otherwise all events accepted meanwhile are in the spool
            self.clear_dedup_cache()
            self._report_unavailable(1)
        self.mode = Mode.SPOOLING

    def _note_accepted(self) -> None:
        """Note that the database has accepted the oldest events of the buffer, so that it is not unavailable."""
        if self.mode is Mode.SPOOLING:
            self.mode = Mode.DRAINING
            self._report_unavailable(0)

    async def _drain_buffer(self, buffer: Buffer, timeout_s: float) -> None:
        """Drain segments, and wait for what others drain, until the buffer is empty; then return to direct mode."""
        began, total = time.monotonic(), 0
        # Appending nothing checks whether the database responds. Otherwise each attempt would read a segment in vain,
        # and writers to the spool would wait for that.
        await self._store.append((), timeout_s)
        while True:
            remaining = await buffer.left()
            self._look_for_losses(buffer)
            if remaining <= self._batch and self.mode is Mode.DRAINING:
                self.mode = Mode.CATCHING_UP
                await buffer.flush()
            segment = await buffer.oldest()
            if segment is not None:
                total += await self._drain_segment(buffer, segment, timeout_s)
                del segment  # frees its memory before the next one is read
            elif buffer.is_empty:
                break
            elif await buffer.wait_for_others(self._commit_timeout(timeout_s)):
                self._look_for_losses(buffer)
                self._note_accepted()
        self._has_spooled.clear()
        self.mode = Mode.DIRECT
        self._report_unavailable(0)
        _LOG.info("spool_drained", events=total, seconds=round(time.monotonic() - began, 3))
        self._commits.resume()

    def _commit_timeout(self, timeout_s: float) -> float:
        """Return the timeout of a batch: events in memory wait for the last ones, and for no longer than any others."""
        return self._within_s if self.mode is Mode.CATCHING_UP else timeout_s

    async def _drain_segment(self, buffer: Buffer, segment: Segment, timeout_s: float) -> int:
        """Store the events of one segment in order and mark it as finished; return how many it held.

        After an error it goes on behind the last record that was stored or set aside.
        """
        path, last = self._drained or (segment.path, 0)
        records = segment.contents.records
        remaining = records if path != segment.path else [record for record in records if record.sequence > last]
        for start in range(0, len(remaining), self._batch):
            async for result in self._store.bring(
                remaining[start : start + self._batch], self._commit_timeout(timeout_s)
            ):
                match result:
                    case Stored(_, event, receipt):
                        self.note_stored(event, receipt)
                        count_drained("boathook_spool_drained_total", event, receipt)
                    case Refused(record, reason):
                        await _set_aside(buffer, segment, record, reason)
                    case _ as never:
                        assert_never(never)
                self._drained = segment.path, result.record.sequence
            self._note_accepted()
        await buffer.finish(segment)
        self._look_for_losses(buffer)
        return len(records)

    def _look_for_losses(self, buffer: Buffer) -> None:
        """Forget what was accepted if events of the buffer are missing, as their senders may send them again."""
        if buffer.losses != self._losses:
            self._losses = buffer.losses
            self.clear_dedup_cache()
            for callback in self.on_loss:
                callback()


def _report_database(value: int) -> None:
    meters.gauge("boathook_database_unavailable", value)


async def _set_aside(buffer: Buffer, segment: Segment, record: Record, reason: str) -> None:
    _LOG.error("spooled_event_refused", sequence=record.sequence, error=reason, note="kept; see boathook spool status")
    meters.count("boathook_spool_drained_total", outcome="refused")
    await buffer.refuse(segment, record.sequence, record.payload)


async def _cancel(task: "asyncio.Task[None] | None") -> None:
    """Cancel a task, repeatedly, because `asyncio.wait_for` of Python 3.11 may swallow a cancellation."""
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_RETRY_S)


def _reject(waiter: ReceiptWaiter, error: Exception) -> None:
    if not waiter.done():
        waiter.set_exception(error)


def _body_size(event: NewEvent) -> int:
    return len(event.body)
