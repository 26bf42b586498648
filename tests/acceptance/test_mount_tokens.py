"""Tokens of one mount, users' tokens and CORS, over real sockets, with an issuer that publishes its keys."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Origin

from tests.acceptance.conftest import BoathookProcess
from tests.acceptance.mounted_app import APP_SOURCE
from tests.acceptance.raw_http import boathook_on_new_database, send_request, write_config
from tests.acceptance.test_cli import Cli
from tests.support import until
from tests.unit.test_user_tokens import KEY, claims, public_jwk, sign
from tests.web_server import served

PAGE = "https://dashboard.example"
SETTINGS = """
[jwt]
issuer = "https://login.example.com/"
audience = "fleet"
jwks_url = "{issuer}/jwks.json"
[mounts."/closed"]
origins = ["{page}"]
roles = {{ viewer = "reader" }}
[outbound]
allow = ["127.0.0.0/8"]
"""


@pytest.fixture(scope="module")
def running(admin_url: str, pg_template: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoathookProcess]:
    keys = json.dumps({"keys": [public_jwk(KEY)]}).encode()
    with (
        served({"/jwks.json": ("application/json", keys)}) as issuer,
        boathook_on_new_database(admin_url, pg_template, tmp_path_factory.mktemp("tokens")) as process,
    ):
        settings = SETTINGS.format(issuer=issuer, page=PAGE)
        write_config(process, settings, app="mounted:hook", roles='["gateway", "console", "keeper"]')
        (process.folder / "mounted.py").write_text(APP_SOURCE)
        process.start()
        until(lambda: send_request(process, "GET", "/open").status == 200)
        yield process


@pytest.fixture(scope="module")
def reader(running: BoathookProcess) -> str:
    made = running.cli("keys", "create", "--scope", "mount", "--mount", "/closed", "--role", "reader", "--json")
    return str(json.loads(made.stdout)["token"])


def bearer(token: str, **more: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}", **more}


def test_a_reader_reads_its_mount_and_nothing_else(running: BoathookProcess, reader: str):
    assert send_request(running, "GET", "/closed/cars", bearer(reader)).json["actor"].startswith("api:key_")
    assert send_request(running, "POST", "/closed/cars", bearer(reader), b"{}").status == 403
    assert send_request(running, "DELETE", "/closed/cars", bearer(reader)).status == 403
    for method, path in (("GET", "/api/v1/app"), ("DELETE", "/api/v1/app/acme"), ("GET", "/api/v1/source")):
        assert send_request(running, method, path, bearer(reader)).status == 403, path


def test_a_key_of_another_mount_reads_nothing_here(running: BoathookProcess):
    made = running.cli("keys", "create", "--scope", "mount", "--mount", "/open", "--role", "operator", "--json")
    token = json.loads(made.stdout)["token"]
    assert send_request(running, "GET", "/closed/cars", bearer(token)).status == 403


@pytest.mark.parametrize(
    "target",
    ["/closed/../open/x", "/open/../closed/x", "/closed/%2e%2e/open/x", "/closed/..%2fopen", "/closed/..%5copen"],
)
def test_paths_that_lead_elsewhere_are_refused(running: BoathookProcess, reader: str, target: str):
    assert send_request(running, "GET", target, bearer(reader)).status == 400


def test_a_token_in_the_url_is_refused_and_not_logged(running: BoathookProcess, reader: str):
    for query in (f"token={reader}", f"access_token={reader}"):
        answer = send_request(running, "GET", f"/closed/cars?{query}")
        assert (answer.status, answer.json["code"]) == (400, "token_in_url")
    assert reader not in running.log()


def test_a_user_reads_by_the_role_of_their_claim(running: BoathookProcess):
    answer = send_request(running, "GET", "/closed/cars", bearer(sign(claims()), origin=PAGE))
    assert (answer.status, answer.json["actor"]) == (200, "user:u17")
    assert answer.headers["access-control-allow-origin"] == PAGE
    for refused, status in ((claims(roles=["stranger"]), 403), (claims(aud="shop"), 401), (claims(exp=1), 401)):
        assert send_request(running, "GET", "/closed/cars", bearer(sign(refused))).status == status
    assert send_request(running, "POST", "/closed/cars", bearer(sign(claims()))).status == 403


async def test_a_websocket_ends_by_itself_with_its_users_token(running: BoathookProcess):
    """Ten seconds after `exp`, which is a second from now."""
    address = f"ws://127.0.0.1:{running.port}/closed/deaf"
    async with connect(address, origin=Origin(PAGE)) as socket:
        await socket.send(json.dumps({"token": sign(claims(exp=int(time.time()) - 8))}))
        with pytest.raises(ConnectionClosed):
            await socket.recv()
    assert (socket.close_code, socket.close_reason) == (1008, "this token is not valid any more")


async def test_a_websocket_of_another_page_is_refused(running: BoathookProcess, reader: str):
    for origin in ("https://evil.example", "null"):
        with pytest.raises(InvalidStatus) as refused:
            async with connect(
                f"ws://127.0.0.1:{running.port}/closed/echo", origin=Origin(origin), additional_headers=bearer(reader)
            ):
                pass
        assert refused.value.response.status_code == 403


def test_a_preflight_is_answered_without_a_token_for_the_exact_origin(running: BoathookProcess):
    wanted = {"access-control-request-method": "GET", "access-control-request-headers": "authorization"}
    allowed = send_request(running, "OPTIONS", "/closed/cars", {"origin": PAGE, **wanted})
    assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (204, PAGE)
    refused = send_request(running, "OPTIONS", "/closed/cars", {"origin": f"{PAGE}.evil.example", **wanted})
    assert refused.status == 403
    assert "access-control-allow-origin" not in refused.headers


def test_open_mounts_have_security_headers_too(running: BoathookProcess):
    headers = send_request(running, "GET", "/open/x").headers
    assert headers["x-content-type-options"] == "nosniff"
    assert "frame-ancestors 'none'" in headers["content-security-policy"]


@pytest.mark.parametrize(
    ("toml", "words"),
    [
        ('[mounts."/closed"]\norigins = ["*"]', "would let every website in"),
        ('[mounts."/clsed"]\norigins = ["https://a.test"]', "no app mounts this path; mounted are: /api/mounted, /closed"),
        ('[mounts."/open"]\nroles = { a = "reader" }\n[jwt]\nissuer = "a"\naudience = "b"\njwks_url = "https://a.test/k"',
         "this path needs no token"),
    ],
)  # fmt: skip
def test_config_check_refuses_settings_without_effect(tmp_path: Any, pg_url: str, toml: str, words: str):
    cli = Cli(tmp_path, pg_url)
    (tmp_path / "mounted.py").write_text(APP_SOURCE)
    file = tmp_path / "boathook.toml"
    file.write_text(f'[server]\napp = "mounted:hook"\n{toml}\n')
    assert words in cli.complaint("--config", str(file), "config", "check", code=2)


def test_config_show_names_the_settings_of_a_mount(running: BoathookProcess):
    shown = running.cli("config", "show").stdout
    assert f'[mounts."/closed"]\norigins = ["{PAGE}"]' in shown


def test_the_doctor_fetches_the_keys_of_the_users_issuer(running: BoathookProcess):
    lines = running.cli("doctor", "--json", check=False).stdout.splitlines()
    [finding] = [row for row in map(json.loads, lines) if row["check"] == "jwt"]
    assert finding["verdict"] == "ok"
    assert finding["found"].endswith("/jwks.json has 1 key for the tokens of users")


def test_the_doctor_says_that_an_issuer_has_no_key_set(running: BoathookProcess, monkeypatch: pytest.MonkeyPatch):
    url = f"http://127.0.0.1:{running.port}/healthz"
    monkeypatch.setitem(running.environment, "BOATHOOK_JWT_JWKS_URL", url)
    done = running.cli("doctor", "--json", check=False)
    [finding] = [row for row in map(json.loads, done.stdout.splitlines()) if row["check"] == "jwt"]
    assert finding["verdict"] == "fail"
    assert "did not contain any keys" in finding["found"]
