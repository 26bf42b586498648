"""Watches branches: RentProg sends no webhooks of a company whose webhook is switched off, without a word."""

from datetime import UTC, datetime, time, timedelta, tzinfo
from typing import Any, Final

from boathook import Transaction
from boathook_app_tools.statements import load_statements
from boathook_fleet.settings import BranchSettings, FleetSettings

SQL: Final = load_statements(__file__)
MAX_DAYS: Final = 31
"""A longer silence counts as one of this length."""


async def watch_branches(tx: Transaction, settings: FleetSettings) -> None:
    """Let the silence of branches that have sent nothing yet count from now on."""
    await tx.execute(SQL["watch_branches"], list(settings.branches))


async def read_branches(tx: Transaction, settings: FleetSettings) -> dict[str, dict[str, Any]]:
    """Return the state of each branch in the settings, by id.

    A webhook counts for the branch that it names, else for that of its object.
    """
    now = datetime.now(UTC)
    rows = await tx.fetch(SQL["read_branches"], list(settings.branches))
    return {row["branch_id"]: _state(settings.branches[row["branch_id"]], row, now, settings.zone) for row in rows}


def _state(branch: BranchSettings, row: Any, now: datetime, zone: tzinfo) -> dict[str, Any]:
    silent_s = open_seconds(branch.open_minutes, row["last_at"] or row["since"] or now, now, zone)
    return {
        "name": branch.name,
        "last_webhook_at": row["last_at"],
        "silent_h": round(silent_s / 3_600, 2),
        "is_silent": 0 < branch.silence_h * 3_600 <= silent_s,
    }


def open_seconds(minutes: tuple[int, int], since: datetime, until: datetime, zone: tzinfo) -> float:
    """Return the seconds between two times, at most `MAX_DAYS` apart, that are in the hours of operation.

    These begin and end at *minutes* of a day in *zone*; the latter may be on the next day.
    """
    since = max(since, until - timedelta(days=MAX_DAYS))
    day, total = since.astimezone(zone).date() - timedelta(days=1), 0.0
    while day <= until.astimezone(zone).date():
        midnight = datetime.combine(day, time(), zone)
        opens, closes = (midnight + timedelta(minutes=minute) for minute in minutes)
        total += max(0.0, min(closes.timestamp(), until.timestamp()) - max(opens.timestamp(), since.timestamp()))
        day += timedelta(days=1)
    return total
