"""Pages of handlers and the figures of sources: from the samples of hosts, and from PostgreSQL what no sample holds."""

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from boathook.db import metric_samples
from boathook.db.database import Database
from boathook.db.metric_samples import HostSample
from boathook.db.queries import summaries
from boathook.db.route_registry import register
from boathook.domain.model import Role, Route
from boathook.observability.metric_snapshot import Buckets, MetricSnapshot
from boathook.observability.metrics import SECONDS
from boathook.service.operating import operations
from tests.postgres.portal_client import ConsoleApp, PageClient, open_console


@pytest.fixture
async def console(db: Database):
    async with open_console(db, sources__shop__provider="stripe") as console:
        yield console


@pytest.fixture
async def vera(console: ConsoleApp) -> PageClient:
    return await console.operator("vera", Role.VIEWER)


def took(**numbers: int) -> Buckets:
    """Return durations of at most so many milliseconds, such as ``_50=3``."""
    counts = [0] * (len(SECONDS) + 1)
    for bound, number in numbers.items():
        counts[SECONDS.index(int(bound.removeprefix("_")) / 1000)] = number
    return Buckets(tuple(counts), 1.0)


async def put_sample(db: Database, ago: timedelta, host: str = "a", **tables: Any) -> None:
    at = datetime.now(UTC) - ago
    await metric_samples.insert(db, [HostSample(host, at, MetricSnapshot(span_s=10, **tables))])


def attempts(recipient: str, succeeded: int, retried: int, durations: Buckets) -> dict[str, Any]:
    counts = {(recipient, "succeeded"): succeeded, (recipient, "retry"): retried}
    return {
        "counters": {"boathook_attempts_total": counts},
        "histograms": {"boathook_handler_seconds": {(recipient,): durations}},
    }


DELIVERIES = """
    with made as (
        select g, boathook.min_id(now() - g * interval '1 minute') as id from generate_series(1, $2::int) g
    ),
    event as (
        insert into boathook.event
            (id, source, type, dedup_key, grade, origin, headers, content_type, body, body_sha256, fanout)
        select id, 'shop', 'order.paid', $3 || g, 'none', 'received', '{}', 'application/json', '{}', sha256('{}'), 1
        from made on conflict do nothing
    )
    insert into boathook.delivery (event_id, ordinal, recipient, state, due_at, dead_at, code, error, attempts)
    select id, $4::smallint, $1, case when $3 = 'dead' then 'dead' else 'pending' end,
        now() + case when $3 = 'due' then - g * interval '1 minute' else g * interval '1 hour' end,
        case when $3 = 'dead' then now() - g * interval '1 minute' end,
        case when $3 <> 'due' then 'KeyError' || g end, case when $3 <> 'due' then 'no <b>price</b>' end, 3
    from made
"""


async def put_deliveries(db: Database, recipient: str, dead: int = 0, due: int = 0, scheduled: int = 0) -> None:
    for ordinal, (kind, number) in enumerate((("dead", dead), ("due", due), ("scheduled", scheduled))):
        await db.execute(DELIVERIES, recipient, number, kind, ordinal)


async def test_a_handler_has_its_figures_queue_breaker_and_latest_failures(vera: PageClient, db: Database):
    await register(db, "shop:hook", [Route(recipient="handler:charge", app="shop:hook", source="shop", types=("a.*",))])
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(minutes=4)
    gauges = {
        "boathook_handler_circuit_breaker_open": {("handler:charge", "crm"): 1.0},
        "boathook_handler_circuit_breaker_probe_timestamp_seconds": {("handler:charge", "crm"): until.timestamp()},
    }
    await put_sample(db, timedelta(seconds=5), gauges=gauges, **attempts("handler:charge", 6, 2, took(_5=6, _250=2)))
    await put_sample(db, timedelta(seconds=5), "b", **attempts("handler:charge", 2, 0, took(_5=2)))
    await put_sample(db, timedelta(hours=2), **attempts("handler:charge", 90, 0, took(_1=90)))
    await put_deliveries(db, "handler:charge", dead=12, due=3, scheduled=2)

    page = await vera.get_page("/console/handlers/charge")
    text = " ".join(re.sub(r"<[^>]*>", " ", page).split())
    waits_for = await operations.find_obstacle(db, "handler:charge")
    assert re.search(r"^the circuit breaker of crm is open: paused, next probe in 2[34]\d s; it runs once", waits_for)
    assert re.search(r"The circuit breaker of crm is open \(paused, next probe in 2[34]\d s\)", text)
    for shown in (page, await vera.get_page("/console/handlers")):
        assert re.search(
            rf'paused</span> <span class="muted">until <time datetime="{re.escape(until.isoformat())}"', shown
        )
    assert "20.0 % 2 failed, 8 succeeded" in text
    assert "10 in 1 h" in text
    assert re.search(r"\d+ ms p99 p50 \d+\.\d ms", text)
    assert re.search(r"up to 5 ms 8 .*up to 250 ms 2", text)
    assert "5 waiting Oldest due since" in text
    assert '<a href="/console/dead?recipient=handler%3Acharge">12 failed</a>' in page
    assert page.count("no &lt;b&gt;price&lt;/b&gt;") == 12  # ten of the dead, and both that are retried
    dead = re.findall(r'href="/console/dead/(dlv_\w+)"', page)
    newest = await db.fetchval("select max(dead_at) from boathook.delivery where state = 'dead'")
    assert len(dead) == 10
    assert f'<a href="/console/dead/{dead[0]}"><time datetime="{newest.isoformat()}"' in page
    assert len(re.findall(r'href="/console/events/dlv_\w+"', page)) == 2
    assert "a.*" in text

    day = " ".join(re.sub(r"<[^>]*>", " ", await vera.get_page("/console/handlers/charge?span=day")).split())
    assert "100 in 24 h" in day
    assert "2.0 % 2 failed" in day
    await vera.get_page("/console/dead/" + dead[0])


async def test_handlers_with_problems_are_listed_first(vera: PageClient, db: Database):
    assert "No handlers yet" in await vera.get_page("/console/handlers")
    names = ("b/calm", "failing", "gone")
    await register(db, "s:h", [Route(recipient=f"handler:{name}", app="s:h") for name in names])
    await register(db, "s:h", [Route(recipient=f"handler:{name}", app="s:h") for name in names[:2]])
    backlog = {"boathook_backlog": {("handler:gone", "dead"): 4.0, ("endpoint", "due"): 7.0}}
    durations = took(_5=1)
    await put_sample(db, timedelta(seconds=5), gauges=backlog, **attempts("handler:failing", 1, 1, durations))
    await put_sample(db, timedelta(seconds=5), "b", **attempts("handler:b/calm", 1, 0, durations))
    page = await vera.get_page("/console/handlers")
    rows = re.findall(r'href="/console/handlers/([^"?]+)\?span=hour">.*?class="badge ?\w*">([\w ]+)<', page, re.DOTALL)
    assert rows == [("failing", "failing"), ("gone", "not registered"), ("b/calm", "healthy")]
    assert "1 failing, 1 not registered, 1 healthy, of 3 handlers." in page
    assert "Its deliveries wait until one does" not in await vera.get_page("/console/handlers/b/calm")
    for path in ("unknown", "gone"):  # nothing is left of the second in the store
        await vera.get_page(f"/console/handlers/{path}", 404)
    await put_deliveries(db, "handler:gone", dead=1)
    assert "Its deliveries wait until one does" in await vera.get_page("/console/handlers/gone")


async def test_figures_survive_the_roll_up_of_samples(vera: PageClient, db: Database):
    await register(db, "s:h", [Route(recipient="handler:h", app="s:h")])
    for minutes in range(10):
        await put_sample(db, timedelta(minutes=minutes), **attempts("handler:h", 3, 0, took(_10=3)))
        if minutes == 6:
            await metric_samples.roll_up(db)
    for span, title in (("hour", "1 h"), ("day", "24 h"), ("week", "7 d")):
        assert f"30 in {title}" in await vera.get_page(f"/console/handlers/h?span={span}")


async def test_a_source_has_its_own_percentiles(vera: PageClient, db: Database):
    acks = {("shop",): took(_5=99, _1000=1), ("other",): took(_30000=50)}
    await put_sample(db, timedelta(minutes=1), histograms={"boathook_ack_seconds": acks})
    page = await vera.get_page("/console/sources/shop?span=hour")
    assert re.search(r"p50 3\.\d ms, p95 4\.\d ms, p99 5\.0 ms in the last 1 h", page)
    await db.execute("update boathook.metric_sample set at = at - interval '2 days'")
    assert "no events accepted in the last 1 h" in await vera.get_page("/console/sources/shop?span=hour")
    assert "in the last 24 h" in await vera.get_page("/console/sources/shop?span=nonsense")
    assert "p99 5.0 ms in the last 7 d" in await vera.get_page("/console/sources/shop?span=week")


@pytest.mark.parametrize(("name", "arguments"), [("count_backlog", (10_000,)), ("list_failures", (10, 200))])
async def test_no_figure_of_a_recipient_reads_a_whole_table(db: Database, name: str, arguments: tuple[int, ...]):
    await put_deliveries(db, "handler:h", dead=2_000, due=2_000, scheduled=2_000)
    await db.execute("analyze boathook.delivery")
    plan = str(await db.fetch(f"explain {summaries.SQL[name]}", "handler:other", *arguments))
    assert "Index" in plan
    assert "Seq Scan on delivery" not in plan
