"""Pages and WebSockets of apps on the gateway's port, and live messages between processes."""

import asyncio
import contextlib
import json
import socket
import subprocess
import time
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path

import httpx
import psycopg
import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

from tests.acceptance.conftest import BoathookProcess, payload, signed
from tests.acceptance.mounted_app import APP_SOURCE
from tests.acceptance.raw_http import boathook_on_new_database, send_request, write_config
from tests.support import eventually, until

ROOT = Path(__file__).parents[2]
SOURCES = """
[sources.stripe]
provider = "stripe"
secrets = ["whsec_acceptance"]
paths = ["/webhooks/stripe"]
[sources.open]
provider = "token"
header = "X-Token"
unsigned = true
[limits]
max_body = 100000
max_connections_per_client = 60
body_timeout_s = 3
head_timeout_s = 3
"""
ROLES = '["gateway", "worker", "console", "keeper"]'


def serve(running: BoathookProcess, *, gateways: int = 1, more: str = "", sources: str = SOURCES) -> BoathookProcess:
    write_config(
        running,
        sources,
        app="mounted:hook",
        roles=ROLES,
        server=f"gateways = {gateways}\nworkers = 1\nlinger_s = 0.1\ndrain_s = 5\n{more}",
    )
    (running.folder / "mounted.py").write_text(APP_SOURCE)
    running.start()
    life = running.folder / "life.txt"
    until(lambda: life.exists() and len(life.read_text().splitlines()) == gateways)
    until(lambda: all(send_request(running, "GET", "/open").status == 200 for _ in range(10)))
    return running


@pytest.fixture(scope="module")
def mounted_app(
    admin_url: str, pg_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BoathookProcess]:
    """Two gateways and a worker, shared by all tests of this module that kill nothing."""
    with boathook_on_new_database(admin_url, pg_template, tmp_path_factory.mktemp("mounted")) as running:
        yield serve(running, gateways=2)
        assert running.stop() == 0, running.log()[-3000:]


@pytest.fixture(scope="module")
def token(mounted_app: BoathookProcess) -> str:
    return make_token(mounted_app, "--scope", "organization")


def make_token(running: BoathookProcess, *arguments: str) -> str:
    return str(json.loads(running.cli("keys", "create", *arguments, "--json").stdout)["token"])


def url(running: BoathookProcess, path: str) -> str:
    return f"ws://127.0.0.1:{running.port}{path}"


async def refused(running: BoathookProcess, path: str, **more: object) -> tuple[int, bytes]:
    with pytest.raises(InvalidStatus) as caught:
        async with connect(url(running, path), **more):
            pass
    return caught.value.response.status_code, bytes(caught.value.response.body)


# Pages


def test_a_mounted_app_gets_its_full_path_and_root_path(mounted_app: BoathookProcess):
    roots = {
        "/open/": "/open",
        "/open/a/b": "/open",
        "/open/inner/x": "/open/inner",
        "/api/mounted/cars": "/api/mounted",
    }
    for path, root in roots.items():
        got = send_request(mounted_app, "GET", path)
        assert (got.status, got.json["path"], got.json["root"]) == (200, path, root), path
        assert got.headers["x-request-id"].startswith("req_")


def test_the_longest_mounted_path_wins(mounted_app: BoathookProcess):
    assert send_request(mounted_app, "GET", "/open/inner").json["opened"] is None, "this one has no lifespan"
    assert send_request(mounted_app, "GET", "/open/innermost").json["opened"] == "yes"


def test_paths_with_a_similar_prefix_are_not_mounted(mounted_app: BoathookProcess):
    assert send_request(mounted_app, "GET", "/opening").status == 404
    assert send_request(mounted_app, "GET", "/elsewhere").status == 404


def test_paths_of_sources_and_probes_win_over_mounted_ones(mounted_app: BoathookProcess):
    body, headers = signed(payload("evt_wins"))
    got = send_request(mounted_app, "POST", "/webhooks/stripe", headers, body)
    assert (got.status, got.json["ok"]) == (200, True)
    assert send_request(mounted_app, "GET", "/webhooks/stripe").status == 405
    assert send_request(mounted_app, "GET", "/webhooks/other").json["path"] == "/webhooks/other"
    assert send_request(mounted_app, "GET", "/healthz").json["ok"] is True


def test_the_api_stays_where_it_is(mounted_app: BoathookProcess, token: str):
    assert send_request(mounted_app, "GET", "/api/v1/app", {"authorization": f"Bearer {token}"}).status == 200
    assert send_request(mounted_app, "GET", "/api/v1/app").status == 401


def test_an_app_without_a_lifespan_is_served(mounted_app: BoathookProcess):
    assert send_request(mounted_app, "GET", "/plain").body == b"plain"


def test_an_apps_lifespan_gives_its_requests_their_state(mounted_app: BoathookProcess):
    assert send_request(mounted_app, "GET", "/open").json["opened"] == "yes"
    assert until((mounted_app.folder / "life.txt").read_text).splitlines() == ["up", "up"], "once in each gateway"


def test_a_body_above_the_cap_is_refused_before_the_app_reads_it(mounted_app: BoathookProcess):
    got = send_request(mounted_app, "POST", "/open", body=bytes(100_001))
    assert (got.status, got.json["error"]) == (413, "the body is too large")
    assert send_request(mounted_app, "POST", "/open", body=bytes(100_000)).json["size"] == 100_000


def test_a_body_that_announces_no_length_is_capped_too(mounted_app: BoathookProcess):
    def pieces(n: int) -> Iterator[bytes]:
        for _ in range(n):
            yield bytes(1000)

    assert httpx.post(f"{mounted_app.base}/open", content=pieces(100)).json()["size"] == 100_000
    got = httpx.post(f"{mounted_app.base}/open", content=pieces(101))
    assert (got.status_code, got.json()["error"]) == (413, "the body is too large")


def test_a_client_that_does_not_send_its_body_is_refused(mounted_app: BoathookProcess):
    with socket.create_connection(("127.0.0.1", mounted_app.port), timeout=300) as wire:
        wire.sendall(b"POST /open HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nx")
        assert read_all(wire).startswith(b"HTTP/1.1 408 ")


def test_an_app_exception_is_a_500_with_a_logged_traceback(mounted_app: BoathookProcess):
    got = send_request(mounted_app, "GET", "/open/broken")
    assert (got.status, got.json["error"]) == (500, "internal error")
    assert got.json["request_id"] == got.headers["x-request-id"]
    assert "fire" not in got.body.decode()
    until(lambda: got.json["request_id"] in mounted_app.log() and "the page fails on purpose" in mounted_app.log())
    assert send_request(mounted_app, "GET", "/open").status == 200


def test_an_apps_own_500_is_passed_on(mounted_app: BoathookProcess):
    assert send_request(mounted_app, "GET", "/open/own").body == b"my own words"


def test_an_answer_that_breaks_half_way_is_cut_off(mounted_app: BoathookProcess):
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(f"{mounted_app.base}/open/cut")
    assert send_request(mounted_app, "GET", "/open").status == 200


# Who may pass


def test_a_closed_mount_demands_an_organizations_token(mounted_app: BoathookProcess, token: str):
    for headers in ({}, {"authorization": "Bearer bhk_wrong"}, {"authorization": f"Basic {token}"}):
        got = send_request(mounted_app, "GET", "/closed", headers)
        assert (got.status, got.headers["www-authenticate"]) == (401, "Bearer"), headers
        assert got.headers["content-type"] == "application/json"
    got = send_request(mounted_app, "GET", "/closed", {"authorization": f"Bearer {token}"})
    assert got.status == 200
    assert got.json["actor"].startswith("api:key_")


def test_tokens_of_applications_and_of_the_portal_are_refused(mounted_app: BoathookProcess, token: str):
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    assert send_request(mounted_app, "POST", "/api/v1/app", headers, b'{"name": "Acme", "uid": "acme"}').status in {
        201,
        409,
    }
    of_application = make_token(mounted_app, "--scope", "application", "--application", "acme")
    assert send_request(mounted_app, "GET", "/closed", {"authorization": f"Bearer {of_application}"}).status == 403
    portal = send_request(mounted_app, "POST", "/api/v1/auth/app-portal-access/acme", headers, b"{}").json["token"]
    assert send_request(mounted_app, "GET", "/closed", {"authorization": f"Bearer {portal}"}).status == 403


def test_a_revoked_token_is_refused_at_once(mounted_app: BoathookProcess):
    token = make_token(mounted_app, "--scope", "organization")
    headers = {"authorization": f"Bearer {token}"}
    key = send_request(mounted_app, "GET", "/closed", headers).json["actor"].removeprefix("api:")
    mounted_app.cli("keys", "revoke", key)
    assert send_request(mounted_app, "GET", "/closed", headers).status == 401


async def test_a_browser_websocket_passes_its_token_as_its_first_message(mounted_app: BoathookProcess, token: str):
    async with connect(url(mounted_app, "/closed/who"), origin=Origin(mounted_app.base)) as ws:
        await ws.send(json.dumps({"token": token}))
        told = json.loads(await ws.recv())
    assert told["actor"].startswith("api:key_")
    assert told["headers"] == [], "the token is in no header the app sees"


async def test_the_first_message_is_not_the_applications(mounted_app: BoathookProcess, token: str):
    async with connect(url(mounted_app, "/closed/echo")) as ws:
        await ws.send(json.dumps({"token": token}))
        await ws.send("hello")
        assert await ws.recv() == "hello"


async def test_an_application_may_refuse_after_the_first_message(mounted_app: BoathookProcess, token: str):
    async with connect(url(mounted_app, "/closed/refusing")) as ws:
        await ws.send(json.dumps({"token": token}))
        await ws.wait_closed()
    assert ws.close_code == 1000


async def test_a_websocket_may_bring_its_token_in_a_header(mounted_app: BoathookProcess, token: str):
    async with connect(url(mounted_app, "/closed/who"), additional_headers={"authorization": f"Bearer {token}"}) as ws:
        assert json.loads(await ws.recv())["actor"].startswith("api:key_")


async def test_a_websocket_without_a_valid_token_is_refused(mounted_app: BoathookProcess, token: str):
    wrong = {"authorization": "Bearer bhk_wrong"}
    assert (await refused(mounted_app, "/closed/who", additional_headers=wrong))[0] == 401
    for message in ('{"token": "bhk_wrong"}', '{"token": ""}', '{"token": 7}', "hello", b"{}", "[" * 60_000):
        assert await closed_after(mounted_app, message) == 1008, message[:40]
    headers = {"authorization": f"Bearer {token}", "content-type": "application/json"}
    send_request(mounted_app, "POST", "/api/v1/app", headers, b'{"name": "Acme", "uid": "acme"}')
    of_application = make_token(mounted_app, "--scope", "application", "--application", "acme")
    assert await closed_after(mounted_app, json.dumps({"token": of_application})) == 1008
    assert (
        await refused(mounted_app, "/closed/who", additional_headers={"authorization": f"Bearer {of_application}"})
    )[0] == 403


async def closed_after(running: BoathookProcess, message: str | bytes) -> int | None:
    """Return the code with which a WebSocket is closed after its first message."""
    async with connect(url(running, "/closed/who")) as ws:
        await ws.send(message)
        with pytest.raises(ConnectionClosed):
            await ws.recv()
    return ws.close_code


# WebSockets


async def test_a_websocket_carries_messages_both_ways(mounted_app: BoathookProcess):
    async with connect(url(mounted_app, "/open/echo")) as ws:
        for text in ("hello", "", "ж" * 1000, "x" * 65_536):
            await ws.send(text)
            assert await ws.recv() == text
        await ws.send(["in ", "many ", "pieces"])
        assert await ws.recv() == "in many pieces"
        await (await ws.ping())


async def test_the_app_gets_the_peers_close_code(mounted_app: BoathookProcess):
    async with connect(url(mounted_app, "/open/echo?name=anna")) as ws:
        await ws.close(4001, "enough")
    await eventually(lambda: "anna 4001" in (mounted_app.folder / "ends.txt").read_text())


async def test_the_app_gets_1006_when_the_peer_vanishes(mounted_app: BoathookProcess):
    async with connect(url(mounted_app, "/open/echo?name=boris")) as ws:
        await ws.send("x")
        await ws.recv()
        ws.transport.abort()
    await eventually(lambda: "boris 1006" in (mounted_app.folder / "ends.txt").read_text())


async def test_an_apps_close_reaches_its_peer(mounted_app: BoathookProcess):
    async with connect(url(mounted_app, "/open/who")) as ws:
        await ws.recv()
        with pytest.raises(ConnectionClosed):
            await ws.recv()
        assert (ws.close_code, ws.close_reason) == (1000, "bye")


@pytest.mark.parametrize("text", ["x" * 65_537, "x" * 3_000_000, ["x" * 40_000, "y" * 40_000]])
async def test_a_message_above_64_kib_closes_the_websocket(mounted_app: BoathookProcess, text: object):
    async with connect(url(mounted_app, "/open/echo")) as ws:
        with contextlib.suppress(ConnectionClosed):
            await ws.send(text)
        await ws.wait_closed()
        assert ws.close_code == 1009


async def test_text_that_is_not_utf8_closes_the_websocket(mounted_app: BoathookProcess):
    async with connect(url(mounted_app, "/open/echo")) as ws:
        await ws.send(b"\xff\xfe", text=True)
        with pytest.raises(ConnectionClosed):
            await ws.recv()
        assert ws.close_code == 1007


async def test_an_exception_is_a_500_before_the_handshake_and_1011_after(mounted_app: BoathookProcess):
    status, body = await refused(mounted_app, "/open/burning")
    assert (status, json.loads(body)["error"]) == (500, "internal error")
    async with connect(url(mounted_app, "/open/burning?late=1")) as ws:
        with pytest.raises(ConnectionClosed):
            await ws.recv()
        assert ws.close_code == 1011
    mounted_app.wait_logged("the socket is on fire")


async def test_an_app_may_refuse_a_websocket(mounted_app: BoathookProcess):
    assert (await refused(mounted_app, "/open/refusing"))[0] == 403
    assert (await refused(mounted_app, "/plain"))[0] == 500, "it knows of no WebSockets"


@pytest.mark.parametrize("path", ["/elsewhere", "/in/stripe", "/webhooks/stripe", "/api/v1/app", "/healthz"])
async def test_where_nothing_is_mounted_a_websocket_is_an_ordinary_request(mounted_app: BoathookProcess, path: str):
    assert (await refused(mounted_app, path))[0] == send_request(mounted_app, "GET", path).status


ASK = "GET /open/echo HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
KEY = "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
SMUGGLED = b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n"


def answer_to(running: BoathookProcess, wire: bytes) -> bytes:
    with socket.create_connection(("127.0.0.1", running.port), timeout=300) as client:
        client.sendall(wire)
        return read_all(client)


@pytest.mark.parametrize(
    "head",
    [
        ASK + "Upgrade: websocket\r\n\r\n",
        ASK + "Sec-WebSocket-Key: short\r\nUpgrade: websocket\r\n\r\n",
        ASK.replace(": 13", ": 12") + KEY + "Upgrade: websocket\r\n\r\n",
        ASK + KEY + "Upgrade: websocket\r\nContent-Length: 5\r\n\r\nhello",
        ASK + KEY + "Upgrade: websocket\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)
def test_an_ambiguous_websocket_is_refused_and_nothing_after_it_read(mounted_app: BoathookProcess, head: str):
    got = answer_to(mounted_app, head.encode() + SMUGGLED)
    assert got.startswith(b"HTTP/1.1 400 "), got
    assert got.count(b"HTTP/1.1") == 1, got
    assert b'"pid"' not in got


@pytest.mark.parametrize(
    "head",
    [
        ASK + KEY + "Upgrade: h2c\r\n\r\n",
        ASK + KEY + "Upgrade: websocket, h2c\r\n\r\n",
        ASK + KEY + "Upgrade: websocket\r\nUpgrade: h2c\r\n\r\n",
        ASK.replace("HTTP/1.1", "HTTP/1.0") + KEY + "Upgrade: websocket\r\n\r\n",
        ASK.replace("GET", "POST") + KEY + "Upgrade: websocket\r\nContent-Length: 5\r\n\r\nhello",
        ASK.replace("GET", "POST") + KEY + "Upgrade: h2c\r\nTransfer-Encoding: Chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    ],
)
def test_an_upgrade_that_is_no_websocket_is_an_ordinary_request(mounted_app: BoathookProcess, head: str):
    """RFC 9110, section 7.8: a server may ignore an Upgrade header."""
    method = head.partition(" ")[0]
    ordinary = send_request(mounted_app, method, "/open/x", body=b"hello" if method == "POST" else b"")
    with socket.create_connection(("127.0.0.1", mounted_app.port), timeout=300) as client:
        client.sendall(head.replace("/open/echo", "/open/x").encode())
        response = HTTPResponse(client, method=method)  # the connection stays open
        response.begin()
        body = json.loads(response.read())
    assert (response.version, response.status) == (11, ordinary.status)
    assert ordinary.json["path"] == body["path"] == "/open/x"


JAVA = """
import java.net.URI;
import java.net.http.*;

public class Send {
    public static void main(String[] targets) throws Exception {
        var client = HttpClient.newHttpClient();
        for (var target : targets) {
            var parts = target.split(" ", 3);
            var request = HttpRequest.newBuilder(URI.create(parts[1])).header("x-token", "t");
            if (parts[0].equals("GET")) request.GET();
            else request.POST(HttpRequest.BodyPublishers.ofString(parts[2]));
            var answer = client.send(request.build(), HttpResponse.BodyHandlers.ofString());
            System.out.println(answer.statusCode() + " " + answer.version());
        }
    }
}
"""


def targets(running: BoathookProcess) -> dict[str, int]:
    """Return requests to each kind of path, with the status that the same request has without an upgrade."""
    body = '{"n":1}'
    made = {}
    for method, path in (
        ("POST", "/in/open"), ("POST", "/in/stripe"), ("POST", "/api/v1/app"), ("GET", "/api/v1/app"), ("GET", "/healthz"),
        ("GET", "/console/login"), ("GET", "/open/x"), ("POST", "/open/x"), ("GET", "/elsewhere"),
    ):  # fmt: skip
        sent = body.encode() if method == "POST" else b""
        made[f"{method} {running.base}{path} {body}"] = send_request(
            running, method, path, {"x-token": "t"}, sent
        ).status
    return made


def test_the_standard_client_of_java_is_served(mounted_app: BoathookProcess, tmp_path: Path):
    """It sends `Connection: Upgrade, HTTP2-Settings` and `Upgrade: h2c` with every request to an http:// URL."""
    subprocess.run([ROOT / "scripts/need-program", "javac", "default-jdk-headless"], check=True, timeout=600)
    (tmp_path / "Send.java").write_text(JAVA)
    expected = targets(mounted_app)
    done = subprocess.run(
        ["java", tmp_path / "Send.java", *expected], capture_output=True, text=True, check=False, timeout=600
    )
    assert done.stdout.splitlines() == [f"{status} HTTP_1_1" for status in expected.values()], done.stderr
    assert next(iter(expected.values())) == 200


def test_curl_that_offers_http2_is_served(mounted_app: BoathookProcess):
    subprocess.run([ROOT / "scripts/need-program", "curl", "curl"], check=True, timeout=600)
    for target, status in targets(mounted_app).items():
        method, address, body = target.split(" ", 2)
        data = ["--data-binary", body] if method == "POST" else []
        done = subprocess.run(
            ["curl", "-sS", "--http2", "-v", "-X", method, address, "-H", "x-token: t", *data],
            capture_output=True, text=True, check=True, timeout=300,
        )  # fmt: skip
        assert "> Upgrade: h2c" in done.stderr
        assert f"< HTTP/1.1 {status} " in done.stderr, target


def test_frames_right_after_the_head_are_read(mounted_app: BoathookProcess):
    frame = b"\x81\x82\x00\x00\x00\x00hi"
    with socket.create_connection(("127.0.0.1", mounted_app.port), timeout=300) as wire:
        wire.sendall((ASK + KEY + "Upgrade: websocket\r\n\r\n").encode() + frame)
        got = b""
        while not got.endswith(b"\x81\x02hi"):
            more = wire.recv(4096)
            assert more, got
            got += more
    assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in got


def test_an_upgrade_behind_an_unanswered_request_is_refused(mounted_app: BoathookProcess):
    """The pending response comes first."""
    upgrade = (ASK + KEY + "Upgrade: websocket\r\n\r\n").encode()
    got = answer_to(mounted_app, b"GET /open HTTP/1.1\r\nHost: a\r\n\r\n" + upgrade)
    assert got.index(b"HTTP/1.1 200") < got.index(b"HTTP/1.1 400")


def test_an_upgrade_behind_an_answered_request_is_served(mounted_app: BoathookProcess):
    with socket.create_connection(("127.0.0.1", mounted_app.port), timeout=300) as wire:
        wire.sendall(b"GET /plain HTTP/1.1\r\nHost: a\r\n\r\n")
        until(lambda: wire.recv(4096).endswith(b"plain"))
        wire.sendall((ASK + KEY + "Upgrade: websocket\r\n\r\n").encode())
        assert wire.recv(4096).startswith(b"HTTP/1.1 101")


def read_all(wire: socket.socket) -> bytes:
    got = b""
    with contextlib.suppress(ConnectionError):
        while more := wire.recv(65_536):
            got += more
    return got


async def test_a_page_of_another_site_opens_no_websocket(mounted_app: BoathookProcess):
    for origin in (
        "https://evil.test",
        "null",
        f"http://127.0.0.1.evil.test:{mounted_app.port}",
        "http://127.0.0.1:1",
        "x",
    ):
        assert (await refused(mounted_app, "/open/echo", origin=origin))[0] == 403, origin


async def test_a_same_origin_page_opens_a_websocket(mounted_app: BoathookProcess):
    """The mutant: the same request with our own address in it."""
    async with connect(url(mounted_app, "/open/echo"), origin=f"http://127.0.0.1:{mounted_app.port}") as ws:
        await ws.send("x")
        assert await ws.recv() == "x"


@pytest.mark.extended("waits for intervals and deadlines of the product")
async def test_a_client_that_does_not_read_is_cut_off(mounted_app: BoathookProcess):
    wire = socket.create_connection(("127.0.0.1", mounted_app.port), timeout=300)
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    with wire:
        wire.sendall((ASK.replace("/open/echo", "/open/flood") + KEY + "Upgrade: websocket\r\n\r\n").encode())

        def is_cut() -> bool:
            try:
                wire.send(b"\x8a\x80\x00\x00\x00\x00")
            except ConnectionError:
                return True
            return False

        await eventually(is_cut, every=0.2)


# Live messages


async def hears(running: BoathookProcess, channel: str) -> ClientConnection:
    """Return a client that is connected: early live messages may precede its connection."""

    async def listen() -> ClientConnection:
        ws = await connect(url(running, f"/open/live?channel={channel}"))
        assert await ws.recv() == "listening"
        return ws

    ws = await listen()

    async def is_hearing() -> bool:
        nonlocal ws
        assert send_request(running, "POST", f"/open/tell?channel={channel}&n=0").status == 200
        try:
            return json.loads(await asyncio.wait_for(ws.recv(), 0.3)) == {"n": 0}
        except TimeoutError:
            return False
        except ConnectionClosed:  # by the app, where a busy PostgreSQL has not answered in time
            ws = await listen()
            return False

    await eventually(is_hearing)
    with contextlib.suppress(TimeoutError):
        while True:
            await asyncio.wait_for(ws.recv(), 0.3)
    return ws


async def test_live_messages_reach_all_processes(mounted_app: BoathookProcess):
    listeners = [await hears(mounted_app, "all") for _ in range(6)]
    for n in (1, 2, 3):
        send_request(mounted_app, "POST", f"/open/tell?channel=all&n={n}")
    for ws in listeners:
        told: list[int] = []
        while len(told) < 3:
            told += [n for n in [json.loads(await asyncio.wait_for(ws.recv(), 300))["n"]] if n]
        assert told == [1, 2, 3]
        await ws.close()


async def test_a_handlers_broadcast_reaches_a_browser(mounted_app: BoathookProcess):
    ws = await hears(mounted_app, "cars")
    body, headers = signed(payload("evt_car_live", "car.moved"))
    assert send_request(mounted_app, "POST", "/webhooks/stripe", headers, body).status == 200
    assert json.loads(await asyncio.wait_for(ws.recv(), 300)) == {"car": "evt_car_live", "seen": 1}
    await ws.close()


async def test_a_rolled_back_live_message_is_not_received(mounted_app: BoathookProcess):
    ws = await hears(mounted_app, "rolled")
    assert send_request(mounted_app, "POST", "/open/tell?channel=rolled&n=1&fail=1").status == 500
    send_request(mounted_app, "POST", "/open/tell?channel=rolled&n=2")
    assert json.loads(await asyncio.wait_for(ws.recv(), 300)) == {"n": 2}
    await ws.close()


async def test_channels_are_isolated(mounted_app: BoathookProcess):
    ws = await hears(mounted_app, "mine")
    send_request(mounted_app, "POST", "/open/tell?channel=mine2&n=1")
    send_request(mounted_app, "POST", "/open/tell?channel=mine&n=2")
    assert json.loads(await asyncio.wait_for(ws.recv(), 300)) == {"n": 2}
    await ws.close()


def test_a_too_large_live_message_reports_its_size(mounted_app: BoathookProcess):
    got = send_request(mounted_app, "POST", "/open/big").json
    assert got["kind"] == "InvalidMessage"
    assert "8,019 bytes" in got["error"]


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
async def test_live_messages_resume_after_a_lost_connection(mounted_app: BoathookProcess):
    ws = await hears(mounted_app, "lost")
    with psycopg.connect(mounted_app.database_url, autocommit=True) as admin:
        found = admin.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity"
            " where application_name like 'boathook:apps%:monitor' and datname = current_database()"
        ).fetchall()
    assert found

    async def is_heard() -> bool:
        send_request(mounted_app, "POST", "/open/tell?channel=lost&n=7")
        with contextlib.suppress(TimeoutError):
            return json.loads(await asyncio.wait_for(ws.recv(), 0.3)) == {"n": 7}
        return False

    await eventually(is_heard)
    await ws.close()


# A gateway that goes, one that is full, and one behind a proxy


@pytest.fixture
def unstarted_app(
    admin_url: str, pg_template: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[BoathookProcess]:
    with boathook_on_new_database(admin_url, pg_template, tmp_path_factory.mktemp("own")) as running:
        yield running


@pytest.mark.extended("waits for intervals and deadlines of the product")
async def test_stopping_closes_websockets_with_1012(unstarted_app: BoathookProcess):
    serve(unstarted_app)
    echo = await connect(url(unstarted_app, "/open/echo?name=drained"))
    deaf = await connect(url(unstarted_app, "/open/deaf"))
    await echo.send("x")
    await echo.recv()
    started = time.monotonic()
    code = await asyncio.to_thread(unstarted_app.stop)
    assert code == 0, unstarted_app.log()[-3000:]
    assert time.monotonic() - started < 20
    for ws in (echo, deaf):
        await ws.wait_closed()
        assert ws.close_code == 1012
    assert "drained 1012" in (unstarted_app.folder / "ends.txt").read_text()
    assert (unstarted_app.folder / "life.txt").read_text().splitlines() == ["up", "down"]
    assert '"is_clean":true' in unstarted_app.log().replace(" ", "") or "is_clean=True" in unstarted_app.log()


@pytest.mark.extended("needs thousands of rows, objects or connections")
async def test_one_client_has_no_more_websockets_than_connections(unstarted_app: BoathookProcess):
    serve(unstarted_app, sources=SOURCES.replace("per_client = 60", "per_client = 5"))
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(5):
            await stack.enter_async_context(connect(url(unstarted_app, "/open/echo")))
        assert (await refused(unstarted_app, "/open/echo"))[0] == 503
    await eventually(lambda: send_request(unstarted_app, "GET", "/open").status == 200)
    async with connect(url(unstarted_app, "/open/echo")):
        pass
