"""Evaluates alert rules and sends alerts beside the elected keeper.

All of it has connections, tasks and deadlines of its own. It waits for nothing that the work waits for, and an error in
it is logged and tried again: a Telegram that is dead, or a rule that fails, delays no chore.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

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
"""Seconds between two looks for something to be told."""
CLEANUP_INTERVAL_S: Final = 300.0
_LOG = get_logger("alerts")


def check_alerts(settings: Settings) -> None:
    """Check the rules and the channels. Raises ConfigError, which names the key."""
    compile_rules(settings)
    check_channels(settings)


async def open_alert_database(settings: Settings, url: str, purpose: str) -> Database:
    """Open the connections that alerts have for themselves. Raises DatabaseUnavailable."""
    return await Database.open(
        url,
        purpose=purpose,
        size=2,
        connect_timeout_s=settings.database.connect_timeout_s,
        statement_timeout_s=settings.database.statement_timeout_s,
    )


class AlertService:
    """What the elected keeper does about alerts, on connections of its own.

    Args:
        settings: rules, channels, limits.
        url: of PostgreSQL.
    """

    def __init__(self, settings: Settings, url: str) -> None:
        self._settings = settings
        self._url = url

    @asynccontextmanager
    async def run_in_background(self) -> AsyncIterator[None]:
        """Look at the rules and tell what they say, for as long as the block runs."""
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
            except Exception as error:  # noqa: BLE001 - as said above
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
        evaluator = AlertEvaluator(database, settings.notifications, rules, host_name(settings.server.data_dir))
        dispatcher = AlertDispatcher(database, settings, notifier)
        keep = timedelta(days=settings.notifications.retention_days)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(run_every("watch", settings.notifications.evaluation_interval_s, evaluator.run_once))
                group.create_task(run_every("tell", DISPATCH_INTERVAL_S, dispatcher.run_once))
                group.create_task(run_every("tidy", CLEANUP_INTERVAL_S, lambda: _tidy(database, keep)))
        finally:
            await dispatcher.close()
            notifier.close()


async def _tidy(database: Database, keep: timedelta) -> None:
    if dropped := await alert_store.delete_recovered(database, datetime.now(UTC) - keep):
        meters.count("boathook_retention_dropped_total", dropped, kind="alert")


async def run_every(what: str, every_s: float, do: Callable[[], Awaitable[object]]) -> None:
    """Do something every so many seconds; an error is logged, and it is tried again the next time."""
    while True:
        began = time.monotonic()
        try:
            await do()
        except DatabaseError as error:
            _LOG.warning("alerts_put_off", what=what, error=str(error))
        except Exception as error:  # noqa: BLE001 - a fault in one look must not end all others
            _LOG.error("alerts_fault", what=what, exc_info=error)
        spent = time.monotonic() - began
        # What grows slow is done less often, so that PostgreSQL is not kept busy by looking alone.
        await asyncio.sleep(max(every_s - spent, 4 * spent, 0.05))
