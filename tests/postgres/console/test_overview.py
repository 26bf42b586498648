"""The overview: of an empty store, with problems, without PostgreSQL, and of a million deliveries."""

import functools
import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from boathook import config
from boathook.db.database import Database
from boathook.db.deliveries import DeliveryStore
from boathook.db.metric_samples import HostSample
from boathook.db.migrations import migrate
from boathook.db.queries.summaries import MAX_COUNTED, count_open, read_latest_dead_letters
from boathook.db.secret_box import open_secret_box
from boathook.domain.policy import RetryDefaults
from boathook.handlers.outbox import Outbox
from boathook.observability.live_metrics import LiveMetrics
from boathook.observability.metric_snapshot import BacklogCounts, MetricSnapshot
from boathook.service.operating.live_stats import LiveStats, RecipientActivity, Sample, summarize
from boathook.service.operating.recipient_stats import RangeName
from boathook.service.unit_of_work import AppContext
from boathook_console.overview import CHART_RANGES, OverviewState, build_trends, oldest_due
from boathook_console.routes import BASE, nav_counts
from boathook_console.shared.rendering import ConsoleState, PageRenderer
from tests.conftest import FreshServer
from tests.support import eventually

DELIVERY = """
    insert into boathook.delivery (event_id, ordinal, recipient, due_at, state, dead_at, code, error)
    select boathook.min_id(now() - g * interval '1 s'), $4::smallint, 'handler:h', now() - $1::interval, $2,
        case when $2 = 'dead' then now() - g * interval '1 s' end, case when $2 = 'dead' then 'E' || g end, 'no'
    from generate_series(1, $3::int) g
"""


async def add_deliveries(db: Database, age: str, number: int, state: str = "pending") -> None:
    seconds = {"s": 1, "m": 60, "h": 3600}[age[-1]] * int(age[:-1])
    await db.execute(DELIVERY, timedelta(seconds=seconds), state, number, seconds)


async def test_due_deliveries_are_counted_by_age(db: Database) -> None:
    for age, number in (("1s", 1), ("30s", 2), ("5m", 3), ("30m", 4), ("3h", 5)):
        await add_deliveries(db, age, number)
    (one,) = await DeliveryStore(db, RetryDefaults()).backlog()
    assert list(one.ages) == [1, 2, 3, 4, 5]
    assert one.due == sum(one.ages)


async def test_the_latest_dead_letters_are_found_by_index(db: Database) -> None:
    await add_deliveries(db, "1h", 3_000, "dead")
    await db.execute("analyze boathook.delivery")
    assert [one.code for one in await read_latest_dead_letters(db, 3)] == ["E1", "E2", "E3"]
    plan = await db.fetch("explain select * from boathook.delivery where state = 'dead' order by dead_at desc limit 3")
    assert "delivery_dead_at" in str(plan)


async def test_the_overview_keeps_its_data_while_postgresql_is_down(fresh_server: FreshServer, tmp_path: Path) -> None:
    server = await fresh_server()
    await migrate(server.url)
    database = await Database.open(server.url, purpose="test", size=2)
    settings = config.load(None, {"database.url": server.url, "server.data_dir": str(tmp_path)})
    context = AppContext(settings, database, open_secret_box(settings), Outbox(memory_days=1))
    overview = OverviewState(PageRenderer(ConsoleState(context, LiveMetrics(tmp_path, "gateway-0")), BASE))
    await add_deliveries(database, "1h", 1, "dead")
    before = await overview.render()
    assert "PostgreSQL is unavailable" not in before
    assert "handler:h" in before

    pid = server.pid()
    assert pid is not None
    os.kill(pid, signal.SIGINT)
    await eventually(lambda: server.pid() is None)
    away = await overview.render()
    assert "PostgreSQL is unavailable" in away
    assert "handler:h" in away

    await server.ensure_running()
    await eventually(functools.partial(is_back, overview))
    await database.close()


async def is_back(overview: OverviewState) -> bool:
    return "PostgreSQL is unavailable" not in await overview.render()


async def test_open_items_are_counted_up_to_a_limit(db: Database) -> None:
    await add_deliveries(db, "1h", MAX_COUNTED + 5, "dead")
    await db.execute("""
        insert into boathook.rejection
            (id, source, status, reason, detail, client_address, method, url, headers, content_type, body, body_size, event_id)
        select boathook.min_id(now() - age), 's', 401, 'r', 'd', '::1', 'POST', '/', '{}', '', '', 0, event
        from (values
            (interval '1 h', null::uuid), (interval '2 h', null), (interval '3 h', gen_random_uuid()), (interval '2 d', null)
        ) as one (age, event)
    """)
    async with db.transaction() as connection:
        found = await count_open(connection)
    assert (found.dead_letters, found.rejections, found.conflicts, found.firing) == (MAX_COUNTED, 2, 0, 0)
    assert {path: one.text for path, one in nav_counts(found).items()} == {"/dead": "999+", "/rejections": "2"}


def make_overview(db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OverviewState:
    """Return the overview of a store that one host works on."""
    settings = config.load(None, {"database.url": "postgresql://unused", "server.data_dir": str(tmp_path)})
    context = AppContext(settings, db, open_secret_box(settings), Outbox(memory_days=1))
    overview = OverviewState(PageRenderer(ConsoleState(context, LiveMetrics(tmp_path, "gateway-0")), BASE))

    async def read() -> LiveStats:
        return summarize([HostSample("here", datetime.now(UTC), MetricSnapshot(span_s=10.0))])

    monkeypatch.setattr(overview._watch, "read", read)
    return overview


async def test_an_empty_store_is_normal_and_shows_the_first_steps(
    db: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overview = make_overview(db, tmp_path, monkeypatch)
    page = await overview.render()
    assert "All systems normal" in page
    assert "Receive your first webhook" in page
    await add_deliveries(db, "1h", 2, "dead")
    page = await overview.render()
    assert "All systems normal" not in page
    assert '<a href="/console/dead">2 failed deliveries</a>' in page


@pytest.mark.parametrize(
    ("backlog", "oldest"),
    [
        (BacklogCounts(), ""),
        (BacklogCounts(under_1m=5), "under 1 min"),
        (BacklogCounts(older=1, under_10s=2), "over 1 h"),
    ],
)
def test_the_age_of_the_oldest_due_delivery_is_shown(backlog: BacklogCounts, oldest: str) -> None:
    assert oldest_due(RecipientActivity("handler:h", 1, 0, backlog)) == oldest


def test_a_trend_compares_an_hour_with_the_hour_before() -> None:
    span, now = CHART_RANGES[RangeName.HOUR], datetime(2026, 1, 1, 12, tzinfo=UTC)

    def sample(minutes: int, accepted: float) -> Sample:
        counters = {"boathook_events_accepted_total": {("s",): accepted}}
        return Sample(now - timedelta(minutes=minutes), MetricSnapshot(span_s=10.0, counters=counters), 1)

    trend = build_trends([sample(90, 100), sample(60, 150), sample(30, 50)], span, now)["accepted"]
    assert trend.change == "no change"
    assert trend.points == "0.0,1.0 60.5,21.0"
    assert (
        build_trends([sample(90, 100), sample(60, 40), sample(30, 40)], span, now)["accepted"].change
        == "\N{MINUS SIGN}60 %"
    )
    assert build_trends([sample(30, 50), sample(20, 50)], span, now)["accepted"].change == ""
    assert build_trends([], span, now)["accepted"].points == ""
