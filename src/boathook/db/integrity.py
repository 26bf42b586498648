"""The consistency check: verifies read-only that every accepted event is accounted for and no invariant is violated.

The store is read in ranges of ids, each in one statement of a fraction of a second. All rows of an event have the
event's id, so a query sees its events completely and at one point in time. No snapshot stays open, so vacuum continues
during the check. Neither memory nor temporary files grow with the history.

Dedup keys are stored by key, with their rows roughly in the order of their events. A small index finds the pages that
may contain keys of a range. Where that index excludes few pages, a small range costs as much as a large one. Ranges
therefore shrink only as long as that makes a query shorter.

Events that are accepted, or drained from a spool, behind the cursor of the check are in none of its totals. Each range
is summed by the query that checks it, so the totals are consistent whatever runs concurrently.
"""

import functools
import time
from asyncio import sleep
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

import asyncpg
import msgspec
from msgspec.structs import fields

from boathook.db.database import Database, Record, translate_errors
from boathook.db.delivery_commands import IGNORE_DEAD, PURGE_DEAD, ROUTE_EVENT
from boathook.db.endpoint_deliveries import OVERTAKEN
from boathook.db.invariants import (
    AUDIT_CHAIN,
    GLOBAL_INVARIANTS,
    INVARIANTS,
    ORDER_KEYS,
    SCANS,
    SCHEMA_GUARDS,
    Invariant,
    Scan,
    SharedRead,
)
from boathook.db.statements import load
from boathook.domain import ids

SQL = load(__file__)

MAX_EXAMPLES: Final = 5
_FIRST: Final = UUID(int=0)
_LAST: Final = UUID(int=2**128 - 1)
_TARGET_QUERY_S: Final = 0.25
"""Target duration of a query; ranges grow and shrink to match it."""
_MAX_COST_RATIO: Final = 1.5
"""Maximum cost per row of a smaller range, relative to a larger one, at which the smaller query still pays off."""
_MIN_ROWS: Final = 100
_MAX_TRIES: Final = 8
RETRY_S: Final = 1.0
_ORDER_KEY_PAGE: Final = 2_000
AUDIT_PAGE: Final = 10_000
ISOLATION: Final = "read_committed"
"""With this level a statement takes its snapshot after it has locked all that it reads. An earlier snapshot would not
see what retention recorded of a partition that it truncated while the query waited: truncation is visible to all."""
_MIN_SPAN: Final = timedelta(milliseconds=1)
_TRANSIENT_ERRORS: Final = (asyncpg.QueryCanceledError, asyncpg.DeadlockDetectedError, asyncpg.LockNotAvailableError)
"""Errors of a query on a busy store; the query is retried at half the size."""
_SHOW_COMMANDS: Final = {
    ids.EVENT: "boathook events show",
    ids.DELIVERY: "boathook events show",
    ids.REJECTION: "boathook rejections show",
}


class ViolationExample(msgspec.Struct, frozen=True):
    """One violation of an invariant."""

    subject: str | None
    """The id of the event, delivery, conflict or rejection; None for the store as a whole."""
    expected: str
    found: str
    look: str | None
    """The command that shows the subject."""

    def __str__(self) -> str:
        prefix = f"{self.subject}: " if self.subject else ""
        return f"{prefix}expected {self.expected}; found {self.found}"


class Violation(msgspec.Struct, frozen=True):
    """One invariant that does not hold."""

    check: str
    count: int
    """Total number of violations."""
    examples: tuple[ViolationExample, ...]
    """The first few violations."""
    meaning: str
    """One sentence for the operator."""
    remedy: str
    """The fix, as an instruction for the operator."""


class Balance(msgspec.Struct, frozen=True, kw_only=True):
    """Totals of the store, each event counted at the time when it was checked."""

    begun_at: datetime
    events: int
    received: int
    published: int
    accepted_conflicts: int = 0
    """Events that operators created by accepting conflicts."""
    deliveries: int
    """Deliveries that were created when their events were accepted."""
    replayed: int
    """Deliveries added later, by replaying or rerouting events."""
    succeeded: int
    ignored: int
    dead: int
    pending: int
    leased: int
    purged: int
    """Dead letters of stored events that operators deleted."""
    attempts: int
    remembered: int
    """Stored dedup keys."""
    conflicts: int
    conflicting_requests: int
    rejections: int
    dropped: Mapping[str, int] = msgspec.field(default_factory=dict)
    """Number of rows that retention and operators have deleted, by kind and reason."""

    @property
    def missing(self) -> int:
        """Deliveries that are neither open, nor ended, nor purged; 0 if the totals are consistent."""
        finished = self.succeeded + self.ignored + self.dead
        return self.deliveries + self.replayed - (finished + self.pending + self.leased + self.purged)


class IntegrityReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a check."""

    balance: Balance
    violations: tuple[Violation, ...]
    checks: int
    """Number of checked invariants."""
    looks: int
    longest_query_s: float
    """Duration of the longest query, and therefore of its snapshot."""

    @property
    def is_consistent(self) -> bool:
        """Whether every invariant holds."""
        return not self.violations


class CheckProgress(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a check."""

    title: str
    number: int
    """Number of the current step, from 1."""
    of: int
    share: float
    """Completed share of this step, by time of the events: 0 to 1."""
    events: int
    """Events checked so far."""
    reached: datetime | None
    """Time of the events that the check has reached; None before the first, and for steps without a time order."""


ProgressCallback = Callable[[CheckProgress], None]


class _CheckOptions(msgspec.Struct, frozen=True):
    """The arguments of `check_integrity`."""

    dedup_days: float
    dedup_days_of: Mapping[str, float]
    is_deep: bool
    since: datetime | None
    until: datetime | None
    rest: float


async def check_integrity(
    database: Database,
    *,
    dedup_days: float,
    dedup_days_of: Mapping[str, float] | None = None,
    is_deep: bool = False,
    since: datetime | None = None,
    until: datetime | None = None,
    rest: float = 0.0,
    progress: ProgressCallback | None = None,
) -> IntegrityReport:
    """Check the store and return the balance with all violations.

    Args:
        dedup_days: how long keys are remembered; *dedup_days_of* has the sources that differ.
        is_deep: also compare each stored body with its hash.
        since: check only events, conflicts and rejections from this time on, and the keys of these events; *until* is
            the upper bound. Invariants of the store as a whole are always checked.
        rest: pause after each query, as a multiple of its duration.
        progress: called before each query.

    Raises:
        DatabaseUnavailable: PostgreSQL is unavailable, or so busy that one query was cut short many times.
        DatabaseError: a statement failed, for example because of a missing privilege.
    """
    options = _CheckOptions(dedup_days, dedup_days_of or {}, is_deep, since, until, rest)
    with translate_errors():
        return await Check(database, options, progress or _ignore).run()


class RangeSize:
    """The number of rows in the next range of a scan, based on the duration of earlier queries."""

    def __init__(self, walk: Scan) -> None:
        self.rows = walk.rows
        self._max_rows = walk.max_rows
        self._is_fitted = walk.rows < walk.max_rows
        self._other: tuple[int, float] | None = None
        """The previous size, and the duration of its query in seconds."""

    def halve(self) -> None:
        """Halve the size after a query that did not complete."""
        self.rows = max(_MIN_ROWS, self.rows // 2)

    def fit(self, took_s: float) -> None:
        """Adjust the size to the duration of the last query."""
        if not self._is_fitted:
            return
        took_s = max(took_s, 0.001)
        factor = min(2.0, max(0.5, _TARGET_QUERY_S / took_s))
        if factor < 1.0 and self._is_dear_when_small(took_s):
            factor = 2.0
        rows = min(self._max_rows, max(_MIN_ROWS, int(self.rows * factor)))
        if rows != self.rows:
            self.rows, self._other = rows, (self.rows, took_s)

    def _is_dear_when_small(self, took_s: float) -> bool:
        """Return whether a query takes about as long at any size, so that smaller ranges would cost more in total."""
        if self._other is None:
            return False
        (rows, small_s), (more_rows, large_s) = sorted([(self.rows, took_s), self._other])
        return small_s / rows > _MAX_COST_RATIO * large_s / more_rows


class Check:
    """One running check."""

    def __init__(self, database: Database, scope: _CheckOptions, progress: ProgressCallback) -> None:
        self._database = database
        self._scope = scope
        self._progress = progress
        self._walks = [walk for walk in SCANS if scope.is_deep or not walk.is_deep]
        self._begun_at = datetime.now(UTC)
        self._low = ids.first_of(scope.since) if scope.since else _FIRST
        self._end = ids.first_of(scope.until) if scope.until else _LAST
        self._span = (self._begun_at, self._begun_at)
        """The covered time range, for the progress."""
        self._figures: Counter[str] = Counter()
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, list[ViolationExample]] = {}
        self._witnesses: dict[str, tuple[UUID, UUID]] = {}
        """An early event of each source whose dedup key is still stored, with that key, as found during the scan."""
        self._looks = 0
        self._longest_query_s = 0.0
        self._number = 0

    async def run(self) -> IntegrityReport:
        """Check everything and return the report."""
        await self._measure()
        for walk in self._walks:
            self._number += 1
            await self._walk(walk)
        self._number += 1
        await self._check_order_keys()
        self._number += 1
        await self._check_audit_chain()
        for rule in GLOBAL_INVARIANTS:
            self._number += 1
            self._report(rule.title)
            guards = [list(SCHEMA_GUARDS)] if rule.statement == "find_missing_guards" else []
            await self.run_query(_fill_frame("show_broken", rule.statement), guards)
        return await self._build_report()

    async def _measure(self) -> None:
        row = await self._database.fetchrow(SQL["find_extent"])
        assert row is not None  # it has no condition
        self._begun_at = row["now"]
        first = ids.created_at(row["first"]) if row["first"] else row["now"]
        self._span = (max(first, self._scope.since or first), min(row["now"], self._scope.until or row["now"]))

    async def _walk(self, walk: Scan) -> None:
        """Check one range after the other; the duration of the last query determines the size of the next range."""
        low, size, tries = self._low, RangeSize(walk), 0
        while low < self._end:
            self._report(walk.title, low)
            began = time.monotonic()
            try:
                high = min(await self.bound(walk, low, size.rows), self._end)
                await self.run_query(range_query(walk), [low, high, *self._arguments(walk)])
            except _TRANSIENT_ERRORS:
                tries += 1
                if tries == _MAX_TRIES:
                    raise
                size.halve()
                await sleep(RETRY_S)
                continue
            took = time.monotonic() - began
            size.fit(took)
            low, tries = high, 0
            await sleep(took * self._scope.rest)
        self._report(walk.title, low)

    async def bound(self, walk: Scan, low: UUID, rows: int) -> UUID:
        """Return the id up to which a part of a walk goes that begins at *low*."""
        async with self._database.acquire() as connection:
            bound: UUID | None = await connection.fetchval(SQL[walk.bound], low, rows)
            return bound or _LAST

    async def run_query(self, sql: str, arguments: Sequence[object]) -> None:
        """Run one statement in its own read-only transaction, and collect its rows."""
        async with self._database.acquire() as connection:
            async with connection.transaction(isolation=ISOLATION, readonly=True):
                await connection.execute(f"{self._database.bounds}; {SQL['prepare_look']}")
                began = time.monotonic()
                rows = await connection.fetch(sql, *arguments)
            self._longest_query_s = max(self._longest_query_s, time.monotonic() - began)
        self._looks += 1
        totals: dict[str, int] = {}
        for row in rows:
            self.collect_row(row, totals)
        self._counts.update(totals)

    def collect_row(self, row: Record, totals: dict[str, int]) -> None:
        """Take up one row of a statement: a figure, an early event of a source, or an example of a violation."""
        if row["rule"] == "figure":
            self._figures[row["expected"]] += row["total"]
        elif row["rule"] == "witness":
            self._witnesses[row["expected"]] = row["id"], UUID(row["found"])
        else:
            totals[row["rule"]] = row["total"]
            self._add_example(row["rule"], row)

    def _add_example(self, statement: str, row: Record) -> None:
        examples = self._examples.setdefault(statement, [])
        if len(examples) < MAX_EXAMPLES:
            examples.append(_example(_INVARIANT_BY_STATEMENT[statement], row))

    def _arguments(self, walk: Scan) -> list[object]:
        days_of = self._scope.dedup_days_of
        match walk.gathered:
            case SharedRead.EVENTS:
                return [PURGE_DEAD, [IGNORE_DEAD, OVERTAKEN], ROUTE_EVENT]
            case SharedRead.MEMORY:
                events, keys = [id for id, _ in self._witnesses.values()], [key for _, key in self._witnesses.values()]
                return [events, keys, list(days_of), list(days_of.values()), self._scope.dedup_days]
            case SharedRead.NOTHING:
                return []

    async def _check_order_keys(self) -> None:
        """Check the order keys that deliveries wait for, page by page."""
        cursor: tuple[str, str] | None = ("", "")
        while cursor is not None:
            self._report(ORDER_KEYS.title)
            began = time.monotonic()
            rows = await self._database.fetch(SQL[ORDER_KEYS.statement], *cursor, _ORDER_KEY_PAGE)
            for row in rows:
                if row["is_stuck"]:
                    self._counts[ORDER_KEYS.statement] += 1
                    self._add_example(ORDER_KEYS.statement, row)
            cursor = (rows[-1]["recipient"], rows[-1]["order_key"]) if len(rows) == _ORDER_KEY_PAGE else None
            await sleep((time.monotonic() - began) * self._scope.rest)

    async def _check_audit_chain(self) -> None:
        """Check the audit chain page by page, each page from the last row of the previous one."""
        position, is_first = 1, True
        while True:
            self._report(AUDIT_CHAIN.title)
            began = time.monotonic()
            rows = await self._database.fetch(SQL[AUDIT_CHAIN.statement], position, AUDIT_PAGE)
            for row in rows if is_first else rows[1:]:
                if row["is_broken"]:
                    self._counts[AUDIT_CHAIN.statement] += 1
                    self._add_example(AUDIT_CHAIN.statement, row)
            if rows[-1]["is_end"]:
                return
            position, is_first = rows[-1]["place"], False
            await sleep((time.monotonic() - began) * self._scope.rest)

    async def _build_report(self) -> IntegrityReport:
        rows = await self._database.fetch(SQL["list_dropped"])
        dropped = {f"{row['kind']}, {row['reason']}": row["dropped"] for row in rows}
        rules = [*(rule for walk in self._walks for rule in walk.rules), ORDER_KEYS, AUDIT_CHAIN, *GLOBAL_INVARIANTS]
        figures = {field.name: self._figures[field.name] for field in fields(Balance) if field.type is int}
        return IntegrityReport(
            balance=Balance(begun_at=self._begun_at, dropped=dropped, **figures),
            violations=tuple(self._violation(rule) for rule in rules if self._counts[rule.statement]),
            checks=len(rules),
            looks=self._looks,
            longest_query_s=self._longest_query_s,
        )

    def _violation(self, rule: Invariant) -> Violation:
        examples = tuple(self._examples[rule.statement])
        return Violation(rule.title, self._counts[rule.statement], examples, rule.meaning, rule.remedy)

    def _report(self, title: str, low: UUID | None = None) -> None:
        reached = ids.created_at(low) if low not in {None, _FIRST, _LAST} else None
        first, last = self._span
        progress = ((reached or first) - first) / max(last - first, _MIN_SPAN)
        self._progress(
            CheckProgress(
                title=title,
                number=self._number,
                of=len(self._walks) + 2 + len(GLOBAL_INVARIANTS),
                share=1.0 if low == _LAST else min(1.0, max(0.0, progress)),
                events=self._figures["events"],
                reached=reached,
            )
        )


_INVARIANT_BY_STATEMENT: Final = {rule.statement: rule for rule in INVARIANTS}


def _ignore(_step: CheckProgress) -> None:
    """Ignore the progress."""


@functools.cache
def range_query(walk: Scan) -> str:
    """Return the statement that checks a range, sums it and finds witnesses."""
    parts = [_fill_frame("show_broken", rule.statement) for rule in walk.rules]
    parts += [_fill_frame("show_sums", walk.sums)] if walk.sums else []
    parts += [_fill_frame("show_witnesses", walk.witnesses)] if walk.witnesses else []
    gather = f"{SQL[walk.gathered.value]}\n" if walk.gathered.value else ""
    return gather + "\nunion all\n".join(parts)


def _fill_frame(frame: str, statement: str) -> str:
    return SQL[frame].replace("{name}", statement).replace("{statement}", SQL[statement])


def _example(rule: Invariant, row: Record) -> ViolationExample:
    if row["id"] is None:
        return ViolationExample(None, row["expected"], row["found"], None)
    subject, command = ids.show(rule.prefix, row["id"]), _SHOW_COMMANDS.get(rule.prefix)
    look = command and f"{command} {subject}"
    if row["ordinal"] is not None:
        subject = ids.show_delivery(row["id"], row["ordinal"])
    return ViolationExample(subject, row["expected"], row["found"], look)
