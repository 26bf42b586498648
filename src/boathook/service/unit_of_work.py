"""The application context that actions need, and the unit of work: one transaction of one organization."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from boathook.config import Settings
from boathook.db.database import Connection as Connection  # noqa: PLC0414 - what the service lends
from boathook.db.database import Database, replicate_reads, translate_errors
from boathook.db.secret_box import SecretBox, open_secret_box
from boathook.domain import ids
from boathook.domain.model import DEFAULT_ORGANIZATION
from boathook.handlers.outbox import Outbox, message_dedup_days
from boathook.service.database import ProgressCallback, open_database


@dataclass(frozen=True, slots=True)
class AppContext:
    """The parts that actions need; one for a process."""

    settings: Settings
    database: Database
    secret_box: SecretBox
    outbox: Outbox
    notify_due: Callable[[], None] = lambda: None
    """Called once messages are committed, so that they are sent at once and not at the next poll."""
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process begins to stop: answers that have no end are to find one."""

    @contextlib.asynccontextmanager
    async def work(
        self, organization: str = DEFAULT_ORGANIZATION, actor: str = "unknown"
    ) -> AsyncIterator["UnitOfWork"]:
        """Lend one transaction of *organization*; it commits at the end and rolls back on an error."""
        async with self.database.transaction() as connection:
            yield UnitOfWork(self, connection, organization, actor)

    @contextlib.asynccontextmanager
    async def reading(self) -> AsyncIterator[Connection]:
        """Lend a connection for reads. Raises DatabaseError."""
        async with self.database.acquire() as connection:
            with translate_errors():
                yield connection

    @contextlib.asynccontextmanager
    async def writing(self) -> AsyncIterator[Connection]:
        """Lend a transaction that commits at the end and rolls back on an error.

        Raises:
            DatabaseUnavailable: PostgreSQL is away, or might lose what it commits.
        """
        self.database.require_safety()
        async with self.database.transaction() as connection:
            yield connection

    async def ping(self) -> None:
        """Raise DatabaseError where PostgreSQL does not answer."""
        await self.database.ping()

    async def replicate_reads(self) -> None:
        """Wait until a synchronous standby has everything that was read so far."""
        async with self.database.transaction() as connection:
            await replicate_reads(connection)


@dataclass(frozen=True, slots=True)
class UnitOfWork:
    """One transaction of one organization: whatever is done through it is seen and done there only."""

    app_context: AppContext
    connection: Connection
    organization: str
    actor: str
    """Who acts, for the audit, such as ``cli:anna`` or ``api:key_…``."""

    async def replicate_reads(self) -> None:
        """Let the commit wait for a synchronous standby, even where this transaction has only read."""
        await replicate_reads(self.connection)


@contextlib.asynccontextmanager
async def open_app_context(
    settings: Settings, *, purpose: str, progress: ProgressCallback | None = None
) -> AsyncIterator[AppContext]:
    """Yield the parts that actions need, on connections of their own.

    Raises:
        ConfigError: as `open_database`, or the key that secrets are encrypted with cannot be had.
    """
    async with open_database(settings, purpose=purpose, progress=progress) as database:
        yield AppContext(
            settings, database, open_secret_box(settings), Outbox(memory_days=message_dedup_days(settings.retention))
        )


class _IdGenerator:
    """Makes ids that rise even within a millisecond, so that a list keeps the order of making."""

    def __init__(self) -> None:
        self._ms = 0
        self._entropy = 0

    def make(self) -> UUID:
        ms = time.time_ns() // 1_000_000
        self._entropy = secrets.randbits(73) if ms > self._ms else self._entropy + 1 + secrets.randbits(32)
        self._ms = max(ms, self._ms)
        return ids.make(self._ms, self._entropy)


new_id: Final = _IdGenerator().make
"""Makes the id of whatever is made now."""
