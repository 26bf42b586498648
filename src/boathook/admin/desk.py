"""What actions of operators and API users stand on: the parts they need, and one transaction of one organization."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from boathook.config import Settings
from boathook.domain import ids
from boathook.domain.model import DEFAULT_ORGANIZATION
from boathook.handlers.outbox import Outbox
from boathook.journal.database import Connection, Database
from boathook.journal.vault import Vault


@dataclass(frozen=True, slots=True)
class Desk:
    """The parts that actions need; one for a process."""

    settings: Settings
    database: Database
    vault: Vault
    outbox: Outbox
    rouse: Callable[[], None] = lambda: None
    """Called once messages are committed, so that they are sent at once and not at the next poll."""
    closing: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when the process begins to stop: answers that have no end are to find one."""

    @contextlib.asynccontextmanager
    async def work(self, organization: str = DEFAULT_ORGANIZATION, actor: str = "unknown") -> AsyncIterator["Work"]:
        """Lend one transaction of *organization*; it commits at the end and rolls back on an error."""
        async with self.database.transaction() as connection:
            yield Work(self, connection, organization, actor)


@dataclass(frozen=True, slots=True)
class Work:
    """One transaction of one organization: whatever is done through it is seen and done there only."""

    desk: Desk
    connection: Connection
    organization: str
    actor: str
    """Who acts, for the audit, such as ``cli:anna`` or ``api:key_…``."""


class _Ids:
    """Makes ids that rise even within a millisecond, so that a list keeps the order of making."""

    def __init__(self) -> None:
        self._ms = 0
        self._entropy = 0

    def make(self) -> UUID:
        ms = time.time_ns() // 1_000_000
        self._entropy = secrets.randbits(73) if ms > self._ms else self._entropy + 1 + secrets.randbits(32)
        self._ms = max(ms, self._ms)
        return ids.make(self._ms, self._entropy)


new_id: Final = _Ids().make
"""Makes the id of whatever is made now."""
