"""Processes die at every failpoint, and the store still agrees with the senders' record."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest

from boathook.observability.failpoints import FAILPOINTS
from tests.acceptance.conftest import BoathookProcess, payload, signed
from tests.acceptance.svix.test_crashes import PUBLISHING
from tests.crash_schedule import CrashSchedule
from tests.databases import created
from tests.faults.conftest import Sender, effect_counts, judge, open_deliveries, stored_keys
from tests.faults.rig.postgres import OwnServer
from tests.faults.test_database import SPOOL_POINTS
from tests.faults.test_sending import SEND_POINTS
from tests.support import until

GATEWAY_POINTS = [point for point in FAILPOINTS if point.startswith("accept.")]
WORKER_POINTS = {
    steps[0]: [point for point in FAILPOINTS if point.startswith(tuple(f"{step}." for step in steps))]
    for steps in (("claim", "handler"), ("retry",), ("dead",))
}
KEEPER_POINTS = [point for point in FAILPOINTS if point.startswith("keeper.")]

ENDED_BEFORE = {"handler.after_commit", "retry.after_schedule", "dead.after_move"}
"""Points behind the record of the attempt, at which nothing is lost but what else the worker had under way."""


def test_gateway_and_worker_are_killed_under_load(boathook: Callable[..., BoathookProcess], settle_and_judge):
    running = boathook()
    with Sender(running.base) as sender:
        for role in ("gateway", "worker", "gateway", "worker", "keeper"):
            sender.wait_for(30)
            running.kill(role)
        sender.wait_for(30)
    settle_and_judge(running, sender)


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_everything_is_killed_and_restarted(boathook: Callable[..., BoathookProcess], settle_and_judge):
    running = boathook()
    with Sender(running.base) as sender:
        for _ in range(2):
            sender.wait_for(40)
            running.kill_all()
            running.start()
        sender.wait_for(40)
    settle_and_judge(running, sender)


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_gateways_die_at_every_point(boathook: Callable[..., BoathookProcess], settle_and_judge, tmp_path):
    crashes = CrashSchedule(tmp_path, dict.fromkeys(GATEWAY_POINTS, 20))
    running = boathook(**crashes.environment)
    with Sender(running.base, retries=40) as sender:
        crashes.wait()
        sender.wait_for(30)
    settle_and_judge(running, sender)
    assert any(0 in statuses for statuses in sender.answered.values()), "nobody noticed the crashes"


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
@pytest.mark.parametrize("steps", WORKER_POINTS)
def test_workers_die_at_every_point_of(
    steps: str, boathook: Callable[..., BoathookProcess], settle_and_judge, tmp_path
):
    crashes = CrashSchedule(tmp_path, dict.fromkeys(WORKER_POINTS[steps], 5))
    kind = {"retry": "flaky.now", "dead": "broken.now"}.get(steps, "payment.paid")
    running = boathook(**crashes.environment, SHOP_FIXED=str(tmp_path / "fixed"))
    with Sender(running.base, kind=kind, threads=2) as sender:
        crashes.wait()
        (tmp_path / "fixed").touch()
        sender.wait_for(20)
    if kind == "broken.now":
        until(lambda: open_deliveries(running.database_url) == 0)
        running.cli("dead", "replay", "--all", "--yes")
    settle_and_judge(running, sender)
    assert _lost(running) >= len(crashes.hits.keys() - ENDED_BEFORE), "an attempt that died is on no record"


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_keepers_die_at_every_point(boathook: Callable[..., BoathookProcess], settle_and_judge, tmp_path):
    crashes = CrashSchedule(tmp_path, dict.fromkeys(KEEPER_POINTS, 1))
    running = boathook(**crashes.environment)
    with Sender(running.base) as sender:
        while crashes.pending():
            sender.wait_for(10)
            # A worker that dies is soon replaced, and its successor takes its leases over; of a frozen one they run out.
            with _frozen(running.children("worker")), contextlib.suppress(AssertionError):
                until(lambda: not crashes.pending(), timeout=6)
        sender.wait_for(20)
    settle_and_judge(running, sender)


@contextlib.contextmanager
def _frozen(processes: Sequence[psutil.Process]) -> Iterator[None]:
    for process in processes:
        process.suspend()
    yield
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()


def test_every_failpoint_is_covered():
    walked = [
        *GATEWAY_POINTS,
        *chain.from_iterable(WORKER_POINTS.values()),
        *KEEPER_POINTS,
        *SPOOL_POINTS,
        *SEND_POINTS,
        *PUBLISHING,
    ]
    assert sorted(walked) == sorted(FAILPOINTS)


def _lost(running: BoathookProcess) -> int:
    with psycopg.connect(running.database_url, autocommit=True) as connection:
        row = connection.execute("select count(*) from boathook.attempt where outcome = 'lost'").fetchone()
        assert row is not None
        return int(row[0])


def test_postgresql_is_killed_and_restarted(
    boathook: Callable[..., BoathookProcess], settle_and_judge, own_server: OwnServer
):
    running = boathook(database_url=own_server.url)
    with Sender(running.base, retries=200) as sender:
        for _ in range(2):
            sender.wait_for(30)
            own_server.kill()
            own_server.restart()
        sender.wait_for(30)
    settle_and_judge(running, sender)


def test_a_frozen_worker_commits_nothing_after_its_lease(boathook: Callable[..., BoathookProcess], settle_and_judge):
    running = boathook()
    url = running.database_url
    body, headers = signed(payload("evt_slow", "slow.job", seconds=1.5))
    with Sender(running.base, threads=1) as sender:
        import httpx

        assert httpx.post(f"{running.base}/in/stripe", content=body, headers=headers).status_code == 200
        sender.answered["evt_slow"] = {200}
        until(lambda: _leased(url, "evt_slow"))
        frozen = running.children("worker")
        for process in frozen:
            os.kill(process.pid, signal.SIGSTOP)
        other = boathook(roles="worker,keeper", wait=False)
        until(lambda: effect_counts(url)["evt_slow"] == 1)
        for process in frozen:
            os.kill(process.pid, signal.SIGCONT)
        sender.wait_for(20)
    settle_and_judge(running, sender)
    assert effect_counts(url)["evt_slow"] == 1
    assert other.stop() == 0


def _leased(url: str, key: str) -> bool:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute(
            "select count(*) from boathook.delivery d join boathook.event e on e.id = d.event_id"
            " where e.dedup_key = %s and d.state = 'leased'",
            [key],
        ).fetchone()
        return row == (1,)


def test_a_rolling_stop_fails_no_request(boathook: Callable[..., BoathookProcess], settle_and_judge):
    running = boathook()
    with Sender(running.base) as sender:
        sender.wait_for(30)
        first = running.process
        assert first is not None
        assert running.stop() == 0
        stopped = time.monotonic()
        while 0 not in {status for statuses in list(sender.answered.values()) for status in statuses}:
            assert time.monotonic() - stopped < 300
        running.start()
        sender.wait_for(30)
    settle_and_judge(running, sender)
    assert 500 not in {status for statuses in sender.answered.values() for status in statuses}


@pytest.fixture(scope="module")
def sound(shared_boathook: Callable[..., BoathookProcess]) -> tuple[str, set[str]]:
    """A sound store without running processes, and the keys that were accepted into it."""
    running = shared_boathook()
    with Sender(running.base, threads=2) as sender:
        sender.wait_for(10)
    until(lambda: open_deliveries(running.database_url) == 0)
    assert running.stop() == 0
    judge(running.database_url, sender.answered, sender.accepted)
    return running.database_url, sender.accepted


class TestDamageIsDetected:
    """Mutant: each kind of manual damage to a copy of a consistent store is detected."""

    @pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
    @pytest.mark.parametrize(
        ("damage", "words"),
        [
            ("delete from boathook.event where dedup_key = 'evt_0_0'", "not stored"),
            ("update boathook.event set dedup_key = 'evt_x' where dedup_key = 'evt_0_0'", "not stored"),
            ("insert into shop.effect (event_key) values ('evt_0_0')", "exactly once"),
            ("delete from shop.effect where event_key = 'evt_0_0'", "without their effect"),
        ],
    )
    def test_damage_is_found(self, damage: str, words: str, sound: tuple[str, set[str]], admin_url: str):
        url, accepted = sound
        with created(admin_url, urlsplit(url).path.strip("/")) as store:
            judge(store, accepted, accepted)
            with psycopg.connect(store, autocommit=True) as connection:
                connection.execute(damage)
            with pytest.raises(AssertionError, match=words):
                judge(store, accepted, accepted)
            assert stored_keys(store)
