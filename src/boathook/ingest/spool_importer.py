"""Brings to a database, by an operator's hand, what a spool holds and no living process does.

A folder is locked while it is drained, so a gateway that starts meanwhile leaves it alone. Segments that were drained
before are only read, whoever holds their folder: their events go the same way once more, and those that are there
already change nothing.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TypeVar, assert_never

from boathook.domain.errors import SpoolUnavailable
from boathook.domain.model import Accepted, Receipt
from boathook.ingest.event_writer import EventWriter, Refused, Stored
from boathook.spool.disk import RealDisk
from boathook.spool.inspection import SegmentInfo, SegmentState, list_folders, read_contents
from boathook.spool.segment import Record, SegmentContents
from boathook.spool.segment_store import DONE_SUFFIX, SpoolLimits
from boathook.spool.spool import Spool

Found = TypeVar("Found")
ProgressCallback = Callable[[int], None]
"""Hears of how many bytes more have been dealt with."""


class ImportScope(StrEnum):
    """Which events are brought."""

    AGAIN = "again"
    """Those that were brought before, for a database that was restored from a backup."""
    REFUSED = "refused"
    """Those that PostgreSQL has refused."""
    WAITING = "waiting"
    """Those that wait in folders that no process holds."""


@dataclass(slots=True, kw_only=True)
class ImportReport:
    """What came of bringing events, in events except where it says otherwise."""

    what: ImportScope
    segments: int = 0
    """Segments that were gone through."""
    accepted: int = 0
    """Stored just now."""
    there: int = 0
    """Stored by an earlier try of theirs."""
    duplicate: int = 0
    """Copies of others that were stored before."""
    conflict: int = 0
    """Kept as conflicts: the key of one that was stored before, with another body."""
    refused: int = 0
    """PostgreSQL does not take them."""
    lost: int = 0
    """Durable once, and not to be read any more."""
    unreadable: int = 0
    """Segments of which not even the head can be read."""

    @property
    def is_whole(self) -> bool:
        """Whether all of it is in the database now."""
        return not (self.refused or self.lost or self.unreadable)

    def add(self, receipt: Receipt) -> None:
        """Count an event that is in the database."""
        if receipt.conflict:
            self.conflict += 1
        elif not isinstance(receipt, Accepted):
            self.duplicate += 1
        elif receipt.is_new:
            self.accepted += 1
        else:
            self.there += 1

    def add_segment(self, contents: SegmentContents) -> None:
        """Count a segment, and what cannot be read of it."""
        self.segments += 1
        self.lost += contents.lost
        self.unreadable += not contents.is_readable and contents.torn > 0


class SpoolImporter:
    """Brings events of the spool under *root* to a store.

    Args:
        root: the folder that holds the folders of process lives.
        store: where they go.
        batch: most events in one commit.
    """

    def __init__(
        self, root: Path, store: EventWriter, *, batch: int = 128, report: ProgressCallback = lambda _size: None
    ) -> None:
        self._root = root
        self._store = store
        self._batch = batch
        self._report = report

    async def reimport_drained(self) -> ImportReport:
        """Offer what was drained before, as long as the spool still keeps it; nothing of it is moved.

        Raises:
            DatabaseError: the database does not take them; all that can be done is to try again later.
            SpoolUnavailable: a segment cannot be read.
        """
        import_report = ImportReport(what=ImportScope.AGAIN)
        for lying in await self._find(SegmentState.DONE, SegmentState.BAD):
            await self._offer(lying, import_report)
        return import_report

    async def retry_refused(self) -> ImportReport:
        """Try the events that PostgreSQL has refused; those that it takes are put with the drained ones.

        Raises:
            DatabaseError: as `reimport_drained`.
            SpoolUnavailable: a segment cannot be read or put aside.
        """
        import_report = ImportReport(what=ImportScope.REFUSED)
        for lying in await self._find(SegmentState.REFUSED):
            if await self._offer(lying, import_report):
                with contextlib.suppress(FileNotFoundError):
                    await _on_disk(partial(RealDisk().rename, lying.path, lying.path.with_suffix(DONE_SUFFIX)))
        return import_report

    async def drain(self) -> ImportReport:
        """Bring what waits in folders that no process holds, in order, and put their segments aside.

        Raises:
            DatabaseError: as `reimport_drained`.
            SpoolUnavailable: a segment cannot be read or put aside.
        """
        import_report = ImportReport(what=ImportScope.WAITING)
        # What was drained before is left there, however old: it is not for a visitor to throw away.
        spool = Spool.at(self._root, SpoolLimits(keep_s=math.inf))
        try:
            await spool.adopt()
            while (segment := await spool.oldest()) is not None:
                import_report.add_segment(segment.contents)
                for refused in await self._bring(segment.contents.records, import_report):
                    await spool.refuse(segment, refused.record.sequence, refused.record.payload)
                await spool.finish(segment)
        finally:
            await spool.close()
        return import_report

    async def _find(self, *states: SegmentState) -> list[SegmentInfo]:
        folders = await _on_disk(partial(list_folders, self._root))
        return [lying for folder in folders for lying in folder.segments if lying.state in states]

    async def _offer(self, lying: SegmentInfo, import_report: ImportReport) -> bool:
        """Bring the events of a segment, and return whether the database has all of them."""
        contents = await _on_disk(partial(read_contents, lying))
        if contents is None:
            return False
        import_report.add_segment(contents)
        refused = await self._bring(contents.records, import_report)
        return contents.is_readable and not refused

    async def _bring(self, records: Sequence[Record], import_report: ImportReport) -> Collection[Refused]:
        refused: list[Refused] = []
        for start in range(0, len(records), self._batch):
            batch = records[start : start + self._batch]
            async for result in self._store.bring(batch):
                match result:
                    case Stored(_, receipt):
                        import_report.add(receipt)
                    case Refused():
                        import_report.refused += 1
                        refused.append(result)
                    case _ as never:
                        assert_never(never)
            self._report(sum(len(record.payload) for record in batch))
        return refused


async def _on_disk(call: Callable[[], Found]) -> Found:
    try:
        return await asyncio.to_thread(call)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SpoolUnavailable(f"the spool cannot be read or changed: {error.filename}: {error.strerror}") from error
