"""Limits the size of the database: creates partitions in advance and deletes rows as configured by retention.

Two rules make this safe with live traffic. Deletions are counted in `boathook.purge_log` in the same transaction, so
the consistency check stays exact. An event with unfinished deliveries or undecided dead letters is kept, with its
attempts, outcomes, side effects and reply, however old it is. A week with such events loses its others row by row.

A message may have its own expiry for its content: then its bytes are deleted, and the rest is kept. Bytes are kept
while a delivery of the message is pending or leased, so that nothing that was promised is lost. They are not kept for a
dead letter: that could be forever, and a message without content is not replayed.

A week without such events is emptied with a lock on its own tables only, and dropped when its parent tables can be
locked briefly. All lock timeouts are so short that what cannot be locked is left to the next run.
"""

import contextlib
import functools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, date, datetime
from datetime import time as time_of_day
from typing import Final, TypeVar

import asyncpg
import msgspec

from boathook.config import RetentionSettings
from boathook.db.database import Connection, Database, translate_errors
from boathook.db.statements import load
from boathook.domain.verification import HEAD_REASONS
from boathook.observability import meters
from boathook.observability.log import get_logger

SQL = load(__file__)
Result = TypeVar("Result")

_WEEKS_AHEAD: Final = 4
TIME_COLUMNS: Final = {"event": "id"} | dict.fromkeys(
    ("event_cause", "attempt", "delivery_archive", "side_effect", "reply"), "event_id"
)
"""The partitioned tables, each with its partition column."""

_RUN_BUDGET_S: Final = 20.0
BATCH: Final = 1_000
MAX_MOVED_ROWS: Final = 50_000
"""Maximum number of rows of one week that are moved out of a default partition, which is locked meanwhile."""
MAX_PAGES: Final = 8_192
"""Pages of dedup keys scanned in one run, 64 MiB; a larger table is covered over many runs."""
_LOCK_TIMEOUT: Final = "250ms"
_SLOW_STATEMENT_TIMEOUT_S: Final = 600.0
"""For counting a large week, which blocks no other session."""

_LOCK_ERRORS: Final = (asyncpg.LockNotAvailableError, asyncpg.DeadlockDetectedError, asyncpg.QueryCanceledError)


class MaintenanceReport(msgspec.Struct):
    """The result of one maintenance run."""

    was_already_running: bool = False
    """Another process is running maintenance; nothing was done."""
    partitions_created: int = 0
    rows_moved: int = 0
    """Rows moved out of default partitions."""
    weeks_dropped: int = 0
    dropped: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)
    """Deleted rows by kind and reason, as counted in `boathook.purge_log`."""
    left: list[str] = msgspec.field(default_factory=list)
    """The steps that the next run must retry, as text."""


async def run_maintenance(database: Database, retention: RetentionSettings) -> MaintenanceReport:
    """Run one bounded round of maintenance; the rest is left to the next run.

    Raises:
        DatabaseUnavailable: the server is unavailable.
    """
    report = MaintenanceReport()
    async with database.acquire() as connection:
        with translate_errors():
            if not await connection.fetchval(SQL["try_lock"]):
                report.was_already_running = True
                return report
            try:
                await _MaintenanceRun(connection, retention, report).run()
            finally:
                with contextlib.suppress(asyncpg.InterfaceError, asyncpg.PostgresError, OSError):
                    await connection.fetchval(SQL["release_lock"])
    for (kind, _reason), number in report.dropped.items():
        meters.count("boathook_retention_dropped_total", number, kind=kind)
    if report.left:
        get_logger("maintenance").info("maintenance_left", left=report.left)
    return report


class _MaintenanceRun:
    """One run, on one connection."""

    def __init__(self, connection: Connection, retention: RetentionSettings, report: MaintenanceReport) -> None:
        self._connection = connection
        self._retention = retention
        self._report = report
        self._counted: Counter[tuple[str, str]] = Counter()
        """The counts of the current transaction."""
        self._ends = time.monotonic() + _RUN_BUDGET_S

    async def run(self) -> None:
        retention = self._retention
        cutoff: datetime = await self._connection.fetchval(SQL["find_cutoff"], retention.events_days)
        for parent in TIME_COLUMNS:
            await self._move_unpartitioned(parent, cutoff)
        await self._make_partitions()
        for row in await self._connection.fetch(SQL["list_old_partitions"], cutoff):
            await self._drop_old_week(row["monday"], row["children"], cutoff)
        await self._delete_old_events("event_default", cutoff)
        await self._expunge()
        await self._delete_expired_dedup_keys()
        await self._delete_in_batches("unhandled", "forget_unhandled", retention.events_days)
        await self._delete_in_batches("conflict", "drop_old_conflicts", retention.conflicts_days)
        await self._delete_in_batches("buffer_mark", "drop_old_marks", retention.events_days)
        rejections = (retention.rejections_days, retention.rejections_count, retention.rejections_bytes)
        await self._delete_in_batches("rejection", "bound_rejections", *rejections, sorted(HEAD_REASONS))

    async def _try(self, task: str, step: Callable[[], Awaitable[Result]]) -> Result | None:
        """Run *step* in a transaction; if it cannot get its locks, it is left to the next run."""
        self._counted.clear()
        try:
            async with self._connection.transaction():
                await self._connection.fetch(SQL["limit_waits"], _LOCK_TIMEOUT, f"{_SLOW_STATEMENT_TIMEOUT_S:.0f}s")
                result = await step()
        except _LOCK_ERRORS as error:
            self._report.left.append(f"{task}: {error}")
            return None
        self._report.dropped.update(self._counted)
        return result

    def _has_time(self) -> bool:
        return time.monotonic() < self._ends

    async def _move_unpartitioned(self, parent: str, cutoff: datetime) -> None:
        """Move the rows in a default partition to partitions of their own."""
        key = TIME_COLUMNS[parent]
        for row in await self._connection.fetch(
            _fill_names("find_unpartitioned", parent=parent, key=key), cutoff, timeout=_SLOW_STATEMENT_TIMEOUT_S
        ):
            monday, child = _midnight(row["monday"]), f"{parent}_{row['monday']:%Y%m%d}"
            if row["rows"] > MAX_MOVED_ROWS:
                self._report.left.append(f"move {child}: {row['rows']} rows are too many to move")
                continue
            moved = await self._try(f"move {child}", functools.partial(self._move_week, parent, child, monday))
            if moved is not None:
                self._report.partitions_created += 1
                self._report.rows_moved += moved

    async def _move_week(self, parent: str, child: str, monday: datetime) -> int:
        names = {"parent": parent, "child": child, "key": TIME_COLUMNS[parent], "monday": monday.isoformat()}
        await self._connection.execute(_fill_names("lock_default", **names))
        await self._connection.execute(_fill_names("create_week", **names))
        moved = await self._connection.execute(
            _fill_names("move_unpartitioned", **names), monday, timeout=_SLOW_STATEMENT_TIMEOUT_S
        )
        await self._connection.execute(_fill_names("attach_week", **names))
        return int(moved.split()[-1])

    async def _make_partitions(self) -> None:
        async def make() -> int:
            created: int = await self._connection.fetchval(SQL["ensure_partitions"], _WEEKS_AHEAD)
            return created

        try:
            self._report.partitions_created += await self._try("partitions ahead", make) or 0
        except asyncpg.CheckViolationError as error:
            # Rows that could not be moved are in the way; their week continues in the default partition.
            self._report.left.append(f"partitions ahead: {error}")

    async def _drop_old_week(self, monday: date, children: Sequence[str], cutoff: datetime) -> None:
        if not self._has_time():
            return
        empty = functools.partial(self._empty_week, _midnight(monday), children)
        match await self._try(f"empty the week of {monday}", empty):
            case True:
                drop = functools.partial(self._drop_week, children)
                self._report.weeks_dropped += await self._try(f"drop the week of {monday}", drop) or 0
            case False if (events := f"event_{monday:%Y%m%d}") in children:
                await self._delete_old_events(events, cutoff)

    async def _empty_week(self, monday: datetime, children: Sequence[str]) -> bool:
        """Delete a week's rows, counted, unless some are still needed; return whether it is empty.

        The rows are counted while readers have access; the week is checked again once it is locked exclusively.
        """
        connection, tables = self._connection, _qualified_names(children)
        await connection.execute(_fill_names("hold_writers", children=tables))
        if await connection.fetchval(SQL["is_week_pending"], monday):
            return False
        counts = {
            child: await connection.fetchval(_fill_names("count_rows", child=child), timeout=_SLOW_STATEMENT_TIMEOUT_S)
            for child in children
        }
        if any(counts.values()):
            await connection.execute(_fill_names("hold_everyone", children=tables))
            if await connection.fetchval(SQL["is_week_pending"], monday):
                return False
            for child, number in counts.items():
                await self._record(child.rpartition("_")[0], "age", number)
            await connection.execute(_fill_names("empty_week", children=tables))
        return True

    async def _drop_week(self, children: Sequence[str]) -> bool:
        connection, tables = self._connection, _qualified_names(children)
        await connection.execute(_fill_names("hold_everyone", children=tables))
        for child in children:
            if await connection.fetchval(_fill_names("count_rows", child=child), timeout=_SLOW_STATEMENT_TIMEOUT_S):
                return False
        await connection.execute(_fill_names("drop_week", children=tables))
        return True

    async def _delete_old_events(self, child: str, cutoff: datetime) -> None:
        """Delete old events row by row from a partition in which others must stay."""
        while self._has_time():
            if not await self._try(
                f"delete old events from {child}", functools.partial(self._delete_old_batch, child, cutoff)
            ):
                return

    async def _delete_old_batch(self, child: str, cutoff: datetime) -> int:
        connection, pick = self._connection, _fill_names("pick_old_events", child=child)
        picked = [row["id"] for row in await connection.fetch(pick, cutoff, BATCH, timeout=_SLOW_STATEMENT_TIMEOUT_S)]
        # A second statement sees deliveries that were added until the last event was picked.
        deleted_ids = [row["id"] for row in await connection.fetch(SQL["delete_events"], picked)]
        await self._record("event", "age", len(deleted_ids))
        for parent in TIME_COLUMNS.keys() - {"event"}:
            number: int = await connection.fetchval(_fill_names("delete_of_events", parent=parent), deleted_ids)
            await self._record(parent, "age", number)
        return len(deleted_ids)

    async def _expunge(self) -> None:
        """Delete the expired content of messages, in batches."""
        while self._has_time():
            if not await self._try("expunge content", self._expunge_batch):
                return

    async def _expunge_batch(self) -> int:
        picked = [row["id"] for row in await self._connection.fetch(SQL["pick_expired_content"], BATCH)]
        number: int = await self._connection.fetchval(SQL["expunge_content"], picked)
        await self._record("content", "expired", number)
        return number

    async def _delete_expired_dedup_keys(self) -> None:
        pages: int = await self._connection.fetchval(SQL["measure_dedup"]) + 1
        first = random.randrange(pages - MAX_PAGES) if pages > MAX_PAGES else 0
        await self._delete_in_batches("dedup", "forget_expired_keys", first, first + MAX_PAGES)

    async def _delete_in_batches(self, kind: str, statement: str, *bounds: float | Sequence[str]) -> None:
        """Delete rows beyond the bounds, in batches."""
        while self._has_time():
            if (await self._try(kind, functools.partial(self._delete_batch, kind, statement, bounds)) or 0) < BATCH:
                return

    async def _delete_batch(self, kind: str, statement: str, bounds: Sequence[float | Sequence[str]]) -> int:
        rows = await self._connection.fetch(SQL[statement], *bounds, BATCH)
        for row in rows:
            await self._record(kind, row["reason"], row["dropped"])
        return sum(row["dropped"] for row in rows)

    async def _record(self, kind: str, reason: str, number: int) -> None:
        if number:
            await self._connection.execute(SQL["record_dropped"], kind, reason, number)
            self._counted[kind, reason] += number


def _fill_names(statement: str, **names: str) -> str:
    """Insert table names, which cannot be parameters, into a statement."""
    sql = SQL[statement]
    for word, name in names.items():
        sql = sql.replace(f"{{{word}}}", name)
    return sql


def _qualified_names(children: Sequence[str]) -> str:
    return ", ".join(f"boathook.{child}" for child in children)


def _midnight(monday: date) -> datetime:
    return datetime.combine(monday, time_of_day.min, UTC)
