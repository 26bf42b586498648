"""Stores events: a whole batch in one statement, each event once, together with its deliveries."""

import contextlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from enum import Enum, auto
from itertools import groupby
from operator import attrgetter
from typing import Any, TypedDict, cast
from uuid import UUID

import asyncpg
import msgspec
from msgspec.structs import replace

from boathook.db.batches import append_batch
from boathook.db.connection import retry_on_conflict
from boathook.db.database import Connection, Database, Record, translate_errors
from boathook.db.dedup import delete_expired
from boathook.db.ordering import unblock
from boathook.db.statements import load
from boathook.domain import ids
from boathook.domain.errors import DatabaseError, DatabaseUnavailable, NotFound, RoutesChanged
from boathook.domain.json_document import UNREADABLE, parse_exactly, without
from boathook.domain.model import Accepted, Duplicate, Event, NewEvent, Origin, ProofStrength, Receipt

SQL = load(__file__)

_MAX_ROUNDS = 5
_COLUMNS = (
    "id", "source", "application", "type", "dedup_key", "key_hash", "replay_hash", "grade", "origin", "headers",
    "content_type", "body", "body_sha256",
)  # fmt: skip
"""The columns of an event, in the order of the statement's arguments."""
_COLUMN_VALUES = attrgetter(*_COLUMNS)
_OBJECT_VALUES = attrgetter(*("object_hash" if name == "replay_hash" else name for name in _COLUMNS))
"""The same for an event with an object, whose statement takes the object in place of the replay key."""


class EventStore:
    """Stores events and their dedup keys."""

    def __init__(
        self,
        database: Database | None = None,
        *,
        dedup_days: float = 30,
        dedup_days_of: Mapping[str, float] | None = None,
    ) -> None:
        self._database = database
        self._memory = timedelta(days=dedup_days)
        self._memory_of: dict[str | None, timedelta] = {}
        self._windows: dict[str | None, timedelta] = {}
        self._refusing: frozenset[str | None] = frozenset()
        self.set_dedup_days(dedup_days_of or {})

    def set_dedup_days(self, dedup_days_of: Mapping[str, float]) -> None:
        """Replace the days for which the keys of individual sources are remembered, for events stored from now on."""
        self._memory_of = {source: timedelta(days=days) for source, days in dedup_days_of.items()}

    def set_windows(self, windows_s: Mapping[str | None, float]) -> None:
        """Replace the seconds for which keys of individual sources are remembered, counted from an event's acceptance.

        They take the place of the days of such a source.
        """
        self._windows = {source: timedelta(seconds=seconds) for source, seconds in windows_s.items()}

    def set_refusing(self, sources: Iterable[str]) -> None:
        """Replace the sources of which a body that was seen under another key is a conflict, instead of a new event."""
        self._refusing = frozenset(sources)

    def connect(self, database: Database) -> None:
        """Use *database* from now on."""
        self._database = database

    @property
    def _connected(self) -> Database:
        if self._database is None:
            raise DatabaseUnavailable("PostgreSQL has not been reached yet")
        return self._database

    async def append(self, batch: Sequence[NewEvent], *, within_s: float | None = None) -> list[Receipt]:
        """Store *batch* and return a receipt for each event, in the same order.

        When this returns, every accepted event is committed with its deliveries. After an error it is unknown whether
        the batch is stored; a retry with the same events is safe. An event of many items is stored separately, between
        the events before and after it.

        Args:
            batch: new events, each with its deliveries.
            within_s: time limit; None: PostgreSQL's statement timeout.

        Raises:
            RoutesChanged: the events were routed by outdated routes; nothing was stored.
            DatabaseUnavailable: PostgreSQL is unavailable, might lose commits, or did not respond in time.
            DatabaseError: PostgreSQL rejected the batch, for example because of one invalid row.
        """
        database = self._connected
        database.require_safety()
        return await retry_on_conflict(lambda: self._append(database, batch, within_s))

    async def _append(self, database: Database, batch: Sequence[NewEvent], within_s: float | None) -> list[Receipt]:
        receipts: list[Receipt] = []
        async with database.acquire(within_s=within_s, is_commit=True) as connection:
            with translate_errors():
                for kind, run in groupby(batch, _kind_of):
                    match kind:
                        case _Kind.BATCH:
                            receipts += [
                                await append_batch(connection, event, self._memory_for(event)) for event in run
                            ]
                        case _Kind.OBJECT:
                            receipts += await self._append_objects(connection, list(run))
                        case _Kind.PLAIN:
                            receipts += await self._append_run(connection, list(run))
        return receipts

    def _memory_for(self, event: NewEvent) -> timedelta:
        """Return how long the key of an event is remembered."""
        return self._windows.get(event.source) or self._memory_of.get(event.source, self._memory)

    def _judged_at(self, event: NewEvent) -> datetime | None:
        """Return the time by which an earlier key has expired for an event; None: now."""
        return ids.created_at(event.id) if event.source in self._windows else None

    async def _append_objects(self, connection: Connection, run: Sequence[NewEvent]) -> list[Receipt]:
        """Store events with objects: all but those that repeat the newest event of their object."""
        remaining = {event.id: event for event in run}
        receipts: dict[UUID, Receipt] = {}
        while remaining:
            try:
                inserted = await self._insert(connection, list(remaining.values()), {}, has_objects=True)
            except asyncpg.UniqueViolationError:
                stored_ids = await find_stored(connection, list(remaining))
                if not stored_ids:
                    raise
                receipts |= {id: Accepted(id, is_new=False) for id in stored_ids}
                remaining = {id: event for id, event in remaining.items() if id not in stored_ids}
                continue
            fresh = set(inserted["fresh"])
            firsts = zip(
                inserted["ids"], inserted["first_ids"], inserted["first_hashes"], inserted["elsewhere"], strict=True
            )  # fmt: skip
            for id, first, digest, is_elsewhere in firsts:
                event = remaining[id]
                if id in fresh:
                    receipts[id] = Accepted(id, has_deliveries=bool(event.deliveries))
                else:
                    seen = _Seen(event_id=first, body_sha256=digest, is_elsewhere=is_elsewhere, is_same_key=True)
                    receipts[id] = await self._repeated(connection, event, seen)
            break
        return [receipts[event.id] for event in run]

    async def _append_run(self, connection: Connection, run: Sequence[NewEvent]) -> list[Receipt]:
        run, receipts = list(run), cast("list[Receipt | None]", [None] * len(run))
        same_body: dict[UUID, UUID] = {}
        for _ in range(_MAX_ROUNDS):
            leaders = first_of_each_key(run, receipts)
            accepted = await self._insert_or_find(connection, [run[position] for position in leaders], same_body)
            for position in leaders:
                receipts[position] = accepted.get(run[position].id)
            if None in receipts:
                await self._explain(connection, run, receipts, same_body)
            if None not in receipts:
                return cast("list[Receipt]", receipts)
        raise DatabaseError("dedup keys of these events changed concurrently; retry")

    async def _insert_or_find(
        self, connection: Connection, events: Sequence[NewEvent], same_body: Mapping[UUID, UUID]
    ) -> dict[UUID, Accepted]:
        """Store the new events. If one is stored already but its key has expired, find the stored ones instead."""
        try:
            fresh = set((await self._insert(connection, events, same_body))["fresh"])
        except asyncpg.UniqueViolationError:
            stored_ids = await find_stored(connection, [event.id for event in events])
            if not stored_ids:
                raise
            return {id: Accepted(id, is_new=False) for id in stored_ids}
        return {
            event.id: Accepted(event.id, has_deliveries=bool(event.deliveries)) for event in events if event.id in fresh
        }

    async def _insert(
        self,
        connection: Connection,
        events: Sequence[NewEvent],
        same_body: Mapping[UUID, UUID],
        *,
        has_objects: bool = False,
    ) -> Record:
        if len({event.routes_version for event in events}) != 1:
            raise RoutesChanged("the batch was routed by more than one version of the routes")
        deliveries = [
            (event.id, ordinal, delivery.recipient, delivery.order_key)
            for event in events
            for ordinal, delivery in enumerate(event.deliveries)
        ]
        has_order = any(row[3] is not None for row in deliveries)
        has_unhandled = any(not event.deliveries for event in events)
        own = [self._windows.get(event.source) for event in events] if self._windows else []
        windows = () if has_objects else (own if any(own) else None,)
        delivered, *delivery_columns = _columns(deliveries) or [(), (), (), ()]
        row = await connection.fetchrow(
            SQL["append_object_events" if has_objects else "append_events"],
            events[0].routes_version,
            *map(_short, _columns(map(_OBJECT_VALUES if has_objects else _COLUMN_VALUES, events))),
            _short(tuple(len(event.deliveries) for event in events)),
            _short(tuple(map(self._memory_for, events))),
            delivered,
            *map(_short, delivery_columns),
            has_order,
            has_unhandled,
            [same_body.get(event.id) for event in events] if same_body else None,
            *windows,
        )
        if row is None or not row["is_current"]:
            raise RoutesChanged("the routes changed after these events were routed")
        if row["has_blocked"]:
            await unblock(connection, [(recipient, key) for _, _, recipient, key in deliveries])
        return row

    async def _explain(
        self,
        connection: Connection,
        batch: list[NewEvent],
        receipts: list[Receipt | None],
        same_body: dict[UUID, UUID],
    ) -> None:
        """Give a receipt to each event that was not new; leave it open if its key has just expired.

        One whose body was seen under another key is left open too, unless its source refuses that: it is noted in
        *same_body* with the first event of that body, and no longer claims the body for itself.
        """
        open_positions = [position for position, receipt in enumerate(receipts) if receipt is None]
        rows = await connection.fetch(
            SQL["find_seen"],
            [batch[position].key_hash for position in open_positions],
            [batch[position].replay_hash for position in open_positions],
            judged := [self._judged_at(batch[position]) for position in open_positions],
        )
        expired = [row["found"] for row in rows if row["is_expired"]]
        if expired:
            await delete_expired(connection, expired, max(filter(None, judged), default=None))
        for row in rows:
            if row["is_expired"]:
                continue
            position = open_positions[row["position"] - 1]
            event = batch[position]
            if self._is_new_event(event, row):
                same_body[event.id] = row["event_id"]
                batch[position] = replace(event, replay_hash=None)
            else:
                receipts[position] = await self._repeated(connection, event, row)

    def _is_new_event(self, event: NewEvent, seen: Record) -> bool:
        """Return whether an event is a new one though its signed content was seen under another key.

        If what was read from that content differs, an unsigned part of the request was changed, which is a conflict.
        """
        is_repeated = not seen["is_same_key"] and seen["body_sha256"] == event.body_sha256
        return is_repeated and event.source not in self._refusing

    async def _repeated(self, connection: Connection, event: NewEvent, seen: "Record | _Seen") -> Receipt:
        first = seen["event_id"]
        if first == event.id:  # an earlier attempt to store this event was committed, but its caller got no response
            return Accepted(event.id, is_new=False)
        is_same_body = seen["body_sha256"] == event.body_sha256
        if not is_same_body and event.volatile:
            first_body = await connection.fetchval(SQL["get_body"], first)
            # The body of an event that another cell stores is unknown here; such fields differ in each repetition.
            is_same_body = (
                seen["is_elsewhere"]
                if first_body is None
                else is_equal_ignoring(event.volatile, first_body, event.body)
            )
        if is_same_body and seen["is_same_key"]:
            return Duplicate(first)
        await connection.execute(
            SQL["record_conflict"],
            event.id,
            first,
            event.source,
            event.application,
            event.dedup_key,
            "key" if is_same_body else "body",
            event.headers,
            event.content_type,
            event.body,
            event.body_sha256,
            event.type,
            event.grade,
        )
        return Duplicate(first, conflict=True)

    async def find_unstored(self, events: Sequence[NewEvent]) -> set[UUID]:
        """Return which of *events* are unknown to the database: neither they nor their keys are stored."""
        rows_of = ((event.id, event.key_hash, self._unique_hash(event), event.object_hash) for event in events)
        columns = _columns(rows_of) or [(), (), (), ()]
        rows = await self._connected.fetch(SQL["find_unknown"], *columns)
        return {row["id"] for row in rows}

    def _unique_hash(self, event: NewEvent) -> UUID | None:
        """Return the replay hash of an event if another one with the same hash is refused."""
        return event.replay_hash if event.source is None or event.source in self._refusing else None

    async def get(self, event_id: UUID) -> Event:
        """Return one event.

        Raises:
            NotFound: there is no such event, or retention has deleted it.
        """
        row = await self._connected.fetchrow(SQL["get_event"], event_id)
        if row is None:
            raise NotFound(f"there is no event {ids.show(ids.EVENT, event_id)}")
        return to_event(row)


class _Seen(TypedDict):
    """The event that another one repeats, as `find_seen` returns it."""

    event_id: UUID
    body_sha256: bytes
    is_elsewhere: bool
    is_same_key: bool


class _Kind(Enum):
    """How events are stored."""

    PLAIN = auto()
    OBJECT = auto()
    BATCH = auto()


def _kind_of(event: NewEvent) -> _Kind:
    if event.items:
        return _Kind.BATCH
    return _Kind.PLAIN if event.object_hash is None else _Kind.OBJECT


class _SingleConnection:
    """A database with a single connection, which is already in a transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @contextlib.asynccontextmanager
    async def acquire(
        self,
        *,
        within_s: float | None = None,  # noqa: ARG002 - no limit here
        is_commit: bool = False,  # noqa: ARG002 - the caller commits
    ) -> AsyncIterator[Connection]:
        yield self._connection

    def require_safety(self) -> None:
        """Accept any server: the caller decides whether its transaction may be committed there."""


class _Rollback(Exception):
    pass


def store_in(
    connection: Connection, *, dedup_days: float = 30, dedup_days_of: Mapping[str, float] | None = None
) -> EventStore:
    """Return a store that writes in the transaction of *connection*; a conflict with another one ends it."""
    database = cast("Database", _SingleConnection(connection))
    return EventStore(database, dedup_days=dedup_days, dedup_days_of=dedup_days_of)


async def run_self_test(database: Database, event: NewEvent, copy_id: UUID) -> str | None:
    """Store *event* and a copy with id *copy_id*, then roll back; return what went wrong, or None.

    Raises:
        RoutesChanged: *event* was routed by outdated routes.
        DatabaseUnavailable: PostgreSQL is unavailable.
    """
    problem = None
    try:
        async with database.transaction() as connection:
            store = store_in(connection)
            [first] = await store.append([event])
            [second] = await store.append([replace(event, id=copy_id)])
            if not isinstance(first, Accepted):
                problem = "an event that was never seen was not accepted"
            elif second != Duplicate(event.id):
                problem = "the second copy of an event was not recognised"
            raise _Rollback
    except _Rollback:
        return problem


async def find_stored(connection: Connection, event_ids: Sequence[UUID]) -> set[UUID]:
    """Return which of these events are stored, and on a synchronous standby if there is one."""
    return {row["id"] for row in await connection.fetch(SQL["find_stored"], event_ids)}


def to_event(row: Record) -> Event:
    """Build an event from a row with the columns of the table; `headers` is JSON text."""
    return Event(
        id=row["id"],
        source=row["source"],
        application=row["application"],
        type=row["type"],
        dedup_key=row["dedup_key"],
        grade=ProofStrength(row["grade"]),
        origin=Origin(row["origin"]),
        accepted_at=row["accepted_at"],
        headers=cast("Mapping[str, str]", msgspec.json.decode(row["headers"])),
        content_type=row["content_type"],
        body=row["body"],
        same_body_as=row["same_body_as"],
    )


def first_of_each_key(batch: Sequence[NewEvent], receipts: Sequence[Receipt | None]) -> list[int]:
    """Return the positions of events without a receipt that share no key with an earlier event of the batch."""
    seen: set[UUID] = set()
    leaders = []
    for position, event in enumerate(batch):
        if receipts[position] is None and event.key_hash not in seen and event.replay_hash not in seen:
            leaders.append(position)
            seen.add(event.key_hash)
            if event.replay_hash is not None:
                seen.add(event.replay_hash)
    return leaders


def _columns(rows: Iterable[Sequence[Any]]) -> list[tuple[Any, ...]]:
    return list(zip(*rows, strict=True))


def _short(column: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return one value of a column of equal ones, because the driver needs a microsecond for each."""
    return column[:1] if column and column.count(column[0]) == len(column) else column


def is_equal_ignoring(volatile: Iterable[str], body: bytes, other_body: bytes) -> bool:
    """Return whether two JSON bodies differ only in the values at the *volatile* paths."""
    # The parser that verified them: it also reads lone surrogates and numbers beyond a float.
    documents = [parse_exactly(body), parse_exactly(other_body)]
    if UNREADABLE in documents:
        return False
    for path in volatile:
        documents = [without(document, path.split(".")) for document in documents]
    return bool(documents[0] == documents[1])
