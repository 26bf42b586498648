"""Stores how far each series of batches from the brokers has arrived, so that a missing one is noticed."""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from boathook.db.database import Database, translate_errors
from boathook.db.statements import load
from boathook.domain.model import BufferMark

SQL = load(__file__)


class Gap(msgspec.Struct, frozen=True):
    """Events of a series that brokers had confirmed, and that never arrived."""

    lost: int
    """Their number; 0 if nothing is missing."""
    after: datetime | None
    """When the last event before them was accepted; None if there is none."""


class LostEvents(msgspec.Struct, frozen=True):
    """Events lost from brokers, over all series."""

    lost: int
    noticed_at: datetime | None
    """When the last loss was noticed, or its series advanced last; None if nothing was lost."""


async def advance(database: Database, series: int, first: int, last: int, last_event_at: datetime | None) -> Gap:
    """Note that the events of a batch are in PostgreSQL; return what is missing before it.

    Args:
        database: where.
        series: the batch's series.
        first: sequence of its first event.
        last: sequence of its last event; *first* - 1 for a checkpoint.
        last_event_at: when its last event was accepted; None if that is unknown.

    Raises:
        DatabaseError: it is not noted.
    """
    async with database.acquire() as connection:
        with translate_errors():
            row = await connection.fetchrow(SQL["advance_mark"], series, first, last, last_event_at)
    assert row is not None
    return Gap(row["lost"], row["after"])


async def read(database: Database, series: Sequence[int], *, within_s: float | None = None) -> dict[int, BufferMark]:
    """Return how far each series has arrived; those of which nothing has are left out.

    Raises:
        DatabaseUnavailable: PostgreSQL is unavailable, or did not respond within *within_s* seconds.
    """
    if not series:
        return {}
    async with database.acquire(within_s=within_s) as connection:
        with translate_errors():
            rows = await connection.fetch(SQL["read_marks"], series)
    return {row["series"]: BufferMark(row["sequence"], row["lost"]) for row in rows}


async def count_lost(database: Database) -> LostEvents:
    """Return how many events of all series are known to be lost. Raises DatabaseError."""
    async with database.acquire() as connection:
        with translate_errors():
            row = await connection.fetchrow(SQL["sum_lost"])
    assert row is not None
    return LostEvents(row["lost"], row["noticed_at"])
