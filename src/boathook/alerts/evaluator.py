"""Evaluates alert rules and updates alerts in one transaction, so that a new keeper never sees partial results."""

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from datetime import time as time_of_day
from typing import Any, Final
from zoneinfo import ZoneInfo

from msgspec.structs import replace

from boathook.alerts.dispatcher import new_id
from boathook.alerts.rules import MAX_SUBJECTS, Rule, evaluate_rule, open_window, sort_readings
from boathook.config.notifications import NotificationSettings, RuleSettings
from boathook.db import alerts as alert_store
from boathook.db.alerts import Alert, EvaluationRun
from boathook.db.database import Connection, Database
from boathook.db.metric_samples import HostSample, read_stored_since, read_window
from boathook.domain import ids
from boathook.domain.alerts import AlertDelays, AlertState, AlertStatus, Reading, Silence, transition
from boathook.observability import meters
from boathook.observability.log import get_logger

SHOWN: Final = 10
"""Number of subjects per rule whose values are stored for display."""
_OVERLAP: Final = timedelta(seconds=5)
"""Samples may be committed slightly out of order."""
_LOG = get_logger("alerts")

OpenAlerts = dict[str, dict[str, Alert]]
"""Open alerts by rule and subject."""


class AlertEvaluator:
    """Evaluates all alert rules of a deployment.

    Args:
        database: a dedicated pool, so that nothing else waits for it.
        settings: channels and notification intervals.
        rules: the rules to evaluate.
        host: name of the evaluating host.
    """

    def __init__(self, database: Database, settings: NotificationSettings, rules: Sequence[Rule], host: str) -> None:
        self._database = database
        self._settings = settings
        self._rules = rules
        self._host = host
        self._window = open_window(rules)
        self._read_until: datetime | None = None
        self._fresh_s = max(60.0, 3 * settings.evaluation_interval_s)
        self._lookback_s = max((rule.lookback_s for rule in rules), default=0.0)

    async def run_once(self) -> None:
        """Evaluate all rules once. Raises DatabaseError."""
        async with self._database.transaction() as connection:
            now = await alert_store.lock_evaluation(connection)
            await self._catch_up(connection, now)
            opened = _sorted(await alert_store.list_open(connection))
            silences = [one.pattern for one in await alert_store.list_silences(connection, ended_after=now)]
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
            stored = await read_window(connection, now, self._lookback_s)
        else:
            stored = await read_stored_since(connection, min(now, self._read_until) - _OVERLAP)
        await asyncio.to_thread(self._take_in, stored.samples, now)
        self._read_until = stored.until or self._read_until

    def _take_in(self, samples: Sequence[HostSample], now: datetime) -> None:
        self._window.add(samples)
        self._window.tidy(now)

    async def _read(
        self, connection: Connection, rule: Rule, opened: Collection[str], now: datetime
    ) -> list[Reading] | None:
        """Return the readings of a rule; None if its metric has no current values."""
        match rule.settings.rows:
            case "dead_letters":
                rows = await alert_store.count_dead_letters(connection, opened, MAX_SUBJECTS)
            case "disabled_endpoints":
                rows = await alert_store.list_disabled(connection, MAX_SUBJECTS)
            case "unhandled":
                rows = await alert_store.count_unhandled(connection, rule.settings.over_s, MAX_SUBJECTS)
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
        by_subject = {one.subject: one for one in readings}
        news = [subject for subject, one in by_subject.items() if subject not in opened and one.is_raised]
        for subject in (*opened, *news[: max(0, MAX_SUBJECTS - len(opened))]):
            alert, reading = opened.get(subject), by_subject.get(subject)
            status = transition(alert.status if alert is not None else None, reading, rule.delays, now)
            if alert is None and status is not None:
                fresh = _begun(rule, subject, status)
                saved = await self._save(connection, rule.name, rule.settings, fresh, silences, now, is_new=True)
                _log_change(saved)
            elif alert is not None and status is None:
                await alert_store.delete(connection, alert)
            elif alert is not None and status is not None:
                after = _updated(replace(alert, severity=rule.settings.severity), status)
                saved = await self._save(connection, rule.name, rule.settings, after, silences, now)
                if saved.state is not alert.state:
                    _log_change(saved)

    async def _close_orphans(
        self, connection: Connection, opened: OpenAlerts, silences: Sequence[Silence], now: datetime
    ) -> None:
        """Close the alerts of rules that no longer exist."""
        gone = opened.keys() - {rule.name for rule in self._rules}
        for alert in (alert for name in gone for alert in opened[name].values()):
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
    ) -> Alert:
        """Store an alert and queue its notifications; return the alert as stored."""
        is_silenced = any(one.covers(name, alert.subject, now) for one in silences)
        kind = _due(
            alert,
            rule.repeat_interval_s if rule.repeat_interval_s is not None else self._settings.repeat_interval_s,
            now,
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
            meters.gauge("boathook_alerts_firing", sum(one.severity == severity for one in firing), severity=severity)


def _due(alert: Alert, repeat_interval_s: float, now: datetime) -> str | None:
    """Return which notification is due for an alert; None if there is none."""
    match alert.state:
        case AlertState.FIRING if alert.notified_at is None:
            return "firing"
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
    found: OpenAlerts = {}
    for alert in alerts:
        found.setdefault(alert.rule, {})[alert.subject] = alert
    return found


def _shown(seen: Mapping[str, list[Reading]]) -> dict[str, list[dict[str, Any]]]:
    return {
        name: [{"subject": one.subject, "value": one.value, "is_raised": one.is_raised} for one in readings[:SHOWN]]
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
