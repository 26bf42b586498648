"""A message that was answered 202 reaches its receiver, whichever process is killed between any two steps."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from boathook.observability.failpoints import FAILPOINTS
from tests.acceptance.svix.receiver import Answer, Mailbox
from tests.acceptance.svix.server import SUCCESS, Application, BoathookServer, open_database, open_server, wait_for_api
from tests.crash_schedule import CrashSchedule
from tests.support import until

SENDING = tuple(point for point in FAILPOINTS if point.startswith("send."))
PUBLISHING = tuple(point for point in FAILPOINTS if point.startswith("publish."))


@pytest.fixture(scope="module")
def own_server(admin_url, pg_template, tmp_path_factory) -> Iterator[BoathookServer]:
    """A boathook for this module only, whose processes are killed."""
    with open_database(admin_url, pg_template) as url, open_server(tmp_path_factory.mktemp("fragile"), url) as opened:
        yield opened


class Publisher:
    """Sends messages one after another, and remembers which were answered 202."""

    def __init__(self, app: Application) -> None:
        self.app = app
        self.accepted: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> "Publisher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(300)

    def _run(self) -> None:
        number = 0
        while not self._stop.wait(0.01):
            number += 1
            body = {"eventType": "invoice.paid", "payload": {"n": number}}
            headers = {"authorization": f"Bearer {self.app.api.token}", "idempotency-key": f"key-{number}"}
            try:
                answer = httpx.post(
                    f"{self.app.api.base}/api/v1{self.app.path}/msg", json=body, headers=headers, timeout=300
                )
            except httpx.TransportError:
                continue
            if answer.status_code == 202:
                self.accepted.append(answer.json()["id"])

    def wait(self, count: int) -> None:
        """Wait until so many more than now were accepted."""
        goal = len(self.accepted) + count
        until(lambda: len(self.accepted) >= goal)


def lost(accepted: list[str], box: Mailbox) -> set[str]:
    return set(accepted) - set(box.messages())


def judge(app: Application, endpoint, accepted: list[str], box: Mailbox) -> None:
    """Assert that everything accepted arrived, signed, and that the API knows it."""
    until(lambda: not lost(accepted, box))
    box.received[0].check(app.secret(endpoint))
    path = f"{app.path}/endpoint/{endpoint['id']}/msg"
    until(
        lambda: {row["id"] for row in app.api.pages(path, limit=250) if row["status"] == SUCCESS} >= set(accepted),
        timeout=300,
    )


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_a_sender_killed_at_every_point_loses_nothing(admin_url, pg_template, tmp_path, receiver):
    crashes = CrashSchedule(tmp_path, dict.fromkeys(SENDING, 3))
    folder = tmp_path / "house"
    folder.mkdir()
    with (
        open_database(admin_url, pg_template) as url,
        open_server(folder, url, **crashes.environment) as server,
    ):
        app = server.application()
        box = receiver.mailbox(Answer(500), Answer(500), Answer())
        endpoint = app.endpoint(box, retrySchedule=[0.1] * 10)
        accepted: list[Any] = []
        while crashes.pending():
            accepted.append(app.send({"n": len(accepted)}))
        accepted += [app.send({"n": n}) for n in range(4)]
        judge(app, endpoint, accepted, box)


def publish_until_accepted(app: Application, number: int) -> str:
    """Publish one message with one key as often as it takes; return the id it is answered with."""
    body = {"eventType": "invoice.paid", "payload": {"n": number}}
    headers = {"authorization": f"Bearer {app.api.token}", "idempotency-key": f"key-{number}"}

    def answered() -> str:
        answer = httpx.post(f"{app.api.base}/api/v1{app.path}/msg", json=body, headers=headers, timeout=300)
        return str(answer.json()["id"]) if answer.status_code == 202 else ""

    return until(answered)


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
def test_a_gateway_killed_around_a_commit_loses_and_duplicates_nothing(admin_url, pg_template, tmp_path, receiver):
    crashes = CrashSchedule(tmp_path, dict.fromkeys(PUBLISHING, 3))
    folder = tmp_path / "house"
    folder.mkdir()
    with (
        open_database(admin_url, pg_template) as url,
        open_server(folder, url, **crashes.environment) as server,
    ):
        app = server.application()
        box = receiver.mailbox()
        endpoint = app.endpoint(box)
        accepted: list[str] = []
        while crashes.pending():
            accepted.append(publish_until_accepted(app, len(accepted)))
        accepted += [publish_until_accepted(app, len(accepted) + n) for n in range(4)]
        judge(app, endpoint, accepted, box)
        stored = {row["id"] for row in app.api.pages(f"{app.path}/msg", limit=250)}
        assert stored == set(accepted), "a message was stored twice, or never answered"
        assert len(stored) == len(accepted)


def test_there_are_points_to_be_killed_at():
    assert len(SENDING) >= 3
    assert len(PUBLISHING) == 2


@pytest.mark.extended("kills or freezes processes again and again; the smokes of tests/faults stay")
@pytest.mark.parametrize("role", ["sender", "gateway", "keeper"])
def test_accepted_messages_arrive_after_any_process_is_killed(role, own_server, receiver):
    app = own_server.application()
    box = receiver.mailbox()
    endpoint = app.endpoint(box)
    with Publisher(app) as publisher:
        publisher.wait(20)
        assert own_server.running.children(role), f"no process has the role {role}"
        own_server.running.kill(role)
        publisher.wait(20)
    judge(app, endpoint, publisher.accepted, box)


def test_accepted_messages_arrive_after_a_full_kill_and_restart(own_server, receiver):
    app = own_server.application()
    box = receiver.mailbox(Answer(503), Answer(503), Answer(503), Answer())
    endpoint = app.endpoint(box, retrySchedule=[0.2] * 10)
    with Publisher(app) as publisher:
        publisher.wait(20)
        own_server.running.kill_all()
    own_server.running.start()
    wait_for_api(own_server.running)
    judge(app, endpoint, publisher.accepted, box)


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_a_message_without_a_delivery_is_missed(server, receiver):
    """The mutant: a stored message without a delivery, as after a crash between two writes, fails the check."""
    app = server.application()
    box = receiver.mailbox()
    unowed = app.send()
    app.endpoint(box)
    owed = app.send()
    box.wait()
    assert lost([owed], box) == set()
    assert lost([unowed, owed], box) == {unowed}


def test_the_log_shows_no_traceback(own_server):
    assert "Traceback" not in Path(own_server.running.folder, "serve.log").read_text()
