"""The audit: who did what to what, written in the transaction that does it, and sealed soon after.

The keeper seals rows one after the other: a seal is the hash of the seal before it with the row's own content, so a row
that is changed, removed or put in between later shows when the books are read. The last seal is kept beside the rows,
so that those at the end are missed as well. Those who write rows do not seal them:
they would have to wait for each other until each has committed, some of them while they hold deliveries that the others
want. What is changed before it is sealed, within seconds, does not show; nor does it if somebody writes the whole chain
anew, unless the last seal is kept elsewhere, as it is in the log.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from boathook.db.database import Connection, Database, Record
from boathook.db.queries.listings import AuditRow, like_pattern
from boathook.db.statements import load

SQL = load(__file__)

SCAN_ROWS: Final = 20_000
"""Rows that one look goes through."""
SCAN_BUDGET_S: Final = 0.15
"""Looks follow each other until a page is full or so much time is used up."""
SEAL_BATCH: Final = 1_000
_MAX_RECENT: Final = 5_000


@dataclass(frozen=True, slots=True)
class AuditCursor:
    """Where a look goes on: before this row."""

    at: datetime
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditFilter:
    """Which rows are looked for; None lets everything through."""

    actor: str | None = None
    action: str | None = None
    """A pattern; ``*`` stands for any run of characters."""
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class AuditPage:
    """What a search came to."""

    rows: Sequence[AuditRow]
    place: AuditCursor | None
    """Where it goes on; None where there is nothing older."""
    is_full: bool
    """Whether it ended because the page is full, and not because its time was over."""


@dataclass(frozen=True, slots=True)
class ChainHead:
    """The last seal."""

    place: int
    seal: str
    """In hexadecimal."""


async def record(connection: Connection, actor: str, action: str, subject: str, text: str | None = None) -> None:
    """Note who did what to what."""
    await connection.execute(SQL["insert_note"], actor, action, subject, text)


async def find_records(connection: Connection, action: str, subjects: Sequence[str]) -> list[tuple[str, str]]:
    """Return subject and text of the notes of an action on these subjects, oldest first."""
    rows = await connection.fetch(SQL["find_notes"], action, subjects)
    return [(row["subject"], row["note"]) for row in rows]


async def search(database: Database, wanted: AuditFilter, *, before: AuditCursor | None, limit: int) -> AuditPage:
    """Return the next rows that are wanted, newest first, in a bounded time."""
    rows: list[AuditRow] = []
    ends = time.monotonic() + SCAN_BUDGET_S
    while True:
        place = (None, None) if before is None else (before.at, before.id)
        arguments = (
            wanted.actor,
            like_pattern(wanted.action),
            wanted.since,
            wanted.until,
            *place,
            SCAN_ROWS,
            limit - len(rows),
        )
        looked = await database.fetch(SQL["look_back"], *arguments)
        rows += [_row(row) for row in looked if row["fits"]]
        before = AuditCursor(looked[-1]["at"], looked[-1]["id"]) if looked else None
        if len(rows) == limit:
            return AuditPage(rows, AuditCursor(rows[-1].at, rows[-1].id), is_full=True)
        if not looked or looked[-1]["number"] < SCAN_ROWS:
            return AuditPage(rows, None, is_full=False)
        if time.monotonic() > ends:
            return AuditPage(rows, before, is_full=False)


async def list_actions(database: Database) -> list[str]:
    """Return the actions that were recorded lately."""
    return [row["action"] for row in await database.fetch(SQL["list_actions"], _MAX_RECENT)]


async def seal(database: Database) -> int:
    """Seal the next rows that are not; return how many were."""
    sealed: int = await database.fetchval(SQL["seal_rows"], SEAL_BATCH)
    return sealed


async def read_head(database: Database) -> ChainHead | None:
    """Return the last seal; None where nothing is sealed."""
    row = await database.fetchrow(SQL["read_head"])
    return None if row is None else ChainHead(row["place"], row["seal"])


def _row(row: Record) -> AuditRow:
    return AuditRow(**{name: row[name] for name in AuditRow.__slots__})
