"""Evaluates and sends host alerts on one host while PostgreSQL is unavailable and no keeper can be elected.

It evaluates the rules about hosts (``by = ["host"]``) with this host's own metrics. When PostgreSQL is available
again, it stores the alerts that it sent before it publishes any metric. The keeper continues from there and does not
send them again.
"""

from datetime import UTC, datetime, timedelta
from typing import Final

from msgspec.structs import replace

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
"""Minimum interval between two attempts to send to a channel."""
_LOG = get_logger("alerts")

AlertKey = tuple[str, str]
"""A rule and a subject."""


class LocalEvaluator:
    """Evaluates host rules for one host and sends their alerts."""

    def __init__(self, settings: Settings, rules: tuple[Rule, ...], host: str, notifier: Notifier) -> None:
        self._settings = settings
        self._rules = [rule for rule in rules if rule.selector is not None and HOST in rule.selector.by]
        self._host = host
        self._notifier = notifier
        self._window = open_window(self._rules)
        self._statuses: dict[AlertKey, AlertStatus] = {}
        self._notified: dict[AlertKey, Alert] = {}
        """Alerts that were sent or are being sent."""
        self._unsaved: dict[AlertKey, Alert] = {}
        """The subset of these that is not stored in the database yet."""
        self._pending_channels: dict[AlertKey, set[str]] = {}
        self._tried_at: dict[str, datetime] = {}

    async def run_once(self, snapshot: MetricSnapshot) -> None:
        """Evaluate this host's metrics since the last run and send new alerts."""
        now = datetime.now(UTC)
        self._window.add([HostSample(self._host, now, snapshot)])
        self._window.tidy(now)
        for rule in self._rules:
            found = {one.subject: one for one in evaluate_rule(rule, self._window, now, WINDOW_S)}
            known = {subject for name, subject in self._statuses if name == rule.name}
            for subject in known | {subject for subject, one in found.items() if one.is_raised}:
                key = rule.name, subject
                status = transition(self._statuses.pop(key, None), found.get(subject), rule.delays, now)
                if status is not None and status.state is not AlertState.RECOVERED:
                    self._statuses[key] = status
                    self._note(rule, key, status)
        await self._notify(now)

    def _note(self, rule: Rule, key: AlertKey, status: AlertStatus) -> None:
        if status.state is AlertState.FIRING and key not in self._notified:
            self._notified[key] = self._unsaved[key] = _alert(rule, key, status)
            self._pending_channels[key] = set(self._settings.notifications.channels_of(rule.settings))
            _LOG.warning("alert_firing", rule=rule.name, subject=key[1], value=status.value, alone=True)

    async def _notify(self, now: datetime) -> None:
        due = {name for names in self._pending_channels.values() for name in names if self._may_try(name, now)}
        for name in sorted(due):
            self._tried_at[name] = now
            keys = [key for key, names in self._pending_channels.items() if name in names]
            rules = self._settings.notifications.rules
            entries = [build_entry(rules, self._notified[key], AlertMessageKind.FIRING) for key in keys]
            alert_message = AlertMessage(show_message_id(new_id()), now, entries, self._settings.server.public_url)
            outcome = await self._notifier.send(name, alert_message)
            if isinstance(outcome, SendFailed):
                _LOG.warning("alert_message_failed", channel=name, error=outcome.error, alone=True)
                continue
            for key in keys:
                self._pending_channels[key].discard(name)

    def _may_try(self, name: str, now: datetime) -> bool:
        tried_at = self._tried_at.get(name)
        return tried_at is None or now - tried_at >= timedelta(seconds=_AGAIN_S)

    async def sync_to_database(self, database: Database) -> None:
        """Store the sent alerts in the database and load its open alerts for this host. Raises DatabaseError."""
        async with database.transaction() as connection:
            if self._unsaved:
                now = await alert_store.lock_evaluation(connection)
                opened = {(one.rule, one.subject): one for one in await alert_store.list_open(connection)}
                for key, alert in self._unsaved.items():
                    await self._write(connection, key, alert, opened.get(key), now)
            mine = [one for one in await alert_store.list_open(connection) if self._is_mine(one)]
        self._unsaved.clear()
        self._pending_channels.clear()
        self._statuses = {(one.rule, one.subject): one.status for one in mine}
        self._notified = {(one.rule, one.subject): one for one in mine if one.notified_at is not None}

    def _is_mine(self, alert: Alert) -> bool:
        return any(rule.name == alert.rule for rule in self._rules) and self._host in alert.subject.split(", ")

    async def _write(
        self, connection: Connection, key: AlertKey, alert: Alert, known: Alert | None, now: datetime
    ) -> None:
        """Insert or update an alert in the database; entries that are unsent are left to the keeper."""
        if known is not None and known.notified_at is not None:
            return
        wanted = self._settings.notifications.channels_of(self._rule(key).settings)
        unsent = self._pending_channels.get(key, set())
        notified_at = now if wanted and unsent != set(wanted) else None
        updated = replace(alert, id=known.id if known is not None else alert.id, notified_at=notified_at)
        await (alert_store.insert if known is None else alert_store.save)(connection, updated)
        if unsent and notified_at is not None:
            await alert_store.insert_entries(connection, updated, "firing", dict.fromkeys(unsent, now))

    def _rule(self, key: AlertKey) -> Rule:
        return next(rule for rule in self._rules if rule.name == key[0])


def _alert(rule: Rule, key: AlertKey, status: AlertStatus) -> Alert:
    return Alert(
        id=new_id(),
        rule=rule.name,
        subject=key[1],
        severity=rule.settings.severity,
        state=AlertState.FIRING,
        since=status.since,
        value=status.value,
        worst=status.value,
        fired_at=status.since,
    )
