"""Test harness for alerts: settings with channels, metric samples, rule evaluation and a webhook receiver."""

import contextlib
import json
import subprocess
import threading
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Self

import yaml
from standardwebhooks.webhooks import Webhook

from boathook import config
from boathook.alerts.checks import AlertChecks
from boathook.alerts.dispatcher import AlertDispatcher
from boathook.alerts.evaluator import AlertEvaluator
from boathook.alerts.notifier import Notifier
from boathook.alerts.rules import compile_rules
from boathook.db import alerts as kept
from boathook.db import metric_samples
from boathook.db.database import Database
from boathook.db.metric_samples import HostSample
from boathook.observability.metric_snapshot import MetricSnapshot
from tests.support import until

SECRET = "whsec_" + "c2VjcmV0LW9mLWFsYXJtcy1vZi10ZXN0cw=="
QUICK = """
[notifications.channels.ops]
kind = "webhook"
url = "{url}"
secret = "{secret}"
[notifications]
evaluation_interval_s = 1.0
group_wait_s = 0.0
min_interval_s = 0.0
"""
"""Settings that send every alert to a webhook at once."""


def settings_of(*, url: str = "", channels: Any = None, rules: Any = None, own: bool = False, **keys: Any):
    """Return settings with these channels and rules; boathook's own rules only where *own*."""
    tables = config.defaults()
    tables["database"]["url"] = url
    tables["outbound"]["allow"] = ["127.0.0.0/8"]
    tables["server"]["public_url"] = "https://hooks.example.com"
    table = tables["notifications"]
    table.update({"group_wait_s": 0, "min_interval_s": 0, **keys, "channels": channels or {}})
    off = {} if own else {name: {"enabled": False} for name in config.notifications.default_rules()}
    table["rules"] = {**off, **(rules or {})}
    return config.Settings.model_validate(tables)


def webhook(url: str, **more: Any) -> dict[str, Any]:
    """Return the table of a generic webhook's channel."""
    return {"kind": "webhook", "url": url, "secret": SECRET, **more}


async def insert_sample(db: Database, host: str, gauges: Any) -> None:
    """Store a host's sample."""
    await metric_samples.insert(db, [HostSample(host, datetime.now(UTC), MetricSnapshot(span_s=10, gauges=gauges))])


class AlertHarness:
    """Runs the keeper's rule evaluation and notification step by step."""

    def __init__(self, db, settings, checks=None):
        self.db = db
        self.settings = settings
        self.notifier = Notifier(settings)
        self.checks = AlertChecks(checks or {})
        self.evaluator = AlertEvaluator(db, settings.notifications, compile_rules(settings), "test", self.checks)
        self.dispatcher = AlertDispatcher(db, settings, self.notifier)

    async def record_sample(self, metric: str, value: float, *labels: str, host: str = "a") -> None:
        """Store one metric sample of a host."""
        await insert_sample(self.db, host, {metric: {labels: value}})

    async def evaluate(self, times: int = 1) -> None:
        for _ in range(times):
            await self.evaluator.run_once()

    async def deliver(self) -> None:
        """Send all due notifications and wait until each is sent or has failed."""
        await self.dispatcher.run_once()
        for task in list(self.dispatcher._busy.values()):
            await task

    async def advance_time(self, **length: float) -> None:
        """Advance time by moving every stored time of alerts into the past."""
        gone = timedelta(**length)
        for table, columns in {
            "alert": ("since", "fired_at", "recovered_at", "notified_at"),
            "alert_notification": ("not_before", "created_at", "ended_at", "taken_until"),
            "alert_channel": ("not_before", "sent_at", "error_at"),
            "alert_silence": ("created_at", "until"),
            "alert_signal": ("at",),
            "alert_burst": ("last_at",),
        }.items():
            moved = ", ".join(f"{column} = {column} - $1::interval" for column in columns)
            await self.db.execute(f"update boathook.{table} set {moved}", gone)
        await self.db.execute(
            "update boathook.alert_channel set recent = array(select r - $1::interval from unnest(recent) as r)", gone
        )

    async def open_alerts(self):
        async with self.db.acquire() as connection:
            return await kept.list_open(connection)

    async def ended_alerts(self):
        async with self.db.acquire() as connection:
            return await kept.list_ended(connection)

    async def channels(self):
        async with self.db.acquire() as connection:
            return await kept.list_channels(connection)

    async def close(self) -> None:
        await self.dispatcher.stop()
        self.notifier.close()


@contextlib.asynccontextmanager
async def open_harness(db, settings, checks=None):
    harness = AlertHarness(db, settings, checks)
    try:
        yield harness
    finally:
        await harness.close()


def sent_alerts(receiver) -> list[tuple[str, str, str]]:
    """Return the kind, rule and subject of every alert that a receiver got."""
    return [
        (one["kind"], one["rule"], one["subject"])
        for request in receiver.requests
        for one in json.loads(request.body)["data"]["alerts"]
    ]


class AlertReceiver:
    """Receives alerts over HTTP and verifies each with the standardwebhooks package."""

    def __init__(self) -> None:
        self.alerts: list[dict[str, Any]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                found = Webhook(SECRET).verify(body, {name.lower(): value for name, value in self.headers.items()})
                receiver.alerts += found["data"]["alerts"]
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/alerts"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()

    def kinds(self, rule: str, subject: str | None = None) -> list[str]:
        return [
            one["kind"] for one in self.alerts if one["rule"] == rule and (subject is None or one["subject"] == subject)
        ]

    def await_kind(self, rule: str, *kinds: str, subject: str | None = None) -> dict[str, Any]:
        """Wait until a rule's first alerts are of these kinds, and return its last one."""
        until(lambda: self.kinds(rule, subject)[: len(kinds)] == list(kinds))
        return [one for one in self.alerts if one["rule"] == rule][-1]


AlertCase = tuple[str, bool, str, dict[str, str]]
"""An alert's name, whether it fires, after how long, and the series by name, as promtool writes them."""


def play_alerts(promtool: str, rules: Path, cases: Iterable[AlertCase], folder: Path) -> str:
    """Return promtool's report of alerts that fire or stay silent unexpectedly; empty if none.

    What an alert's labels are is not judged.
    """
    by_interval: dict[str, list[dict[str, Any]]] = {}
    for alert, fires, after, series in cases:
        expression = f'count(ALERTS{{alertname="{alert}", alertstate="firing"}}) or vector(0) > bool 0'
        samples = [{"labels": "{}", "value": int(fires)}]
        # A day's minutes of all rules would take longer than all other cases together.
        by_interval.setdefault("10m" if after.endswith("h") else "1m", []).append(
            {
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [{"expr": expression, "eval_time": after, "exp_samples": samples}],
            }
        )
    files = []
    for interval, tests in by_interval.items():
        files.append(folder / f"alerts-{interval}.yml")
        files[-1].write_text(
            yaml.safe_dump({"rule_files": [str(rules)], "evaluation_interval": interval, "tests": tests})
        )
    done = subprocess.run([promtool, "test", "rules", *files], capture_output=True, text=True, check=False)
    return "" if done.returncode == 0 else done.stdout + done.stderr
