"""The API on the gateway's port: available when PostgreSQL is, and no obstacle before."""

import asyncio
import re
import threading
import uuid
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import httpx
import pytest

from boathook import Boathook, ConfigError, config
from boathook.db.due_notifier import DUE_CHANNEL
from boathook.db.events import EventStore
from boathook.domain.endpoints import recipient_of
from boathook.http.connection import WebSocketRefusal
from boathook.ingest.intake import Intake
from boathook.observability.live_metrics import LiveMetrics
from boathook.server import interfaces as console_module
from boathook.server.interfaces import AppBuilder, Interfaces
from tests.postgres.api_client import make_context, make_token
from tests.support import eventually


@pytest.fixture
async def opened(tmp_path):
    """Open a console on a database."""
    consoles = []

    def start(url: str, **more: object) -> tuple[Interfaces, httpx.AsyncClient]:
        settings = config.load(None, {"database.url": url, "server.data_dir": str(tmp_path), **more})
        console = Interfaces(settings, LiveMetrics(None))
        consoles.append(console)
        return console, httpx.AsyncClient(transport=httpx.ASGITransport(console), base_url="http://api.localhost")

    yield start
    for console in consoles:
        await console.stop()


async def test_it_answers_503_until_it_is_up_and_again_when_it_is_closed(opened, pg_url, db):
    console, client = opened(pg_url)
    headers = {"authorization": f"Bearer {await make_token(make_context(db))}"}
    early = await client.get("/api/v1/app", headers=headers)
    assert early.status_code == 503
    assert early.json()["code"] == "unavailable"
    assert early.headers["retry-after"]
    console.start(Intake(EventStore()))

    async def answers(status: int) -> bool:
        return (await client.get("/api/v1/app", headers=headers)).status_code == status

    await eventually(partial(answers, 200))
    await console.stop()
    assert await answers(503)


async def test_it_is_built_once_it_is_ready_while_the_event_loop_runs(opened, pg_url, monkeypatch):
    console, client = opened(pg_url)
    threads, release = [], threading.Event()
    build = AppBuilder.api

    def held_up(*args: Any) -> Any:
        threads.append(threading.current_thread())
        release.wait(300)
        return build(*args)

    monkeypatch.setattr(AppBuilder, "api", held_up)
    console.start(Intake(EventStore()))
    await asyncio.wait_for(console.startup_done.wait(), 300)
    assert console.problem is None
    await eventually(lambda: bool(threads))
    asking = [asyncio.create_task(client.get("/api/v1/app")) for _ in range(3)]
    asking[0].cancel()
    assert not any(task.done() for task in asking[1:])
    assert (await client.get("/elsewhere")).status_code == 404
    release.set()
    assert [(await task).status_code for task in asking[1:]] == [401, 401]
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


async def test_a_failed_build_answers_503_and_is_a_problem(opened, pg_url, monkeypatch):
    console, client = opened(pg_url)
    logged: list[str] = []
    monkeypatch.setattr(console_module._LOG, "error", lambda event, **_: logged.append(event), raising=False)
    monkeypatch.setattr(AppBuilder, "site", lambda *_: 1 / 0)
    console.start(Intake(EventStore()))
    await asyncio.wait_for(console.startup_done.wait(), 300)
    for _ in range(2):
        assert (await client.get("/console")).status_code == 503
    assert logged == ["console_failed"]
    assert "failed to start" in (console.problem or "")
    assert (await client.get("/api/v1/app")).status_code == 401


async def test_without_postgresql_it_answers_503(opened):
    console, client = opened("postgresql://127.0.0.1:1/none")
    console.start(Intake(EventStore()))
    for _ in range(3):
        assert (await client.get("/api/v1/app")).status_code == 503


async def test_other_paths_are_not_found(opened, pg_url):
    _, client = opened(pg_url)
    answer = await client.get("/elsewhere")
    assert (answer.status_code, answer.json()["error"]) == (404, "not found")


async def test_messages_are_announced_once_they_are_committed(opened, pg_url, db):
    console, client = opened(pg_url)
    client.headers["authorization"] = f"Bearer {await make_token(make_context(db))}"
    heard: list[str] = []
    await db.listen(DUE_CHANNEL, heard.append)
    console.start(Intake(EventStore()))

    async def is_heard() -> bool:
        await db.execute("select pg_notify($1, 'test')", DUE_CHANNEL)
        return (
            "test" in heard and (await client.post("/api/v1/app", json={"name": "A", "uid": "acme"})).status_code < 500
        )

    await eventually(is_heard)
    assert (await client.post("/api/v1/app/acme/msg", json={"eventType": "a b", "payload": {}})).status_code == 422
    assert "" not in heard
    endpoint = {"url": "https://receiver.example/hooks"}
    made = await client.post("/api/v1/app/acme/endpoint", json=endpoint)
    assert made.status_code == 201
    assert (await client.post("/api/v1/app/acme/msg", json={"eventType": "a.b", "payload": {}})).status_code == 202
    await eventually(lambda: recipient_of(made.json()["id"]) in heard)
    assert "" not in heard
    later = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
    scheduled = {"eventType": "a.b", "payload": {}, "deliverAt": later}
    assert (await client.post("/api/v1/app/acme/msg", json=scheduled)).status_code == 202
    recipient = recipient_of(made.json()["id"])
    await eventually(lambda: any(payload.startswith(f"{recipient}\t") for payload in heard))


APP = """
from boathook import Boathook

hook = Boathook()

async def answer(scope, receive, send):
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"mine"})

hook.mount("/mine", answer, is_open=True)
"""


@pytest.fixture
def app(tmp_path, monkeypatch):
    """Write a module of an app, and return its name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(text: str) -> str:
        name = f"app_{uuid.uuid4().hex}"
        (tmp_path / f"{name}.py").write_text(text)
        return f"{name}:hook"

    return write


async def test_app_mounts_answer_503_until_loaded(opened, pg_url, app):
    console, client = opened(pg_url, **{"server.app": app(APP)})
    for path in ("/mine", "/any", "/api/any", "/api/v1/app"):
        early = await client.get(path)
        assert (early.status_code, early.headers["retry-after"]) == (503, "1"), path
    assert console.websocket_app("/mine") is WebSocketRefusal.NOT_READY
    console.start(Intake(EventStore()))

    async def is_served() -> bool:
        return (await client.get("/mine")).content == b"mine"

    await eventually(is_served)
    assert (await client.get("/any")).status_code == 404
    assert (await client.get("/api/any")).status_code == 404
    assert (await client.get("/api/v1/app")).status_code == 401
    assert console.websocket_app("/any") is WebSocketRefusal.NO_HANDLER
    assert console.websocket_app("/mine") is not WebSocketRefusal.NO_HANDLER


SHOP = """
from fastapi import FastAPI

from boathook import Boathook

hook = Boathook()
shop, site = FastAPI(), FastAPI(openapi_url=None)

@shop.get("/")
@shop.get("/cars/{name}")
async def show(name: str = "none") -> str:
    return name

@site.get("/{path:path}")
async def find(path: str) -> str:
    return f"site {path}"

hook.mount("/shop", shop, is_open=True)
hook.mount("/", site, is_open=True)
"""


async def test_mounted_apps_serve_their_paths_and_the_root_app_the_rest(opened, pg_url, app):
    console, client = opened(pg_url, **{"server.app": app(SHOP)})
    console.start(Intake(EventStore()))
    await asyncio.wait_for(console.startup_done.wait(), 300)
    page = {"accept": "text/html"}
    for path, expected in {
        "/shop": '"none"', "/shop/": '"none"', "/shop/cars/audi": '"audi"', "/shop/docs": "'/shop/openapi.json'",
        "/shop/openapi.json": '"url":"/shop"', "/": '"site "', "/shopping": '"site shopping"', "/api/v2": '"site api/v2"',
        "/apis": '"site apis"', "/ingest/x": '"site ingest/x"',
    }.items():  # fmt: skip
        answer = await client.get(path, headers=page)
        assert (answer.status_code, expected in answer.text) == (200, True), (path, answer.text)
    for path, status in {"/api/v1/app": 401, "/console": 303, "/portal": 200, "/in/nothing": 404}.items():
        answer = await client.get(path, headers=page)
        assert (answer.status_code, "site" in answer.text.split()) == (status, False), path
    assert console.websocket_app("/any") is not WebSocketRefusal.NO_HANDLER
    assert console.websocket_app("/console") is WebSocketRefusal.NO_HANDLER


async def test_the_root_app_does_not_take_the_paths_of_packages(opened, pg_url, app):
    console, client = opened(pg_url, **{"server.app": app(SHOP), "mcp.enabled": True})
    console.start(Intake(EventStore()))
    await asyncio.wait_for(console.startup_done.wait(), 300)
    statuses = {path: (await client.post(path)).status_code for path in ("/mcp", "/mcp/", "/mcp/x", "/api")}
    # 421: MCP's answer to a Host that is not among mcp.hosts.
    assert statuses == {"/mcp": 421, "/mcp/": 421, "/mcp/x": 404, "/api": 404}
    assert console.websocket_app("/mcp") is WebSocketRefusal.NO_HANDLER
    assert (await client.get("/mcps")).text == '"site mcps"'


@pytest.mark.parametrize("path", ["shop", "", "/a b", "//", "/a?b"])
def test_a_path_that_cannot_be_mounted_is_named(path):
    with pytest.raises(ConfigError, match=re.escape(repr(path.removesuffix("/")))):
        Boathook().mount(path, None)


async def test_a_broken_app_does_not_affect_the_api(opened, pg_url, app):
    """Its own pages keep answering 503, not 404: the URL is right."""
    console, client = opened(pg_url, **{"server.app": app("raise RuntimeError('broken')")})
    console.start(Intake(EventStore()))

    async def answers(path: str, status: int) -> bool:
        return (await client.get(path)).status_code == status

    await eventually(partial(answers, "/api/v1/app", 401))
    await eventually(console._task.done)
    assert await answers("/mine", 503)
    assert await answers("/api/v1/app", 401)


async def test_without_apps_websockets_have_no_handler(opened, pg_url):
    console, _ = opened(pg_url)
    assert console.websocket_app("/any") is WebSocketRefusal.NO_HANDLER
