"""Alerts as the journal keeps them: which are open, what channels are still to be told, what is silenced.

An alert and the notices about it are moved in one transaction, and a notice is taken under a lease before it is sent.
So a keeper that takes over finds everything as it was: nothing is forgotten, and what one keeper has told, the next one
does not tell again. A keeper that dies while a message is on its way leaves it to the next, under the same id.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec

from boathook.db.database import Connection, Database, Record
from boathook.db.statements import load
from boathook.domain import ids
from boathook.domain.alerts import AlertState, AlertStatus, Silence

SQL = load(__file__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """An alert of one rule about one subject."""

    id: UUID
    rule: str
    subject: str
    severity: str
    state: AlertState
    since: datetime
    """When the present state began."""
    value: float
    worst: float
    fired_at: datetime | None = None
    recovered_at: datetime | None = None
    notified_at: datetime | None = None
    is_silenced: bool = False

    @property
    def shown_id(self) -> str:
        """The id as people see it."""
        return ids.show(ids.ALERT, self.id)

    @property
    def status(self) -> AlertStatus:
        """Where it stands."""
        return AlertStatus(self.state, self.since, self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSilence:
    """A silence with who made it, and why."""

    id: UUID
    rule: str
    subject: str
    note: str
    actor: str
    created_at: datetime
    until: datetime
    ended_at: datetime | None
    ended_by: str | None

    @property
    def shown_id(self) -> str:
        """The id as people see it."""
        return ids.show(ids.SILENCE, self.id)

    @property
    def pattern(self) -> Silence:
        """What it covers."""
        return Silence(self.rule, self.subject, self.until if self.ended_at is None else self.ended_at)


@dataclass(frozen=True, slots=True)
class EvaluationRun:
    """The latest look at the rules."""

    at: datetime
    host: str
    readings: Mapping[str, list[dict[str, Any]]]
    """By rule, the subjects it saw, the worst first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelState:
    """How a channel is doing."""

    name: str
    failures: int = 0
    """In a row, until now."""
    sent: int = 0
    sent_at: datetime | None = None
    error: str | None = None
    """The last one."""
    error_at: datetime | None = None
    not_before: datetime | None = None
    """When it is tried again, after a failure."""
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class ClaimedMessage:
    """What a channel is to be told in one message."""

    message_id: UUID
    notices: tuple[tuple[str, Alert], ...]
    """The kind of each, with the alert."""


async def delete_recovered(database: Database, before: datetime) -> int:
    """Delete alerts that recovered before a moment, some at a time; return how many."""
    return int((await database.execute(SQL["drop_old"], before)).split()[-1])


async def lock_evaluation(connection: Connection) -> datetime:
    """Let nobody else look at the rules until the transaction ends; return its time."""
    now: datetime = await connection.fetchval(SQL["take_turn"])
    return now


async def list_open(connection: Connection) -> list[Alert]:
    """Return the alerts that have not recovered, the latest first."""
    return [_to_alert(row) for row in await connection.fetch(SQL["list_open"])]


@dataclass(frozen=True, slots=True)
class FiringCount:
    """How many alerts fire that nobody has silenced."""

    number: int = 0
    critical: int = 0


async def count_firing(connection: Connection) -> FiringCount:
    """Count the alerts that fire and are not silenced."""
    row = await connection.fetchrow(SQL["count_firing"])
    assert row is not None  # one row of two counts
    return FiringCount(row["number"], row["critical"])


async def list_ended(connection: Connection, *, before: datetime | None = None, limit: int = 50) -> list[Alert]:
    """Return the alerts that have recovered, the latest first."""
    return [_to_alert(row) for row in await connection.fetch(SQL["list_ended"], before, limit)]


async def insert(connection: Connection, alert: Alert) -> None:
    """Open an alert."""
    await connection.execute(
        SQL["insert_alert"],
        *(alert.id, alert.rule, alert.subject, alert.severity, alert.state, alert.since, alert.value),
        *(alert.fired_at, alert.notified_at, alert.is_silenced),
    )


async def save(connection: Connection, alert: Alert) -> None:
    """Write an alert as it has become."""
    await connection.execute(
        SQL["move_alert"],
        *(alert.id, alert.severity, alert.state, alert.since, alert.value, alert.worst),
        *(alert.fired_at, alert.recovered_at, alert.notified_at, alert.is_silenced),
    )


async def delete(connection: Connection, alert: Alert) -> None:
    """Forget an alert that never fired."""
    await connection.execute(SQL["drop_alert"], alert.id)


async def insert_entries(connection: Connection, alert: Alert, kind: str, channels: Mapping[str, datetime]) -> None:
    """Write that these channels are to be told of an alert, each not before its moment."""
    await connection.execute(SQL["insert_notices"], alert.id, list(channels), kind, list(channels.values()))


async def count_dead_letters(connection: Connection, known: Collection[str], limit: int) -> list[tuple[str, float]]:
    """Return how many dead deliveries are undecided, up to 10,000 of each recipient, most first.

    Args:
        known: recipients that are counted in any case; others are those of the latest deaths.
        limit: how many others are counted.
    """
    rows = await connection.fetch(SQL["count_dead"], list(known), limit)
    return [(row["subject"], row["value"]) for row in rows]


async def count_unhandled(connection: Connection, over_s: float, limit: int) -> list[tuple[str, float]]:
    """Return how many events accepted within so many seconds no handler matched, by source, most first."""
    return [(row["subject"], row["value"]) for row in await connection.fetch(SQL["count_unhandled"], over_s, limit)]


async def list_disabled(connection: Connection, limit: int) -> list[tuple[str, float]]:
    """Return the endpoints that boathook has disabled, the latest first."""
    return [(row["subject"], row["value"]) for row in await connection.fetch(SQL["list_disabled"], limit)]


async def list_silences(connection: Connection, *, ended_after: datetime) -> list[StoredSilence]:
    """Return the silences that are in force, or ended after a moment."""
    return [StoredSilence(**dict(row)) for row in await connection.fetch(SQL["list_silences"], ended_after)]


async def insert_silence(
    connection: Connection, identifier: UUID, *, rule: str, subject: str, note: str, actor: str, until: datetime
) -> StoredSilence:
    """Silence alerts until a moment."""
    row = await connection.fetchrow(SQL["insert_silence"], identifier, rule, subject, note, actor, until)
    assert row is not None  # it is inserted in any case
    return StoredSilence(**dict(row))


async def end_silence(connection: Connection, identifier: UUID, actor: str) -> StoredSilence | None:
    """End a silence; None where none of this id is in force."""
    row = await connection.fetchrow(SQL["end_silence"], identifier, actor)
    return None if row is None else StoredSilence(**dict(row))


async def save_run(connection: Connection, seen: EvaluationRun) -> None:
    """Write what the rules saw."""
    await connection.execute(SQL["write_round"], seen.at, seen.host, msgspec.json.encode(seen.readings).decode())


async def read_last_run(connection: Connection) -> EvaluationRun | None:
    """Return what the rules saw last; None where nobody has looked yet."""
    row = await connection.fetchrow(SQL["read_round"])
    return None if row is None else EvaluationRun(row["at"], row["host"], msgspec.json.decode(row["readings"]))


async def find_due_channels(
    database: Database, channels: Sequence[str], *, group_wait_s: float, min_interval_s: float, max_per_hour: int
) -> list[str]:
    """Return which of these channels have something to be told now."""
    rows = await database.fetch(SQL["find_due_channels"], list(channels), group_wait_s, min_interval_s, max_per_hour)
    return [row["channel"] for row in rows]


async def claim_message(database: Database, channel: str, message_id: UUID, lease_s: float) -> ClaimedMessage | None:
    """Take what a channel is to be told next; None where another process has taken it.

    Args:
        message_id: for a message that nobody has begun; one that was begun before keeps its own.
        lease_s: for how long nobody else sends it.
    """
    rows = await database.fetch(SQL["take_notices"], channel, message_id, lease_s)
    if not rows:
        return None
    return ClaimedMessage(rows[0]["message_id"], tuple((row["kind"], _to_alert(row)) for row in rows))


async def mark_sent(database: Database, channel: str, message_id: UUID) -> None:
    """Note that a message went out."""
    await database.execute(SQL["end_sent"], message_id, channel)


async def mark_failed(
    database: Database,
    channel: str,
    message_id: UUID,
    error: str,
    *,
    give_up: timedelta,
    pause_s: float,
    longest_s: float,
) -> int:
    """Note that a message did not go out; return how many notices were given up.

    Args:
        give_up: how long a notice may have waited.
        pause_s: how long the channel rests after its first failure in a row; twice as long after each further one.
        longest_s: how long it rests at most.
    """
    given_up: int = await database.fetchval(
        SQL["end_failed"], message_id, channel, error, give_up.total_seconds(), pause_s, longest_s
    )
    return given_up


async def list_channels(connection: Connection) -> dict[str, ChannelState]:
    """Return how the channels are doing that were ever used, by name."""
    rows = await connection.fetch(SQL["list_channels"])
    return {row["name"]: ChannelState(**dict(row)) for row in rows}


_FIELDS = tuple(Alert.__dataclass_fields__)


def _to_alert(row: Record) -> Alert:
    return Alert(**{name: row[name] for name in _FIELDS} | {"state": AlertState(row["state"])})
