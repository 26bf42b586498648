"""Counting, merging, showing, and log lines."""

import json
import os
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from boathook import Boathook
from boathook.domain.errors import ConfigError
from boathook.observability import meters
from boathook.observability.exposition import from_prometheus, to_json, to_prometheus
from boathook.observability.live_metrics import LiveMetrics, SnapshotFile, gather
from boathook.observability.metric_snapshot import Buckets, MetricSnapshot
from boathook.observability.metrics import METRICS, MIRRORS, TABLE, MetricKind
from tests.support import too_dear


@pytest.fixture(autouse=True)
def _clean():
    """Start each test with boathook's own metrics only."""
    apps, mirrors = {name: METRICS[name] for name in METRICS.keys() - {metric.name for metric in TABLE}}, MIRRORS[:]
    for name in apps:
        del METRICS[name]
    MIRRORS.clear()
    meters.reset()
    yield
    meters.reset()
    METRICS.update(apps)
    MIRRORS[:] = [*mirrors, *(mirror for mirror in MIRRORS if mirror not in mirrors)]


def test_the_table_is_sound():
    assert len({metric.name for metric in TABLE}) == len(TABLE)
    for metric in TABLE:
        assert metric.name.startswith("boathook_")
        assert metric.help.endswith(".")
        assert (metric.kind is MetricKind.COUNTER) == metric.name.endswith("_total")
        assert (metric.kind is MetricKind.HISTOGRAM) == bool(metric.bounds)
        assert list(metric.bounds) == sorted(set(metric.bounds))


def test_labels_are_matched_by_name_not_by_order():
    meters.count("boathook_requests_total", source="a", status=200)
    meters.count("boathook_requests_total", status="200", source="a")
    meters.count("boathook_requests_total", 3, source="200", status="a")
    series: dict[tuple[str, ...], Any] = {
        tuple(labels): value for labels, value in meters.snapshot()["boathook_requests_total"]
    }
    assert series == {("a", "200"): 2, ("200", "a"): 3}


@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("boathook_nonsense_total", {}),
        ("boathook_requests_total", {}),
        ("boathook_requests_total", {"source": "a", "state": "b"}),
        ("boathook_ack_seconds", {}),
    ],
)
def test_an_unknown_name_or_label_is_an_error(name: str, labels: dict[str, str]):
    with pytest.raises(KeyError):
        meters.count(name, **labels)


def test_series_are_bounded():
    for n in range(meters.MAX_SERIES + 500):
        meters.count("boathook_events_accepted_total", source=f"s{n}")
    rows = meters.snapshot()["boathook_events_accepted_total"]
    assert len(rows) == meters.MAX_SERIES + 1
    assert [["other"], 500] in rows


def test_a_count_costs_little():
    meters.count("boathook_requests_total", source="a", status=200)
    assert too_dear(_count_10000, most=50) is None, "a count should take about a microsecond on an idle machine"


def _count_10000() -> None:
    for _ in range(10_000):
        meters.count("boathook_requests_total", source="a", status=200)


def test_a_restart_keeps_counters_and_resets_gauges(tmp_path: Path):
    meters.count("boathook_events_accepted_total", 5, source="a")
    meters.observe("boathook_ack_seconds", 0.003, source="a")
    meters.gauge("boathook_ingest_queue_events", 7)
    SnapshotFile(tmp_path, "gateway-0").write()
    meters.reset()
    SnapshotFile(tmp_path, "gateway-0").restore()
    meters.count("boathook_events_accepted_total", source="a")
    meters.observe("boathook_ack_seconds", 0.003, source="a")
    merged = gather(tmp_path, "gateway-0", time.time())
    assert merged.counters["boathook_events_accepted_total"][("a",)] == 6
    assert sum(merged.histograms["boathook_ack_seconds"][("a",)].counts) == 2
    assert "boathook_ingest_queue_events" not in merged.gauges


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"at": 1}', b'{"at":1,"series":{"boathook_ack_seconds":[[1]]}}', b"\xff"]
)
def test_a_corrupt_file_is_ignored(tmp_path: Path, content: bytes):
    (tmp_path / "metrics").mkdir()
    (tmp_path / "metrics" / "worker-0.json").write_bytes(content)
    SnapshotFile(tmp_path, "worker-0").restore()
    meters.count("boathook_events_accepted_total", source="a")
    assert gather(tmp_path, "gateway-0", time.time()).counters["boathook_events_accepted_total"][("a",)] == 1


def test_processes_are_added_up_and_gauges_only_of_the_living(tmp_path: Path):
    for slot, is_alive in (("worker-0", True), ("worker-1", False)):
        meters.reset()
        meters.count("boathook_attempts_total", 2, recipient="handler:x", outcome="succeeded")
        meters.gauge("boathook_handlers_running", 3, recipient="handler:x")
        meters.gauge("boathook_backlog", 10, recipient="handler:x", state="pending")
        SnapshotFile(tmp_path, slot).write(is_alive=is_alive)
    meters.reset()
    meters.gauge("boathook_handlers_running", 4, recipient="handler:x")
    meters.gauge("boathook_backlog", 12, recipient="handler:x", state="pending")
    merged = gather(tmp_path, "gateway-0", time.time())
    assert merged.counters["boathook_attempts_total"] == {("handler:x", "succeeded"): 4}
    assert merged.gauges["boathook_handlers_running"] == {("handler:x",): 7}
    assert merged.gauges["boathook_backlog"] == {("handler:x", "pending"): 12}


def test_the_prometheus_parser_reads_the_export():
    nasty = 'a"b\\c\nd'
    meters.count("boathook_rejections_total", 2, source=nasty, reason="signature_mismatch")
    for value in (0.0004, 0.004, 99.0):
        meters.observe("boathook_ack_seconds", value, source="a")
    now = LiveMetrics(None, "x").now()
    text = to_prometheus(now).decode()
    families = {family.name: family for family in text_string_to_metric_families(text)}
    [sample] = families["boathook_rejections"].samples
    assert (sample.labels, sample.value) == ({"source": nasty, "reason": "signature_mismatch"}, 2)
    buckets = {s.labels["le"]: s.value for s in families["boathook_ack_seconds"].samples if s.name.endswith("_bucket")}
    assert (buckets["0.0005"], buckets["0.005"], buckets["60.0"], buckets["+Inf"]) == (1, 2, 2, 3)
    assert len(families) == len(TABLE)
    read = from_prometheus(text, now.at)
    assert (read.counters, read.gauges, read.histograms) == (now.counters, now.gauges, now.histograms)


@given(st.lists(st.floats(0, 50), min_size=1, max_size=200), st.sampled_from([0.5, 0.95, 0.99]))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(values: list[float], share: float):
    bounds = METRICS["boathook_ack_seconds"].bounds
    histogram = meters.Histogram(bounds)
    for value in values:
        histogram.observe(value)
    found = Buckets(tuple(histogram.counts), histogram.total).quantile(bounds, share)
    true = sorted(values)[max(0, -(-int(share * len(values) * 1000) // 1000) - 1)]
    assert found is not None
    index = next(i for i, bound in enumerate((*bounds, float("inf"))) if true <= bound)
    low = bounds[index - 1] if index else 0.0
    assert low <= found or found == pytest.approx(low)


def shown_by(live_metrics: LiveMetrics) -> dict[str, Any]:
    now = live_metrics.now()
    return to_json(now, live_metrics.recent(now))


def test_json_shows_rates_and_quantiles():
    meters.count("boathook_events_accepted_total", 60, source="a")
    meters.observe("boathook_ack_seconds", 0.004, source="a")
    shown = json.loads(json.dumps(shown_by(LiveMetrics(None, "x"))))["metrics"]
    assert shown["boathook_events_accepted_total"]["series"] == [
        {"labels": {"source": "a"}, "value": 60, "per_second": 0.0}
    ]
    [ack] = shown["boathook_ack_seconds"]["series"]
    assert ack["count"] == 1
    assert 0.0025 <= ack["p50"] <= 0.005


def run_logging(script: str, form: str, **options: Any) -> subprocess.CompletedProcess[str]:
    code = f"from boathook.observability import log\nlog.configure('info', {form!r}, process='p-0')\nL = log.get_logger('test')\n"
    return subprocess.run(
        [sys.executable, "-c", code + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
        **options,
    )


FORGED = 'x\n{"level":"error"}\r\x1b[31m\u2028\u2029\u202e\x00\x7f\ud800'


@pytest.mark.parametrize("form", ["json", "text"])
def test_one_record_is_one_line_for_any_text(form: str):
    done = run_logging(f"L.info('seen', key={FORGED!r})\nL.warning({FORGED!r})\n", form)
    lines = done.stderr.splitlines()
    assert len(lines) == 2
    assert all((line.isascii() and line.isprintable()) or form == "json" for line in lines)
    assert "\x1b" not in done.stderr
    if form == "json":
        assert json.loads(lines[0])["key"] == FORGED


def test_secrets_and_bodies_are_hidden_and_long_texts_cut():
    done = run_logging(
        """
        L.info("x", secret="canary1", authorization="canary2", body=b"canary3", api_token="canary4",
               url="postgresql://u:canary5@h/d", body_size=7, long="y" * 5000)
        """,
        "json",
    )
    assert "canary" not in done.stderr
    line = json.loads(done.stderr)
    assert line["body_size"] == 7
    assert len(line["long"]) < 600


def test_libraries_log_the_same_way():
    done = run_logging("import logging\nlogging.getLogger('asyncio').error('odd %s', 1)\n", "json")
    assert json.loads(done.stderr)["event"] == "odd 1"


@pytest.mark.extended("starts processes of its own; signals and exit codes stay")
def test_a_reader_that_has_stopped_costs_lines_not_the_process():
    read, write = os.pipe()
    script = textwrap.dedent("""
        import os, sys
        from boathook.observability import log
        from boathook.observability import meters as emit
        log.configure("info", "json")
        L = log.get_logger("test")
        for n in range(60_000):
            L.info("line", n=n)
        dropped = emit.snapshot()["boathook_log_lines_dropped_total"]
        os.write(1, str(dropped[0][1]).encode())
        os._exit(0)
    """)
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=write, timeout=300, check=True)
    os.close(write)
    os.close(read)
    assert int(done.stdout) > 1000


@pytest.fixture
def declared() -> Iterator[None]:
    """Remove the metrics that a test declares."""
    known, shown = dict(METRICS), list(MIRRORS)
    yield
    METRICS.clear()
    METRICS.update(known)
    MIRRORS[:] = shown


def series(name: str, snapshot: MetricSnapshot) -> list[str]:
    """Return the lines of a metric in the text format."""
    return [line for line in to_prometheus(snapshot).decode().splitlines() if line.startswith(name)]


@pytest.mark.usefixtures("declared")
class TestMetricsOfApps:
    def test_appear_with_all_others_merged_over_processes(self, tmp_path: Path):
        shop = Boathook("shop")
        orders = shop.counter("shop_orders_total", "Orders.", "kind")
        open_orders = shop.gauge("shop_orders_open", "Orders not paid.")
        waits = shop.histogram("shop_wait_seconds", "Waits.", bounds=(1.0, 5.0))
        orders.add(2, kind="paid")
        open_orders.set(3)
        waits.observe(4.0)
        SnapshotFile(tmp_path, "worker-0").write()
        meters.reset()
        orders.add(kind="paid")
        waits.observe(0.5)
        live_metrics = LiveMetrics(tmp_path, "gateway-0")
        assert series("shop_", live_metrics.now()) == [
            'shop_orders_total{kind="paid"} 3.0',
            "shop_orders_open 3.0",
            'shop_wait_seconds_bucket{le="1.0"} 1.0',
            'shop_wait_seconds_bucket{le="5.0"} 2.0',
            'shop_wait_seconds_bucket{le="+Inf"} 2.0',
            "shop_wait_seconds_count 2.0",
            "shop_wait_seconds_sum 4.5",
        ]
        shown = shown_by(live_metrics)["metrics"]
        assert shown["shop_orders_total"]["series"][0]["value"] == 3
        assert shown["shop_wait_seconds"]["series"][0]["count"] == 2

    def test_survive_a_restart_even_if_declared_later(self, tmp_path: Path):
        earlier = {"at": time.time(), "series": {"shop_later_total": [[[], 5]], "shop_gone_total": [[[], 7]]}}
        file = SnapshotFile(tmp_path, "worker-0")
        (tmp_path / "metrics/worker-0.json").write_text(json.dumps(earlier))
        file.restore()
        file.write()
        Boathook("shop").counter("shop_later_total", "Orders.").add()
        assert series("shop_later_total", gather(None, "", time.time())) == ["shop_later_total 6.0"]
        assert json.loads((tmp_path / "metrics/worker-0.json").read_bytes())["series"]["shop_gone_total"] == [[[], 7]]

    def test_one_name_cannot_be_two_metrics(self):
        Boathook("shop").counter("shop_orders_total", "Orders.")
        with pytest.raises(ConfigError, match="already exists"):
            Boathook("fleet").gauge("shop_orders_total", "Orders.")


@pytest.mark.usefixtures("declared")
class TestMirrors:
    def test_show_a_counter_by_other_names_and_labels(self):
        meters.count("boathook_requests_total", 3, source="payments", status="200")
        meters.count("boathook_requests_total", 1, source="payments", status="401")
        meters.count("boathook_requests_total", 7, source="github", status="200")
        provider = ["unknown"]
        Boathook("shop").mirror(
            "webhook_requests_total",
            "Requests.",
            of="boathook_requests_total",
            where={"source": "payments"},
            labels={"http_code": "status"},
            constants={"provider": lambda: provider[0]},
        )
        provider[0] = "tilda"
        assert series("webhook_requests_total", gather(None, "", time.time())) == [
            'webhook_requests_total{http_code="200",provider="tilda"} 3.0',
            'webhook_requests_total{http_code="401",provider="tilda"} 1.0',
        ]

    def test_add_up_what_differs_in_labels_that_are_not_shown(self):
        meters.count("boathook_requests_total", 3, source="a", status="200")
        meters.count("boathook_requests_total", 4, source="b", status="200")
        meters.count("boathook_requests_total", 9, source="c", status="200")
        shop = Boathook("shop")
        shop.mirror("shop_in_total", "Requests.", of="boathook_requests_total", where={"source": ("a", "b")})
        assert series("shop_in_total", gather(None, "", time.time())) == ["shop_in_total 7.0"]

    def test_of_a_histogram_have_its_buckets_and_quantiles(self):
        for spent in (0.002, 0.02, 0.2):
            meters.observe("boathook_handler_seconds", spent, recipient="handler:shop.apply")
        meters.observe("boathook_handler_seconds", 9, recipient="handler:other")
        Boathook("shop").mirror(
            "shop_apply_seconds", "Applying.", of="boathook_handler_seconds", where={"recipient": "handler:shop.apply"}
        )
        live_metrics = LiveMetrics(None, "")
        assert "shop_apply_seconds_count 3.0" in series("shop_apply_seconds", live_metrics.now())
        (shown,) = shown_by(live_metrics)["metrics"]["shop_apply_seconds"]["series"]
        assert shown["count"] == 3
        assert 0.01 < shown["p50"] <= 0.025

    def test_of_a_gauge_add_up_too(self):
        meters.gauge("boathook_backlog", 4, recipient="handler:shop.a", state="due")
        meters.gauge("boathook_backlog", 6, recipient="handler:shop.b", state="due")
        meters.gauge("boathook_handlers_running", 1, recipient="handler:shop.a")
        meters.gauge("boathook_handlers_running", 2, recipient="handler:shop.b")
        shop = Boathook("shop")
        shop.mirror("shop_backlog", "Waiting.", of="boathook_backlog", labels={"status": "state"})
        shop.mirror("shop_running", "Running.", of="boathook_handlers_running")
        assert series("shop_", gather(None, "", time.time())) == ['shop_backlog{status="due"} 10.0', "shop_running 3.0"]

    def test_several_make_up_one_metric_and_the_same_one_twice_is_one(self):
        meters.count("boathook_requests_total", 3, source="a", status="200")
        meters.count("boathook_requests_total", 4, source="b", status="200")
        shop = Boathook("shop")
        for _ in range(2):
            for source, provider in (("a", "tilda"), ("b", "stripe")):
                shop.mirror(
                    "shop_in_total",
                    "Requests.",
                    of="boathook_requests_total",
                    where={"source": source},
                    constants={"provider": provider},
                )
        assert series("shop_in_total", gather(None, "", time.time())) == [
            'shop_in_total{provider="tilda"} 3.0',
            'shop_in_total{provider="stripe"} 4.0',
        ]

    def test_of_an_apps_own_metric_work_alike(self):
        shop = Boathook("shop")
        shop.counter("shop_orders_total", "Orders.", "kind").add(2, kind="paid")
        shop.mirror("orders_paid", "Paid orders.", of="shop_orders_total", where={"kind": "paid"})
        assert series("orders_paid", gather(None, "", time.time())) == ["orders_paid 2.0"]

    def test_are_left_out_as_long_as_the_settings_are_unknown(self):
        shop = Boathook("shop")
        meters.count("boathook_messages_published_total")
        shop.mirror(
            "shop_told",
            "Told.",
            of="boathook_messages_published_total",
            constants={"provider": lambda: shop.settings.provider},
        )
        assert series("shop_told", gather(None, "", time.time())) == []

    @pytest.mark.parametrize(
        ("arguments", "what"),
        [
            ({"of": "boathook_nothing"}, "there is no metric boathook_nothing"),
            ({"of": "boathook_requests_total", "where": {"app": "x"}}, "not app"),
            ({"of": "boathook_requests_total", "labels": {"code": "http"}}, "not http"),
            ({"of": "boathook_requests_total", "labels": {"a": "status"}, "constants": {"a": "b"}}, "not both"),
        ],
    )
    def test_that_cannot_be_are_refused(self, arguments: dict[str, Any], what: str):
        with pytest.raises(ConfigError, match=what):
            Boathook("shop").mirror("shop_in_total", "Requests.", **arguments)

    def test_cannot_have_the_name_of_a_metric_that_is_counted(self):
        with pytest.raises(ConfigError, match="is a built-in metric"):
            Boathook("shop").mirror("boathook_handlers_running", "Running.", of="boathook_handlers_running")
