"""Stores a batch event: its bytes once, each item's dedup key, and deliveries for new items.

One statement does this, so that of two gateways that store the same items concurrently, only one creates the
deliveries of each item. The items that it skips are classified afterwards as duplicates or conflicts. A conflict is
stored with the exact bytes of the item.
"""

import secrets
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from boathook.db.database import Connection, Record
from boathook.db.dedup import delete_expired
from boathook.db.ordering import unblock
from boathook.db.statements import load
from boathook.domain import ids
from boathook.domain.errors import DatabaseError, RoutesChanged
from boathook.domain.model import Accepted, Duplicate, NewBatchItem, NewEvent, Receipt

SQL = load(__file__)

_MAX_ROUNDS: Final = 5
_TOP_LEVEL_DECODER: Final = msgspec.json.Decoder(list[msgspec.Raw] | dict[str, msgspec.Raw])
_RANDOM_BITS: Final = 74


async def append_batch(connection: Connection, event: NewEvent, memory: timedelta) -> Receipt:
    """Store *event*, which has items, unless all of them are duplicates; return the receipt.

    One new item makes the receipt `Accepted`. If no item is new, nothing is stored, and the receipt names the event
    that brought the first item. In both cases the receipt says whether an item was a conflict.

    Args:
        memory: how long the items' keys are remembered.

    Raises:
        RoutesChanged: the event was routed by outdated routes; nothing was stored.
        DatabaseError: the keys kept expiring or changing while they were stored.
    """
    leaders = _first_positions(event.items)
    for _ in range(_MAX_ROUNDS):
        row = await _insert(connection, event, leaders, memory)
        if row["expired"]:
            await delete_expired(connection, row["expired"])
        elif (receipt := await _receipt(connection, event, row)) is not None:
            return receipt
    raise DatabaseError("dedup keys of these items changed concurrently; retry")


def _first_positions(items: Sequence[NewBatchItem]) -> dict[UUID, int]:
    """Return the first position of each key in the batch."""
    positions: dict[UUID, int] = {}
    for position, item in enumerate(items):
        positions.setdefault(item.key_hash, position)
    return positions


async def _insert(connection: Connection, event: NewEvent, leaders: Mapping[UUID, int], memory: timedelta) -> Record:
    items = [event.items[position] for position in leaders.values()]
    row = await connection.fetchrow(
        SQL["append_batch"],
        event.routes_version,
        event.id,
        event.source,
        event.application,
        event.type,
        event.dedup_key,
        event.grade,
        event.origin,
        event.headers,
        event.content_type,
        event.body,
        event.body_sha256,
        memory,
        [item.key_hash for item in items],
        [item.digest for item in items],
        [item.path for item in items],
        [item.type for item in items],
        list(leaders.values()),
        [delivery.item for delivery in event.deliveries],
        [delivery.recipient for delivery in event.deliveries],
        [delivery.order_key for delivery in event.deliveries],
    )
    if row is None or not row["is_current"]:
        raise RoutesChanged("the routes changed after this batch was routed")
    if row["has_blocked"]:
        await unblock(connection, [(delivery.recipient, delivery.order_key) for delivery in event.deliveries])
    return row


async def _receipt(connection: Connection, event: NewEvent, inserted: Record) -> Receipt | None:
    """Classify the items that are not new; return None to retry if a key was deleted concurrently."""
    fresh = set(inserted["fresh"])
    seen: dict[UUID, tuple[UUID, bytes]] = {
        item.key_hash: (event.id, item.digest) for item in reversed(event.items) if item.key_hash in fresh
    }
    repeated_keys = [item.key_hash for item in event.items if item.key_hash not in fresh]
    if repeated_keys:
        rows = await connection.fetch(SQL["find_items"], repeated_keys)
        seen |= {row["key"]: (row["event_id"], row["digest"]) for row in rows}
    is_accepted = bool(fresh) or inserted["is_stored"] or any(first == event.id for first, _ in seen.values())
    if not is_accepted and any(key not in seen for key in repeated_keys):
        return None
    conflicts = list(_conflicts(event, seen))
    if conflicts:
        await _record(connection, event, conflicts)
    if is_accepted:
        is_new = bool(fresh) and not inserted["is_stored"]
        return Accepted(
            event.id, conflict=bool(conflicts), has_deliveries=inserted["is_added"] or not is_new, is_new=is_new
        )
    return Duplicate(seen[event.items[0].key_hash][0], conflict=bool(conflicts))


def _conflicts(event: NewEvent, seen: Mapping[UUID, tuple[UUID, bytes]]) -> Iterator[tuple[UUID, str, str, bytes]]:
    """Yield for each item in conflict the first event with its key, the key, and the item's type and bytes."""
    pieces = JsonSlicer(event.body)
    for item in event.items:
        first = seen.get(item.key_hash)
        if first is not None and first[1] != item.digest:
            yield first[0], item.dedup_key, item.type, pieces.cut(item.path)


async def _record(connection: Connection, event: NewEvent, conflicts: Iterable[tuple[UUID, str, str, bytes]]) -> None:
    made_ms = event.id.int >> 80
    rows = [
        (ids.make(made_ms, secrets.randbits(_RANDOM_BITS)), *conflict, number)
        for conflict, number in Counter(conflicts).items()
    ]
    columns: list[tuple[Any, ...]] = list(zip(*rows, strict=True))
    await connection.execute(
        SQL["record_item_conflicts"], *columns, event.source, event.headers, event.content_type, event.grade
    )


class JsonSlicer:
    """Extracts parts of a JSON body as the exact bytes that were sent; each level is parsed once."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._levels: dict[str, list[msgspec.Raw] | dict[str, msgspec.Raw]] = {}

    def cut(self, path: str) -> bytes:
        """Return the bytes at a dotted path, or the whole body if they cannot be extracted."""
        try:
            return self._cut(path)
        except (msgspec.DecodeError, LookupError, ValueError):
            return self._body

    def _cut(self, path: str) -> bytes:
        if not path:
            return self._body
        parent, _, name = path.rpartition(".")
        level = self._levels.get(parent)
        if level is None:
            level = self._levels[parent] = _TOP_LEVEL_DECODER.decode(self._cut(parent))
        return bytes(level[int(name)] if isinstance(level, list) else level[name])
