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

from boathook.journal.database import Connection, Database, Record
from boathook.journal.ledger import AuditRow, like
from boathook.journal.statements import load

SQL = load(__file__)

LOOK: Final = 20_000
"""Rows that one look goes through."""
LOOKED_S: Final = 0.15
"""Looks follow each other until a page is full or so much time is used up."""
SEALED_AT_ONCE: Final = 1_000
_RECENT: Final = 5_000


@dataclass(frozen=True, slots=True)
class Place:
    """Where a look goes on: before this row."""

    at: datetime
    id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which rows are looked for; None lets everything through."""

    actor: str | None = None
    action: str | None = None
    """A pattern; ``*`` stands for any run of characters."""
    since: datetime | None = None
    until: datetime | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """What a search came to."""

    rows: Sequence[AuditRow]
    place: Place | None
    """Where it goes on; None where there is nothing older."""
    is_full: bool
    """Whether it ended because the page is full, and not because its time was over."""


@dataclass(frozen=True, slots=True)
class Head:
    """The last seal."""

    place: int
    seal: str
    """In hexadecimal."""


async def note(connection: Connection, actor: str, action: str, subject: str, text: str | None = None) -> None:
    """Note who did what to what."""
    await connection.execute(SQL["insert_note"], actor, action, subject, text)


async def find_notes(connection: Connection, action: str, subjects: Sequence[str]) -> list[tuple[str, str]]:
    """Return subject and text of the notes of an action on these subjects, oldest first."""
    rows = await connection.fetch(SQL["find_notes"], action, subjects)
    return [(row["subject"], row["note"]) for row in rows]


async def search(database: Database, wanted: Wanted, *, before: Place | None, limit: int) -> Found:
    """Return the next rows that are wanted, newest first, in a bounded time."""
    rows: list[AuditRow] = []
    ends = time.monotonic() + LOOKED_S
    while True:
        place = (None, None) if before is None else (before.at, before.id)
        arguments = (wanted.actor, like(wanted.action), wanted.since, wanted.until, *place, LOOK, limit - len(rows))
        looked = await database.fetch(SQL["look_back"], *arguments)
        rows += [_row(row) for row in looked if row["fits"]]
        before = Place(looked[-1]["at"], looked[-1]["id"]) if looked else None
        if len(rows) == limit:
            return Found(rows, Place(rows[-1].at, rows[-1].id), is_full=True)
        if not looked or looked[-1]["number"] < LOOK:
            return Found(rows, None, is_full=False)
        if time.monotonic() > ends:
            return Found(rows, before, is_full=False)


async def list_actions(database: Database) -> list[str]:
    """Return the actions that were recorded lately."""
    return [row["action"] for row in await database.fetch(SQL["list_actions"], _RECENT)]


async def seal(database: Database) -> int:
    """Seal the next rows that are not; return how many were."""
    sealed: int = await database.fetchval(SQL["seal_rows"], SEALED_AT_ONCE)
    return sealed


async def read_head(database: Database) -> Head | None:
    """Return the last seal; None where nothing is sealed."""
    row = await database.fetchrow(SQL["read_head"])
    return None if row is None else Head(row["place"], row["seal"])


def _row(row: Record) -> AuditRow:
    return AuditRow(**{name: row[name] for name in AuditRow.__slots__})
