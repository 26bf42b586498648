"""Reads a spool for operators: the events of its segments, and the totals of each folder."""

from collections.abc import Collection, Iterator
from datetime import datetime
from typing import Final

import msgspec

from boathook.domain import ids
from boathook.domain.model import NewEvent
from boathook.ingest.spool_records import UnreadableRecord, decode
from boathook.spool.inspection import SegmentInfo, SegmentState, SpoolFolder, read_contents
from boathook.spool.segment import Record, SegmentContents

UNSTORED_STATES: Final = frozenset({SegmentState.WAITING, SegmentState.REFUSED})
"""States of segments whose events are not in PostgreSQL."""


class SpooledEvent(msgspec.Struct, frozen=True):
    """One record of a segment."""

    location: SegmentInfo
    record: Record
    event: NewEvent | None
    """None if this version cannot decode it."""


class FolderSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The totals of one folder."""

    life: str
    path: str
    is_held: bool
    """Whether a process holds it: a gateway, or a drain."""
    waiting: int
    """Events still to be drained to PostgreSQL."""
    refused: int
    """Events that PostgreSQL refuses to store."""
    lost: int
    """Events that were durable and can no longer be read."""
    torn_bytes: int
    """Bytes of an incomplete write when the process ended; none of these events was acknowledged."""
    segments: dict[SegmentState, int]
    """Number of segments in each state."""
    bytes: int
    """Size of the segments that are not done."""
    oldest_at: datetime | None
    """When the oldest waiting or refused event was accepted."""


def events(folders: Collection[SpoolFolder], states: Collection[SegmentState]) -> Iterator[SpooledEvent]:
    """Yield the events of segments in these states, from the oldest folder first.

    Raises:
        OSError: a segment cannot be read.
    """
    for folder in folders:
        for segment in folder.segments:
            contents = read_contents(segment) if segment.state in states else None
            for record in () if contents is None else contents.records:
                yield SpooledEvent(segment, record, _decode(record))


def summarize_folder(folder: SpoolFolder) -> FolderSummary:
    """Return the totals of a folder; drained segments are not read.

    Raises:
        OSError: a segment cannot be read.
    """
    found = [(segment, read_contents(segment)) for segment in folder.segments if segment.state is not SegmentState.DONE]
    readable = [(segment, contents) for segment, contents in found if contents is not None]
    return FolderSummary(
        life=folder.life,
        path=str(folder.path),
        is_held=folder.is_held,
        waiting=sum(len(contents.records) for segment, contents in readable if segment.state is SegmentState.WAITING),
        refused=sum(len(contents.records) for segment, contents in readable if segment.state is SegmentState.REFUSED),
        lost=sum(contents.lost for _, contents in readable),
        # The tail of a segment that is being written is about to become a record.
        torn_bytes=0 if folder.is_held else sum(contents.torn for _, contents in readable),
        segments={state: sum(segment.state is state for segment in folder.segments) for state in SegmentState},
        bytes=sum(segment.size for segment, _ in readable),
        oldest_at=min((at for segment, one in readable if (at := _first_at(segment, one)) is not None), default=None),
    )


def _first_at(segment: SegmentInfo, contents: SegmentContents) -> datetime | None:
    if segment.state not in UNSTORED_STATES:
        return None
    first = next((event for record in contents.records if (event := _decode(record)) is not None), None)
    return None if first is None else ids.created_at(first.id)


def _decode(record: Record) -> NewEvent | None:
    try:
        return decode(record.payload)
    except UnreadableRecord:
        return None
