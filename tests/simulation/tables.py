"""Fake database: rows, row locks and READ COMMITTED transactions as in PostgreSQL.

Rows are immutable. A transaction writes into an overlay that no other transaction sees, holds a lock on every row it has written
or locked, and either all of its writes are taken over at once or none is. A statement that needs a row held by another
transaction gets `Blocked` and retries when that has ended, unless it skips locked rows.
"""

from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

import asyncpg

from boathook.domain.model import NewEvent

Key = tuple[UUID, int]
Lock = tuple[object, ...]


class Record(dict[str, Any]):
    """A row as the driver gives it: read by name, walked through by value."""

    def __iter__(self) -> Iterator[Any]:
        return iter(self.values())


class Row(NamedTuple):
    """A row of boathook.delivery, with the columns that decide something."""

    event_id: UUID
    ordinal: int
    recipient: str
    seq: int
    enqueued_at: datetime
    due_at: datetime
    order_key: str | None = None
    state: str = "pending"
    is_blocked: bool = False
    is_replay: bool = False
    attempts: int = 0
    attempts_before: int = 0
    crashes: int = 0
    replays: int = 0
    fence: int = 0
    leased_by: str | None = None
    lease_until: datetime | None = None
    code: str | None = None
    error: str | None = None
    dead_at: datetime | None = None
    free_retries: int = 0
    woken_by: str | None = None
    item_path: str | None = None
    item_type: str | None = None

    @property
    def key(self) -> Key:
        return self.event_id, self.ordinal


class Stored(NamedTuple):
    """A row of boathook.event."""

    event: NewEvent
    accepted_at: datetime
    fanout: int
    same_body_as: UUID | None = None


class Seen(NamedTuple):
    """A row of boathook.dedup."""

    key: UUID
    replay_key: UUID | None
    event_id: UUID
    body_sha256: bytes
    expires_at: datetime


class Tried(NamedTuple):
    """A row of boathook.attempt."""

    number: int
    outcome: str
    code: str | None


class Ended(NamedTuple):
    """A row of boathook.delivery_archive."""

    recipient: str
    state: str
    order_key: str | None
    attempts: int
    replays: int
    note: str | None
    is_replay: bool


class Endpoint(NamedTuple):
    """A row of boathook.endpoint; its application is an operational one, without operational webhooks."""

    id: UUID
    url: str
    recipient: str
    rate: int | None = None
    concurrency: int | None = None
    retry: str | None = None
    timeout_s: float | None = None
    encrypted: bytes = b""
    """Its one secret."""
    revision: int = 1
    is_disabled: bool = False
    disabled_because: str | None = None


class Health(NamedTuple):
    """A row of boathook.endpoint_health."""

    endpoint_id: UUID
    failures: int = 0
    failing_since: datetime | None = None
    last_failed_at: datetime | None = None
    open_until: datetime | None = None
    pauses: int = 0
    allowed_at: datetime | None = None


class Effect(NamedTuple):
    """A handler's effect in its transaction."""

    event_id: UUID
    ordinal: int
    fence: int
    value: object


class Blocked(Exception):
    """Another transaction holds a required lock."""

    def __init__(self, holder: "Transaction") -> None:
        super().__init__()
        self.holder = holder


TABLES = (
    "delivery",
    "event",
    "unhandled",
    "dedup",
    "attempt",
    "delivery_archive",
    "side_effect",
    "conflict",
    "endpoint",
    "health",
)


class Tables:
    """Committed rows, and the holders of locks."""

    def __init__(self, clock: Callable[[], datetime]) -> None:
        self.clock = clock
        self.committed: dict[str, dict[Any, Any]] = {name: {} for name in TABLES}
        self.effects: list[Effect] = []
        """What handlers did and committed, in the order of the commits."""
        self.audit: list[tuple[str, str, str, str | None]] = []
        self.routes_version = 1
        self.policies: dict[str, str] = {}
        """Retry policies of the active routes as JSON, by recipient."""
        self.routes = "[]"
        """The active routes as JSON."""
        self.next_seq = 1
        self.locks: dict[Lock, Transaction] = {}
        self.watchers: list[Callable[[Transaction], None]] = []
        """Called before a commit is taken over, with everything the transaction wrote."""
        self.notify: Callable[[str, str], None] = lambda _channel, _payload: None

    def snapshot(self) -> Mapping[str, dict[Any, Any]]:
        """Return the committed rows at this time, for a long statement."""
        return {name: dict(rows) for name, rows in self.committed.items()}


class Transaction:
    """One transaction; a statement outside any has one of its own."""

    def __init__(self, tables: Tables, owner: object = None) -> None:
        self.tables = tables
        self.owner = owner
        self.now = tables.clock()
        self.mark: str | None = None
        self.is_failed = False
        self.is_over = False
        self.writes: dict[tuple[str, Any], Any] = {}
        self.locks: list[Lock] = []
        self.effects: list[Effect] = []
        self.audit: list[tuple[str, str, str, str | None]] = []
        self.notifications: list[tuple[str, str]] = []
        self.waits_for: Transaction | None = None
        self.on_end: list[Callable[[], None]] = []
        self._base: Mapping[str, dict[Any, Any]] | None = None

    # Reading

    def see(self, snapshot: Mapping[str, dict[Any, Any]] | None) -> None:
        """Let the statement that begins read from *snapshot*, or from what is committed while it runs."""
        self._base = snapshot

    def get(self, table: str, key: Any) -> Any:
        """Return a row as this statement sees it, or None."""
        if self.writes and (table, key) in self.writes:
            return self.writes[table, key]
        return (self._base or self.tables.committed)[table].get(key)

    def latest(self, table: str, key: Any) -> Any:
        """Return the newest committed version of a row, or this transaction's own."""
        if self.writes and (table, key) in self.writes:
            return self.writes[table, key]
        return self.tables.committed[table].get(key)

    def rows(self, table: str) -> Iterator[Any]:
        """Return a table's rows as this statement sees them."""
        base = (self._base or self.tables.committed)[table]
        if not self.writes:
            return iter(list(base.values()))
        merged = dict(base)
        for (name, key), row in self.writes.items():
            if name == table:
                if row is None:
                    merged.pop(key, None)
                else:
                    merged[key] = row
        return iter(list(merged.values()))

    # Writing

    def hold(self, *lock: object) -> None:
        """Take a lock until the end of the transaction. Raises Blocked while another has it."""
        if not self.try_hold(*lock):
            raise Blocked(self.tables.locks[lock])

    def try_hold(self, *lock: object) -> bool:
        """Take a lock if it is free."""
        holder = self.tables.locks.get(lock)
        if holder is None:
            self.tables.locks[lock] = self
            self.locks.append(lock)
        return holder is None or holder is self

    def lock(self, table: str, key: Any) -> Any:
        """Lock a row, waiting for it, and return its latest version, which the caller judges again; None: it is gone."""
        self.hold(table, key)
        return self.latest(table, key)

    def lock_or_skip(self, table: str, key: Any) -> Any:
        """Lock a row if it is free and return its latest version; None: it is held, or gone."""
        return self.latest(table, key) if self.try_hold(table, key) else None

    def put(self, table: str, key: Any, row: Any) -> None:
        """Write a row whose lock is held; None deletes it."""
        self.writes[table, key] = row

    def move(self, row: Row, **changes: Any) -> Row:
        """Change columns of a delivery whose lock is held."""
        changed = row._replace(**changes)
        self.writes["delivery", row.key] = changed
        return changed

    # The end

    def commit(self) -> None:
        """Apply all writes, release the locks, and notify listeners."""
        tables = self.tables
        if self.writes or self.effects or self.audit:
            for watch in tables.watchers:
                watch(self)
            for (table, key), row in self.writes.items():
                if row is None:
                    tables.committed[table].pop(key, None)
                else:
                    tables.committed[table][key] = row
            tables.effects += self.effects
            tables.audit += self.audit
        self._end()
        for channel, payload in dict.fromkeys(self.notifications):
            tables.notify(channel, payload)

    def roll_back(self) -> None:
        """Forget everything."""
        self.writes.clear()
        self.effects.clear()
        self._end()

    def _end(self) -> None:
        self.is_over = True
        for lock in self.locks:
            del self.tables.locks[lock]
        self.locks.clear()
        for told in self.on_end:
            told()
        self.on_end.clear()


def owe(
    t: Transaction,
    event_id: UUID,
    ordinal: int,
    recipient: str,
    order_key: str | None,
    *,
    is_blocked: bool,
    **more: Any,
) -> None:
    """Write a pending delivery."""
    row = Row(event_id, ordinal, recipient, t.tables.next_seq, more.pop("enqueued_at", t.now), more.pop("due_at", t.now),
              order_key=order_key, is_blocked=is_blocked, **more)  # fmt: skip
    t.tables.next_seq += 1
    t.hold("delivery", row.key)
    if t.latest("delivery", row.key) is not None:
        raise asyncpg.UniqueViolationError("delivery_pkey")
    t.put("delivery", row.key, row)
