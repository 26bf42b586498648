"""Takes events in: requests that arrive while a commit is under way form the next one.

There is no timer. A lane commits whatever waits, up to a batch; what arrives meanwhile waits for the lane
to be free again. A lone request therefore travels alone and at once, and a crowd shares one commit. Each
request awaits its own receipt, a failing batch is split until the bad row fails alone, and the queue in
front is bounded. Keys committed lately are answered from memory, so that a flood of duplicates does not
reach PostgreSQL.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol
from uuid import UUID

from boathook.domain.errors import JournalError, JournalUnavailable, Overloaded, RegistryChanged
from boathook.domain.model import Accepted, Duplicate, NewEvent, Receipt
from boathook.journal.announcer import Announcer
from boathook.telemetry import emit
from boathook.telemetry.crashpoints import crash_point


class Store(Protocol):
    """What the intake needs of the journal; `boathook.journal.events.EventStore` is the real one."""

    async def append(self, batch: Sequence[NewEvent]) -> list[Receipt]:
        """Store *batch* and return one receipt for each event, in order."""
        ...


class Intake:
    """Group commit in front of a store.

    Args:
        store: where the events go.
        announce: called, at most every 5 ms, after events with deliveries were committed.
        lanes: commits under way at once.
        batch: most events in one commit.
        queue: most events waiting.
        remembered: how many recently committed keys are answered from memory, at least.
    """

    def __init__(
        self,
        store: Store,
        *,
        announce: Callable[[], Awaitable[None]] | None = None,
        lanes: int = 1,
        batch: int = 128,
        queue: int = 4096,
        remembered: int = 65_536,
    ) -> None:
        self._store = store
        self._announcer = None if announce is None else Announcer(announce)
        self._lanes = lanes
        self._batch = batch
        self._queue_size = queue
        self._waiting: deque[tuple[NewEvent, asyncio.Future[Receipt]]] = deque()
        self._recent = _RecentKeys(remembered)
        self._has_work = asyncio.Event()
        self._is_draining = False
        self._tasks: list[asyncio.Task[None]] = []
        self._announcing: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """How many events wait for a commit to begin."""
        return len(self._waiting)

    def start(self) -> None:
        """Open the lanes; call it inside the running event loop."""
        self._tasks = [asyncio.create_task(self._run_lane(), name=f"intake:{n}") for n in range(self._lanes)]
        if self._announcer is not None:
            self._announcing = asyncio.create_task(self._announcer.run(), name="intake:announce")

    async def drain(self) -> None:
        """Commit what waits, then close the lanes."""
        self._is_draining = True
        self._has_work.set()
        await asyncio.gather(*self._tasks)
        if self._announcing is not None:
            self._announcing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._announcing

    async def accept(self, event: NewEvent) -> Receipt:
        """Return a receipt once the event, or its first copy, is committed.

        Raises:
            Overloaded: too many events wait already; this one was not looked at.
            RegistryChanged: the event was routed by outdated routes; route it again and retry.
            JournalUnavailable: PostgreSQL is away. Whether the event was stored is unknown; sending it again is safe.
            JournalError: PostgreSQL refuses this event.
        """
        known = self._recent.find(event)
        if known is not None:
            emit.count("boathook_memory_hits_total")
            return Duplicate(known)
        if len(self._waiting) >= self._queue_size or self._is_draining:
            emit.count("boathook_intake_overloaded_total")
            raise Overloaded("too many events are waiting to be committed")
        receipt: asyncio.Future[Receipt] = asyncio.get_running_loop().create_future()
        self._waiting.append((event, receipt))
        self._has_work.set()
        return await receipt

    async def _run_lane(self) -> None:
        while True:
            if not self._waiting:
                if self._is_draining:
                    return
                self._has_work.clear()
                await self._has_work.wait()
                continue
            take = min(len(self._waiting), self._batch)
            await self._commit([self._waiting.popleft() for _ in range(take)])

    async def _commit(self, entries: list[tuple[NewEvent, asyncio.Future[Receipt]]]) -> None:
        began = time.perf_counter()
        try:
            crash_point("accept.before_commit")
            receipts = await self._store.append([event for event, _ in entries])
            crash_point("accept.after_commit")
        except (JournalUnavailable, RegistryChanged) as error:
            _fail(entries, error)
        except JournalError as error:
            if len(entries) == 1:
                _fail(entries, error)
                return
            middle = len(entries) // 2
            await self._commit(entries[:middle])
            await self._commit(entries[middle:])
        except Exception as error:  # noqa: BLE001 - a lane must outlive any surprise, and its callers must hear of it
            _fail(entries, error)
        else:
            emit.observe("boathook_commit_seconds", time.perf_counter() - began)
            emit.observe("boathook_commit_batch_rows", len(entries))
            self._hand_out(entries, receipts)

    def _hand_out(
        self, entries: Sequence[tuple[NewEvent, asyncio.Future[Receipt]]], receipts: Sequence[Receipt]
    ) -> None:
        for (event, waiter), receipt in zip(entries, receipts, strict=True):
            if not receipt.conflict:  # a copy of it is to be counted as a conflict again
                self._recent.remember(event, receipt.event_id)
            if self._announcer is not None and event.deliveries and isinstance(receipt, Accepted):
                self._announcer.ring()
            if not waiter.done():
                waiter.set_result(receipt)


def _fail(entries: Sequence[tuple[NewEvent, asyncio.Future[Receipt]]], error: Exception) -> None:
    for _, waiter in entries:
        if not waiter.done():
            waiter.set_exception(error)


class _RecentKeys:
    """The keys committed last: two generations, the older dropped when the younger is full.

    Keys and values are plain bytes, which the garbage collector need not walk through.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._young: dict[bytes, bytes] = {}
        self._old: dict[bytes, bytes] = {}

    def find(self, event: NewEvent) -> UUID | None:
        """Return the event that came first, if *event* is an exact copy of it."""
        key = event.key_hash.bytes
        seen = self._young.get(key) or self._old.get(key)
        return UUID(bytes=seen[:16]) if seen is not None and seen[16:] == event.body_sha256 else None

    def remember(self, event: NewEvent, first: UUID) -> None:
        if len(self._young) >= self._size:
            self._old, self._young = self._young, {}
        self._young[event.key_hash.bytes] = first.bytes + event.body_sha256
