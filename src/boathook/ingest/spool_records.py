"""Encodes events for the spool: everything but their deliveries, which are decided when the spool is drained.

A record is one byte with the number of its format, followed by a MessagePack array (https://msgpack.org) of the fields
of `NewEvent` in their order: another order of fields is another format. A field may be added at the end: records that
end before it have none, and earlier versions ignore it. Format 1 is a received event. Format 2 is a published message:
an array of its event, and of the fields of `Publication`.
"""

from collections.abc import Collection
from typing import Any, Final, get_type_hints

import msgspec
from msgspec.structs import asdict, astuple

from boathook.domain.model import NewBatchItem, NewEvent, Publication

_RECEIVED: Final = b"\x01"
_PUBLISHED: Final = b"\x02"
UNROUTED: Final = -1
"""The routes version of an event that was never routed."""


class UnreadableRecord(ValueError):
    """A record is invalid, or has the format of a later version."""


def _array_of(
    model: type[msgspec.Struct], *, without: Collection[str] = (), added: Collection[str] = (), **types: Any
) -> type[msgspec.Struct]:
    """Return a struct with the fields of another, in order, that is encoded as an array.

    Args:
        model: the other struct.
        without: fields that are left out.
        added: fields that later versions have added, behind all others; older records end before them.
        types: types that replace those of the other struct.
    """
    hints = get_type_hints(model) | types
    columns: list[Any] = [(name, hints[name]) for name in model.__struct_fields__ if name not in (*without, *added)]
    columns += [(name, hints[name], None) for name in added]
    return msgspec.defstruct(f"_{model.__name__}", columns, frozen=True, array_like=True, gc=False)


_Item: Any = _array_of(NewBatchItem)
_ELSEWHERE: Final = ("deliveries", "routes_version", "publication")
_ADDED: Final = ("object_hash",)
Plain: Any = _array_of(NewEvent, without=(*_ELSEWHERE, *_ADDED), items=tuple[_Item, ...])
_Record: Any = _array_of(NewEvent, without=_ELSEWHERE, added=_ADDED, items=tuple[_Item, ...])
_Publication: Any = _array_of(Publication)
_EVENT_FIELDS: Final = tuple(name for name in _Record.__struct_fields__ if name != "items")
_PLAIN_FIELDS: Final = tuple(name for name in Plain.__struct_fields__ if name != "items")
_write = msgspec.msgpack.Encoder(uuid_format="bytes").encode
_read = msgspec.msgpack.Decoder(_Record).decode
_read_message = msgspec.msgpack.Decoder(tuple[_Record, _Publication]).decode


def encode(event: NewEvent) -> bytes:
    """Return an event as a record.

    Raises:
        ValueError: a text contains a character that PostgreSQL cannot store.
    """
    texts = (event.type, event.dedup_key, event.content_type, *(item.dedup_key + item.type for item in event.items))
    if any("\0" in text for text in texts):
        raise ValueError("it contains a NUL, which PostgreSQL cannot store in text")
    items = tuple([_Item(*astuple(item)) for item in event.items])
    model, names = (Plain, _PLAIN_FIELDS) if event.object_hash is None else (_Record, _EVENT_FIELDS)
    record = model(**{name: getattr(event, name) for name in names}, items=items)
    if event.publication is None:
        return _RECEIVED + _write(record)
    publication = _Publication(*astuple(event.publication))
    return _PUBLISHED + _write((record, publication))


def decode(record: bytes) -> NewEvent:
    """Return the event of a record, without deliveries.

    Raises:
        UnreadableRecord: the record is invalid, or has another format.
    """
    try:
        match record[:1]:
            case b"\x01":
                return _event(_read(record[1:]), None)
            case b"\x02":
                event_fields, publication = _read_message(record[1:])
                return _event(event_fields, Publication(**asdict(publication)))
    except (msgspec.DecodeError, ValueError) as error:
        raise UnreadableRecord(str(error)) from error
    raise UnreadableRecord(f"format {record[:1].hex()} is not supported; a later boathook may support it")


def _event(fields: Any, publication: Publication | None) -> NewEvent:
    return NewEvent(
        **{name: getattr(fields, name) for name in _EVENT_FIELDS},
        items=tuple([NewBatchItem(**asdict(item)) for item in fields.items]),
        routes_version=UNROUTED,
        publication=publication,
    )
