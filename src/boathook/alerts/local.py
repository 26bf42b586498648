"""What a host tells by itself while PostgreSQL is away: nobody can be elected then, and this is what must be told of.

It judges the rules about hosts (``by = ["host"]``) by its own figures. What it has told it writes into the journal as
soon as that is back, before it tells it any figure, so that the keeper goes on from there and tells it no second time.
"""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from boathook.alerts.dispatcher import build_entry, new_id, show_message_id
from boathook.alerts.notifier import Notifier, SendFailed
from boathook.alerts.rules import Rule, evaluate_rule, open_window
from boathook.alerts.window import HOST
from boathook.config.tables import Settings
from boathook.db import alerts as alert_store
from boathook.db.alerts import Alert
from boathook.db.database import Connection, Database
from boathook.db.metric_samples import WINDOW_S, HostSample
from boathook.domain.alerts import AlertMessage, AlertMessageKind, AlertState, AlertStatus, transition
from boathook.observability.log import get_logger
from boathook.observability.metric_snapshot import MetricSnapshot

_AGAIN_S: Final = 30.0
"""Seconds between two tries to reach a channel."""
_LOG = get_logger("alerts")

AlertKey = tuple[str, str]
"""A rule and a subject."""


class LocalEvaluator:
    """The alerts of one host."""

    def __init__(self, settings: Settings, rules: tuple[Rule, ...], host: str, notifier: Notifier) -> None:
        self._settings = settings
        self._rules = [rule for rule in rules if rule.selector is not None and HOST in rule.selector.by]
        self._host = host
        self._notifier = notifier
        self._window = open_window(self._rules)
        self._statuses: dict[AlertKey, AlertStatus] = {}
        self._notified: dict[AlertKey, Alert] = {}
        """Those that people know of, or are being told of."""
        self._unsaved: dict[AlertKey, Alert] = {}
        """Of these, the ones that the journal does not know of."""
        self._pending_channels: dict[AlertKey, set[str]] = {}
        self._tried_at: dict[str, datetime] = {}

    async def run_once(self, snapshot: MetricSnapshot) -> None:
        """Judge what this host has counted since the last time, and tell what is the matter."""
        now = datetime.now(UTC)
        self._window.add([HostSample(self._host, now, snapshot)])
        self._window.tidy(now)
        for rule in self._rules:
            found = {one.subject: one for one in evaluate_rule(rule, self._window, now, WINDOW_S)}
            known = {subject for name, subject in self._statuses if name == rule.name}
            for subject in known | {subject for subject, one in found.items() if one.is_raised}:
                place = rule.name, subject
                status = transition(self._statuses.pop(place, None), found.get(subject), rule.delays, now)
                if status is not None and status.state is not AlertState.RECOVERED:
                    self._statuses[place] = status
                    self._note(rule, place, status)
        await self._tell(now)

    def _note(self, rule: Rule, place: AlertKey, status: AlertStatus) -> None:
        if status.state is AlertState.FIRING and place not in self._notified:
            self._notified[place] = self._unsaved[place] = _alert(rule, place, status)
            self._pending_channels[place] = set(self._settings.notifications.channels_of(rule.settings))
            _LOG.warning("alert_fires", rule=rule.name, subject=place[1], value=status.value, alone=True)

    async def _tell(self, now: datetime) -> None:
        due = {name for names in self._pending_channels.values() for name in names if self._may_try(name, now)}
        for name in sorted(due):
            self._tried_at[name] = now
            places = [place for place, names in self._pending_channels.items() if name in names]
            rules = self._settings.notifications.rules
            told = [build_entry(rules, self._notified[place], AlertMessageKind.FIRING) for place in places]
            alert_message = AlertMessage(show_message_id(new_id()), now, told, self._settings.server.public_url)
            outcome = await self._notifier.send(name, alert_message)
            if isinstance(outcome, SendFailed):
                _LOG.warning("notice_failed", channel=name, error=outcome.error, alone=True)
                continue
            for place in places:
                self._pending_channels[place].discard(name)

    def _may_try(self, name: str, now: datetime) -> bool:
        tried_at = self._tried_at.get(name)
        return tried_at is None or now - tried_at >= timedelta(seconds=_AGAIN_S)

    async def sync_to_database(self, database: Database) -> None:
        """Write what was told into the journal, and learn what is known there. Raises DatabaseError."""
        async with database.transaction() as connection:
            if self._unsaved:
                now = await alert_store.lock_evaluation(connection)
                opened = {(one.rule, one.subject): one for one in await alert_store.list_open(connection)}
                for place, alert in self._unsaved.items():
                    await self._write(connection, place, alert, opened.get(place), now)
            mine = [one for one in await alert_store.list_open(connection) if self._is_mine(one)]
        self._unsaved.clear()
        self._pending_channels.clear()
        self._statuses = {(one.rule, one.subject): one.status for one in mine}
        self._notified = {(one.rule, one.subject): one for one in mine if one.notified_at is not None}

    def _is_mine(self, alert: Alert) -> bool:
        return any(rule.name == alert.rule for rule in self._rules) and self._host in alert.subject.split(", ")

    async def _write(
        self, connection: Connection, place: AlertKey, alert: Alert, known: Alert | None, now: datetime
    ) -> None:
        """Open an alert in the journal, or bring the one there up to date; whom nobody could tell, the keeper tells."""
        if known is not None and known.notified_at is not None:
            return
        wanted = self._settings.notifications.channels_of(self._rule(place).settings)
        untold = self._pending_channels.get(place, set())
        notified_at = now if wanted and untold != set(wanted) else None
        written = replace(alert, id=known.id if known is not None else alert.id, notified_at=notified_at)
        await (alert_store.insert if known is None else alert_store.save)(connection, written)
        if untold and notified_at is not None:
            await alert_store.insert_entries(connection, written, "fires", dict.fromkeys(untold, now))

    def _rule(self, place: AlertKey) -> Rule:
        return next(rule for rule in self._rules if rule.name == place[0])


def _alert(rule: Rule, place: AlertKey, status: AlertStatus) -> Alert:
    return Alert(
        id=new_id(),
        rule=rule.name,
        subject=place[1],
        severity=rule.settings.severity,
        state=AlertState.FIRING,
        since=status.since,
        value=status.value,
        worst=status.value,
        fired_at=status.since,
    )
