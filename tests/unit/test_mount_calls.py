"""One call of a mounted application, its start and its end, and the paths it may have."""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.applications import Starlette

from boathook import config
from boathook.config import default_settings
from boathook.domain.errors import ConfigError
from boathook.handlers.manifest import Mount
from boathook.observability.live_metrics import LiveMetrics
from boathook.server import interfaces
from boathook.server.asgi_guard import HttpGuard
from boathook.server.loading import check_mounts
from boathook_apps import mounts
from boathook_apps.browser_access import BrowserAccess
from boathook_apps.mounts import Lifespan
from tests.support import eventually

SETTINGS = default_settings()
START = {"type": "http.response.start", "status": 200, "headers": []}
OOPS = {**START, "status": 500}


class Client:
    """A client that sends a body in pieces and records the response."""

    def __init__(self, *pieces: bytes) -> None:
        self.pieces = list(pieces)
        self.got: list[dict] = []

    async def receive(self) -> dict:
        if not self.pieces:
            return {"type": "http.disconnect"}
        body = self.pieces.pop(0)
        return {"type": "http.request", "body": body, "more_body": bool(self.pieces)}

    async def send(self, message: dict) -> None:
        self.got.append(message)

    async def call(self, app, *, most: int = 10, headers=()) -> "Client":
        visit = HttpGuard(self.receive, self.send, "req_1", most)
        await visit.run(app, {"type": "http", "path": "/x", "headers": list(headers)})
        return self

    @property
    def status(self) -> int:
        (start,) = [message for message in self.got if message["type"] == "http.response.start"]
        return start["status"]

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.got)


def responding(status: int, *pieces: bytes, then: Exception | None = None):
    """Return an application that says so and then raises."""

    async def app(_scope, _receive, send) -> None:
        await send({**START, "status": status})
        for n, piece in enumerate(pieces, 1):
            await send({"type": "http.response.body", "body": piece, "more_body": n < len(pieces)})
        if then is not None:
            raise then

    return app


async def read_all(_scope, receive, send) -> None:
    size = 0
    while (message := await receive())["type"] == "http.request":
        size += len(message["body"])
        if not message["more_body"]:
            break
    await responding(200, b"%d" % size)(None, None, send)


async def test_a_body_up_to_the_cap_is_read():
    client = await Client(b"12345", b"67890").call(read_all)
    assert (client.status, client.body) == (200, b"10")


async def test_a_body_over_the_limit_is_refused():
    client = await Client(b"12345", b"678901").call(read_all)
    assert client.status == 413
    assert json.loads(client.body) == {"ok": False, "error": "the body is too large", "request_id": "req_1"}


async def test_a_body_that_announces_too_much_never_reaches_the_application():
    called = []

    async def app(*_) -> None:
        called.append(1)

    assert (await Client().call(app, headers=[(b"content-length", b"11")])).status == 413
    assert not called


async def test_a_started_response_is_not_replaced_by_413():
    async def app(_scope, receive, send) -> None:
        await send(START)
        assert (await receive())["type"] == "http.request"
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.body", "body": b"so far"})

    client = await Client(b"1234567890", b"x").call(app)
    assert (client.status, client.body) == (200, b"so far")


async def test_a_framework_500_is_replaced_by_boathooks():
    client = await Client(b"").call(responding(500, b"Internal Server Error", then=RuntimeError("secret")))
    assert client.status == 500
    assert json.loads(client.body)["request_id"] == "req_1"


async def test_an_intended_500_is_passed_on():
    client = await Client(b"").call(responding(500, b"a ", b"page"))
    assert (client.status, client.body) == (500, b"a page")


async def test_a_large_500_is_streamed():
    client = await Client(b"").call(responding(500, bytes(40_000), bytes(40_000), b"end"))
    assert (client.status, len(client.body)) == (500, 80_003)


async def test_an_exception_after_the_response_started_truncates_it():
    client = Client(b"")
    with pytest.raises(RuntimeError, match="late"):
        await client.call(responding(200, b"half", b"", then=RuntimeError("late")))
    assert client.status == 200


async def test_every_answer_names_its_request():
    client = await Client(b"").call(responding(200, b""))
    assert (b"x-request-id", b"req_1") in client.got[0]["headers"]


# Origins


@pytest.mark.parametrize(
    ("origin", "host", "public_url"),
    [
        (None, "a.test", ""),
        ("https://a.test", "a.test", ""),
        ("http://a.test:80", "a.test", ""),
        ("https://A.test", "a.test:443", ""),
        ("http://a.test:8080", "a.test:8080", ""),
        ("http://[::1]:8080", "[::1]:8080", ""),
        ("https://hooks.test", "10.0.0.7:8080", "https://hooks.test"),
    ],
)
def test_our_own_pages_are_known(origin: str | None, host: str, public_url: str):
    assert BrowserAccess((), public_url, is_open=False).may_open_socket(asked(origin, host))


@pytest.mark.parametrize(
    "origin",
    ["https://evil.test", "null", "", "https://a.test.evil.test", "https://a.test@evil.test", "https://evil.test#a.test",
     "https://a.test:8443", "file://", "a.test", "https://[a.test", "https://a.test:x"],
)  # fmt: skip
def test_pages_of_others_are_known(origin: str):
    assert not BrowserAccess((), "https://hooks.test", is_open=False).may_open_socket(asked(origin, "a.test"))


def test_two_origins_are_not_same_origin():
    scope = asked("https://a.test", "a.test")
    scope["headers"].append((b"origin", b"https://a.test"))
    assert not BrowserAccess((), "", is_open=False).may_open_socket(scope)


def test_without_a_host_no_origin_matches():
    assert not BrowserAccess((), "", is_open=False).may_open_socket({"headers": [(b"origin", b"null")]})


def asked(origin: str | None, host: str) -> dict:
    headers = [(b"host", host.encode())]
    return {"headers": headers if origin is None else [*headers, (b"origin", origin.encode())]}


# Lifespans


async def test_an_application_that_fails_to_start_is_started_again(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mounts, "RETRY_S", (0.01,))
    seen = []

    async def app(_scope, receive, send) -> None:
        seen.append((await receive())["type"])
        if len(seen) < 3:
            await send({"type": "lifespan.startup.failed", "message": "the database is away"})
        await send({"type": "lifespan.startup.complete"})
        seen.append((await receive())["type"])
        await send({"type": "lifespan.shutdown.complete"})

    life = Lifespan(app)
    life.start()
    assert not life.is_up
    await eventually(lambda: life.is_up)
    await life.stop()
    assert not life.is_up
    assert seen == ["lifespan.startup"] * 3 + ["lifespan.shutdown"]


async def test_an_application_is_not_started_again_while_the_gateway_stops(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mounts, "RETRY_S", (0.5,))
    starts = []

    async def app(_scope, receive, send) -> None:
        starts.append((await receive())["type"])
        if len(starts) == 1:
            await send({"type": "lifespan.startup.failed"})
        await send({"type": "lifespan.startup.complete"})
        await receive()

    life = Lifespan(app)
    life.start()
    await eventually(lambda: bool(starts))
    async with asyncio.timeout(0.4):
        await life.stop()
    assert starts == ["lifespan.startup"]


@pytest.mark.parametrize("how", ["raises", "returns", "answers"])
async def test_an_application_without_lifespan_is_up(how: str):
    async def app(_scope, _receive, send) -> None:
        if how == "answers":
            await send(START)
        assert how != "raises"

    life = Lifespan(app)
    life.start()
    await eventually(lambda: life.is_up)
    await life.stop()


async def test_starlettes_state_reaches_requests_and_its_end_is_waited_for():
    ended = []

    async def life_of(_app):
        yield {"pool": 7}
        await asyncio.sleep(0.05)
        ended.append(1)

    life = Lifespan(Starlette(lifespan=asynccontextmanager(life_of)))
    life.start()
    await eventually(lambda: life.is_up)
    assert life.state == {"pool": 7}
    await life.stop()
    assert ended


async def test_an_application_that_never_stops_is_abandoned(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mounts, "STOP_WITHIN_S", 0.05)

    async def app(_scope, _receive, send) -> None:
        await send({"type": "lifespan.startup.complete"})
        await asyncio.Event().wait()

    life = Lifespan(app)
    life.start()
    await eventually(lambda: life.is_up)
    await asyncio.wait_for(life.stop(), 300)


# Paths


@pytest.mark.parametrize(
    "path",
    [
        "/api",
        "/api/v1",
        "/api/v1/app",
        "/in",
        "/in/stripe",
        "/healthz",
        "/readyz",
        "/metrics",
        "/metrics.json",
        "/console",
        "/console/events",
        "/portal",
    ],
)
def test_no_app_gets_a_reserved_path(path: str):
    with pytest.raises(ConfigError, match=f"fleet cannot use {path}, which boathook uses"):
        check_mounts({"fleet": [Mount(path=path, app=read_all)]}, SETTINGS)


def test_paths_similar_to_reserved_ones_are_free():
    paths = ["/api/v12", "/inbox", "/healthzz", "/api/rentprog/webhook/dead", "/consoles"]
    mounts = {"fleet": [Mount(path=path, app=read_all) for path in paths]}
    assert [mount.path for mount in check_mounts(mounts, SETTINGS)] == paths


def test_two_apps_never_share_a_path():
    same = Mount(path="/cars", app=read_all)
    with pytest.raises(ConfigError, match="/cars is mounted by fleet and by music"):
        check_mounts({"fleet": [same], "music": [same]}, SETTINGS)


def test_mounts_without_the_package_that_serves_them_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    code = "from boathook import Boathook\nhook = Boathook('pier')\nhook.mount('/pier', print)\nhook.mount('/boats', print)\n"
    (tmp_path / "pier_with_mounts.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    settings = config.load(overrides={"apps.load": ["pier_with_mounts"]})
    monkeypatch.setattr("boathook.config.packages.PARTS", {"mounts": "no_such_package.mounts:Mounts"})
    with pytest.raises(ConfigError, match=r"^apps mount /boats, /pier, but this installation is without"):
        interfaces.prepare_mounts(settings, LiveMetrics(None))
