"""Removes unused objects, and finds missing ones: one pass through the bucket, page by page.

Listings are in the order of keys, and so are the table's rows. Each page is compared with the rows in the same range of
keys: an object without a row is an orphan, a row without an object is missing. Only one page of each is in memory.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from boathook import Transaction
from boathook_app_tools.statements import load_statements
from boathook_app_tools.storage import PAGE, Storage, Stored
from boathook_music import files
from boathook_music.kinds import PREFIX, Kind, is_own, split_key
from boathook_music.stages import Status

SQL: Final = load_statements(__file__)
_DONE: Final = frozenset({Status.FAILED, Status.DELETED})

Begin = Callable[[], AbstractAsyncContextManager[Transaction]]
Row = Any
"""A database record."""


class CleanupAction(StrEnum):
    """The action taken on an object."""

    KEPT = "kept"
    YOUNG = "young"
    """It may still be in progress."""
    FOREIGN = "foreign"
    """Not an object of this app."""
    ORPHAN = "orphan"
    """It belongs to no file, and is removed."""
    DONE_WITH = "done_with"
    """Its track has failed or was deleted, and it is removed."""


_REMOVAL: Final = frozenset({CleanupAction.ORPHAN, CleanupAction.DONE_WITH})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The minimum ages for removal."""

    min_age: timedelta
    orphans: timedelta
    done: timedelta
    urls: timedelta
    """How long after a track's completion its URLs may still work."""


@dataclass(slots=True)
class Report:
    """Counts of what a cleanup has found and done so far."""

    pages: int = 0
    seen: int = 0
    kept: int = 0
    young: int = 0
    foreign: int = 0
    orphan: int = 0
    """Removed, like those of `done_with`; in a dry run only counted."""
    done_with: int = 0
    bytes_freed: int = 0
    missing: int = 0
    """Files that should exist but do not."""
    wanted_again: int = 0
    """Missing files that are fetched again."""
    leftovers: int = 0
    """Unfinished downloads that were abandoned."""


def decide(stored_object: Stored, owner: Row | None, rules: Rules, now: datetime) -> CleanupAction:
    """Return what happens to an object, seen at *now*; *owner* is the row of the file with its name."""
    age = now - stored_object.modified_at
    if not is_own(stored_object.key):
        return CleanupAction.FOREIGN
    if age < rules.min_age:
        return CleanupAction.YOUNG
    if owner is not None and owner["archived_at"] is not None:
        return CleanupAction.KEPT
    if owner is not None and owner["status"] in _DONE:
        return CleanupAction.DONE_WITH if now - owner["updated_at"] >= rules.done else CleanupAction.KEPT
    return (
        CleanupAction.ORPHAN if not _is_claimed(stored_object, owner) and age >= rules.orphans else CleanupAction.KEPT
    )


def _is_claimed(stored_object: Stored, owner: Row | None) -> bool:
    if owner is None:
        return False
    # A missing object may reappear, for example with its disk.
    is_back = owner["was_stored"] and owner["state"] in {"missing", "failed"}
    return owner["key"] == stored_object.key or owner["state"] in {"wanted", "retrying"} or is_back


@dataclass(slots=True)
class Cleaner:
    """One cleanup run."""

    storage: Storage
    begin: Begin
    """Opens a transaction."""
    rules: Rules
    is_dry: bool = False
    """Only count, change nothing."""
    notify: Callable[[Report], None] = lambda _: None
    """Called with the report after each page."""
    now: datetime = field(default_factory=lambda: datetime.now(UTC))
    report: Report = field(default_factory=Report)

    async def run(self) -> Report:
        """Process the whole bucket once. Raises StorageFailed; completed changes stay."""
        last = ""
        async for page in self.storage.pages(PREFIX, size=PAGE):
            await self._judge_page(page)
            await self._find_missing(last, page[-1].key, {stored_object.key for stored_object in page})
            last = page[-1].key
            self.report.pages += 1
            self.notify(self.report)
        await self._find_missing(last, None, set())
        return self.report

    async def _judge_page(self, page: Sequence[Stored]) -> None:
        owners = await self._owners([stored_object.key for stored_object in page])
        for stored_object in page:
            fate = decide(stored_object, owners.get(stored_object.key), self.rules, self.now)
            self.report.seen += 1
            if fate in _REMOVAL and not await self._remove(stored_object):
                fate = CleanupAction.KEPT
            owner = owners.get(stored_object.key)
            if fate is CleanupAction.KEPT and owner is not None and owner["key"] is None and not self.is_dry:
                await self._find_again(stored_object)
            setattr(self.report, fate.value, getattr(self.report, fate.value) + 1)

    async def _owners(self, keys: Sequence[str]) -> dict[str, Row]:
        """Return, by key, the row of the file with that name and kind."""
        names = {key: split_key(key) for key in keys if is_own(key)}
        async with self.begin() as tx:
            rows = await tx.fetch(SQL["list_owners"], list({stem for stem, _ in names.values()}))
        rows_by_name = {(row["stem"], row["kind"]): row for row in rows}
        return {key: rows_by_name[stem, kind] for key, (stem, kind) in names.items() if (stem, kind) in rows_by_name}

    async def _remove(self, stored_object: Stored) -> bool:
        """Remove an object, unless it was changed or claimed since it was listed."""
        if not self.is_dry:
            present = await self.storage.head(stored_object.key)
            if (
                present is None
                or present.size != stored_object.size
                or present.modified_at > stored_object.modified_at + _TICK
            ):
                return False
            owner = (await self._owners([stored_object.key])).get(stored_object.key)
            if decide(stored_object, owner, self.rules, self.now) not in _REMOVAL:
                return False
            await self.storage.delete(stored_object.key)
            async with self.begin() as tx:
                await tx.execute(SQL["mark_removed"], stored_object.key)
        self.report.bytes_freed += stored_object.size
        return True

    async def _find_again(self, stored_object: Stored) -> None:
        """Record that an object exists after all, if its size matches its row."""
        async with self.begin() as tx:
            await tx.execute(SQL["mark_found"], *split_key(stored_object.key), stored_object.key, stored_object.size)

    async def _find_missing(self, after: str, until: str | None, present: set[str]) -> None:
        """Find rows in a range of keys whose objects do not exist."""
        async for row in self._rows(after, until):
            is_settled = row["stored_at"] <= self.now - self.rules.min_age
            # Checked again, because it may have been stored while the page was being fetched.
            if row["key"] not in present and is_settled and await self.storage.head(row["key"]) is None:
                await self._miss(row)

    async def _rows(self, after: str, until: str | None) -> AsyncIterator[Row]:
        while True:
            async with self.begin() as tx:
                rows = await tx.fetch(SQL["list_rows"], after, until, PAGE)
            for row in rows:
                yield row
            if len(rows) < PAGE:
                return
            after = rows[-1]["key"]

    async def _miss(self, row: Row) -> None:
        is_done_with = row["status"] in _DONE
        completed_at = row["completed_at"]
        has_urls = completed_at is not None and self.now - completed_at <= self.rules.urls
        is_fresh = has_urls and not is_done_with and row["archived_at"] is None
        self.report.missing += not is_done_with
        self.report.wanted_again += is_fresh
        if self.is_dry:
            return
        name = (row["task_id"], row["clip_id"], row["kind"])
        async with self.begin() as tx:
            tag = await tx.execute(SQL["mark_lost"], *name, row["key"], "removed" if is_done_with else "missing")
            if tag != "UPDATE 0" and is_fresh:
                await files.request_again(tx, name[0], name[1], Kind(name[2]))


_TICK: Final = timedelta(seconds=1)
"""Listings and single requests may report times with different precision."""


async def remove_leftovers(incoming: Path, older_than: timedelta, *, is_dry: bool) -> int:
    """Remove abandoned downloads; return their number."""
    limit = (datetime.now(UTC) - older_than).timestamp()

    def remove() -> int:
        files = [file for file in incoming.glob("*") if file.is_file() and file.lstat().st_mtime < limit]
        for file in () if is_dry else files:
            file.unlink(missing_ok=True)
        return len(files)

    return await asyncio.to_thread(remove)
