"""The application context of the service functions, and the unit of work: one transaction of one organization."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar
from uuid import UUID

import msgspec

from boathook.config import Settings
from boathook.db import applications
from boathook.db.applications import Application
from boathook.db.database import Connection as Connection  # noqa: PLC0414 - re-exported
from boathook.db.database import Database, replicate_reads, translate_errors
from boathook.db.due_notifier import NotifyDue
from boathook.db.live_settings import LiveSettings
from boathook.db.queries import listings
from boathook.db.secret_box import SecretBox, open_secret_box
from boathook.domain import ids
from boathook.domain.due import ANY_DUE
from boathook.domain.errors import AlreadyExists, NotFound, ServedElsewhere
from boathook.domain.model import DEFAULT_ORGANIZATION
from boathook.handlers.collector import collecting_due
from boathook.handlers.outbox import Outbox
from boathook.service.caller import UNKNOWN_CALLER, Caller
from boathook.service.database import ProgressCallback, open_database
from boathook.service.elsewhere import Elsewhere, elsewhere_of

Row = TypeVar("Row")

_COMMIT_TIMEOUT_S: Final = 3.0
"""How long a commit may wait for a synchronous standby: as long as until no further ones are begun."""


@dataclass(slots=True)
class AppContext:
    """The dependencies of the service functions; one per process."""

    settings: Settings
    """The current settings, with the stored sources; replaced as a whole when one of these changes."""
    database: Database
    secret_box: SecretBox
    outbox: Outbox
    notify_due: NotifyDue = lambda _due=ANY_DUE, /: None
    """Called once messages are committed, so that they are sent immediately and not at the next poll."""
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process begins to stop: endless responses must end."""
    live_settings: LiveSettings = field(init=False, repr=False)
    """Replaces `settings`; run it to follow the stored sources, or call `refresh_settings`."""
    _elsewhere: tuple[Mapping[str, object], Elsewhere | None] | None = field(init=False, repr=False, default=None)
    """The sections of packages for which it was opened, and what knows the other installations."""

    def __post_init__(self) -> None:
        self.live_settings = LiveSettings(self.settings, self.secret_box)
        self.live_settings.subscribe(self._replace_settings)

    @property
    def elsewhere(self) -> Elsewhere | None:
        """Knows what other installations serve; None if there are none."""
        if self._elsewhere is None or self._elsewhere[0] is not self.settings.tables:
            self._elsewhere = self.settings.tables, elsewhere_of(self.settings)
        return self._elsewhere[1]

    def _replace_settings(self, settings: Settings) -> None:
        self.settings = settings

    async def refresh_settings(self, database: Connection | None = None) -> Settings:
        """Return the settings with the current stored sources.

        Args:
            database: the connection to read with; None takes one of its own.

        Raises:
            DatabaseError: PostgreSQL is unavailable.
        """
        await self.live_settings.refresh(database or self.database)
        return self.settings

    @contextlib.contextmanager
    def announcing(self) -> Iterator[None]:
        """Notify of what the block has published and committed, so that it is not found by the next poll only."""
        with collecting_due() as collector:
            yield
        if due := collector.take():
            self.notify_due(due)

    @contextlib.asynccontextmanager
    async def work(
        self, organization: str = DEFAULT_ORGANIZATION, actor: str = "unknown", caller: Caller = UNKNOWN_CALLER
    ) -> AsyncIterator["UnitOfWork"]:
        """Open a transaction of *organization*; it commits at the end and rolls back on an error.

        Args:
            organization: whose objects the transaction is about.
            actor: the actor for the audit.
            caller: who may run operations of the catalogue in it; by default no one may.
        """
        async with self.database.transaction(commit_within_s=_COMMIT_TIMEOUT_S) as connection:
            yield UnitOfWork(self, connection, organization, actor, caller)

    @contextlib.asynccontextmanager
    async def reading(self, within_s: float | None = None) -> AsyncIterator[Connection]:
        """Open a connection for reads, for *within_s* seconds at most. Raises DatabaseError."""
        async with self.database.acquire(within_s=within_s) as connection:
            with translate_errors():
                yield connection

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[Connection]:
        """Open a transaction that commits at the end and rolls back on an error.

        Raises:
            DatabaseUnavailable: PostgreSQL is unavailable, or might lose committed data.
        """
        self.database.require_safety()
        async with self.database.transaction(commit_within_s=_COMMIT_TIMEOUT_S) as connection:
            yield connection

    async def replicate_reads(self) -> None:
        """Wait until a synchronous standby has everything that was read so far."""
        async with self.database.transaction(commit_within_s=_COMMIT_TIMEOUT_S) as connection:
            await replicate_reads(connection)


class UnitOfWork(msgspec.Struct, frozen=True):
    """One transaction of one organization; everything done through it is limited to that organization."""

    app_context: AppContext
    connection: Connection
    organization: str
    actor: str
    """The actor for the audit, such as ``cli:anna`` or ``api:key_…``."""
    caller: Caller = UNKNOWN_CALLER
    """Who may run operations of the catalogue, and on whose rows; by default no one may."""

    @contextlib.asynccontextmanager
    async def snapshot(self) -> AsyncIterator[None]:
        """Let statements read the same state of the database, where this is only a connection and no transaction."""
        async with self.connection.transaction(isolation="repeatable_read", readonly=True):
            yield

    async def find_or_create(
        self, find: Callable[[], Awaitable[Row | None]], create: Callable[[], Awaitable[Row]]
    ) -> tuple[Row, bool]:
        """Return what *find* returns or, if that is None, what *create* returns; and whether it was created.

        If several requests find nothing at the same time, the first one creates it and the others find it then. An
        AlreadyExists of *create* must leave the transaction usable.

        Raises:
            AlreadyExists: *create* raised it, and *find* still finds nothing.
        """
        if (existing := await find()) is not None:
            return existing, False
        try:
            return await create(), True
        except AlreadyExists:
            if (existing := await find()) is None:
                raise
            return existing, False

    async def replicate_reads(self) -> None:
        """Make the commit wait for a synchronous standby, even if this transaction has only read."""
        await replicate_reads(self.connection)


@contextlib.asynccontextmanager
async def open_app_context(
    settings: Settings, *, purpose: str, progress: ProgressCallback | None = None
) -> AsyncIterator[AppContext]:
    """Yield the application context, with its own connections and the stored sources.

    Raises:
        ConfigError: as `open_database`, or the encryption key of secrets is not available.
    """
    async with open_database(settings, purpose=purpose, progress=progress) as database:
        app_context = AppContext(settings, database, open_secret_box(settings), Outbox.of(settings.retention))
        await app_context.refresh_settings()
        yield app_context


class _IdGenerator:
    """Generates ids that increase even within a millisecond, so that lists keep the creation order."""

    def __init__(self) -> None:
        self._ms = 0
        self._entropy = 0

    def make(self) -> UUID:
        ms = time.time_ns() // 1_000_000
        self._entropy = secrets.randbits(73) if ms > self._ms else self._entropy + 1 + secrets.randbits(32)
        self._ms = max(ms, self._ms)
        return ids.make(self._ms, self._entropy)


new_id: Final = _IdGenerator().make
"""Return a new id for the current time."""


async def check_owner(work: UnitOfWork, name: str, application: str | None) -> None:
    """Check that the organization owns an object of an application, or an inbound one if None. Raises NotFound."""
    if await listings.find_owner(work.connection, application) != work.organization:
        raise NotFound(f"{name} belongs to another organization")


async def require_here(work: UnitOfWork, application: Application) -> None:
    """Check that an application may be changed here; a move that begins now waits for this transaction.

    Raises:
        ServedElsewhere: it has moved to another installation.
    """
    if work.app_context.elsewhere is None or application.is_operational:
        return
    home = await applications.lock_home(work.connection, application.id)
    if home is not None:
        raise ServedElsewhere(application.shown_id, home)
