"""Publishes a gateway's events to its queue, in groups, and tracks which of them are not in PostgreSQL yet.

Events that arrive while a message is unconfirmed form the next one, and one message is under way at a time, so the
queue has them in accept order. Without a confirmation in time the fate of a message is unknown. Its events, and those
behind it, are handed back at once, to be stored elsewhere under the same ids: what the broker has too is a duplicate
without effect. The series ends there, so that a later gap in a series always means loss.
"""

import asyncio
import contextlib
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from boathook.domain.model import BufferMark
from boathook.observability import meters
from boathook.observability.log import get_logger
from boathook_rabbitmq.access import BrokerAccess
from boathook_rabbitmq.batch import MAX_BATCH_BYTES, MAX_RECORD_BYTES, MAX_RECORDS, MAX_SERIES, UNNUMBERED, encode_batch
from boathook_rabbitmq.connection import BrokerConnection, first_connection
from boathook_rabbitmq.errors import BrokerMisconfigured, BrokerUnavailable
from boathook_rabbitmq.queues import ALL_QUEUES, arguments_of

PendingRecord = tuple[bytes, "asyncio.Future[bool]"]
"""A record, and the future that completes once it is durable."""
HandBack = Callable[[Sequence[PendingRecord], BrokerUnavailable], None]

_RECONNECT_S: Final = (0.1, 0.5, 1.0, 2.0)
MAX_PENDING: Final = 8192
_OPEN_TIMEOUT_S: Final = 2.0
REPEAT_S: Final = 1.0
"""How long a series must stand still until its checkpoint is repeated, if its queue is empty."""
_REPEAT_BEHIND_OTHERS_S: Final = 10.0
"""The same while messages wait in its queue, which may be those of others."""
_LOG = get_logger("buffer")


class _Series(msgspec.Struct):
    """The position in one series: what is confirmed by the broker, and what is stored in PostgreSQL."""

    confirmed: int = 0
    stored: int = 0
    lost: int = 0
    checkpoint: int = 0
    """The value of `confirmed` that a checkpoint was published for."""
    moved_at: float = 0.0
    """When `stored` changed, or a checkpoint was published, by the monotonic clock."""

    @property
    def waiting(self) -> int:
        return max(0, self.confirmed - self.stored)


class BrokerBuffer:
    """Makes events durable on a majority of brokers.

    Args:
        access: the brokers.
        queue: the queue of this gateway process.
        confirm_s: seconds a message may take to be confirmed.
        hand_back: called with the events of a message that was not confirmed, and with all behind it, in order.
    """

    def __init__(self, access: BrokerAccess, *, queue: str, confirm_s: float, hand_back: HandBack) -> None:
        self._access = access
        self._queue = queue
        self._confirm_s = confirm_s
        self._hand_back = hand_back
        self._pending: list[PendingRecord] = []
        self._has_work = asyncio.Event()
        self._is_idle = asyncio.Event()
        self._is_idle.set()
        self._has_tried = asyncio.Event()
        self._connection: BrokerConnection | None = None
        self._failed_host = ""
        self._is_declared = False
        self._series: dict[int, _Series] = {}
        """Series that are not completely in PostgreSQL yet, as far as known."""
        self._left_behind: dict[int, _Series] = {}
        """Series that are not waited for any more; their checkpoints are repeated until PostgreSQL has them."""
        self.losses = 0
        """How often events were found to be missing, or were left behind."""
        self._current = UNNUMBERED
        self._task: asyncio.Task[None] | None = None
        self._closing: set[asyncio.Task[None]] = set()
        self.problem = "no broker has been reached yet"
        """Why events cannot be published now; empty while they can."""
        self._unavailable_since = time.monotonic()

    @property
    def is_unavailable(self) -> bool:
        """Whether events cannot be published now."""
        return bool(self.problem)

    @property
    def unavailable_s(self) -> float:
        """Seconds for which events could not be published; 0 while they can."""
        return time.monotonic() - self._unavailable_since if self.is_unavailable else 0.0

    @property
    def waiting(self) -> int:
        """Number of events that are not in PostgreSQL yet, as far as known, and that are waited for."""
        return len(self._pending) + sum(series.waiting for series in self._series.values())

    @property
    def is_empty(self) -> bool:
        """Whether PostgreSQL has everything that was published, and nothing is about to be."""
        return self._is_idle.is_set() and not self.waiting

    async def start(self) -> None:
        """Begin to connect, and wait shortly for the first attempt."""
        meters.count("boathook_buffer_failed_total", 0)
        meters.gauge("boathook_buffer_unavailable", 1)
        self._task = asyncio.create_task(self._run(), name="buffer:publish")
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._has_tried.wait(), _OPEN_TIMEOUT_S)

    def append(self, payload: bytes, durable: "asyncio.Future[bool]") -> None:
        """Publish *payload* behind everything appended before; *durable* completes once it is durable.

        What is not published is handed back, at once or later.
        """
        if self.is_unavailable:
            self._hand_back([(payload, durable)], BrokerUnavailable(self.problem))
        elif len(payload) > MAX_RECORD_BYTES:
            size = f"of {len(payload):,} bytes is larger than a broker accepts ({MAX_RECORD_BYTES:,})"
            self._hand_back([(payload, durable)], BrokerUnavailable(f"an event {size}"))
        elif len(self._pending) >= MAX_PENDING:
            self._hand_back([(payload, durable)], BrokerUnavailable("too many events are waiting to be published"))
        else:
            self._pending.append((payload, durable))
            self._is_idle.clear()
            self._has_work.set()

    async def flush(self) -> None:
        """Wait until everything appended so far is confirmed or handed back."""
        await self._is_idle.wait()

    def series_to_read(self) -> list[int]:
        """Return the series whose position in PostgreSQL is of interest."""
        return [*self._series, *self._left_behind]

    def note_stored(self, marks: Mapping[int, BufferMark]) -> bool:
        """Take how far PostgreSQL has each series; return whether it has more than before."""
        has_more = False
        for number, mark in marks.items():
            series = self._series.get(number) or self._left_behind.get(number)
            if series is None:
                continue
            self.losses += mark.lost > series.lost
            series.lost = mark.lost
            if mark.sequence > series.stored:
                series.stored, series.moved_at, has_more = mark.sequence, time.monotonic(), True
        self._left_behind = {number: series for number, series in self._left_behind.items() if series.waiting}
        for number in [number for number, series in self._series.items() if not series.waiting and series.confirmed]:
            # The next event begins another series, so that positions of finished ones may be forgotten.
            if number != self._current or self._is_idle.is_set():
                del self._series[number]
                self._current = UNNUMBERED if number == self._current else self._current
        self._measure()
        return has_more

    def leave_behind(self) -> int:
        """Stop waiting for what the broker has; return the number of those events. They are stored once it is back."""
        waiting = sum(series.waiting for series in self._series.values())
        self._left_behind |= {number: series for number, series in self._series.items() if series.waiting}
        self.losses += waiting > 0
        self._series.clear()
        self._current = UNNUMBERED
        self._measure()
        return waiting

    async def publish_checkpoints(self) -> None:
        """Mark the end of what is confirmed, so that the drain notices if the last messages are missing.

        A checkpoint may be lost with these messages. So it is repeated while the series does not advance: soon if its
        queue is empty, as the series would then have arrived, else seldom.

        Raises:
            BrokerUnavailable: one of them is not confirmed.
        """
        for number, series in [*self._series.items(), *self._left_behind.items()]:
            last = series.confirmed
            stands_s = time.monotonic() - series.moved_at
            is_lost = (
                series.waiting
                and stands_s >= REPEAT_S
                and (stands_s >= _REPEAT_BEHIND_OTHERS_S or await self._queue_is_empty())
            )
            if series.checkpoint != last or is_lost:
                await self._publish(encode_batch(number, last + 1, ()))
                series.checkpoint, series.moved_at = last, time.monotonic()

    async def _queue_is_empty(self) -> bool:
        connection = self._connection
        return connection is not None and not await connection.find(self._queue)

    async def probe(self) -> None:
        """Publish a message without events. Raises BrokerUnavailable if it is not confirmed."""
        await self._publish(encode_batch(UNNUMBERED, 1, ()))

    async def stop(self) -> None:
        """Publish what was appended, and close the connection; gateways drain what the brokers have."""
        await self.flush()
        with contextlib.suppress(BrokerUnavailable):
            await self.publish_checkpoints()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self._connection is not None:
            await self._connection.close()
        self._set_unavailable("it is closed")
        await asyncio.gather(*self._closing, return_exceptions=True)

    async def _run(self) -> None:
        tries = 0
        while True:
            try:
                self._connection = await self._connect()
                tries = 0
                await self._publish_groups(self._connection)
            except BrokerUnavailable as error:
                self._drop_connection(error)
            except Exception as error:  # noqa: BLE001 - events must not wait for ever, whatever happens
                _LOG.error("buffer_failed", exc_info=error)
                self._drop_connection(BrokerUnavailable(str(error) or type(error).__name__))
            self._has_tried.set()
            # Jitter, so that many gateways do not reconnect at the same time.
            await asyncio.sleep(_RECONNECT_S[min(tries, len(_RECONNECT_S) - 1)] * random.uniform(0.5, 1))
            tries += 1

    async def _connect(self) -> BrokerConnection:
        """Return a connection through which the queue has confirmed a message."""
        connection = await first_connection(self._access, purpose="buffer", avoid=self._failed_host)
        connection.on_close = self._has_work.set
        try:
            if self._is_declared:
                await connection.find(self._queue)
            else:
                for queue in ALL_QUEUES:
                    await connection.declare(queue, arguments_of(queue, connection.server_version))
                self._is_declared = True
            # Only a confirmation shows that the queue has a leader and a majority, and that the broker is not blocked.
            await connection.publish(self._queue, encode_batch(UNNUMBERED, 1, ()), self._confirm_s)
        except BaseException as error:
            if isinstance(error, BrokerMisconfigured):  # a broker that has lost everything has no queues either
                self._is_declared = False
            self._failed_host = connection.host
            self._close_later(connection)
            raise
        if self.is_unavailable:
            _LOG.info("broker_connected", host=connection.host, queue=self._queue)
        self.problem = ""
        self._has_tried.set()
        meters.gauge("boathook_buffer_unavailable", 0)
        return connection

    async def _publish_groups(self, connection: BrokerConnection) -> None:
        while True:
            if connection.is_closed:
                raise BrokerUnavailable(f"{connection.host} has closed the connection")
            if self._pending:
                await self._publish_group(connection, self._next_group())
                continue
            self._is_idle.set()
            self._has_work.clear()
            if not connection.is_closed:
                await self._has_work.wait()

    def _next_group(self) -> int:
        """Return how many of the pending events go into the next message."""
        size = 0
        for number, (payload, _) in enumerate(self._pending[:MAX_RECORDS]):
            size += len(payload)
            if size > MAX_BATCH_BYTES and number:
                return number
        return min(len(self._pending), MAX_RECORDS)

    async def _publish_group(self, connection: BrokerConnection, count: int) -> None:
        """Publish the first *count* pending events; they stay pending until they are confirmed."""
        group = self._pending[:count]
        if self._current == UNNUMBERED:
            self._current = secrets.randbelow(MAX_SERIES) + 1
            self._series[self._current] = _Series()
        series = self._series[self._current]
        message = encode_batch(self._current, series.confirmed + 1, [payload for payload, _ in group])
        began = time.perf_counter()
        await connection.publish(self._queue, message, self._confirm_s)
        series.confirmed += count
        del self._pending[:count]
        meters.observe("boathook_buffer_confirm_seconds", time.perf_counter() - began)
        meters.count("boathook_buffer_appended_total", count)
        self._measure()
        for _, durable in group:
            if not durable.done():
                durable.set_result(False)

    async def _publish(self, message: bytes) -> None:
        connection = self._connection
        if connection is None or self.is_unavailable:
            raise BrokerUnavailable(self.problem)
        try:
            await connection.publish(self._queue, message, self._confirm_s)
        except BrokerUnavailable:
            await connection.close()
            raise

    def _drop_connection(self, error: BrokerUnavailable) -> None:
        """Close the connection and hand back everything that is not confirmed."""
        if self._connection is not None:
            self._failed_host = self._connection.host
            self._close_later(self._connection)
            self._connection = None
        if str(error) != self.problem:
            _LOG.warning("broker_unavailable", error=str(error), queue=self._queue)
        self._set_unavailable(str(error) or type(error).__name__)
        # An unconfirmed message may arrive or not, so no other may follow it in the same series.
        self._current = UNNUMBERED
        self._series = {number: series for number, series in self._series.items() if series.confirmed}
        handed, self._pending = self._pending, []
        if handed:
            meters.count("boathook_buffer_failed_total", len(handed))
            self._hand_back(handed, error)
        self._is_idle.set()
        self._measure()

    def _set_unavailable(self, problem: str) -> None:
        if not self.is_unavailable:
            self._unavailable_since = time.monotonic()
        self.problem = problem
        meters.gauge("boathook_buffer_unavailable", 1)

    def _close_later(self, connection: BrokerConnection) -> None:
        """Close a connection without waiting for it, which takes its deadline if the host was cut off."""
        connection.on_close = None
        task = asyncio.create_task(connection.close(), name="buffer:close")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def _measure(self) -> None:
        meters.gauge("boathook_buffer_events", self.waiting)
