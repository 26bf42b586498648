"""The message format of the buffer: one batch of records, checked for damage when it is read.

::

    header   magic 8 · series 8 · first sequence 8 · number of records 4
    index    for each record: length 4 · CRC-32 of its payload 4
    check    CRC-32 of header and index 4
    payloads one after another

All numbers are little-endian. A *series* is what one gateway publishes without interruption, numbered without gaps from
1, so that a message that never arrives shows as a gap. A batch without records is a *checkpoint*: its first sequence is
the one that follows all that the broker has confirmed. A damaged payload costs one record, a damaged index the batch.
"""

import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

_HEADER: Final = struct.Struct("<8sQQI")
_ENTRY: Final = struct.Struct("<II")
_CHECK: Final = struct.Struct("<I")
_MAGIC: Final = b"bhbatch1"
MAX_RECORDS: Final = 512
"""Maximum records of one batch."""
MAX_BATCH_BYTES: Final = 1 << 19
"""Bytes of payload above which no further record is added to a batch."""
MAX_RECORD_BYTES: Final = 15 << 20
"""Maximum bytes of a record: RabbitMQ 4 rejects messages of more than 16 MiB."""
UNNUMBERED: Final = 0
"""The series of batches that are not part of one: tests of a queue, and events that an operator offers again."""
MAX_SERIES: Final = (1 << 63) - 1
"""Maximum number of a series: a signed 64-bit integer of PostgreSQL."""


class UnreadableBatch(ValueError):
    """A message is not a batch, is damaged beyond its payloads, or has the format of a later version."""


class Batch(msgspec.Struct, frozen=True):
    """The contents of one message."""

    series: int
    first: int
    """Sequence of the first record, or of the next one if there are no records."""
    payloads: tuple[bytes | None, ...]
    """The records in order; None for one that is damaged."""

    @property
    def last(self) -> int:
        """Sequence up to which the series is complete if nothing before this batch is missing."""
        return self.first + len(self.payloads) - 1


def contiguous_batches(batches: Iterable[Batch]) -> Iterator[tuple[Batch, Batch]]:
    """Yield the first and last of numbered batches that follow each other; a checkpoint stands alone.

    Each mark costs a commit. At a low rate each batch holds a single event, and with a mark for each of them, the drain
    would be slower than what arrives.
    """
    first = last = None
    for batch in batches:
        if batch.series == UNNUMBERED:
            continue
        if first is None or last is None:
            first = batch
        elif (batch.series, batch.first) != (last.series, last.last + 1) or not (batch.payloads and last.payloads):
            yield first, last
            first = batch
        last = batch
    if first is not None and last is not None:
        yield first, last


def encode_batch(series: int, first: int, payloads: Sequence[bytes]) -> bytes:
    """Return records as one message."""
    head = _HEADER.pack(_MAGIC, series, first, len(payloads))
    head += b"".join(_ENTRY.pack(len(payload), zlib.crc32(payload)) for payload in payloads)
    return b"".join((head, _CHECK.pack(zlib.crc32(head)), *payloads))


def decode_batch(message: bytes) -> Batch:
    """Return the contents of a message; a damaged record is None in the result.

    Raises:
        UnreadableBatch: the message is not a batch, or its header or index is damaged.
    """
    if len(message) < _HEADER.size + _CHECK.size:
        raise UnreadableBatch("the message is shorter than a batch")
    magic, series, first, count = _HEADER.unpack_from(message)
    if magic != _MAGIC:
        raise UnreadableBatch("the message is not a batch, or has the format of a later boathook")
    end = _HEADER.size + count * _ENTRY.size
    if count > MAX_RECORDS or series > MAX_SERIES or len(message) < end + _CHECK.size:
        raise UnreadableBatch("the header of the batch is damaged")
    if _CHECK.unpack_from(message, end)[0] != zlib.crc32(message[:end]):
        raise UnreadableBatch("the header of the batch is damaged: its checksum is wrong")
    payloads: list[bytes | None] = []
    offset = end + _CHECK.size
    for length, checksum in _ENTRY.iter_unpack(message[_HEADER.size : end]):
        payload = message[offset : offset + length]
        is_whole = len(payload) == length and zlib.crc32(payload) == checksum
        payloads.append(payload if is_whole else None)
        offset += length
    return Batch(series, first, tuple(payloads))
