"""The gateway's response at `/`, and to browsers while the console starts or has failed to."""

import json
from typing import Any

import pytest

from boathook import config
from boathook.http.asgi import Asgi
from boathook.observability.live_metrics import LiveMetrics
from boathook.server.gateway import answer_without_interfaces
from boathook.server.interfaces import Interfaces

HTML = b"text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


async def ask(
    app: Asgi, path: str, accept: bytes = b"*/*", method: str = "GET"
) -> tuple[int, dict[bytes, bytes], bytes]:
    sent: list[dict[str, Any]] = []

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {"type": "http", "path": path, "method": method, "headers": [(b"accept", accept)]}
    await app(scope, receive, send)
    return sent[0]["status"], dict(sent[0]["headers"]), sent[1]["body"]


@pytest.fixture
def console() -> Interfaces:
    """A console that has not been opened, as while it starts."""
    return Interfaces(config.load(), LiveMetrics(None))


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_root_leads_a_browser_to_the_console(console: Interfaces, method: str):
    status, headers, _ = await ask(console, "/", HTML, method)
    assert (status, headers[b"location"], headers[b"vary"]) == (302, b"/console", b"accept")


@pytest.mark.parametrize("accept", [b"*/*", b"application/json", b""])
async def test_root_describes_the_service_as_json(console: Interfaces, accept: bytes):
    status, headers, body = await ask(console, "/", accept)
    assert (status, headers[b"content-type"]) == (200, b"application/json")
    assert json.loads(body) == {
        "ok": True, "name": "boathook", "about": "receives, processes and sends webhooks", "health": "/readyz",
        "console": "/console", "api": "/api/v1",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("switched_off", "home"),
    [(["console"], {"portal": "/portal"}), (["portal"], {"console": "/console"}), (["console", "portal"], {})],
)
async def test_what_is_left_out_is_not_found(switched_off: list[str], home: dict[str, str]):
    console = Interfaces(config.load(None, {f"{name}.enabled": False for name in switched_off}), LiveMetrics(None))
    status, headers, body = await ask(console, "/", HTML)
    assert (status, headers.get(b"location", b"").decode()) == (302 if home else 200, next(iter(home.values()), ""))
    status, _, body = await ask(console, "/")
    assert {key: value for key, value in json.loads(body).items() if key not in {"ok", "name", "about", "health"}} == {
        **home,
        "api": "/api/v1",
    }
    for name in ("console", "portal"):
        expected = 404 if name in switched_off else 503
        assert (await ask(console, f"/{name}/x", HTML))[0] == expected


@pytest.mark.parametrize("accept", [HTML, b"*/*"])
async def test_without_the_console_root_does_not_link_it(accept: bytes):
    status, _, body = await ask(answer_without_interfaces, "/", accept)
    assert status == 200
    assert json.loads(body).keys() == {"ok", "name", "about", "health"}
    assert (await ask(answer_without_interfaces, "/console", accept))[0] == 503
    assert (await ask(answer_without_interfaces, "/", accept, "POST"))[0] == 503


async def test_a_browser_sees_a_page_that_reloads_while_the_console_starts(console: Interfaces):
    status, headers, body = await ask(console, "/console/events", HTML)
    assert (status, headers[b"retry-after"]) == (503, b"1")
    assert headers[b"content-type"] == b"text/html; charset=utf-8"
    assert b'http-equiv="refresh"' in body
    assert headers[b"content-security-policy"].startswith(b"default-src 'none'")


async def test_a_browser_is_not_kept_reloading_where_the_console_has_failed(console: Interfaces):
    console._has_failed = True
    status, _, body = await ask(console, "/console", HTML)
    assert status == 503
    assert b"refresh" not in body
    assert b"console_failed" in body


@pytest.mark.parametrize(
    ("path", "accept", "method"),
    [("/console", b"*/*", "GET"), ("/console", HTML, "POST"), ("/api/v1/app", b"*/*", "GET")],
)
async def test_programs_get_json_while_the_console_starts(console: Interfaces, path: str, accept: bytes, method: str):
    status, _, body = await ask(console, path, accept, method)
    assert (status, json.loads(body)["code"]) == (503, "unavailable")
