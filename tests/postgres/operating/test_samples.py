"""What hosts have counted: kept, rolled up without losing or doubling anything, and read back in steps."""

import asyncio
import functools
import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from boathook import config
from boathook.config import Settings
from boathook.db import metric_samples
from boathook.db.database import Database
from boathook.db.metric_samples import RETENTION_S, HostSample, read_since, roll_up
from boathook.db.migrations import migrate
from boathook.domain.verification import Reason
from boathook.observability import meters
from boathook.observability.metric_snapshot import (
    ENDPOINTS,
    MAX_SERIES,
    OTHERS,
    BacklogCounts,
    Buckets,
    MetricSnapshot,
    RecipientCounts,
    SourceCounts,
    decode,
    encode,
)
from boathook.observability.metrics import METRICS
from boathook.server.sampler import Sampler
from tests.conftest import FreshServer
from tests.support import LOCK_WAITED_FOR, eventually

NOON = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=1)
"""A full hour so lately that nothing of it is dropped."""


ACCEPTED = "boathook_events_accepted_total"


def host_sample(
    host: str, at: datetime, accepted: int = 1, ack: Buckets | None = None, due: int | None = None, **gauges: float
) -> HostSample:
    snapshot = MetricSnapshot(span_s=10, counters={ACCEPTED: {("shop",): accepted}})
    snapshot.gauges = {f"boathook_{name}": {(): value} for name, value in gauges.items()}
    if ack is not None:
        snapshot.histograms = {"boathook_ack_seconds": {("shop",): ack}}
    if due is not None:
        snapshot.gauges["boathook_backlog"] = {("h", "due"): due}
    return HostSample(host, at, snapshot)


def quarter(fast: int, slow: int) -> Buckets:
    """Return acknowledgements that took about a millisecond and about a second."""
    bounds = METRICS["boathook_ack_seconds"].bounds
    counts = [0] * (len(bounds) + 1)
    counts[bounds.index(0.001)], counts[bounds.index(1.0)] = fast, slow
    return Buckets(tuple(counts), fast * 0.001 + slow)


async def keep(db: Database, *rows: HostSample) -> None:
    for row in rows:
        await metric_samples.insert(db, [row])


async def test_hosts_are_added_up_and_quantiles_are_of_all_of_them(db: Database) -> None:
    xmin = "boathook_oldest_snapshot_age_seconds"
    here = host_sample("a", NOON, 90, quarter(90, 0), spool_events=2, oldest_snapshot_age_seconds=5, connections=3)
    there = host_sample(
        "b", NOON + timedelta(seconds=7), 10, quarter(0, 10), spool_events=1, oldest_snapshot_age_seconds=9
    )
    await keep(db, here, there)

    (one,) = await read_since(db, NOON)

    assert (one.at, one.hosts, one.snapshot.span_s) == (NOON, 2, 10)
    assert one.snapshot.arrived.accepted == 100
    gauges = [one.snapshot.gauge(name) for name in ("boathook_spool_events", "boathook_connections", xmin)]
    assert gauges == [3, 3, 9]
    assert (one.snapshot.quantile("boathook_ack_seconds", 0.5) or 9) <= 0.001
    assert (one.snapshot.quantile("boathook_ack_seconds", 0.95) or 0) > 0.5


async def test_levels_of_one_host_are_its_highest_of_the_time(db: Database) -> None:
    rows = [host_sample("a", NOON + timedelta(seconds=10 * n), due=n, spool_events=n % 3) for n in range(12)]
    await keep(db, *rows)

    (one,) = await read_since(db, NOON, 120)

    assert (one.snapshot.arrived.accepted, one.snapshot.span_s) == (12, 120)
    assert (one.snapshot.gauge("boathook_spool_events"), one.snapshot.backlog.due) == (2, 11)


@pytest.mark.parametrize("step_s", [10, 60, 120, 900, 3600, 21_600])
async def test_rolling_up_neither_loses_nor_doubles_anything(db: Database, step_s: int) -> None:
    rows = [host_sample(host, NOON + timedelta(seconds=10 * n), n) for n in range(100) for host in "ab"]
    for number, row in enumerate(rows):
        await keep(db, row)
        if number % 37 == 0:
            await roll_up(db)
    found = await read_since(db, NOON, step_s)

    assert sum(one.snapshot.arrived.accepted for one in found) == 2 * sum(range(100))
    assert {one.at.timestamp() % step_s for one in found} == {0}
    assert all(one.hosts == 2 for one in found)
    await roll_up(db)
    assert [one.snapshot for one in await read_since(db, NOON, step_s)] == [one.snapshot for one in found]


async def test_chart_samples_keep_totals_without_names(db: Database) -> None:
    samples_now = MetricSnapshot(
        span_s=10,
        counters={
            ACCEPTED: {("shop",): 3, ("bank",): 4},
            "boathook_requests_total": {("shop", "503"): 1, ("shop", "200"): 3},
            "boathook_rejections_total": {("bank", "signature_mismatch"): 2},
            "boathook_attempts_total": {("handler:a", "succeeded"): 5, ("handler:b", "dead"): 1},
            "boathook_endpoint_requests_total": {("retry",): 7},
        },
        gauges={"boathook_backlog": {("handler:a", "due"): 2, (ENDPOINTS, "later"): 9}},
    )
    await keep(db, HostSample("a", NOON, samples_now))
    await roll_up(db)
    for step_s in (10, 120, 900, 21_600):
        (one,) = await read_since(db, NOON, step_s)
        assert {*one.snapshot.sources, *one.snapshot.recipients, *one.snapshot.backlogs} == {OTHERS, ENDPOINTS}
        for side in ("arrived", "worked", "sends", "backlog"):
            assert getattr(one.snapshot, side) == getattr(samples_now, side)


async def test_late_samples_are_rolled_up_into_past_steps(db: Database) -> None:
    await keep(db, host_sample("a", NOON, 1))
    await roll_up(db)
    await keep(db, host_sample("a", NOON + timedelta(seconds=10), 2), host_sample("b", NOON, 4))
    assert [one.snapshot.arrived.accepted for one in await read_since(db, NOON, 900)] == [7]
    assert await roll_up(db) == 2
    assert [one.snapshot.arrived.accepted for one in await read_since(db, NOON, 900)] == [7]


async def test_a_repeated_sample_is_stored_once(db: Database) -> None:
    row = host_sample("a", NOON)
    await keep(db, row, row)
    await roll_up(db)
    await keep(db, row)
    await roll_up(db)
    assert [one.snapshot.arrived.accepted for one in await read_since(db, NOON, 120)] == [1]


async def test_each_step_is_dropped_at_its_age(db: Database) -> None:
    now = datetime.now(UTC)
    ages = [kept_s * share for kept_s in RETENTION_S.values() for share in (0.9, 1.1)]
    await keep(db, *(host_sample("a", now - timedelta(seconds=age)) for age in ages))
    await roll_up(db)

    rows = await db.fetch(
        "select step_s, count(*) as rows, min(at) as oldest from boathook.metric_sample group by step_s"
    )

    # Ages that are close to each other may be in one step of six hours.
    assert {row["step_s"]: row["rows"] for row in rows if row["step_s"] < 21_600} == {10: 1, 120: 3, 900: 5}
    assert all(now - row["oldest"] < timedelta(seconds=RETENTION_S[row["step_s"]] + row["step_s"]) for row in rows)
    assert {row["step_s"] for row in rows} == set(RETENTION_S)


async def test_samples_not_rolled_up_are_not_dropped(db: Database) -> None:
    """The mutant of the test above: a keeper that was away for long finds everything."""
    await keep(db, host_sample("a", datetime.now(UTC) - timedelta(days=1)))
    await db.execute(metric_samples.SQL["drop_old"], 10, 0.0)
    assert await db.fetchval("select count(*) from boathook.metric_sample") == 1


async def test_rows_of_a_newer_boathook_are_read_as_far_as_they_are_known(db: Database) -> None:
    await keep(db, host_sample("a", NOON, 3))
    await db.execute("""update boathook.metric_sample set totals = (totals::jsonb || '{"unheard_of": 1}')::json""")
    assert [one.snapshot.arrived.accepted for one in await read_since(db, NOON)] == [3]


def gathered(at: float, accepted: int, rejections: dict[str, int]) -> MetricSnapshot:
    return MetricSnapshot(
        at=at,
        counters={
            ACCEPTED: {("shop",): accepted},
            "boathook_rejections_total": {("shop", reason): n for reason, n in rejections.items()},
            "boathook_requests_total": {("shop", "200"): accepted, ("shop", "503"): 2 * at},
            "boathook_attempts_total": {("h", "succeeded"): 5 * at, ("h", "retry"): at, ("h", "dead"): at},
            "boathook_endpoint_requests_total": {("succeeded",): 3 * at},
        },
        gauges={
            "boathook_backlog": {("h", "due"): 7, ("h", "dead"): 1},
            "boathook_backlog_due": {("h", "10s"): 4, ("h", "older"): 3},
        },
    )


def test_counts_are_differences_of_two_snapshots() -> None:
    counted = gathered(25, 130, {"signature_mismatch": 2, "body_malformed": 1}).since(gathered(10, 100, {}))

    assert counted.span_s == 15
    assert counted.sources == {
        "shop": SourceCounts(requests=60, accepted=30, rejected=3, bad_signatures=2, faults=30),
    }
    assert counted.recipients == {
        "h": RecipientCounts(succeeded=75, retried=15, dead=15),
        "endpoint": RecipientCounts(succeeded=45),
    }
    assert counted.sends.succeeded == 45
    assert counted.worked.failed == 30
    assert counted.backlog == BacklogCounts(due=7, dead=1, under_10s=4, older=3)


def test_a_counter_reset_gives_zero() -> None:
    assert gathered(25, 3, {}).since(gathered(10, 100, {})).arrived.accepted == 0


def test_every_reason_about_the_proof_counts_as_a_bad_signature() -> None:
    after = gathered(25, 0, dict.fromkeys(Reason, 1))
    proofs = {reason for reason in Reason if reason.startswith(("signature", "token")) or reason == "unknown_scheme"}
    assert after.since(gathered(10, 0, {})).arrived.bad_signatures == len(proofs) == 6


def test_series_are_limited_and_the_rest_summed() -> None:
    many = MetricSnapshot(counters={ACCEPTED: {(f"s{n}",): n for n in range(1, MAX_SERIES + 201)}})
    limited = many.limited()
    assert len(limited.sources) == MAX_SERIES + 1
    assert limited.arrived.accepted == sum(range(1, MAX_SERIES + 201))
    assert limited.sources[OTHERS].accepted == sum(range(1, 201))


def test_a_snapshot_round_trips_without_nan() -> None:
    made = gathered(25, 130, {"signature_mismatch": 2})
    made.histograms = {"boathook_ack_seconds": {("shop",): quarter(3, 1)}}
    made.roles = {"gateway": 2}
    assert decode(encode(made), at=25) == made
    made.gauges["boathook_connections"] = {(): float("nan")}
    assert decode(encode(made)).gauges["boathook_connections"] == {}


def settings(url: str, folder: Path) -> Settings:
    return config.load(None, {"database.url": url, "server.data_dir": str(folder)})


async def count_of(database: Database) -> float:
    rows = await read_since(database, datetime.now(UTC) - timedelta(hours=1))
    return sum(one.snapshot.arrived.accepted for one in rows)


async def test_a_sampler_stores_counts_and_the_rest_on_stop(db: Database, tmp_path: Path) -> None:
    meters.reset()
    sampler = Sampler(settings(db.url, tmp_path), "supervisor-0", step_s=0.2)
    sampler.start()
    await eventually(lambda: sampler.before is not None)
    meters.count("boathook_events_accepted_total", 3, source="sampled")
    await eventually(functools.partial(is_kept, db, 3))
    meters.count("boathook_events_accepted_total", 2, source="sampled")
    await sampler.stop()
    assert await count_of(db) == 5


async def is_kept(database: Database, number: int) -> bool:
    return await count_of(database) == number


async def test_unsent_samples_are_stored_later_even_after_a_restart(db: Database, tmp_path: Path) -> None:
    meters.reset()
    nowhere = "postgresql://nobody@127.0.0.1:1/none"
    sampler = Sampler(settings(nowhere, tmp_path), "supervisor-0", step_s=0.2)
    sampler.start()
    await eventually(lambda: sampler.before is not None)
    meters.count("boathook_events_accepted_total", 4, source="sampled")
    await eventually(lambda: sum(one.snapshot.arrived.accepted for one in sampler.unsent) == 4)
    await sampler.stop()
    assert await count_of(db) == 0

    again = Sampler(settings(db.url, tmp_path), "supervisor-0", step_s=0.2)
    again.start()
    await eventually(functools.partial(is_kept, db, 4))
    await again.stop()
    assert not again.unsent


async def test_a_killed_sampler_loses_and_duplicates_nothing(db: Database, tmp_path: Path) -> None:
    """The next one continues from its file, and does not store samples twice."""
    meters.reset()
    killed = Sampler(settings(db.url, tmp_path), "supervisor-0", step_s=0.2)
    assert killed.is_elected()
    await killed.sample()
    meters.count(ACCEPTED, 3, source="sampled")
    await killed.sample()  # stored, and its file says that it is not
    meters.count(ACCEPTED, 4, source="sampled")  # counted after the last sample
    assert killed._lock is not None
    killed._lock.close()

    again = Sampler(settings(db.url, tmp_path), "supervisor-0", step_s=0.2)
    await again.stop()
    assert await count_of(db) == 7
    assert killed._database is not None
    await killed._database.close()


async def test_a_long_outage_is_kept_in_coarser_samples(tmp_path: Path) -> None:
    sampler = Sampler(settings("postgresql://nobody@127.0.0.1:1/none", tmp_path), "supervisor-0", step_s=10)
    for n in range(400):
        sampler._add_unsent(MetricSnapshot(span_s=10, counters={ACCEPTED: {("shop",): 1}}), 10.0 * n)
    assert len(sampler.unsent) <= 60
    assert sum(one.snapshot.arrived.accepted for one in sampler.unsent) >= 360, "an hour of it is kept"


async def test_one_of_two_servers_on_a_data_directory_samples(db: Database, tmp_path: Path) -> None:
    meters.reset()
    both = [Sampler(settings(db.url, tmp_path), slot, step_s=0.2) for slot in ("supervisor-0", "2-supervisor-0")]
    for one in both:
        one.start()
    await eventually(lambda: any(one.before for one in both))
    meters.count("boathook_events_accepted_total", 7, source="sampled")
    await eventually(functools.partial(is_kept, db, 7))
    assert sum(one.before is not None for one in both) == 1
    for one in both:
        await one.stop()
    assert await count_of(db) == 7


async def test_a_torn_file_of_an_earlier_sampler_harms_nothing(db: Database, tmp_path: Path) -> None:
    meters.reset()
    (tmp_path / "samples.json").write_text('[{"host":')
    sampler = Sampler(settings(db.url, tmp_path), "supervisor-0", step_s=0.2)
    sampler.start()
    await eventually(lambda: sampler.before is not None)
    meters.count("boathook_events_accepted_total", 1, source="sampled")
    await eventually(functools.partial(is_kept, db, 1))
    await sampler.stop()


async def test_samples_of_an_outage_are_stored_afterwards(fresh_server: FreshServer, tmp_path: Path) -> None:
    meters.reset()
    server = await fresh_server()
    await migrate(server.url)
    sampler = Sampler(settings(server.url, tmp_path), "supervisor-0", step_s=0.2)
    sampler.start()
    await eventually(lambda: sampler.before is not None)
    meters.count("boathook_events_accepted_total", 1, source="sampled")
    await eventually(lambda: not sampler.unsent)
    pid = server.pid()
    assert pid is not None
    os.kill(pid, signal.SIGINT)
    await eventually(lambda: server.pid() is None)
    meters.count("boathook_events_accepted_total", 2, source="sampled")
    await eventually(lambda: bool(sampler.unsent))
    await server.ensure_running()
    meters.count("boathook_events_accepted_total", 4, source="sampled")

    database = await Database.open(server.url, purpose="test", size=1)
    await eventually(functools.partial(is_kept, database, 7))
    await database.close()
    await sampler.stop()


async def test_concurrent_roll_ups_neither_lose_nor_duplicate_samples(db: Database) -> None:
    """Like two keepers, one of which has lost its lock unnoticed."""
    await keep(db, host_sample("a", NOON), host_sample("a", NOON + timedelta(seconds=10)))
    async with db.transaction() as other:
        await other.execute(metric_samples.SQL["lock_roll_up"])
        taken = await other.fetch(metric_samples.SQL["take_rows"], 1)
        rolling = asyncio.create_task(roll_up(db))
        await eventually(lambda: db.fetchval(LOCK_WAITED_FOR))
        (row,) = metric_samples.decode_rows(taken)
        for step_s in (120, 900, 21_600):
            await metric_samples.add(other, step_s, [row])
        await other.execute(metric_samples.SQL["mark_rolled_up"], [NOON], ["a"])
    assert await rolling == 1
    for step_s in (120, 900, 21_600):
        (one,) = await read_since(db, NOON, step_s)
        assert (one.snapshot.arrived.accepted, one.snapshot.span_s) == (2, 20), step_s


async def test_a_sampler_continues_after_an_exception(db: Database, tmp_path: Path, monkeypatch) -> None:
    sampler = Sampler(settings(db.url, tmp_path), "supervisor-0", step_s=0.05)
    turn, faults = sampler.turn, iter([True, True])

    async def faulty() -> None:
        if next(faults, False):
            raise RuntimeError("a surprise")
        await turn()

    monkeypatch.setattr(sampler, "turn", faulty)
    sampler.start()
    try:
        await eventually(lambda: db.fetchval("select count(*) > 1 from boathook.metric_sample"))
    finally:
        await sampler.stop()


async def test_an_unreadable_row_stops_neither_roll_up_nor_charts(db: Database) -> None:
    await keep(db, host_sample("a", NOON), host_sample("b", NOON))
    await db.execute("""update boathook.metric_sample set series = '"x"', totals = '"x"' where host = 'a'""")
    assert await roll_up(db) == 2
    assert await roll_up(db) == 0
    for step_s in (10, 120):
        (one,) = await read_since(db, NOON, step_s)
        assert (one.hosts, one.snapshot.arrived.accepted) == (1, 1)
