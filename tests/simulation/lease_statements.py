"""Implements the SQL statements for leases of deliveries on the fake database."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import asyncpg

from boathook.domain import ids
from tests.simulation.sometimes import sometimes
from tests.simulation.tables import Ended, Record, Row, Transaction, Tried


class LeaseLostInSql(asyncpg.PostgresError):
    """What boathook.settle raises for a stale fence."""

    sqlstate = "BH001"


class MisuseInSql(asyncpg.PostgresError):
    """What boathook.settle raises outside the transaction that boathook opened."""

    sqlstate = "BH002"


def single(**columns: Any) -> list[Record]:
    return [Record(columns)]


def unblock(t: Transaction, recipient: str, order_key: str) -> None:
    line = [
        row
        for row in t.rows("delivery")
        if row.recipient == recipient and row.order_key == order_key and row.state != "dead"
    ]
    if not line:
        return
    first = min(line, key=lambda row: row.seq)
    if first.state != "pending" or not first.is_blocked:
        return
    row = t.lock("delivery", first.key)
    if row is not None and row.state == "pending" and row.is_blocked:
        t.move(row, is_blocked=False, due_at=max(row.due_at, t.tables.clock()))


def unblock_lines(t: Transaction, recipients: Sequence[str], order_keys: Sequence[str]) -> list[Record]:
    for recipient, order_key in sorted(set(zip(recipients, order_keys, strict=True))):
        t.see(None)
        unblock(t, recipient, order_key)
    return []


def unblock_heads(t: Transaction) -> list[Record]:
    heads: dict[tuple[str, str], Row] = {}
    for row in t.rows("delivery"):
        if row.order_key is not None and row.state != "dead":
            line = (row.recipient, row.order_key)
            if line not in heads or row.seq < heads[line].seq:
                heads[line] = row
    stuck = sorted(line for line, row in heads.items() if row.is_blocked and row.state == "pending")
    for line in stuck:
        sometimes("a blocked head of a line was freed by the keeper")
        t.see(None)
        unblock(t, *line)
    return single(count=len(stuck))


# Claims


def is_first(t: Transaction, row: Row) -> bool:
    if row.order_key is None:
        return True
    line = [one for one in t.rows("delivery") if one.recipient == row.recipient and one.order_key == row.order_key]
    others = [one for one in line if one.key != row.key]
    is_open = any(one.state == "leased" or (one.state != "dead" and one.seq < row.seq) for one in others)
    return not is_open and row.state != "leased"


def take_lease(t: Transaction, row: Row, worker: str, lease: timedelta) -> Row:
    if row.order_key is not None:
        t.hold("line", row.recipient, row.order_key)
        for table, key in [("delivery", other.key) for other in t.tables.committed["delivery"].values()]:
            other = t.latest(table, key)
            if (
                other is not None
                and other.state == "leased"
                and other.key != row.key
                and (other.recipient, other.order_key) == (row.recipient, row.order_key)
            ):
                sometimes("two claims of one order key collided")
                raise asyncpg.UniqueViolationError("delivery_one_lease_per_order_key")
    return t.move(
        row,
        state="leased",
        attempts=row.attempts + 1,
        fence=row.fence + 1,
        leased_by=worker,
        lease_until=t.tables.clock() + lease,
    )


def claimed(t: Transaction, rows: list[Row]) -> list[Record]:
    now = t.tables.clock()
    found = []
    for row in sorted(rows, key=lambda one: (one.due_at, one.seq)):
        stored = t.get("event", row.event_id)
        columns = Record(
            event_id=row.event_id, ordinal=row.ordinal, recipient=row.recipient, fence=row.fence, attempts=row.attempts,
            attempts_before=row.attempts_before, enqueued_at=row.enqueued_at, order_key=row.order_key, due_at=row.due_at,
            crashes=row.crashes, free_retries=row.free_retries, item_path=row.item_path, item_type=row.item_type, claimed_at=now, id=None,
        )  # fmt: skip
        if stored is not None:
            event = stored.event
            columns |= {
                "id": event.id, "source": event.source, "application": event.application, "type": event.type,
                "dedup_key": event.dedup_key, "grade": event.grade, "origin": event.origin,
                "accepted_at": stored.accepted_at, "headers": event.headers, "content_type": event.content_type,
                "body": event.body, "same_body_as": stored.same_body_as,
            }  # fmt: skip
        found.append(Record(columns))
    return found


def claim_due(
    t: Transaction, worker: str, lease: timedelta, most_in_all: int | None, recipients: Sequence[str], slots: Sequence[int],
    since: Sequence[datetime], most: Sequence[int | None], is_suspect: bool,
) -> list[Record]:  # fmt: skip
    taken: list[Row] = []
    for recipient, slot, watermark, limit in zip(recipients, slots, since, most, strict=True):
        room = slot
        if limit is not None:
            leased = sum(1 for row in t.rows("delivery") if row.recipient == recipient and row.state == "leased")
            room = max(0, min(slot, limit - leased))

        def is_wanted(row: Row, since: datetime = watermark) -> bool:
            return is_due(t, row, since) and (row.crashes >= 2) == is_suspect

        taken += pick(t, recipient, room, is_wanted)
    taken = sorted(taken, key=lambda row: (row.due_at, row.seq))[:most_in_all]
    return claimed(t, [take_lease(t, row, worker, lease) for row in taken])


def pick(t: Transaction, recipient: str, room: int, is_wanted: Callable[[Row], bool]) -> list[Row]:
    """Lock what of a recipient may be claimed, up to so many, the longest due first."""
    taken: list[Row] = []
    due = [row for row in t.rows("delivery") if row.recipient == recipient and is_wanted(row)]
    for row in sorted(due, key=lambda one: (one.due_at, one.seq)):
        if len(taken) >= room:
            break
        if not is_first(t, row):
            continue
        latest = t.lock_or_skip("delivery", row.key)
        if latest is None:
            continue
        if latest is not row and not (is_wanted(latest) and is_first(t, latest)):
            sometimes("a row changed between a claim's snapshot and its lock")
            continue
        taken.append(latest)
    return taken


def is_due(t: Transaction, row: Row, watermark: datetime) -> bool:
    return row.state == "pending" and not row.is_blocked and watermark <= row.due_at <= t.now


def lock_recipients(t: Transaction, recipients: Sequence[str]) -> list[Record]:
    locked = [name for name in dict.fromkeys(recipients) if t.try_hold("claim", name)]
    if len(locked) < len(set(recipients)):
        sometimes("a limited recipient was being claimed by another worker")
    return [Record(recipient=name) for name in sorted(locked)]


def keys(*columns: Sequence[Any]) -> list[tuple[Any, ...]]:
    return list(zip(*columns, strict=True))


def holds(row: Row | None, fence: int) -> bool:
    return row is not None and row.fence == fence and row.leased_by is not None


def renew_leases(
    t: Transaction, events_: Sequence[UUID], ordinals: Sequence[int], fences: Sequence[int], lease: timedelta
) -> list[Record]:
    lost = []
    for event_id, ordinal, fence in sorted(keys(events_, ordinals, fences)):
        seen = t.get("delivery", (event_id, ordinal))
        if not holds(seen, fence):
            lost.append(Record(event_id=event_id, ordinal=ordinal, fence=fence))
            continue
        row = t.lock_or_skip("delivery", (event_id, ordinal))
        if row is None:
            sometimes("a lease that was being ended was not renewed")
        elif holds(row, fence):
            t.move(row, lease_until=t.tables.clock() + lease)
    return lost


def release_claims(
    t: Transaction, events_: Sequence[UUID], ordinals: Sequence[int], fences: Sequence[int]
) -> list[Record]:
    for event_id, ordinal, fence in keys(events_, ordinals, fences):
        if not holds(t.get("delivery", (event_id, ordinal)), fence):
            continue
        row = t.lock("delivery", (event_id, ordinal))
        if holds(row, fence):
            sometimes("a claim was given back")
            t.move(row, state="pending", attempts=row.attempts - 1, leased_by=None, lease_until=None, woken_by=None)
    return []


def record_failure(t: Transaction, *columns: Sequence[Any]) -> list[Record]:
    numbered = [(position, *rest) for position, rest in enumerate(zip(*columns, strict=True), 1)]
    results = []
    for (
        position,
        event_id,
        ordinal,
        fence,
        due,
        outcome,
        code,
        error,
        _traceback,
        _worker,
        _started,
        free_retries,
        _dependency,
    ) in sorted(numbered, key=lambda one: one[1:3]):
        t.see(None)
        is_moved = record_failure_one(t, event_id, ordinal, fence, due, outcome, code, error, is_free=free_retries)
        results.append(Record(position=position, is_moved=is_moved))
    return results


def record_failure_one(
    t: Transaction, event_id: UUID, ordinal: int, fence: int, due: datetime | None, outcome: str, code: str, error: str,
    *, is_free: bool,
) -> bool:  # fmt: skip
    if not holds(t.get("delivery", (event_id, ordinal)), fence):
        sometimes("a stale failure was refused")
        return False
    d = t.lock("delivery", (event_id, ordinal))
    if not holds(d, fence):
        return False
    ended = t.tables.clock()
    is_revived = due is None and d.woken_by is not None
    is_dead = due is None and not is_revived
    t.move(
        d,
        state="dead" if is_dead else "pending",
        due_at=(due or d.due_at) if d.woken_by is None else ended,
        enqueued_at=ended if is_revived else d.enqueued_at,
        dead_at=ended if is_dead else None,
        crashes=d.crashes + 1 if outcome == "lost" and not is_revived else 0,
        attempts_before=d.attempts if is_revived else d.attempts_before + is_free,
        free_retries=0 if is_revived else d.free_retries + is_free,
        replays=d.replays + is_revived,
        leased_by=None, lease_until=None, woken_by=None, code=code, error=error,
    )  # fmt: skip
    record_attempt(t, d, outcome, code)
    if is_revived:
        sometimes("an attempt that would have been the last was woken")
        t.audit.append((d.woken_by, "dead.replay", ids.show_delivery(event_id, ordinal), None))
    elif is_dead and d.order_key is not None:
        sometimes("a dead letter let the next of its order key go on")
        unblock(t, d.recipient, d.order_key)
    if d.woken_by is not None:
        t.notifications.append(("boathook_due", ""))
    return True


def record_wait(t: Transaction, *columns: Sequence[Any]) -> list[Record]:
    """Do what boathook.record_wait does where nothing is ever signalled: a wait ends at its time."""
    numbered = [(position, *rest) for position, rest in enumerate(zip(*columns, strict=True), 1)]
    results = []
    for position, event_id, ordinal, fence, _key, until, code, note, _worker, _started in sorted(
        numbered, key=lambda one: one[1:3]
    ):
        t.see(None)
        is_moved = record_wait_one(t, event_id, ordinal, fence, until, code, note)
        results.append(Record(position=position, is_moved=is_moved))
    return results


def record_wait_one(
    t: Transaction, event_id: UUID, ordinal: int, fence: int, until: datetime | None, code: str, note: str
) -> bool:
    if not holds(t.get("delivery", (event_id, ordinal)), fence):
        sometimes("a stale wait was refused")
        return False
    d = t.lock("delivery", (event_id, ordinal))
    if not holds(d, fence):
        return False
    if until is None:
        settle(t, event_id, ordinal, fence, "ignored", note, None)
        return True
    due = t.tables.clock() if d.woken_by is not None else until
    t.move(
        d, state="pending", due_at=due, enqueued_at=due, attempts_before=d.attempts, free_retries=0, crashes=0,
        leased_by=None, lease_until=None, woken_by=None, code=code, error=note,
    )  # fmt: skip
    record_attempt(t, d, "waiting", code)
    sometimes("a delivery waited")
    return True


def record_attempt(t: Transaction, d: Row, outcome: str, code: str | None) -> None:
    key = (d.event_id, d.ordinal, d.attempts)
    if t.latest("attempt", key) is not None:
        raise asyncpg.UniqueViolationError("attempt_pkey")
    t.put("attempt", key, Tried(d.attempts, outcome, code))


def settle(
    t: Transaction, event_id: UUID, ordinal: int, fence: int, state: str, note: str | None, mark: str | None
) -> None:
    """Do what boathook.settle does."""
    if mark is not None and t.mark != mark:
        raise MisuseInSql("the handler ended the transaction that boathook opened for it")
    t.see(None)
    d = t.get("delivery", (event_id, ordinal))
    if holds(d, fence):
        d = t.lock("delivery", (event_id, ordinal))
    if not holds(d, fence):
        sometimes("a stale commit was refused")
        sometimes("a replay met a zombie", if_=d is not None and d.replays > 0)
        raise LeaseLostInSql(f"lease lost: delivery {ordinal} of event {event_id} is no longer held with fence {fence}")
    t.put("delivery", d.key, None)
    record_attempt(t, d, state, None)
    if t.latest("delivery_archive", d.key) is not None:
        raise asyncpg.UniqueViolationError("delivery_archive_pkey")
    t.put("delivery_archive", d.key, Ended(d.recipient, state, d.order_key, d.attempts, d.replays, note, d.is_replay))
    if d.order_key is not None:
        unblock(t, d.recipient, d.order_key)


def find_lost(t: Transaction, dead_workers: Sequence[str]) -> list[Record]:
    def is_lost(row: Row) -> bool:
        if row.state != "leased":
            return False
        return row.leased_by in dead_workers if dead_workers else row.lease_until < t.tables.clock()  # type: ignore[operator]

    found: list[Row] = []
    for row in sorted((row for row in t.rows("delivery") if is_lost(row)), key=lambda one: one.lease_until):
        latest = t.lock_or_skip("delivery", row.key)
        if latest is None:
            sometimes("the keeper passed by a lease that was being ended")
        elif is_lost(latest):
            found.append(latest)
        if len(found) == 200:
            break
    return [
        Record(
            event_id=row.event_id, ordinal=row.ordinal, fence=row.fence, attempt=row.attempts - row.attempts_before,
            enqueued_at=row.enqueued_at, free_retries=row.free_retries, leased_by=row.leased_by, recipient=row.recipient,
            lease_until=row.lease_until, now=t.tables.clock(), policy=t.tables.policies.get(row.recipient), is_sent=row.recipient.startswith("endpoint:"),
            source=None, is_any_source=False,
        )
        for row in found
    ]  # fmt: skip


def find_held(t: Transaction, event_id: UUID, ordinal: int, fence: int) -> list[Record]:
    if t.get("delivery", (event_id, ordinal)) is None:
        return []
    row = t.lock("delivery", (event_id, ordinal))
    is_held = row is not None and row.fence == fence and row.state == "leased"
    sometimes("an unanswered commit turned out not to have happened", if_=is_held)
    return [] if row is None else single(held=is_held)


def find_settled(t: Transaction, event_id: UUID, ordinal: int, number: int) -> list[Record]:
    tried = t.get("attempt", (event_id, ordinal, number))
    is_settled = tried is not None and tried.outcome in ("succeeded", "ignored")
    sometimes("an unanswered commit turned out to have happened", if_=is_settled)
    sometimes("the delivery of an unanswered commit was another's", if_=not is_settled)
    return single(exists=is_settled)


def recall_effect(t: Transaction, event_id: UUID, ordinal: int, fence: int, recipient: str, name: str) -> list[Record]:
    return single(
        is_held=holds(t.get("delivery", (event_id, ordinal)), fence),
        result=t.get("side_effect", (event_id, recipient, name)),
    )


def save_side_effect(t: Transaction, event_id: UUID, recipient: str, name: str, result: str) -> list[Record]:
    key = (event_id, recipient, name)
    t.hold("side_effect", key)
    if t.latest("side_effect", key) is None:
        t.put("side_effect", key, result)
    return []
