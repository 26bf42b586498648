"""Use cases of alerts: list them, silence them, and test the channels."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from boathook.alerts.notifier import Notifier
from boathook.alerts.notifier import SendFailed as SendFailed  # noqa: PLC0414 - what these functions return
from boathook.alerts.notifier import Sent as Sent  # noqa: PLC0414 - what these functions return
from boathook.config.notifications import Channel, RuleSettings
from boathook.config.tables import Settings
from boathook.db import alerts as kept
from boathook.db.alerts import Alert as Alert  # noqa: PLC0414 - what these functions return
from boathook.db.alerts import ChannelState, StoredSilence
from boathook.db.alerts import FiringCount as FiringCount  # noqa: PLC0414 - what these functions return
from boathook.db.audit import record
from boathook.db.database import Connection
from boathook.domain import ids
from boathook.domain.alerts import AlertEntry, AlertMessage, AlertMessageKind, AlertState, show_number
from boathook.domain.errors import InvalidValue, NotFound
from boathook.service.unit_of_work import UnitOfWork, new_id

MAX_SILENCE: Final = timedelta(days=365)
"""The longest silence; what is to be quiet for good is a rule that is not enabled."""
_MAX_PATTERN_LENGTH: Final = 300
_MAX_NOTE_LENGTH: Final = 1_000
_JUST_ENDED: Final = timedelta(days=1)


@dataclass(frozen=True, slots=True)
class RuleView:
    """A rule with what it saw last."""

    name: str
    settings: RuleSettings
    readings: Sequence[Mapping[str, Any]]
    """The worst first: ``subject``, ``value`` and ``is_raised``."""
    channels: tuple[str, ...]

    @property
    def threshold(self) -> str:
        """Its condition in words, such as ``share above 0.25 over 600 s``."""
        rule = self.settings
        word, limit = ("above", rule.above) if rule.above is not None else ("below", rule.below)
        figure = "number" if rule.rows else rule.measure
        parts = [f"{figure} {word} {show_number(limit or 0.0)}"]
        if rule.measure != "value" or rule.rows == "unhandled":
            parts.append(f"over {show_number(rule.over_s)} s")
        if rule.for_s:
            parts.append(f"for {show_number(rule.for_s)} s")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class ChannelView:
    """A channel with how it is doing."""

    name: str
    settings: Channel
    state: ChannelState

    @property
    def goal(self) -> str:
        """Where it leads, as far as that is no secret."""
        match self.settings.kind:
            case "telegram":
                return f"chat {self.settings.chat}"
            case "email":
                return ", ".join(self.settings.to)
            case _:
                return ""


@dataclass(frozen=True, slots=True)
class AlertOverview:
    """Everything about alerts at one moment."""

    looked_at: datetime | None
    """When the rules were looked at last; None where nobody ever has."""
    looked_by: str
    firing: Sequence[Alert]
    """Those that are clearing included."""
    pending: Sequence[Alert]
    silences: Sequence[StoredSilence]
    """Those in force first, then those that ended within the day."""
    channels: Sequence[ChannelView]
    rules: Sequence[RuleView]
    now: datetime

    @property
    def is_blind(self) -> bool:
        """Whether nobody has looked at the rules for a minute: no keeper runs."""
        return self.looked_at is None or self.now - self.looked_at > timedelta(minutes=1)


async def read_overview(connection: Connection, settings: Settings) -> AlertOverview:
    """Return everything but the history."""
    chosen, now = settings.notifications, datetime.now(UTC)
    seen = await kept.read_last_run(connection)
    opened = await kept.list_open(connection)
    states = await kept.list_channels(connection)
    return AlertOverview(
        looked_at=seen.at if seen else None,
        looked_by=seen.host if seen else "",
        firing=[one for one in opened if one.fired_at is not None],
        pending=[one for one in opened if one.fired_at is None],
        silences=await kept.list_silences(connection, ended_after=now - _JUST_ENDED),
        channels=[
            ChannelView(name, channel, states.get(name, ChannelState(name=name)))
            for name, channel in chosen.channels.items()
        ],
        rules=[
            RuleView(name, rule, seen.readings.get(name, []) if seen else [], chosen.channels_of(rule))
            for name, rule in chosen.rules.items()
            if rule.enabled
        ],
        now=now,
    )


async def list_firing(connection: Connection) -> list[Alert]:
    """Return the alerts that fire, those that are clearing included, the latest first."""
    return [alert for alert in await kept.list_open(connection) if alert.state is not AlertState.PENDING]


async def count_firing(work: UnitOfWork) -> FiringCount:
    """Count the alerts that fire and are not silenced."""
    return await kept.count_firing(work.connection)


async def read_history(connection: Connection, *, before: datetime | None = None, limit: int = 50) -> list[Alert]:
    """Return alerts that have recovered, the latest first; those before a moment are the next page."""
    return await kept.list_ended(connection, before=before, limit=limit)


async def silence(work: UnitOfWork, *, rule: str, subject: str, text: str, length: timedelta) -> StoredSilence:
    """Tell nobody of some alerts for a time; they are shown all the same.

    Args:
        work: who does it.
        rule: a pattern of rules' names in which ``*`` stands for any run of characters.
        subject: a pattern of subjects.
        text: why.
        length: for how long.

    Raises:
        InvalidValue: one of them breaks a rule.
    """
    for name, pattern in (("rule", rule), ("subject", subject)):
        if not 0 < len(pattern) <= _MAX_PATTERN_LENGTH or not pattern.isprintable():
            raise InvalidValue("write a name, or * for all", name)
    if not 0 < len(text.strip()) <= _MAX_NOTE_LENGTH or "\0" in text:
        raise InvalidValue(f"say why, in at most {_MAX_NOTE_LENGTH:,} characters", "note")
    if not timedelta(0) < length <= MAX_SILENCE:
        raise InvalidValue("must be more than nothing, and a year at most", "length")
    made = await kept.insert_silence(
        work.connection,
        new_id(),
        rule=rule,
        subject=subject,
        note=text.strip(),
        actor=work.actor,
        until=datetime.now(UTC) + length,
    )
    await record(work.connection, work.actor, "alert.silence", made.shown_id, f"{rule} {subject}: {text.strip()}")
    return made


async def end_silence(work: UnitOfWork, reference: str) -> StoredSilence:
    """End a silence before its time. Raises NotFound where none of this id is in force."""
    try:
        identifier = ids.read(ids.SILENCE, reference)
    except ValueError as error:
        raise NotFound(str(error)) from None
    ended = await kept.end_silence(work.connection, identifier, work.actor)
    if ended is None:
        raise NotFound(f"unknown or ended silence {reference}")
    await record(work.connection, work.actor, "alert.unsilence", reference)
    return ended


async def note_test(work: UnitOfWork, channel: str) -> None:
    """Note that somebody tries a channel. Raises NotFound where there is none of this name."""
    if channel not in work.app_context.settings.notifications.channels:
        raise NotFound(f"unknown channel {channel!r}; add it under notifications.channels in boathook.toml")
    await record(work.connection, work.actor, "alert.test", channel)


async def test_channel(settings: Settings, channel: str, actor: str) -> Sent | SendFailed:
    """Send a channel a message that says it is a test, at once."""
    now = datetime.now(UTC)
    told = AlertEntry(
        id=ids.show(ids.ALERT, new_id()),
        kind=AlertMessageKind.TEST,
        rule="test",
        subject="",
        severity="warning",
        summary=f"{actor} tries whether messages arrive at {channel}; nothing is the matter",
        advice="",
        page="/console/alerts",
        value=0.0,
        worst=0.0,
        fired_at=now,
    )
    notifier = Notifier(settings)
    try:
        return await notifier.send(
            channel, AlertMessage(f"ntc_{secrets.token_hex(16)}", now, [told], settings.server.public_url)
        )
    finally:
        notifier.close()


def alert_view(alert: Alert, rules: Mapping[str, RuleSettings]) -> dict[str, Any]:
    """Return an alert as JSON shows it."""
    rule = rules.get(alert.rule, RuleSettings())
    return {
        "id": alert.shown_id,
        "rule": alert.rule,
        "subject": alert.subject,
        "severity": alert.severity,
        "state": alert.state.value,
        "summary": rule.summary.replace("{subject}", alert.subject),
        "advice": rule.advice,
        "page": rule.page,
        "value": alert.value,
        "worst": alert.worst,
        "fired_at": alert.fired_at,
        "recovered_at": alert.recovered_at,
        "notified_at": alert.notified_at,
        "is_silenced": alert.is_silenced,
    }
