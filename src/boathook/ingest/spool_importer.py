"""Imports spool files into a database on an operator's request.

A folder is locked while it is drained, so a gateway that starts meanwhile skips it. Drained segments are only read,
whatever process holds their folder. Importing their events again changes nothing if the database has them already.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Collection, Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TypeVar, assert_never

import msgspec

from boathook.domain.errors import SpoolUnavailable
from boathook.domain.model import Accepted, Receipt
from boathook.ingest.event_writer import EventWriter, Refused, Stored
from boathook.spool.disk import Disk
from boathook.spool.inspection import SegmentInfo, SegmentState, list_folders, read_contents
from boathook.spool.segment import Record, SegmentContents
from boathook.spool.segment_store import DONE_SUFFIX, SpoolLimits
from boathook.spool.spool import Spool

Found = TypeVar("Found")
ProgressCallback = Callable[[int], None]
"""Called with the number of further bytes that were processed."""


class ImportScope(StrEnum):
    """The selection of events to import."""

    AGAIN = "again"
    """Events that were drained before, for a database that was restored from a backup."""
    REFUSED = "refused"
    """Events that PostgreSQL has refused."""
    WAITING = "waiting"
    """Events that wait in folders held by no process."""


class ImportReport(msgspec.Struct, kw_only=True):
    """The result of an import, counted in events unless noted otherwise."""

    what: ImportScope
    segments: int = 0
    """Number of segments read."""
    accepted: int = 0
    """Stored by this import."""
    there: int = 0
    """Stored by an earlier drain or import."""
    duplicate: int = 0
    """Duplicates of other events that were stored before."""
    conflict: int = 0
    """Stored as conflicts: same key as an earlier event, different body."""
    refused: int = 0
    """Refused by PostgreSQL."""
    lost: int = 0
    """Events that were durable and can no longer be read."""
    unreadable: int = 0
    """Segments whose header cannot be read."""

    @property
    def is_whole(self) -> bool:
        """Whether every event is now in the database."""
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
        """Count a segment and its unreadable parts."""
        self.segments += 1
        self.lost += contents.lost
        self.unreadable += not contents.is_readable and contents.torn > 0


class SpoolImporter:
    """Imports the events of the spool under *root* into a store.

    Args:
        root: the folder that contains the spool folders of all processes.
        store: stores the events.
        batch: maximum number of events in one commit.
        report: called with the number of bytes of each batch.
    """

    def __init__(
        self, root: Path, store: EventWriter, *, batch: int = 128, report: ProgressCallback = lambda _size: None
    ) -> None:
        self._root = root
        self._store = store
        self._batch = batch
        self._report = report

    async def reimport_drained(self) -> ImportReport:
        """Import the drained segments that the spool still keeps, without moving them.

        Raises:
            DatabaseError: the database does not accept the events; try again later.
            SpoolUnavailable: a segment cannot be read.
        """
        import_report = ImportReport(what=ImportScope.AGAIN)
        for segment in await self._find(SegmentState.DONE, SegmentState.BAD):
            await self._offer(segment, import_report)
        return import_report

    async def retry_refused(self) -> ImportReport:
        """Retry the events that PostgreSQL has refused; segments it accepts are marked as drained.

        Raises:
            DatabaseError: as `reimport_drained`.
            SpoolUnavailable: a segment cannot be read or moved.
        """
        import_report = ImportReport(what=ImportScope.REFUSED)
        for segment in await self._find(SegmentState.REFUSED):
            if await self._offer(segment, import_report):
                with contextlib.suppress(FileNotFoundError):
                    await _on_disk(partial(Disk().rename, segment.path, segment.path.with_suffix(DONE_SUFFIX)))
        return import_report

    async def drain(self) -> ImportReport:
        """Drain the folders held by no process, in order, and mark their segments as finished.

        Raises:
            DatabaseError: as `reimport_drained`.
            SpoolUnavailable: a segment cannot be read or moved.
        """
        import_report = ImportReport(what=ImportScope.WAITING)
        # Keep segments that were drained before, whatever their age: an import must not delete them.
        spool = Spool.at(self._root, SpoolLimits(keep_s=math.inf))
        try:
            await spool.adopt()
            while (segment := await spool.oldest()) is not None:
                import_report.add_segment(segment.contents)
                for refused in await self._import(segment.contents.records, import_report):
                    await spool.refuse(segment, refused.record.sequence, refused.record.payload)
                await spool.finish(segment)
        finally:
            await spool.stop()
        return import_report

    async def _find(self, *states: SegmentState) -> list[SegmentInfo]:
        folders = await _on_disk(partial(list_folders, self._root))
        return [segment for folder in folders for segment in folder.segments if segment.state in states]

    async def _offer(self, segment: SegmentInfo, import_report: ImportReport) -> bool:
        """Import the events of a segment, and return whether the database has all of them."""
        contents = await _on_disk(partial(read_contents, segment))
        if contents is None:
            return False
        import_report.add_segment(contents)
        refused = await self._import(contents.records, import_report)
        return contents.is_readable and not refused

    async def _import(self, records: Sequence[Record], import_report: ImportReport) -> Collection[Refused]:
        refused: list[Refused] = []
        for start in range(0, len(records), self._batch):
            batch = records[start : start + self._batch]
            async for result in self._store.bring(batch):
                match result:
                    case Stored(_, _, receipt):
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
