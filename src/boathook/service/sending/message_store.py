"""Stores messages that were accepted without PostgreSQL, with what could not be decided then.

Recipients are chosen by the current routes. The eventId and the idempotency key are judged like those of any message: a
message that repeats an earlier one is not stored, and is reported to its organization, because its publisher was
answered 202. A message keeps the id that it got when it was accepted, so storing it again changes nothing.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, cast
from uuid import UUID

import msgspec

from boathook.db.connection import retry_on_conflict, translate_errors
from boathook.db.database import Connection, Database, replicate_reads
from boathook.db.events import find_stored, first_of_each_key
from boathook.db.message_group import GroupRolledBack, MessageTarget, NewMessageRow, insert_group
from boathook.db.messages import record_conflict
from boathook.db.route_registry import read_routing
from boathook.domain import ids
from boathook.domain.errors import (
    ApplicationDeleted,
    DatabaseError,
    DatabaseUnavailable,
    RoutesChanged,
    ServedElsewhere,
    ValueRejected,
)
from boathook.domain.model import Accepted, Duplicate, NewEvent, Origin, ProofStrength, Publication, Receipt
from boathook.handlers.operational import publish_operational_event
from boathook.handlers.outbox import CompiledRoutes, Draft, Outbox, require_here
from boathook.ingest.spool_records import UNROUTED
from boathook.observability import meters
from boathook.observability.log import get_logger

_MAX_ROUNDS: Final = 5
MAX_DELIVERIES: Final = 4_096
"""Maximum number of deliveries in one commit; a single message may exceed it."""
_LOG = get_logger("buffer")


class _Message(msgspec.Struct, frozen=True):
    """A message to be stored."""

    event: NewEvent
    publication: Publication

    @property
    def key(self) -> tuple[str, str]:
        """Identifies its application among cached routes."""
        return self.publication.organization, ids.show(ids.APPLICATION, self.publication.application_id)


class MessageStore:
    """Stores messages; see `boathook.ingest.event_writer.MessageStore`.

    Args:
        database: returns the database; raises DatabaseUnavailable while there is none.
        outbox: routes and stores the messages.
        on_moved: called with the error about an application that belongs to another installation now.
    """

    def __init__(
        self,
        database: Callable[[], Database],
        outbox: Outbox,
        on_moved: Callable[[ServedElsewhere], None] = lambda _error: None,
    ) -> None:
        self._database = database
        self._on_moved = on_moved
        self._outbox = outbox

    async def append(self, batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        """Store *batch* and return a receipt for each message, in the same order; see `EventStore.append`.

        Raises:
            ApplicationDeleted: the application of a message was deleted; others may have been stored.
            ServedElsewhere: the application of a message has moved; others may have been stored.
            RoutesChanged: the routes changed too often meanwhile.
            TooManyDeliveries: a message has more deliveries than an event can have.
            DatabaseError: as for events.
        """
        receipts: list[Receipt | None] = [None] * len(batch)
        # Of those with the same key, the first must be stored before PostgreSQL sees the others.
        await self._settle(batch, receipts, first_of_each_key(batch, receipts), within_s)
        others = [position for position, receipt in enumerate(receipts) if receipt is None]
        if others:
            await self._settle(batch, receipts, others, within_s)
        return cast("list[Receipt]", receipts)

    async def _settle(
        self,
        batch: Sequence[NewEvent],
        receipts: list[Receipt | None],
        positions: Sequence[int],
        within_s: float | None,
    ) -> None:
        """Store the messages at *positions*, routing them again while their routes are outdated."""
        for _ in range(_MAX_ROUNDS):
            drafts = [_message(batch[position]) for position in positions]
            rows = await self._route(drafts, within_s)
            for start, end in _commits(rows):
                verdicts = await retry_on_conflict(partial(self._insert, rows[start:end], within_s))
                for place, verdict in enumerate(verdicts, start):
                    if verdict == "outdated":
                        self._outbox.forget_routes(*drafts[place].key)
                    elif verdict == "missing":
                        raise _deleted(drafts[place])
                    else:
                        receipts[positions[place]] = _receipt(rows[place], verdict)
            remaining = [position for position in positions if receipts[position] is None]
            if any(_is_known(receipts[position]) for position in positions):
                await self._replicate(within_s)
            if not remaining:
                return
            positions = remaining
        raise RoutesChanged("the routes kept changing while messages were stored")

    async def _replicate(self, within_s: float | None) -> None:
        """Wait until a synchronous standby has what was found: the transaction that stored it may have been cut off."""
        async with self._database().acquire(within_s=within_s) as connection:
            with translate_errors():
                await replicate_reads(connection)

    async def _route(self, drafts: Sequence[_Message], within_s: float | None) -> list[NewMessageRow]:
        routes = {draft.key: self._outbox.cached_routes(*draft.key) for draft in drafts}
        missing = {draft.key: draft for draft in drafts if routes[draft.key] is None}
        moved: list[ServedElsewhere] = []
        if missing:
            async with self._database().acquire(within_s=within_s) as connection:
                with translate_errors():
                    for key, message in missing.items():
                        try:
                            routes[key] = await self._read_routes(connection, message)
                        except ServedElsewhere as error:
                            moved.append(error)
        for draft in moved:
            self._on_moved(draft)
        if moved:
            raise moved[0]
        return [_row(draft, known_routes) for draft in drafts if (known_routes := routes[draft.key]) is not None]

    async def _read_routes(self, connection: Connection, message: _Message) -> CompiledRoutes:
        routing = await read_routing(connection, *message.key)
        if routing.application is None:
            raise _deleted(message)
        require_here(message.key[1], routing)
        return self._outbox.cache_routes(*message.key, routing)

    async def _insert(self, rows: Sequence[NewMessageRow], within_s: float | None) -> list[str | None]:
        """Return the verdict on each row; one that is stored and whose key has expired is a duplicate of itself."""
        database = self._database()
        try:
            return await insert_group(database, rows, within_s=within_s, lock_timeout=None)
        except GroupRolledBack as error:
            cause = error.__cause__
            if not isinstance(cause, ValueRejected):
                raise cause if isinstance(cause, DatabaseError) else error from cause
            async with database.acquire(within_s=within_s) as connection:
                with translate_errors():
                    stored_ids = await find_stored(connection, [row.event.id for row in rows])
            if not stored_ids:
                raise ValueRejected(str(error)) from error
        remaining = [row for row in rows if row.event.id not in stored_ids]
        others = iter(await self._insert(remaining, within_s) if remaining else ())
        return [f"duplicate {row.event.id}" if row.event.id in stored_ids else next(others) for row in rows]

    async def report_duplicates(self, messages: Sequence[tuple[NewEvent, Duplicate]]) -> None:
        """Report messages that were answered 202 and are not stored: to their organizations, in the log, as a metric.

        What differs from the first message is kept as a conflict. Reporting a message again changes nothing.

        Raises:
            DatabaseUnavailable: PostgreSQL is unavailable.
        """
        await self._store_reports(messages)
        for message, receipt in messages:
            meters.count("boathook_messages_late_duplicates_total", reason=_reason(receipt))
            _LOG.warning(
                "message_not_stored",
                message=ids.show(ids.MESSAGE, message.id),
                first=ids.show(ids.MESSAGE, receipt.event_id),
                application=message.application,
                reason=_reason(receipt),
                is_conflict=receipt.conflict,
                note="it was accepted while PostgreSQL was unavailable, and repeats an earlier one",
            )

    async def _store_reports(self, messages: Sequence[tuple[NewEvent, Duplicate]]) -> None:
        """Store reports in one transaction; if one fails, store the others by halves."""
        try:
            async with self._database().transaction() as connection:
                for message, receipt in messages:
                    if receipt.conflict:
                        await record_conflict(connection, message, receipt.event_id)
                    await self._publish_duplicate(connection, _message(message), receipt)
        except DatabaseUnavailable:
            raise
        except Exception as error:  # noqa: BLE001 - a report must not block the messages behind it
            if len(messages) == 1:
                _LOG.error("report_failed", type="message.duplicate", error=repr(error))
                return
            middle = len(messages) // 2
            await self._store_reports(messages[:middle])
            await self._store_reports(messages[middle:])

    async def _publish_duplicate(self, connection: Connection, message: _Message, receipt: Duplicate) -> None:
        event = message.event
        data: dict[str, Any] = {
            "appId": event.application,
            "msgId": ids.show(ids.MESSAGE, event.id),
            "originalMsgId": ids.show(ids.MESSAGE, receipt.event_id),
            "reason": _reason(receipt),
            "isConflict": receipt.conflict,
        }
        if event.dedup_key != ids.show(ids.EVENT, event.id):
            data["msgEventId"] = event.dedup_key
        await publish_operational_event(
            self._outbox,
            connection,
            organization=message.publication.organization,
            type="message.duplicate",
            data=data,
            id=f"duplicate.{ids.show(ids.MESSAGE, event.id)}",
        )


def _reason(receipt: Duplicate) -> str:
    return "idempotency_key" if receipt.by_idempotency_key else "event_id"


def _is_known(receipt: Receipt | None) -> bool:
    """Return whether a message, or its original, was stored before."""
    return receipt is not None and not (isinstance(receipt, Accepted) and receipt.is_new)


def _commits(rows: Sequence[NewMessageRow]) -> Iterator[tuple[int, int]]:
    """Yield where each commit begins and ends, so that one with many deliveries ends in time."""
    start = deliveries = 0
    for place, row in enumerate(rows):
        deliveries += len(row.deliveries)
        if place > start and deliveries > MAX_DELIVERIES:
            yield start, place
            start, deliveries = place, len(row.deliveries)
    yield start, len(rows)


def _message(event: NewEvent) -> _Message:
    assert event.publication is not None, "only published messages are stored here"
    return _Message(event, event.publication)


def _deleted(message: _Message) -> ApplicationDeleted:
    return ApplicationDeleted(f"application {message.event.application} was deleted before this message was stored")


def _receipt(row: NewMessageRow, verdict: str | None) -> Receipt:
    if verdict is None:
        return Accepted(row.event.id, has_deliveries=bool(row.deliveries))
    kind, _, first = verdict.partition(" ")
    if kind not in {"duplicate", "conflict", "repeated", "clash"}:
        raise DatabaseError(f"boathook.publish_messages returned {verdict!r}, unsupported by this version; upgrade")
    if UUID(first) == row.event.id:  # an earlier attempt to store it was committed
        return Accepted(row.event.id, is_new=False)
    by_key = kind in {"repeated", "clash"}
    return Duplicate(UUID(first), conflict=kind in {"conflict", "clash"}, by_idempotency_key=by_key)


def _row(message: _Message, routes: CompiledRoutes) -> NewMessageRow:
    event, channels, application = message.event, message.publication.channels, routes.routing.application
    assert application is not None, "routes of a name without an application are not cached"
    headers: dict[str, str] = msgspec.json.decode(event.headers)
    return NewMessageRow(
        target=MessageTarget(
            organization=message.publication.organization,
            application_id=application.id,
            uid=None,
            registry=routes.routing.registry,
            routes=application.version,
            token_sha256=None,
        ),
        event=event,
        deliveries=routes.route(event.type, headers, event.body, channels),
    )


def to_event(draft: Draft, target: UUID) -> NewEvent:
    """Return a message to the application *target* as an event to be stored."""
    message, name = draft.message, ids.show(ids.APPLICATION, target)
    return NewEvent(
        id=draft.id,
        source=None,
        application=name,
        type=message.type,
        dedup_key=draft.dedup_key,
        key_hash=ids.message_key(name, draft.dedup_key),
        replay_hash=draft.replay_key,
        grade=ProofStrength.NONE,
        origin=Origin.PUBLISHED,
        headers=msgspec.json.encode(draft.headers).decode() if draft.headers else "{}",
        content_type=draft.content_type,
        body=draft.body,
        body_sha256=hashlib.sha256(draft.body).digest(),
        routes_version=UNROUTED,
        publication=Publication(
            application_id=target,
            organization=message.organization,
            memory_days=draft.memory_days,
            channels=draft.channels,
            tags=draft.tags,
            deliver_at=message.deliver_at,
            content_until=message.content_until,
            request_sha256=message.request_sha256,
        ),
    )
