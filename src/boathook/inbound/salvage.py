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
from boathook.inbound.draining import Brought, Refused, RoutedStore
from boathook.spool.disk import RealDisk
from boathook.spool.segment import Contents, Record
from boathook.spool.shelf import DONE, Bounds
from boathook.spool.spool import Spool
from boathook.spool.survey import Lying, State, look, read

Found = TypeVar("Found")
Report = Callable[[int], None]
"""Hears of how many bytes more have been dealt with."""


class What(StrEnum):
    """Which events are brought."""

    AGAIN = "again"
    """Those that were brought before, for a database that was restored from a backup."""
    REFUSED = "refused"
    """Those that PostgreSQL has refused."""
    WAITING = "waiting"
    """Those that wait in folders that no process holds."""


@dataclass(slots=True, kw_only=True)
class Haul:
    """What came of bringing events, in events except where it says otherwise."""

    what: What
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

    def add_segment(self, contents: Contents) -> None:
        """Count a segment, and what cannot be read of it."""
        self.segments += 1
        self.lost += contents.lost
        self.unreadable += not contents.is_readable and contents.torn > 0


class Salvage:
    """Brings events of the spool under *root* to a store.

    Args:
        root: the folder that holds the folders of process lives.
        store: where they go.
        batch: most events in one commit.
    """

    def __init__(
        self, root: Path, store: RoutedStore, *, batch: int = 128, report: Report = lambda _size: None
    ) -> None:
        self._root = root
        self._store = store
        self._batch = batch
        self._report = report

    async def offer_again(self) -> Haul:
        """Offer what was drained before, as long as the spool still keeps it; nothing of it is moved.

        Raises:
            JournalError: the database does not take them; all that can be done is to try again later.
            SpoolUnavailable: a segment cannot be read.
        """
        haul = Haul(what=What.AGAIN)
        for lying in await self._find(State.DONE, State.BAD):
            await self._offer(lying, haul)
        return haul

    async def try_refused(self) -> Haul:
        """Try the events that PostgreSQL has refused; those that it takes are put with the drained ones.

        Raises:
            JournalError: as `offer_again`.
            SpoolUnavailable: a segment cannot be read or put aside.
        """
        haul = Haul(what=What.REFUSED)
        for lying in await self._find(State.REFUSED):
            if await self._offer(lying, haul):
                with contextlib.suppress(FileNotFoundError):
                    await _on_disk(partial(RealDisk().rename, lying.path, lying.path.with_suffix(DONE)))
        return haul

    async def drain(self) -> Haul:
        """Bring what waits in folders that no process holds, in order, and put their segments aside.

        Raises:
            JournalError: as `offer_again`.
            SpoolUnavailable: a segment cannot be read or put aside.
        """
        haul = Haul(what=What.WAITING)
        # What was drained before is left there, however old: it is not for a visitor to throw away.
        spool = Spool.at(self._root, Bounds(keep_s=math.inf))
        try:
            await spool.adopt()
            while (segment := await spool.oldest()) is not None:
                haul.add_segment(segment.contents)
                for refused in await self._bring(segment.contents.records, haul):
                    await spool.refuse(segment, refused.record.sequence, refused.record.payload)
                await spool.finish(segment)
        finally:
            await spool.close()
        return haul

    async def _find(self, *states: State) -> list[Lying]:
        folders = await _on_disk(partial(look, self._root))
        return [lying for folder in folders for lying in folder.segments if lying.state in states]

    async def _offer(self, lying: Lying, haul: Haul) -> bool:
        """Bring the events of a segment, and return whether the database has all of them."""
        contents = await _on_disk(partial(read, lying))
        if contents is None:
            return False
        haul.add_segment(contents)
        refused = await self._bring(contents.records, haul)
        return contents.is_readable and not refused

    async def _bring(self, records: Sequence[Record], haul: Haul) -> Collection[Refused]:
        refused: list[Refused] = []
        for start in range(0, len(records), self._batch):
            batch = records[start : start + self._batch]
            async for result in self._store.bring(batch):
                match result:
                    case Brought(_, receipt):
                        haul.add(receipt)
                    case Refused():
                        haul.refused += 1
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
