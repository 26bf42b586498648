"""Implements the SQL statements for sending to endpoints on the fake database."""

import json
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from math import ceil
from typing import Any
from uuid import UUID

from boathook.domain import ids
from tests.simulation import lease_statements
from tests.simulation.sometimes import sometimes
from tests.simulation.tables import Ended, Endpoint, Health, Record, Row, Transaction


def _texts(array: str) -> list[str | None]:
    """Read an array as PostgreSQL does, of words without quotes."""
    inner = array.removeprefix("{").removesuffix("}")
    return [None if word == "null" else word for word in inner.split(",")] if inner else []


def _each(array: str, read: Callable[[str], Any]) -> list[Any]:
    return [None if word is None else read(word) for word in _texts(array)]


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _seconds(seconds: float) -> timedelta:
    return timedelta(seconds=seconds)


def _endpoint(t: Transaction, recipient: str) -> Endpoint | None:
    return next((one for one in t.rows("endpoint") if one.recipient == recipient), None)


def _is_pending(row: Row) -> bool:
    return row.state == "pending" and not row.is_blocked


# Finding and claiming


def list_due(t: Transaction, after: str, last: str, most: int) -> list[Record]:
    first: dict[str, datetime] = {}
    for row in t.rows("delivery"):
        if _is_pending(row) and after < row.recipient <= last:
            first[row.recipient] = min(first.get(row.recipient, row.due_at), row.due_at)
    return [_described(t, recipient, due_at) for recipient, due_at in sorted(first.items())[:most]]


def find_due_of(t: Transaction, recipients: Sequence[str]) -> list[Record]:
    due = {row.recipient for row in t.rows("delivery") if _is_pending(row) and row.due_at <= t.now}
    return [_described(t, recipient, t.now) for recipient in recipients if recipient in due]


def _described(t: Transaction, recipient: str, due_at: datetime) -> Record:
    is_due = due_at <= t.now
    found = _endpoint(t, recipient) if is_due else None
    health = None if found is None else t.get("health", found.id)
    return Record(
        recipient=recipient, due_at=due_at, is_due=is_due, id=found and found.id, revision=found and found.revision,
        is_disabled=found and found.is_disabled, concurrency=found and found.concurrency, is_deleted=False,
        rate=found and found.rate, open_until=health and health.open_until, took_s=0.0,
    )  # fmt: skip


def claim_endpoint_deliveries(
    t: Transaction, worker: str, lease: timedelta, _most_in_all: None, recipients: Sequence[str], endpoint_ids: str,
    slots: str, since: str, most: str, probes: str, _kept_header: str | None,
) -> list[Record]:  # fmt: skip
    wants = zip(
        recipients, _each(endpoint_ids, UUID), _each(slots, int), _each(since, _moment), _each(most, int),
        _each(probes, lambda word: word.lower() == "true"), strict=True,
    )  # fmt: skip
    picked: list[tuple[Row, Endpoint, bool, bool]] = []
    for recipient, endpoint_id, slot, watermark, limit, is_probe in wants:
        endpoint, health = t.get("endpoint", endpoint_id), t.get("health", endpoint_id)
        is_resting = health is not None and health.open_until is not None
        if endpoint is None or endpoint.is_disabled or (is_resting and not is_probe):
            sometimes("an endpoint was paused or disabled between the look and the claim")
            continue
        is_ailing = health is not None and (health.failures > 0 or health.failing_since is not None or is_resting)
        room = slot
        if limit is not None:
            leased = sum(1 for row in t.rows("delivery") if row.recipient == recipient and row.state == "leased")
            room = max(0, min(slot, limit - leased))

        def is_wanted(row: Row, since: datetime = watermark) -> bool:
            return _is_pending(row) and since <= row.due_at <= t.now

        picked += [(row, endpoint, is_ailing, is_probe) for row in lease_statements.pick(t, recipient, room, is_wanted)]
    claimed = [
        (lease_statements.take_lease(t, row, worker, lease), one, ails, is_one) for row, one, ails, is_one in picked
    ]
    claimed.sort(key=lambda one: (one[0].due_at, one[0].seq))
    return [_send(t, row, endpoint, is_ailing, is_probe) for row, endpoint, is_ailing, is_probe in claimed]


def _send(t: Transaction, row: Row, endpoint: Endpoint, is_ailing: bool, is_probe: bool) -> Record:
    stored = t.get("event", row.event_id)
    return Record(
        event_id=row.event_id, ordinal=row.ordinal, fence=row.fence, attempt=row.attempts - row.attempts_before,
        enqueued_at=row.enqueued_at, is_manual=False, due_at=row.due_at, is_ordered=row.order_key is not None,
        endpoint_id=endpoint.id, revision=endpoint.revision, is_ailing=is_ailing, is_probe=is_probe,
        content_type=stored and stored.event.content_type, body=stored and stored.event.body,
        accepted_at=stored and stored.accepted_at, claimed_at=t.tables.clock(), kept_header=None,
    )  # fmt: skip


def load_endpoints(t: Transaction, endpoint_ids: Sequence[UUID]) -> list[Record]:
    found = [one for one in t.rows("endpoint") if one.id in set(endpoint_ids)]
    return [
        Record(
            id=one.id, url=one.url, revision=one.revision, encrypted_headers=None, encrypted_auth=None, timeout_s=one.timeout_s,
            retry=one.retry, destination="http", destination_fields="{}", encrypted_destination=None,
            secrets=[one.encrypted], good_until=None,
        )
        for one in found
    ]  # fmt: skip


# Settling


def settle_endpoint_deliveries(t: Transaction, *columns: Any) -> list[Record]:
    events, ordinals, fences, states, dues, codes, errors, *_rest, _worker = columns
    ended = zip(
        _each(events, UUID), _each(ordinals, int), _each(fences, int), _texts(states), _each(dues, _moment), codes, errors,
        strict=True,
    )  # fmt: skip
    numbered = [(position, *one) for position, one in enumerate(ended, 1)]
    held = []
    for position, event_id, ordinal, fence, *rest in sorted(numbered, key=lambda one: one[1:3]):
        if lease_statements.holds(t.get("delivery", (event_id, ordinal)), fence):
            row = t.lock("delivery", (event_id, ordinal))
            if lease_statements.holds(row, fence):
                held.append((position, row, *rest))
                continue
        sometimes("the answer of an endpoint came too late for its lease")
    return [_settle_one(t, *one) for one in held]


def _settle_one(
    t: Transaction, position: int, d: Row, state: str, due_at: datetime | None, code: str, error: str
) -> Record:
    now = t.tables.clock()
    is_revived = d.woken_by is not None and state == "dead"
    lease_statements.record_attempt(t, d, "succeeded" if state == "succeeded" else "failed", code or None)
    if state == "succeeded":
        t.put("delivery", d.key, None)
        t.put(
            "delivery_archive", d.key, Ended(d.recipient, state, d.order_key, d.attempts, d.replays, None, d.is_replay)
        )
    else:
        t.move(
            d,
            state="pending" if is_revived else state,
            due_at=now if d.woken_by is not None else due_at or d.due_at,
            enqueued_at=now if is_revived else d.enqueued_at,
            attempts_before=d.attempts if is_revived else d.attempts_before,
            free_retries=0 if is_revived else d.free_retries,
            replays=d.replays + is_revived,
            crashes=0, leased_by=None, lease_until=None, woken_by=None,
            dead_at=now if state == "dead" and not is_revived else None,
            code=code or None, error=error or None,
        )  # fmt: skip
        if is_revived:
            t.audit.append((d.woken_by or "", "dead.replay", ids.show_delivery(*d.key), None))
        if d.woken_by is not None:
            t.notifications.append(("boathook_due", ""))
    is_freed = state != "pending" and not is_revived
    return Record(position=position, recipient=d.recipient, freed_key=d.order_key if is_freed else None, told=None)


# Health


def _healths(t: Transaction, endpoint_ids: Sequence[UUID]) -> list[Health]:
    """Lock the health of endpoints in the order of their ids; those that have none are left out."""
    found = (t.lock("health", key) for key in sorted(set(endpoint_ids)) if t.get("health", key) is not None)
    return [health for health in found if health is not None]


def _put(t: Transaction, health: Health, **changes: Any) -> Health:
    changed = health._replace(**changes)
    t.put("health", health.endpoint_id, changed)
    return changed


def ensure_health(t: Transaction, endpoint_ids: Sequence[UUID]) -> list[Record]:
    for key in sorted(set(endpoint_ids)):
        if t.get("endpoint", key) is not None and t.latest("health", key) is None and t.lock("health", key) is None:
            t.put("health", key, Health(key))
    return []


def take_tokens(
    t: Transaction, endpoint_ids: Sequence[UUID], numbers: Sequence[int], rates: Sequence[int]
) -> list[Record]:
    wanted = {key: (number, rate) for key, number, rate in zip(endpoint_ids, numbers, rates, strict=True)}
    granted = []
    for health in _healths(t, endpoint_ids):
        (number, rate), now = wanted[health.endpoint_id], t.tables.clock()
        gap_s, burst = 1 / rate, max(1, ceil(rate / 10))
        at = now if health.allowed_at is None else max(health.allowed_at, now)
        ahead_s = (at - now).total_seconds()
        taken = min(number, max(0, burst - ceil(round(ahead_s / gap_s, 9))))
        if taken:
            _put(t, health, allowed_at=at + _seconds(taken * gap_s))
        sometimes("a rate held a sender back", if_=taken < number)
        next_s = max(0.0, ahead_s + (taken + 1 - burst) * gap_s)
        granted.append(Record(endpoint_id=health.endpoint_id, taken=taken, next_s=next_s))
    return granted


def return_tokens(
    t: Transaction, endpoint_ids: Sequence[UUID], numbers: Sequence[int], rates: Sequence[int]
) -> list[Record]:
    unused = {key: number / rate for key, number, rate in zip(endpoint_ids, numbers, rates, strict=True)}
    for health in _healths(t, endpoint_ids):
        if health.allowed_at is not None:
            _put(t, health, allowed_at=health.allowed_at - _seconds(unused[health.endpoint_id]))
    return []


def take_probes(t: Transaction, endpoint_ids: Sequence[UUID], hold: timedelta, timeout_s: float) -> list[Record]:
    taken = []
    for key in sorted(set(endpoint_ids)):
        seen = t.get("health", key)
        health = t.lock_or_skip("health", key) if _is_over(t, seen) else None
        if health is not None and _is_over(t, health):
            endpoint = t.get("endpoint", key)
            assert endpoint is not None
            until = t.tables.clock() + hold + _seconds(endpoint.timeout_s or timeout_s)
            taken.append(_put(t, health, open_until=until))
        else:
            sometimes("another sender had the probe", if_=seen is not None and seen.open_until is not None)
    return [Record(endpoint_id=health.endpoint_id, open_until=health.open_until) for health in taken]


def _is_over(t: Transaction, health: Health | None) -> bool:
    return health is not None and health.open_until is not None and health.open_until <= t.tables.clock()


def release_probes(
    t: Transaction, endpoint_ids: Sequence[UUID], held: Sequence[datetime], after: timedelta
) -> list[Record]:
    for key, until in zip(endpoint_ids, held, strict=True):
        seen = t.get("health", key)
        health = t.lock("health", key) if seen is not None and seen.open_until == until else None
        if health is not None and health.open_until == until:
            _put(t, health, open_until=t.tables.clock() + after)
            sometimes("a probe was given back")
    return []


def mark_healthy(t: Transaction, endpoint_ids: Sequence[UUID]) -> list[Record]:
    changed = []
    for health in _healths(t, endpoint_ids):
        if health.failures > 0 or health.failing_since is not None or health.open_until is not None:
            sometimes("a breaker closed", if_=health.open_until is not None)
            _put(t, health, failures=0, failing_since=None, last_failed_at=None, open_until=None, pauses=0)
            changed.append(Record(endpoint_id=health.endpoint_id, was_open=health.open_until is not None))
    return changed


def update_health(
    t: Transaction, endpoint_ids: Sequence[UUID], failed: Sequence[int], after_success: Sequence[bool],
    theirs: Sequence[bool], probes: Sequence[bool], lucks: Sequence[float], failure_threshold: int, pause_s: float,
    max_pause_s: float, disable_after: timedelta,
) -> list[Record]:  # fmt: skip
    judged = dict(zip(endpoint_ids, zip(failed, after_success, theirs, probes, lucks, strict=True), strict=True))
    standings = []
    for h in _healths(t, endpoint_ids):
        number, is_after_success, is_theirs, is_probe, luck = judged[h.endpoint_id]
        now, known = t.tables.clock(), Health(h.endpoint_id) if is_after_success else h
        is_recent = not disable_after or h.last_failed_at is None or h.last_failed_at > t.now - 2 * disable_after
        since = known.failing_since if is_recent else None
        failures = known.failures + number
        is_enough = failures >= failure_threshold if known.open_until is None else is_probe
        is_opened = failure_threshold > 0 and is_enough
        rest_s = min(max_pause_s, pause_s * 2.0 ** min(known.pauses, 30)) * (0.8 + 0.4 * luck)
        sometimes("a breaker's probe failed", if_=is_opened and known.open_until is not None)
        after = _put(
            t, h, failures=failures, failing_since=(since or now) if is_theirs else since,
            last_failed_at=now if is_theirs else h.last_failed_at, pauses=known.pauses + is_opened,
            open_until=now + _seconds(rest_s) if is_opened else known.open_until,
        )  # fmt: skip
        since = after.failing_since
        should_disable = disable_after > timedelta() and since is not None and since <= now - disable_after
        standings.append(
            Record(
                endpoint_id=h.endpoint_id, open_until=after.open_until, pauses=after.pauses, failing_since=since,
                should_disable=should_disable, has_closed=is_after_success and h.open_until is not None,
                has_opened=is_opened and known.open_until is None,
            )
        )  # fmt: skip
    return standings


# Disabling


def lock_failing(t: Transaction, endpoint_id: UUID, revision: int) -> list[Record]:
    seen = t.get("endpoint", endpoint_id)
    if seen is None or seen.revision != revision:
        return []
    latest = t.lock("endpoint", endpoint_id)
    if latest is None or latest.revision != revision:
        return []
    health = t.get("health", endpoint_id)
    return [Record(since=health.failing_since if health is not None and health.failing_since else t.now)]


def disable_endpoint(t: Transaction, endpoint_id: UUID, because: str, _at: datetime) -> list[Record]:
    endpoint = t.lock("endpoint", endpoint_id)
    if endpoint is None or endpoint.is_disabled:
        return []
    sometimes("an endpoint that was gone was disabled")
    t.put(
        "endpoint",
        endpoint_id,
        endpoint._replace(is_disabled=True, disabled_because=because, revision=endpoint.revision + 1),
    )
    return [
        Record(
            organization="simulated", application_id=UUID(int=0), application_uid=None, is_operational=True,
            endpoint_id=endpoint_id, endpoint_uid=None,
        )
    ]  # fmt: skip


def forget_failures(t: Transaction, endpoint_id: UUID) -> list[Record]:
    if t.get("health", endpoint_id) is not None and t.lock("health", endpoint_id) is not None:
        t.put("health", endpoint_id, None)
    return []


def allow_probes(t: Transaction, recipients: Sequence[str]) -> list[Record]:
    for recipient in sorted(recipients):
        endpoint = _endpoint(t, recipient)
        health = None if endpoint is None else t.get("health", endpoint.id)
        if health is not None and health.open_until is not None and t.lock("health", health.endpoint_id) is not None:
            _put(t, health, open_until=min(health.open_until, t.now))
    return []


def put_first(_t: Transaction, _event_id: UUID, _ordinal: int) -> list[Record]:
    return []  # any due delivery is as good a probe here


def list_paused(t: Transaction, first: str, last: str, max_age_s: float) -> list[Record]:
    recipients = {row.recipient for row in t.rows("delivery") if _is_pending(row) and first < row.recipient <= last}
    found = []
    for recipient in sorted(recipients):
        endpoint = _endpoint(t, recipient)
        if endpoint is None or endpoint.is_disabled:
            age_s = max_age_s if endpoint is None or endpoint.retry is None else json.loads(endpoint.retry)["max_age_s"]
            found.append(Record(recipient=recipient, is_deleted=endpoint is None, max_age_s=age_s))
    return found


def dead_letter_pending(
    t: Transaction, recipients: Sequence[str], ages_s: Sequence[float], code: str, error: str, most: int
) -> list[Record]:
    ages = dict(zip(recipients, ages_s, strict=True))

    def is_over(row: Row) -> bool:
        return (
            row.recipient in ages and row.state == "pending" and row.enqueued_at < t.now - _seconds(ages[row.recipient])
        )

    number = 0
    for row in sorted([row for row in t.rows("delivery") if is_over(row)], key=lambda one: one.key)[:most]:
        latest = t.lock_or_skip("delivery", row.key)
        if latest is not None and latest.state == "pending":
            t.move(latest, state="dead", dead_at=t.tables.clock(), is_blocked=False, code=code, error=error)
            number += 1
    return [Record(count=number)]
