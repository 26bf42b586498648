"""A gateway's access to PostgreSQL, which may be unavailable at any time."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Final, Self
from uuid import UUID

from boathook.config import Settings
from boathook.db import rate_leases, rejections, replies, source_secrets
from boathook.db.database import Database, check_safety, check_usable, translate_errors
from boathook.db.due_notifier import notify_due
from boathook.db.events import EventStore
from boathook.db.health import NOT_REACHED
from boathook.db.live_settings import LiveSettings
from boathook.db.migrations import list_pending
from boathook.db.route_registry import read_router
from boathook.domain.due import DueRecipient
from boathook.domain.errors import DatabaseError, DatabaseUnavailable
from boathook.domain.filters import Router
from boathook.domain.rate_leases import LeaseRequest
from boathook.observability.log import get_logger
from boathook.server.background import BackgroundTasks

_RETRY_S: Final = 0.5
_PROBLEM_INTERVAL_S: Final = 5.0
_LEASE_TIMEOUT_S: Final = 0.5
"""Deadline of leasing tokens: a later answer is worth little, as they are valid for a second."""
CheckDatabase = Callable[[Database], Awaitable[None]]
_LOG = get_logger("server")


class GatewayDatabase:
    """The gateway's access to PostgreSQL: retries until connected, then keeps the connections.

    No event is stored before the handlers' routes are registered, because it would get no deliveries.

    Args:
        settings: the settings.
        prepared: set when schemas are current and routes are registered.
    """

    def __init__(self, settings: Settings, prepared: asyncio.Event) -> None:
        self._settings = settings
        self._prepared = prepared
        self._tasks = BackgroundTasks()
        self.checks: list[CheckDatabase] = []
        """What the parts of packages check before anything is stored."""
        self.database: Database | None = None
        self.problem = NOT_REACHED
        """Why there is no database yet."""
        self.events = EventStore(dedup_days=settings.retention.dedup_days)
        self.connected = asyncio.Event()

    def require_database(self) -> Database:
        """Return the database. Raises DatabaseUnavailable while there is no connection."""
        if self.database is None:
            raise DatabaseUnavailable(NOT_REACHED)
        return self.database

    async def notify_due(self, due: Collection[DueRecipient]) -> None:
        """Notify workers and senders of due deliveries."""
        await notify_due(self.require_database(), due)

    async def store_rejections(self, batch: Sequence[rejections.NewRejection]) -> None:
        """Store rejections."""
        await rejections.insert(self.require_database(), batch)

    async def find_replies(self, event_ids: Sequence[UUID]) -> list[replies.ReplyStatus]:
        """Return the handlers' replies to these events."""
        return await replies.find(self.require_database(), event_ids)

    def is_available(self) -> bool:
        """Return whether PostgreSQL answered the latest check."""
        return self.database is not None and not self.database.monitor.is_unavailable

    async def lease_tokens(self, requests: Sequence[LeaseRequest]) -> Mapping[str, object]:
        """Lease tokens of sources' rates from PostgreSQL; see `LeaseTokens`."""
        return await rate_leases.lease_tokens(self.require_database(), requests, within_s=_LEASE_TIMEOUT_S)

    async def count_gateways(self) -> int:
        """Return the number of gateways, this one included."""
        within_s = self._settings.database.statement_timeout_s
        return await rate_leases.count_gateways(self.require_database(), within_s=within_s)

    async def read_secrets(self, live: LiveSettings) -> tuple[source_secrets.SourceSecret, ...]:
        """Read the stored sources into *live*, then the secrets that operators have added to sources.

        In this order, because a source is stored together with its secrets: no source is seen without them.
        """
        database, within_s = self.require_database(), self._settings.database.statement_timeout_s
        async with database.acquire(within_s=within_s) as connection:
            with translate_errors():
                await live.refresh(connection)
        return await source_secrets.list_all(database, within_s=within_s)

    async def read_router(self) -> Router:
        """Read and compile the routes, within the time that an event may wait."""
        return await read_router(self.require_database(), within_s=self._settings.spool.fallback_after_s)

    async def __aenter__(self) -> Self:
        """Begin to connect, and wait for the connection for as long as an event would."""
        connecting = self._tasks.start(self._keep_connecting(), "database:connect")
        await asyncio.wait([connecting], timeout=self._settings.spool.fallback_after_s)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._tasks.__aexit__()
        if self.database is not None:
            await self.database.close()

    async def _keep_connecting(self) -> None:
        """Connect once the supervisor has prepared the database, retrying until it succeeds."""
        finding = asyncio.create_task(self._find_problem())
        try:
            await self._prepared.wait()
        finally:
            finding.cancel()
        is_logged = False
        while not self.connected.is_set():
            try:
                await self._connect()
            except DatabaseError as error:
                self.problem = str(error)
                if not is_logged:
                    _LOG.warning("database_unavailable", error=str(error), note="trying again until it is back")
                    is_logged = True
                await asyncio.sleep(_RETRY_S)
            except Exception as error:  # noqa: BLE001 - spooled events must reach the database after any error
                _LOG.error("database_not_connected", exc_info=error)
                await asyncio.sleep(_RETRY_S)

    async def _find_problem(self) -> None:
        """Find out why the supervisor has not prepared the database yet, for the health endpoints."""
        while True:
            try:
                await check_usable(self._settings.database_url())
            except DatabaseError as error:
                self.problem = str(error)
            await asyncio.sleep(_PROBLEM_INTERVAL_S)

    async def _connect(self) -> None:
        settings = self._settings
        database = await Database.open(
            settings.database_url(),
            purpose=rate_leases.GATEWAY,
            # In addition to the committers, one each for: spool, rejections, notifications, health checks, replies,
            # secrets, leases of rates; with a package's buffer also for its drain and for what that notes.
            size=settings.database.ingest_connections + 7 + 2 * settings.has_package_buffer,
            connect_timeout_s=settings.database.connect_timeout_s,
            statement_timeout_s=settings.database.statement_timeout_s,
            is_reset=False,
            allow_unsafe=settings.database.allow_unsafe,
        )
        try:
            await check_safety(database, allow_unsafe=settings.database.allow_unsafe)
            if missing := await list_pending(database):
                raise DatabaseUnavailable(f"the schema lacks {', '.join(missing)}")
            for check in self.checks:
                await check(database)
        except BaseException:
            await database.close()
            raise
        self.database = database
        self.events.connect(database)
        self.connected.set()
