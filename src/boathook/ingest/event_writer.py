"""Brings events from a spool to the journal: routed as they are owed by now, each once, and one that fails alone.

An event's id was made when it was accepted, so offering it again changes nothing: a commit whose answer was lost, a
drain that was cut short and a segment that is offered to a restored database are all brought in the same way.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from boathook.domain.errors import RoutesChanged, TooManyDeliveries, ValueRejected
from boathook.domain.model import NewEvent, Receipt
from boathook.ingest.spool_records import UnreadableRecord, decode
from boathook.observability.failpoints import failpoint
from boathook.spool.segment import Record

Reroute = Callable[[Sequence[NewEvent]], Awaitable[list[NewEvent]]]

_MAX_REROUTES: Final = 5


class Store(Protocol):
    """What takes events; `boathook.db.events.EventStore` is the real one."""

    async def append(self, batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        """Store *batch* and return one receipt for each event, in order; in time, or not at all."""
        ...


@dataclass(frozen=True, slots=True)
class Stored:
    """An event of the spool is committed, or was there before."""

    event: NewEvent
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Refused:
    """An event of the spool that PostgreSQL can never take, or that is none this boathook can read."""

    record: Record
    reason: str


class EventWriter:
    """Stores events under the routes as they are.

    Args:
        store: where they go.
        route: gives events the deliveries that the routes as they are owe them; None where no route ever changes.
    """

    def __init__(self, store: Store, route: Reroute | None = None) -> None:
        self._store = store
        self._route = route

    async def append(self, events: Sequence[NewEvent], within_s: float | None = None) -> list[Receipt]:
        """Store events, routed anew for as long as their routes are outdated.

        Raises:
            RoutesChanged: the routes changed again and again.
            TooManyDeliveries: the routes as they are owe an event more than it can have.
            DatabaseError: as the store raises it.
        """
        for _ in range(_MAX_REROUTES):
            try:
                return await self._store.append(events, within_s=within_s)
            except RoutesChanged:
                if self._route is None:
                    raise
                events = await self._route(events)
        raise RoutesChanged("the routes changed again and again while events were stored")

    async def bring(self, records: Sequence[Record], within_s: float | None = None) -> AsyncIterator[Stored | Refused]:
        """Store the events of records in their order, all at once if that can be, and yield what came of each.

        Raises:
            RoutesChanged: the routes changed again and again.
            DatabaseError: as the store raises it; those yielded before are committed.
        """
        try:
            events = [decode(record.payload) for record in records]
            if self._route is not None:
                events = await self._route(events)
            failpoint("drain.before_commit")
            receipts = await self.append(events, within_s)
            failpoint("drain.after_commit")
        except (ValueRejected, TooManyDeliveries, UnreadableRecord) as error:
            if len(records) == 1:
                yield Refused(records[0], str(error))
                return
            middle = len(records) // 2
            for half in (records[:middle], records[middle:]):
                async for result in self.bring(half, within_s):
                    yield result
        else:
            for event, receipt in zip(events, receipts, strict=True):
                yield Stored(event, receipt)
