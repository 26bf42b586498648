"""Evaluates alert rules and sends alerts on the elected keeper.

Alerts have their own connections, tasks and timeouts and never wait for deliveries. An error is logged and retried,
so that an unreachable channel or a failing rule delays no chore.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Final

from boathook.alerts.checks import AlertCheck, AlertChecks
from boathook.alerts.dispatcher import AlertDispatcher
from boathook.alerts.evaluator import AlertEvaluator
from boathook.alerts.notifier import Notifier, check_channels
from boathook.alerts.rules import compile_rules, known_rules
from boathook.config import Settings
from boathook.db import alerts as alert_store
from boathook.db.database import Database
from boathook.domain.errors import DatabaseError
from boathook.observability import meters
from boathook.observability.log import get_logger
from boathook.observability.metric_snapshot import host_name

DISPATCH_INTERVAL_S: Final = 1.0
"""Interval between two checks for due messages."""
CLEANUP_INTERVAL_S: Final = 300.0
_LOG = get_logger("alerts")


def check_alerts(settings: Settings) -> None:
    """Check the rules and the channels. Raises ConfigError, which names the key."""
    compile_rules(settings)
    check_channels(settings)


async def open_alert_database(settings: Settings, url: str, purpose: str) -> Database:
    """Open the dedicated connections for alerts. Raises DatabaseUnavailable."""
    return await Database.open(
        url,
        purpose=purpose,
        size=2,
        connect_timeout_s=settings.database.connect_timeout_s,
        statement_timeout_s=settings.database.statement_timeout_s,
    )


class AlertService:
    """Runs alert evaluation, delivery and cleanup on the elected keeper, on its own connections.

    Args:
        settings: rules, channels and limits.
        url: of PostgreSQL.
        checks: the checks of apps' alerts, by rule.
    """

    def __init__(self, settings: Settings, url: str, checks: Mapping[str, AlertCheck] = MappingProxyType({})) -> None:
        self._settings = settings
        self._url = url
        self._checks = checks

    @asynccontextmanager
    async def run_in_background(self) -> AsyncIterator[None]:
        """Evaluate rules and send alerts while the block runs."""
        watching = asyncio.create_task(self._run(), name="alerts")
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait({watching}, timeout=self._settings.server.drain_s)

    async def _run(self) -> None:
        while True:
            try:
                database = await open_alert_database(self._settings, self._url, "alerts")
            except DatabaseError as error:
                _LOG.warning("alerts_put_off", error=str(error))
                await asyncio.sleep(DISPATCH_INTERVAL_S)
                continue
            except Exception as error:  # noqa: BLE001 - an alert error must not affect the keeper
                _LOG.error("alerts_fault", exc_info=error)
                return
            try:
                await self._work(database)
            finally:
                await database.close()

    async def _work(self, database: Database) -> None:
        settings = self._settings
        rules = known_rules(settings)
        notifier = Notifier(settings)
        is_checked = {rule.name for rule in rules if rule.settings.rows == "checked"}
        checks = AlertChecks({name: check for name, check in self._checks.items() if name in is_checked})
        host = host_name(settings.server.data_dir)
        evaluator = AlertEvaluator(database, settings.notifications, rules, host, checks)
        dispatcher = AlertDispatcher(database, settings, notifier)
        keep = timedelta(days=settings.notifications.retention_days)
        try:
            interval_s = settings.notifications.evaluation_interval_s
            async with checks.run_in_background(interval_s), asyncio.TaskGroup() as group:
                group.create_task(run_every("watch", interval_s, evaluator.run_once))
                group.create_task(run_every("tell", DISPATCH_INTERVAL_S, dispatcher.run_once))
                group.create_task(run_every("tidy", CLEANUP_INTERVAL_S, lambda: _tidy(database, keep)))
        finally:
            await dispatcher.stop()
            notifier.close()


async def _tidy(database: Database, keep: timedelta) -> None:
    if dropped := await alert_store.delete_recovered(database, datetime.now(UTC) - keep):
        meters.count("boathook_retention_dropped_total", dropped, kind="alert")


async def run_every(name: str, every_s: float, do: Callable[[], Awaitable[object]]) -> None:
    """Call *do* every *every_s* seconds; an error is logged, and the next call follows as usual."""
    while True:
        began = time.monotonic()
        try:
            await do()
        except DatabaseError as error:
            _LOG.warning("alerts_put_off", what=name, error=str(error))
        except Exception as error:  # noqa: BLE001 - an error in one run must not end the loop
            _LOG.error("alerts_fault", what=name, exc_info=error)
        spent = time.monotonic() - began
        # Run slow work less often, so that alerts never keep PostgreSQL busy.
        await asyncio.sleep(max(every_s - spent, 4 * spent, 0.05))
