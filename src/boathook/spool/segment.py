"""The segment format: a header and framed records, written sequentially and read with checks for damage.

::

    header   magic 8 · marker 8 · first sequence 8 · CRC-32 of those 4
    record   marker 8 · length 4 · sequence 8 · synced 8 · CRC-32 of length, sequence, synced and payload 4 · payload

All numbers are little-endian. The marker is random, so that no request body can imitate a record when a reader searches
for the next one after damage. *synced* is the last sequence that was durable when the record was written: a gap up to
there means that acknowledged events are lost, and a gap above it contains only events that were never acknowledged.
A sealed segment ends with a record of length 0, which holds no event.
"""

import os
import struct
import zlib
from collections.abc import Iterator
from typing import Final

import msgspec

_HEADER: Final = struct.Struct("<8s8sQI")
_FRAME: Final = struct.Struct("<8sIQQI")
_CHECKSUM_FIELDS: Final = struct.Struct("<IQQ")
_MAGIC: Final = b"bhspool1"
_MARKER_BYTES: Final = 8

HEADER_BYTES: Final = _HEADER.size
FRAME_BYTES: Final = _FRAME.size
"""Size of a record without its payload."""


class Record(msgspec.Struct, frozen=True):
    """One event in a segment."""

    sequence: int
    payload: bytes


class SegmentContents(msgspec.Struct, frozen=True, kw_only=True):
    """The readable contents of a segment."""

    records: tuple[Record, ...]
    lost: int = 0
    """Records that were durable and can no longer be read."""
    torn: int = 0
    """Bytes after the last record that are not a record: an incomplete write when the machine stopped."""
    is_sealed: bool = False
    """Whether its writer completed it; otherwise the writer died."""
    is_readable: bool = True
    """Whether the header is valid."""


class SegmentEncoder:
    """Encodes the bytes of one segment."""

    def __init__(self, first: int, marker: bytes | None = None) -> None:
        self._marker = os.urandom(_MARKER_BYTES) if marker is None else marker
        self.header = _HEADER.pack(_MAGIC, self._marker, first, _header_checksum(self._marker, first))

    def frame(self, sequence: int, payload: bytes, synced: int) -> bytes:
        """Encode one record."""
        size = len(payload)
        return _FRAME.pack(self._marker, size, sequence, synced, _checksum(size, sequence, synced, payload)) + payload

    def seal(self, sequence: int) -> bytes:
        """Encode the end of a segment; *sequence* is that of its last event, and all its events are durable."""
        return self.frame(sequence, b"", sequence)


def read_segment(data: bytes) -> SegmentContents:
    """Decode the events of a segment; damage is skipped and reported in the result, never raised."""
    opened = _open(data)
    if opened is None:
        return SegmentContents(records=(), torn=len(data.rstrip(b"\0")), is_readable=False)
    marker, first = opened
    records: list[Record] = []
    expected, synced, end, is_sealed = first, first - 1, HEADER_BYTES, False
    gaps: list[tuple[int, int]] = []
    for start, record, synced_until in _frames(data, marker):
        synced = max(synced, synced_until)
        is_sealed = not record.payload
        last = record.sequence if is_sealed else record.sequence - 1
        if last >= expected:
            gaps.append((expected, last))
        expected = max(expected, record.sequence + 1)
        if record.payload:
            records.append(record)
        end = start + FRAME_BYTES + len(record.payload)
    lost = sum(max(0, min(last, synced) - lowest + 1) for lowest, last in gaps)
    return SegmentContents(
        records=tuple(records), lost=lost, torn=len(data[end:].rstrip(b"\0")), is_sealed=is_sealed, is_readable=True
    )


def _open(data: bytes) -> tuple[bytes, int] | None:
    if len(data) < HEADER_BYTES:
        return None
    magic, marker, first, checksum = _HEADER.unpack_from(data)
    return (marker, first) if magic == _MAGIC and checksum == _header_checksum(marker, first) else None


def _frames(data: bytes, marker: bytes) -> Iterator[tuple[int, Record, int]]:
    """Yield each complete record with its offset and its *synced* value, in file order."""
    offset, last = HEADER_BYTES, -1
    while (offset := data.find(marker, offset)) >= 0:
        frame = _frame_at(data, offset)
        if frame is None or frame[0].sequence < last:
            offset += 1
            continue
        record, synced = frame
        last = record.sequence
        yield offset, record, synced
        offset += FRAME_BYTES + len(record.payload)


def _frame_at(data: bytes, offset: int) -> tuple[Record, int] | None:
    body = offset + FRAME_BYTES
    if body > len(data):
        return None
    _, size, sequence, synced, checksum = _FRAME.unpack_from(data, offset)
    payload = data[body : body + size]
    if len(payload) < size or checksum != _checksum(size, sequence, synced, payload):
        return None
    return Record(sequence, payload), synced


def _header_checksum(marker: bytes, first: int) -> int:
    return zlib.crc32(_MAGIC + marker + first.to_bytes(8, "little"))


def _checksum(size: int, sequence: int, synced: int, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(_CHECKSUM_FIELDS.pack(size, sequence, synced)))
