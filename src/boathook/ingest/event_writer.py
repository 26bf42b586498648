"""Writes spooled events to the database: each once, under the current routes, isolating events that fail.

An event's id is created when it is accepted, so storing it again changes nothing. This makes it safe to repeat a commit
whose outcome is unknown, an interrupted drain, or a segment imported into a restored database.
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
    """The part of the event store that the writer uses; `boathook.db.events.EventStore` implements it."""

    async def append(self, batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        """Store *batch* within *within_s* or not at all; return one receipt for each event, in order."""
        ...


@dataclass(frozen=True, slots=True)
class Stored:
    """A spooled event that is committed now, or was committed before."""

    event: NewEvent
    receipt: Receipt


@dataclass(frozen=True, slots=True)
class Refused:
    """A spooled event that PostgreSQL can never store, or that this version cannot decode."""

    record: Record
    reason: str


class EventWriter:
    """Stores events under the current routes.

    Args:
        store: stores the events.
        route: returns events with their deliveries under the current routes; None if routes never change.
    """

    def __init__(self, store: Store, route: Reroute | None = None) -> None:
        self._store = store
        self._route = route

    async def append(self, events: Sequence[NewEvent], within_s: float | None = None) -> list[Receipt]:
        """Store events, routing them again while their routes are outdated.

        Raises:
            RoutesChanged: the routes changed too often meanwhile.
            TooManyDeliveries: under the current routes, an event has more deliveries than it can.
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
        """Store the events of records in order, in one transaction if possible, and yield the result of each.

        Raises:
            RoutesChanged: the routes changed too often meanwhile.
            DatabaseError: as the store raises it; results yielded before are committed.
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
