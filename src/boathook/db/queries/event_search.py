"""Searches a history of any length for events, within a time limit per request.

Request bodies are not indexed, because an index would slow down every accepted event. A search instead scans back from
the newest event in steps of a bounded number of rows, until its page is full or its time is up. It then returns how far
it got and where the next search continues. Steps grow while they are fast, and bodies are searched in small portions.
They are searched here and not in PostgreSQL, which raises an error for a body that is not JSON or not UTF-8.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from functools import reduce
from typing import Any, Final
from uuid import UUID

import msgspec

from boathook.db.database import Connection, Database, Record
from boathook.db.queries import listings
from boathook.db.queries.listings import EventRow, event_row, like_pattern
from boathook.db.statements import load
from boathook.domain import ids
from boathook.domain.content_filter import EVERYTHING, ContentFilter
from boathook.domain.model import State

SQL = load(__file__, fragments_of=(listings.__file__,))

BUDGET_S: Final = 0.11
"""How long a search starts new steps."""
PAGE: Final = 50
TIMEOUT_S: Final = 1.5
"""Timeout of one statement: a step over one very large body may take longer than the rest of the search."""
_FIRST_STEP: Final = 200
_MAX_STEP: Final = 20_000
_TARGET_STEP_S: Final = 0.02
"""After a faster step the length doubles; after a step that took twice as long it is halved."""
MAX_BYTES: Final = 2 << 20
"""Maximum number of bytes of bodies per statement, unless a single body is larger."""
_MAX_BODIES: Final = 500
MAX_SEARCHED_BODY: Final = 8 << 20
"""Size in bytes of the largest body that is searched for a text."""
_SCANNED: Final = 200
"""Events of a step of a bulk operation whose contents are compared; there are more steps then, none of them long."""
_MAX_APPLICATIONS: Final = 2_000
_OPEN: Final = frozenset({State.PENDING, State.LEASED, State.DEAD})
_BATCH: Final = "batch"
"""The type of an event whose items have several types; `boathook.verification.dedup_keys` assigns it."""
_MAX_ID: Final = UUID(int=2**128 - 1)
_MIN_ID: Final = UUID(int=0)


class EventFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Selects events; None and empty values match everything."""

    source: str | None = None
    application: str | None = None
    """Its id or uid, or a name that is neither."""
    type: str | None = None
    """A pattern for the event's type or, for a batch, an item's type; ``*`` matches any characters."""
    key: str | None = None
    """The exact dedup key."""
    state: State | None = None
    """Events with a delivery in this state."""
    is_unhandled: bool = False
    """Only events of sources that no handler matched."""
    content: ContentFilter = EVERYTHING
    """Filter on the event's content."""
    since: datetime | None = None
    """Accepted at this time or later."""
    until: datetime | None = None
    """Accepted before."""
    below: UUID | None = None
    """Where the previous search stopped: only events with a lower id."""
    organization: str | None = None
    """Only events that belong to this organization."""

    @property
    def is_scanned(self) -> bool:
        """Whether each event has to be looked at, for its key, content, deliveries or owner."""
        is_looked_up = self.key is not None or self.state is not None or self.organization is not None
        return is_looked_up or not self.content.is_empty

    def selection(self) -> dict[str, Any]:
        """Return what `select_matching` compares as a JSON object."""
        return {
            "key": self.key,
            "state": self.state,
            "content": self.content.to_json(),
            "organization": self.organization,
        }

    @classmethod
    def of_selection(cls, value: Mapping[str, Any]) -> "EventFilter":
        """Return the filter that `selection` has written."""
        state = value["state"] and State(value["state"])
        return cls(
            key=value["key"],
            state=state,
            content=ContentFilter.from_json(value["content"]),
            organization=value.get("organization"),
        )

    def to_request(self) -> dict[str, Any]:
        """Return the filter as the request of a task stores it; `of_request` reads it again."""
        spans = {name: value and value.isoformat() for name, value in (("since", self.since), ("until", self.until))}
        plain = {"source": self.source, "application": self.application, "type": self.type, **spans}
        matching = {"matching": self.selection()} if self.is_scanned else {}
        return {**plain, "is_unhandled": self.is_unhandled, **matching}

    @classmethod
    def of_request(cls, request: Mapping[str, Any], latest: datetime) -> "EventFilter":
        """Return the filter in the request of a task, of events accepted before *latest*; what it lacks is not set."""
        since, until = (
            datetime.fromisoformat(request[name]) if request.get(name) else None for name in ("since", "until")
        )
        matching = request.get("matching")
        return msgspec.structs.replace(
            cls() if matching is None else cls.of_selection(matching),
            source=request.get("source"),
            application=request.get("application"),
            type=request.get("type"),
            since=since,
            until=min(until or latest, latest),
            is_unhandled=bool(request.get("is_unhandled")),
        )

    def bounds(self) -> tuple[UUID, UUID]:
        """Return the exclusive upper and the inclusive lower bound of ids."""
        until = _MAX_ID if self.until is None else ids.first_of(self.until)
        low = _MIN_ID if self.since is None else ids.first_of(self.since)
        return min(until, self.below or _MAX_ID), low


class FoundEvent(msgspec.Struct, frozen=True, kw_only=True):
    """A matching event with the number of its deliveries by state; at most a thousand are counted."""

    event: EventRow
    states: dict[State, int]
    """Without states that no delivery has."""


class SearchPage(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one search."""

    events: Sequence[FoundEvent]
    looked_at: int
    """Number of scanned events, or of scanned deliveries in a search for a state."""
    place: UUID | None
    """Where the next search continues, as `EventFilter.below`; None if there is nothing older."""
    reached: datetime | None
    """How far back the search got; None if it reached the end."""
    is_full: bool
    """Whether it ended because the page was full, not because of the time limit."""
    too_large: int
    """Events that were not searched for a text, because their bodies are larger than `MAX_SEARCHED_BODY`."""


class DedupKeyMatch(msgspec.Struct, frozen=True):
    """An event with a dedup key."""

    event_id: UUID
    item_path: str | None
    """The item that the key belongs to; None for the whole event."""


class _SearchScan(msgspec.Struct):
    """A search in progress."""

    wanted: EventFilter
    statement: str
    place: UUID
    low: UUID
    limit: int
    length: int = _FIRST_STEP
    looked_at: int = 0
    hits: list[UUID] = msgspec.field(default_factory=list)
    too_large: int = 0
    is_over: bool = False
    """Whether there is nothing below `place`."""

    @property
    def is_full(self) -> bool:
        """Whether the page is full."""
        return len(self.hits) >= self.limit

    async def step(self, connection: Connection, until: float) -> None:
        """Scan the next rows and keep matches; texts are searched until a time of the monotonic clock."""
        event_filter = self.wanted
        began = time.monotonic()
        row = await connection.fetchrow(
            self.statement, self.place, self.low, self.length, event_filter.source, event_filter.application,
            like_pattern(event_filter.type),
            event_filter.key, event_filter.state, _BATCH, event_filter.organization,
        )  # fmt: skip
        assert row is not None
        self.looked_at += row["looked"]
        if event_filter.content.is_empty:
            self._add_hits(row["ids"])
            self._advance(row)
        else:
            await self._search_contents(connection, row, until)
        self._adjust_step(time.monotonic() - began, until - time.monotonic())

    async def _search_contents(self, connection: Connection, row: Record, until: float) -> None:
        for number, (portion, is_too_large) in enumerate(_split_by_size(row["ids"], row["sizes"])):
            if number and time.monotonic() >= until:
                return
            matching_ids = set() if is_too_large else await _matching(connection, portion, self.wanted.content)
            self.too_large += is_too_large
            self._add_hits([event_id for event_id in portion if event_id in matching_ids])
            if self.is_full:
                return
            self.place = portion[-1]
        self._advance(row)

    def _add_hits(self, matching_ids: Sequence[UUID]) -> None:
        """Add matches to the page; once it is full, the next search continues after its last event."""
        self.hits += matching_ids[: self.limit - len(self.hits)]
        if self.is_full:
            self.place = self.hits[-1]

    def _advance(self, row: Record) -> None:
        """Continue after the last row, unless the page is full."""
        if not self.is_full:
            self.is_over = row["looked"] < self.length
            self.place = row["last"] or self.place

    def _adjust_step(self, took_s: float, left_s: float) -> None:
        """Choose the length of the next step from the duration of this one, so that it ends in time."""
        target = (
            2 * self.length
            if took_s < _TARGET_STEP_S
            else self.length // 2
            if took_s > 2 * _TARGET_STEP_S
            else self.length
        )
        in_time = int(self.length * left_s / took_s)
        self.length = max(_FIRST_STEP, min(target, in_time, _MAX_STEP))


async def search(
    database: Database | Connection, event_filter: EventFilter, *, limit: int = PAGE, budget_s: float = BUDGET_S
) -> SearchPage:
    """Return the newest matching events, as many as fit on a page and are found in time.

    Each search gets further back than the previous one, even if a single step exceeds the time limit.

    Raises:
        DatabaseUnavailable: PostgreSQL is unavailable, or so busy that one step took more than a second.
    """
    start, low = event_filter.bounds()
    # One event more than fits on the page shows that there are more.
    walk = _SearchScan(event_filter, _statement(event_filter), start, low, limit + 1)
    until = time.monotonic() + budget_s
    async with _reading(database) as connection:
        while not (walk.is_over or walk.is_full):
            await walk.step(connection, until)
            if time.monotonic() >= until:
                break
        events = await _read(connection, walk.hits[:limit])
    further = walk.hits[limit - 1] if walk.is_full else None if walk.is_over or walk.place <= low else walk.place
    return SearchPage(
        events=events,
        looked_at=walk.looked_at,
        place=further,
        reached=None if further is None else ids.created_at(further),
        is_full=walk.is_full,
        too_large=walk.too_large,
    )


async def count_events(database: Database | Connection, event_filter: EventFilter, *, limit: int | None = None) -> int:
    """Count the events of a filter that need no look at each one, up to *limit*."""
    assert not event_filter.is_scanned, "use `search`"
    number: int = await database.fetchval(
        _choose_table(SQL["count_events"], event_filter), *_arguments(event_filter), limit
    )
    return number


async def page_events(
    database: Database | Connection, event_filter: EventFilter, *, after: UUID | None, limit: int
) -> list[UUID]:
    """Return the next ids of events, oldest first, by the part of a filter that needs no look at each event."""
    sql = _choose_table(SQL["page_events"], event_filter)
    return [row["id"] for row in await database.fetch(sql, *_arguments(event_filter), after, limit)]


async def select_next(
    connection: Connection, event_filter: EventFilter, *, after: UUID | None, limit: int
) -> tuple[list[UUID], UUID | None]:
    """Return up to *limit* of the next events that match a filter, oldest first.

    Returns:
        The events, which may be fewer although there are more, and the last one looked at; None at the end.
    """
    step = _SCANNED if event_filter.is_scanned else limit
    looked_at = await page_events(connection, event_filter, after=after, limit=step)
    event_ids = looked_at
    if event_filter.is_scanned:
        event_ids = await select_matching(connection, looked_at, event_filter)
        if len(event_ids) > limit:
            return event_ids[:limit], event_ids[limit - 1]
    return event_ids, looked_at[-1] if len(looked_at) == step else None


async def select_matching(connection: Connection, event_ids: Sequence[UUID], event_filter: EventFilter) -> list[UUID]:
    """Return which of these events have a filter's key, state, content and organization, in the same order."""
    rows = await connection.fetch(
        SQL["select_matching"], event_ids, event_filter.key, event_filter.state, event_filter.organization
    )
    matching_ids: set[UUID] = set()
    for portion, is_too_large in _split_by_size([row["id"] for row in rows], [row["size"] for row in rows]):
        if event_filter.content.is_empty:
            matching_ids.update(portion)
        elif not is_too_large:
            matching_ids |= await _matching(connection, portion, event_filter.content)
    return [event_id for event_id in event_ids if event_id in matching_ids]


async def read_events(database: Database | Connection, event_ids: Sequence[UUID]) -> list[FoundEvent]:
    """Return the stored ones of these events, newest first."""
    async with _reading(database) as connection:
        return await _read(connection, event_ids)


async def find_keys(database: Database | Connection, keys: Sequence[UUID]) -> list[DedupKeyMatch]:
    """Return the events with these dedup key hashes, which `boathook.ingest.event_builder` computes."""
    return [DedupKeyMatch(**dict(row)) for row in await database.fetch(SQL["find_keys"], list(keys))]


async def find_messages(
    database: Database | Connection, key: str, application: str | None = None
) -> list[DedupKeyMatch]:
    """Return the messages with this publisher id, of one application or of the newest two thousand."""
    key_bytes = key.encode("utf-8", "surrogatepass")
    rows = await database.fetch(SQL["find_message_keys"], application, key_bytes, _MAX_APPLICATIONS)
    return [DedupKeyMatch(**dict(row)) for row in rows]


async def list_types(database: Database, part: str, limit: int) -> list[str]:
    """Return types that contain a text, ignoring case: of the catalog, and of the newest thousand events."""
    rows = await database.fetch(SQL["list_types"], part, limit)
    return [row["type"] for row in rows]


async def _matching(connection: Connection, event_ids: Sequence[UUID], content: ContentFilter) -> set[UUID]:
    """Return which of these events have the content; it is compared in a thread, because that may take long."""
    rows = await connection.fetch(SQL["read_contents"], event_ids)
    return await asyncio.to_thread(
        lambda: {row["id"] for row in rows if content.matches(row["type"], row["dedup_key"], row["body"])}
    )


def _statement(event_filter: EventFilter) -> str:
    """Return the statement that scans the fewest rows: few deliveries are open, and applications have an index."""
    if event_filter.is_unhandled:
        walk, events = "walk_unhandled", "select * from walked"
    elif event_filter.state in _OPEN:
        walk, events = "walk_open", SQL["events_of_deliveries"]
    elif event_filter.application is not None:
        walk, events = "walk_application", "select * from walked"
    elif event_filter.state is not None:
        walk, events = "walk_ended", SQL["events_of_deliveries"]
    else:
        walk, events = "walk_events", "select * from walked"
    standing = SQL["stand_so"] if walk == "walk_application" else "and ($8::text is null or true)"
    parts = {"{walk}": SQL[walk], "{events}": events, "{standing}": standing}
    return reduce(lambda sql, part: sql.replace(*part), parts.items(), SQL["take_step"])


_EVENTS: Final = "from boathook.event e\n"
_UNHANDLED: Final = "from boathook.unhandled u join boathook.event e on e.id = u.event_id\n"


def _choose_table(sql: str, event_filter: EventFilter) -> str:
    """Return a statement over events that reads only the table that *event_filter* needs."""
    return sql.replace(_EVENTS, _UNHANDLED) if event_filter.is_unhandled else sql


def _arguments(event_filter: EventFilter) -> tuple[object, ...]:
    since = None if event_filter.since is None else ids.first_of(event_filter.since)
    until = None if event_filter.until is None else ids.first_of(event_filter.until)
    return event_filter.source, event_filter.application, like_pattern(event_filter.type), since, until


def _split_by_size(event_ids: Sequence[UUID], sizes: Sequence[int]) -> Iterator[tuple[list[UUID], bool]]:
    """Split events into portions of limited total size, and flag a portion whose single event is too large."""
    portion: list[UUID] = []
    total = 0
    for event_id, size in zip(event_ids, sizes, strict=True):
        if portion and (total + size > MAX_BYTES or len(portion) >= _MAX_BODIES):
            yield portion, total > MAX_SEARCHED_BODY
            portion, total = [], 0
        portion.append(event_id)
        total += size
    if portion:
        yield portion, total > MAX_SEARCHED_BODY


@asynccontextmanager
async def _reading(database: Database | Connection) -> AsyncIterator[Connection]:
    """Begin a transaction whose statements have a short timeout."""
    async with database.transaction() as begun:
        connection = database if begun is None else begun  # a connection's own transaction yields nothing
        assert not isinstance(connection, Database)
        await connection.execute(SQL["limit_statement"], f"{TIMEOUT_S:g}s")
        yield connection


async def _read(connection: Connection, event_ids: Sequence[UUID]) -> list[FoundEvent]:
    if not event_ids:
        return []
    return [_found(row) for row in await connection.fetch(SQL["read_rows"], list(event_ids))]


def _found(row: Record) -> FoundEvent:
    return FoundEvent(event=event_row(row), states={state: row[state] for state in State if row[state]})
