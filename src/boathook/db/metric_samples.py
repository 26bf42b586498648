"""Stores the metrics of all hosts in PostgreSQL, for charts and alert rules: in fine steps, later in coarser ones.

Each host adds a row every ten seconds. The keeper rolls them up into rows of two minutes, 15 minutes and 6 hours, and
deletes rows older than `RETENTION_S`. The metrics of apps it also keeps minute by minute for `APP_RETENTION_S`. A row
that arrives late, because PostgreSQL was unavailable, is rolled up then. Rows that are not rolled up yet are read in
addition to the coarser ones, so that nothing is missed or counted twice.
"""

import asyncio
import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec

from boathook.db.database import Connection, Database
from boathook.db.statements import load
from boathook.observability.metric_snapshot import (
    MetricSnapshot,
    combine_hosts,
    concatenate,
    decode,
    decode_only,
    encode,
)

SQL = load(__file__)

STEP_S: Final = 10
"""Maximum seconds between two rows of a host."""
RETENTION_S: Final = {STEP_S: 3 * 3600, 120: 2 * 86_400, 900: 15 * 86_400, 21_600: 30 * 86_400}
"""How long rows are kept, by the seconds that each covers."""
APP_STEP_S: Final = 60
"""Seconds of a row with the metrics of apps alone, which are kept finer than those of boathook."""
APP_RETENTION_S: Final = 7 * 86_400
WINDOW_S: Final = 86_400.0
"""The length of a window of `read_window`."""
_FINE_S: Final = 900.0
"""The part of a window with the finest rows."""
_BATCH: Final = 2_000
"""Rows rolled up in one transaction."""


class Sample(msgspec.Struct, frozen=True):
    """The metrics of all hosts in one time step."""

    at: datetime
    """Start of the step: a multiple of its length since 1970, UTC."""
    snapshot: MetricSnapshot
    hosts: int
    """Number of hosts with rows in that step."""


class HostSample(msgspec.Struct, frozen=True):
    """The metrics of one host in one step, by the server's clock."""

    host: str
    """The machine's name and its data directory."""
    at: datetime
    snapshot: MetricSnapshot


async def read_since(database: Database, since: datetime, step_s: int = STEP_S) -> list[Sample]:
    """Return the metrics of all hosts since the step that contains *since*, oldest first.

    Steps without rows are left out, and the last step is incomplete. The snapshots are summed over sources and
    recipients (see `MetricSnapshot.totals`). For a rate, divide a counter by ``sample.snapshot.span_s``.

    Args:
        database: stores the samples.
        since: `RETENTION_S` limits how far back it can go.
        step_s: length of a step in seconds: `STEP_S` or more.

    Raises:
        DatabaseUnavailable: PostgreSQL is unavailable.
    """
    rows = await database.fetch(SQL["read_totals"], _begin(since, step_s), _kept_step(step_s))
    # Merging weeks of many hosts takes a while and must not block the requests that this process receives.
    return await asyncio.to_thread(_combine_steps, rows, step_s, decode)


async def read_series_since(
    database: Database | Connection,
    since: datetime,
    step_s: int,
    metrics: Collection[str],
    names: Collection[str] | None = None,
) -> list[Sample]:
    """Return some metrics of all hosts as `read_since` does, but each source and recipient by itself.

    Args:
        database: stores the samples.
        since: `RETENTION_S` limits how far back it can go.
        step_s: length of a step in seconds: `STEP_S` or more.
        metrics: names of counters or histograms whose first label is a source or a recipient.
        names: these sources or recipients only; None returns all.

    Raises:
        DatabaseUnavailable: PostgreSQL is unavailable.
    """
    rows = await database.fetch(SQL["read_series"], _begin(since, step_s), _kept_step(step_s))

    return await asyncio.to_thread(_combine_steps, rows, step_s, lambda text: decode_only(text, metrics, names))


async def read_app_history(database: Database, since: datetime, step_s: int, metrics: Collection[str]) -> list[Sample]:
    """Return metrics of apps on all hosts as `read_since` does, with their series, in steps of whole minutes."""
    rows = await database.fetch(SQL["read_series"], _begin(since, step_s), APP_STEP_S)
    return await asyncio.to_thread(_combine_steps, rows, step_s, lambda text: decode_only(text, metrics))


def _kept_step(step_s: int) -> int:
    """Return the coarsest stored step that is not longer than a step to read."""
    return max(step for step in RETENTION_S if step <= max(step_s, STEP_S))


def _combine_steps(rows: Iterable[Any], step_s: int, read: Callable[[str], MetricSnapshot]) -> list[Sample]:
    steps: dict[datetime, list[HostSample]] = {}
    for sample in _downsample(decode_rows(rows, read), step_s):
        steps.setdefault(sample.at, []).append(sample)
    return [Sample(at, combine_hosts(sample.snapshot for sample in of), len(of)) for at, of in sorted(steps.items())]


async def read_latest(database: Database | Connection, *, within_s: float) -> list[HostSample]:
    """Return the latest row of each host with a row within *within_s* seconds."""
    rows = await database.fetch(SQL["read_latest"], datetime.now(UTC) - timedelta(seconds=within_s))
    return list(decode_rows(rows))


class StoredSamples(msgspec.Struct, frozen=True):
    """Stored rows, and the time up to which they are complete."""

    samples: list[HostSample]
    until: datetime | None
    """When the latest row was stored; None if there are no rows."""


async def read_window(connection: Connection, now: datetime, lookback_s: float) -> StoredSamples:
    """Return the metrics of all hosts within the last day, the last *lookback_s* seconds of it in detail."""
    detailed_s = min(max(RETENTION_S[STEP_S], 2 * lookback_s), WINDOW_S)
    bounds = (
        _begin(now - timedelta(seconds=WINDOW_S), 900),
        _begin(now - timedelta(seconds=detailed_s), 900),
        _begin(now - timedelta(seconds=_FINE_S), 120),
    )
    return await _read_stored(await connection.fetch(SQL["read_window"], *bounds))


async def read_stored_since(connection: Connection, since: datetime) -> StoredSamples:
    """Return the rows that hosts have stored after a time, in the finest steps."""
    return await _read_stored(await connection.fetch(SQL["read_stored_since"], since))


async def _read_stored(rows: Sequence[Any]) -> StoredSamples:
    # A day of many hosts takes long to decode, so it must not block the event loop.
    samples = await asyncio.to_thread(lambda: list(decode_rows(rows)))
    return StoredSamples(samples, max((row["stored_at"] for row in rows), default=None))


async def insert(database: Database, samples: Sequence[HostSample]) -> datetime | None:
    """Store rows of one host, `STEP_S` each; existing rows are kept.

    Returns:
        The server's time; None if there was nothing to store.

    Raises:
        DatabaseUnavailable: PostgreSQL is unavailable.
    """
    if not samples:
        return None
    ats = [sample.at for sample in samples]
    now: datetime = await database.fetchval(SQL["insert_samples"], samples[0].host, ats, *_to_columns(samples))
    return now


async def roll_up(database: Database, app_metrics: Collection[str] = ()) -> int:
    """Roll up all rows into the coarser ones, and delete old rows; return how many were rolled up.

    Args:
        database: stores the samples.
        app_metrics: names of the metrics of apps.
    """
    rolled = 0
    while batch_size := await _roll_up(database, app_metrics):
        rolled += batch_size
    for step_s, kept_s in (*RETENTION_S.items(), (APP_STEP_S, APP_RETENTION_S)):
        await database.execute(SQL["drop_old"], step_s, kept_s)
    return rolled


async def _roll_up(database: Database, app_metrics: Collection[str]) -> int:
    async with database.transaction() as connection:
        await connection.execute(SQL["lock_roll_up"])
        rows = await connection.fetch(SQL["take_rows"], _BATCH)
        if samples := list(decode_rows(rows)):
            for step_s in RETENTION_S.keys() - {STEP_S}:
                await add(connection, step_s, samples)
            if app_metrics:
                of_apps = [HostSample(sample.host, sample.at, sample.snapshot.only(app_metrics)) for sample in samples]
                await add(connection, APP_STEP_S, of_apps)
        if rows:
            keys = [row["at"] for row in rows], [row["host"] for row in rows]
            await connection.execute(SQL["mark_rolled_up"], *keys)
    return len(rows)


async def add(connection: Connection, step_s: int, rows: Iterable[HostSample]) -> None:
    """Add rows to the rows of a coarser step."""
    fresh = list(_downsample(rows, step_s))
    coarser = decode_rows(await connection.fetch(SQL["read_coarser"], step_s, *_places(fresh)))
    sums = list(_downsample([*coarser, *fresh], step_s))
    await connection.execute(SQL["write_coarser"], step_s, *_places(sums), *_to_columns(sums))


def _downsample(samples: Iterable[HostSample], step_s: int) -> Iterable[HostSample]:
    """Merge the samples of each host in each step."""
    groups: dict[tuple[datetime, str], list[MetricSnapshot]] = {}
    for sample in samples:
        groups.setdefault((_begin(sample.at, step_s), sample.host), []).append(sample.snapshot)
    for (at, host), snapshots in groups.items():
        yield HostSample(host, at, concatenate(snapshots))


def _begin(at: datetime, step_s: int) -> datetime:
    return datetime.fromtimestamp(math.floor(at.timestamp() / step_s) * step_s, UTC)


def _places(samples: Sequence[HostSample]) -> tuple[list[datetime], list[str]]:
    return [sample.at for sample in samples], [sample.host for sample in samples]


def _to_columns(samples: Sequence[HostSample]) -> tuple[list[str], list[str]]:
    """Return snapshots and their totals in stored form."""

    def column(of: Callable[[MetricSnapshot], MetricSnapshot]) -> list[str]:
        return [encode(of(sample.snapshot)) for sample in samples]

    return column(MetricSnapshot.limited), column(MetricSnapshot.totals)


def decode_rows(rows: Iterable[Any], read: Callable[[str], MetricSnapshot] = decode) -> Iterable[HostSample]:
    """Decode the samples in rows; skip those that another version has written in another format."""
    for row in rows:
        with contextlib.suppress(msgspec.DecodeError):
            yield HostSample(row["host"], row["at"], read(row["snapshot"]))
