"""The self-test shows what is in force: Redis, requests in flight, a shutdown, keys in memory."""

import http.client
import json
import re
import signal
import socket
from typing import Any

import httpx
import pytest

from boathook.observability.live_metrics import LiveMetrics
from boathook_fleet.settings import FleetSettings, read_size, show_size
from boathook_fleet.status import Figures, describe, selftest
from tests.apps.fleet.server import PATH, UMNICO, FleetServer, new_id, started
from tests.redis_server import running_redis
from tests.support import until

REQUEST = f"POST {PATH} HTTP/1.1\r\nhost: boathook\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{{"


@pytest.fixture(scope="module")
def server(tmp_path_factory, admin_url, pg_template):
    with started(tmp_path_factory.mktemp("status"), admin_url, pg_template) as running:
        yield running


def shown(server: FleetServer) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{server.base}/webhooks/_selftest", timeout=300).json()
    return found


def address(server: FleetServer) -> tuple[str, int]:
    url = httpx.URL(server.base)
    return url.host, url.port or 80


def test_requests_in_flight_are_counted(server: FleetServer):
    with socket.create_connection(address(server), timeout=300) as first:
        first.sendall(REQUEST.encode())
        with socket.create_connection(address(server), timeout=300) as second:
            second.sendall(REQUEST.encode())
            until(lambda: shown(server)["readiness"]["server_inflight"] >= 2)
            metrics = httpx.get(f"{server.base}/metrics", timeout=300).text
            found = re.search(r"^boathook_requests_in_flight (\S+)", metrics, re.MULTILINE)
            assert found is not None
            assert float(found[1]) >= 2
    until(lambda: shown(server)["readiness"]["server_inflight"] == 0)


def test_keys_in_memory_are_those_of_sources_without_an_object(server: FleetServer):
    before = shown(server)["dedup"]["memorySize"]
    server.send_event("car_create", {"id": new_id()})
    message = {"type": "message.incoming", "leadId": new_id(), "message": {"text": "hello"}}
    response = server.post(message, path="/api/umnico/webhook", token=UMNICO)
    assert response.status_code == 200
    until(lambda: shown(server)["dedup"]["memorySize"] == before + 1)


def test_a_shutdown_is_shown(tmp_path, admin_url, pg_template):
    with started(tmp_path, admin_url, pg_template, environment={"BOATHOOK_SERVER_LINGER_S": "60"}) as server:
        assert server.process is not None
        connection = http.client.HTTPConnection(*address(server), timeout=300)
        assert ask(connection)["readiness"]["shutting_down"] is False
        server.process.send_signal(signal.SIGTERM)
        live_metrics = LiveMetrics(server.folder / "data")
        until(lambda: live_metrics.now().gauge("boathook_gateways_stopping") == 1)
        assert ask(connection)["readiness"]["shutting_down"] is True


def ask(connection: http.client.HTTPConnection) -> dict[str, Any]:
    connection.request("GET", "/webhooks/_selftest")
    found: dict[str, Any] = json.loads(connection.getresponse().read())
    return found


def test_redis_is_up_and_down_and_up_again(tmp_path, admin_url, pg_template):
    with running_redis(tmp_path) as redis:
        extra = f'[shared]\nredis = "{redis.url}"\n'
        with started(tmp_path, admin_url, pg_template, extra=extra) as server:
            until(lambda: shown(server)["redis"] == "up")
            redis.kill()
            until(lambda: shown(server)["redis"] == "down")
            redis.start()
            until(lambda: shown(server)["redis"] == "up")


PRINTED = {
    "": {"ok", "jsonLimit", "rateRps", "redis", "queue", "readiness", "dedup", "metrics"},
    "queue": {"inflight", "pending", "fetch_full_backlog"},
    "readiness": {"shutting_down", "server_inflight"},
    "dedup": {"backend", "ttl", "memorySize"},
    "metrics": {"webhook_ok_1m", "webhook_err_1m", "webhook_ack_avg_ms_1m"},
}
"""The fields of the document, section 2.4.2, without `iconv`: Python converts text itself."""


def gauges(**values: float) -> Figures:
    metrics = {name: {"series": [{"labels": {}, "value": value}]} for name, value in values.items()}
    return Figures({"at": 0, "window_s": 60.0, "problems": [], "metrics": metrics}, "handler:fleet.")


@pytest.mark.parametrize("table", PRINTED)
def test_the_fields_of_the_document_are_there(table: str):
    document = selftest(describe(gauges(), FleetSettings(max_body=262_144)), {"parser": True})
    assert PRINTED[table] <= (document[table] if table else document).keys()
    assert document["jsonLimit"] == "256kb"


@pytest.mark.parametrize(("value", "word"), [(None, "absent"), (0.0, "up"), (1.0, "down")])
def test_redis_is_up_down_or_absent(value: float | None, word: str):
    figures = gauges() if value is None else gauges(boathook_redis_unavailable=value)
    assert describe(figures, FleetSettings())["redis"] == word


@pytest.mark.parametrize("size", [1_024, 5_000, 262_144, 64 * 1024**2])
def test_a_shown_size_is_read_back(size: int):
    assert read_size(show_size(size)) == size
