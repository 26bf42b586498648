"""Fills a database with a history as large as wanted, straight by SQL: a million events take about two minutes.

What it makes is what a month of use leaves: most deliveries ended well, some ignored, retried, dead, pending or leased;
messages of applications to endpoints beside events of sources; weekly partitions; dedup memory, conflicts, refused
requests and notes of operators. Everything lies in the time before now, the newest a second ago, and is consistent.
"""

import asyncio
from typing import Final

import asyncpg

from boathook.db.statements import load
from boathook.observability.metric_snapshot import Buckets, MetricSnapshot, encode
from boathook.observability.metrics import METRICS

SQL = load(__file__)

DAYS: Final = 28
SOURCES: Final = ("stripe", "github", "shop", "slack", "rare")
"""Of which `rare` has one event in ten thousand."""
NEEDLE: Final = "needle-in-the-haystack"
"""Stands in the body of one event in every hundred thousand."""
_CHUNK_EVENTS: Final = 100_000


def fill(url: str, total: int, *, days: int = DAYS, applications: int = 100) -> None:
    """Put *total* events of the last *days* into a migrated database, one delivery each.

    Every fifth is a message, half of them to the first of the *applications*, each of which has one endpoint.
    """
    asyncio.run(_fill(url, total, {"total": total, "days": days, "applications": applications}))


async def _fill(url: str, total: int, values: dict[str, int]) -> None:
    connection = await asyncpg.connect(url, server_settings={"synchronous_commit": "off", "timezone": "UTC"})
    try:
        for name in ("make_partitions", "make_functions", "make_tenants"):
            await connection.execute(_script(name, **values))
        for first in range(1, total + 1, _CHUNK_EVENTS):
            last = min(first + _CHUNK_EVENTS - 1, total)
            await connection.execute(_script("make_events", **values, first=first, last=last, needle=NEEDLE))
        await connection.execute(SQL["vacuum_history"])
    finally:
        await connection.close()


def fill_extras(url: str) -> None:
    """Add what a set-up of some size has besides: 300 event types, and what ten hosts have counted for two weeks."""
    asyncio.run(_fill_extras(url))


async def _fill_extras(url: str) -> None:
    connection = await asyncpg.connect(url, server_settings={"timezone": "UTC"})
    try:
        await connection.execute(_script("make_types"))
        one = _sample_snapshot()
        await connection.execute(_script("make_samples", series=encode(one), totals=encode(one.totals())))
        await connection.execute(SQL["vacuum_samples"])
    finally:
        await connection.close()


def _sample_snapshot() -> MetricSnapshot:
    """Return what a busy host counts in a step: twenty sources, and forty recipients."""
    sources, handlers = [f"source-{n}" for n in range(20)], [f"handler:{n}" for n in range(40)]
    outcomes = {"succeeded": 300, "ignored": 5, "retry": 4, "dead": 1}
    return MetricSnapshot(
        span_s=10,
        counters={
            "boathook_requests_total": {(name, status): 450 for name in sources for status in ("200", "401")},
            "boathook_events_accepted_total": {(name,): 890 for name in sources},
            "boathook_duplicates_total": {(name,): 9 for name in sources},
            "boathook_rejections_total": {(name, "signature_mismatch"): 1 for name in sources},
            "boathook_attempts_total": {(name, key): n for name in handlers for key, n in outcomes.items()},
            "boathook_endpoint_requests_total": {("succeeded",): 400, ("retry",): 9, ("dead",): 1},
        },
        gauges={
            "boathook_backlog": {
                (name, state): n for name in handlers for state, n in (("due", 3), ("later", 9), ("dead", 2))
            },
            "boathook_backlog_due": {(name, "10s"): 3 for name in handlers},
        },
        histograms={
            "boathook_ack_seconds": {(name,): _sample_buckets("boathook_ack_seconds") for name in sources},
            "boathook_first_attempt_delay_seconds": {(): _sample_buckets("boathook_first_attempt_delay_seconds")},
            "boathook_handler_seconds": {(name,): _sample_buckets("boathook_handler_seconds") for name in handlers},
            "boathook_endpoint_request_seconds": {(): _sample_buckets("boathook_endpoint_request_seconds")},
        },
    )


def _sample_buckets(metric: str) -> Buckets:
    return Buckets(tuple(range(len(METRICS[metric].bounds) + 1)), 99.5)


def _script(name: str, **values: int | str) -> str:
    """Return a script with its values written out, as PostgreSQL takes parameters for one statement alone."""
    return SQL[name] % {key: _literal(value) for key, value in values.items()}


def _literal(value: int | str) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"
