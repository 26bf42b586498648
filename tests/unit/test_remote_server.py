"""Where the remote command line sends a key, and what it makes of the answers."""

import asyncio
import http.server
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from boathook import config
from boathook.cli import context
from boathook.cli.context import RemoteOptions, UsageError
from boathook.cli.remote import RemoteError, RemoteRunner, RemoteServer, check_url, choose_server
from boathook.domain.errors import ConfigError, InvalidValue
from boathook.service.catalogue import keys
from boathook.service.catalogue.wire import CLIENT_HEADER, VERSION_HEADER, own_version

OWN = "https://hooks.example.com"
KEY = "key_01h455vb4pex5vsknk084sn02q4"
PAIR = {"BOATHOOK_SERVER": OWN, "BOATHOOK_API_KEY": "bho_own"}


def choose(environment: dict[str, str] | None = None, **options: str) -> RemoteServer:
    return choose_server(RemoteOptions(**options), config.load(None, {}), environment or {})


# Where a key goes


@pytest.mark.parametrize(
    "url",
    [OWN, f"{OWN}/", "https://hooks.example.com:8443", "http://127.0.0.1:8080", "http://127.9.8.7", "http://[::1]:8080",
     "http://localhost:8080", "https://example.com/hooks/"],
)  # fmt: skip
def test_a_server_is_reached_by_https_or_on_this_machine(url: str):
    assert check_url(url, "--server") == url.rstrip("/")


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("http://hooks.example.com", "use https"),
        ("http://10.0.0.7:8080", "use https"),
        ("http://127.0.0.1.example.com", "use https"),
        ("http://localhost.example.com", "use https"),
        ("https://anna:secret@hooks.example.com", "must not have a user"),
        ("https://hooks.example.com/?a=b", "query"),
        ("https://hooks.example.com/#a", "fragment"),
        ("ftp://hooks.example.com", ""),
        ("hooks.example.com", ""),
        ("", ""),
    ],
)
def test_a_key_is_not_sent_to_another_address(url: str, reason: str):
    with pytest.raises(UsageError, match=f"--server: .*{reason}") as error:
        check_url(url, "--server")
    assert "secret" not in str(error.value)


def test_the_options_and_the_environment_name_a_server_and_its_key(monkeypatch, tmp_path: Path):
    monkeypatch.setenv("OWN_KEY", "bho_of_env")
    (tmp_path / "key").write_text("bho_of_file\n")
    assert choose(PAIR) == RemoteServer(OWN, "bho_own")
    assert choose(PAIR, server=f"{OWN}/") == RemoteServer(OWN, "bho_own")
    assert choose(PAIR, api_key="env:OWN_KEY").key == "bho_of_env"
    assert choose(server=OWN, api_key=f"file:{tmp_path}/key").key == "bho_of_file"
    assert choose({"BOATHOOK_API_KEY": "env:OWN_KEY"}, server=OWN).key == "bho_of_env"
    assert "bho_own" not in repr(choose(PAIR))
    assert "bho_own" not in repr(RemoteOptions(OWN, "bho_own"))


@pytest.mark.parametrize("key", ["env:NO_SUCH_VARIABLE", "file:/nonexistent", "a b", "é", "a\nb"])
def test_a_key_that_cannot_be_read_is_named(key: str):
    with pytest.raises((UsageError, ConfigError), match="--api-key"):
        choose(server=OWN, api_key=key)


def test_the_key_of_the_environment_goes_to_its_own_server_only():
    with pytest.raises(UsageError, match="BOATHOOK_API_KEY is the key of BOATHOOK_SERVER, which is another server"):
        choose(PAIR, server="https://other.example.com")
    with pytest.raises(UsageError, match="needs a key"):
        choose(server=OWN)


# Profiles


@pytest.fixture
def profiles(tmp_path: Path) -> Path:
    file = tmp_path / "boathook" / "profiles.toml"
    file.parent.mkdir()
    file.touch(0o600)
    file.write_text(f'[profiles.prod]\nserver = "{OWN}"\napi_key = "bho_prod"\n')
    return file


def of_profile(file: Path, name: str = "prod", **options: str) -> RemoteServer:
    return choose({"XDG_CONFIG_HOME": str(file.parents[1]), **PAIR}, profile=name, **options)


def test_a_profile_is_used_alone(profiles: Path):
    assert of_profile(profiles) == RemoteServer(OWN, "bho_prod")
    for options in ({"server": "https://other.example.com"}, {"api_key": "bho_x"}):
        with pytest.raises(UsageError, match="--profile has a server and a key of its own"):
            of_profile(profiles, **options)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o777])
def test_a_file_that_others_can_use_is_not_read(profiles: Path, mode: int):
    profiles.chmod(mode)
    with pytest.raises(ConfigError, match="mode 0600"):
        of_profile(profiles)


def test_a_file_of_another_user_is_not_read(profiles: Path, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: profiles.stat().st_uid + 1)
    with pytest.raises(ConfigError, match="it must be yours"):
        of_profile(profiles)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[profiles.prod", "profiles.toml: "),
        ('[profiles.prod]\nserver = "https://a.example"\n', "api_key"),
        ('[profiles.prod]\nserver = "https://a.example"\napi_key = "x"\nkey = "y"\n', "key"),
        (
            "[profiles.other]\nserver = 'https://a.example'\napi_key = 'x'\n",
            "there is no profile prod; there are: other",
        ),
        ("[profiles.prod]\nserver = 'http://a.example'\napi_key = 'x'\n", "profile prod: server: .* use https"),
        (f"# {'x' * 70_000}", "larger than"),
    ],
)
def test_a_mistake_in_the_file_is_named(profiles: Path, text: str, reason: str):
    profiles.write_text(text)
    with pytest.raises((ConfigError, UsageError), match=reason):
        of_profile(profiles)


def test_a_missing_file_says_what_to_write(tmp_path: Path):
    with pytest.raises(ConfigError, match=r"write \[profiles.prod\] with server and api_key there"):
        of_profile(tmp_path / "boathook" / "profiles.toml")


# Answers


class Server:
    """A server that answers each request in the same way, and records it."""

    def __init__(self) -> None:
        self.status, self.body = 200, b"{}"
        self.headers: dict[str, str] = {}
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                outer.requests.append((self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body))
                self.send_response(outer.status)
                for name, value in {"content-length": str(len(outer.body)), **outer.headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(outer.body)

            do_GET = do_POST = _answer  # noqa: N815 - names of the library

            def log_message(self, *_: Any) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_address[1]}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def answer(self, status: int, document: Any, **headers: str) -> None:
        self.status, self.body = status, document if isinstance(document, bytes) else json.dumps(document).encode()
        self.headers = {name.replace("_", "-"): value for name, value in headers.items()}


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


def act(server: Server, operation: Any, value: Any) -> Any:
    runner = RemoteRunner(RemoteServer(server.url, "bho_secret"), config.load(None, {}))
    return asyncio.run(runner.act(operation, value))


LIST = (keys.list_keys, keys.KeyFilter(organization="a b&c", portal=True))


def test_an_input_goes_into_the_path_the_query_or_the_body(server: Server):
    server.answer(200, {"data": [], "iterator": None, "done": True})
    assert act(server, *LIST).done
    server.answer(200, {"id": KEY})
    act(server, keys.revoke, keys.KeyNamed(id=KEY))
    with pytest.raises(RemoteError, match="did not answer as boathook"):
        act(server, keys.create, keys.NewKey(scope=keys.KeyScope.ORGANIZATION, lifetime_seconds=60))
    listing, revoking, creating = server.requests
    assert listing[:2] == ("GET", "/api/v1/key?limit=50&organization=a%20b%26c&portal=true")
    assert listing[2]["authorization"] == "Bearer bho_secret"
    assert listing[2][CLIENT_HEADER] == own_version()
    assert (revoking[0], revoking[1], revoking[3]) == ("POST", f"/api/v1/key/{KEY}/revoke", b"")
    assert json.loads(creating[3]) == {"scope": "organization", "organization": "default", "lifetimeSeconds": 60}


def test_a_redirect_is_not_followed(server: Server):
    server.answer(307, b"", location=f"{server.url}/elsewhere")
    with pytest.raises(RemoteError, match="redirects, which is not followed"):
        act(server, *LIST)
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("status", "document", "reason"),
    [
        (401, {"code": "authentication_failed", "detail": "Invalid token"}, "http://127.0.0.1:[0-9]+: Invalid token"),
        (404, {"code": "not_found", "detail": "there is no key x"}, "^there is no key x$"),
        (404, {"code": "not_found", "detail": "unknown route"}, "has no GET /api/v1/key: it runs another version"),
        (429, {"code": "rate_limited", "detail": "too many requests"}, "^too many requests$"),
        (502, b"<html>bad gateway", "answered with status 502, not as boathook does"),
        (404, [], "answered with status 404, not as boathook does"),
        (200, b"<html>", "did not answer as boathook"),
        (200, {"data": "x"}, "did not answer as boathook"),
        (200, b"[" * 100_000, "did not answer as boathook"),
    ],
)
def test_an_error_is_the_servers_text(server: Server, status: int, document: Any, reason: str):
    server.answer(status, document)
    with pytest.raises(RemoteError, match=reason) as error:
        act(server, *LIST)
    assert "bho_secret" not in str(error.value)


def test_an_invalid_value_names_its_field(server: Server):
    server.answer(422, {"detail": [{"loc": ["body", "role"], "msg": "choose a role", "type": "value_error"}]})
    with pytest.raises(InvalidValue, match="choose a role") as error:
        act(server, *LIST)
    assert error.value.where == ("role",)


def test_a_server_that_is_not_there_is_an_error(server: Server):
    server.http.shutdown()
    server.http.server_close()
    with pytest.raises(RemoteError, match=r"http://127.0.0.1"):
        act(server, *LIST)


@pytest.mark.parametrize(("version", "has_warning"), [("99.1", True), (own_version(), False), (None, False)])
def test_another_version_is_reported(server: Server, version: str | None, has_warning: bool, capsys):
    context.warn_once.cache_clear()
    headers = {} if version is None else {VERSION_HEADER: version}
    server.answer(200, {"data": [], "iterator": None, "done": True}, **headers)
    act(server, *LIST)
    text = capsys.readouterr().err
    assert ("runs boathook 99.1, this is" in text) is has_warning
