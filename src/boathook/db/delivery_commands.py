"""Operator commands on deliveries: each runs in one transaction, with its rows in the audit log.

A command locks its dead letters before it changes anything, and skips those that another operator holds. Two concurrent
commands therefore share the work instead of doing it twice.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import Final
from uuid import UUID

import asyncpg
import msgspec
from msgspec.structs import replace

from boathook.db.database import Connection, Database, Record
from boathook.db.due_notifier import notify_due
from boathook.db.endpoints import probe
from boathook.db.ordering import unblock
from boathook.db.queries import listings
from boathook.db.queries.listings import ListFilter, like_pattern
from boathook.db.statements import load
from boathook.domain import ids
from boathook.domain.due import due_recipients
from boathook.domain.errors import InvalidState, InvalidTransition, NotFound
from boathook.domain.model import MAX_DELIVERIES

SQL = load(__file__, fragments_of=(listings.__file__,))
_MAX_TRACKED: Final = 10_000

Key = tuple[UUID, int]
"""An event's id and the ordinal of one of its deliveries."""

REPLAY_DEAD: Final = "dead.replay"
IGNORE_DEAD: Final = "dead.ignore"
PURGE_DEAD: Final = "dead.purge"
REPLAY_EVENT: Final = "event.replay"
REPLAY_DELIVERY: Final = "delivery.replay"
RETRY_DELIVERY: Final = "delivery.retry"
ROUTE_EVENT: Final = "event.route"
ACCEPT_REJECTION: Final = "rejection.accept"
ACCEPT_CONFLICT: Final = "conflict.accept"


class Selection(msgspec.Struct, frozen=True):
    """Selects the dead letters of a command, by a filter or by keys."""

    filter: ListFilter
    keys: Sequence[Key] | None = None
    organization: str | None = None
    """Only those that belong to this organization; None: those of all."""

    def arguments(self) -> tuple[object, ...]:
        """Return the selection as the arguments $1 to $10 of its statements."""
        filters = self.filter
        columns = (None, None) if self.keys is None else _columns(self.keys)
        return (
            filters.source, filters.application, like_pattern(filters.type), like_pattern(filters.recipient),
            filters.code, filters.since, filters.until, *columns, self.organization,
        )  # fmt: skip


class ReplaySchedule(msgspec.Struct, frozen=True):
    """When replayed deliveries are due: one every `gap_s` seconds from `start`, after `place` earlier ones."""

    start: datetime
    gap_s: float = 0.0
    place: int = 0


class LockedConflict(msgspec.Struct, frozen=True, kw_only=True):
    """A conflict with everything that its event needs."""

    id: UUID
    event_id: UUID
    """The event that came first."""
    source: str | None
    application: str | None
    type: str
    grade: str
    headers: str
    """As `NewEvent.headers`."""
    content_type: str
    body: bytes
    body_sha256: bytes
    channels: Sequence[str] | None
    tags: Sequence[str] | None
    content_until: datetime | None
    accepted_as: UUID | None
    """The event that it became."""


class AuditContext(msgspec.Struct, frozen=True, kw_only=True):
    """The actor of an operation and the reason for it."""

    actor: str
    note: str | None = None


class DeadLetterCount(msgspec.Struct, frozen=True, kw_only=True):
    """Dead letters with the same source, type, recipient and code."""

    source: str | None
    application: str | None
    type: str
    """The type of the event or of the delivered item."""
    recipient: str
    code: str
    number: int
    oldest: datetime
    newest: datetime


class DeliveryState(msgspec.Struct, frozen=True):
    """What an operator's action on a delivery depends on."""

    key: Key
    state: str
    recipient: str
    takes: bool
    """Whether its recipient accepts deliveries: an endpoint may be deleted or disabled."""
    is_gone: bool
    """Whether its event's content was deleted."""


class ReplayResult(msgspec.Struct, frozen=True):
    """The result of replaying events."""

    events: int = 0
    added: int = 0
    """Deliveries added for recipients without an open one."""
    revived: int = 0
    """Dead letters that became pending."""


class ReplayOutcomes(msgspec.Struct, frozen=True, kw_only=True):
    """The state of deliveries since they were replayed."""

    succeeded: int = 0
    ignored: int = 0
    dead: int = 0
    """Failed again and are dead letters."""
    retrying: int = 0
    """Failed again and will be retried."""
    waiting: int = 0
    """No attempt has ended since the replay."""
    same_cause: int = 0
    """How many of `dead` are in the group that was replayed, if a group was."""

    @property
    def number(self) -> int:
        """Number of deliveries that were replayed."""
        return self.succeeded + self.ignored + self.dead + self.retrying + self.waiting

    @property
    def failed(self) -> int:
        """Number of deliveries that failed again."""
        return self.dead + self.retrying

    @property
    def is_open(self) -> bool:
        """Whether some are unfinished."""
        return self.retrying + self.waiting > 0


async def read_clock(database: Database | Connection) -> datetime:
    """Return the server's time."""
    now: datetime = await database.fetchval(SQL["read_clock"])
    return now


async def read_states(connection: Connection, keys: Sequence[Key], organization: str | None) -> list["DeliveryState"]:
    """Return the states of those of these deliveries that exist, of one organization or of all."""
    rows = await connection.fetch(SQL["read_states"], *_columns(keys), organization)
    return [DeliveryState((row["event_id"], row["ordinal"]), *list(row)[2:]) for row in rows]


async def count_dead(database: Database | Connection, selection: Selection) -> list[DeadLetterCount]:
    """Count the dead letters in *selection*, grouped, largest group first."""
    return [DeadLetterCount(**dict(row)) for row in await database.fetch(SQL["count_dead"], *selection.arguments())]


async def replay_dead(
    connection: Connection, selection: Selection, action: AuditContext, *, pace: ReplaySchedule, limit: int
) -> list[Key]:
    """Make up to *limit* dead letters pending again, each with a new budget of attempts; return their keys.

    Those whose content was deleted, and those of deleted or disabled endpoints, are skipped.
    """
    keys = await lock_dead(connection, selection, limit, is_to_revive=True)
    await replay_locked(connection, keys, action, pace=pace)
    return keys


async def ignore_dead(connection: Connection, selection: Selection, action: AuditContext, *, limit: int) -> list[Key]:
    """Settle up to *limit* dead letters as ignored, with the action's note; return their keys."""
    keys = await lock_dead(connection, selection, limit)
    await ignore_locked(connection, keys, action)
    return keys


async def replay_locked(
    connection: Connection, keys: Sequence[Key], action: AuditContext, *, pace: ReplaySchedule
) -> None:
    """Make dead letters pending again that the caller's transaction has locked."""
    if keys:
        await _revive(connection, keys, pace)
        await record_each(connection, action, REPLAY_DEAD, [ids.show_delivery(*key) for key in keys])
        await notify_due(connection)


async def ignore_locked(connection: Connection, keys: Sequence[Key], action: AuditContext) -> None:
    """Settle dead letters as ignored that the caller's transaction has locked, with the action's note."""
    if keys:
        await connection.execute(SQL["settle_dead"], *_columns(keys), action.note or "ignored by an operator")
        await record_each(connection, action, IGNORE_DEAD, [ids.show_delivery(*key) for key in keys])


async def purge_locked(connection: Connection, keys: Sequence[Key], action: AuditContext) -> None:
    """Delete dead letters that the caller's transaction has locked, with their attempts."""
    if keys:
        await connection.execute(SQL["delete_dead"], *_columns(keys))
        await record_each(connection, action, PURGE_DEAD, [ids.show_delivery(*key) for key in keys])


async def replay_events(
    connection: Connection,
    event_ids: Sequence[UUID],
    action: AuditContext,
    *,
    pace: ReplaySchedule,
    type: str | None = None,
    is_once: bool = False,
) -> ReplayResult:
    """Deliver these events again to every recipient without an open delivery; dead letters are revived instead.

    Each item of a batch is delivered again separately.

    Args:
        type: a pattern for the event's type, or for the item's type; None replays every item.
        is_once: skip events that an earlier replay with the same note has processed.

    Raises:
        InvalidTransition: an event would exceed its maximum number of deliveries.
    """
    await connection.execute(SQL["lock_replays"], list(event_ids))
    todo = await _not_done(connection, event_ids, action) if is_once else list(event_ids)
    dead = [tuple(row) for row in await connection.fetch(SQL["lock_dead_of_events"], todo, like_pattern(type))]
    await _revive(connection, dead, pace)
    later = replace(pace, place=pace.place + len(dead))
    rows = await _add_replays(connection, todo, later, like_pattern(type))
    await unblock(connection, [tuple(row) for row in rows])
    await probe(connection, {row["recipient"] for row in rows})
    await record_each(connection, action, REPLAY_EVENT, [ids.show(ids.EVENT, event_id) for event_id in todo])
    await record_each(connection, action, REPLAY_DEAD, [ids.show_delivery(*key) for key in dead])
    await notify_due(connection)
    return ReplayResult(len(todo), len(rows), len(dead))


async def replay_delivery(connection: Connection, key: Key, action: AuditContext) -> Key:
    """Add a delivery of the same event, or item, to the recipient of an ended delivery; return the new delivery.

    Raises:
        NotFound: no delivery with this key has ended.
        InvalidState: the event's content was deleted, or its endpoint is deleted or disabled.
        InvalidTransition: the recipient already has an open delivery or dead letter of it, or the event has the maximum
            number of deliveries.
    """
    await connection.execute(SQL["lock_replays"], [key[0]])
    row = await _insert_replay(connection, *key)
    new_key = (key[0], _added_ordinal(row, ids.show_delivery(*key)))
    await unblock(connection, [(row["recipient"], row["order_key"])])
    await probe(connection, [row["recipient"]], new_key)
    await record_each(connection, action, REPLAY_DELIVERY, [ids.show_delivery(*key)])
    await notify_due(connection)
    return new_key


async def retry_delivery(connection: Connection, key: Key, action: AuditContext) -> bool:
    """Make a pending delivery due now, as a probe if its endpoint is paused; return False if it is not pending.

    Raises:
        InvalidState: its endpoint is deleted or disabled.
        InvalidTransition: an earlier delivery of its order key has not ended.
    """
    row = await connection.fetchrow(SQL["retry_pending"], *key)
    if row is None:
        return False
    name, recipient = ids.show_delivery(*key), row["recipient"]
    if not row["takes"]:
        text = f"{recipient} is deleted or disabled; enable the endpoint first, then retry {name}"
        raise InvalidState(text, "endpoint_disabled")
    if row["is_blocked"]:
        raise InvalidTransition(f"{name} waits for an earlier delivery of its order key; retry that one")
    await probe(connection, [recipient], key)
    await record_each(connection, action, RETRY_DELIVERY, [name])
    await notify_due(connection, due_recipients([recipient]))
    return True


async def make_due_now(connection: Connection, event_id: UUID, action: AuditContext) -> int:
    """Make all deliveries of an event due once the caller's transaction commits; return the number.

    Pending deliveries become due immediately. Dead letters become pending with a new budget, as by a replay. A running
    attempt that started before is retried immediately if it fails. A caller that wakes several events in one
    transaction must do so in the order of their ids, which is the order in which attempts are settled.
    """
    await connection.execute(SQL["lock_pending"], event_id)
    tag: str = await connection.execute(SQL["wake_pending"], event_id, action.actor)
    dead = [tuple(row) for row in await connection.fetch(SQL["lock_dead_of_events"], [event_id], None)]
    if dead:
        await _revive(connection, dead, ReplaySchedule(await connection.fetchval(SQL["read_clock"])))
        await record_each(connection, action, REPLAY_DEAD, [ids.show_delivery(*key) for key in dead])
    number = int(tag.rpartition(" ")[2]) + len(dead)
    if number:
        await notify_due(connection)
    return number


async def read_outcomes(
    database: Database | Connection,
    action: AuditContext,
    name: str,
    *,
    since: datetime,
    until: datetime,
    group: UUID | None = None,
) -> ReplayOutcomes:
    """Count the results of the deliveries that an action replayed, for the first 10,000 subjects in the audit log.

    Args:
        action: the actor and the note that identify the action.
        name: `REPLAY_DEAD` for dead letters, `REPLAY_EVENT` for events.
        since: when the action began; *until* is when it ended.
        group: the group of dead letters that was replayed.
    """
    rows = await database.fetch(SQL["list_acted_on"], name, action.actor, action.note, since, until, _MAX_TRACKED)
    subjects = [row["subject"] for row in rows]
    is_event = name == REPLAY_EVENT
    keys = [(ids.read_event(subject), None) if is_event else ids.read_delivery(subject) for subject in subjects]
    counts = await database.fetchrow(SQL["count_results"], *_columns(keys), since, group)
    assert counts is not None  # one row of counts
    return ReplayOutcomes(**dict(counts))


async def mark_rejection_accepted(
    connection: Connection, rejection_id: UUID, event_id: UUID, action: AuditContext
) -> None:
    """Record which event a rejected request became, unless it had become one already."""
    if await connection.execute(SQL["mark_rejection"], rejection_id, event_id) == "UPDATE 1":
        await record_each(connection, action, ACCEPT_REJECTION, [ids.show(ids.REJECTION, rejection_id)])
        await notify_due(connection)


async def lock_conflict(
    connection: Connection, conflict_id: UUID, organization: str | None = None
) -> LockedConflict | None:
    """Return a conflict, locked until the transaction ends; None if it is not stored, or not of *organization*."""
    row = await connection.fetchrow(SQL["lock_conflict"], conflict_id, organization)
    return None if row is None else LockedConflict(**dict(row))


async def mark_conflict_accepted(
    connection: Connection, conflict_id: UUID, event_id: UUID, action: AuditContext
) -> None:
    """Record which event a locked conflict became."""
    await connection.execute(SQL["mark_conflict"], conflict_id, event_id)
    await record_each(connection, action, ACCEPT_CONFLICT, [ids.show(ids.CONFLICT, conflict_id)])
    await notify_due(connection)


async def record_each(connection: Connection, action: AuditContext, name: str, subjects: Sequence[str]) -> None:
    """Record one operator's action on each of several subjects."""
    await connection.execute(SQL["record_actions"], action.actor, name, list(subjects), action.note)


async def lock_dead(
    connection: Connection, selection: Selection, limit: int, *, is_to_revive: bool = False
) -> list[Key]:
    """Lock up to *limit* dead letters; *is_to_revive* skips those that cannot be replayed."""
    rows = await connection.fetch(SQL["lock_dead"], *selection.arguments(), limit, is_to_revive)
    return [(row["event_id"], row["ordinal"]) for row in rows]


async def _revive(connection: Connection, keys: Sequence[Key], pace: ReplaySchedule) -> None:
    rows = await connection.fetch(SQL["revive_dead"], *_columns(keys), pace.start, pace.place, pace.gap_s)
    await unblock(connection, [(row["recipient"], row["order_key"]) for row in rows])
    await probe(connection, {row["recipient"] for row in rows}, keys[0] if len(keys) == 1 else None)


async def _add_replays(
    connection: Connection, event_ids: Sequence[UUID], pace: ReplaySchedule, type_like: str | None
) -> list[Record]:
    try:
        rows: list[Record] = await connection.fetch(
            SQL["add_replays"], event_ids, pace.start, pace.place, pace.gap_s, type_like
        )
    except asyncpg.NumericValueOutOfRangeError:
        raise InvalidTransition(
            f"an event can have {MAX_DELIVERIES} deliveries including replays, and one of these would exceed that; "
            "replay fewer items of it, by --type, or its dead letters alone, by boathook dead replay"
        ) from None
    return rows


async def _insert_replay(connection: Connection, event_id: UUID, ordinal: int) -> Record:
    try:
        row: Record | None = await connection.fetchrow(SQL["owe_again"], event_id, ordinal)
    except asyncpg.NumericValueOutOfRangeError:
        message = f"an event can have {MAX_DELIVERIES} deliveries including replays, and this one has them"
        raise InvalidTransition(message) from None
    if row is None:
        raise NotFound(f"no delivery {ids.show_delivery(event_id, ordinal)} has ended")
    return row


def _added_ordinal(row: Record, name: str) -> int:
    """Return the ordinal of the new delivery. Raises the reason if none was added."""
    ordinal: int | None = row["made"]
    if ordinal is not None:
        return ordinal
    if row["is_gone"]:
        raise InvalidState("the event's content was deleted, so there is nothing to be replayed", "missing_payload")
    if not row["takes"]:
        text = f"{row['recipient']} is deleted or disabled; enable the endpoint first, then replay {name}"
        raise InvalidState(text, "endpoint_disabled")
    raise InvalidTransition(
        f"{row['recipient']} already has a pending delivery or dead letter of this event: see its other deliveries"
    )


async def _not_done(connection: Connection, event_ids: Sequence[UUID], action: AuditContext) -> list[UUID]:
    names = {ids.show(ids.EVENT, event_id): event_id for event_id in event_ids}
    rows = await connection.fetch(SQL["list_done"], REPLAY_EVENT, list(names), action.note)
    replayed_names = {row["subject"] for row in rows}
    return [event_id for name, event_id in names.items() if name not in replayed_names]


def _columns(rows: Sequence[tuple[object, object]]) -> tuple[list[object], list[object]]:
    return [row[0] for row in rows], [row[1] for row in rows]
