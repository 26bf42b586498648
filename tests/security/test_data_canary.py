"""No secret is found where it is not needed: all secrets of a boathook are canaries, searched in its files.

The secrets of endpoints and what they answer have a scenario of their own, tests/acceptance/svix/test_canary.py; this
one is about what comes in: sources, tokens in URLs, handshake secrets, the settings of apps, the database's password.
"""

import base64
import contextlib
import json
import secrets
import subprocess
import sys
import textwrap
import urllib.parse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Final

import httpx
import psutil
import psycopg
import pytest

from boathook.testing import sign
from tests.acceptance.conftest import TABLES, BoathookProcess
from tests.acceptance.svix.server import ROLES, wait_for_api
from tests.acceptance.svix.test_canary import dump, files, find
from tests.security.isolated_gateway import own_postgres
from tests.support import until

SOURCES: Final = """
    [sources.stripe]
    provider = "stripe"
    secrets = ["env:SHOP_STRIPE", "{stripe_literal}"]
    [sources.github]
    provider = "github"
    secrets = ["file:{folder}/github.key"]
    [sources.query]
    provider = "token"
    secrets = ["{query_token}"]
    query = "key"
    [sources.header]
    provider = "token"
    secrets = ["{header_token}"]
    header = "x-shop-token"
    [sources.basic]
    provider = "token"
    username = "shop"
    password = "{basic_password}"
    [sources.standard]
    provider = "standard-webhooks"
    secrets = ["whsec_{standard_key}"]
    [sources.meta]
    provider = "meta"
    secrets = ["{meta_secret}"]
    verify_token = "{meta_verify}"
    [sources.vk]
    provider = "vk"
    secrets = ["{vk_secret}"]
    confirmation = "1a2b3c4d"
    [sources.notion]
    provider = "notion"
    [apps]
    load = ["shelf"]
    [shelf]
    api_token = "{app_token}"
    password = "env:SHOP_APP"
    [outbound]
    encryption_keys = ["env:SHOP_VAULT", "{vault_key_of_old}"]
    proxy_bypass = ["127.0.0.0/8"]
    proxy = "http://shop:{proxy_password}@127.0.0.1:9"
    allow = ["127.0.0.0/8"]
    [log]
    level = "debug"
    format = "{form}"
"""

SHELF: Final = """
from pydantic import BaseModel
from boathook import Boathook, Event, RetryPolicy

class Own(BaseModel, extra="forbid"):
    api_token: str
    password: str

hook = Boathook("shelf", settings=Own)

for name in ("stripe", "github", "query", "header", "basic", "standard", "meta", "notion"):
    hook.on(name, "*", name=name, retry=RetryPolicy(first_s=0.05, max_attempts=1))(lambda event: fails(event))

def fails(event: Event) -> None:
    api_token, password = hook.settings.api_token, hook.settings.password
    wrapped = {"authorization": f"Bearer {api_token}", "password": password}
    raise RuntimeError(f"the bank refuses {len(wrapped)} headers")

async def page(scope, receive, send):
    token = hook.settings.api_token
    raise RuntimeError("a page that breaks with the token in a local variable")

hook.mount("/shelf", page, is_open=True)
"""

COMMANDS: Final = (
    "config show", "config show --json", "config check", "doctor", "doctor --json", "sources list",
    "sources list --json", "sources providers --json", "sources show stripe", "sources show query", "sources show basic",
    "sources show vk", "sources show meta --json", "events list --json", "deliveries list --json", "dead list",
    "dead list --json", "rejections list", "rejections list --json", "keys list", "keys list --json", "apps list --json",
    "endpoints list --json", "check", "check --json", "applications list --json", "sources secrets list github",
    "sources secrets list github --json",
)  # fmt: skip


PAGES: Final = ("/metrics", "/metrics.json", "/metrics/history", "/selftest", "/readyz", "/healthz", "/", "/console")

MANY: Final = """
import json, os, sys, tempfile
from boathook.cli import main
import boathook.cli.serve, boathook.cli.events, boathook.db.database, boathook.service.operating.doctor

def said(arguments):
    with tempfile.TemporaryFile() as out:
        child = os.fork()
        if child == 0:
            os.dup2(out.fileno(), 1)
            os.dup2(out.fileno(), 2)
            main(arguments)
        os.waitpid(child, 0)
        out.seek(0)
        return out.read().decode(errors="replace")

json.dump([said(arguments) for arguments in json.load(sys.stdin)], sys.stdout)
"""
"""Runs commands of the command line one after another, each in a process of its own that need not import anything."""


class Scenario:
    """The run, and everything it left behind."""

    def __init__(self, folder: Path, url: str, form: str) -> None:
        self.canaries: dict[str, str] = {}
        self.said: list[bytes] = []
        password = self.canary("database_password")
        self.url = url
        folder.joinpath("github.key").write_text(self.canary("github_file"))
        self.environment = {
            "SHOP_STRIPE": self.canary("stripe_environment"),
            "SHOP_APP": self.canary("app_environment"),
            "SHOP_VAULT": self.canary("vault_key"),
        }
        names = ("stripe_literal", "query_token", "header_token", "basic_password", "meta_secret", "meta_verify",
                 "vk_secret", "app_token", "vault_key_of_old", "proxy_password")  # fmt: skip
        places = {name: self.canary(name) for name in names}
        places["standard_key"] = self.canary("standard_key", base64.b64encode(secrets.token_bytes(24)).decode())
        extra = SOURCES.format(folder=folder, form=form, **places)
        secured = url.replace("postgresql://boathook@", f"postgresql://boathook:{password}@")
        assert secured != url
        self.running = BoathookProcess(folder, secured, roles=ROLES, extra=extra, senders=1)
        (folder / "shelf.py").write_text(textwrap.dedent(SHELF))
        configuration = folder / "boathook.toml"
        own = textwrap.dedent(BoathookProcess.own)
        configuration.write_text(configuration.read_text().replace(own, ""))
        self.running.environment |= self.environment
        self.running.start()
        wait_for_api(self.running)

    def canary(self, name: str, value: str = "") -> str:
        prefix = "whsec_" if name.startswith("stripe") else ""
        self.canaries[name] = value or f"{prefix}canary{secrets.token_hex(12)}"
        return self.canaries[name]

    def play(self) -> None:
        """Receive, reject and handle events, fail, and get invalid requests."""
        with httpx.Client(base_url=self.running.base, timeout=300) as self.http:
            self._receive()
            self._refuse()
            self._tell()
            self._add()
            self._use_keys()
        with psycopg.connect(self.url, autocommit=True) as connection:
            for what, least in (("delivery where state = 'dead'", 8), ("rejection", 14)):
                until(partial(_has, connection, f"select count(*) from boathook.{what}", least))

    def post(self, path: str, body: bytes, headers: dict[str, str], status: int) -> None:
        answer = self.http.post(path, content=body, headers=headers)
        assert answer.status_code == status, (path, answer.status_code, answer.text)
        self.said += [answer.content, str(answer.headers).encode()]

    def _signed(self, provider: str, secret: str, name: str, **settings: str) -> tuple[bytes, dict[str, str]]:
        body = json.dumps({"id": name, "type": "shop.paid", "object": "event"}).encode()
        return body, {"content-type": "application/json", **sign(provider, secret, body, id=name, **settings)}

    def _receive(self) -> None:
        known = self.canaries
        for word in ("stripe_environment", "stripe_literal"):
            self.post("/in/stripe", *self._signed("stripe", known[word], f"evt_{word}"), 200)
        self.post("/in/github", *self._signed("github", known["github_file"], "evt_file"), 200)
        self.post(f"/in/query?key={known['query_token']}", *self._plain("a"), 200)
        body, headers = self._plain("b")
        self.post("/in/header", body, headers | {"x-shop-token": known["header_token"]}, 200)
        basic = base64.b64encode(f"shop:{known['basic_password']}".encode()).decode()
        self.post("/in/basic", body, headers | {"authorization": f"Basic {basic}"}, 200)
        self.post("/in/standard", *self._signed("standard-webhooks", f"whsec_{known['standard_key']}", "m"), 200)
        body = b'{"object":"page","entry":[]}'
        self.post("/in/meta", body, sign("github", known["meta_secret"], body), 200)  # they sign alike

    def _plain(self, name: str) -> tuple[bytes, dict[str, str]]:
        return json.dumps({"id": name}).encode(), {"content-type": "application/json"}

    def _refuse(self) -> None:
        """Send valid secrets to wrong places, and wrong ones besides them."""
        known = self.canaries
        body, headers = self._plain("refused")
        loud = headers | {
            "authorization": f"Bearer {known['app_token']}",
            "cookie": f"session={known['app_token']}",
            "x-api-key": known["app_token"],
            "x-shop-token": known["header_token"],
            "x-github-encoded-secret": base64.b64encode(known["github_file"].encode()).decode(),
            "x-hub-secret": known["github_file"],
        }
        token = known["query_token"]
        for source in ("stripe", "github", "query", "basic", "standard", "meta", "header"):
            wrong = loud | ({"x-shop-token": "wrong"} if source == "header" else {})
            self.post(f"/in/{source}?token=x", body, wrong, 401)
            if source != "query":
                self.post(f"/in/{source}?key={token}&a=%20b", body, wrong, 401)
        spelt = urllib.parse.quote(token.replace("c", "%c", 1)).replace("%25c", "%63")
        self.post(f"/in/stripe?k%65y={spelt}", body, loud, 401)
        question = {"hub.mode": "subscribe", "hub.challenge": "1", "hub.verify_token": known["meta_verify"]}
        assert self.http.get("/in/meta", params=question).status_code == 200
        assert self.http.get("/in/meta", params=question | {"hub.verify_token": "wrong"}).status_code == 401
        assert self.http.get("/in/github", params=question).status_code in {401, 405}
        for path in (f"/in/unknown?key={token}", f"/nowhere/{token}", f"/shelf?token={known['app_token']}"):
            self.said.append(self.http.post(path, content=body, headers=loud).content)
        self.said.append(self.http.post("/in/vk", json={"type": "confirmation", "group_id": 1, "secret": "x"}).content)
        self.http.post("/in/vk", json={"type": "confirmation", "group_id": 1, "secret": known["vk_secret"]})

    def _tell(self) -> None:
        """Let an attacker send a handshake secret before the sender does; the sender's own is then rejected."""
        for status, secret in ((200, "told_by_a_stranger"), (401, self.canary("told_too_late", f"secret_{secrets.token_hex(16)}"))):  # fmt: skip
            self.post("/in/notion", json.dumps({"verification_token": secret}).encode(), {}, status)
        self.running.cli("sources", "secret", "notion", "--forget")
        told = self.canary("told", f"secret_{secrets.token_hex(16)}")
        self.post("/in/notion", json.dumps({"verification_token": told}).encode(), {}, 200)
        assert self.running.cli("sources", "secret", "notion").stdout.strip() == told
        body = b'{"id":"n1","type":"page.created"}'
        self.post("/in/notion", body, sign("notion", told, body), 200)

    def _add(self) -> None:
        """Let boathook make a secret for a source, and use it until every gateway knows it."""
        made = json.loads(self.running.cli("sources", "secrets", "add", "github", "--json").stdout)
        added, body = self.canary("added", made["secret"]), b'{"action":"opened","number":9}'
        headers = {**sign("github", added, body, id="added-1", type="issues"), "content-type": "application/json"}
        until(lambda: self.http.post("/in/github", content=body, headers=headers).status_code == 200)

    def _use_keys(self) -> None:
        made = self.running.cli("keys", "create", "--scope", "organization", "--json")
        token = self.canary("api_key", json.loads(made.stdout)["token"])
        right = {"authorization": f"Bearer {token}"}
        assert self.http.get("/api/v1/app", headers=right).status_code == 200
        for path in (f"/api/v1/app/{token}", f"/api/v1/app?limit={token}", "/api/v1/nothing"):
            answer = self.http.get(path, headers=right)
            # What a caller writes into a path or a value of its own may be named back to it, and nowhere else.
            self.said += [] if token in path else [answer.content]
        wrong = self.http.get("/api/v1/app", headers={"authorization": f"Bearer {token[:-1]}"})
        assert wrong.status_code == 401
        self.said.append(wrong.content)

    def places(self) -> dict[str, bytes]:
        """Return all there is to be searched."""
        running, found = self.running, dict[str, bytes]()
        for path in PAGES:
            found[path] = httpx.get(running.base + path, timeout=300).content
        found["answers"] = b"\n".join(self.said)
        commands = [*COMMANDS, *self._shows()]
        for command, text in zip(commands, self._ask([command.split() for command in commands]), strict=True):
            assert text or command.startswith(("endpoints", "applications")), command
            found[f"boathook {command}"] = text.encode()
        found["complaints"] = self._complaints()
        return found | processes(running) | dump(self.url) | files(running.folder)

    def _ask(self, commands: list[list[str]]) -> list[str]:
        """Return the command line's output for each of these."""
        done = subprocess.run(
            [sys.executable, "-c", MANY],
            cwd=self.running.folder,
            env=self.running.environment,
            input=json.dumps(commands).encode(),
            capture_output=True,
            timeout=200,
            check=True,
        )
        return list(json.loads(done.stdout))

    def _shows(self) -> Iterator[str]:
        listings = ("events", "dead", "rejections")
        for listing, rows in zip(listings, self._ask([[name, "list", "--json"] for name in listings]), strict=True):
            for number, row in enumerate(map(json.loads, rows.splitlines())):
                if number < 3:
                    yield f"{listing} show {row['id']} --json"
                if number < 1:
                    yield f"{listing} show {row['id']}"
                    yield f"rejections reverify {row['id']}" if listing == "rejections" else f"{listing} list"

    def _complaints(self) -> bytes:
        """Return the errors about configurations that are invalid besides their secrets."""
        right = (self.running.folder / "boathook.toml").read_text()
        known = self.canaries
        wrong = {
            "a typo in a key": right.replace("secrets = [", "secret = ["),
            "another in an app's": right.replace("api_token", "api_tokn"),
            "no list": right.replace(f'["{known["vk_secret"]}"]', f'"{known["vk_secret"]}"'),
            "no text": right.replace(f'"{known["app_token"]}"', f'["{known["app_token"]}"]'),
            "an address": right.replace("postgresql://", "postgres+ql://"),
            "no TOML": right.replace(f'"{known["meta_verify"]}"', f'"{known["meta_verify"]}'),
            "a proxy": right.replace('"http:', '"nttp:'),
        }
        folder = self.running.folder / "wrong"
        folder.mkdir()
        commands = []
        for name, text in wrong.items():
            assert text != right, name
            (folder / f"{name}.toml").write_text(text)
            chosen = ["--config", str(folder / f"{name}.toml")]
            commands += [[*chosen, "config", "check"], [*chosen, "config", "show"], [*chosen, "doctor"]]
        said = self._ask(commands)
        assert all(said)
        return "\n".join(said).encode()


def processes(running: BoathookProcess) -> dict[str, bytes]:
    """Return what every process of boathook's shows to others: its arguments and its environment."""
    assert running.process is not None
    supervisor = psutil.Process(running.process.pid)
    found = {}
    for process in (supervisor, *supervisor.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            name = f"{process.pid} {' '.join(process.cmdline()[-2:])[:40]}"
            found[f"arguments of {name}"] = "\0".join(process.cmdline()).encode()
            found[f"environment of {name}"] = Path(f"/proc/{process.pid}/environ").read_bytes()
    assert len(found) >= 10
    return found


ALLOWED: Final = {
    ("told", "data/captured/notion.secret"): "where it is kept for the gateways, readable by boathook alone",
    ("stripe_environment", "environment of"): "the operator has put it there",
    ("app_environment", "environment of"): "the operator has put it there",
    ("vault_key", "environment of"): "the operator has put it there",
    ("github_file", "github.key"): "the operator's own file",
}
"""Where a secret must be, and why."""


def leaks(found: list[str]) -> list[str]:
    """Return the findings that are not where they must be."""
    return [one for one in found if not any(one.startswith(f"{name} in {place}") for name, place in ALLOWED)]


@pytest.fixture(scope="module", params=["json"])
def scenario(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenario]:
    with own_postgres() as url:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(TABLES)
        scenario = Scenario(tmp_path_factory.mktemp("canary"), url, request.param)
        try:
            scenario.play()
            yield scenario
        finally:
            scenario.running.kill_all()


@pytest.mark.extended(
    "looks for planted secrets through the whole product; logs and the API are looked through in make test"
)
def test_no_secret_is_found_where_it_need_not_be(scenario: Scenario):
    places = scenario.places()
    assert b"the bank refuses 2 headers" in places["serve.log"] + b"".join(
        text for name, text in places.items() if name.startswith("boathook dead show")
    )
    assert len(places["boathook.rejection"]) > 2_000
    assert leaks(find(scenario.canaries, places)) == []


def test_files_with_secrets_are_private(scenario: Scenario):
    for file in (scenario.running.folder / "data").rglob("*"):
        if "captured" in str(file) or "secret" in file.name or "key" in file.name or "vault" in file.name:
            assert file.stat().st_mode & 0o077 == 0, file


WAYS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "hex": lambda text: text.encode().hex(),
    "base64": lambda text: base64.b64encode(b"x" + text.encode()).decode(),
    "url": lambda text: urllib.parse.quote(f"key={text}&"),
}


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
@pytest.mark.parametrize("way", WAYS)
def test_mutant_a_planted_secret_is_found_in_a_table_a_log_and_a_process(scenario: Scenario, way: str):
    planted = WAYS[way](scenario.canaries["query_token"])
    folder = scenario.running.folder
    sleeper = subprocess.Popen([sys.executable, "-c", "input()", planted], stdin=subprocess.PIPE)
    log = folder / "planted.log"
    try:
        log.write_text(planted)
        with psycopg.connect(scenario.url, autocommit=True) as connection:
            connection.execute(
                "insert into boathook.audit (actor, action, subject, note) values ('a', 'b', 'planted', %s)", [planted]
            )
            tables = dump(scenario.url)
            connection.execute("delete from boathook.audit where subject = 'planted'")
        arguments = {"arguments": "\0".join(psutil.Process(sleeper.pid).cmdline()).encode()}
        found = leaks(find(scenario.canaries, tables | files(folder) | arguments))
    finally:
        log.unlink()
        sleeper.kill()
        sleeper.communicate()
    assert sorted(found) == [f"query_token in {place}" for place in ("arguments", "boathook.audit", "planted.log")]


def _has(connection: psycopg.Connection[tuple[int]], query: str, least: int) -> bool:
    row = connection.execute(query).fetchone()
    return row is not None and row[0] >= least
