"""Periodic jobs of the keeper: apply waiting callbacks, clean up, count."""

import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from typing import Final

from boathook_app_tools.statements import load_statements
from boathook_music import account, client_events, delivery_log, files, lookup, status, tracks
from boathook_music.app import (
    credits_gauge,
    hook,
    incoming,
    open_files,
    overdue_tracks,
    settings,
    storage,
    waiting_callbacks,
)
from boathook_music.cleaning import Cleaner, Report, Rules, remove_leftovers
from boathook_music.handlers import FILE_RETRY, MAX_S

SQL: Final = load_statements(__file__)


@hook.every(2.0)
async def catch_up() -> None:
    """Apply callbacks that wait for tracks that were inserted by plain SQL."""
    async with hook.transaction() as tx:
        task_ids = await tracks.with_waiting(tx)
    for task_id in task_ids:
        async with hook.transaction() as tx:
            await tracks.catch_up(tx, task_id)


@hook.every(15.0)
async def ask() -> None:
    """Ask the reseller for songs whose callback has not come."""
    await lookup.ask_due()


@hook.every(600.0)
async def give_up() -> None:
    """Mark files as failed that are no longer retried."""
    after_s = FILE_RETRY.max_age_s + MAX_S
    async with hook.transaction() as tx:
        tasks = await files.with_expired(tx, after_s)
    for task_id in tasks:
        async with hook.transaction() as tx:
            await tracks.lock(tx, task_id)
            await files.give_up(tx, task_id, after_s)
            await client_events.announce(tx, task_id)


@hook.every(3_600.0)
async def declare_types() -> None:
    """Declare the event types that clients can choose from."""
    async with hook.transaction() as tx:
        await client_events.declare(tx)


@hook.every(15.0)
async def ask_for_credits() -> None:
    """Ask the reseller for the remaining credits, once in `credits_every_s`."""
    await account.ask_due()


@hook.every(15.0)
async def count() -> None:
    """Set the gauges."""
    async with hook.transaction() as tx:
        numbers = await status.read(tx)
    waiting_callbacks.set(numbers["waiting_callbacks"])
    overdue_tracks.set(numbers["overdue_tracks"])
    for state, count in numbers["open_files"].items():
        open_files.set(count, state=state)
    if numbers["credits"] is not None:
        credits_gauge.set(numbers["credits"])


@hook.every(60.0)
async def clean_daily() -> None:
    """Clean up if the last cleanup, by any process or operator, is long enough ago."""
    every_s = settings().clean_every_s
    if every_s and (report := await clean(not_within_s=every_s)):
        hook.log.info("music_cleaned", **asdict(report))


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
            started_at = await tx.fetchval(SQL["begin_cleaning"], not_within_s)
        if started_at is None:
            return None
    config = settings()
    rules = Rules(
        min_age=timedelta(seconds=config.min_age_s),
        orphans=timedelta(days=config.orphans_days),
        done=timedelta(days=config.failed_days),
        urls=timedelta(days=config.urls_days),
    )
    report = await Cleaner(storage(), hook.transaction, rules, is_dry=is_dry, notify=notify).run()
    report.leftovers = await remove_leftovers(incoming(), rules.orphans, is_dry=is_dry)
    if started_at is not None:
        await delivery_log.log.clean_up(config.log_days)
        async with hook.transaction() as tx:
            await tx.execute(SQL["end_cleaning"], started_at, json.dumps(asdict(report)))
    return report
