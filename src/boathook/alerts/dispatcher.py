"""Sends due alert messages, each channel in its own task, so that a failing channel delays no other."""

import asyncio
import secrets
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Final
from uuid import UUID

from boathook.alerts.channel import SendFailed, Sent
from boathook.alerts.notifier import Notifier
from boathook.config.notifications import RuleSettings
from boathook.config.tables import Settings
from boathook.db import alerts as alert_store
from boathook.db.alerts import Alert, ClaimedMessage
from boathook.db.database import Database
from boathook.domain import ids
from boathook.domain.alerts import AlertEntry, AlertMessage, AlertMessageKind, collapse
from boathook.domain.errors import DatabaseError
from boathook.observability import meters
from boathook.observability.log import get_logger

FIRST_PAUSE_S: Final = 10.0
MAX_PAUSE_S: Final = 900.0
_LEASE_S: Final = 45.0
"""Lease of a message in addition to the send timeout; until it expires, no other process sends the message."""
_LOG = get_logger("alerts")


class AlertDispatcher:
    """Claims due messages and sends them.

    Args:
        database: a dedicated pool.
        settings: the configured channels and their limits.
        notifier: sends the messages.
    """

    def __init__(self, database: Database, settings: Settings, notifier: Notifier) -> None:
        self._database = database
        self._settings = settings
        self._notifier = notifier
        self._busy: dict[str, asyncio.Task[None]] = {}

    async def run_once(self) -> None:
        """Start to send the messages that are due. Raises DatabaseError."""
        notifications = self._settings.notifications
        idle = [name for name in notifications.channels if name not in self._busy]
        if not idle:
            return
        due = await alert_store.find_due_channels(
            self._database,
            idle,
            group_wait_s=notifications.group_wait_s,
            min_interval_s=notifications.min_interval_s,
            max_per_hour=notifications.max_per_hour,
        )
        for name in due:
            task = self._busy[name] = asyncio.create_task(self._notify(name), name=f"notify:{name}")
            task.add_done_callback(lambda _, name=name: self._busy.pop(name, None))  # type: ignore[misc]

    async def stop(self) -> None:
        """Cancel the running sends; the next dispatcher sends these messages again with the same id."""
        tasks = list(self._busy.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _notify(self, channel: str) -> None:
        lease_s = self._settings.notifications.timeout_s + _LEASE_S
        try:
            message = await alert_store.claim_message(self._database, channel, new_id(), lease_s)
            if message is not None:
                await self._send(channel, message)
        except DatabaseError as error:
            _LOG.warning("alert_message_postponed", channel=channel, error=str(error))
        except Exception as error:  # noqa: BLE001 - an error fails one message, never the dispatcher
            _LOG.error("alert_message_fault", channel=channel, exc_info=error)

    async def _send(self, channel: str, message: ClaimedMessage) -> None:
        outcome = await self._notifier.send(channel, build_message(self._settings, message))
        match outcome:
            case Sent():
                await alert_store.mark_sent(self._database, channel, message.message_id)
                meters.count("boathook_alert_messages_total", channel=channel, outcome="sent")
                _LOG.info("alert_message_sent", channel=channel, alerts=len(message.notices))
            case SendFailed(error, rest_s):
                given_up = await alert_store.mark_failed(
                    self._database,
                    channel,
                    message.message_id,
                    error,
                    give_up=timedelta(hours=self._settings.notifications.retry_for_h),
                    pause_s=max(FIRST_PAUSE_S, rest_s),
                    max_pause_s=max(MAX_PAUSE_S, rest_s),
                )
                meters.count("boathook_alert_messages_total", channel=channel, outcome="failed")
                _LOG.warning("alert_message_failed", channel=channel, error=error, given_up=given_up)


def build_message(settings: Settings, message: ClaimedMessage) -> AlertMessage:
    """Build the alert message for a claimed message."""
    rules = settings.notifications.rules
    entries = [build_entry(rules, alert, AlertMessageKind(kind)) for kind, alert in message.notices]
    return AlertMessage(
        show_message_id(message.message_id), datetime.now(UTC), collapse(entries), settings.server.public_url
    )


def build_entry(rules: Mapping[str, RuleSettings], alert: Alert, kind: AlertMessageKind) -> AlertEntry:
    """Build the entry of one alert."""
    rule = rules.get(alert.rule, RuleSettings())
    return AlertEntry(
        id=alert.shown_id,
        kind=kind,
        rule=alert.rule,
        subject=alert.subject,
        severity=alert.severity,
        summary=rule.summary,
        advice=rule.advice,
        page=rule.page_of(alert.subject) or "/console/alerts",
        name=alert.name,
        figures=rule.figures(alert.worst if kind is AlertMessageKind.RECOVERED else alert.value),
        details=alert.details,
        value=alert.value,
        worst=alert.worst,
        fired_at=alert.fired_at or alert.since,
        recovered_at=alert.recovered_at,
    )


def show_message_id(identifier: UUID) -> str:
    """Return the public form of a message id."""
    return ids.show("ntc", identifier)


def new_id() -> UUID:
    """Generate an id for an alert or a message."""
    return ids.make(time.time_ns() // 1_000_000, secrets.randbits(74))
