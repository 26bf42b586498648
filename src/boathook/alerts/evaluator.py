"""Evaluates alert rules: all of them on the elected keeper, those about one host while PostgreSQL is unavailable."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from datetime import time as time_of_day
from typing import Any, Final
from zoneinfo import ZoneInfo

from msgspec.structs import replace

from boathook.alerts.channel import SendFailed
from boathook.alerts.checks import AlertChecks
from boathook.alerts.dispatcher import build_entry, new_id, show_message_id
from boathook.alerts.notifier import Notifier
from boathook.alerts.rules import HOST, MAX_SUBJECTS, Rule, evaluate_rule, open_window, sort_readings
from boathook.config.notifications import NotificationSettings, RuleSettings
from boathook.config.tables import Settings
from boathook.db import alerts as alert_store
from boathook.db.alerts import Alert, EvaluationRun
from boathook.db.database import Connection, Database
from boathook.db.metric_samples import WINDOW_S, HostSample, read_stored_since, read_window
from boathook.domain import ids
from boathook.domain.alerts import (
    AlertDelays,
    AlertMessage,
    AlertMessageKind,
    AlertState,
    AlertStatus,
    Reading,
    Silence,
    transition,
)
from boathook.observability import meters
from boathook.observability.log import get_logger
from boathook.observability.metric_snapshot import MetricSnapshot

SHOWN: Final = 10
"""Number of subjects per rule whose values are stored for display."""
_OVERLAP: Final = timedelta(seconds=5)
"""Samples may be committed slightly out of order."""
_AGAIN_S: Final = 30.0
"""Minimum interval between two attempts of one host to send to a channel."""
_LOG = get_logger("alerts")

OpenAlerts = dict[str, dict[str, Alert]]
"""Open alerts by rule and subject."""
AlertKey = tuple[str, str]
"""A rule and a subject."""


class AlertEvaluator:
    """Evaluates all alert rules of a deployment on the elected keeper.

    Alerts are updated in one transaction, so that a new keeper never sees partial results.

    Args:
        database: a dedicated pool, so that nothing else waits for it.
        settings: channels and notification intervals.
        rules: the rules to evaluate.
        host: name of the evaluating host.
        checks: the checks of apps' alerts.
    """

    def __init__(
        self,
        database: Database,
        settings: NotificationSettings,
        rules: Sequence[Rule],
        host: str,
        checks: AlertChecks | None = None,
    ) -> None:
        self._database = database
        self._checks = checks or AlertChecks({})
        self._settings = settings
        self._rules = rules
        self._host = host
        self._window = open_window(rules)
        self._read_until: datetime | None = None
        self._last_read: Collection[tuple[str, datetime]] = ()
        """Host and time of the samples of the last read, which the next one overlaps."""
        self._fresh_s = max(60.0, 3 * settings.evaluation_interval_s)
        self._lookback_s = max((rule.lookback_s for rule in rules), default=0.0)

    async def run_once(self) -> None:
        """Evaluate all rules once. Raises DatabaseError."""
        async with self._database.transaction() as connection:
            now = await alert_store.lock_evaluation(connection)
            await self._catch_up(connection, now)
            await self._count_fired(connection)
            opened = _sorted(await alert_store.list_open(connection))
            silences = [silence.pattern for silence in await alert_store.list_silences(connection, ended_after=now)]
            seen: dict[str, list[Reading]] = {}
            for rule in self._rules:
                readings = await self._read(connection, rule, opened.get(rule.name, {}), now)
                if readings is not None:
                    seen[rule.name] = readings
                    await self._apply_readings(connection, rule, readings, opened.get(rule.name, {}), silences, now)
            await self._close_orphans(connection, opened, silences, now)
            await alert_store.save_run(connection, EvaluationRun(now, self._host, _shown(seen)))
            self._show(await alert_store.list_open(connection))

    async def _catch_up(self, connection: Connection, now: datetime) -> None:
        if self._read_until is None:
            window = await read_window(connection, now, self._lookback_s)
        else:
            window = await read_stored_since(connection, min(now, self._read_until) - _OVERLAP)
        # The window cannot recognize late samples, because it has merged them.
        fresh = [sample for sample in window.samples if (sample.host, sample.at) not in self._last_read]
        await asyncio.to_thread(self._take_in, fresh, now)
        self._last_read = {(sample.host, sample.at) for sample in window.samples}
        self._read_until = window.until or self._read_until

    def _take_in(self, samples: Sequence[HostSample], now: datetime) -> None:
        self._window.add(samples)
        self._window.tidy(now)

    async def _count_fired(self, connection: Connection) -> None:
        """Count what apps have fired since the last evaluation."""
        spans = {rule.name: rule.settings.over_s for rule in self._rules if rule.settings.rows == "fired"}
        if dropped := await alert_store.count_fired(connection, spans):
            _LOG.warning("fired_alerts_dropped", number=dropped, because="no loaded app declares their rule")

    async def _read(
        self, connection: Connection, rule: Rule, opened: Collection[str], now: datetime
    ) -> list[Reading] | None:
        """Return the readings of a rule; None if its metric has no current values."""
        match rule.settings.rows:
            case "dead_letters":
                rows = await alert_store.count_dead_letters(connection, opened, MAX_SUBJECTS)
            case "disabled_endpoints":
                rows = await alert_store.list_disabled(connection, MAX_SUBJECTS)
            case "dead_letter_causes":
                rows = await alert_store.count_causes(connection, opened, rule.settings.over_s, MAX_SUBJECTS)
            case "paused_endpoints":
                rows = await alert_store.list_paused(connection, MAX_SUBJECTS)
            case "repeated_body":
                rows = await alert_store.count_repeated(connection, rule.settings.over_s, MAX_SUBJECTS)
            case "unhandled":
                rows = await alert_store.count_unhandled(connection, rule.settings.over_s, MAX_SUBJECTS)
            case "fired":
                fired = await alert_store.list_fired(connection, rule.name, opened, MAX_SUBJECTS)
                return sort_readings(rule, map(rule.compare_reading, fired))
            case "checked":
                readings = self._checks.latest(rule.name, self._fresh_s)
                return None if readings is None else sort_readings(rule, map(rule.compare_reading, readings))
            case _:
                latest = self._window.latest
                if latest is None or (now - latest).total_seconds() > self._fresh_s:
                    return None
                since = now - timedelta(seconds=self._fresh_s)
                if rule.settings.measure == "value" and self._window.is_paused(rule.settings.metric, since):
                    return None
                return await asyncio.to_thread(evaluate_rule, rule, self._window, now, self._fresh_s)
        return sort_readings(rule, [rule.compare(*row) for row in rows])

    async def _apply_readings(
        self,
        connection: Connection,
        rule: Rule,
        readings: Iterable[Reading],
        opened: Mapping[str, Alert],
        silences: Sequence[Silence],
        now: datetime,
    ) -> None:
        by_subject = {reading.subject: reading for reading in readings}
        news = [subject for subject, reading in by_subject.items() if subject not in opened and reading.is_raised]
        for subject in (*opened, *news[: max(0, MAX_SUBJECTS - len(opened))]):
            alert, reading = opened.get(subject), by_subject.get(subject)
            status = transition(alert.status if alert is not None else None, reading, rule.delays, now)
            details = reading.details if reading is not None else alert.details if alert is not None else {}
            if alert is None and status is not None:
                fresh = replace(_begun(rule, subject, status), details=details)
                saved = await self._save(connection, rule.name, rule.settings, fresh, silences, now, is_new=True)
                _log_change(saved)
            elif alert is not None and status is None:
                await alert_store.delete(connection, alert)
            elif alert is not None and status is not None:
                after = _updated(replace(alert, severity=rule.settings.severity, details=details), status)
                renewed_at = None if reading is None else reading.renewed_at
                saved = await self._save(
                    connection, rule.name, rule.settings, after, silences, now, renewed_at=renewed_at
                )
                if saved.state is not alert.state:
                    _log_change(saved)

    async def _close_orphans(
        self, connection: Connection, opened: OpenAlerts, silences: Sequence[Silence], now: datetime
    ) -> None:
        """Close the alerts of rules that no longer exist."""
        orphaned = opened.keys() - {rule.name for rule in self._rules}
        for alert in (alert for name in orphaned for alert in opened[name].values()):
            if alert.state is AlertState.PENDING:
                await alert_store.delete(connection, alert)
                continue
            status = transition(replace(alert.status, state=AlertState.FIRING), None, AlertDelays(0, 0), now)
            assert status is not None  # `transition` never drops a firing alert
            settings = self._settings.rules.get(alert.rule, RuleSettings())
            await self._save(connection, alert.rule, settings, _updated(alert, status), silences, now)

    async def _save(
        self,
        connection: Connection,
        name: str,
        rule: RuleSettings,
        alert: Alert,
        silences: Sequence[Silence],
        now: datetime,
        *,
        is_new: bool = False,
        renewed_at: datetime | None = None,
    ) -> Alert:
        """Store an alert and queue its notifications; return the alert as stored."""
        is_silenced = any(silence.covers(name, alert.subject, now) for silence in silences)
        kind = _due(
            alert,
            rule.repeat_interval_s if rule.repeat_interval_s is not None else self._settings.repeat_interval_s,
            now,
            renewed_at,
        )
        channels = self._settings.channels_of(rule) if kind and not is_silenced else ()
        updated = replace(alert, is_silenced=is_silenced, notified_at=now if channels else alert.notified_at)
        await (alert_store.insert if is_new else alert_store.save)(connection, updated)
        if kind and channels:
            send_at = now if rule.severity == "critical" else after_quiet(self._settings, now)
            await alert_store.insert_entries(connection, updated, kind, dict.fromkeys(channels, send_at))
        return updated

    def _show(self, opened: Iterable[Alert]) -> None:
        firing = [alert for alert in opened if alert.state is not AlertState.PENDING]
        for severity in ("warning", "critical"):
            meters.gauge(
                "boathook_alerts_firing", sum(alert.severity == severity for alert in firing), severity=severity
            )


class LocalEvaluator:
    """Evaluates and sends host alerts on one host while PostgreSQL is unavailable and no keeper can be elected.

    It evaluates the rules about hosts (``by = ["host"]``) with this host's own metrics. When PostgreSQL is available
    again, it stores the alerts that it sent before it publishes any metric. The keeper continues from there and does
    not send them again.
    """

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
            readings = {reading.subject: reading for reading in evaluate_rule(rule, self._window, now, WINDOW_S)}
            subjects = {subject for name, subject in self._statuses if name == rule.name}
            for subject in subjects | {subject for subject, reading in readings.items() if reading.is_raised}:
                key = rule.name, subject
                status = transition(self._statuses.pop(key, None), readings.get(subject), rule.delays, now)
                if status is not None and status.state is not AlertState.RECOVERED:
                    self._statuses[key] = status
                    self._note(rule, key, status)
        await self._notify(now)

    def _note(self, rule: Rule, key: AlertKey, status: AlertStatus) -> None:
        if status.state is AlertState.FIRING and key not in self._notified:
            self._notified[key] = self._unsaved[key] = _begun(rule, key[1], status)
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
                opened = {(alert.rule, alert.subject): alert for alert in await alert_store.list_open(connection)}
                for key, alert in self._unsaved.items():
                    await self._write(connection, key, alert, opened.get(key), now)
            mine = [alert for alert in await alert_store.list_open(connection) if self._is_mine(alert)]
        self._unsaved.clear()
        self._pending_channels.clear()
        self._statuses = {(alert.rule, alert.subject): alert.status for alert in mine}
        self._notified = {(alert.rule, alert.subject): alert for alert in mine if alert.notified_at is not None}

    def _is_mine(self, alert: Alert) -> bool:
        return any(rule.name == alert.rule for rule in self._rules) and self._host in alert.subject.split(", ")

    async def _write(
        self, connection: Connection, key: AlertKey, alert: Alert, earlier: Alert | None, now: datetime
    ) -> None:
        """Insert or update an alert in the database; entries that are unsent are left to the keeper."""
        if earlier is not None and earlier.notified_at is not None:
            return
        channels = self._settings.notifications.channels_of(self._rule(key).settings)
        unsent = self._pending_channels.get(key, set())
        notified_at = now if channels and unsent != set(channels) else None
        updated = replace(alert, id=earlier.id if earlier is not None else alert.id, notified_at=notified_at)
        await (alert_store.insert if earlier is None else alert_store.save)(connection, updated)
        if unsent and notified_at is not None:
            await alert_store.insert_entries(connection, updated, "firing", dict.fromkeys(unsent, now))

    def _rule(self, key: AlertKey) -> Rule:
        return next(rule for rule in self._rules if rule.name == key[0])


def _due(alert: Alert, repeat_interval_s: float, now: datetime, renewed_at: datetime | None = None) -> str | None:
    """Return which notification is due for an alert; None if there is none."""
    match alert.state:
        case AlertState.FIRING if alert.notified_at is None:
            return "firing"
        case AlertState.FIRING if renewed_at and alert.notified_at and renewed_at <= alert.notified_at:
            return None
        case AlertState.FIRING if repeat_interval_s and alert.notified_at is not None:
            return "repeated" if now - alert.notified_at >= timedelta(seconds=repeat_interval_s) else None
        case AlertState.RECOVERED if alert.notified_at is not None:
            return "recovered"
        case _:
            return None


def after_quiet(settings: NotificationSettings, now: datetime) -> datetime:
    """Return *now*, or the end of the quiet hours if *now* is within them."""
    if settings.quiet is None:
        return now
    begin, end = settings.quiet
    local = now.astimezone(ZoneInfo(settings.quiet_zone))
    if not _is_between(local.time(), begin, end):
        return now
    ends = local.replace(hour=end.hour, minute=end.minute, second=0, microsecond=0)
    if ends <= local:
        ends = (ends.replace(tzinfo=None) + timedelta(days=1)).replace(tzinfo=local.tzinfo)
    return ends.astimezone(UTC)


def _is_between(local: time_of_day, begin: time_of_day, end: time_of_day) -> bool:
    return begin <= local < end if begin <= end else local >= begin or local < end


def _begun(rule: Rule, subject: str, status: AlertStatus) -> Alert:
    return Alert(
        id=new_id(),
        rule=rule.name,
        subject=subject,
        severity=rule.settings.severity,
        state=status.state,
        since=status.since,
        value=status.value,
        worst=status.value,
        fired_at=status.since if status.state is AlertState.FIRING else None,
    )


def _updated(alert: Alert, status: AlertStatus) -> Alert:
    fired_at = alert.fired_at
    if fired_at is None and status.state is AlertState.FIRING:
        fired_at = status.since
    return replace(
        alert,
        state=status.state,
        since=status.since,
        value=status.value,
        worst=max(alert.worst, status.value),
        fired_at=fired_at,
        recovered_at=status.since if status.state is AlertState.RECOVERED else None,
    )


def _sorted(alerts: Iterable[Alert]) -> OpenAlerts:
    by_rule: OpenAlerts = {}
    for alert in alerts:
        by_rule.setdefault(alert.rule, {})[alert.subject] = alert
    return by_rule


def _shown(seen: Mapping[str, list[Reading]]) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [
            {"subject": reading.subject, "value": reading.value, "is_raised": reading.is_raised}
            for reading in readings[:SHOWN]
        ]
        for name, readings in seen.items()
    }


def _log_change(alert: Alert) -> None:
    words: dict[str, Any] = {"alert": ids.show(ids.ALERT, alert.id), "rule": alert.rule, "subject": alert.subject}
    match alert.state:
        case AlertState.FIRING:
            _LOG.warning("alert_firing", **words, value=alert.value, silenced=alert.is_silenced)
        case AlertState.RECOVERED:
            _LOG.info("alert_recovered", **words)
        case _:
            pass
