"""Changes are sent to browsers over a WebSocket, in order and without gaps."""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from tests.apps.fleet.server import FleetServer, new_id, started
from tests.support import until

T = [f"2026-11-21T10:{minute:02}:00Z" for minute in range(10)]


@pytest.fixture(scope="module")
def server(tmp_path_factory, admin_url, pg_template):
    with started(tmp_path_factory.mktemp("fleet"), admin_url, pg_template, fleet="window_s = 0.05") as running:
        yield running


@contextmanager
def browser(server: FleetServer, query: str = "", token: str | None = None) -> Iterator[ClientConnection]:
    """Connect as a browser does, which can send a token as its first message only."""
    address = f"ws://127.0.0.1:{server.port}/api/rentprog/live{query}"
    with connect(address, origin=Origin(server.base)) as socket:
        socket.send(json.dumps({"token": server.key if token is None else token}))
        yield socket


def frame(socket: ClientConnection) -> dict:
    return json.loads(socket.recv(timeout=300))


def frames_until(socket: ClientConnection, wanted: set[str]) -> list[dict]:
    """Return the frames received until all these things have changed."""
    found: list[dict] = []
    while wanted - {one["id"] for one in found}:
        found.append(frame(socket))
    return found


def test_a_change_is_sent_to_browsers(server: FleetServer):
    with browser(server) as socket:
        hello = frame(socket)
        assert hello["kind"] == "hello"
        car = new_id()
        server.send_event("car_create", {"id": car, "number": "A1", "updated_at": T[0], "branch_id": 4}, user="Анна")
        told = frame(socket)
    assert told.pop("version") > hello["version"]
    assert told == {"kind": "change", "entity": "car", "id": str(car), "action": "create",
                    "at": "2026-11-21T10:00:00+00:00", "branch": "4", "actor": "Анна",
                    "description": f"car {car}: create"}  # fmt: skip
    assert server.thing("cars", car), "told before it could be read"


@pytest.mark.parametrize("token", ["", "wrong"])
def test_live_connections_require_a_token(token: str, server: FleetServer):
    with browser(server, token=token) as socket, pytest.raises(ConnectionClosed):
        frame(socket)
    assert socket.close_code == 1008


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_a_reconnect_gets_the_latest_state_of_missed_changes(server: FleetServer):
    with browser(server) as socket:
        version = frame(socket)["version"]
    cars = [str(new_id()) for _ in range(3)]
    for minute in range(3):
        for car in cars:
            server.send_event("car_update", {"id": int(car), "mileage": minute, "updated_at": T[minute]})
    for car in cars:
        server.known("cars", car, lambda row: row["mileage"] == 2)
    with browser(server, f"?since={version}") as socket:
        hello = frame(socket)
        assert hello["since"] == version
        told = frames_until(socket, set(cars))
        assert len(told) == 3, "each thing once, however often it changed"
        assert all(one["at"].startswith("2026-11-21T10:02") for one in told)
        later = new_id()
        server.send_event("car_create", {"id": later})
        assert frame(socket)["id"] == str(later), "what was caught up with is told again"


def test_versions_rise_and_nothing_is_left_out_under_load(server: FleetServer):
    with browser(server) as socket:
        seen = frame(socket)["version"]
        cars = {str(new_id()) for _ in range(40)}
        for car in cars:
            server.send_event("car_create", {"id": int(car)})
        told = frames_until(socket, cars)
    versions = [seen, *(one["version"] for one in told)]
    assert versions == sorted(set(versions))
    assert {one["id"] for one in told} >= cars


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_a_lost_notification_delays_but_loses_no_change(server: FleetServer):
    with browser(server) as socket:
        frame(socket)
        # Written without the handler, so that there is no notification.
        car = str(new_id())
        server.rows(
            "insert into fleet.feed (entity, entity_id, version, action, at, description)"
            " values ('car', %s, nextval('fleet.feed_version'), 'update', now(), 'without a hint')",
            car,
        )
        assert frames_until(socket, {car})[-1]["description"] == "without a hint"


def test_a_lost_connection_to_the_database_is_made_good(server: FleetServer):
    with browser(server) as socket:
        frame(socket)
        server.rows(
            "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database()"
            " and pid <> pg_backend_pid() and query ilike 'listen%%'"
        )
        car = str(new_id())
        server.send_event("car_create", {"id": int(car)})
        frames_until(socket, {car})


@pytest.mark.parametrize("since", ["x", "-1", "1e3", "9" * 30])
def test_an_invalid_position_closes_the_connection_with_a_reason(since: str, server: FleetServer):
    with browser(server, f"?since={since}") as socket, pytest.raises(ConnectionClosed) as closed:
        socket.recv(timeout=300)
    assert closed.value.rcvd is not None
    assert closed.value.rcvd.code == 1008
    assert "since" in closed.value.rcvd.reason


def test_the_page_is_open_and_holds_no_data(server: FleetServer):
    page = httpx.get(f"{server.base}/api/rentprog/live/page", timeout=300, follow_redirects=True)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    (script,) = re.findall(r'<script src="([^"]*)" defer></script>', page.text)
    code = httpx.get(f"{server.base}{script}", timeout=300)
    assert code.headers["content-type"].startswith("text/javascript")
    assert "innerHTML" not in code.text, "what senders wrote is shown as text"
    policy = page.headers["content-security-policy"]
    assert "script-src 'self'" in policy
    assert "unsafe-inline" not in policy
    assert page.headers["x-content-type-options"] == "nosniff"


def test_a_dashboards_token_reads_but_decides_nothing(server: FleetServer):
    create = ("keys", "create", "--scope", "mount", "--mount", "/api/rentprog", "--role", "reader", "--json")
    token = json.loads(server.cli(*create).stdout)["token"]
    headers = {"authorization": f"Bearer {token}"}
    for path in ("cars", "bookings", "webhook/dead", "errors", "metrics"):
        assert httpx.get(f"{server.base}/api/rentprog/{path}", headers=headers, timeout=300).status_code == 200, path
    with browser(server, token=token) as socket:
        assert frame(socket)["kind"] == "hello"
    for method, path in (("POST", "webhook/dead/cleanup"), ("DELETE", "webhook/dead/any")):
        answer = httpx.request(method, f"{server.base}/api/rentprog/{path}", headers=headers, timeout=300)
        assert answer.status_code == 403, path
    assert httpx.get(f"{server.base}/api/v1/app", headers=headers, timeout=300).status_code == 403
    assert httpx.delete(f"{server.base}/api/v1/app/any", headers=headers, timeout=300).status_code == 403


def test_disconnecting_browsers_cause_no_error(server: FleetServer):
    for _ in range(5):
        with browser(server) as socket:
            frame(socket)
    until(server.is_idle)
    assert not server.rows("select * from fleet.error_log where phase = 'live'")
