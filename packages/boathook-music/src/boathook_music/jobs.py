"""Periodic jobs of the keeper: apply waiting callbacks, clean up, count."""

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Final

from boathook_music import delivery_log, files, lookup, tracks
from boathook_music.app import (
    callbacks_total,
    hook,
    incoming,
    open_files,
    overdue_tracks,
    settings,
    storage,
    waiting_callbacks,
)
from boathook_music.callbacks import Stage
from boathook_music.cleaning import Cleaner, Report, Rules, as_row, remove_leftovers
from boathook_music.handlers import FILE_RETRY, MAX_S

_OPEN: Final = ("wanted", "retrying", "failed", "missing")
_BEGIN: Final = """
    insert into music.cleaning (started_at)
    select now() where not exists (
        select from music.cleaning where started_at > now() - $1 * interval '1 second'
    ) returning started_at
"""
_END: Final = "update music.cleaning set ended_at = now(), report = $2::jsonb where started_at = $1"


@hook.every(2.0)
async def catch_up() -> None:
    """Apply callbacks that wait for tracks that were inserted by plain SQL."""
    async with hook.transaction() as tx:
        known = await tracks.with_waiting(tx)
    for task_id in known:
        async with hook.transaction() as tx:
            await tracks.catch_up(tx, task_id)


@hook.every(15.0)
async def ask() -> None:
    """Ask the reseller for songs whose callback has not come."""
    await lookup.ask_due()


@hook.every(600.0)
async def give_up() -> None:
    """Mark files as failed that are no longer retried."""
    async with hook.transaction() as tx:
        await files.give_up(tx, FILE_RETRY.max_age_s + MAX_S)


@hook.every(15.0)
async def count() -> None:
    """Set the gauges, and begin the counter of unknown stages at 0: an alert is about its increase."""
    callbacks_total.add(0, stage=Stage.UNKNOWN, result="failed")
    async with hook.transaction() as tx:
        waiting = await tx.fetchval("select count(*) from music.callback where state = 'waiting'")
        rows = await tx.fetch("select state, count(*) as n from music.file where state <> 'stored' group by state")
        overdue = await tracks.count_overdue(tx, settings().overdue_s)
    waiting_callbacks.set(waiting)
    overdue_tracks.set(overdue)
    found = {row["state"]: row["n"] for row in rows}
    for state in _OPEN:
        open_files.set(found.get(state, 0), state=state)


@hook.every(60.0)
async def clean_daily() -> None:
    """Clean up if the last cleanup, by any process or operator, is long enough ago."""
    every_s = settings().clean_every_s
    if not every_s:
        return
    report = await clean(not_within_s=every_s)
    if report is not None:
        hook.log.info("music_cleaned", **as_row(report))


async def clean(
    *, not_within_s: float = 0.0, is_dry: bool = False, notify: Callable[[Report], None] = lambda _: None
) -> Report | None:
    """Clean storage, unfinished downloads and the delivery log; return None if a recent cleanup prevents it.

    Raises:
        StorageFailed: the storage could not be listed or changed; completed changes stay.
    """
    started_at = None
    if not is_dry:
        async with hook.transaction() as tx:
            started_at = await tx.fetchval(_BEGIN, not_within_s)
        if started_at is None:
            return None
    config = settings()
    cleaner = Cleaner(storage(), hook.transaction, _rules(), is_dry=is_dry, notify=notify)
    report = await cleaner.run()
    report.leftovers = await remove_leftovers(incoming(), _rules().orphans, is_dry=is_dry)
    if started_at is not None:
        await delivery_log.clean_up(config.log_days)
        async with hook.transaction() as tx:
            await tx.execute(_END, started_at, json.dumps(as_row(report)))
    return report


def _rules() -> Rules:
    config = settings()
    return Rules(
        min_age=timedelta(seconds=config.min_age_s),
        orphans=timedelta(days=config.orphans_days),
        done=timedelta(days=config.failed_days),
        urls=timedelta(days=config.urls_days),
    )
