"""The audit log: records each operator action in the transaction that makes it; the keeper seals rows soon after.

The keeper seals rows sequentially. A seal is the hash of the previous seal and the row's content. The consistency check
therefore detects a row that is changed, removed or inserted later. The last seal is also stored separately, so that
removed rows at the end are detected too. The transactions that write rows do not seal them: each would have to wait
until the others have committed, some of them while they hold deliveries that the others need.

Two changes are not detected: one made before the row is sealed, within seconds, and a rewrite of the whole chain. The
latter is detectable only if the last seal is also kept elsewhere, as in the log.
"""

import json
import re
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec
from msgspec.structs import asdict

from boathook.db.database import Connection, Database, Record
from boathook.db.queries.listings import AuditRow, like_pattern
from boathook.db.statements import load

SQL = load(__file__)

SCAN_ROWS: Final = 20_000
"""Rows scanned by one query."""
SCAN_BUDGET_S: Final = 0.15
"""Queries continue until a page is full or this much time has passed."""
SEAL_BATCH: Final = 1_000
_MAX_RECENT: Final = 5_000
_MAX_VALUE: Final = 200
"""Characters of a value that the description of a change contains."""
_NOT_DESCRIBED: Final = frozenset({"revision", "created_at", "updated_at", "disabled_at"})
_URL_SECRETS: Final = re.compile(r"(?<=://)[^/@]*@|[?#].*")


class AuditCursor(msgspec.Struct, frozen=True):
    """The cursor of a search: it continues before this row."""

    at: datetime
    id: int


class AuditFilter(msgspec.Struct, frozen=True, kw_only=True):
    """Filters audit rows; None matches everything."""

    actor: str | None = None
    action: str | None = None
    """A pattern; ``*`` matches any characters."""
    since: datetime | None = None
    until: datetime | None = None


class AuditPage(msgspec.Struct, frozen=True):
    """The result of a search."""

    rows: Sequence[AuditRow]
    place: AuditCursor | None
    """Where the search continues; None if there is nothing older."""
    is_full: bool
    """Whether it ended because the page is full, not because of the time limit."""


class ChainHead(msgspec.Struct, frozen=True):
    """The last seal of the chain."""

    place: int
    seal: str
    """In hexadecimal."""


async def record(connection: Connection, actor: str, action: str, subject: str, text: str | None = None) -> None:
    """Record an action with its actor and subject."""
    await connection.execute(SQL["insert_note"], actor, action, subject, text)


async def record_change(
    connection: Connection, actor: str, action: str, subject: str, before: msgspec.Struct, after: msgspec.Struct
) -> None:
    """Record a change of an object, with the values of its changed fields before and after."""
    hidden = {name for name in before.__struct_fields__ if name.startswith("encrypted_")}
    await record(connection, actor, action, subject, describe_change(asdict(before), asdict(after), hidden))


def describe_change(before: Mapping[str, Any], after: Mapping[str, Any], hidden: Collection[str]) -> str | None:
    """Return what differs, such as ``name: "Acme" -> "Acme Ltd"``; None without a difference.

    Args:
        before: the values before, by name.
        after: the values after.
        hidden: the names of secret values, of which only that they changed is said.
    """
    names = [name for name in {**before, **after} if name not in _NOT_DESCRIBED and before.get(name) != after.get(name)]
    return (
        "; ".join(
            f"{name.removeprefix('encrypted_')} changed"
            if name in hidden
            else f"{name}: {_describe_value(before.get(name))} -> {_describe_value(after.get(name))}"
            for name in names
        )
        or None
    )


def _describe_value(value: Any) -> str:
    text = "none" if value is None else json.dumps(value, ensure_ascii=False, default=str)
    if isinstance(value, str) and "://" in value:
        text = json.dumps(_URL_SECRETS.sub("", value), ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"


async def find_records(connection: Connection, action: str, subjects: Sequence[str]) -> list[tuple[str, str]]:
    """Return subject and note of the records of an action on these subjects, oldest first."""
    rows = await connection.fetch(SQL["find_notes"], action, subjects)
    return [(row["subject"], row["note"]) for row in rows]


async def search(database: Database, audit_filter: AuditFilter, *, before: AuditCursor | None, limit: int) -> AuditPage:
    """Return the next matching rows, newest first, within a time limit."""
    rows: list[AuditRow] = []
    ends = time.monotonic() + SCAN_BUDGET_S
    while True:
        cursor = (None, None) if before is None else (before.at, before.id)
        arguments = (
            audit_filter.actor,
            like_pattern(audit_filter.action),
            audit_filter.since,
            audit_filter.until,
            *cursor,
            SCAN_ROWS,
            limit - len(rows),
        )
        scanned = await database.fetch(SQL["look_back"], *arguments)
        rows += [_row(row) for row in scanned if row["fits"]]
        before = AuditCursor(scanned[-1]["at"], scanned[-1]["id"]) if scanned else None
        if len(rows) == limit:
            return AuditPage(rows, AuditCursor(rows[-1].at, rows[-1].id), is_full=True)
        if not scanned or scanned[-1]["number"] < SCAN_ROWS:
            return AuditPage(rows, None, is_full=False)
        if time.monotonic() > ends:
            return AuditPage(rows, before, is_full=False)


async def list_actions(database: Database) -> list[str]:
    """Return the recently recorded actions."""
    return [row["action"] for row in await database.fetch(SQL["list_actions"], _MAX_RECENT)]


async def seal(database: Database) -> int:
    """Seal the next unsealed rows; return the number."""
    sealed: int = await database.fetchval(SQL["seal_rows"], SEAL_BATCH)
    return sealed


async def read_head(database: Database) -> ChainHead | None:
    """Return the last seal; None if no row is sealed."""
    row = await database.fetchrow(SQL["read_head"])
    return None if row is None else ChainHead(row["place"], row["seal"])


def _row(row: Record) -> AuditRow:
    return AuditRow(**{name: row[name] for name in AuditRow.__struct_fields__})
