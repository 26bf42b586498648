"""What lies in a spool, as operators read it: the events of its segments, and the figures of each folder."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from boathook.domain import ids
from boathook.domain.model import NewEvent
from boathook.ingest.spool_records import UnreadableRecord, decode
from boathook.spool.inspection import SegmentInfo, SegmentState, SpoolFolder, read_contents
from boathook.spool.segment import Record, SegmentContents

UNSTORED_STATES: Final = frozenset({SegmentState.WAITING, SegmentState.REFUSED})
"""The states of segments whose events PostgreSQL does not have."""


@dataclass(frozen=True, slots=True)
class SpooledEvent:
    """One record of a segment."""

    lying: SegmentInfo
    record: Record
    event: NewEvent | None
    """None where it is none that this boathook can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSummary:
    """The figures of one folder."""

    life: str
    path: str
    is_held: bool
    """Whether a process holds it: a gateway, or a drain."""
    waiting: int
    """Events that are to be brought to PostgreSQL."""
    refused: int
    """Events that PostgreSQL refuses to take."""
    lost: int
    """Events that were durable once and cannot be read any more."""
    torn_bytes: int
    """What was being written when its process ended: nobody was told that it is safe."""
    segments: dict[SegmentState, int]
    """How many there are in each state."""
    bytes: int
    """Of segments that are not done."""
    oldest_at: datetime | None
    """When the oldest event that waits, or is refused, was accepted."""


def events(folders: Collection[SpoolFolder], states: Collection[SegmentState]) -> Iterator[SpooledEvent]:
    """Yield the events of segments in these states, those of the oldest folder first.

    Raises:
        OSError: a segment cannot be read.
    """
    for folder in folders:
        for lying in folder.segments:
            contents = read_contents(lying) if lying.state in states else None
            for record in () if contents is None else contents.records:
                yield SpooledEvent(lying, record, _decode(record))


def summarize_folder(folder: SpoolFolder) -> FolderSummary:
    """Count what a folder holds; drained segments are not looked into.

    Raises:
        OSError: a segment cannot be read.
    """
    found = [(lying, read_contents(lying)) for lying in folder.segments if lying.state is not SegmentState.DONE]
    there = [(lying, contents) for lying, contents in found if contents is not None]
    return FolderSummary(
        life=folder.life,
        path=str(folder.path),
        is_held=folder.is_held,
        waiting=sum(len(contents.records) for lying, contents in there if lying.state is SegmentState.WAITING),
        refused=sum(len(contents.records) for lying, contents in there if lying.state is SegmentState.REFUSED),
        lost=sum(contents.lost for _, contents in there),
        # What is at the end of a segment that is being written is about to become a record.
        torn_bytes=0 if folder.is_held else sum(contents.torn for _, contents in there),
        segments={state: sum(lying.state is state for lying in folder.segments) for state in SegmentState},
        bytes=sum(lying.size for lying, _ in there),
        oldest_at=min((moment for lying, one in there if (moment := _first_at(lying, one)) is not None), default=None),
    )


def _first_at(lying: SegmentInfo, contents: SegmentContents) -> datetime | None:
    if lying.state not in UNSTORED_STATES:
        return None
    first = next((event for record in contents.records if (event := _decode(record)) is not None), None)
    return None if first is None else ids.created_at(first.id)


def _decode(record: Record) -> NewEvent | None:
    try:
        return decode(record.payload)
    except UnreadableRecord:
        return None
