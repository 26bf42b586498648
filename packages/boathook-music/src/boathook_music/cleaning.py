"""Removes unused objects, and finds missing ones: one pass through the bucket, page by page.

Listings are in the order of keys, and so are the table's rows. Each page is compared with the rows in the same range of
keys: an object without a row is an orphan, a row without an object is missing. Only one page of each is in memory.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from boathook import Transaction
from boathook_music import files
from boathook_music.kinds import PREFIX, Kind, is_own, split_key
from boathook_music.stages import Status
from boathook_music.storage import PAGE, Storage, Stored

_OWNERS: Final = """
    select f.stem, f.kind, f.key, f.state, f.sha256 is not null as was_stored, t.status, t.updated_at, t.archived_at
    from music.file f join music.track t using (task_id) where f.stem = any($1)
"""
_ROWS: Final = """
    select f.task_id, f.clip_id, f.kind, f.key, f.stored_at, t.status, t.completed_at, t.archived_at
    from music.file f join music.track t using (task_id)
    where f.key collate "C" > $1 and ($2::text is null or f.key collate "C" <= $2) order by f.key collate "C" limit $3
"""
_LOST: Final = """
    update music.file set state = $5, key = null, error_code = 'OBJECT_MISSING', error = 'its object is gone'
    where task_id = $1 and clip_id = $2 and kind = $3 and key = $4 and state = 'stored'
"""
_FOUND: Final = """
    update music.file set state = 'stored', key = $3, error_code = null, error = null
    where stem = $1 and kind = $2 and state in ('missing', 'failed') and size = $4 and sha256 is not null
"""
_REMOVED: Final = "update music.file set state = 'removed', key = null where key = $1"
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


def decide(found: Stored, owner: Row | None, rules: Rules, now: datetime) -> CleanupAction:
    """Return what happens to an object, seen at *now*; *owner* is the row of the file with its name."""
    age = now - found.modified_at
    if not is_own(found.key):
        return CleanupAction.FOREIGN
    if age < rules.min_age:
        return CleanupAction.YOUNG
    if owner is not None and owner["archived_at"] is not None:
        return CleanupAction.KEPT
    if owner is not None and owner["status"] in _DONE:
        return CleanupAction.DONE_WITH if now - owner["updated_at"] >= rules.done else CleanupAction.KEPT
    return CleanupAction.ORPHAN if not _is_claimed(found, owner) and age >= rules.orphans else CleanupAction.KEPT


def _is_claimed(found: Stored, owner: Row | None) -> bool:
    if owner is None:
        return False
    # A missing object may reappear, for example with its disk.
    is_back = owner["was_stored"] and owner["state"] in {"missing", "failed"}
    return owner["key"] == found.key or owner["state"] in {"wanted", "retrying"} or is_back


class Cleaner:
    """One cleanup run.

    Args:
        storage: the storage to clean.
        begin: opens a transaction.
        rules: the minimum ages.
        is_dry: only count, change nothing.
        notify: called with the report after each page.
    """

    def __init__(
        self,
        storage: Storage,
        begin: Begin,
        rules: Rules,
        *,
        is_dry: bool = False,
        notify: Callable[[Report], None] = lambda _: None,
    ) -> None:
        self._storage = storage
        self._begin = begin
        self._rules = rules
        self._is_dry = is_dry
        self._notify = notify
        self._now = datetime.now(UTC)
        self.report: Final = Report()

    async def run(self) -> Report:
        """Process the whole bucket once. Raises StorageFailed; completed changes stay."""
        last = ""
        async for page in self._storage.pages(PREFIX, size=PAGE):
            await self._judge_page(page)
            await self._find_missing(last, page[-1].key, {one.key for one in page})
            last = page[-1].key
            self.report.pages += 1
            self._notify(self.report)
        await self._find_missing(last, None, set())
        return self.report

    async def _judge_page(self, page: Sequence[Stored]) -> None:
        owners = await self._owners([one.key for one in page])
        for found in page:
            fate = decide(found, owners.get(found.key), self._rules, self._now)
            self.report.seen += 1
            if fate in {CleanupAction.ORPHAN, CleanupAction.DONE_WITH} and not await self._remove(found):
                fate = CleanupAction.KEPT
            owner = owners.get(found.key)
            if fate is CleanupAction.KEPT and owner is not None and owner["key"] is None and not self._is_dry:
                await self._find_again(found)
            setattr(self.report, fate.value, getattr(self.report, fate.value) + 1)

    async def _owners(self, keys: Sequence[str]) -> dict[str, Row]:
        """Return, by key, the row of the file with that name and kind."""
        names = {key: split_key(key) for key in keys if is_own(key)}
        async with self._begin() as tx:
            rows = await tx.fetch(_OWNERS, list({stem for stem, _ in names.values()}))
        known = {(row["stem"], row["kind"]): row for row in rows}
        return {key: known[stem, kind] for key, (stem, kind) in names.items() if (stem, kind) in known}

    async def _remove(self, found: Stored) -> bool:
        """Remove an object, unless it was changed or claimed since it was listed."""
        if not self._is_dry:
            present = await self._storage.head(found.key)
            if present is None or present.size != found.size or present.modified_at > found.modified_at + _TICK:
                return False
            owner = (await self._owners([found.key])).get(found.key)
            if decide(found, owner, self._rules, self._now) not in {CleanupAction.ORPHAN, CleanupAction.DONE_WITH}:
                return False
            await self._storage.delete(found.key)
            async with self._begin() as tx:
                await tx.execute(_REMOVED, found.key)
        self.report.bytes_freed += found.size
        return True

    async def _find_again(self, found: Stored) -> None:
        """Record that an object exists after all, if its size matches its row."""
        async with self._begin() as tx:
            await tx.execute(_FOUND, *split_key(found.key), found.key, found.size)

    async def _find_missing(self, after: str, until: str | None, present: set[str]) -> None:
        """Find rows in a range of keys whose objects do not exist."""
        async for row in self._rows(after, until):
            is_settled = row["stored_at"] <= self._now - self._rules.min_age
            # Checked again, because it may have been stored while the page was being fetched.
            if row["key"] not in present and is_settled and await self._storage.head(row["key"]) is None:
                await self._miss(row)

    async def _rows(self, after: str, until: str | None) -> AsyncIterator[Row]:
        while True:
            async with self._begin() as tx:
                rows = await tx.fetch(_ROWS, after, until, PAGE)
            for row in rows:
                yield row
            if len(rows) < PAGE:
                return
            after = rows[-1]["key"]

    async def _miss(self, row: Row) -> None:
        is_done_with = row["status"] in _DONE
        completed_at = row["completed_at"]
        has_urls = completed_at is not None and self._now - completed_at <= self._rules.urls
        is_fresh = has_urls and not is_done_with and row["archived_at"] is None
        self.report.missing += not is_done_with
        self.report.wanted_again += is_fresh
        if self._is_dry:
            return
        name = (row["task_id"], row["clip_id"], row["kind"])
        async with self._begin() as tx:
            tag = await tx.execute(_LOST, *name, row["key"], "removed" if is_done_with else "missing")
            if tag != "UPDATE 0" and is_fresh:
                await files.request_again(tx, name[0], name[1], Kind(name[2]))


_TICK: Final = timedelta(seconds=1)
"""Listings and single requests may report times with different precision."""


async def remove_leftovers(incoming: Path, older_than: timedelta, *, is_dry: bool) -> int:
    """Remove abandoned downloads; return their number."""
    return await asyncio.to_thread(_remove_leftovers, incoming, older_than, is_dry)


def _remove_leftovers(incoming: Path, older_than: timedelta, is_dry: bool) -> int:
    limit = (datetime.now(UTC) - older_than).timestamp()
    removed = 0
    for one in incoming.glob("*") if incoming.is_dir() else ():
        if one.is_file() and one.lstat().st_mtime < limit:
            removed += 1
            if not is_dry:
                one.unlink(missing_ok=True)
    return removed


def as_row(report: Report) -> dict[str, int]:
    """Return a report as JSON values."""
    return asdict(report)
