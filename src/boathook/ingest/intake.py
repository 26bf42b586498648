"""Takes events in: into PostgreSQL while it answers in time, and into the spool while it does not.

Requests that arrive while a commit is under way form the next one. There is no timer: a lane commits whatever waits, up
to a batch; what arrives meanwhile waits for the lane to be free again. A lone request therefore travels alone and at
once, and a crowd shares one commit. Each request awaits its own receipt, a batch with a row that PostgreSQL refuses is
split until that row fails alone, and the queue in front is bounded. Keys accepted lately are answered from memory, so
that a flood of duplicates reaches no disk.

Where there is a spool, the intake is in one of four modes::

    DIRECT       -> SPOOLING as soon as the journal fails, or lets somebody wait for longer than `within_s`
    SPOOLING     -> DRAINING when the journal takes the oldest event of the spool
    DRAINING     newer events go on into the spool, behind the older ones
                 -> CATCHING_UP when little is left, -> SPOOLING when the journal fails again
    CATCHING_UP  newcomers wait in memory -> DIRECT when nothing is left

So events of one process reach the journal in the order in which they were accepted, whatever happens to it.
"""

import asyncio
import contextlib
import random
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from functools import partial
from itertools import chain
from typing import Final, Protocol, assert_never

from boathook.db.due_notifier import DueNotifier
from boathook.domain.errors import DatabaseError, Overloaded, SpoolUnavailable, TooManyDeliveries, ValueRejected
from boathook.domain.model import Accepted, Duplicate, NewEvent, Receipt
from boathook.ingest.dedup_cache import DedupCache
from boathook.ingest.event_writer import EventWriter, Refused, Reroute, Store, Stored
from boathook.ingest.spool_records import encode
from boathook.observability import meters
from boathook.observability.failpoints import failpoint
from boathook.observability.log import get_logger
from boathook.spool.segment import Record
from boathook.spool.segment_store import Segment
from boathook.spool.spool import Spool


class ReceiptWaiter(Protocol):
    """Waits for the receipt of one event, as an `asyncio.Future` does; it must not raise."""

    def done(self) -> bool:
        """Return whether it waits no longer."""
        ...

    def set_result(self, receipt: Receipt, /) -> None:
        """Take the receipt: the event, or its first copy, is durable."""
        ...

    def set_exception(self, error: BaseException, /) -> None:
        """Take the reason why the event is not stored; see `Intake.accept`."""
        ...


PendingEvent = tuple[NewEvent, ReceiptWaiter, float]
"""An event, its waiter, and since when it waits."""
_DRAIN_BACKOFF_S: Final = (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)
"""How long to wait before the spool is drained, try after try."""
_DRAIN_TIMEOUT_S: Final = (2.0, 5.0, 10.0, 30.0)
"""How long a batch from the spool may take, try after try: who hangs is noticed, who is slow gets the time."""
_MIN_COMMIT_SHARE: Final = 0.25
"""Of the time that an event may wait: what a commit gets, however long its oldest event has waited for it to begin."""
_ADOPT_INTERVAL_S: Final = 5.0
_CANCEL_RETRY_S: Final = 0.1
_LOG = get_logger("ingest")


class Mode(StrEnum):
    """Where events go."""

    DIRECT = "direct"
    SPOOLING = "spooling"
    DRAINING = "draining"
    CATCHING_UP = "catching_up"


class Intake:
    """Group commit in front of a store, with a spool behind it.

    Args:
        store: where the events go.
        announce: called, at most every 5 ms, after events with deliveries were committed.
        route: gives events the deliveries that the routes as they are owe them; None where no route ever changes.
        spool: where events go while the store is away; None: nowhere, and those who bring them are told.
        within_s: how long an event may wait for the store before it goes into the spool.
        lanes: commits under way at once.
        batch: most events in one commit.
        queue: most events waiting.
        remembered: how many recently accepted keys are answered from memory, at least.
    """

    def __init__(
        self,
        store: Store,
        *,
        announce: Callable[[], Awaitable[None]] | None = None,
        route: Reroute | None = None,
        spool: Spool | None = None,
        within_s: float = 1.0,
        lanes: int = 1,
        batch: int = 128,
        queue: int = 4096,
        dedup_cache_size: int = 65_536,
    ) -> None:
        self._store = EventWriter(store, route)
        self._announcer = None if announce is None else DueNotifier(announce)
        self.spool = spool
        self._within_s = within_s
        self._lanes = lanes
        self._batch = batch
        self._queue_size = queue
        self._waiting: deque[PendingEvent] = deque()
        self._recent = DedupCache(dedup_cache_size)
        self._has_work = asyncio.Event()
        self._has_spooled = asyncio.Event()
        self._is_stopping = False
        self._tasks: list[asyncio.Task[None]] = []
        self._drain_task: asyncio.Task[None] | None = None
        self._announcing: asyncio.Task[None] | None = None
        self.mode = Mode.DIRECT
        """Where events go at this moment."""

    @property
    def waiting(self) -> int:
        """How many events wait for a commit to begin."""
        return len(self._waiting)

    @property
    def accepts_without_database(self) -> bool:
        """Whether events would be taken although the journal were away."""
        return self.spool is not None and not self.spool.is_rejecting

    @property
    def is_rejecting(self) -> bool:
        """Whether events are refused, though the journal may be back: they have to go into a spool that takes none."""
        is_spooling = self.mode is Mode.SPOOLING or self.mode is Mode.DRAINING
        return is_spooling and self.spool is not None and self.spool.is_rejecting

    async def start(self, *, is_away: bool = False) -> None:
        """Open the lanes, and begin with what waits in the spool.

        Args:
            is_away: begin with the spool, as the store is known not to answer.
        """
        meters.gauge("boathook_database_unavailable", 0)
        if self.spool is not None and (await self.spool.open() or is_away):
            self._switch_to_spool("events wait in the spool" if not is_away else "it has not been reached yet")
        self._tasks = [asyncio.create_task(self._run_committer(), name=f"intake:{n}") for n in range(self._lanes)]
        if self.spool is not None:
            self._drain_task = asyncio.create_task(self._run_drain(self.spool), name="intake:drain")
        if self._announcer is not None:
            self._announcing = asyncio.create_task(self._announcer.run(), name="intake:announce")

    async def drain(self) -> None:
        """Make durable what waits, then close the lanes; what is in the spool stays there for the next process."""
        self._is_stopping = True
        await _cancel(self._drain_task)
        if self.mode is Mode.CATCHING_UP:
            self._switch_to_spool("stopping")
        self._has_work.set()
        await asyncio.gather(*self._tasks)
        await _cancel(self._announcing)
        if self.spool is not None:
            await self.spool.close()

    def clear_dedup_cache(self) -> None:
        """Answer no copy from memory of what was stored up to now: the store may have gone back to an older state."""
        self._recent.clear()

    async def accept(self, event: NewEvent) -> Receipt:
        """Return a receipt once the event, or its first copy, is durable.

        Raises:
            Overloaded: too many events wait already; this one was not looked at.
            RoutesChanged: the routes changed again and again.
            TooManyDeliveries: the routes as they are owe it more than an event can have.
            SpoolUnavailable: neither the journal nor the spool takes it.
            DatabaseUnavailable: PostgreSQL is away, and there is no spool. Whether the event was stored is unknown;
                sending it again is safe.
            ValueRejected: PostgreSQL can never take this event.
        """
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self.put(event, receipt)
        return await receipt

    def put(self, event: NewEvent, waiter: ReceiptWaiter) -> None:
        """Take an event in for *waiter*, which gets its receipt or one of the errors of `accept`."""
        known = self._recent.find(event)
        if known is not None:
            meters.count("boathook_dedup_cache_hits_total")
            waiter.set_result(Duplicate(known))
            return
        if self._is_stopping or not self._has_room():
            meters.count("boathook_ingest_overloaded_total")
            waiter.set_exception(Overloaded("too many events are waiting to be committed"))
            return
        entry = (event, waiter, time.monotonic())
        if self.mode is Mode.DIRECT or (self.mode is Mode.CATCHING_UP and not self._is_disk_stuck()):
            self._waiting.append(entry)
            self._has_work.set()
        else:
            self._put_into_spool([entry])

    def _is_disk_stuck(self) -> bool:
        return self.spool is not None and self.spool.is_stuck

    def _has_room(self) -> bool:
        """Return whether one more event may wait; a queue that is full is emptied into the spool."""
        if len(self._waiting) < self._queue_size:
            return True
        return self._switch_to_spool(f"{self._queue_size} events wait for it")

    async def _run_committer(self) -> None:
        while True:
            if not self._waiting or self.mode is not Mode.DIRECT:
                if self._is_stopping:
                    return
                self._has_work.clear()
                await self._has_work.wait()
                continue
            if self.spool is not None and time.monotonic() - self._waiting[0][2] > self._within_s:
                self._switch_to_spool(f"events have waited for it for more than {self._within_s:g} s")
                continue
            take = min(len(self._waiting), self._batch)
            await self._commit([self._waiting.popleft() for _ in range(take)])

    async def _commit(self, entries: list[PendingEvent]) -> None:
        """Commit entries, in halves where one of them is refused; what the journal does not take stays in order."""
        parts = deque([entries])
        while parts:
            part = parts.popleft()
            try:
                await self._commit_whole(part)
            except (ValueRejected, TooManyDeliveries) as error:
                if len(part) == 1:
                    _fail(part, error)
                else:
                    middle = len(part) // 2
                    parts.extendleft((part[middle:], part[:middle]))
            except DatabaseError as error:
                left = [*part, *chain.from_iterable(parts)]
                if not self._switch_to_spool(str(error), left):
                    _fail(left, error)
                return
            except Exception as error:  # noqa: BLE001 - a lane must outlive any surprise, and its callers must hear of it
                _fail(part, error)

    async def _commit_whole(self, entries: list[PendingEvent]) -> None:
        began = time.perf_counter()
        failpoint("accept.before_commit")
        events = [entry[0] for entry in entries]
        receipts = await self._store.append(events, self._time_left(entries[0][2]))
        failpoint("accept.after_commit")
        meters.observe("boathook_commit_seconds", time.perf_counter() - began)
        meters.observe("boathook_commit_batch_events", len(entries))
        for (event, waiter, _), receipt in zip(entries, receipts, strict=True):
            self._on_stored(event, receipt)
            if not waiter.done():
                waiter.set_result(receipt)

    def _time_left(self, since: float) -> float | None:
        """Return how long a commit may take for one who waits *since* then; None: as long as it takes."""
        if self.spool is None:
            return None
        waited_s = time.monotonic() - since
        return max(self._within_s - waited_s, self._within_s * _MIN_COMMIT_SHARE)

    def _on_stored(self, event: NewEvent, receipt: Receipt) -> None:
        if not receipt.conflict:  # a copy of it is to be counted as a conflict again
            self._recent.remember(event, receipt.event_id)
        if not isinstance(receipt, Accepted):
            return
        if receipt.is_new and not receipt.has_deliveries:
            meters.count("boathook_events_unhandled_total", source=event.source)
        if self._announcer is not None and receipt.has_deliveries:
            self._announcer.notify()

    def _switch_to_spool(self, why: str, failed: Sequence[PendingEvent] = ()) -> bool:
        """Go on with the spool: those a commit has *failed* for first, then those who wait. False: there is none."""
        self.clear_dedup_cache()
        if self.spool is None:
            return False
        if self.mode is Mode.DIRECT:
            _LOG.warning("journal_away", reason=why, note="taking events into the spool")
            meters.gauge("boathook_database_unavailable", 1)
            self.mode = Mode.SPOOLING
        elif self.mode is Mode.CATCHING_UP:
            self.mode = Mode.DRAINING
        left, self._waiting = self._waiting, deque()
        self._put_into_spool([*failed, *left])
        self._has_spooled.set()
        return True

    def _put_into_spool(self, entries: Sequence[PendingEvent]) -> None:
        assert self.spool is not None
        for entry in entries:
            event, waiter, _ = entry
            try:
                written = self.spool.append(encode(event))
            except ValueError as error:
                _fail([entry], ValueRejected(f"the event holds text that cannot be stored: {error}"))
            except Exception as error:  # noqa: BLE001 - those behind it must not wait for ever
                _fail([entry], error)
            else:
                written.add_done_callback(partial(self._on_spooled, event, waiter))

    def _on_spooled(self, event: NewEvent, waiter: ReceiptWaiter, written: "asyncio.Future[None]") -> None:
        error = written.exception()
        # Two copies may have been on their way into the spool at once; the one in front is the one that will be stored.
        first = self._recent.find(event) if error is None else None
        if error is None and first is None:
            self._recent.remember(event, event.id)
        if waiter.done():
            return
        if error is not None:
            waiter.set_exception(error)
        elif first is None:
            waiter.set_result(Accepted(event.id, is_spooled=True))
        else:
            waiter.set_result(Duplicate(first))

    async def _run_drain(self, spool: Spool) -> None:
        """Bring to the journal what the spool holds, and look now and then for what others have left."""
        tries = 0
        while True:
            if self._is_direct():
                tries = 0
                if not await self._has_something_to_drain(spool):
                    continue
            # At random, so that many gateways do not all knock at once.
            await asyncio.sleep(_DRAIN_BACKOFF_S[min(tries, len(_DRAIN_BACKOFF_S) - 1)] * random.uniform(0.5, 1))
            try:
                await self._drain_spool(spool, _DRAIN_TIMEOUT_S[min(tries, len(_DRAIN_TIMEOUT_S) - 1)])
            except (DatabaseError, SpoolUnavailable) as error:
                _LOG.debug("journal_still_away", error=str(error))
                self._return_to_spooling()
                tries += 1
            except Exception as error:  # noqa: BLE001 - whatever it is, what is in the spool must be tried again
                _LOG.error("drain_failed", exc_info=error)
                self._return_to_spooling()
                tries += 1

    async def _has_something_to_drain(self, spool: Spool) -> bool:
        """Wait for a while for events in the spool, then look for those that processes have left that are dead."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._has_spooled.wait(), _ADOPT_INTERVAL_S)
        if self._is_direct():
            if not await spool.adopt():
                return False
            self._switch_to_spool("a process that has died left events in its spool")
        return True

    def _is_direct(self) -> bool:
        return self.mode is Mode.DIRECT

    def _return_to_spooling(self) -> None:
        if self.mode is Mode.CATCHING_UP:
            self._switch_to_spool("it failed again")
        if self.mode is not Mode.SPOOLING:  # else all that was taken meanwhile is in the spool
            self.clear_dedup_cache()
        self.mode = Mode.SPOOLING

    async def _drain_spool(self, spool: Spool, patience_s: float) -> None:
        """Drain segment after segment until nothing is left, then let newcomers go straight to the journal."""
        began, total = time.monotonic(), 0
        # Offering nothing asks whether the journal answers; else each try would read a segment in vain, and those who
        # append would wait for that.
        await self._store.append((), patience_s)
        while True:
            if spool.depth.records <= self._batch and self.mode is Mode.DRAINING:
                self.mode = Mode.CATCHING_UP
                await spool.flush()
            segment = await spool.oldest()
            if segment is not None:
                total += await self._bring(spool, segment, patience_s)
                del segment  # so that it is not in memory beside the next one
            elif spool.is_empty:
                break
        self._has_spooled.clear()
        self.mode = Mode.DIRECT
        meters.gauge("boathook_database_unavailable", 0)
        _LOG.info("spool_drained", events=total, seconds=round(time.monotonic() - began, 3))
        self._has_work.set()

    async def _bring(self, spool: Spool, segment: Segment, patience_s: float) -> int:
        """Store the events of one segment, in order, and put it aside; return how many it held."""
        records = segment.contents.records
        for start in range(0, len(records), self._batch):
            # Those who wait in memory for the last ones to be drained are not to wait for longer than any others.
            within_s = self._within_s if self.mode is Mode.CATCHING_UP else patience_s
            async for result in self._store.bring(records[start : start + self._batch], within_s):
                match result:
                    case Stored(event, receipt):
                        self._on_stored(event, receipt)
                        _count_drained(event, receipt)
                    case Refused(record, reason):
                        await _set_aside(spool, segment, record, reason)
                    case _ as never:
                        assert_never(never)
            if self.mode is Mode.SPOOLING:
                self.mode = Mode.DRAINING
        await spool.finish(segment)
        if segment.is_damaged:  # its senders may be asked to send again what was lost
            self.clear_dedup_cache()
        return len(records)


async def _set_aside(spool: Spool, segment: Segment, record: Record, reason: str) -> None:
    _LOG.error("spooled_event_refused", sequence=record.sequence, error=reason, note="kept; see boathook spool status")
    meters.count("boathook_spool_drained_total", outcome="refused")
    await spool.refuse(segment, record.sequence, record.payload)


def _count_drained(event: NewEvent, receipt: Receipt) -> None:
    outcome = "accepted" if isinstance(receipt, Accepted) else "duplicate"
    if receipt.conflict:
        outcome = "conflict"
        meters.count("boathook_conflicts_total", source=event.source)
    meters.count("boathook_spool_drained_total", outcome=outcome)


async def _cancel(task: "asyncio.Task[None] | None") -> None:
    """End a task, and ask again where `asyncio.wait_for` of Python 3.11 has swallowed that on its way."""
    while task is not None and not task.done():
        task.cancel()
        await asyncio.wait([task], timeout=_CANCEL_RETRY_S)


def _fail(entries: Sequence[PendingEvent], error: Exception) -> None:
    for _, waiter, _ in entries:
        if not waiter.done():
            waiter.set_exception(error)
