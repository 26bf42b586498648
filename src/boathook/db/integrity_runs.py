"""Stores the consistency checks that operators request: one runs at a time, in a keeper, and the last ones are kept.

They are rows of `task`, but do not run in steps: a check only reads, so if the process that runs it dies, the next one
restarts it from the beginning.
"""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any, Final
from uuid import UUID

import msgspec

from boathook.db.database import Connection, Database, Record
from boathook.db.statements import load
from boathook.domain import ids

SQL = load(__file__)
KIND: Final = "store.verify"
STORE: Final = "(store)"
"""The value of the organization column: the check covers all organizations."""
MAX_RUNS: Final = 30
"""Runs that are kept."""


class IntegrityRun(msgspec.Struct, frozen=True, kw_only=True):
    """One consistency check."""

    id: UUID
    state: str
    """``running``, ``finished`` or ``failed``."""
    request: Mapping[str, Any]
    data: Mapping[str, Any]
    """While it runs, its progress; then its result, or why it failed."""
    is_begun: bool
    created_at: datetime
    updated_at: datetime

    @property
    def shown_id(self) -> str:
        """The public id."""
        return ids.show(ids.TASK, self.id)


async def start(connection: Connection, id: UUID, request: Mapping[str, Any]) -> IntegrityRun | None:
    """Request a check; return None if one is running."""
    await connection.execute(SQL["lock_runs"])
    row = await connection.fetchrow(SQL["begin_run"], id, STORE, KIND, _dump(request))
    if row is not None:
        await connection.execute(SQL["forget_runs"], STORE, KIND, MAX_RUNS - 1)
    return None if row is None else _run(row)


async def list_recent(connection: Connection) -> list[IntegrityRun]:
    """Return the stored runs, newest first."""
    return [_run(row) for row in await connection.fetch(SQL["list_runs"], STORE, KIND, MAX_RUNS)]


async def find(connection: Connection, id: UUID) -> IntegrityRun | None:
    """Return one run."""
    row = await connection.fetchrow(SQL["find_run"], STORE, KIND, id)
    return None if row is None else _run(row)


async def stop(connection: Connection, id: UUID, error: str) -> bool:
    """Stop a run; return whether it was running."""
    return await connection.fetchval(SQL["stop_run"], id, error) is not None


async def claim(database: Database, by: str, silent_for: timedelta) -> IntegrityRun | None:
    """Claim a run that is not started, or whose process sent no heartbeat for *silent_for*; None if there is none."""
    row = await database.fetchrow(SQL["claim_run"], KIND, by, silent_for)
    return None if row is None else _run(row)


async def save_progress(database: Database, run: IntegrityRun, by: str, data: Mapping[str, Any]) -> bool:
    """Store the progress of a run; return whether this process still holds it and it is running."""
    return await database.fetchval(SQL["note_progress"], run.id, by, _dump(data)) is not None


async def end(database: Database, run: IntegrityRun, by: str, state: str, data: Mapping[str, Any]) -> bool:
    """Store the result of a run; return whether this process still held it and it was running."""
    return await database.fetchval(SQL["end_run"], run.id, by, state, _dump(data)) is not None


def _run(row: Record) -> IntegrityRun:
    return IntegrityRun(
        id=row["id"],
        state=row["state"],
        request=msgspec.json.decode(row["request"]),
        data=msgspec.json.decode(row["data"] or "{}"),
        is_begun=row["place"] is not None,
        created_at=row["created_at"],
        updated_at=row["updated_at"],
    )


def _dump(value: Mapping[str, Any]) -> str:
    return msgspec.json.encode(value).decode()
