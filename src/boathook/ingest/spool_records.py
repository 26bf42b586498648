"""Encodes events for the spool: everything but their deliveries, which are decided when the spool is drained.

A record is one byte with the number of its format, followed by a MessagePack array (https://msgpack.org).
"""

from typing import Final
from uuid import UUID

import msgspec

from boathook.domain.model import NewBatchItem, NewEvent, Origin, ProofStrength

_FORMAT: Final = b"\x01"
UNROUTED: Final = -1
"""The routes version of an event that was never routed."""


class UnreadableRecord(ValueError):
    """A record is invalid, or has the format of a later version."""


class _Item(msgspec.Struct, frozen=True, array_like=True, gc=False):
    path: str
    type: str
    dedup_key: str
    key_hash: bytes
    digest: bytes


class _Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    id: bytes
    source: str | None
    application: str | None
    type: str
    dedup_key: str
    key_hash: bytes
    replay_hash: bytes | None
    grade: str
    origin: str
    headers: str
    content_type: str
    body: bytes
    body_sha256: bytes
    volatile: tuple[str, ...]
    items: tuple[_Item, ...]


_write = msgspec.msgpack.Encoder().encode
_read = msgspec.msgpack.Decoder(_Record).decode


def encode(event: NewEvent) -> bytes:
    """Return an event as a record.

    Raises:
        ValueError: a text contains a character that PostgreSQL cannot store.
    """
    texts = (event.type, event.dedup_key, event.content_type, *(item.dedup_key + item.type for item in event.items))
    if any("\0" in text for text in texts):
        raise ValueError("it contains a NUL, which PostgreSQL cannot store in text")
    return _FORMAT + _write(
        _Record(
            id=event.id.bytes,
            source=event.source,
            application=event.application,
            type=event.type,
            dedup_key=event.dedup_key,
            key_hash=event.key_hash.bytes,
            replay_hash=None if event.replay_hash is None else event.replay_hash.bytes,
            grade=event.grade,
            origin=event.origin,
            headers=event.headers,
            content_type=event.content_type,
            body=event.body,
            body_sha256=event.body_sha256,
            volatile=event.volatile,
            items=tuple(
                _Item(item.path, item.type, item.dedup_key, item.key_hash.bytes, item.digest) for item in event.items
            ),
        )
    )


def decode(record: bytes) -> NewEvent:
    """Return the event of a record, without deliveries.

    Raises:
        UnreadableRecord: the record is invalid, or has another format.
    """
    if record[:1] != _FORMAT:
        raise UnreadableRecord(f"format {record[:1].hex()} is not known here; a later boathook may know it")
    try:
        found = _read(record[1:])
        return NewEvent(
            id=UUID(bytes=found.id),
            source=found.source,
            application=found.application,
            type=found.type,
            dedup_key=found.dedup_key,
            key_hash=UUID(bytes=found.key_hash),
            replay_hash=None if found.replay_hash is None else UUID(bytes=found.replay_hash),
            grade=ProofStrength(found.grade),
            origin=Origin(found.origin),
            headers=found.headers,
            content_type=found.content_type,
            body=found.body,
            body_sha256=found.body_sha256,
            routes_version=UNROUTED,
            volatile=found.volatile,
            items=tuple(
                NewBatchItem(
                    path=item.path,
                    type=item.type,
                    dedup_key=item.dedup_key,
                    key_hash=UUID(bytes=item.key_hash),
                    digest=item.digest,
                )
                for item in found.items
            ),
        )
    except (msgspec.DecodeError, ValueError) as error:
        raise UnreadableRecord(str(error)) from error
