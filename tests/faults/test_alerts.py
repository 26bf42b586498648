"""Alerts during an outage of PostgreSQL and after a killed keeper are sent exactly once."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import httpx
import psycopg
import pytest

from tests.acceptance.conftest import BoathookProcess, boathook_processes, payload, signed
from tests.alert_harness import QUICK, SECRET, AlertReceiver
from tests.faults.rig.postgres import OwnServer
from tests.support import until

SETTINGS = (
    QUICK
    + """
[outbound]
allow = ["127.0.0.0/8"]
[notifications.rules.spool_in_use]
for_s = 1.0
clear_s = 1.0
[notifications.rules.waiting]
summary = "much waits"
metric = "boathook_backlog"
labels = {{ state = "later" }}
above = 0.0
clear_s = 0.0
"""
)


@pytest.fixture
def alert_receiver() -> Iterator[AlertReceiver]:
    with AlertReceiver() as made:
        yield made


@pytest.fixture
def make(tmp_path: Path, own_server: OwnServer) -> Iterator[Callable[..., BoathookProcess]]:
    with boathook_processes(tmp_path, own_server.url) as made:
        yield made


def post(running: BoathookProcess, key: str, kind: str = "payment.paid") -> None:
    body, headers = signed(payload(key, kind))
    assert httpx.post(f"{running.base}/in/stripe", content=body, headers=headers, timeout=30).status_code == 200


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_spool_in_use_fires_once_during_an_outage(make, own_server: OwnServer, alert_receiver: AlertReceiver) -> None:
    running = make(extra=SETTINGS.format(url=alert_receiver.url, secret=SECRET))
    post(running, "before")
    until(lambda: rows(own_server, "select from boathook.metric_sample"))
    own_server.stop()
    post(running, "meanwhile")
    told = alert_receiver.await_kind("spool_in_use", "firing")  # PostgreSQL is still away
    assert told["severity"] == "critical"
    own_server.restart()
    alert_receiver.await_kind("spool_in_use", "firing", "recovered")
    assert len(rows(own_server, "select from boathook.alert where rule = 'spool_in_use'")) == 1


def has_evaluated_since(connection: psycopg.Connection, last: tuple) -> bool:
    return connection.execute("select from boathook.alert_evaluation where at > %s", last).fetchone() is not None


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_killed_keepers_neither_repeat_nor_lose_alerts(
    make, own_server: OwnServer, alert_receiver: AlertReceiver
) -> None:
    extra = SETTINGS.format(url=alert_receiver.url, secret=SECRET)
    first, second = (make(extra=extra) for _ in range(2))
    with psycopg.connect(own_server.url, autocommit=True) as connection:
        post(first, "flaky_1")
        later = "update boathook.delivery set due_at = now() + interval '1 day' where state = 'pending'"
        until(lambda: post_broken(first) and connection.execute(later).rowcount)
        alert_receiver.await_kind("waiting", "firing")
        for running in (first, second, first):
            running.kill("keeper")
            looked = connection.execute("select at from boathook.alert_evaluation").fetchone()
            until(partial(has_evaluated_since, connection, looked))
        assert alert_receiver.kinds("waiting") == ["firing"]
        connection.execute("update boathook.delivery set due_at = now() where state = 'pending'")
        alert_receiver.await_kind("waiting", "firing", "recovered")


_number = iter(range(10_000))


def post_broken(running: BoathookProcess) -> bool:
    post(running, f"broken_{next(_number)}", "flaky.thing")
    return True


def rows(server: OwnServer, sql: str) -> list[tuple[object, ...]]:
    with psycopg.connect(server.url) as connection:
        return connection.execute(sql).fetchall()
