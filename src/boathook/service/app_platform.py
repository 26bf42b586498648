"""The platform of a process's apps: connections, operations, HTTP client, live messages and state.

Every connection is opened on first use, so an app that uses none costs nothing.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar

from boathook.config import Settings
from boathook.config.packages import find_part
from boathook.db.database import Database
from boathook.db.due_notifier import DueNotifier, notify_due
from boathook.db.health import database_problems
from boathook.db.migrations import list_pending
from boathook.db.pubsub import Subscriber, notify_call
from boathook.db.secret_box import SecretBox, open_secret_box
from boathook.domain.due import ANY_DUE, DueRecipient
from boathook.domain.errors import ConfigError, DatabaseError
from boathook.handlers.metric_history import MetricPoint
from boathook.handlers.outbox import Outbox
from boathook.handlers.platform import Http, Operations
from boathook.handlers.sessions import call
from boathook.handlers.transaction import Transaction
from boathook.http_client.client import Client
from boathook.observability.exposition import to_json
from boathook.observability.live_metrics import LiveMetrics
from boathook.service.operating.app_metrics import read_history

T = TypeVar("T")

_MAX_TRANSACTIONS: Final = 6
"""Maximum concurrent transactions of all apps of a process; further ones wait."""
_MAX_OPERATIONS: Final = 3
"""Separate connections for operations outside the app's transaction. If they shared a pool, blocks that hold all of its
connections and then look something up would deadlock.
"""

ServerUrlFactory = Callable[[], AbstractAsyncContextManager[str]]
"""Yields the URL of PostgreSQL; an embedded server runs at least as long as the context."""


class LazyResource(Generic[T]):
    """A resource that is opened on first use, while concurrent callers wait for it."""

    def __init__(self, open: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._open = open
        self._opening: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return the resource; if opening fails, the next call tries again."""
        task = self._opening
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._opening = asyncio.create_task(self._open())
        return await asyncio.shield(task)

    async def close(self, close_resource: Callable[[T], Awaitable[None]]) -> None:
        """Close the resource if it was opened; it can be opened again afterwards."""
        task, self._opening = self._opening, None
        if task is None:
            return
        with contextlib.suppress(DatabaseError, ConfigError):
            await close_resource(await task)


class AppResources:
    """Resources shared by all apps of one process."""

    def __init__(self, settings: Settings, server_url: ServerUrlFactory, live_metrics: LiveMetrics) -> None:
        self.settings = settings
        self.live_metrics = live_metrics
        self.outbox = Outbox.of(settings.retention)
        self._server_url = server_url
        self._stack = contextlib.AsyncExitStack()
        self._secret_box: SecretBox | None = None
        self._subscriber: Subscriber | None = None
        self._due_notifier = DueNotifier(self._notify_due)
        self._notify_task: asyncio.Task[None] | None = None
        self._http: Client | None = None
        self._url = LazyResource(self._find_server)
        self._transaction_pool = LazyResource(lambda: self._connect("apps", _MAX_TRANSACTIONS))
        self._operations_pool = LazyResource(lambda: self._connect("apps-operations", _MAX_OPERATIONS))

    async def transaction_database(self) -> Database:
        """Return the database for the apps' own transactions. Raises DatabaseUnavailable, ConfigError."""
        return await self._transaction_pool.get()

    async def operations_database(self) -> Database:
        """Return the database for everything else. Raises DatabaseUnavailable, ConfigError."""
        return await self._operations_pool.get()

    def secret_box(self) -> SecretBox:
        """Return the box that encrypts and decrypts endpoints' secrets. Raises ConfigError."""
        if self._secret_box is None:
            self._secret_box = open_secret_box(self.settings)
        return self._secret_box

    def notify_due(self, due: Collection[DueRecipient]) -> None:
        """Notify senders and workers of due deliveries soon; notifications of several transactions are merged."""
        if self._notify_task is None:
            self._notify_task = asyncio.create_task(self._due_notifier.run(), name="apps:announce")
        self._due_notifier.notify(due)

    async def _notify_due(self, due: Collection[DueRecipient]) -> None:
        await notify_due(await self.operations_database(), due)

    async def subscriber(self) -> Subscriber:
        """Return the subscriber for live messages. Raises DatabaseUnavailable, ConfigError."""
        database = await self.operations_database()
        if self._subscriber is None:
            self._subscriber = Subscriber(database)
        return self._subscriber

    @property
    def http(self) -> Client:
        """The HTTP client, which starts its threads on first use. Raises ConfigError."""
        if self._http is None:
            outbound = self.settings.outbound
            proxy = self.settings.resolve(outbound.proxy, "outbound.proxy")
            self._http = Client(outbound.model_copy(update={"proxy": proxy}))
        return self._http

    async def stop(self) -> None:
        """Close everything that was opened."""
        if self._notify_task is not None:
            self._notify_task.cancel()
            self._due_notifier.notify(ANY_DUE)  # a notification may just have been canceled
            await self._due_notifier.send()
        if self._http is not None:
            self._http.close()
        self._http = self._subscriber = self._notify_task = None
        for pool in (self._transaction_pool, self._operations_pool):
            await pool.close(Database.close)
        await self._url.close(self._release_server)

    async def _find_server(self) -> str:
        return await self._stack.enter_async_context(self._server_url())

    async def _release_server(self, _url: str) -> None:
        await self._stack.aclose()

    async def _connect(self, purpose: str, size: int) -> Database:
        return await Database.open(
            await self._url.get(),
            purpose=purpose,
            size=size,
            connect_timeout_s=self.settings.database.connect_timeout_s,
            statement_timeout_s=self.settings.database.statement_timeout_s,
            allow_unsafe=self.settings.database.allow_unsafe,
        )


class AppPlatform:
    """The services for one app of a process; implements `boathook.handlers.platform.Platform`."""

    def __init__(self, resources: AppResources, name: str = "") -> None:
        self._resources = resources
        part = find_part("operations")
        self._operations: Operations | None = (
            None if part is None else part(resources, actor=f"app:{name}" if name else "app")
        )

    @property
    def operations(self) -> Operations:
        """The actions of operators. Raises ConfigError if they are not installed."""
        if self._operations is None:
            raise ConfigError("hook.operations: this installation is without the package boathook_apps")
        return self._operations

    def for_app(self, name: str) -> "AppPlatform":
        """Return the platform for the app of this name, which appears as the actor in the audit."""
        return AppPlatform(self._resources, name)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Open a transaction that commits at the end of the block and rolls back on an error.

        Raises:
            DatabaseError: PostgreSQL cannot be reached, or a statement or the commit failed.
        """
        database = await self._resources.transaction_database()
        async with database.user_transaction() as connection:
            transaction = Transaction(connection, due=set())
            try:
                yield transaction
            finally:
                transaction._close()  # noqa: SLF001 closed where it was opened
        if transaction.due:
            self._resources.notify_due(transaction.due)

    async def publish_live(self, tx: Transaction, channel: str, message: Any) -> None:
        """Send *message* to all subscribers of *channel*, in any process, when *tx* commits. Raises InvalidMessage."""
        await call(tx, *notify_call(channel, message))

    def subscribe(self, channel: str) -> AsyncIterator[Any]:
        """Yield the live messages on *channel* from now on; a slow subscriber misses the oldest.

        Raises:
            DatabaseUnavailable: PostgreSQL cannot be reached; raised by the first read.
            InvalidMessage: the channel's name is invalid; raised by the first read.
        """
        return _LiveSubscription(self._resources, channel)

    async def metric_history(self, app: str, *, minutes: float, step_s: int) -> list[MetricPoint]:
        """Return the history of an app's metrics. Raises InvalidValue, DatabaseUnavailable."""
        return await read_history(await self._resources.operations_database(), app, minutes=minutes, step_s=step_s)

    async def health(self) -> dict[str, Any]:
        """Return the metrics of this host as in ``/metrics.json``, and ``problems`` as in ``/readyz``.

        Rates over the last minute are available in gateways and the keeper, which sample; elsewhere they are 0.
        """
        live = self._resources.live_metrics
        now = live.now()
        return {**to_json(now, live.recent(now)), "problems": await self._problems()}

    async def _problems(self) -> list[str]:
        try:
            return await database_problems(await self._resources.operations_database())
        except (DatabaseError, ConfigError) as error:
            return [f"PostgreSQL does not answer: {error}"]

    @property
    def http(self) -> Http:
        """The guarded HTTP client. Raises ConfigError."""
        return self._resources.http

    @property
    def data_dir(self) -> Path:
        """`server.data_dir`: this host's own folder."""
        return self._resources.settings.server.data_dir

    def resolve(self, reference: str, key: str) -> str:
        """Return the text behind ``env:NAME`` or ``file:PATH``. Raises ConfigError, which names *key*."""
        return self._resources.settings.resolve(reference, key)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a command's coroutine to its end, and close what it opened.

        Raises:
            ConfigError: there is no database yet, or an error shows that its schema is not current.
        """
        return asyncio.run(self._run(work))

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        except DatabaseError as error:
            await self._explain(error)
            raise
        finally:
            await self.stop()

    async def _explain(self, error: DatabaseError) -> None:
        """Raise ConfigError if missing migrations explain an error."""
        with contextlib.suppress(DatabaseError):
            if pending := await list_pending(await self._resources.operations_database()):
                raise ConfigError(
                    f"database migrations are missing: {', '.join(pending)}; run `boathook migrate`"
                ) from error

    async def stop(self) -> None:
        """Close what this process's apps have opened; further use opens it again."""
        await self._resources.stop()


class _LiveSubscription:
    """The messages for one reader; the subscription starts when it is created, not when it is first read."""

    def __init__(self, resources: AppResources, channel: str) -> None:
        self._opening = asyncio.create_task(self._open(resources, channel))

    @staticmethod
    async def _open(resources: AppResources, channel: str) -> AsyncIterator[Any]:
        return (await resources.subscriber()).subscribe(channel)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await anext(await asyncio.shield(self._opening))


def open_platform(
    settings: Settings, *, server_url: ServerUrlFactory | None = None, live_metrics: LiveMetrics | None = None
) -> AppPlatform:
    """Return the platform of this process for *settings*, without connecting.

    Args:
        settings: the settings of the process.
        server_url: provides the URL of PostgreSQL if `database.url` is not set. The command line uses it to start an
            embedded server.
        live_metrics: the metrics of this process and, if it samples, their recent history.
    """

    @contextlib.asynccontextmanager
    async def configured() -> AsyncIterator[str]:
        url = settings.database_url()
        if not url:
            raise ConfigError("database.url: there is no PostgreSQL for apps here; start them by `boathook serve`")
        yield url

    return AppPlatform(
        AppResources(settings, server_url or configured, live_metrics or LiveMetrics(settings.server.data_dir))
    )
