"""The history of an app's metrics: kept by the minute, of all hosts, and shown on the console and the command line."""

import asyncio
import json
import os
import re
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from boathook import Boathook
from boathook.db import metric_samples
from boathook.db.database import Database
from boathook.db.metric_samples import HostSample, roll_up
from boathook.domain.errors import ConfigError, InvalidValue, NotFound
from boathook.domain.model import Role
from boathook.observability import metrics
from boathook.observability.metric_snapshot import Buckets, MetricSnapshot
from boathook.observability.metrics import APP_METRICS, METRICS, MIRRORS, app_metric_names
from boathook.service.app_platform import open_platform
from boathook.service.operating import app_metrics
from tests.commands import boathook_command
from tests.postgres.portal_client import open_console
from tests.worker_harness import settings_for

NOW = datetime.now(UTC).replace(second=5, microsecond=0)


@pytest.fixture(autouse=True)
def _clean() -> Iterator[None]:
    """Leave no metric of these tests to others."""
    kept, mirrors, apps = dict(METRICS), list(MIRRORS), {app: dict(known) for app, known in APP_METRICS.items()}
    APP_METRICS.clear()
    yield
    for table, before in ((METRICS, kept), (APP_METRICS, apps)):
        table.clear()
        table.update(before)
    MIRRORS[:] = mirrors


@pytest.fixture
def hook() -> Boathook:
    return Boathook("rental")


async def put(db: Database, host: str, ago: timedelta, **of: dict[str, dict[tuple[str, ...], object]]) -> None:
    await metric_samples.insert(db, [HostSample(host, NOW - ago, MetricSnapshot(span_s=10, **of))])


async def test_minutes_of_all_hosts_are_added_up_and_survive_the_fine_rows(db: Database, hook: Boathook):
    changes = hook.counter("rental_changes_total", "Changes.", "entity")
    cars = hook.gauge("rental_cars", "Cars.")
    took = hook.histogram("rental_seconds", "Duration.", bounds=(1.0, 2.0))
    hook.mirror(
        "rental_requests_total",
        "Requests.",
        of="boathook_requests_total",
        where={"source": "shop"},
        labels={"status": "status"},
    )
    for host, number in (("a", 1), ("b", 10)):
        for ago in (timedelta(hours=5), timedelta(hours=5, seconds=-10), timedelta(minutes=1)):
            await put(
                db, host, ago,
                counters={
                    "rental_changes_total": {("car",): number, ("booking",): 100},
                    "rental_requests_total": {("200",): number},
                    "boathook_events_accepted_total": {("shop",): 1},
                },
                gauges={"rental_cars": {(): number}},
                histograms={"rental_seconds": {(): Buckets((number, 0, 0), 0.5 * number)}},
            )  # fmt: skip
    platform = open_platform(settings_for(db.url))
    hook.bind(None, platform.for_app("rental"))
    try:
        for _ in range(2):
            points = await hook.metric_history(minutes=400)
            assert [point.at for point in points] == [
                (NOW - timedelta(hours=5)).replace(second=0), (NOW - timedelta(minutes=1)).replace(second=0),
            ]  # fmt: skip
            first, last = points
            assert (first.value(changes), first.value(changes, entity="car")) == (422, 22)
            assert (last.value("rental_changes_total", entity="car"), last.value(cars)) == (11, 11)
            assert (
                first.value("rental_requests_total", status="200"),
                first.value("rental_requests_total", status="500"),
            ) == (22, None)
            assert (first.value(took), first.mean(took)) == (22, 0.5)
            assert first.quantile(took, 0.5) == pytest.approx(0.5)
            await roll_up(db, app_metric_names())
            await db.execute("delete from boathook.metric_sample where step_s = 10")  # as after three hours
        (hour,) = [
            point for point in await hook.metric_history(minutes=400, step_s=3_600) if point.value(changes) == 422
        ]
        assert hour.value(cars) == 11
        series = await db.fetchval("select series::text from boathook.metric_sample where step_s = 60 limit 1")
        assert "boathook_events_accepted_total" not in series
    finally:
        await platform.stop()


async def test_rows_that_are_rolled_up_are_not_counted_twice(db: Database, hook: Boathook):
    changes = hook.counter("rental_changes_total", "Changes.")
    await put(db, "a", timedelta(minutes=3), counters={"rental_changes_total": {(): 5}})
    await roll_up(db, app_metric_names())
    await put(db, "a", timedelta(minutes=3, seconds=-10), counters={"rental_changes_total": {(): 7}})
    (point,) = await app_metrics.read_history(db, "rental", minutes=60)
    assert point.value(changes) == 12
    await roll_up(db, app_metric_names())
    (point,) = await app_metrics.read_history(db, "rental", minutes=60)
    assert point.value(changes) == 12


async def test_nothing_is_kept_by_the_minute_without_an_app_and_old_minutes_are_dropped(db: Database, hook: Boathook):
    await put(db, "a", timedelta(minutes=3), counters={"rental_changes_total": {(): 5}})
    await roll_up(db, app_metric_names())
    assert await db.fetchval("select count(*) from boathook.metric_sample where step_s = 60") == 0
    hook.counter("rental_changes_total", "Changes.")
    await put(db, "a", timedelta(minutes=1), counters={"rental_changes_total": {(): 5}})
    await roll_up(db, app_metric_names())
    await db.execute("update boathook.metric_sample set at = at - interval '6 days 23 hours' where step_s = 60")
    await roll_up(db, app_metric_names())
    assert await db.fetchval("select count(*) from boathook.metric_sample where step_s = 60") == 1
    await db.execute("update boathook.metric_sample set at = at - interval '2 hours' where step_s = 60")
    await roll_up(db, app_metric_names())
    assert await db.fetchval("select count(*) from boathook.metric_sample where step_s = 60") == 0


async def test_wrong_arguments_are_named(db: Database, hook: Boathook):
    changes = hook.counter("rental_changes_total", "Changes.", "entity")
    await put(db, "a", timedelta(minutes=1), counters={"rental_changes_total": {("car",): 5}})
    for minutes, step_s, key in (
        (0, 60, "minutes"),
        (10_081, 60, "minutes"),
        (60, 30, "step_s"),
        (60, 90, "step_s"),
        (10_080, 60, "step_s"),
    ):
        with pytest.raises(InvalidValue) as raised:
            await app_metrics.read_history(db, "rental", minutes=minutes, step_s=step_s)
        assert raised.value.where == (key,)
    (point,) = await app_metrics.read_history(db, "rental", minutes=60)
    for wrong, said in (
        (
            lambda: point.value("boathook_ack_seconds"),
            "declares no metric boathook_ack_seconds; it declares rental_changes_total",
        ),
        (lambda: point.value(changes, color="x"), "has the labels entity, not color"),
        (lambda: point.mean(changes), "is a counter, not a histogram"),
    ):
        with pytest.raises(ConfigError, match=said):
            wrong()
    with pytest.raises(NotFound, match="no loaded app 'other' declares metrics; those that do are rental"):
        await app_metrics.read_series(db, "other", minutes=60, step_s=60)


async def test_the_console_shows_the_metrics_of_an_app(db: Database, hook: Boathook):
    hook.counter("rental_changes_total", "Changes <of> objects.", "entity")
    hook.gauge("rental_cars", "Cars.")
    for ago in (3, 2, 1):
        counters = {"rental_changes_total": {("<b>car</b>",): 5 * ago}}
        await put(db, "a", timedelta(minutes=ago), counters=counters, gauges={"rental_cars": {(): ago}})
    series = await app_metrics.read_series(db, "rental", minutes=60, step_s=60)
    assert [(one.metric, one.labels, one.latest, len(one.values)) for one in series] == [
        ("rental_cars", "", 1, 60), ("rental_changes_total", "entity=<b>car</b>", 5, 60),
    ]  # fmt: skip
    assert [value for value in series[1].values if value is not None] == [15, 10, 5]
    async with open_console(db) as console:
        vera = await console.operator("vera", Role.VIEWER)
        assert '<a href="/console/apps/rental">rental</a>' in await vera.get_page("/console/apps")
        for span in ("hour", "day", "week", "other"):
            page = await vera.get_page(f"/console/apps/rental?span={span}")
            assert "Changes &lt;of&gt; objects." in page
            assert "entity=&lt;b&gt;car&lt;/b&gt;" in page
            assert ">30 <" in page
        await vera.get_page("/console/apps/other", 404)
        assert "polyline" in await vera.get_page("/console/apps/rental")


def test_metrics_are_known_by_their_app(hook: Boathook):
    hook.counter("rental_changes_total", "Changes.")
    Boathook("other").gauge("other_things", "Things.")
    assert {app: list(known) for app, known in APP_METRICS.items()} == {
        "rental": ["rental_changes_total"], "other": ["other_things"],
    }  # fmt: skip
    assert app_metric_names() == {"rental_changes_total", "other_things"}
    assert metrics.METRICS["other_things"].name == "other_things"
    assert json.dumps(app_metrics.list_apps()) == '["other", "rental"]'


APP = """
from boathook import Boathook
hook = Boathook("rental")
hook.counter("rental_changes_total", "Changes.", "entity")
"""


async def test_the_command_prints_each_series(db: Database, tmp_path: Path):
    (tmp_path / "rental.py").write_text(APP)
    (tmp_path / "boathook.toml").write_text(f'[database]\nurl = "{db.url}"\n[apps]\nload = ["rental"]\n')
    await put(db, "a", timedelta(minutes=2), counters={"rental_changes_total": {("car",): 5}})
    await put(db, "a", timedelta(minutes=1), counters={"rental_changes_total": {("car",): 7}})

    async def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
        return await asyncio.to_thread(
            boathook_command, "apps", "metrics", *arguments, cwd=tmp_path, env={**os.environ}
        )

    done = await run("rental", "--json")
    assert done.returncode == 0, done.stderr
    (row,) = map(json.loads, done.stdout.splitlines())
    assert (row["metric"], row["labels"], row["kind"]) == ("rental_changes_total", "entity=car", "counter")
    assert [value for value in row["values"] if value is not None] == [5, 7]
    done = await run("rental")
    assert re.search(r"rental_changes_total +entity=car +counter +7 +12", done.stdout)
    done = await run("other")
    assert done.returncode == 1
    assert "those that do are rental" in done.stderr
