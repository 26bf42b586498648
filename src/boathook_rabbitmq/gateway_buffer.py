"""The buffer of a gateway with RabbitMQ: brokers first, then the spool, or nothing."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from boathook.domain.errors import DatabaseError, DatabaseUnavailable
from boathook.domain.model import BufferMark
from boathook.observability import meters
from boathook.observability.log import get_logger
from boathook.spool.segment_store import Segment
from boathook.spool.spool import Spool
from boathook_rabbitmq.access import BrokerAccess
from boathook_rabbitmq.buffer import BrokerBuffer, PendingRecord
from boathook_rabbitmq.errors import BrokerUnavailable

ReadMarks = Callable[[Sequence[int]], Awaitable[Mapping[int, BufferMark]]]
"""Returns how far PostgreSQL has each series. Raises DatabaseError."""

_POLL_S: Final = 0.02
LEAVE_AFTER_S: Final = 5.0
"""How long PostgreSQL may accept events while brokers that hold older ones are unavailable, until newer ones go first:
after an election, a cut host or a restart, a cluster answers within this time."""
_LOG = get_logger("buffer")


class BrokerFirstBuffer:
    """Publishes to brokers, and to the spool what they do not confirm; without a spool such events are rejected.

    Events of an outage take one path: once something is in the spool, newer events follow it there until it is empty.
    Gateways drain the brokers' queues together, so this waits until PostgreSQL has this gateway's events, and lets the
    intake drain the spool after that. If the brokers are unavailable when PostgreSQL is back, newer events go first.

    Args:
        access: the brokers.
        queue: the queue of this gateway process.
        confirm_s: seconds a message may take to be confirmed.
        spool: takes what brokers do not confirm; None: such events are rejected.
        read_marks: reads from PostgreSQL what has arrived there.
    """

    def __init__(
        self,
        access: BrokerAccess,
        *,
        queue: str,
        confirm_s: float,
        spool: Spool | None,
        read_marks: ReadMarks,
    ) -> None:
        self.broker = BrokerBuffer(access, queue=queue, confirm_s=confirm_s, hand_back=self._hand_back)
        self.spool = spool
        self._read_marks = read_marks

    @property
    def is_empty(self) -> bool:
        """Whether PostgreSQL has everything of this process, or what it lacks was left behind."""
        return self.broker.is_empty and (self.spool is None or self.spool.is_empty)

    @property
    def is_stuck(self) -> bool:
        """Whether the spool's disk does not respond while it is needed."""
        return self.broker.is_unavailable and self.spool is not None and self.spool.is_stuck

    @property
    def is_rejecting(self) -> bool:
        """Whether neither brokers nor the spool accept events."""
        return self.broker.is_unavailable and (self.spool is None or self.spool.is_rejecting)

    @property
    def rejection_reason(self) -> str:
        """Why neither brokers nor the spool accept events, in one sentence."""
        then = "" if self.spool is None else f", and {self.spool.rejection_reason}"
        return f"no broker accepts events: {self.broker.problem}{then}"

    @property
    def warning(self) -> str:
        """Why no broker accepts events, in one sentence; empty if one does."""
        return f"no broker accepts events: {self.broker.problem}" if self.broker.is_unavailable else ""

    @property
    def waiting_events(self) -> int:
        """Number of this process's events with brokers and in the spool."""
        return self.broker.waiting + (0 if self.spool is None else self.spool.depth.records)

    @property
    def losses(self) -> int:
        """How often brokers had lost events, these were left behind, or the spool could not read some."""
        return self.broker.losses + (0 if self.spool is None else self.spool.losses)

    def append(self, payload: bytes) -> "asyncio.Future[bool]":
        """Publish a record; see `Buffer.append`. The future raises BrokerUnavailable or SpoolUnavailable."""
        durable: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        if self.spool is not None and not self.spool.is_empty:
            self._write(self.spool, payload, durable, can_publish=True)
        else:
            self.broker.append(payload, durable)
        return durable

    async def start(self) -> bool:
        """Open spool and publisher; return whether the spool has events."""
        is_waiting = self.spool is not None and await self.spool.start()
        await self.broker.start()
        return is_waiting

    async def adopt(self) -> bool:
        """Adopt spools of dead processes; any gateway drains what they published."""
        with contextlib.suppress(DatabaseError):  # what was left behind may wait longer
            await self._look()
        return self.spool is not None and await self.spool.adopt()

    async def flush(self) -> None:
        """Wait until everything appended so far is durable or rejected."""
        await self.broker.flush()
        if self.spool is not None:
            await self.spool.flush()

    async def left(self) -> int:
        """Return how many of this process's events PostgreSQL lacks and that are waited for."""
        await self._look()
        return self.waiting_events

    async def oldest(self) -> Segment | None:
        """Return the oldest segment of the spool, once PostgreSQL has what was published before it."""
        if self.spool is None or not self.broker.is_empty:
            return None
        return await self.spool.oldest()

    async def finish(self, segment: Segment) -> None:
        """Set aside a segment of the spool."""
        assert self.spool is not None
        await self.spool.finish(segment)

    async def refuse(self, segment: Segment, sequence: int, payload: bytes) -> None:
        """Keep one event of a segment that PostgreSQL refuses."""
        assert self.spool is not None
        await self.spool.refuse(segment, sequence, payload)

    async def wait_for_others(self, within_s: float) -> bool:
        """Wait until gateways have drained more of what this one published."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within_s
        while not self.broker.is_empty:
            if await self._look():
                return True
            if loop.time() >= deadline:
                waiting = self.broker.waiting
                raise DatabaseUnavailable(f"{waiting} events were not moved from the brokers within {within_s:g} s")
            await asyncio.sleep(_POLL_S)
        return False

    async def check_writable(self) -> None:
        """Test that a queue confirms a message, and that the spool is writable. Raises IngestError."""
        await self.broker.probe()
        if self.spool is not None:
            await self.spool.check_writable()

    async def stop(self) -> None:
        """Publish or write what was appended, and stop."""
        await self.broker.stop()
        if self.spool is not None:
            await self.spool.stop()

    async def _look(self) -> bool:
        """Find out what has arrived in PostgreSQL; return whether it is more than before. Raises DatabaseError."""
        series = self.broker.series_to_read()
        if not series:
            return False
        await self._publish_checkpoints()
        has_more = self.broker.note_stored(await self._read_marks(series))
        if self.broker.unavailable_s >= LEAVE_AFTER_S and self.broker.waiting:
            _LOG.warning(
                "buffer_left_behind",
                events=self.broker.leave_behind(),
                note="brokers are unavailable and PostgreSQL is not, so newer events are stored before these",
            )
            return True
        return has_more

    async def _publish_checkpoints(self) -> None:
        if not self.broker.is_unavailable:
            try:
                await self.broker.publish_checkpoints()
            except BrokerUnavailable as error:
                _LOG.debug("checkpoint_not_confirmed", error=str(error))

    def _hand_back(self, records: Sequence[PendingRecord], error: BrokerUnavailable) -> None:
        """Write records to the spool, or reject them."""
        for payload, durable in records:
            if self.spool is not None:
                self._write(self.spool, payload, durable, can_publish=False)
            elif not durable.done():
                meters.count("boathook_buffer_rejected_total")
                durable.set_exception(error)

    def _write(self, spool: Spool, payload: bytes, durable: "asyncio.Future[bool]", *, can_publish: bool) -> None:
        """Append a record to the spool. If that fails and *can_publish*, publish it, though older ones are on disk."""

        def complete(written: "asyncio.Future[bool]") -> None:
            error = written.exception()
            if durable.done():
                return
            if error is None:
                durable.set_result(written.result())
            elif can_publish and not self.broker.is_unavailable:
                self.broker.append(payload, durable)
            else:
                durable.set_exception(error)

        spool.append(payload).add_done_callback(complete)
