"""Checks of the books that operators ask for: one at a time, made by a keeper, the last ones kept with their results.

They are rows of `task`, but no tasks that are done in pieces: a check only reads, so one whose maker has died is made
anew from its beginning by the next.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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
"""Stands where tasks have their organization: the books are everybody's."""
MAX_RUNS: Final = 30
"""Runs that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegrityRun:
    """One check of the books."""

    id: UUID
    state: str
    """``running``, ``finished`` or ``failed``."""
    request: Mapping[str, Any]
    data: Mapping[str, Any]
    """While it runs: how far it has come; then what was found, or why it failed."""
    is_begun: bool
    created_at: datetime
    updated_at: datetime

    @property
    def shown_id(self) -> str:
        """The id as people see it."""
        return ids.show(ids.TASK, self.id)


async def start(connection: Connection, id: UUID, request: Mapping[str, Any]) -> IntegrityRun | None:
    """Store that the books are to be checked; None where a check is under way."""
    await connection.execute(SQL["lock_runs"])
    row = await connection.fetchrow(SQL["begin_run"], id, STORE, KIND, _dump(request))
    if row is not None:
        await connection.execute(SQL["forget_runs"], STORE, KIND, MAX_RUNS - 1)
    return None if row is None else _run(row)


async def list_recent(connection: Connection) -> list[IntegrityRun]:
    """Return the runs that are kept, the youngest first."""
    return [_run(row) for row in await connection.fetch(SQL["list_runs"], STORE, KIND, MAX_RUNS)]


async def find(connection: Connection, id: UUID) -> IntegrityRun | None:
    """Return one run."""
    row = await connection.fetchrow(SQL["find_run"], STORE, KIND, id)
    return None if row is None else _run(row)


async def stop(connection: Connection, id: UUID, error: str) -> bool:
    """End a run; return whether it was under way."""
    return await connection.fetchval(SQL["stop_run"], id, error) is not None


async def claim(database: Database, by: str, silent_for: timedelta) -> IntegrityRun | None:
    """Take on the run that nobody makes, or whose maker was not heard of for a while; None where there is none."""
    row = await database.fetchrow(SQL["claim_run"], KIND, by, silent_for)
    return None if row is None else _run(row)


async def save_progress(database: Database, run: IntegrityRun, by: str, data: Mapping[str, Any]) -> bool:
    """Say how far a run has come; return whether it is still this maker's and under way."""
    return await database.fetchval(SQL["note_progress"], run.id, by, _dump(data)) is not None


async def end(database: Database, run: IntegrityRun, by: str, state: str, data: Mapping[str, Any]) -> bool:
    """End a run with what was found; return whether it was still this maker's and under way."""
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
