"""Fills a journal with a history as large as wanted, straight by SQL: a million events take about two minutes.

What it makes is what a month of use leaves: most deliveries ended well, some ignored, retried, dead, pending or leased;
messages of applications to endpoints beside events of sources; weekly partitions; dedup memory, conflicts, refused
requests and notes of operators. Everything lies in the time before now, the newest a second ago, and its books balance.
"""

import asyncio
from typing import Final

import asyncpg
import msgspec

from boathook.journal.statements import load
from boathook.telemetry.exporters import Buckets
from boathook.telemetry.metrics import METRICS
from boathook.telemetry.tally import ENDPOINTS, Arrived, Owed, Tally, Worked, summarized

SQL = load(__file__)

DAYS: Final = 28
SOURCES: Final = ("stripe", "github", "shop", "slack", "rare")
"""Of which `rare` has one event in ten thousand."""
NEEDLE: Final = "needle-in-the-haystack"
"""Stands in the body of one event in every hundred thousand."""
_PIECE: Final = 100_000


def fill(url: str, total: int, *, days: int = DAYS, applications: int = 100) -> None:
    """Put *total* events of the last *days* into a migrated journal, one delivery each.

    Every fifth is a message, half of them to the first of the *applications*, each of which has one endpoint.
    """
    asyncio.run(_fill(url, total, {"total": total, "days": days, "applications": applications}))


async def _fill(url: str, total: int, values: dict[str, int]) -> None:
    connection = await asyncpg.connect(url, server_settings={"synchronous_commit": "off", "timezone": "UTC"})
    try:
        for name in ("make_partitions", "make_functions", "make_tenants"):
            await connection.execute(_script(name, **values))
        for first in range(1, total + 1, _PIECE):
            last = min(first + _PIECE - 1, total)
            await connection.execute(_script("make_events", **values, first=first, last=last, needle=NEEDLE))
        await connection.execute(SQL["vacuum_history"])
    finally:
        await connection.close()


def furnish(url: str) -> None:
    """Add what a set-up of some size has besides: 300 event types, and what ten hosts have counted for two weeks."""
    asyncio.run(_furnish(url))


async def _furnish(url: str) -> None:
    connection = await asyncpg.connect(url, server_settings={"timezone": "UTC"})
    try:
        await connection.execute(_script("make_types"))
        texts = {name: msgspec.json.encode(one).decode() for name, one in _tallies().items()}
        await connection.execute(_script("make_samples", **texts))
        await connection.execute(SQL["vacuum_samples"])
    finally:
        await connection.close()


def _tallies() -> dict[str, Tally]:
    return {"tally": _tally(), "summary": summarized(_tally())}


def _tally() -> Tally:
    """Return what a busy host counts in a step: twenty sources, and forty recipients."""
    return Tally(
        span_s=15,
        sources={f"source-{n}": Arrived(900, 890, 9, 0, 1, 1) for n in range(20)},
        recipients={ENDPOINTS: Worked(400, 0, 9, 1)} | {f"handler:{n}": Worked(300, 5, 4, 1) for n in range(40)},
        owed={f"handler:{n}": Owed(due=3, later=9, dead=2, under_10s=3) for n in range(40)},
        ack=_spread("boathook_ack_seconds"),
        start=_spread("boathook_accept_to_start_seconds"),
        handling=_spread("boathook_handler_seconds"),
        sending=_spread("boathook_send_seconds"),
    )


def _spread(metric: str) -> Buckets:
    return Buckets(tuple(range(len(METRICS[metric].bounds) + 1)), 99.5)


def _script(name: str, **values: int | str) -> str:
    """Return a script with its values written out, as PostgreSQL takes parameters for one statement alone."""
    return SQL[name] % {key: _literal(value) for key, value in values.items()}


def _literal(value: int | str) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
