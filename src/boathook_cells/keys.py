"""Copies the dedup keys of a source or an application to the database of another cell."""

from collections.abc import Sequence
from typing import Any, Final

from boathook.db.database import Database, Record, translate_errors
from boathook.db.statements import load

SQL = load(__file__)

_PAGE: Final = 5_000


async def copy_keys(origin: Database, target: Database, source: str, cell: str) -> int:
    """Copy the dedup keys of a source to another cell's database; return their number. Safe to repeat.

    Args:
        origin: the database of the cell that has stored the source's events.
        target: the database that must recognize them as duplicates.
        source: the source.
        cell: the name of the origin's cell.
    """
    return await _copy(origin, target, "read_keys", source, cell)


async def copy_message_keys(origin: Database, target: Database, application: str, cell: str, *, with_gone: bool) -> int:
    """Copy the dedup keys of an application's messages, as `copy_keys` does for a source.

    Args:
        origin: the database of the cell that has stored the messages.
        target: the database that must recognize them as duplicates.
        application: the application's public id.
        cell: the name of the origin's cell.
        with_gone: also copy the keys whose event is gone; their application is unknown.
    """
    return await _copy(origin, target, "read_message_keys", application, cell, with_gone)


async def _copy(origin: Database, target: Database, statement: str, *arguments: Any) -> int:
    copied = 0
    async with origin.snapshot() as connection:
        with translate_errors():
            cursor = await connection.cursor(SQL[statement], *arguments)
            while page := await cursor.fetch(_PAGE):
                await _insert(target, page)
                copied += len(page)
    return copied


async def _insert(target: Database, rows: Sequence[Record]) -> None:
    columns = list(map(list, zip(*rows, strict=True)))
    is_left = True
    while is_left:
        tag = await target.execute(SQL["insert_keys"], *columns)
        # A message that is being passed on may have a key, perhaps since a transaction that this has waited for.
        is_left = int(tag.split()[-1]) < len(rows) and bool(await target.fetchval(SQL["drop_passed_on"], *columns[:2]))
    objects = [row for row in rows if row["newest_key"] is not None]
    if objects:
        names = ("key", "event_id", "body_sha256", "expires_at", "home", "newest_key")
        await target.execute(SQL["renew_objects"], *([row[name] for row in objects] for name in names))
