"""Secrets never show: not in a dump of the database, a log, a metric, an error, nor in what is kept of a response.

Each secret of this scenario is a canary, a text found nowhere else. After everything that secrets are used for has
happened, all that boathook stored or said is searched for them, in every form they could have been written in.
"""

import base64
import json
import re
import secrets
import urllib.parse
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
import psycopg
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from tests.acceptance.svix.receiver import Answer
from tests.acceptance.svix.server import FAIL, OUTBOUND, SUCCESS, Application, open_database, open_server

LOUD = OUTBOUND.replace('format = "json"', 'format = "json"\n    level = "debug"')


def forms(canary: str) -> set[bytes]:
    """Return the ways a text may be written: plain, hexadecimal, base64 at each of three offsets, for a URL."""
    plain = canary.encode()
    written = {plain, plain.hex().encode(), plain.hex().upper().encode(), urllib.parse.quote(canary, safe="").encode()}
    for offset in range(3):
        text = base64.b64encode(b"\0" * offset + plain)
        # Without the characters that depend on what stands before and after.
        core = text[(0, 2, 3)[offset] :].rstrip(b"=")[:-1]
        written |= {core, core.replace(b"+", b"-").replace(b"/", b"_")}
    return written


def find(canaries: dict[str, str], places: dict[str, bytes]) -> list[str]:
    """Return which canary was found where."""
    return [
        f"{name} in {place}"
        for name, canary in canaries.items()
        for place, content in places.items()
        if any(form in content for form in forms(canary))
    ]


def dump(url: str) -> dict[str, bytes]:
    """Return every table of the database as text; bytes are written as hexadecimal and as they are."""
    found = {}
    with psycopg.connect(url, autocommit=True) as connection:
        tables = connection.execute(
            "select format('%I.%I', table_schema, table_name) from information_schema.tables "
            "where table_schema not in ('pg_catalog', 'information_schema') and table_type = 'BASE TABLE'"
        ).fetchall()
        for (table,) in tables:
            with connection.cursor() as cursor, cursor.copy(f"copy (select * from {table}) to stdout") as copy:
                text = b"".join(bytes(part) for part in copy)
            found[table] = text + b"".join(
                bytes.fromhex(unique_name.decode()) for unique_name in re.findall(rb"\\x([0-9a-f]+)", text)
            )
    return found


def files(folder: Path) -> dict[str, bytes]:
    """Return the files that the server wrote to its folder, except its configuration."""
    return {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file() and file.suffix not in {".pyc", ".toml", ".py"} and "postgres" not in str(file)
    }


def certificate() -> tuple[str, str]:
    """Return a certificate and its key as PEM."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "canary")])
    now = datetime.now(UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return built.public_bytes(Encoding.PEM).decode(), pem.decode()


class Scenario:
    """A run in which every secret is used, and everything it left behind."""

    def __init__(self, server, receiver) -> None:
        self.server = server
        self.canaries: dict[str, str] = {}
        self.said: list[bytes] = []
        app = Application(server.api)
        echo = receiver.mailbox(Answer(500, echo=True), Answer(200, echo=True))
        certificate_pem, key_pem = certificate()
        self.canaries |= {
            "API token": server.token,
            "key of a client certificate": key_pem.splitlines()[1],
        }
        key = secrets.token_bytes(24)
        first = self.canary("signing secret", base64.b64encode(key).decode())
        endpoint = app.endpoint(
            echo,
            secret=f"whsec_{first}",
            headers={
                "Authorization": f"Bearer {self.canary('header')}",
                "X-Shop-Token": self.canary("token header"),
                "X-Access": self.canary("header with a harmless name"),
                "traceparent": self.canary("custom header that boathook may send itself"),
            },
        )
        self.secret_echoed = receiver.mailbox(Answer(200, f"you signed with whsec_{first} didn't you".encode()))
        told = app.endpoint(self.secret_echoed, secret=f"whsec_{first}")
        basic = app.endpoint(
            receiver.mailbox(Answer(echo=True)).url.replace(
                "http://", f"http://shop:{self.canary('password in a URL')}@"
            )
        )
        named = app.endpoint(
            receiver.mailbox(Answer(echo=True)),
            auth={"basic": {"username": "shop", "password": self.canary("password")}},
        )
        token = receiver.mailbox(
            Answer(200, json.dumps({"access_token": self.canary("access token"), "expires_in": 60}).encode())
        )
        oauth = app.endpoint(
            receiver.mailbox(Answer(echo=True)),
            auth={"oauth2": {"tokenUrl": token.url, "clientId": "shop", "clientSecret": self.canary("client secret")}},
        )
        mtls = app.endpoint(receiver.mailbox(), auth={"mtls": {"certificate": certificate_pem, "key": key_pem}})
        message = app.send()
        for one in (endpoint, told, basic, named, oauth, mtls):
            app.wait_status(message, one, SUCCESS)
        refused = receiver.mailbox(Answer(403, b"go away"))
        failing = app.endpoint(refused, retrySchedule=[], auth={"oauth2": {
            "tokenUrl": receiver.mailbox(Answer(401, echo=True)).url,
            "clientId": "shop",
            "clientSecret": self.canary("refused client secret"),
        }})  # fmt: skip
        app.wait_status(app.send(kind="second.thing"), failing, FAIL)
        app.api.post(f"{app.path}/endpoint/{endpoint['id']}/send-example", {"eventType": "svix.ping"})
        self.attempts = [
            row for one in (endpoint, told, basic, named, oauth, mtls, failing) for row in app.attempts(one)
        ]
        self.endpoints = [
            app.api.get(f"{app.path}/endpoint/{one['id']}") for one in (endpoint, basic, named, oauth, mtls)
        ]
        self._remembered_answers(app, endpoint)
        self._errors(app, endpoint)

    def canary(self, name: str, value: str = "") -> str:
        self.canaries[name] = value or f"canary{secrets.token_hex(12)}"
        return self.canaries[name]

    def _remembered_answers(self, app: Application, endpoint: dict[str, Any]) -> None:
        """Answers that hold secrets, kept for requests that are repeated."""
        once = {"idempotency-key": "portal", "user-agent": "svix-libs/2.9.1/python"}
        first = app.api.post(f"/auth/app-portal-access/{app.id}", {}, headers=once)
        assert app.api.post(f"/auth/app-portal-access/{app.id}", {}, headers=once) == first
        self.canary("portal token", first["token"])
        key = base64.b64encode(secrets.token_bytes(24)).decode()
        path = f"{app.path}/endpoint/{endpoint['id']}/secret/rotate"
        body = {"key": f"whsec_{self.canary('rotated secret', key)}"}
        assert app.api.post(path, body, headers=once | {"idempotency-key": "rotation"})["key"] == body["key"]
        assert app.api.post(path, body, headers=once | {"idempotency-key": "rotation"})["key"] == body["key"]

    def _errors(self, app: Application, endpoint: dict[str, Any]) -> None:
        """Make invalid requests with secrets; the error responses must not contain them."""
        path = f"{app.path}/endpoint"
        bad = self.canary("secret that is refused")
        requests: list[tuple[str, str, Any]] = [
            ("POST", path, {"url": "http://127.0.0.1:61999/", "secret": bad}),
            ("POST", path, {"url": "http://127.0.0.1:61999/", "secret": {"is": bad}}),
            ("POST", path, {"url": 5, "secret": f"whsec_{bad}", "headers": {"Authorization": bad}}),
            ("PUT", f"{path}/{endpoint['id']}/headers", {"headers": {"Authorization": f"{bad}\n"}}),
            ("PUT", f"{path}/{endpoint['id']}/headers", {"headers": {"X-Api-Key": [bad]}}),
            ("POST", f"{path}/{endpoint['id']}/secret/rotate", {"key": bad}),
            ("POST", path, {"url": "http://127.0.0.1:61999/", "auth": {"basic": {"password": bad}}}),
            ("POST", path, {"url": "http://127.0.0.1:61999/", "auth": {"mtls": {"certificate": "x", "key": bad}}}),
        ]
        for method, place, body in requests:
            answer = app.api.http.request(method, place, json=body)
            assert answer.status_code == 422, (method, place, answer.status_code, answer.text)
            self.said.append(answer.content)
        strange = httpx.get(
            f"{app.api.base}/api/v1/app", headers={"authorization": f"Bearer {self.canary('strange token')}"}
        )
        assert strange.status_code == 401
        self.said.append(strange.content)

    def places(self) -> dict[str, bytes]:
        """Return all there is to be searched."""
        running = self.server.running
        metrics = {path: httpx.get(running.base + path).content for path in ("/metrics", "/metrics.json")}
        answers = {
            "errors": b"\n".join(self.said),
            "attempts": json.dumps(self.attempts).encode(),
            "endpoints": json.dumps(self.endpoints).encode(),
        }
        return dump(running.database_url) | files(running.folder) | metrics | answers


@pytest.fixture(scope="module")
def scenario(admin_url, pg_template, tmp_path_factory, receiver) -> Iterator[Scenario]:
    with (
        open_database(admin_url, pg_template) as url,
        open_server(tmp_path_factory.mktemp("canary"), url, LOUD) as server,
    ):
        yield Scenario(server, receiver)


def test_no_secret_is_found_anywhere(scenario):
    places = scenario.places()
    assert len(places["boathook.attempt_default"] + b"".join(v for k, v in places.items() if "attempt" in k)) > 500
    assert places["serve.log"]
    assert b"boathook_" in places["/metrics"]
    assert find(scenario.canaries, places) == []


def test_stored_responses_have_secrets_redacted(scenario):
    kept = [row["response"] for row in scenario.attempts]
    assert any("[redacted]" in response for response in kept)
    assert any("you signed with" in response and "didn't you" in response for response in kept)


def test_the_secrets_were_really_used(scenario):
    [request] = scenario.secret_echoed.received[:1]
    request.check(f"whsec_{scenario.canaries['signing secret']}")


@pytest.mark.parametrize("write", [str, lambda text: text.encode().hex(), lambda text: base64.b64encode(b"xy" + text.encode() + b"z").decode(), urllib.parse.quote], ids=["plain", "hex", "base64", "url"])  # fmt: skip
def test_a_secret_that_is_written_down_is_found(scenario, write):
    """The mutant: plant one canary and search again."""
    url = scenario.server.running.database_url
    planted = write(scenario.canaries["header"])
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "insert into boathook.audit (actor, action, subject, note) values ('a', 'b', 'planted', %s)", [planted]
        )
        seen = find(scenario.canaries, dump(url))
        connection.execute("delete from boathook.audit where subject = 'planted'")
    assert seen == ["header in boathook.audit"]


def test_a_secret_in_bytes_is_found(scenario):
    """The mutant for columns of bytes, such as kept responses."""
    url = scenario.server.running.database_url
    with psycopg.connect(url, autocommit=True) as connection, connection.transaction(force_rollback=True):
        connection.execute(
            "update boathook.attempt set response = %s where response is not null",
            [b"...." + scenario.canaries["password"].encode()],
        )
        [(text,)] = connection.execute(
            "select response::text from boathook.attempt where response is not null limit 1"
        ).fetchall()
    assert find(scenario.canaries, {"response": text.encode()}) == ["password in response"]
