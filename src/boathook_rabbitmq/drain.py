"""Moves events from the brokers' queues to PostgreSQL; every gateway runs it, for all gateways.

A queue has one active consumer, so its messages are stored in order, by one gateway at a time; when that one dies, the
broker gives what it did not acknowledge to the next. A message is acknowledged after the commit of its events. One that
is delivered again changes nothing, because events keep the ids that they got when they were accepted. Messages are
never rejected and never taken while PostgreSQL is unavailable.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Final, assert_never

from boathook.db.buffer_marks import Gap
from boathook.domain import ids
from boathook.domain.errors import DatabaseError, DatabaseUnavailable
from boathook.domain.model import NewEvent, Receipt
from boathook.ingest.event_writer import EventWriter, Refused, Stored, count_drained
from boathook.ingest.spool_records import UnreadableRecord, decode
from boathook.observability import meters
from boathook.observability.log import get_logger
from boathook.spool.segment import Record
from boathook_rabbitmq.access import BrokerAccess
from boathook_rabbitmq.batch import (
    MAX_RECORDS,
    UNNUMBERED,
    Batch,
    UnreadableBatch,
    contiguous_batches,
    decode_batch,
    encode_batch,
)
from boathook_rabbitmq.connection import BrokerConnection, Delivery, first_connection
from boathook_rabbitmq.errors import BrokerUnavailable
from boathook_rabbitmq.queues import BUFFER_QUEUES, REFUSED_QUEUE

AdvanceMark = Callable[[int, int, int, datetime | None], Awaitable[Gap]]
"""Records that a batch is stored: its series, first and last sequence, and when its last event was accepted."""

_PREFETCH: Final = 16
_CHECK_INTERVAL_S: Final = 1.0
_BACKOFF_S: Final = (0.05, 0.2, 0.5, 1.0, 2.0)
_TIMEOUT_S: Final = (2.0, 5.0, 10.0, 30.0)
"""Timeout of a commit, by attempt: short at first to detect a hanging database, longer for a slow one."""
_REFUSE_TIMEOUT_S: Final = 5.0
_LOG = get_logger("buffer")


class BufferDrain:
    """Stores what gateways have published.

    Args:
        access: the brokers.
        writer: stores events under the current routes.
        advance_mark: records what is stored.
        is_available: whether PostgreSQL answered the latest check.
        note_stored: called for each stored event.
        batch: maximum number of events in one commit.
    """

    def __init__(
        self,
        access: BrokerAccess,
        writer: EventWriter,
        advance_mark: AdvanceMark,
        *,
        is_available: Callable[[], bool],
        note_stored: Callable[[NewEvent, Receipt], None],
        batch: int = 128,
    ) -> None:
        self._access = access
        self._writer = writer
        self._advance_mark = advance_mark
        self._is_available = is_available
        self._note_stored = note_stored
        self._batch = batch
        self._failed_host = ""
        self._problem = ""
        self._tries = 0

    async def run(self) -> None:
        """Drain until cancelled; after an error, connect again."""
        meters.count("boathook_buffer_lost_total", 0)
        meters.count("boathook_buffer_damaged_total", 0)
        while True:
            # Jitter, so that many gateways do not retry at the same time.
            pause_s = _BACKOFF_S[min(self._tries, len(_BACKOFF_S) - 1)]
            await asyncio.sleep(pause_s * random.uniform(0.5, 1))
            self._tries += 1
            try:
                await self._drain()
            except (DatabaseError, BrokerUnavailable) as error:
                if str(error) != self._problem:
                    self._problem = str(error)
                    _LOG.info("buffer_drain_waits", reason=str(error))
            except Exception as error:  # noqa: BLE001 - the queues must be drained again after any error
                _LOG.error("buffer_drain_failed", exc_info=error)

    async def _drain(self) -> None:
        """Drain over one connection, until PostgreSQL or the broker fails."""
        timeout_s = _TIMEOUT_S[min(self._tries - 1, len(_TIMEOUT_S) - 1)]
        # Storing nothing checks whether PostgreSQL responds, so that no message is taken in vain.
        await self._writer.append((), timeout_s)
        connection = await first_connection(self._access, purpose="drain", avoid=self._failed_host)
        try:
            await connection.consume(BUFFER_QUEUES, _PREFETCH)
            while True:
                if not self._is_available():
                    raise DatabaseUnavailable("PostgreSQL does not answer")
                group = await self._next_group(connection)
                if group:
                    await self._store(connection, group, timeout_s)
                self._tries, self._problem = 0, ""
        except BrokerUnavailable:
            self._failed_host = connection.host
            raise
        finally:
            await connection.close()

    async def _next_group(self, connection: BrokerConnection) -> list[tuple[Delivery, Batch | None]]:
        """Return messages that are stored together: one, and those that follow it while they fit into a commit."""
        first = await connection.next(_CHECK_INTERVAL_S)
        if first is None:
            return []
        group = [(first, _read(first))]
        size = _size(group[0][1])
        while size < self._batch and (delivery := connection.next_ready()) is not None:
            group.append((delivery, _read(delivery)))
            size += _size(group[-1][1])
        return group

    async def _store(
        self, connection: BrokerConnection, group: Sequence[tuple[Delivery, Batch | None]], timeout_s: float
    ) -> None:
        """Commit the events of messages, record that they are stored, and acknowledge the messages, in this order."""
        records = [record for _, batch in group if batch is not None for record in _records(batch)]
        for start in range(0, len(records), self._batch):
            async for result in self._writer.bring(records[start : start + self._batch], timeout_s):
                match result:
                    case Stored(_, event, receipt):
                        self._note_stored(event, receipt)
                        count_drained("boathook_buffer_drained_total", event, receipt)
                    case Refused(record, reason):
                        await _keep_refused(connection, record, reason)
                    case _ as never:
                        assert_never(never)
        for delivery, batch in group:
            if batch is None or None in batch.payloads:
                await _keep_damaged(connection, delivery, batch)
        for first, last in contiguous_batches(batch for _, batch in group if batch is not None):
            await self._note_arrival(first, last)
        for delivery, _ in group:
            await connection.acknowledge(delivery)

    async def _note_arrival(self, first: Batch, last: Batch) -> None:
        """Advance the mark of a series over all batches from *first* to *last*, and report events missing before."""
        gap = await self._advance_mark(first.series, first.first, last.last, _last_event_at(last))
        if gap.lost:
            meters.count("boathook_buffer_lost_total", gap.lost)
            _LOG.error(
                "buffered_events_lost",
                lost=gap.lost,
                series=first.series,
                after=gap.after,
                before=_first_event_at(first),
                note="brokers had confirmed them; ask the senders to resend the events of this period",
            )


def _read(delivery: Delivery) -> Batch | None:
    try:
        return decode_batch(delivery.body)
    except UnreadableBatch as error:
        _LOG.error("batch_unreadable", queue=delivery.queue, bytes=len(delivery.body), error=str(error))
        return None


def _size(batch: Batch | None) -> int:
    return MAX_RECORDS if batch is None else len(batch.payloads)


def _records(batch: Batch) -> list[Record]:
    payloads = enumerate(batch.payloads, batch.first)
    return [Record(sequence, payload) for sequence, payload in payloads if payload is not None]


def _event_time(record: Record | None) -> datetime | None:
    """Return when an event was accepted, by its id."""
    if record is None:
        return None
    try:
        return ids.created_at(decode(record.payload).id)
    except UnreadableRecord:
        return None


def _first_event_at(batch: Batch) -> datetime | None:
    return _event_time(next(iter(_records(batch)), None))


def _last_event_at(batch: Batch) -> datetime | None:
    return _event_time(next(reversed(_records(batch)), None))


async def _keep_refused(connection: BrokerConnection, record: Record, reason: str) -> None:
    """Keep one event that PostgreSQL refuses. Raises BrokerUnavailable."""
    message = encode_batch(UNNUMBERED, record.sequence, [record.payload])
    await connection.publish(REFUSED_QUEUE, message, _REFUSE_TIMEOUT_S)
    meters.count("boathook_buffer_drained_total", outcome="refused")
    _LOG.error("buffered_event_refused", sequence=record.sequence, error=reason, note="see `boathook buffer status`")


async def _keep_damaged(connection: BrokerConnection, delivery: Delivery, batch: Batch | None) -> None:
    """Keep a damaged message as it is. Raises BrokerUnavailable."""
    await connection.publish(REFUSED_QUEUE, delivery.body, _REFUSE_TIMEOUT_S)
    meters.count("boathook_buffer_damaged_total")
    damaged = None if batch is None else batch.payloads.count(None)
    _LOG.error("batch_damaged", queue=delivery.queue, events=damaged, note="kept in the queue of refused batches")
