"""Periodic jobs: retry dead letters, report late bookings, set gauges, log refusals, delete old rows."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from boathook_fleet import alerts, dead_letters, fetching, owner_events, status
from boathook_fleet.app import gettext, hook
from boathook_fleet.handlers import announce
from boathook_fleet.log import Kind, Phase, add_error
from boathook_fleet.settings import SOURCES

LOOK_S: Final = 5.0
TIDY_S: Final = 3_600.0


class Refusals:
    """Computes the increase of the number of rejected requests."""

    def __init__(self) -> None:
        self._before: Mapping[tuple[str, str], int] | None = None

    def count_new(self, figures: status.Figures) -> Mapping[tuple[str, str], int]:
        """Return how many requests were rejected since the last call, by source and reason; none at the first call."""
        present = Counter(
            {
                (series["labels"]["source"], series["labels"]["reason"]): int(series["value"])
                for series in figures.series("boathook_rejections_total")
                if series["labels"]["source"] in SOURCES
            }
        )
        # A counter that decreased was reset, so its value is the increase.
        before, self._before = self._before, present
        if before is None:
            return {}
        count_new = {key: n - before.get(key, 0) if n >= before.get(key, 0) else n for key, n in present.items()}
        return {key: n for key, n in count_new.items() if n}


_REFUSALS: Final = Refusals()


@hook.every(LOOK_S)
async def retry_dead_letters() -> None:
    """Replay dead letters, and report those that no replay helps."""
    async with hook.transaction() as tx:
        for id in await dead_letters.process_dead_letters(hook):
            text = gettext("Dead letter %(id)s is left to operators: replays did not help", id=id)
            await alerts.given_up.fire(tx, text=text)


@hook.every(LOOK_S)
async def apply_overdue() -> None:
    """Have updates applied that have waited too long for their whole object."""
    async with hook.transaction() as tx:
        for entity, id in await fetching.end_waits(tx):
            await announce(hook, tx, entity, id)


@hook.every(LOOK_S)
async def report_late() -> None:
    """Publish which bookings are late."""
    async with hook.transaction() as tx:
        await owner_events.publish_late(hook, tx)


@hook.every(TIDY_S)
async def declare_events() -> None:
    """Create the application and the types of the owner's events."""
    async with hook.transaction() as tx:
        await owner_events.declare_events(hook, tx)


@hook.every(LOOK_S)
async def log_refusals() -> None:
    """Write rejected requests to the error log."""
    figures = await status.read_figures(hook)
    async with hook.transaction() as tx:
        for (source, reason), number in _REFUSALS.count_new(figures).items():
            text, meta = f"refused at the source {source}", {"source": source}
            await add_error(tx, Phase.ACK, reason, text, kind=Kind.WARN, number=number, meta=meta)


@hook.every(LOOK_S)
async def set_gauges() -> None:
    """Set the gauges of the app."""
    figures = await status.read_figures(hook)
    async with hook.transaction() as tx:
        await status.set_gauges(tx, figures)


@hook.every(TIDY_S)
async def delete_old_rows() -> None:
    """Apply the retention."""
    async with hook.transaction() as tx:
        await status.clean_up(tx, keep_days=hook.settings.keep_days, max_errors=hook.settings.max_errors)
