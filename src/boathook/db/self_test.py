"""Stores an event, checks that a copy is a duplicate, and rolls back: a test that leaves no trace."""

import contextlib
from collections.abc import AsyncIterator
from typing import cast
from uuid import UUID

from msgspec.structs import replace

from boathook.db.database import Connection, Database
from boathook.db.events import EventStore
from boathook.domain.model import Accepted, Duplicate, NewEvent


class _SingleConnection:
    """A database with a single connection, which is already in a transaction."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @contextlib.asynccontextmanager
    async def acquire(self, *, within_s: float | None = None) -> AsyncIterator[Connection]:  # noqa: ARG002 - no limit here
        yield self._connection

    def require_safety(self) -> None:
        """Accept any server, because everything stored here is rolled back."""


class _Rollback(Exception):
    pass


async def run_self_test(database: Database, event: NewEvent, copy_id: UUID) -> str | None:
    """Store *event* and a copy with id *copy_id*, then roll back; return what went wrong, or None.

    Raises:
        RoutesChanged: *event* was routed by outdated routes.
        DatabaseUnavailable: PostgreSQL is unavailable.
    """
    problem = None
    try:
        async with database.transaction() as connection:
            store = EventStore(cast("Database", _SingleConnection(connection)))
            [first] = await store.append([event])
            [second] = await store.append([replace(event, id=copy_id)])
            if not isinstance(first, Accepted):
                problem = "an event that was never seen was not accepted"
            elif second != Duplicate(event.id):
                problem = "the second copy of an event was not recognised"
            raise _Rollback
    except _Rollback:
        return problem
