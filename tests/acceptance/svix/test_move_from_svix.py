"""The move from Svix by the command, with another boathook as the server of Svix's API; and pages that use Svix's client."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.svix.server import Api, BoathookServer, unique_name
from tests.guards.documents import blocks
from tests.svix_server import TOKEN, Answer, make_private_key, make_secret, serve

PAGES = Path(__file__).parents[3] / "docs"
svix = pytest.fixture(serve)


@dataclass(frozen=True, slots=True)
class Move:
    """An environment to move from, and an organization of the same server to move into."""

    server: BoathookServer
    organization: str
    old: Api
    new: Api

    def run(self, *flags: str, url: str = "", token: str = "", expect: int = 0) -> subprocess.CompletedProcess[str]:
        running = self.server.running
        running.environment["SVIX_TOKEN"] = token or self.old.token
        command = ("import", "svix", "--from", url or self.old.base, "--organization", self.organization, *flags)
        done = running.cli(*command, check=False)
        assert done.returncode == expect, (done.stdout, done.stderr)
        return done

    def report(self, *flags: str, **more: Any) -> dict[str, Any]:
        return json.loads(self.run(*flags, "--json", **more).stdout)


@pytest.fixture
def move(server: BoathookServer) -> Iterator[Move]:
    names = [f"moving-{unique_name()}" for _ in range(2)]
    old, new = (Api(server.base, server.make_key(name)) for name in names)
    yield Move(server, names[1], old, new)
    old.close()
    new.close()


@pytest.mark.extended("starts several servers of its own")
def test_a_boathook_moves_to_another_with_every_field(move, receiver):
    old, new = move.old, move.new
    schema = {"1": {"type": "object"}}
    old.post(
        "/event-type", {"name": "invoice.paid", "description": "Paid", "schemas": schema, "groupName": "g"}, expect=201
    )
    old.post("/event-type", {"name": "invoice.due", "description": "Due", "featureFlags": ["beta"]}, expect=201)
    application = {"name": "Acme", "uid": "acme", "metadata": {"plan": "pro"}, "throttleRate": 100}
    acme = old.post("/app", application, expect=201)
    other = old.post("/app", {"name": "Other"}, expect=201)
    mailbox = receiver.mailbox()
    fields = {
        "url": mailbox.url, "uid": "crm", "description": "CRM", "eventTypes": ["invoice.paid"], "channels": ["eu"],
        "throttleRate": 50, "metadata": {"team": "b"}, "filter": {"body": {"amount": {"gte": 100}}}, "orderBy": "customer",
        "concurrency": 3, "retrySchedule": [1, 2], "timeoutSeconds": 5,
    }  # fmt: skip
    headers = {"X-Team": "b", "Authorization": "Bearer hidden"}
    crm = old.post(f"/app/{acme['id']}/endpoint", fields | {"headers": headers}, expect=201)
    old.post(f"/app/{other['id']}/endpoint", {"url": "https://example.org/", "disabled": True}, expect=201)
    old.delete("/event-type/invoice.due")

    first = move.report()
    assert first["counts"] == {"event type": {"created": 2}, "application": {"created": 2}, "endpoint": {"created": 2}}
    (left,) = first["not_moved"]
    assert (left["object"], left["field"]) == ("application acme, endpoint crm", "headers.Authorization")

    for path in ("/event-type/invoice.paid", "/event-type/invoice.due", "/app/acme", "/app/acme/endpoint/crm"):
        own = {"id", "createdAt", "updatedAt"}
        there, here = (
            {name: value for name, value in side.get(path).items() if name not in own} for side in (old, new)
        )
        assert there == here
    (copy,) = new.pages(f"/app/svix-{other['id']}/endpoint")
    assert copy["disabled"]
    assert new.get("/app/acme/endpoint/crm/headers")["headers"] == {"X-Team": "b"}

    former = old.get(f"/app/acme/endpoint/{crm['id']}/secret")["key"]
    old.post("/app/acme/endpoint/crm/secret/rotate", {"key": make_secret(5)})
    assert move.report()["changes"] == [
        {"outcome": "changed", "object": "application acme, endpoint crm", "fields": ["secret"]}
    ]
    message = {"eventType": "invoice.paid", "payload": {"amount": 100, "customer": 1}, "channels": ["eu"]}
    new.post("/app/acme/msg", message, expect=202)
    (request,) = mailbox.wait()
    assert request.is_signed_by(former)
    assert request.is_signed_by(make_secret(5))
    assert request.header("X-Team") == "b"

    old.delete("/app/acme/endpoint/crm")
    assert move.report()["gone"] == ["application acme, endpoint crm"]
    assert new.get("/app/acme/endpoint/crm")["uid"] == "crm"
    assert "nothing was changed" in move.run("--delete", "--dry-run").stdout
    assert move.report("--delete")["changes"][0]["outcome"] == "deleted"
    new.get("/app/acme/endpoint/crm", expect=404)


def test_the_command_reports_its_progress_and_failures(move, svix):
    svix.page = 1
    acme = svix.add_app("Acme", "acme")
    svix.add_endpoint(acme, "https://a.example.com/", make_private_key(1), uid="keys")
    svix.add_endpoint(acme, "https://a.example.com/", uid="good")
    svix.add_endpoint(acme, "gopher://a.example.com/", uid="bad")
    busy = [Answer(429, {"code": "rate_limited", "detail": "slow down"}, {"retry-after": "0"})]
    svix.script = lambda _: busy.pop() if busy else None
    done = move.run(url=svix.url, token=TOKEN, expect=1)
    lines = done.stdout.splitlines()
    assert lines[:6] == [
        "created  application acme",
        "created  application acme, endpoint keys",
        "created  application acme, endpoint good",
        "event types: none",
        "applications: 1 created",
        "endpoints: 2 created",
    ]
    assert lines[6] == "cannot move (1):"
    assert lines[7].startswith(
        "  application acme, endpoint keys, secret: only the public key of an Ed25519 pair is shown"
    )
    assert lines[8] == "failed (1):"
    assert lines[9].startswith("  application acme, endpoint bad, url: the address must start with https://")
    assert TOKEN not in done.stdout + done.stderr
    svix.drop_endpoint(acme, next(id for id, row in svix.endpoints[acme].items() if row["uid"] == "bad"))
    assert move.run(url=svix.url, token=TOKEN).stdout.splitlines()[-1] == "nothing changed"


@pytest.mark.extended("starts several servers of its own")
@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [
        (("--from", "localhost"), 2, "--from: write an address such as https://api.eu.svix.com"),
        (("--token", "env:NO_SUCH_VARIABLE"), 2, "--token: the environment variable NO_SUCH_VARIABLE is not set"),
        (("--token", "wrong"), 2, "refuses it"),
        (("--secrets", "[]"), 2, '--secrets: write an object such as {"ep_2abc": "whsk_..."}'),
        (("--grace", "604801"), 2, "--grace"),
    ],
)
def test_wrong_arguments_are_explained(move, svix, flags, code, said):
    assert said in move.run(*flags, url=svix.url, token=TOKEN, expect=code).stderr


def test_an_organization_is_not_imported_into_itself(move):
    move.new.post("/app", {"name": "Acme"}, expect=201)
    assert "are those of the organization that receives the import" in move.run(token=move.new.token, expect=2).stderr
    assert len(move.new.pages("/app")) == 1


def test_a_server_that_is_not_svix_is_reported(move, receiver):
    done = move.run(url=receiver.mailbox().url, expect=1)
    assert "GET /api/v1/event-type returned 501" in done.stderr


def test_the_first_message_of_the_page_on_sending_is_sent(server):
    block = next(block for block in blocks(PAGES / "how-to/sending.md") if block.language == "python")
    side = Api(server.base, server.make_key(f"sending-{unique_name()}"))
    text = block.text.replace("bhk_the_token", side.token).replace("http://127.0.0.1:8080", side.base)
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (message,) = side.pages("/app/acme/msg")
    assert (message["eventType"], message["eventId"]) == ("invoice.paid", "in_1")
    side.close()


COPY = """
import sys
from datetime import UTC, timedelta
from svix.api import SvixOptions

base, token, application, iterator = sys.argv[1:]
since = datetime.now(UTC) - timedelta(minutes=30)
svix = Svix(token, SvixOptions(server_url=base))
print(copy_messages(svix, application, since, iterator or None, lambda message: print(message.id)))
"""


@pytest.mark.extended("starts several servers of its own")
def test_the_copy_of_the_page_on_the_api_misses_nothing(server):
    (block,) = (block for block in blocks(PAGES / "reference/api.md") if block.language == "python")
    app, iterator = server.application(), ""
    sent, copied = list[str](), set[str]()
    for _ in range(3):
        sent += [app.send({"n": n}) for n in range(3)]
        command = [sys.executable, "-c", block.text + COPY, server.base, app.api.token, app.id, iterator]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        *found, iterator = done.stdout.split()
        copied.update(found)
        assert copied == set(sent)
