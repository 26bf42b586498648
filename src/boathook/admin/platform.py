"""What one process lends its apps: connections, operators' actions, a guarded HTTP client, live messages, its state.

Nothing is connected before it is first needed, so an app that never asks costs nothing, wherever it is loaded.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar

from boathook.admin.app_desk import AppDesk
from boathook.config import Settings
from boathook.domain.errors import ConfigError, JournalError
from boathook.handlers.outbox import Outbox, memory_days
from boathook.handlers.platform import Http
from boathook.handlers.sessions import call
from boathook.handlers.transaction import Transaction
from boathook.inbound.condition import journal_problems
from boathook.journal import moves
from boathook.journal.announcer import Announcer
from boathook.journal.broadcasts import Ear, tell
from boathook.journal.database import Database
from boathook.journal.migrations import pending
from boathook.journal.vault import Vault, open_vault
from boathook.outbound.client import Client
from boathook.telemetry.exporters import History

T = TypeVar("T")

_TRANSACTIONS: Final = 6
"""Most transactions of all apps of a process at once; further ones wait."""
_ERRANDS: Final = 3
"""Connections besides, for what is not done in a transaction of the app: were they the same, blocks that hold all of
them and look something up would wait for each other."""

ServerUrl = Callable[[], AbstractAsyncContextManager[str]]
"""Lends the URL of PostgreSQL, an embedded one running at least as long."""


class Once(Generic[T]):
    """Something that is opened by whoever needs it first, while all others wait for it."""

    def __init__(self, open: Callable[[], Coroutine[Any, Any, T]]) -> None:
        self._open = open
        self._opening: asyncio.Task[T] | None = None

    async def get(self) -> T:
        """Return it; where opening it fails, that is tried again the next time."""
        task = self._opening
        if task is None or (task.done() and (task.cancelled() or task.exception() is not None)):
            task = self._opening = asyncio.create_task(self._open())
        return await asyncio.shield(task)

    async def close(self, how: Callable[[T], Awaitable[None]]) -> None:
        """Close it if it was opened; from then on it can be opened again."""
        task, self._opening = self._opening, None
        if task is None:
            return
        with contextlib.suppress(JournalError, ConfigError):
            await how(await task)


class Premises:
    """What all apps of one process share."""

    def __init__(self, settings: Settings, server_url: ServerUrl, history: History) -> None:
        self.settings = settings
        self.history = history
        self.outbox = Outbox(memory_days=memory_days(settings.retention))
        self._server_url = server_url
        self._stack = contextlib.AsyncExitStack()
        self._vault: Vault | None = None
        self._ear: Ear | None = None
        self._announcer = Announcer(self._announce_due)
        self._announcing: asyncio.Task[None] | None = None
        self._http: Client | None = None
        self._url = Once(self._find_server)
        self._transactions = Once(lambda: self._connect("apps", _TRANSACTIONS))
        self._errands = Once(lambda: self._connect("apps-desk", _ERRANDS))

    async def transactions(self) -> Database:
        """Return the connections for the apps' own transactions. Raises JournalUnavailable, ConfigError."""
        return await self._transactions.get()

    async def errands(self) -> Database:
        """Return the connections for everything else. Raises JournalUnavailable, ConfigError."""
        return await self._errands.get()

    def vault(self) -> Vault:
        """Return what seals and opens endpoints' secrets. Raises ConfigError."""
        if self._vault is None:
            self._vault = open_vault(self.settings)
        return self._vault

    def announce(self) -> None:
        """Tell the workers that something is due, soon, and what several transactions have committed at once."""
        if self._announcing is None:
            self._announcing = asyncio.create_task(self._announcer.run(), name="apps:announce")
        self._announcer.ring()

    async def _announce_due(self) -> None:
        await moves.announce_due(await self.errands())

    async def ear(self) -> Ear:
        """Return what hears live messages. Raises JournalUnavailable, ConfigError."""
        database = await self.errands()
        if self._ear is None:
            self._ear = Ear(database)
        return self._ear

    @property
    def http(self) -> Client:
        """The HTTP client, with threads of its own from its first use on. Raises ConfigError."""
        if self._http is None:
            outbound = self.settings.outbound
            proxy = self.settings.resolve(outbound.proxy, "outbound.proxy")
            self._http = Client(outbound.model_copy(update={"proxy": proxy}))
        return self._http

    async def close(self) -> None:
        """Close what was opened."""
        if self._announcing is not None:
            self._announcing.cancel()
            # What it had not told yet; a hint that is lost costs a poll interval, never a delivery.
            with contextlib.suppress(JournalError):
                await self._announce_due()
        if self._http is not None:
            self._http.close()
        self._http = self._ear = self._announcing = None
        for pool in (self._transactions, self._errands):
            await pool.close(Database.close)
        await self._url.close(self._leave_server)

    async def _find_server(self) -> str:
        return await self._stack.enter_async_context(self._server_url())

    async def _leave_server(self, _url: str) -> None:
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
    """What one app of a process may use; a `boathook.handlers.platform.Platform`."""

    def __init__(self, premises: Premises, name: str = "") -> None:
        self._premises = premises
        self.desk = AppDesk(premises, actor=f"app:{name}" if name else "app")

    def for_app(self, name: str) -> "AppPlatform":
        """Return the view of the app of this name, under which its actions stand in the audit."""
        return AppPlatform(self._premises, name)

    @contextlib.asynccontextmanager
    async def transaction(self) -> AsyncIterator[Transaction]:
        """Lend a transaction that commits at the end of the block and rolls back on an error.

        Raises:
            JournalError: PostgreSQL cannot be reached, or a statement or the commit failed.
        """
        database = await self._premises.transactions()
        async with database.lend() as connection:
            transaction = Transaction(connection)
            try:
                yield transaction
            finally:
                transaction._close()  # noqa: SLF001 the one who opened it ends it
        if transaction.has_published:
            self._premises.announce()

    async def broadcast(self, tx: Transaction, channel: str, message: Any) -> None:
        """Tell *message* to all who `hear` *channel*, in any process, when *tx* commits. Raises InvalidMessage."""
        await call(tx, *tell(channel, message))

    def hear(self, channel: str) -> AsyncIterator[Any]:
        """Yield what is broadcast on *channel* from now on; a reader that is too slow misses the oldest.

        Raises:
            JournalUnavailable: PostgreSQL cannot be reached at the first message.
            InvalidMessage: the channel's name is none, at the first message.
        """
        return _Heard(self._premises, channel)

    async def vitals(self) -> dict[str, Any]:
        """Return what ``/metrics.json`` shows of all processes of this host, and ``problems`` as ``/readyz`` does.

        Rates over the last minute are known to gateways and the keeper, which sample; elsewhere they are 0.
        """
        return {**self._premises.history.to_json(), "problems": await self._problems()}

    async def _problems(self) -> list[str]:
        try:
            return await journal_problems(await self._premises.errands())
        except (JournalError, ConfigError) as error:
            return [f"the journal does not answer: {error}"]

    @property
    def http(self) -> Http:
        """The guarded HTTP client. Raises ConfigError."""
        return self._premises.http

    @property
    def data_dir(self) -> Path:
        """`server.data_dir`: this host's own folder."""
        return self._premises.settings.server.data_dir

    def resolve(self, reference: str, key: str) -> str:
        """Return the text behind ``env:NAME`` or ``file:PATH``. Raises ConfigError, which names *key*."""
        return self._premises.settings.resolve(reference, key)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of a command to its end, and close what it opened.

        Raises:
            ConfigError: there is no database yet, or an error shows that its schema is not current.
        """
        return asyncio.run(self._run(work))

    async def _run(self, work: Coroutine[Any, Any, T]) -> T:
        try:
            return await work
        except JournalError as error:
            await self._explain(error)
            raise
        finally:
            await self.close()

    async def _explain(self, error: JournalError) -> None:
        """Name lacking migrations as the cause of an error, where there are any."""
        with contextlib.suppress(JournalError):
            if lacking := await pending(await self._premises.errands()):
                raise ConfigError(f"the database lacks {', '.join(lacking)}: run `boathook migrate` first") from error

    async def close(self) -> None:
        """Close what this process's apps have opened; asked again, they open it again."""
        await self._premises.close()


class _Heard:
    """What one reader hears; it begins to listen when it is made, not when it is first read."""

    def __init__(self, premises: Premises, channel: str) -> None:
        self._opening = asyncio.create_task(self._open(premises, channel))

    @staticmethod
    async def _open(premises: Premises, channel: str) -> AsyncIterator[Any]:
        return (await premises.ear()).hear(channel)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        return await anext(await asyncio.shield(self._opening))


def open_platform(
    settings: Settings, *, server_url: ServerUrl | None = None, history: History | None = None
) -> AppPlatform:
    """Return what *settings* offer the apps of this process; nothing is connected yet.

    Args:
        settings: of the process.
        server_url: lends the URL of PostgreSQL where `database.url` alone does not tell it, as on the command line,
            which may have to start an embedded server.
        history: what this process has counted and, where it samples, seen lately.
    """

    @contextlib.asynccontextmanager
    async def configured() -> AsyncIterator[str]:
        url = settings.database_url()
        if not url:
            raise ConfigError("database.url: there is no PostgreSQL for apps here; start them by `boathook serve`")
        yield url

    return AppPlatform(Premises(settings, server_url or configured, history or History(settings.server.data_dir)))
