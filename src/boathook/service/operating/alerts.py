"""Reads alerts, their rules and channels; what is done to them is in the catalogue of operations."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from boathook.config.channels import ChannelTable
from boathook.config.notifications import RuleSettings
from boathook.config.tables import Settings
from boathook.db import alerts as kept
from boathook.db.alerts import Alert as Alert  # noqa: PLC0414 - re-exported
from boathook.db.alerts import ChannelState, StoredSilence
from boathook.db.database import Connection
from boathook.domain.alerts import AlertState, fill_summary, show_number

_JUST_ENDED: Final = timedelta(days=1)


class RuleView(msgspec.Struct, frozen=True):
    """A rule with its latest readings."""

    name: str
    settings: RuleSettings
    readings: Sequence[Mapping[str, Any]]
    """Worst first: ``subject``, ``value`` and ``is_raised``."""
    channels: tuple[str, ...]

    @property
    def threshold(self) -> str:
        """Its condition in words, such as ``share above 0.25 over 600 s``."""
        rule = self.settings
        word, limit = ("above", rule.above) if rule.above is not None else ("below", rule.below)
        figure = "number" if rule.rows else rule.measure
        parts = [f"{figure} {word} {show_number(limit or 0.0)}"]
        if rule.measure != "value" or rule.rows in {"fired", "repeated_body", "unhandled"}:
            parts.append(f"over {show_number(rule.over_s)} s")
        if rule.for_s:
            parts.append(f"for {show_number(rule.for_s)} s")
        return ", ".join(parts)


class ChannelView(msgspec.Struct, frozen=True):
    """A channel with its current state."""

    name: str
    settings: ChannelTable
    state: ChannelState

    @property
    def destination(self) -> str:
        """The recipients, unless they are secret."""
        return self.settings.destination


class AlertOverview(msgspec.Struct, frozen=True):
    """The current state of all alerts, silences, channels and rules."""

    evaluated_at: datetime | None
    """When the rules were last evaluated; None if never."""
    evaluated_by: str
    firing: Sequence[Alert]
    """Includes alerts that are clearing."""
    pending: Sequence[Alert]
    silences: Sequence[StoredSilence]
    """Active silences first, then those that ended within the last day."""
    channels: Sequence[ChannelView]
    rules: Sequence[RuleView]
    now: datetime

    @property
    def is_stale(self) -> bool:
        """Whether the rules were not evaluated for a minute, because no keeper runs."""
        return self.evaluated_at is None or self.now - self.evaluated_at > timedelta(minutes=1)


async def read_overview(connection: Connection, settings: Settings) -> AlertOverview:
    """Return everything but the history."""
    notifications, now = settings.notifications, datetime.now(UTC)
    seen = await kept.read_last_run(connection)
    opened = await kept.list_open(connection)
    states = await kept.list_channels(connection)
    return AlertOverview(
        evaluated_at=seen.at if seen else None,
        evaluated_by=seen.host if seen else "",
        firing=[alert for alert in opened if alert.fired_at is not None],
        pending=[alert for alert in opened if alert.fired_at is None],
        silences=await kept.list_silences(connection, ended_after=now - _JUST_ENDED),
        channels=[
            ChannelView(name, channel, states.get(name, ChannelState(name=name)))
            for name, channel in notifications.channels.items()
        ],
        rules=[
            RuleView(name, rule, seen.readings.get(name, []) if seen else [], notifications.channels_of(rule))
            for name, rule in notifications.rules.items()
            if rule.enabled
        ],
        now=now,
    )


async def list_firing(connection: Connection) -> list[Alert]:
    """Return the firing alerts, including those that are clearing, critical ones first, then newest first."""
    return [alert for alert in await kept.list_open(connection) if alert.state is not AlertState.PENDING]


read_history = kept.list_ended


def alert_view(alert: Alert, rules: Mapping[str, RuleSettings]) -> dict[str, Any]:
    """Return an alert in the form of the JSON API."""
    rule = rules.get(alert.rule, RuleSettings())
    return {
        "id": alert.shown_id,
        "rule": alert.rule,
        "subject": alert.subject,
        "severity": alert.severity,
        "state": alert.state.value,
        "name": alert.name,
        "summary": fill_summary(
            rule.summary,
            alert.name or alert.subject,
            rule.figures(alert.value if alert.recovered_at is None else alert.worst),
            alert.details,
        ),
        "details": alert.details,
        "advice": rule.advice,
        "page": rule.page_of(alert.subject),
        "value": alert.value,
        "worst": alert.worst,
        "fired_at": alert.fired_at,
        "recovered_at": alert.recovered_at,
        "notified_at": alert.notified_at,
        "is_silenced": alert.is_silenced,
    }
