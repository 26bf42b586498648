"""Implements the SQL statements that store events on the fake database."""

from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from boathook.domain.model import NewEvent, Origin, ProofStrength
from tests.simulation.lease_statements import single
from tests.simulation.sometimes import sometimes
from tests.simulation.tables import Record, Seen, Stored, Transaction, owe


def append_events(t: Transaction, version: int, *columns: Any) -> list[Record]:
    *rest, owed_events, ordinals, recipients, order_keys, _has_order, has_unhandled, same_body_as, windows = columns
    assert windows is None, "no source here counts from the acceptance"
    if t.tables.routes_version != version:
        sometimes("events routed by outdated routes were refused")
        return single(is_current=False, fresh=[], has_blocked=False)
    fresh: dict[UUID, tuple[Any, ...]] = {}
    for row in sorted(zip(*(fill(column, rest[0]) for column in rest), strict=True), key=lambda one: one[5]):
        id_, key, replay_key, memory_ = row[0], row[5], row[6], row[14]
        if not remember(t, Seen(key, replay_key, id_, row[12], t.now + memory_)):
            continue
        fresh[id_] = row
    for id_, row in sorted(fresh.items()):
        event = NewEvent(
            id=id_, source=row[1], application=row[2], type=row[3], dedup_key=row[4], key_hash=row[5], replay_hash=row[6],
            grade=ProofStrength(row[7]), origin=Origin(row[8]), headers=row[9], content_type=row[10], body=row[11], body_sha256=row[12],
        )  # fmt: skip
        first = None if same_body_as is None else same_body_as[rest[0].index(id_)]
        t.put("event", id_, Stored(event, t.now, row[13], first))
        if has_unhandled and row[13] == 0 and event.source is not None:
            t.put("unhandled", id_, (id_, event.source))
    has_blocked = False
    lines_seen = {
        (row.recipient, row.order_key)
        for row in t.rows("delivery")
        if row.order_key is not None and row.state != "dead"
    }
    deliveries = (fill(column, owed_events) for column in (owed_events, ordinals, recipients, order_keys))
    for event_id, ordinal, recipient, order_key in zip(*deliveries, strict=True):
        if event_id not in fresh:
            continue
        is_blocked = order_key is not None and (recipient, order_key) in lines_seen
        lines_seen.add((recipient, order_key))
        has_blocked = has_blocked or is_blocked
        owe(t, event_id, ordinal, recipient, order_key, is_blocked=is_blocked)
    return single(is_current=True, fresh=list(fresh), has_blocked=has_blocked)


def fill(column: Sequence[Any], ids: Sequence[UUID]) -> Sequence[Any]:
    """Return a column in which one value may stand for as many equal ones as there are ids."""
    return list(column) * len(ids) if len(column) == 1 else column


def count_unhandled(t: Transaction, first: UUID, most: int) -> list[Record]:
    latest = sorted((row for row in t.rows("unhandled") if row[0] >= first), reverse=True)[:most]
    numbers = Counter(source for _, source in latest)
    ranked = sorted(numbers.items(), key=lambda one: (-one[1], one[0]))
    return [Record(source=source, number=number) for source, number in ranked]


def remember(t: Transaction, seen: Seen) -> bool:
    t.hold("dedup", seen.key)
    if t.latest("dedup", seen.key) is not None:
        return False
    if seen.replay_key is not None:
        t.hold("replay", seen.replay_key)
        everything = {
            **t.tables.committed["dedup"],
            **{key: row for (name, key), row in t.writes.items() if name == "dedup"},
        }
        if any(row is not None and row.replay_key == seen.replay_key for row in everything.values()):
            return False
    t.put("dedup", seen.key, seen)
    return True


def find_seen(
    t: Transaction, keys: Sequence[UUID], replay_keys: Sequence[UUID | None], accepted_at: Sequence[datetime | None]
) -> list[Record]:
    assert not any(accepted_at), "no source here counts from the acceptance"
    found = []
    by_replay = {row.replay_key: row for row in t.rows("dedup") if row.replay_key is not None}
    for position, (key, replay_key) in enumerate(zip(keys, replay_keys, strict=True), 1):
        row = t.get("dedup", key) or by_replay.get(replay_key)
        if row is not None:
            found.append(
                Record(
                    position=position, event_id=row.event_id, body_sha256=row.body_sha256, is_same_key=row.key == key,
                    is_expired=row.expires_at <= t.now, found=row.key,
                )
            )  # fmt: skip
    return found


def record_conflict(
    t: Transaction, id_: UUID, first: UUID, _source: str, _app: str, dedup_key: str, differs: str, *rest: Any
) -> list[Record]:
    key = (first, differs, dedup_key, rest[-1])
    t.hold("conflict", key)
    t.put("conflict", key, (t.latest("conflict", key) or 0) + 1)
    sometimes("a conflict was recorded")
    return []


def forget_expired(t: Transaction, keys: Sequence[UUID], at: datetime | None) -> list[Record]:
    until = t.now if at is None else max(t.now, at)
    for key in sorted(keys):
        row = t.get("dedup", key)
        if row is not None and row.expires_at <= until:
            latest = t.lock("dedup", key)
            if latest is not None and latest.expires_at <= until:
                t.put("dedup", key, None)
    return []


def get_body(t: Transaction, event_id: UUID) -> list[Record]:
    stored = t.get("event", event_id)
    return [] if stored is None else single(body=stored.event.body)
