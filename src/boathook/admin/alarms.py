"""What operators do about alarms: see them, silence some for a time, and try the channels."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from boathook.admin.desk import Work, new_id
from boathook.config.notifications import Channel, RuleSettings
from boathook.config.tables import Settings
from boathook.domain import ids
from boathook.domain.alarms import AlarmState
from boathook.domain.errors import InvalidValue, NotFound
from boathook.domain.telling import Bulletin, Kind, Told, show_number
from boathook.journal import alarms as kept
from boathook.journal.alarms import Alarm, ChannelState, KeptSilence
from boathook.journal.audit import note
from boathook.journal.database import Connection
from boathook.outbound.notifier import Notifier, NotSent, Sent

LONGEST: Final = timedelta(days=365)
"""The longest silence; what is to be quiet for good is a rule that is not enabled."""
_LONGEST_PATTERN: Final = 300
_LONGEST_NOTE: Final = 1_000
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
class Overview:
    """Everything about alarms at one moment."""

    looked_at: datetime | None
    """When the rules were looked at last; None where nobody ever has."""
    looked_by: str
    firing: Sequence[Alarm]
    """Those that are clearing included."""
    pending: Sequence[Alarm]
    silences: Sequence[KeptSilence]
    """Those in force first, then those that ended within the day."""
    channels: Sequence[ChannelView]
    rules: Sequence[RuleView]
    now: datetime

    @property
    def is_blind(self) -> bool:
        """Whether nobody has looked at the rules for a minute: no keeper runs."""
        return self.looked_at is None or self.now - self.looked_at > timedelta(minutes=1)


async def read(connection: Connection, settings: Settings) -> Overview:
    """Return everything but the history."""
    chosen, now = settings.notifications, datetime.now(UTC)
    seen = await kept.read_round(connection)
    opened = await kept.list_open(connection)
    states = await kept.list_channels(connection)
    return Overview(
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


async def list_firing(connection: Connection) -> list[Alarm]:
    """Return the alarms that fire, those that are clearing included, the latest first."""
    return [alarm for alarm in await kept.list_open(connection) if alarm.state is not AlarmState.PENDING]


async def read_history(connection: Connection, *, before: datetime | None = None, limit: int = 50) -> list[Alarm]:
    """Return alarms that have recovered, the latest first; those before a moment are the next page."""
    return await kept.list_ended(connection, before=before, limit=limit)


async def silence(work: Work, *, rule: str, subject: str, text: str, length: timedelta) -> KeptSilence:
    """Tell nobody of some alarms for a time; they are shown all the same.

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
        if not 0 < len(pattern) <= _LONGEST_PATTERN or not pattern.isprintable():
            raise InvalidValue("write a name, or * for all", name)
    if not 0 < len(text.strip()) <= _LONGEST_NOTE or "\0" in text:
        raise InvalidValue(f"say why, in at most {_LONGEST_NOTE:,} characters", "note")
    if not timedelta(0) < length <= LONGEST:
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
    await note(work.connection, work.actor, "alarm.silence", made.shown_id, f"{rule} {subject}: {text.strip()}")
    return made


async def end_silence(work: Work, reference: str) -> KeptSilence:
    """End a silence before its time. Raises NotFound where none of this id is in force."""
    try:
        identifier = ids.read(ids.SILENCE, reference)
    except ValueError as error:
        raise NotFound(str(error)) from None
    ended = await kept.end_silence(work.connection, identifier, work.actor)
    if ended is None:
        raise NotFound(f"there is no silence {reference} in force")
    await note(work.connection, work.actor, "alarm.unsilence", reference)
    return ended


async def note_test(work: Work, channel: str) -> None:
    """Note that somebody tries a channel. Raises NotFound where there is none of this name."""
    if channel not in work.desk.settings.notifications.channels:
        raise NotFound(f"there is no channel {channel!r} under notifications.channels in boathook.toml")
    await note(work.connection, work.actor, "alarm.test", channel)


async def test_channel(settings: Settings, channel: str, actor: str) -> Sent | NotSent:
    """Send a channel a message that says it is a test, at once."""
    now = datetime.now(UTC)
    told = Told(
        id=ids.show(ids.ALARM, new_id()),
        kind=Kind.TEST,
        rule="test",
        subject="",
        severity="warning",
        summary=f"{actor} tries whether messages arrive at {channel}; nothing is the matter",
        advice="",
        page="/console/alarms",
        value=0.0,
        worst=0.0,
        fired_at=now,
    )
    notifier = Notifier(settings)
    try:
        return await notifier.send(
            channel, Bulletin(f"ntc_{secrets.token_hex(16)}", now, [told], settings.server.public_url)
        )
    finally:
        notifier.close()


def alarm_view(alarm: Alarm, rules: Mapping[str, RuleSettings]) -> dict[str, Any]:
    """Return an alarm as JSON shows it."""
    rule = rules.get(alarm.rule, RuleSettings())
    return {
        "id": alarm.shown_id,
        "rule": alarm.rule,
        "subject": alarm.subject,
        "severity": alarm.severity,
        "state": alarm.state.value,
        "summary": rule.summary.replace("{subject}", alarm.subject),
        "advice": rule.advice,
        "page": rule.page,
        "value": alarm.value,
        "worst": alarm.worst,
        "fired_at": alarm.fired_at,
        "recovered_at": alarm.recovered_at,
        "told_at": alarm.told_at,
        "is_silenced": alarm.is_silenced,
    }
