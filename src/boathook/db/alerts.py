"""Stores alerts, the notifications that are due to channels, and silences.

An alert and its notifications change in one transaction, and a notification is claimed under a lease before it is
sent. A new keeper therefore continues from a consistent state: no notification is lost, and none that was sent is sent
again. A message whose keeper died while sending is sent again by the next keeper, under the same id.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from boathook.db.database import Connection, Database, Record
from boathook.db.statements import load
from boathook.domain import ids
from boathook.domain.alerts import AlertReading, AlertState, AlertStatus, Silence

SQL = load(__file__)
_MAX_SIGNALS: Final = 10_000
"""Signals that one evaluation counts; more are left to the next."""


class Alert(msgspec.Struct, frozen=True, kw_only=True):
    """An alert of one rule about one subject."""

    id: UUID
    rule: str
    subject: str
    severity: str
    state: AlertState
    since: datetime
    """When the current state began."""
    value: float
    worst: float
    fired_at: datetime | None = None
    recovered_at: datetime | None = None
    notified_at: datetime | None = None
    is_silenced: bool = False
    name: str = ""
    """What the subject is called: an endpoint's description, uid or host, with its application; empty for others."""
    details: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Texts for the placeholders of an app's alert."""

    @property
    def shown_id(self) -> str:
        """The public id."""
        return ids.show(ids.ALERT, self.id)

    @property
    def status(self) -> AlertStatus:
        """The state of the alert for its next evaluation."""
        return AlertStatus(self.state, self.since, self.value)


class StoredSilence(msgspec.Struct, frozen=True, kw_only=True):
    """A silence with its author and note."""

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
        """The public id."""
        return ids.show(ids.SILENCE, self.id)

    @property
    def pattern(self) -> Silence:
        """The alerts and the period that the silence covers."""
        return Silence(self.rule, self.subject, self.until if self.ended_at is None else self.ended_at)


class EvaluationRun(msgspec.Struct, frozen=True):
    """The latest evaluation of the rules."""

    at: datetime
    host: str
    readings: Mapping[str, list[dict[str, Any]]]
    """The subjects of each rule, worst first."""


class ChannelState(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a channel."""

    name: str
    failures: int = 0
    """Consecutive failures until now."""
    sent: int = 0
    sent_at: datetime | None = None
    error: str | None = None
    """The last error."""
    error_at: datetime | None = None
    not_before: datetime | None = None
    """When sending is retried after a failure."""
    waiting: int = 0


class ClaimedMessage(msgspec.Struct, frozen=True):
    """The notifications for a channel that are sent in one message."""

    message_id: UUID
    notices: tuple[tuple[str, Alert], ...]
    """Kind and alert of each notification."""


async def delete_recovered(database: Database, before: datetime) -> int:
    """Delete one batch of alerts that recovered before a time; return the number."""
    return int((await database.execute(SQL["drop_old"], before)).split()[-1])


async def lock_evaluation(connection: Connection) -> datetime:
    """Lock the evaluation of rules until the transaction ends; return the current time."""
    now: datetime = await connection.fetchval(SQL["lock_evaluation"])
    return now


async def list_open(connection: Connection) -> list[Alert]:
    """Return the alerts that have not recovered, critical ones first, then the latest first."""
    return [_to_alert(row) for row in await connection.fetch(SQL["list_open"])]


async def list_ended(connection: Connection, *, before: datetime | None = None, limit: int = 50) -> list[Alert]:
    """Return the alerts that have recovered, latest first."""
    return [_to_alert(row) for row in await connection.fetch(SQL["list_ended"], before, limit)]


async def insert(connection: Connection, alert: Alert) -> None:
    """Insert a new alert."""
    await connection.execute(
        SQL["insert_alert"],
        *(alert.id, alert.rule, alert.subject, alert.severity, alert.state, alert.since, alert.value),
        *(alert.fired_at, alert.notified_at, alert.is_silenced, _encode(alert.details)),
    )


async def save(connection: Connection, alert: Alert) -> None:
    """Update an alert."""
    await connection.execute(
        SQL["move_alert"],
        *(alert.id, alert.severity, alert.state, alert.since, alert.value, alert.worst),
        *(alert.fired_at, alert.recovered_at, alert.notified_at, alert.is_silenced, _encode(alert.details)),
    )


async def delete(connection: Connection, alert: Alert) -> None:
    """Delete an alert that never fired."""
    await connection.execute(SQL["drop_alert"], alert.id)


async def insert_entries(connection: Connection, alert: Alert, kind: str, channels: Mapping[str, datetime]) -> None:
    """Queue notifications about an alert for these channels, each not before its time."""
    await connection.execute(SQL["insert_notices"], alert.id, list(channels), kind, list(channels.values()))


async def count_dead_letters(
    connection: Connection, recipients: Collection[str], limit: int
) -> list[tuple[str, float]]:
    """Count dead letters by recipient, up to 10,000 each, most first.

    Args:
        recipients: recipients that are counted in any case; the others are those of the latest dead letters.
        limit: how many others are counted.
    """
    rows = await connection.fetch(SQL["count_dead"], list(recipients), limit)
    return [(row["subject"], row["value"]) for row in rows]


async def count_causes(
    database: Database | Connection, group_ids: Collection[str], over_s: float, limit: int
) -> list[tuple[str, float]]:
    """Count the dead letters of one cause that died within *over_s* seconds, up to 10,000 of each, most first.

    Args:
        group_ids: ids of groups that are counted in any case; the others are those of the latest dead letters.
        over_s: the period.
        limit: how many others are counted.
    """
    rows = await database.fetch(SQL["count_causes"], list(group_ids), over_s, limit)
    return [(row["subject"], row["value"]) for row in rows]


async def list_paused(connection: Connection, limit: int) -> list[tuple[str, float]]:
    """Return the endpoints whose circuit breaker is open, those of the most pauses first."""
    return [(row["subject"], row["value"]) for row in await connection.fetch(SQL["list_paused"], limit)]


async def count_repeated(database: Database | Connection, over_s: float, limit: int) -> list[tuple[str, float]]:
    """Count the events of one signed body within *over_s* seconds, the most of each source, most first."""
    return [(row["subject"], row["value"]) for row in await database.fetch(SQL["count_repeated"], over_s, limit)]


async def count_unhandled(connection: Connection, over_s: float, limit: int) -> list[tuple[str, float]]:
    """Count unhandled events accepted within *over_s* seconds by source, most first."""
    return [(row["subject"], row["value"]) for row in await connection.fetch(SQL["count_unhandled"], over_s, limit)]


async def count_fired(connection: Connection, spans: Mapping[str, float]) -> int:
    """Count what apps have fired into bursts, and drop bursts that are over; return how many signals were dropped.

    Args:
        spans: seconds after the latest signal of a burst until it is over, by rule. Signals of other rules are kept for
            a day, because another process may know their app already, and dropped then.
    """
    rules = list(spans)
    await connection.execute(SQL["count_fired"], rules, list(spans.values()), _MAX_SIGNALS)
    await connection.execute(SQL["end_bursts"], rules, list(spans.values()))
    return int((await connection.execute(SQL["drop_signals"], rules)).split()[-1])


async def list_fired(connection: Connection, rule: str, subjects: Collection[str], limit: int) -> list[AlertReading]:
    """Return the bursts of a rule, the largest first: those of *subjects* subjects, and up to *limit* others."""
    rows = await connection.fetch(SQL["list_fired"], rule, list(subjects), limit)
    return [AlertReading(row["subject"], row["number"], _decode(row["details"]), row["last_at"]) for row in rows]


async def list_disabled(connection: Connection, limit: int) -> list[tuple[str, float]]:
    """Return the endpoints that boathook has disabled, latest first."""
    return [(row["subject"], row["value"]) for row in await connection.fetch(SQL["list_disabled"], limit)]


async def list_silences(connection: Connection, *, ended_after: datetime) -> list[StoredSilence]:
    """Return the silences that are in force or ended after a time."""
    return [StoredSilence(**dict(row)) for row in await connection.fetch(SQL["list_silences"], ended_after)]


async def page_silences(
    connection: Connection, *, is_ended: bool, before: UUID | None, limit: int
) -> list[StoredSilence]:
    """Return a page of silences, newest first.

    Args:
        connection: the connection.
        is_ended: whether to return those that have ended, too.
        before: only older ones than this one.
        limit: the maximum number.
    """
    return [StoredSilence(**dict(row)) for row in await connection.fetch(SQL["page_silences"], is_ended, before, limit)]


async def insert_silence(
    connection: Connection, identifier: UUID, *, rule: str, subject: str, note: str, actor: str, until: datetime
) -> StoredSilence:
    """Silence alerts until a time."""
    row = await connection.fetchrow(SQL["insert_silence"], identifier, rule, subject, note, actor, until)
    assert row is not None  # the insert returns one row
    return StoredSilence(**dict(row))


async def end_silence(connection: Connection, identifier: UUID, actor: str) -> StoredSilence | None:
    """End a silence; return None if no silence with this id is in force."""
    row = await connection.fetchrow(SQL["end_silence"], identifier, actor)
    return None if row is None else StoredSilence(**dict(row))


async def save_run(connection: Connection, seen: EvaluationRun) -> None:
    """Store the result of an evaluation."""
    await connection.execute(SQL["write_round"], seen.at, seen.host, msgspec.json.encode(seen.readings).decode())


async def read_last_run(connection: Connection) -> EvaluationRun | None:
    """Return the result of the latest evaluation; None if there was none."""
    row = await connection.fetchrow(SQL["read_round"])
    return None if row is None else EvaluationRun(row["at"], row["host"], msgspec.json.decode(row["readings"]))


async def find_due_channels(
    database: Database, channels: Sequence[str], *, group_wait_s: float, min_interval_s: float, max_per_hour: int
) -> list[str]:
    """Return the channels among these that have notifications to send now."""
    rows = await database.fetch(SQL["find_due_channels"], list(channels), group_wait_s, min_interval_s, max_per_hour)
    return [row["channel"] for row in rows]


async def claim_message(database: Database, channel: str, message_id: UUID, lease_s: float) -> ClaimedMessage | None:
    """Claim the next notifications of a channel; return None if there are none or another process holds them.

    Args:
        message_id: id of a new message; a message that was claimed before keeps its id.
        lease_s: seconds for which no other process sends it.
    """
    rows = await database.fetch(SQL["take_notices"], channel, message_id, lease_s)
    if not rows:
        return None
    return ClaimedMessage(rows[0]["message_id"], tuple((row["kind"], _to_alert(row)) for row in rows))


async def mark_sent(database: Database, channel: str, message_id: UUID) -> None:
    """Record that a message was sent."""
    await database.execute(SQL["end_sent"], message_id, channel)


async def mark_failed(
    database: Database,
    channel: str,
    message_id: UUID,
    error: str,
    *,
    give_up: timedelta,
    pause_s: float,
    max_pause_s: float,
) -> int:
    """Record that a message was not sent; return the number of notifications that were given up.

    Args:
        give_up: maximum age of a notification.
        pause_s: pause of the channel after its first consecutive failure, doubled after each further one.
        max_pause_s: maximum pause of the channel.
    """
    given_up: int = await database.fetchval(
        SQL["end_failed"], message_id, channel, error, give_up.total_seconds(), pause_s, max_pause_s
    )
    return given_up


async def list_channels(connection: Connection) -> dict[str, ChannelState]:
    """Return the state of all channels that were ever used, by name."""
    rows = await connection.fetch(SQL["list_channels"])
    return {row["name"]: ChannelState(**dict(row)) for row in rows}


_FIELDS = Alert.__struct_fields__
_DETAILS: Final = msgspec.json.Decoder(dict[str, str])


def _to_alert(row: Record) -> Alert:
    decoded = {"state": AlertState(row["state"]), "details": _decode(row["details"])}
    return Alert(**{name: row[name] for name in _FIELDS} | decoded)


def _encode(details: Mapping[str, str]) -> str:
    return msgspec.json.encode(details).decode()


def _decode(details: str) -> dict[str, str]:
    return _DETAILS.decode(details)
