"""Implements the SQL statements of operators' commands on the fake database."""

import re
from bisect import bisect_right
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from tests.simulation.tables import Ended, Record, Row, Transaction, owe


def like(text: str | None, pattern: str | None) -> bool:
    if pattern is None:
        return True
    parts = re.split(r"\\(.)|(%)|(_)", pattern)
    words = [".*" if part == "%" else "." if part == "_" else re.escape(part) for part in parts if part]
    return text is not None and re.fullmatch("".join(words), text, re.DOTALL) is not None


def accepts_deliveries(t: Transaction, recipient: str) -> bool:
    """Do what boathook.accepts_deliveries does."""
    found = (one for one in t.rows("endpoint") if one.recipient == recipient and not one.is_disabled)
    return not recipient.startswith("endpoint:") or next(found, None) is not None


def lock_dead(
    t: Transaction, source: str | None, application: str | None, type_: str | None, recipient: str | None, code: str | None,
    since: datetime | None, until: datetime | None, key_events: Sequence[UUID] | None, key_ordinals: Sequence[int] | None,
    organization: str | None, limit: int, is_to_revive: bool,
) -> list[Record]:  # fmt: skip
    assert organization is None, "the operators of the simulation act on all organizations"
    wanted = None if key_events is None else set(zip(key_events, key_ordinals or (), strict=True))

    def fits(row: Row) -> bool:
        stored = t.get("event", row.event_id)
        return (
            row.state == "dead"
            and stored is not None
            and source in (None, stored.event.source)
            and application in (None, stored.event.application)
            and like(stored.event.type, type_)
            and like(row.recipient, recipient)
            and code in (None, row.code)
            and (since is None or row.dead_at >= since)  # type: ignore[operator]
            and (until is None or row.dead_at < until)  # type: ignore[operator]
            and (wanted is None or row.key in wanted)
            and (not is_to_revive or accepts_deliveries(t, row.recipient))
        )

    found: list[Row] = []
    for row in sorted((row for row in t.rows("delivery") if fits(row)), key=lambda one: one.key):
        if len(found) == limit:
            break
        latest = t.lock_or_skip("delivery", row.key)
        if latest is not None and fits(latest):
            found.append(latest)
    return [Record(event_id=row.event_id, ordinal=row.ordinal) for row in found]


def lock_dead_of_events(t: Transaction, event_ids: Sequence[UUID], type_: str | None) -> list[Record]:
    found = []
    for row in sorted(t.rows("delivery"), key=lambda one: one.key):
        if (
            row.state != "dead"
            or row.event_id not in event_ids
            or not like(t.get("event", row.event_id).event.type, type_)
            or not accepts_deliveries(t, row.recipient)
        ):
            continue
        latest = t.lock("delivery", row.key)
        if latest is not None and latest.state == "dead":
            found.append(Record(event_id=row.event_id, ordinal=row.ordinal))
    return found


def revive_dead(
    t: Transaction, events_: Sequence[UUID], ordinals: Sequence[int], start: datetime, place: int, gap_s: float
) -> list[Record]:
    revived = []
    for number, key in enumerate(zip(events_, ordinals, strict=True), 1):
        row = t.latest("delivery", key)
        if row is None or row.state != "dead":
            continue
        due_at = max(t.now, start + timedelta(seconds=gap_s * (place + number - 1)))
        t.move(
            row, state="pending", attempts_before=row.attempts, replays=row.replays + 1, crashes=0, free_retries=0, dead_at=None,
            enqueued_at=due_at, due_at=due_at, is_blocked=row.order_key is not None,
        )  # fmt: skip
        revived.append(Record(recipient=row.recipient, order_key=row.order_key))
    return revived


def settle_dead(t: Transaction, events_: Sequence[UUID], ordinals: Sequence[int], note: str) -> list[Record]:
    for key in zip(events_, ordinals, strict=True):
        row = t.latest("delivery", key)
        if row is not None and row.state == "dead":
            t.put("delivery", key, None)
            t.put(
                "delivery_archive",
                key,
                Ended(row.recipient, "ignored", row.order_key, row.attempts, row.replays, note, row.is_replay),
            )
    return []


def record_actions(t: Transaction, actor: str, action: str, subjects: Sequence[str], note: str | None) -> list[Record]:
    t.audit += [(actor, action, subject, note) for subject in subjects]
    return []


def lock_pending(t: Transaction, event_id: UUID) -> list[Record]:
    for row in sorted((row for row in t.rows("delivery") if row.event_id == event_id), key=lambda one: one.ordinal):
        t.lock("delivery", row.key)
    return []


def wake_pending(t: Transaction, event_id: UUID, actor: str) -> list[Record]:
    woken = []
    for seen in list(t.rows("delivery")):
        if seen.event_id != event_id or seen.state not in ("pending", "leased"):
            continue
        row = t.lock("delivery", seen.key)
        if row is None or row.state == "dead":
            continue
        is_pending = row.state == "pending"
        due_at = min(row.due_at, t.tables.clock()) if is_pending else row.due_at
        t.move(row, due_at=due_at, woken_by=None if is_pending else actor)
        woken.append(Record(n=1))
    return woken


def lock_replays(t: Transaction, event_ids: Sequence[UUID]) -> list[Record]:
    for event_id in sorted(event_ids, key=str):
        t.hold("replayed", event_id)
    return []


def add_replays(
    t: Transaction, event_ids: Sequence[UUID], start: datetime, place: int, gap_s: float, type_: str | None
) -> list[Record]:
    known: dict[UUID, list[tuple[int, str, str | None, bool]]] = {event_id: [] for event_id in event_ids}
    for row in t.rows("delivery"):
        if row.event_id in known:
            known[row.event_id].append((row.ordinal, row.recipient, row.order_key, True))
    for (table, key), ended in [
        (("delivery_archive", key), t.get("delivery_archive", key)) for key in all_keys(t, "delivery_archive")
    ]:
        if key[0] in known and table and ended is not None:
            known[key[0]].append((key[1], ended.recipient, ended.order_key, False))
    planned: list[tuple[UUID, int, str, str | None]] = []
    for event_id in sorted(event_ids):
        stored = t.get("event", event_id)
        if stored is None or not like(stored.event.type, type_):
            continue
        recipients: dict[str, list[tuple[int, str, str | None, bool]]] = {}
        for one in known[event_id]:
            recipients.setdefault(one[1], []).append(one)
        ended_all = [rows for rows in recipients.values() if not any(one[3] for one in rows)]
        ordinal = max([stored.fanout, *(one[0] + 1 for one in known[event_id])])
        ended_all = [rows for rows in ended_all if accepts_deliveries(t, rows[0][1])]
        for rows in sorted(ended_all, key=lambda group: min(one[0] for one in group)):
            order_key = max((one[2] for one in rows if one[2] is not None), default=None)
            planned.append((event_id, ordinal, rows[0][1], order_key))
            ordinal += 1
    added = []
    for number, (event_id, ordinal, recipient, order_key) in enumerate(planned):
        due_at = max(t.now, start + timedelta(seconds=gap_s * (place + number)))
        owe(
            t,
            event_id,
            ordinal,
            recipient,
            order_key,
            is_blocked=order_key is not None,
            is_replay=True,
            enqueued_at=due_at,
            due_at=due_at,
        )
        added.append(Record(recipient=recipient, order_key=order_key))
    return added


def all_keys(t: Transaction, table: str) -> list[Any]:
    keys = dict.fromkeys(t.tables.committed[table])
    keys.update(dict.fromkeys(key for (name, key), row in t.writes.items() if name == table))
    return list(keys)


def list_done(t: Transaction, action: str, subjects: Sequence[str], note: str | None) -> list[Record]:
    known = {subject for _, what, subject, why in (*t.tables.audit, *t.audit) if what == action and why == note}
    return [Record(subject=subject) for subject in subjects if subject in known]


def announce_due(t: Transaction, payloads: Sequence[str]) -> list[Record]:
    t.notifications += [("boathook_due", payload) for payload in payloads]
    return []


def count_backlog(t: Transaction) -> list[Record]:
    by_recipient: dict[str, list[Row]] = {}
    for row in t.rows("delivery"):
        by_recipient.setdefault(row.recipient, []).append(row)
    found = []
    for recipient, rows in sorted(by_recipient.items()):
        ready = [row for row in rows if row.state == "pending" and not row.is_blocked]
        due = [row for row in ready if row.due_at <= t.now]
        found.append(
            Record(
                recipient=recipient, due=len(due), later=len(ready) - len(due), blocked=sum(row.is_blocked for row in rows),
                leased=sum(row.state == "leased" for row in rows), dead=sum(row.state == "dead" for row in rows),
                oldest_due_s=max(((t.now - row.due_at).total_seconds() for row in due), default=0.0),
                ages=_ages([t.now - row.due_at for row in due]),
            )
        )  # fmt: skip
    return found


def _ages(waited: Sequence[timedelta]) -> list[int]:
    counts = [0] * (len(_AGES) + 1)
    for length in waited:
        counts[bisect_right(_AGES, length)] += 1
    return counts


_AGES = [timedelta(seconds=10), timedelta(minutes=1), timedelta(minutes=10), timedelta(hours=1)]


def find_troubled_endpoints(t: Transaction) -> list[Record]:
    # No attempt has a time here, so that no endpoint has a health to judge.
    return [Record(failed=[], disabled=sum(row.is_disabled for row in t.rows("endpoint")))]
