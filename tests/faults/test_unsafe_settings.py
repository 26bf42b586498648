"""PostgreSQL's settings become unsafe while boathook runs: no commit is lost, and nothing is accepted on its word."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any, LiteralString

import httpx
import psycopg
import pytest

from boathook.db import database, server_monitor
from boathook.db.database import Database, check_safety
from boathook.db.server_monitor import Safety
from boathook.domain.errors import UnsafeDatabase
from tests.acceptance.conftest import BoathookProcess, boathook_processes, payload, signed
from tests.alert_harness import QUICK, SECRET, AlertReceiver
from tests.faults.rig.postgres import OwnServer
from tests.support import eventually, sampled, until
from tests.worker_harness import accept_events

LOSING = {"synchronous_commit": "off", "wal_writer_delay": "10s"}
RULE = """
[outbound]
allow = ["127.0.0.0/8"]
[notifications.rules.database_unsafe]
for_s = 0.0
clear_s = 0.0
"""


@pytest.fixture
async def shop(own_server: OwnServer, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Database]:
    monkeypatch.setattr(server_monitor, "HEARTBEAT_INTERVAL_S", 0.1)
    made = await Database.open(own_server.url, purpose="test", size=2)
    yield made
    await made.close()


async def lose_power_after_a_change(shop: Database, server: OwnServer) -> int:
    """Return how many of 50 events are there that were accepted after a reload, and then the server was killed."""
    await accept_events(shop, {"n": -1})
    server.set(**LOSING)
    await eventually(lambda: shop.monitor.safety.weak)
    await accept_events(shop, *({"n": n} for n in range(50)))
    server.kill_all()
    await asyncio.to_thread(server.restart)
    with psycopg.connect(server.url) as connection:
        row = connection.execute("select count(*) from boathook.event").fetchone()
    assert row is not None
    return int(row[0]) - 1


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
async def test_events_accepted_after_a_reload_survive_a_crash(shop: Database, own_server: OwnServer) -> None:
    assert await lose_power_after_a_change(shop, own_server) == 50


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
async def test_without_session_settings_events_are_lost(own_server: OwnServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mutant of the test above, which shows that it can fail."""

    async def ask_for_nothing(_url: str, _timeout_s: float) -> dict[str, str]:
        return {}

    monkeypatch.setattr(database, "read_session_settings", ask_for_nothing)
    monkeypatch.setattr(server_monitor, "HEARTBEAT_INTERVAL_S", 0.1)
    shop = await Database.open(own_server.url, purpose="test", size=2)
    assert await lose_power_after_a_change(shop, own_server) < 50
    await shop.close()


@pytest.mark.parametrize(
    ("level", "ours"),
    sampled(
        [("off", "on"), ("remote_apply", "remote_apply"), ("local", "on"), ("remote_write", "on"), ("on", "on")], keep=1
    ),
)
async def test_the_level_of_commits_is_never_below_on(level: str, ours: str, own_server: OwnServer) -> None:
    own_server.set(synchronous_commit=level)
    shop = await Database.open(own_server.url, purpose="test", size=1)
    for _ in range(2):  # the second time after a reset
        assert await shop.fetchval("show synchronous_commit") == ours
    await shop.close()


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
async def test_a_stronger_level_reaches_connections_made_from_then_on(shop: Database, own_server: OwnServer) -> None:
    assert await shop.fetchval("show synchronous_commit") == "on"
    own_server.set(synchronous_commit="remote_apply")
    await eventually(lambda: shop.monitor.level == "remote_apply")
    await shop.execute("select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'boathook:test'"
                       " and pid <> pg_backend_pid()")  # fmt: skip
    async with shop.acquire() as one, shop.acquire() as other:
        assert {await one.fetchval("show synchronous_commit"), await other.fetchval("show synchronous_commit")} == {
            "on", "remote_apply",
        }  # fmt: skip


@pytest.mark.parametrize("level", sampled(["remote_write", "local"], keep=1))
async def test_a_level_that_ignores_the_standby_is_refused(level: str, shop: Database, own_server: OwnServer) -> None:
    own_server.set(synchronous_commit=level)
    assert await check_safety(shop) == []  # there is no standby to be ignored
    own_server.set(synchronous_standby_names="somebody")
    with pytest.raises(UnsafeDatabase, match=f"synchronous_commit is {level} on this server"):
        await check_safety(shop)
    assert len(await check_safety(shop, allow_unsafe=True)) == 1


@pytest.mark.parametrize("setting", sampled(["fsync", "full_page_writes"], keep=1))
async def test_settings_are_read_again_with_each_sign_of_life(
    setting: str, shop: Database, own_server: OwnServer
) -> None:
    assert shop.unsafe_because == []
    own_server.set(**{setting: "off"})
    await eventually(lambda: shop.unsafe_because)
    assert shop.unsafe_because[0].startswith(f"{setting} is off on this server")
    own_server.set(**{setting: "on"})
    await eventually(lambda: not shop.unsafe_because)


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
async def test_settings_are_read_again_after_a_restart(shop: Database, own_server: OwnServer) -> None:
    own_server.stop("fast")
    with (own_server.data / "postgresql.auto.conf").open("a") as settings:
        settings.write("fsync = off\n")
    await asyncio.to_thread(own_server.restart)
    await eventually(lambda: shop.unsafe_because)


@pytest.fixture
def make(tmp_path: Path, own_server: OwnServer) -> Iterator[Callable[..., BoathookProcess]]:
    with boathook_processes(tmp_path, own_server.url) as made:
        yield made


@pytest.fixture
def alert_receiver() -> Iterator[AlertReceiver]:
    with AlertReceiver() as made:
        yield made


def post(running: BoathookProcess, key: str) -> int:
    body, headers = signed(payload(key))
    return httpx.post(f"{running.base}/in/stripe", content=body, headers=headers, timeout=60).status_code


def events(server: OwnServer, which: LiteralString = "source = 'stripe'") -> int:
    with psycopg.connect(server.url) as connection:
        row = connection.execute("select count(*) from boathook.event where " + which).fetchone()
    assert row is not None
    return int(row[0])


def readiness(running: BoathookProcess) -> tuple[int, dict[str, Any]]:
    answer = httpx.get(f"{running.base}/readyz", timeout=60)
    return answer.status_code, answer.json()


def figure(running: BoathookProcess, name: str) -> float:
    text = httpx.get(f"{running.base}/metrics", timeout=60).text
    return next((float(line.split()[1]) for line in text.splitlines() if line.startswith(f"{name} ")), 0.0)


@pytest.mark.extended("whole installations, with PostgreSQL and its settings changed under them")
def test_unsafe_settings_divert_events_to_the_spool_and_alert(
    make, own_server: OwnServer, alert_receiver: AlertReceiver
) -> None:
    extra = QUICK.format(url=alert_receiver.url, secret=SECRET) + RULE
    running = make(roles="gateway,worker,keeper,console", extra=extra)
    token = running.cli("keys", "create", "--scope", "organization").stdout.strip()
    headers = {"authorization": f"Bearer {token}", "connection": "close"}

    def api(path: str, body: object) -> int:
        return httpx.post(f"{running.base}/api/v1{path}", json=body, headers=headers, timeout=60).status_code

    until(lambda: api("/app", {"name": "Acme", "uid": "acme"}) in {201, 409})
    assert post(running, "before") == 200
    until(lambda: events(own_server) == 1)

    own_server.set(fsync="off")
    until(lambda: readiness(running)[1]["notes"])
    status, told = readiness(running)
    assert status == 200
    assert "fsync is off" in told["notes"][0]
    assert post(running, "meanwhile") == 200
    until(lambda: figure(running, "boathook_spool_events") == 1)
    message = {"eventType": "invoice.paid", "payload": {}}
    assert api("/app/acme/msg", message) == 202
    until(lambda: figure(running, "boathook_spool_events") == 2)
    assert api("/app", {"name": "Beta"}) == 503
    assert events(own_server) == 1
    assert figure(running, "boathook_database_unsafe") == 1
    assert alert_receiver.await_kind("database_unsafe", "firing")["severity"] == "critical"
    assert "fsync is off" in running.cli("doctor", check=False).stdout

    own_server.set(fsync="on")
    until(lambda: events(own_server) == 2)
    until(lambda: figure(running, "boathook_spool_events") == 0)
    until(lambda: api("/app/acme/msg", message) == 202)
    assert events(own_server, "application is not null") == 2
    until(lambda: readiness(running)[1]["notes"] == [])
    alert_receiver.await_kind("database_unsafe", "firing", "recovered")


@pytest.mark.extended("whole installations, with PostgreSQL and its settings changed under them")
def test_without_a_spool_events_are_refused(make, own_server: OwnServer) -> None:
    running = make(extra="[spool]\nenabled = false\n")
    assert post(running, "before") == 200
    own_server.set(full_page_writes="off")
    keys = (f"meanwhile {number}" for number in itertools.count())
    until(lambda: post(running, next(keys)) == 503)
    assert readiness(running)[0] == 503
    stored = events(own_server)
    assert post(running, "refused") == 503
    assert events(own_server) == stored
    own_server.set(full_page_writes="on")
    until(lambda: post(running, "refused") == 200)


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
async def test_without_the_safety_check_an_unsafe_server_is_accepted(
    shop: Database, own_server: OwnServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Mutant of the tests above: the settings read are not assessed."""
    monkeypatch.setattr(server_monitor, "assess_safety", lambda _row: Safety())
    own_server.set(fsync="off")
    await eventually(lambda: shop.monitor.level)
    assert shop.unsafe_because == []
    shop.require_safety()
