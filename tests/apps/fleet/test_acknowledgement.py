"""Requests are acknowledged once stored, in bursts and with stalled handlers."""

import json
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import psycopg
import pytest

from tests.apps.fleet.server import PATH, TOKEN, FleetServer, new_id, started
from tests.support import until

BURST = 500
"""All at once: a fleet sends some requests a second."""
CLIENTS = 32


@pytest.fixture(scope="module")
def server(tmp_path_factory, admin_url, pg_template):
    with started(tmp_path_factory.mktemp("fleet"), admin_url, pg_template) as running:
        yield running


def burst(server: FleetServer) -> tuple[list[int], float, list[int]]:
    """Send a burst; return the statuses, the 95th percentile of the answers' times in seconds, and the cars."""
    cars = [new_id() for _ in range(BURST)]
    limits = httpx.Limits(max_connections=CLIENTS, max_keepalive_connections=CLIENTS)
    with httpx.Client(base_url=server.base, params={"token": TOKEN}, timeout=300, limits=limits) as client:

        def send(car: int) -> tuple[int, float]:
            body = json.dumps({"event": "car_create", "payload": {"id": car}})
            started = time.monotonic()
            status = client.post(PATH, content=body, headers={"content-type": "application/json"}).status_code
            return status, time.monotonic() - started

        with ThreadPoolExecutor(CLIENTS) as threads:
            answers = list(threads.map(send, cars))
    times = sorted(took for _, took in answers)
    return [status for status, _ in answers], times[int(len(times) * 0.95)], cars


def measure(server: FleetServer) -> tuple[float, float, list[int]]:
    """Return the p95 latency of a burst, that of one with stalled handlers, and the latter's cars."""
    statuses, usual, _ = burst(server)
    assert set(statuses) == {200}
    until(server.is_idle)
    with psycopg.connect(server.database_url) as connection:
        connection.execute("lock table fleet.change in access exclusive mode")
        statuses, stalled, cars = burst(server)
        assert set(statuses) == {200}
        until(
            lambda: server.rows(
                "select from pg_locks where not granted and pid in (select pid from pg_stat_activity where datname = current_database())"
            )
        )
    until(server.is_idle)
    return usual, stalled, cars


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_a_burst_is_accepted_and_stalled_handlers_delay_no_response(server: FleetServer):
    for _ in range(3):  # on a busy machine one measurement says little
        usual, stalled, stalled_cars = measure(server)
        if stalled <= 2 * usual:
            break
    else:
        usual, stalled, stalled_cars = measure(server)
    print(f"p95 {usual * 1_000:.0f} ms, with handlers that stand still {stalled * 1_000:.0f} ms")  # noqa: T201
    assert stalled <= 2 * usual, "handlers that stand still delay the answers"
    kept = {row["id"] for row in server.rows("select id from fleet.cars")}
    assert kept >= set(map(str, stalled_cars)), "what was acknowledged was not handled"
