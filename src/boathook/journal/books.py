"""The books: a read-only proof that every accepted event is still owed or ended, and nothing else is stored.

Each rule is one statement that finds what breaks it, and one sentence that says what that means. All of them read
one snapshot, so a store under full load is judged as of one moment. While it is open that snapshot keeps PostgreSQL
from cleaning up dead rows, so a check of a very large store is better run in a quiet hour.
"""

import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from boathook.domain import ids
from boathook.journal.database import Connection, Database, Record, translated
from boathook.journal.moves import IGNORE_DEAD, PURGE_DEAD
from boathook.journal.sending import OVERTAKEN
from boathook.journal.statements import load

SQL = load(__file__)

MOST_EXAMPLES: Final = 5
_CHUNK: Final = 1_000
_BODIES_AT_ONCE: Final = 200
_FIRST: Final = UUID(int=0)

Progress = Callable[[str, int, int], None]
"""Told before each step: what is looked at, its number from 0, and how many there are."""


@dataclass(frozen=True, slots=True)
class Imbalance:
    """One rule that does not hold."""

    check: str
    count: int
    """How often it is broken in all."""
    examples: tuple[str, ...]
    """Up to five ids, each with what is wrong with it."""
    meaning: str
    """One sentence for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What the store holds, as of one moment."""

    taken_at: datetime
    events: int
    received: int
    published: int
    owed: int
    """Deliveries owed when their events were accepted."""
    replayed: int
    """Deliveries added by replaying events whose first deliveries had ended."""
    succeeded: int
    ignored: int
    dead: int
    pending: int
    leased: int
    purged: int
    """Dead letters of stored events that operators deleted."""
    attempts: int
    remembered: int
    """Dedup keys in memory."""
    conflicts: int
    conflicting_requests: int
    rejections: int
    dropped: Mapping[str, int] = field(default_factory=dict)
    """What retention and operators deleted, by kind and reason."""

    @property
    def missing(self) -> int:
        """Deliveries owed that are neither open, nor ended, nor purged; 0 where the books balance."""
        ended = self.succeeded + self.ignored + self.dead
        return self.owed + self.replayed - (ended + self.pending + self.leased + self.purged)


@dataclass(frozen=True, slots=True)
class Books:
    """The result of a check."""

    balance: Balance
    imbalances: tuple[Imbalance, ...]
    checks: int
    """How many rules were looked at."""

    @property
    def is_balanced(self) -> bool:
        """Whether every rule holds."""
        return not self.imbalances


@dataclass(frozen=True, slots=True)
class _Rule:
    statement: str
    title: str
    meaning: str
    prefix: str = ids.EVENT


_RULES: Final = (
    _Rule("find_orphans", "nothing without its event", "These belong to an event that is not stored."),
    _Rule("find_open_and_settled", "no delivery both open and ended", "A delivery that ended may run again."),
    _Rule("find_owed_twice", "one first delivery a recipient", "A recipient was owed one event or item twice."),
    _Rule(
        "find_wrong_items",
        "deliveries are about what was owed",
        "A handler would be given the wrong part of an event.",
    ),
    _Rule("find_misnumbered", "replays numbered after first deliveries", "First deliveries and replays are mixed up."),
    _Rule(
        "find_miscounted_open",
        "attempts of open deliveries",
        "Attempts were made that are not recorded, or recorded that were not made.",
    ),
    _Rule(
        "find_miscounted_settled",
        "attempts of ended deliveries",
        "Attempts were made that are not recorded, or recorded that were not made.",
    ),
    _Rule(
        "find_stray_attempts",
        "no attempt without its delivery",
        "The deliveries these attempts were made for are gone.",
    ),
    _Rule(
        "find_false_successes",
        "successes have a succeeded attempt",
        "A delivery counts as succeeded without a success.",
    ),
    _Rule(
        "find_ended_twice",
        "nothing follows an end",
        "A delivery went on after an attempt had ended it, so its effect may be doubled.",
    ),
    _Rule("find_illegal_deliveries", "open deliveries keep their rules", "A delivery is in a state that cannot be."),
    _Rule(
        "find_illegal_ends", "ended deliveries keep their rules", "An outcome or attempt is in a state that cannot be."
    ),
    _Rule(
        "find_double_leases", "one lease an order key", "Two deliveries that must run one after another run at once."
    ),
    _Rule(
        "find_stuck_lines",
        "every order key has a head",
        "Deliveries wait for one that is not there, so they would wait for ever.",
    ),
    _Rule(
        "find_forgotten_events", "every event is remembered", "A repeated request would be accepted as another event."
    ),
    _Rule(
        "find_keys_without_event",
        "every dedup key has its event",
        "A request would be answered as a duplicate of an event that is not stored.",
    ),
    _Rule("find_shared_keys", "one dedup key an event", "Two keys claim one event or item."),
    _Rule(
        "find_wrong_key_bodies",
        "dedup keys know the right body",
        "A repeated request would count as a conflict, or a conflict as repeated.",
    ),
    _Rule(
        "find_wrong_conflicts",
        "conflicts differ from their event",
        "A conflict refers to nothing, or is none.",
        ids.CONFLICT,
    ),
    _Rule(
        "find_wrong_rejections",
        "accepted rejections have their event",
        "A rejection is marked as accepted, but its event is not there.",
        ids.REJECTION,
    ),
    _Rule(
        "find_strangers",
        "endpoints get their own application's events",
        "An endpoint was sent, or will be, what belongs to another application.",
    ),
    _Rule(
        "find_unknown_applications",
        "every event's application is known",
        "These are for an application that never was.",
    ),
    _Rule("find_half_expunged", "deleted content is gone", "An event's content was to be deleted, and is still there."),
    _Rule(
        "find_uncounted_purges",
        "purges are counted",
        "Dead letters were deleted without being counted, or counted without being deleted.",
    ),
    _Rule(
        "find_missing_guards",
        "the schema's guards stand",
        "Without these guards the database would accept rows that cannot be.",
    ),
)

_GUARDS: Final = (
    "a_lease_has_holder_and_end",
    "a_lease_is_a_counted_attempt",
    "the_dead_have_a_time_and_a_code",
    "only_ordered_pending_ones_wait_for_others",
    "a_replay_starts_a_new_budget",
    "an_item_has_a_path_and_a_type",
    "delivery_pkey",
    "delivery_one_lease_per_order_key",
    "dedup_pkey",
    "dedup_replay_key",
    "event_pkey",
    "attempt_pkey",
    "outcome_pkey",
    "effect_pkey",
    "reply_pkey",
    "newest_pkey",
    "application_uid",
    "application_operational",
    "endpoint_uid",
    "endpoint_secret_current",
    "api_key_token_sha256_key",
    "idempotency_pkey",
    "route_changed",
)

_EVEN = _Rule(
    "stream_uneven_events",
    "every delivery owed is there",
    "Deliveries were lost, or added, since these events were accepted.",
)
_DECIDED = _Rule(
    "stream_ignored_without_attempt",
    "what is ignored was decided",
    "A delivery counts as ignored, but neither its handler nor an operator nor a resend by hand decided that.",
)
_BODIES = _Rule("check_event_bodies", "bodies match their hashes", "Stored bytes are not those that were sent.")
_CONFLICT_BODIES = _Rule(
    "check_conflict_bodies",
    "conflicting bodies match their hashes",
    "Stored bytes are not those that were sent.",
    ids.CONFLICT,
)


async def verify(
    database: Database,
    *,
    dedup_days: float,
    dedup_days_of: Mapping[str, float] | None = None,
    is_deep: bool = False,
    progress: Progress | None = None,
) -> Books:
    """Check the whole store and return the balance with everything that does not add up.

    Args:
        database: opened with a statement timeout that a scan of the largest table fits in.
        dedup_days: how long keys are remembered; *dedup_days_of* names the sources that differ.
        is_deep: also compare each stored body with its hash.
        progress: told before each step.
    """
    audit = _Audit(database, dedup_days, dedup_days_of or {}, progress or (lambda _title, _step, _of: None), is_deep)
    return await audit.run()


class _Audit:
    """One check under way."""

    def __init__(
        self,
        database: Database,
        dedup_days: float,
        dedup_days_of: Mapping[str, float],
        progress: Progress,
        is_deep: bool,
    ) -> None:
        self._database = database
        self._dedup_days = dedup_days
        self._dedup_days_of = dedup_days_of
        self._progress = progress
        self._is_deep = is_deep
        self._steps = len(_RULES) + 3 + 2 * is_deep
        self._step = 0
        self._purged = 0
        self._found: list[Imbalance] = []

    async def run(self) -> Books:
        async with _snapshot(self._database) as connection:
            await connection.execute(SQL["hold_partitions"])
            await connection.execute(SQL["plan_by_partition"])
            await self._check(_EVEN, self._uneven(connection))
            await self._check(_DECIDED, self._undecided(connection))
            for rule in _RULES:
                self._announce(rule.title)
                rows = await connection.fetch(SQL[rule.statement], *self._arguments(rule.statement))
                self._note(rule, rows[0]["total"] if rows else 0, [_example(rule, row) for row in rows])
            self._announce("the sums")
            balance = await self._balance(connection)
        if self._is_deep:
            for rule in (_BODIES, _CONFLICT_BODIES):
                await self._check(rule, self._wrong_bodies(rule))
        return Books(balance, tuple(self._found), self._step)

    def _arguments(self, statement: str) -> tuple[object, ...]:
        if statement == "find_missing_guards":
            return (list(_GUARDS),)
        if statement == "find_forgotten_events":
            return list(self._dedup_days_of), list(self._dedup_days_of.values()), self._dedup_days
        return ()

    def _announce(self, title: str) -> None:
        self._progress(title, self._step, self._steps)
        self._step += 1

    def _note(self, rule: _Rule, count: int, examples: Sequence[str]) -> None:
        if count:
            self._found.append(Imbalance(rule.title, count, tuple(examples), rule.meaning))

    async def _check(self, rule: _Rule, broken: AsyncIterator[str]) -> None:
        """Count what a stream finds broken, keeping the first few as examples."""
        self._announce(rule.title)
        count, examples = 0, []
        async for example in broken:
            count += 1
            if count <= MOST_EXAMPLES:
                examples.append(example)
        self._note(rule, count, examples)

    async def _uneven(self, connection: Connection) -> AsyncIterator[str]:
        async for rows in _chunks(connection, SQL["stream_uneven_events"]):
            gone = {
                ids.show_delivery(row["id"], ordinal)
                for row in rows
                for ordinal in set(range(row["fanout"])).difference(row["ordinals"])
            }
            purged = await _audited(connection, (PURGE_DEAD,), gone)
            self._purged += len(purged)
            for row in rows:
                explained = sum(ids.show_delivery(row["id"], ordinal) in purged for ordinal in range(row["fanout"]))
                if row["held"] + explained != row["fanout"]:
                    yield f"{ids.show(ids.EVENT, row['id'])} (owed {row['fanout']}, there {row['held'] + explained})"

    async def _undecided(self, connection: Connection) -> AsyncIterator[str]:
        async for rows in _chunks(connection, SQL["stream_ignored_without_attempt"]):
            names = {ids.show_delivery(row["event_id"], row["ordinal"]): row["last_outcome"] for row in rows}
            decided = await _audited(connection, (IGNORE_DEAD, OVERTAKEN), names)
            for name, last in names.items():
                if name not in decided:
                    yield f"{name} (last attempt: {last})"

    async def _wrong_bodies(self, rule: _Rule) -> AsyncIterator[str]:
        # Bodies never change, so they are read in short statements beside the snapshot, which may end meanwhile.
        after = _FIRST
        while rows := await self._database.fetch(SQL[rule.statement], after, _BODIES_AT_ONCE):
            after = rows[-1]["id"]
            for row in rows:
                if not row["is_right"]:
                    yield ids.show(rule.prefix, row["id"])

    async def _balance(self, connection: Connection) -> Balance:
        figures: dict[str, Any] = {}
        for statement in ("sum_events", "sum_deliveries", "sum_others"):
            row = await connection.fetchrow(SQL[statement])
            assert row is not None  # an aggregate always has a row
            figures |= dict(row)
        rows = await connection.fetch(SQL["sum_dropped"])
        dropped = {f"{row['kind']}, {row['reason']}": row["dropped"] for row in rows}
        return Balance(**figures, purged=self._purged, dropped=dropped)


@contextlib.asynccontextmanager
async def _snapshot(database: Database) -> AsyncIterator[Connection]:
    async with database.acquire() as connection:
        with translated():
            async with connection.transaction(isolation="repeatable_read", readonly=True):
                yield connection


async def _chunks(connection: Connection, sql: str) -> AsyncIterator[Sequence[Record]]:
    """Read a statement's rows a bounded number at a time."""
    cursor = await connection.cursor(sql)
    while rows := await cursor.fetch(_CHUNK):
        yield rows


async def _audited(connection: Connection, actions: Sequence[str], subjects: Iterable[str]) -> set[str]:
    rows = await connection.fetch(SQL["list_audited"], actions, list(subjects))
    return {row["subject"] for row in rows}


def _example(rule: _Rule, row: Record) -> str:
    if row["id"] is None:
        return str(row["detail"])
    name = ids.show(rule.prefix, row["id"])
    if row["ordinal"] is not None:
        name = ids.show_delivery(row["id"], row["ordinal"])
    return f"{name} ({row['detail']})"
