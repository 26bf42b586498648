"""The keeper: maintains the database. Any number may run; an advisory lock elects the active one.

It reaps expired leases, unblocks order keys, dead-letters deliveries that no endpoint will receive, runs tasks and
maintenance, and counts the backlog. This work is needed for progress, not for safety, so a late or missing keeper
does no harm.

It also runs the apps' chores, declared with `Boathook.every`. An advisory lock per chore ensures that no other process
runs the same chore: a process may notice late that it is no longer the keeper, and a chore may take time to end.
"""

import asyncio
import functools
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Final

import msgspec

from boathook.alerts.checks import AlertCheck
from boathook.alerts.rules import MAX_SUBJECTS
from boathook.alerts.service import AlertService
from boathook.config import Settings
from boathook.db import audit
from boathook.db.alerts import count_causes, count_repeated
from boathook.db.database import (
    Connection,
    Database,
    is_connection_closed,
    translate_errors,
    try_advisory_lock,
    wait_for_database,
)
from boathook.db.deliveries import Backlog, DeliveryStore, elect_keeper
from boathook.db.endpoint_deliveries import dead_letter_undeliverable, delete_expired
from boathook.db.live_settings import LiveSettings
from boathook.db.maintenance import run_maintenance
from boathook.db.metric_samples import roll_up
from boathook.db.queries.endpoint_stats import read_results
from boathook.db.rerouting import count_unhandled
from boathook.delivery.integrity_runner import QUERY_TIMEOUT_S, IntegrityRunner
from boathook.delivery.tasks import ServiceStep, run_tasks
from boathook.domain.alerts import AlertReading
from boathook.domain.endpoints import RECIPIENT
from boathook.domain.errors import DatabaseError
from boathook.domain.health import HealthState, judge_health
from boathook.domain.policy import RetryDefaults
from boathook.handlers.api import Boathook
from boathook.handlers.manifest import Chore
from boathook.handlers.outbox import Outbox
from boathook.observability import meters
from boathook.observability.failpoints import failpoint
from boathook.observability.log import get_logger
from boathook.observability.metric_snapshot import AGES, ENDPOINTS
from boathook.observability.metrics import app_metric_names

_WATCH_S: Final = 0.5
"""How often a running chore's lock is checked."""
_LOG = get_logger("keeper")
ROUND_S: Final = 1.0
COUNT_S: Final = 5.0
REPEATED_WITHIN_S: Final = 3_600.0
"""The window of `boathook_repeated_bodies`, that of the built-in alert."""
CAUSE_WITHIN_S: Final = 3_600.0
"""The window of `boathook_repeating_cause`, that of the built-in alert."""
BACK_S: Final = 0.2
"""Interval between two checks whether PostgreSQL is available again."""
DEAD_LETTER_S: Final = 2.0
SEAL_S: Final = 5.0
SAMPLES_S: Final = 60.0
SIGNALS_S: Final = 60.0
_SEALINGS: Final = 5
_SHARE: Final = 0.1
"""A slow job runs less often, so that it takes no more than this share of the time."""


class Owned(msgspec.Struct, frozen=True):
    """A chore and the app that declares it."""

    app: str
    chore: Chore

    @property
    def title(self) -> str:
        """The name of the chore in metrics and logs, with that of its app."""
        return f"{self.app}.{self.chore.name}"


class AppChores:
    """Runs the chores of all apps of a process, each in its own task.

    Args:
        database: has a connection for each chore.
        hooks: the apps that declare the chores.
        drain_s: seconds that a chore gets to end after it is cancelled.
    """

    def __init__(self, database: Database, hooks: Iterable[Boathook], *, drain_s: float) -> None:
        self._database = database
        self._drain_s = drain_s
        self._owned = [Owned(hook.name or "app", chore) for hook in hooks for chore in hook.manifest.chores]

    @asynccontextmanager
    async def run_in_background(self) -> AsyncIterator[None]:
        """Run each chore when it is due while the block runs; cancel running chores at its end."""
        tasks = {
            asyncio.create_task(self._repeat(owned_chore), name=f"chore:{owned_chore.title}"): owned_chore
            for owned_chore in self._owned
        }
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            if tasks:
                _, stuck = await asyncio.wait(tasks, timeout=self._drain_s)
                for task in stuck:
                    _LOG.error("chore_stuck", app=tasks[task].app, chore=tasks[task].chore.name)

    async def _repeat(self, owned_chore: Owned) -> None:
        due_at = time.monotonic()
        while True:
            await asyncio.sleep(due_at - time.monotonic())
            await self._run_if_locked(owned_chore)
            due_at = next_time(due_at, owned_chore.chore.every_s, time.monotonic())

    async def _run_if_locked(self, owned_chore: Owned) -> None:
        try:
            async with try_advisory_lock(self._database, owned_chore.title) as connection:
                if connection is not None:
                    await _hold(connection, owned_chore)
        except DatabaseError as error:
            _LOG.warning("chore_put_off", app=owned_chore.app, chore=owned_chore.chore.name, error=str(error))


def next_time(due_at: float, every_s: float, now: float) -> float:
    """Return the next due time of a chore that was due at *due_at*; missed runs are skipped."""
    return due_at + every_s * max(1, math.ceil((now - due_at) / every_s))


async def _hold(lock_connection: Connection, owned_chore: Owned) -> None:
    """Run a chore, and cancel it if its lock is lost; return when it has ended."""
    doing = asyncio.create_task(_do(owned_chore), name=f"doing:{owned_chore.title}")
    try:
        while not doing.done() and not is_connection_closed(lock_connection):
            await asyncio.wait({doing}, timeout=_WATCH_S)
    finally:
        doing.cancel()
        await asyncio.wait({doing})


async def _do(owned_chore: Owned) -> None:
    """Run a chore once; an error is logged and counted, not raised."""
    app, name = owned_chore.app, owned_chore.chore.name
    outcome, started = "broken_off", time.monotonic()
    try:
        await owned_chore.chore.function()
        outcome = "done"
    except (Exception, SystemExit) as error:  # noqa: BLE001 - the chore is the app's own code
        outcome = "failed"
        _LOG.error("chore_failed", app=app, chore=name, exc_info=error)
    finally:
        meters.count("boathook_chores_total", app=app, chore=name, outcome=outcome)
        meters.observe("boathook_chore_seconds", time.monotonic() - started, app=app, chore=name)


class MaintenanceJob:
    """A periodic maintenance job."""

    def __init__(self, name: str, every_s: float, do: Callable[[], Awaitable[object]]) -> None:
        self._name = name
        self._every_s = every_s
        self._do = do
        self._due_at = 0.0

    def postpone(self, seconds: float) -> None:
        """Postpone the next run by at least *seconds* from now."""
        self._due_at = max(self._due_at, time.monotonic() + seconds)

    @property
    def is_due(self) -> bool:
        """Whether the job is due."""
        return time.monotonic() >= self._due_at

    async def do(self) -> None:
        """Run the job; a failed job is retried at its next run and does not affect other jobs."""
        began = time.monotonic()
        try:
            await self._do()
        except DatabaseError as error:
            get_logger("keeper").warning("maintenance_failed", job=self._name, error=str(error))
        ended_at = time.monotonic()
        self._due_at = max(began + self._every_s, ended_at + (ended_at - began) / _SHARE)


class Keeper:
    """Runs the maintenance jobs on the given connections: two of its own, and one for each chore of the apps."""

    def __init__(
        self,
        database: Database,
        settings: Settings,
        hooks: Iterable[Boathook] = (),
        retries: RetryDefaults | None = None,
        service_step: ServiceStep | None = None,
    ) -> None:
        hooks = tuple(hooks)
        self._database = database
        self._app_chores = AppChores(database, hooks, drain_s=settings.server.drain_s)
        self._alerts = AlertService(settings, database.url, alert_checks(hooks))
        self._verifying = IntegrityRunner(database, functools.partial(_dial_verify, database, settings))
        retries = retries or settings.retry_defaults()
        self._store = DeliveryStore(database, retries)
        self._known: set[str] = set()
        self._repeating: set[str] = set()
        self._error_share = settings.notifications.error_share
        self._lease_s = settings.worker.lease_s
        outbox = Outbox.of(settings.retention)
        self._reaping = MaintenanceJob("reap", ROUND_S, self._reap)
        self._jobs = (
            self._reaping,
            MaintenanceJob("unblock", ROUND_S, self._store.unblock),
            MaintenanceJob("match_signals", ROUND_S, self._store.match_signals),
            MaintenanceJob("drop_signals", SIGNALS_S, self._store.drop_signals),
            MaintenanceJob(
                "dead_letter", DEAD_LETTER_S, lambda: self._dead_letter_expired(retries.endpoints.max_age_s)
            ),
            MaintenanceJob(
                "delete_expired", settings.retention.maintenance_interval_s, lambda: delete_expired(database)
            ),
            MaintenanceJob("tasks", ROUND_S, lambda: run_tasks(database, outbox, service_step)),
            MaintenanceJob("verify", ROUND_S, self._verifying.start),
            MaintenanceJob("seal", SEAL_S, self._seal),
            MaintenanceJob("count", COUNT_S, self.count),
            MaintenanceJob("samples", SAMPLES_S, lambda: roll_up(database, app_metric_names())),
            MaintenanceJob(
                "maintenance",
                settings.retention.maintenance_interval_s,
                lambda: run_maintenance(database, settings.retention),
            ),
        )

    async def run(self, stop: asyncio.Event, beat: Callable[[], None]) -> None:
        """Take part in the election, and run jobs while elected, until *stop* is set."""
        while not stop.is_set():
            beat()
            try:
                async with elect_keeper(self._database) as seat:
                    if seat is not None:
                        get_logger("keeper").info("keeper_elected")
                        try:
                            async with self._app_chores.run_in_background(), self._alerts.run_in_background():
                                await self._tend(seat, stop, beat)
                        finally:
                            _drop_gauges()
                            await self._verifying.stop()
            except DatabaseError as error:
                get_logger("keeper").warning("keeper_interrupted", error=str(error))
                # Leases expired that could not be renewed. Their holders, which renew three times per lease, go first.
                await self._until_back(stop, beat)
                self._reaping.postpone(self._lease_s / 2)
            await _pause(stop, ROUND_S)

    async def _until_back(self, stop: asyncio.Event, beat: Callable[[], None]) -> None:
        while self._database.monitor.is_unavailable and not stop.is_set():
            beat()
            await _pause(stop, BACK_S)

    async def _tend(self, seat: Connection, stop: asyncio.Event, beat: Callable[[], None]) -> None:
        while not stop.is_set():
            beat()
            await _confirm(seat)
            for job in self._jobs:
                if job.is_due:
                    await _confirm(seat)
                    await job.do()
            await _pause(stop, ROUND_S)

    async def _reap(self) -> None:
        failpoint("keeper.before_reap")
        while reaped := await self._store.reap():
            failpoint("keeper.after_reap")
            get_logger("keeper").warning("leases_reaped", leases=reaped)
            meters.count("boathook_leases_expired_total", reaped)

    async def _dead_letter_expired(self, max_age_s: float) -> None:
        """Dead-letter the deliveries that no sender will ever send."""
        while count := await dead_letter_undeliverable(self._database, max_age_s=max_age_s):
            get_logger("keeper").info("deliveries_dead_lettered", deliveries=count)
            meters.count("boathook_attempts_total", count, recipient=ENDPOINTS, outcome="dead")

    async def _seal(self) -> None:
        """Seal new audit rows, and log the last seal, where no database user can change it."""
        number = 0
        for _ in range(_SEALINGS):
            number += (encrypted := await audit.seal(self._database))
            if encrypted < audit.SEAL_BATCH:
                break
        if number and (head := await audit.read_head(self._database)) is not None:
            get_logger("keeper").info("audit_sealed", rows=number, place=head.place, seal=head.seal)

    async def count(self) -> None:
        """Count the deliveries of each recipient by state and age for the metrics."""
        backlog = _folded(await self._store.backlog())
        counts = {(row.recipient, state): getattr(row, state) for row in backlog for state in _STATES}
        ages = {(row.recipient, age): n for row in backlog for age, n in zip(AGES, row.ages, strict=True)}
        emptied = self._known - {row.recipient for row in backlog}
        counts.update({(recipient, state): 0 for recipient in emptied for state in _STATES})
        ages.update({(recipient, age): 0 for recipient in emptied for age in AGES})
        self._known = {row.recipient for row in backlog}
        for (recipient, state), value in counts.items():
            meters.gauge("boathook_backlog", value, recipient=recipient, state=state)
        for (recipient, age), value in ages.items():
            meters.gauge("boathook_backlog_due", value, recipient=recipient, age=age)
        meters.gauge("boathook_oldest_due_seconds", max((row.oldest_due_s for row in backlog), default=0.0))
        meters.gauge("boathook_oldest_snapshot_age_seconds", await self._store.oldest_snapshot_s())
        failed, disabled = await self._store.find_troubled_endpoints()
        since = datetime.now(UTC) - timedelta(days=1)
        results = await read_results(self._database, failed, since) if failed else {}
        states = [judge_health(result, self._error_share).state for result in results.values()]
        meters.gauge("boathook_failing_endpoints", states.count(HealthState.FAILING))
        meters.gauge("boathook_disabled_endpoints", disabled)
        unhandled = await count_unhandled(self._database, since)
        meters.gauge("boathook_unhandled_events", sum(unhandled.values()))
        repeated = dict(await count_repeated(self._database, REPEATED_WITHIN_S, MAX_SUBJECTS))
        for source in self._repeating - repeated.keys():
            meters.gauge("boathook_repeated_bodies", 0, source=source)
        for source, number in repeated.items():
            meters.gauge("boathook_repeated_bodies", number, source=source)
        self._repeating = set(repeated)
        causes = await count_causes(self._database, (), CAUSE_WITHIN_S, 1)
        meters.gauge("boathook_repeating_cause", max((number for _, number in causes), default=0))


def _drop_gauges() -> None:
    """Drop the gauges of the elected keeper and of apps' chores; the next keeper, possibly another process, sets them.

    In an application's own process, gauges of other roles have to stay.
    """
    for name in (*_GAUGES, *meters.app_gauges()):
        meters.drop_series(name)


_GAUGES: Final = (
    "boathook_alerts_firing",
    "boathook_backlog",
    "boathook_backlog_due",
    "boathook_oldest_due_seconds",
    "boathook_oldest_snapshot_age_seconds",
    "boathook_failing_endpoints",
    "boathook_disabled_endpoints",
    "boathook_unhandled_events",
    "boathook_repeated_bodies",
    "boathook_repeating_cause",
)
_STATES: Final = ("due", "later", "blocked", "leased", "dead")


def _folded(backlog: Sequence[Backlog]) -> list[Backlog]:
    """Return the backlog with all endpoints merged into one, because metrics cannot list each endpoint."""
    folded = [row for row in backlog if not row.recipient.startswith(RECIPIENT)]
    sent = [row for row in backlog if row.recipient.startswith(RECIPIENT)]
    if sent:
        sums = {state: sum(getattr(row, state) for row in sent) for state in _STATES}
        ages = [sum(numbers) for numbers in zip(*(row.ages for row in sent), strict=True)]
        oldest_s = max(row.oldest_due_s for row in sent)
        folded.append(Backlog(recipient=ENDPOINTS, oldest_due_s=oldest_s, ages=ages, **sums))
    return folded


def alert_checks(hooks: Iterable[Boathook]) -> dict[str, AlertCheck]:
    """Return the checks of the apps' alerts by rule, each in a transaction of its app."""

    def in_transaction(hook: Boathook, name: str) -> AlertCheck:
        async def check() -> Iterable[AlertReading]:
            async with hook.transaction() as tx:
                return await hook.manifest.alert_checks[name](tx)

        return check

    return {name: in_transaction(hook, name) for hook in hooks for name in hook.manifest.alert_checks}


async def _confirm(seat: Connection) -> None:
    """Raise DatabaseUnavailable if the election is lost: the lock is held by this connection."""
    with translate_errors():
        await seat.fetchval("select 1")


async def _pause(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        pass


async def _dial_verify(database: Database, settings: Settings) -> Database:
    return await Database.open(
        database.url,
        purpose="integrity",
        size=2,
        connect_timeout_s=settings.database.connect_timeout_s,
        statement_timeout_s=QUERY_TIMEOUT_S,
        monitor=database.monitor,
    )


async def run_keeper(
    settings: Settings,
    *,
    hooks: Iterable[Boathook] = (),
    make_service_step: Callable[[Settings, Database], ServiceStep] | None = None,
    stop: asyncio.Event,
    beat: Callable[[], None],
) -> None:
    """Run a keeper until *stop* is set.

    Args:
        settings: the settings.
        hooks: the apps whose chores it runs.
        make_service_step: returns what runs the steps of jobs that need the service layer; see `run_tasks`.
        stop: ends it.
        beat: called while it works.
    """
    hooks = tuple(hooks)
    dial = functools.partial(
        Database.open,
        settings.database.url,
        purpose="keeper",
        size=2 + sum(len(hook.manifest.chores) for hook in hooks),
        connect_timeout_s=settings.database.connect_timeout_s,
        statement_timeout_s=settings.database.statement_timeout_s,
    )
    async with wait_for_database(stop, dial) as database:
        if database is not None:
            live = LiveSettings(settings)
            async with live.following(database):
                service_step = None if make_service_step is None else make_service_step(settings, database)
                await Keeper(database, settings, hooks, live.retry_defaults(), service_step).run(stop, beat)
