"""What the first page shows besides live numbers: what happened last, what fires, and the samples behind the charts."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from boathook.db.alerts import Alert
from boathook.db.metric_samples import Sample as Sample  # noqa: PLC0414 - what these functions return
from boathook.db.metric_samples import read_since
from boathook.db.queries.latest import LatestDeadLetter, LatestEvent, read_latest_dead_letters, read_latest_events
from boathook.service.alerts import list_firing
from boathook.service.unit_of_work import AppContext


@dataclass(frozen=True, slots=True)
class LatestActivity:
    """What happened last, the latest first."""

    events: Sequence[LatestEvent] = ()
    dead_letters: Sequence[LatestDeadLetter] = ()
    firing: Sequence[Alert] = ()
    """All alarms that fire."""


async def read_latest(app_context: AppContext, limit: int) -> LatestActivity:
    """Return the last *limit* events and dead letters, and the alarms that fire. Raises DatabaseError."""
    database = app_context.database
    events = await read_latest_events(database, limit)
    dead_letters = await read_latest_dead_letters(database, limit)
    async with app_context.reading() as connection:
        return LatestActivity(events, dead_letters, await list_firing(connection))


async def read_samples(app_context: AppContext, since: datetime, step_s: int) -> Sequence[Sample]:
    """Return what all hosts have counted in each step of *step_s* seconds since a moment, oldest first."""
    return await read_since(app_context.database, since, step_s)
