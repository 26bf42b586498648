"""Removes what nobody needs any more, and finds what is missing: one walk through the bucket, a page at a time.

Listings come in the order of keys, and so do the table's rows. Each page is therefore held against the rows of the
same stretch of keys: what has no row is an orphan, what has no object is missing. No more than a page of either is in
memory.
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
from boathook.apps.music import files
from boathook.apps.music.kinds import PREFIX, Kind, is_own, split_key
from boathook.apps.music.stages import Status
from boathook.apps.music.storage import PAGE, Storage, Stored

_OWNERS: Final = """
    select f.stem, f.kind, f.key, f.state, f.sha256 is not null as was_stored, t.status, t.updated_at
    from music.file f join music.track t using (task_id) where f.stem = any($1)
"""
_ROWS: Final = """
    select f.task_id, f.clip_id, f.kind, f.key, f.stored_at, t.status, t.completed_at
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
"""A record of the database."""


class Fate(StrEnum):
    """What becomes of an object."""

    KEPT = "kept"
    YOUNG = "young"
    """It may be on its way."""
    FOREIGN = "foreign"
    """Not one of ours."""
    ORPHAN = "orphan"
    """It belongs to nothing, and goes."""
    DONE_WITH = "done_with"
    """Its track has failed or was deleted, and it goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What is old enough."""

    min_age: timedelta
    orphans: timedelta
    done: timedelta
    urls: timedelta
    """How long after a track's completion its addresses may still answer."""


@dataclass(slots=True)
class Report:
    """What a cleaning has found and done so far."""

    pages: int = 0
    seen: int = 0
    kept: int = 0
    young: int = 0
    foreign: int = 0
    orphan: int = 0
    """Removed, as those of `done_with`; in a dry run they would be."""
    done_with: int = 0
    bytes_freed: int = 0
    missing: int = 0
    """Files that should be there and are not."""
    wanted_again: int = 0
    """Those of them that are fetched again."""
    leftovers: int = 0
    """Unfinished downloads that nobody went on with."""


def judge(found: Stored, owner: Row | None, rules: Rules, now: datetime) -> Fate:
    """Return what becomes of an object, seen at *now*; *owner* is the row that wants an object of its name."""
    age = now - found.modified_at
    if not is_own(found.key):
        return Fate.FOREIGN
    if age < rules.min_age:
        return Fate.YOUNG
    if owner is not None and owner["status"] in _DONE:
        return Fate.DONE_WITH if now - owner["updated_at"] >= rules.done else Fate.KEPT
    return Fate.ORPHAN if not _is_claimed(found, owner) and age >= rules.orphans else Fate.KEPT


def _is_claimed(found: Stored, owner: Row | None) -> bool:
    if owner is None:
        return False
    # What went missing may turn up again, with the disk it was on.
    is_back = owner["was_stored"] and owner["state"] in {"missing", "failed"}
    return owner["key"] == found.key or owner["state"] in {"wanted", "retrying"} or is_back


class Cleaner:
    """One cleaning.

    Args:
        storage: what is cleaned.
        begin: lends a transaction.
        rules: what is old enough.
        is_dry: change nothing, only count.
        notify: is told how far it is, page by page.
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
        """Walk through the whole bucket once. Raises StorageFailed; what was done until then stays done."""
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
            fate = judge(found, owners.get(found.key), self._rules, self._now)
            self.report.seen += 1
            if fate in {Fate.ORPHAN, Fate.DONE_WITH} and not await self._remove(found):
                fate = Fate.KEPT
            owner = owners.get(found.key)
            if fate is Fate.KEPT and owner is not None and owner["key"] is None and not self._is_dry:
                await self._find_again(found)
            setattr(self.report, fate.value, getattr(self.report, fate.value) + 1)

    async def _owners(self, keys: Sequence[str]) -> dict[str, Row]:
        """Return, by key, the row that wants an object of its name and kind."""
        names = {key: split_key(key) for key in keys if is_own(key)}
        async with self._begin() as tx:
            rows = await tx.fetch(_OWNERS, list({stem for stem, _ in names.values()}))
        known = {(row["stem"], row["kind"]): row for row in rows}
        return {key: known[stem, kind] for key, (stem, kind) in names.items() if (stem, kind) in known}

    async def _remove(self, found: Stored) -> bool:
        """Remove an object, unless it has changed or was claimed since it was listed."""
        if not self._is_dry:
            present = await self._storage.head(found.key)
            if present is None or present.size != found.size or present.modified_at > found.modified_at + _TICK:
                return False
            owner = (await self._owners([found.key])).get(found.key)
            if judge(found, owner, self._rules, self._now) not in {Fate.ORPHAN, Fate.DONE_WITH}:
                return False
            await self._storage.delete(found.key)
            async with self._begin() as tx:
                await tx.execute(_REMOVED, found.key)
        self.report.bytes_freed += found.size
        return True

    async def _find_again(self, found: Stored) -> None:
        """Note that an object is there after all, if it is the one its row speaks of."""
        async with self._begin() as tx:
            await tx.execute(_FOUND, *split_key(found.key), found.key, found.size)

    async def _find_missing(self, after: str, until: str | None, present: set[str]) -> None:
        """Find rows of one stretch of keys whose objects are not there."""
        async for row in self._rows(after, until):
            is_settled = row["stored_at"] <= self._now - self._rules.min_age
            # Asked once more, as it may have been stored while the page was on its way.
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
        is_fresh = completed_at is not None and self._now - completed_at <= self._rules.urls and not is_done_with
        self.report.missing += not is_done_with
        self.report.wanted_again += is_fresh
        if self._is_dry:
            return
        name = (row["task_id"], row["clip_id"], row["kind"])
        async with self._begin() as tx:
            tag = await tx.execute(_LOST, *name, row["key"], "removed" if is_done_with else "missing")
            if tag != "UPDATE 0" and is_fresh:
                await files.want_again(tx, name[0], name[1], Kind(name[2]))


_TICK: Final = timedelta(seconds=1)
"""Listings and looks at one object may give its age in different precision."""


async def remove_leftovers(incoming: Path, older_than: timedelta, *, is_dry: bool) -> int:
    """Remove unfinished downloads that nobody went on with; return how many there were."""
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
