"""Writes spooled events and messages to the database: each once, under the current routes, isolating those that fail.

An event's id is created when it is accepted, so storing it again changes nothing. This makes it safe to repeat a commit
whose outcome is unknown, an interrupted drain, or a segment imported into a restored database.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Final, Protocol

import msgspec

from boathook.db.group_commit import Waiter
from boathook.domain.errors import (
    DatabaseError,
    IngestError,
    NotPassedOn,
    RoutesChanged,
    ServedElsewhere,
    TooManyDeliveries,
    ValueRejected,
)
from boathook.domain.model import Accepted, Duplicate, NewEvent, Receipt
from boathook.ingest.spool_records import UnreadableRecord, decode
from boathook.observability import meters
from boathook.observability.failpoints import failpoint
from boathook.spool.segment import Record

Reroute = Callable[[Sequence[NewEvent]], Awaitable[list[NewEvent]]]

_MAX_REROUTES: Final = 5
_MAX_MOVES: Final = 3
PASS_ON_S: Final = 10.0
"""How long another installation may take, or its spool."""


ReceiptWaiter = Waiter[Receipt]
"""Waits for the receipt of one event, or the reason why it is not stored; see `EventAcceptor.accept`."""


class EventSink(Protocol):
    """Makes events durable without a task for each."""

    def put(self, event: NewEvent, waiter: ReceiptWaiter) -> None:
        """Accept an event for *waiter*, which gets its receipt or the reason why there is none."""
        ...


class EventAcceptor(EventSink, Protocol):
    """Makes events durable; `boathook.ingest.intake.Intake` is the real one."""

    unavailable: str
    """Why a request is answered 503 if the sink cannot store its event, for the log and the metrics."""

    async def accept(self, event: NewEvent) -> Receipt:
        """Store the event; return once it, or the original that it duplicates, is durable."""
        ...


Elsewhere = Callable[[NewEvent], EventAcceptor | None]
"""Returns the intake for the home of an event, or None if it is stored here."""


class Store(Protocol):
    """The part of the event store that the writer uses; `boathook.db.events.EventStore` implements it."""

    async def append(self, batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        """Store *batch* within *within_s* or not at all; return one receipt for each event, in order."""
        ...


class MessageStore(Store, Protocol):
    """Stores published messages; `boathook.service.sending.message_store.MessageStore` implements it."""

    async def report_duplicates(self, messages: Sequence[tuple[NewEvent, Duplicate]]) -> None:
        """Report messages that were answered 2xx and are not stored, because earlier ones have their ids or keys."""
        ...


class Stored(msgspec.Struct, frozen=True):
    """A spooled event that is committed now, or was committed before."""

    record: Record
    event: NewEvent
    receipt: Receipt


class Refused(msgspec.Struct, frozen=True):
    """A spooled event that PostgreSQL can never store, or that this version cannot decode."""

    record: Record
    reason: str


class EventWriter:
    """Stores events under the current routes.

    Args:
        store: stores the events.
        reroute: returns events with their deliveries under the current routes; None if routes never change.
        messages: stores published messages, and routes them; None refuses them.
        elsewhere: finds events that are stored elsewhere; None if all events are stored here.
    """

    def __init__(
        self,
        store: Store,
        reroute: Reroute | None = None,
        messages: MessageStore | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        self._store = store
        self._reroute = reroute
        self._messages = messages
        self._elsewhere = elsewhere

    async def append(self, events: Sequence[NewEvent], within_s: float | None = None) -> list[Receipt]:
        """Store all received events in one transaction, then all messages in another; return the receipts in order.

        What is not stored under outdated routes is routed again. Two transactions for a batch, however the two kinds
        alternate; so a message and a received event that follows it may be stored in the other order.

        Raises:
            RoutesChanged: the routes changed too often meanwhile.
            TooManyDeliveries: under the current routes, an event has more deliveries than allowed.
            DatabaseError: as the store raises it.
        """
        messages = [event for event in events if _is_message(event)]
        if not messages:
            return await self._append_received(events, within_s)
        received = [event for event in events if not _is_message(event)]
        received_receipts = iter(await self._append_received(received, within_s) if received else ())
        message_receipts = iter(await self._append_messages(messages, within_s))
        return [next(message_receipts if _is_message(event) else received_receipts) for event in events]

    async def _append_messages(self, messages: Sequence[NewEvent], within_s: float | None) -> list[Receipt]:
        if self._messages is None:
            raise ValueRejected("published messages are not stored here")
        reason = ""
        for _ in range(_MAX_MOVES):
            try:
                return await self._append_routed(self._messages, messages, within_s)
            except (
                ServedElsewhere
            ) as error:  # the store has noted it where it can, so that `elsewhere` finds its home now
                reason = str(error)
        raise NotPassedOn(reason)

    async def _append_received(self, events: Sequence[NewEvent], within_s: float | None) -> list[Receipt]:
        for _ in range(_MAX_REROUTES):
            try:
                return await self._append_routed(self._store, events, within_s)
            except RoutesChanged:
                if self._reroute is None:
                    raise
                events = await self._reroute(events)
        raise RoutesChanged("the routes kept changing while events were stored")

    async def _append_routed(self, store: Store, events: Sequence[NewEvent], within_s: float | None) -> list[Receipt]:
        """Store events in *store*, or in the homes that they have under the current routes."""
        if self._elsewhere is None or not events:
            return await store.append(events, within_s=within_s)
        # All are decided by the same assignments, before anything is awaited.
        others = [self._elsewhere(event) for event in events]
        own = [event for event, other in zip(events, others, strict=True) if other is None]
        own_receipts = iter(await store.append(own, within_s=within_s) if own else ())
        passing = [
            _pass_on(other, event, within_s) for event, other in zip(events, others, strict=True) if other is not None
        ]
        other_receipts = iter(await asyncio.gather(*passing))
        return [next(own_receipts) if other is None else next(other_receipts) for other in others]

    async def bring(self, records: Sequence[Record], within_s: float | None = None) -> AsyncIterator[Stored | Refused]:
        """Store the events of records in order, in one transaction if possible, and yield the result of each.

        Raises:
            RoutesChanged: the routes changed too often meanwhile.
            DatabaseError: as the store raises it; results yielded before are committed.
        """
        try:
            events = await self._routed([decode(record.payload) for record in records])
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
            pairs = list(zip(events, receipts, strict=True))
            duplicates = [(event, receipt) for event, receipt in pairs if isinstance(receipt, Duplicate)]
            repeated = [pair for pair in duplicates if _is_message(pair[0])]
            if self._messages is not None and repeated:
                await self._messages.report_duplicates(repeated)
            for record, (event, receipt) in zip(records, pairs, strict=True):
                yield Stored(record, event, receipt)

    async def _routed(self, events: list[NewEvent]) -> list[NewEvent]:
        received = [event for event in events if not _is_message(event)]
        if self._reroute is None or not received:
            return events
        routed = iter(await self._reroute(received))
        return [event if _is_message(event) else next(routed) for event in events]


def count_drained(metric: str, event: NewEvent, receipt: Receipt) -> None:
    """Count a spooled event that is stored, by outcome."""
    outcome = "accepted" if isinstance(receipt, Accepted) else "duplicate"
    if receipt.conflict:
        outcome = "conflict"
        if event.source is not None:
            meters.count("boathook_conflicts_total", source=event.source)
    meters.count(metric, outcome=outcome)


def _is_message(event: NewEvent) -> bool:
    return event.publication is not None


async def _pass_on(other: EventAcceptor, event: NewEvent, within_s: float | None) -> Receipt:
    """Put an event into the intake for its home. Raises NotPassedOn."""
    try:
        async with asyncio.timeout(within_s or PASS_ON_S):
            return await other.accept(event)
    except TimeoutError:
        raise NotPassedOn("its cell did not accept it in time", other.unavailable) from None
    except (IngestError, DatabaseError) as error:
        raise NotPassedOn(str(error), other.unavailable) from error
