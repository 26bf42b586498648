"""The interface of buffers: they hold a gateway's events while PostgreSQL does not accept them."""

import asyncio
from typing import Protocol

from boathook.spool.segment_store import Segment


class Buffer(Protocol):
    """Makes events durable while PostgreSQL does not accept them; the intake drains it. `Spool` is the simplest one."""

    @property
    def is_empty(self) -> bool:
        """Whether PostgreSQL has everything that was appended, as far as known, and nothing is being written."""
        ...

    @property
    def is_stuck(self) -> bool:
        """Whether an append would neither succeed nor fail in time."""
        ...

    @property
    def is_rejecting(self) -> bool:
        """Whether events appended now are probably rejected."""
        ...

    @property
    def rejection_reason(self) -> str:
        """Why events appended now are rejected, in one sentence."""
        ...

    @property
    def warning(self) -> str:
        """The problem while events are still accepted, in one sentence; empty if there is none."""
        ...

    @property
    def losses(self) -> int:
        """How often events of this process were found to be missing, or were left behind."""
        ...

    @property
    def waiting_events(self) -> int:
        """Number of waiting events, as far as known."""
        ...

    def append(self, payload: bytes) -> "asyncio.Future[bool]":
        """Append a record in call order; the future completes once it is durable, or raises IngestError.

        Its result is whether this host holds the record. What only brokers hold may be lost with them.
        """
        ...

    async def start(self) -> bool:
        """Begin to accept records; return whether events are waiting already."""
        ...

    async def adopt(self) -> bool:
        """Look for events of processes that have died since; return whether events are waiting."""
        ...

    async def flush(self) -> None:
        """Wait until everything appended so far is durable or rejected."""
        ...

    async def left(self) -> int:
        """Return how many events PostgreSQL lacks. Raises DatabaseError if that cannot be determined."""
        ...

    async def oldest(self) -> Segment | None:
        """Return the segment to store next; None if there is none, or another gateway must store its events first."""
        ...

    async def finish(self, segment: Segment) -> None:
        """Set aside a segment whose events are all in PostgreSQL or refused."""
        ...

    async def refuse(self, segment: Segment, sequence: int, payload: bytes) -> None:
        """Keep one event of a segment that PostgreSQL refuses."""
        ...

    async def wait_for_others(self, within_s: float) -> bool:
        """Wait until other gateways have stored more of this one's events; return False if there are none of these.

        Raises:
            DatabaseError: they stored none within *within_s* seconds.
        """
        ...

    async def check_writable(self) -> None:
        """Test that records can be made durable. Raises IngestError."""
        ...

    async def stop(self) -> None:
        """Make durable what was appended, and stop."""
        ...
