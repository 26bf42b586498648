"""Messages that the official client publishes while PostgreSQL is away: each arrives once, under the id of its answer."""

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import psycopg
import pytest
from svix.api import Message, MessageCreateOptions, MessageIn, Svix, SvixOptions
from svix.exceptions import HttpError

from tests.acceptance.conftest import TABLES, wait_for_copy
from tests.acceptance.svix.receiver import Mailbox
from tests.acceptance.svix.server import SUCCESS, Application, BoathookServer, open_server, unique_name
from tests.acceptance.svix.test_crashes import Publisher, lost
from tests.faults.rig.postgres import OwnServer
from tests.support import until

pytestmark = pytest.mark.extended("starts several servers of its own")


@pytest.fixture(scope="module")
def postgres() -> Iterator[OwnServer]:
    server = OwnServer()
    yield server
    server.close()


@pytest.fixture(scope="module")
def server(postgres: OwnServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[BoathookServer]:
    with psycopg.connect(postgres.url, autocommit=True) as connection:
        connection.execute(TABLES)
    with open_server(tmp_path_factory.mktemp("outages"), postgres.url) as opened:
        yield opened


@pytest.fixture
def client(server: BoathookServer) -> Iterator[Message]:
    """The official client's methods for messages."""
    client = Svix(server.token, SvixOptions(server_url=server.base, timeout=300)).message
    yield client
    client._httpx_client.close()


@pytest.fixture
def app(server: BoathookServer) -> Application:
    return server.application(uid=unique_name())


def publish(client: Message, app: Application, number: int, key: str | None = None) -> str:
    """Publish as often as it takes to reach a gateway that is just being started; return the id."""
    body = MessageIn(event_type="invoice.paid", payload={"n": number})
    options = MessageCreateOptions(idempotency_key=key)

    def answered() -> str:
        try:
            return client.create(app.row["uid"], body, options).id
        except (HttpError, httpx.TransportError):
            return ""

    return until(answered)


def judge(app: Application, endpoint: dict, accepted: list[str], box: Mailbox) -> None:
    """Assert that everything that was accepted arrived, once."""
    until(lambda: set(box.messages()) >= set(accepted))
    assert Counter(box.messages()) == Counter(accepted)
    box.received[0].check(app.secret(endpoint))
    path = f"{app.path}/endpoint/{endpoint['id']}/msg"
    until(lambda: {row["id"] for row in app.api.pages(path, limit=250) if row["status"] == SUCCESS} == set(accepted))


def test_messages_published_while_postgresql_is_killed_arrive_once(
    server: BoathookServer, postgres: OwnServer, client: Message, app: Application, receiver
):
    box = receiver.mailbox()
    endpoint = app.endpoint(box)
    accepted = [publish(client, app, n) for n in range(3)]
    wait_for_copy(server.running, app.row["uid"])
    postgres.kill_all()
    accepted += [publish(client, app, n) for n in range(3, 20)]
    server.running.kill("gateway")
    accepted += [publish(client, app, n) for n in range(20, 40)]
    assert len(set(box.messages())) <= 3
    postgres.restart()
    accepted += [publish(client, app, n) for n in range(40, 60)]
    judge(app, endpoint, accepted, box)
    assert server.running.cli("check").returncode == 0


def test_a_gateway_killed_while_buffering_loses_no_message(
    server: BoathookServer, postgres: OwnServer, app: Application, receiver
):
    box = receiver.mailbox()
    endpoint = app.endpoint(box)
    wait_for_copy(server.running, app.row["uid"])
    with Publisher(app) as publisher:
        publisher.wait(20)
        postgres.kill_all()
        publisher.wait(20)
        server.running.kill("gateway")
        publisher.wait(20)
        postgres.restart()
        publisher.wait(20)
    until(lambda: not lost(publisher.accepted, box))
    # A request whose answer was cut off may have been taken.
    assert set(Counter(box.messages()).values()) == {1}
    box.received[0].check(app.secret(endpoint))
    assert server.running.cli("check").returncode == 0


def test_a_request_that_is_repeated_at_another_gateway_in_the_outage_is_reported(
    server: BoathookServer, postgres: OwnServer, client: Message, app: Application, receiver
):
    box, reports = receiver.mailbox(), receiver.mailbox()
    endpoint = app.endpoint(box)
    server.api.post(
        "/operational-webhook/endpoint", {"url": reports.url, "eventTypes": ["message.duplicate"]}, expect=201
    )
    first = publish(client, app, 1, key="once")
    wait_for_copy(server.running, app.row["uid"])
    postgres.stop("fast")
    assert publish(client, app, 1, key="once") == first
    server.running.kill("gateway")  # another one does not remember the key
    late = publish(client, app, 1, key="once")
    assert publish(client, app, 1, key="once") == late
    assert late != first
    postgres.restart()
    (report,) = [request.json["data"] for request in reports.wait()]
    assert (report["msgId"], report["originalMsgId"]) == (late, first)
    judge(app, endpoint, [first], box)
    assert server.running.cli("check").returncode == 0


def test_the_command_line_sends_through_the_spool_of_its_host(
    server: BoathookServer, postgres: OwnServer, app: Application, receiver, tmp_path: Path
):
    box = receiver.mailbox()
    endpoint = app.endpoint(box)
    wait_for_copy(server.running, app.row["uid"])
    words = ("send", "--type", "invoice.paid", "--json", "--application")
    postgres.stop("fast")
    try:
        done = server.running.cli(*words, app.row["uid"])
        sent = json.loads(done.stdout)
        assert sent["spooled"] is True
        assert "waits in this host's spool" in done.stderr
        unknown = server.running.cli(*words, "unknown", check=False)
        elsewhere = server.running.cli("--data-dir", str(tmp_path), *words, app.row["uid"], check=False)
        invalid = server.running.cli(*words, app.row["uid"], "--data", "{", check=False)
    finally:
        postgres.restart()
    for refused, status, why in (
        (unknown, 1, "application unknown"),
        (elsewhere, 1, "no server"),
        (invalid, 2, "--data: it is not JSON"),
    ):
        assert refused.returncode == status
        assert why in refused.stderr
    judge(app, endpoint, [sent["message_id"]], box)
    assert server.running.cli("check").returncode == 0
