"""A mounted path of an app, called by pages of other origins in a real browser."""

import json
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from playwright.sync_api import Browser

from tests.acceptance.conftest import BoathookProcess
from tests.acceptance.mounted_app import APP_SOURCE
from tests.acceptance.raw_http import boathook_on_new_database, send_request, write_config
from tests.support import until
from tests.web_server import served

pytestmark = pytest.mark.extended("the headers are tested over sockets; this shows what a browser makes of them")

PAGE = {"/": ("text/html", b"<!doctype html><title>page</title>")}
FETCH = """async ([url, token, method]) => {
  try {
    const answer = await fetch(url, { method, headers: { authorization: `Bearer ${token}` } });
    return { status: answer.status, text: await answer.text() };
  } catch (error) { return { status: 0, text: String(error) }; }
}"""
LISTEN = """([url, token]) => new Promise((resolve) => {
  const socket = new WebSocket(url);
  socket.onopen = () => socket.send(JSON.stringify({ token }));
  socket.onmessage = ({ data }) => resolve({ data });
  socket.onclose = ({ code }) => resolve({ code });
})"""


@pytest.fixture(scope="module")
def pages() -> Iterator[tuple[str, str]]:
    """Yield the origins of an allowed website and of another one."""
    with ExitStack() as stack:
        yield stack.enter_context(served(PAGE)), stack.enter_context(served(PAGE))


@pytest.fixture(scope="module")
def running(
    admin_url: str, pg_template: str, tmp_path_factory: pytest.TempPathFactory, pages: tuple[str, str]
) -> Iterator[BoathookProcess]:
    with boathook_on_new_database(admin_url, pg_template, tmp_path_factory.mktemp("pages")) as process:
        settings = f'[mounts."/closed"]\norigins = ["{pages[0]}"]\n'
        write_config(process, settings, app="mounted:hook", roles='["gateway", "console"]')
        (process.folder / "mounted.py").write_text(APP_SOURCE)
        process.start()
        until(lambda: send_request(process, "GET", "/open").status == 200)
        yield process


def test_only_pages_of_the_allowed_origin_read_and_listen(
    running: BoathookProcess, pages: tuple[str, str], browser: Browser
):
    made = running.cli("keys", "create", "--scope", "mount", "--mount", "/closed", "--role", "reader", "--json")
    token = json.loads(made.stdout)["token"]
    url, socket = f"{running.base}/closed/cars", f"ws://127.0.0.1:{running.port}/closed/who"
    context = browser.new_context()
    page = context.new_page()

    page.goto(pages[0])
    answer = page.evaluate(FETCH, [url, token, "GET"])
    assert answer["status"] == 200
    assert json.loads(answer["text"])["actor"].startswith("api:key_")
    assert page.evaluate(FETCH, [url, token, "POST"])["status"] == 403, "a page reads why it was refused"
    assert page.evaluate(FETCH, [url, "bhk_wrong", "GET"])["status"] == 401
    assert "actor" in page.evaluate(LISTEN, [socket, token])["data"]
    assert page.evaluate(LISTEN, [socket, "bhk_wrong"]) == {"code": 1008}

    page.goto(pages[1])
    assert page.evaluate(FETCH, [url, token, "GET"])["status"] == 0
    assert page.evaluate(LISTEN, [socket, token]) == {"code": 1006}
    context.close()
