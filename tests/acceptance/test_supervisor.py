"""The supervisor and its children: start, crash, kill, stop, and their log lines."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import httpx
import psutil
import psycopg
import pytest

from tests.acceptance.conftest import BoathookProcess, payload, signed
from tests.support import until

GATEWAY = "gateway"


@pytest.fixture(scope="module")
def shared(shared_boathook: Callable[..., BoathookProcess]) -> BoathookProcess:
    """A gateway shared by tests that do not stop it; event keys keep them apart."""
    return shared_boathook(roles=GATEWAY)


def post(running: BoathookProcess, key: str, **options: object) -> httpx.Response:
    body, headers = signed(payload(key), **options)
    return httpx.post(f"{running.base}/in/stripe", content=body, headers=headers, timeout=300)


def is_up(running: BoathookProcess) -> bool:
    try:
        return httpx.get(f"{running.base}/readyz", timeout=1).status_code == 200
    except httpx.TransportError:
        return False


def log_lines(running: BoathookProcess) -> list[dict[str, Any]]:
    return [json.loads(line) for line in running.log().splitlines()]


def test_a_killed_gateway_is_replaced_and_keeps_its_counts(boathook: Callable[..., BoathookProcess]):
    running = boathook(roles=GATEWAY)
    assert post(running, "evt_1").status_code == 200
    metric = 'boathook_events_accepted_total{source="stripe"} '
    until(lambda: _written(running, "gateway-0") >= 1)
    [first] = running.children("gateway")
    first.kill()
    until(lambda: [child.pid for child in running.children("gateway")] not in ([], [first.pid]))
    until(lambda: is_up(running))
    assert post(running, "evt_2").status_code == 200
    assert f"{metric}2" in httpx.get(f"{running.base}/metrics").text
    ended = [line for line in log_lines(running) if line["event"] == "child_ended"]
    assert [(line["child"], line["pid"], line["how"]) for line in ended] == [("gateway-0", first.pid, "signal SIGKILL")]


def _written(running: BoathookProcess, slot: str) -> float:
    path = running.folder / "data" / "metrics" / f"{slot}.json"
    series = json.loads(path.read_text())["series"]["boathook_events_accepted_total"] if path.exists() else []
    return sum(value for _, value in series)


def fork_server(running: BoathookProcess) -> psutil.Process:
    assert running.process is not None
    [found] = psutil.Process(running.process.pid).children()
    assert found.cmdline()[0] == "boathook: fork server"
    return found


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_gateways_survive_the_loss_of_the_fork_server(boathook: Callable[..., BoathookProcess]):
    running = boathook(roles="gateway,keeper")
    [gateway], [keeper] = running.children("gateway"), running.children("keeper")
    fork_server(running).kill()
    running.wait_logged("fork_server_ended")
    assert post(running, "evt_without_it").status_code == 200
    keeper.kill()
    until(lambda: [child.pid for child in running.children("keeper")] not in ([], [keeper.pid]))
    assert gateway.is_running()
    assert post(running, "evt_with_another").status_code == 200
    running.stop()
    assert [line for line in log_lines(running) if line["event"] == "child_killed"] == []


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_children_end_with_their_supervisor(boathook: Callable[..., BoathookProcess]):
    running = boathook(senders=1)
    children = [
        psutil.Process(child.pid)
        for role in ("gateway", "worker", "suspects", "sender", "keeper")
        for child in running.children(role)
    ]
    assert len(children) == 5
    assert running.process is not None
    running.process.kill()
    running.process.wait()
    _, alive = psutil.wait_procs(children, timeout=300)
    assert alive == []
    running.start()
    assert post(running, "evt_after").status_code == 200


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_a_frozen_gateway_is_killed_and_replaced(boathook: Callable[..., BoathookProcess]):
    running = boathook(roles=GATEWAY)
    [frozen] = running.children("gateway")
    os.kill(frozen.pid, signal.SIGSTOP)
    until(lambda: [child.pid for child in running.children("gateway")] not in ([], [frozen.pid]))
    until(lambda: is_up(running))
    assert any(line["event"] == "child_stuck" for line in log_lines(running))


@pytest.mark.extended("starts processes of its own; signals and exit codes stay")
def test_a_second_serve_on_the_same_address_is_explained(shared: BoathookProcess):
    done = subprocess.run(
        [sys.executable, "-m", "boathook", "serve", "--data-dir", "other"],
        cwd=shared.folder,
        env=shared.environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode != 0
    assert f"127.0.0.1:{shared.port}" in done.stderr
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr
    assert is_up(shared)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (("shop:hook", "shop:nothing"), ["server.app", "nothing"]),
        (("shop:hook", "nowhere:hook"), ["server.app", "nowhere"]),
        (('provider = "stripe"', 'provider = "strpe"'), ["sources.stripe.provider", "stripe"]),
        (
            ('secrets = ["whsec_acceptance"]', 'secrets = ["env:NO_SUCH_SECRET"]'),
            ["sources.stripe.secrets[0]", "NO_SUCH_SECRET"],
        ),
    ],
)
def test_a_wrong_set_up_ends_with_one_sentence(
    boathook: Callable[..., BoathookProcess], change: tuple[str, str], words: list[str]
):
    running = boathook(roles=GATEWAY, start=False)
    file = running.folder / "boathook.toml"
    assert change[0] in file.read_text()
    file.write_text(file.read_text().replace(*change))
    done = running.cli("serve", check=False)
    assert done.returncode not in (0, 1)
    for word in words:
        assert word in done.stderr
    assert "Traceback" not in done.stderr


def test_the_log_has_a_traceback_for_the_first_failure_of_a_cause(boathook: Callable[..., BoathookProcess]):
    running = boathook()
    body, headers = signed(payload("evt_broken", "broken.thing"))
    assert httpx.post(f"{running.base}/in/stripe", content=body, headers=headers, timeout=300).status_code == 200
    until(lambda: any(line["event"] == "attempt_failed" and line["outcome"] == "dead" for line in log_lines(running)))
    failed = [line for line in log_lines(running) if line["event"] == "attempt_failed"]
    assert [("traceback" in line) for line in failed] == [True, False, False, False]
    assert "shop.py" in failed[0]["traceback"]


def test_a_cut_connection_to_the_database_is_made_again(boathook: Callable[..., BoathookProcess]):
    running = boathook(roles=GATEWAY)
    assert post(running, "evt_before_cut").status_code == 200
    with psycopg.connect(running.database_url, autocommit=True) as admin:
        admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
    assert post(running, "evt_at_once").status_code in (200, 503)
    until(lambda: post(running, "evt_at_once").status_code == 200)


def test_selftest_leaves_no_trace(shared: BoathookProcess):
    def traces() -> list[int]:
        with psycopg.connect(shared.database_url) as connection:
            rows = [connection.execute(f"select count(*) from boathook.{table}").fetchall() for table in tables]
        return [count for [(count,)] in rows]

    tables = ("event", "dedup", "delivery", "rejection", "conflict")
    before = traces()
    answer = httpx.get(f"{shared.base}/selftest", timeout=300)
    assert (answer.status_code, answer.json()["ok"]) == (200, True)
    assert {check["name"] for check in answer.json()["checks"]} == {"database", "accept", "spool", "source stripe"}
    assert traces() == before


def test_rejections_are_kept_within_bounds_and_without_credentials(boathook: Callable[..., BoathookProcess]):
    running = boathook(
        roles=GATEWAY,
        extra="""
            [retention]
            rejections_rate = 5.0
            [sources.door]
            provider = "token"
            header = "X-Door"
            secrets = ["canary-door"]
        """,
    )
    began = time.monotonic()
    with httpx.Client(base_url=running.base) as client:
        for n in range(60):
            answer = client.post(
                "/in/stripe",
                content=b"\x00\xff{}" * 30_000,
                headers={
                    "stripe-signature": f"t=1,v1={n:064x}",
                    "authorization": "Bearer canary-bearer",
                    "cookie": "canary-cookie",
                },
            )
            assert answer.status_code == 401
            assert set(answer.json()) == {"ok", "error", "request_id"}
        assert client.post("/in/door", content=b"x", headers={"X-Door": "canary-wrong"}).status_code == 401

    def kept() -> list[tuple[str, str, bytes, int, str]]:
        with psycopg.connect(running.database_url) as connection:
            return connection.execute(
                "select source, reason, body, body_size, headers::text || url || detail from boathook.rejection"
            ).fetchall()

    most = 5 + 5 * (time.monotonic() - began)
    until(lambda: {row[0] for row in kept()} == {"stripe", "door"})
    stripe = [row for row in kept() if row[0] == "stripe"]
    assert 5 <= len(stripe) <= most
    assert all(len(row[2]) == 65_536 and row[3] == 120_000 for row in stripe)
    assert "canary" not in str([row[4] for row in kept()])
    metrics = httpx.get(f"{running.base}/metrics").text
    assert 'boathook_rejections_dropped_total{source="stripe"}' in metrics
    assert "canary" not in running.log() + metrics


def test_an_event_routed_by_outdated_routes_is_routed_again(shared: BoathookProcess):
    assert post(shared, "evt_before").status_code == 200
    with psycopg.connect(shared.database_url, autocommit=True) as connection:
        connection.execute("""
            insert into boathook.route (recipient, position, app, source, types, policy, timeout_s)
            values ('handler:late', 0, 'another', 'stripe', '{*}', '{}', 30)
        """)
        assert post(shared, "evt_late").status_code == 200
        owed = connection.execute(
            "select d.recipient from boathook.delivery d join boathook.event e on e.id = d.event_id"
            " where e.dedup_key = 'evt_late' order by 1"
        ).fetchall()
    assert owed == [("handler:late",), ("handler:pay",)]


def test_log_lines_name_request_event_source_and_key(boathook: Callable[..., BoathookProcess]):
    running = boathook(roles=GATEWAY)
    answers = [post(running, "evt_logged").json(), post(running, "evt_logged").json()]
    post(running, "evt_forged", secret="whsec_wrong")
    assert running.stop() == 0
    lines = [line for line in log_lines(running) if line.get("part") == "ingest" and "request_id" in line]
    assert [(line["event"], line["source"], line.get("dedup_key")) for line in lines] == [
        ("accepted", "stripe", "evt_logged"),
        ("duplicate", "stripe", "evt_logged"),
        ("refused", "stripe", None),
    ]
    assert [line["request_id"] for line in lines[:2]] == [answer["request_id"] for answer in answers]
    assert all(line["event_id"] == answers[0]["event_id"] and line["ms"] > 0 for line in lines[:2])
    assert lines[2]["reason"] == "signature_mismatch"


@pytest.mark.extended("starts several servers of its own")
def test_two_gateways_share_the_port_and_the_counts(boathook: Callable[..., BoathookProcess]):
    running = boathook(roles=GATEWAY, extra="")
    assert running.stop() == 0
    running.start(BOATHOOK_SERVER_GATEWAYS="2")
    until(lambda: len(running.children("gateway")) == 2)
    for n in range(40):
        # Either takes connections before it has reached PostgreSQL, and answers 503 until then, as senders expect.
        until(partial(_is_taken, running, f"evt_{n}"))
    metric = 'boathook_events_accepted_total{source="stripe"} 40'
    until(lambda: metric in httpx.get(f"{running.base}/metrics").text)
    assert running.stop() == 0


def test_stopping_finishes_work_in_progress(boathook: Callable[..., BoathookProcess]):
    running = boathook(roles="gateway,worker,keeper")
    body, headers = signed(payload("evt_slow", "slow.job", seconds=1.5))
    assert httpx.post(f"{running.base}/in/stripe", content=body, headers=headers).status_code == 200

    def count(table: str) -> int:
        with psycopg.connect(running.database_url) as connection:
            row = connection.execute(f"select count(*) from {table}").fetchone()
            assert row is not None
            return int(row[0])

    until(lambda: _is_leased(running))
    assert running.stop() == 0
    assert (count("boathook.delivery_archive"), count("shop.effect")) == (1, 1)
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", running.port), timeout=2)


def _is_taken(running: BoathookProcess, key: str) -> bool:
    return post(running, key).status_code == 200


def _is_leased(running: BoathookProcess) -> bool:
    with psycopg.connect(running.database_url) as connection:
        return connection.execute("select count(*) from boathook.delivery where state = 'leased'").fetchone() == (1,)


def test_an_interrupt_stops_like_a_termination(boathook: Callable[..., BoathookProcess]):
    running = boathook(roles=GATEWAY)
    assert running.process is not None
    os.killpg(running.process.pid, signal.SIGINT)
    assert running.process.wait(300) == 0
