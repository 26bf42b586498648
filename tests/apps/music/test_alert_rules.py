"""The app's alerts reach a channel: a webhook on loopback, on a real server."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest

from tests import reality
from tests.alert_harness import QUICK, SECRET, AlertReceiver
from tests.apps.music.server import MusicServer, started, unique

RULES = (
    QUICK
    + """
[notifications.rules."music.unknown_stage"]
for_s = 0.0
[notifications.rules."music.overdue_tracks"]
for_s = 0.0
clear_s = 0.0
[notifications.rules."music.low_credits"]
for_s = 0.0
below = 88
"""
)
LOOKUP = """
[music.lookup]
key = "reseller-key"
url = "{url}"
"""


@pytest.fixture(scope="module")
def alert_receiver() -> Iterator[AlertReceiver]:
    with AlertReceiver() as made:
        yield made


@pytest.fixture(scope="module")
def reseller() -> Iterator[str]:
    """A reseller's API that answers every request with the documented credits, 87."""
    body = reality.examples("suno", "credit_kie*")["credit_kie.json"]

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    made = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=made.serve_forever, args=(0.05,), daemon=True).start()
    yield f"http://127.0.0.1:{made.server_port}"
    made.shutdown()
    made.server_close()


@pytest.fixture(scope="module")
def server(tmp_path_factory, admin_url, pg_template, alert_receiver, reseller) -> Iterator[MusicServer]:
    folder = tmp_path_factory.mktemp("alerts")
    extra = RULES.format(url=alert_receiver.url, secret=SECRET) + LOOKUP.format(url=reseller)
    with started(folder, admin_url, pg_template, music="overdue_s = 1.0\n", storage=extra) as running:
        yield running


@pytest.mark.extended("waits for evaluations of alert rules; two such tests stay")
def test_an_unknown_stage_is_sent_to_the_channel(server: MusicServer, alert_receiver: AlertReceiver):
    task = unique()
    server.register(task)
    server.send_callback(task, "text")
    server.send_callback(task, "mastered", answer=202)
    alert = alert_receiver.await_kind("music.unknown_stage", "firing")
    assert alert["summary"].startswith("callbacks with an unknown stage: 1. Their tracks are unchanged")


@pytest.mark.extended("waits for evaluations of alert rules; two such tests stay")
def test_a_song_without_a_callback_is_sent_until_it_is_finished(server: MusicServer, alert_receiver: AlertReceiver):
    task = unique()
    server.register(task)
    alert = alert_receiver.await_kind("music.overdue_tracks", "firing")
    assert alert["summary"].startswith("songs without a callback: ")
    for row in server.rows("select task_id from music.track"):
        server.send_callback(row["task_id"], "error", code=500)
    alert_receiver.await_kind("music.overdue_tracks", "firing", "recovered")


@pytest.mark.extended("waits for evaluations of alert rules; two such tests stay")
def test_credits_that_run_out_are_sent_to_the_channel(server: MusicServer, alert_receiver: AlertReceiver):
    alert = alert_receiver.await_kind("music.low_credits", "firing")
    assert alert["summary"].startswith("the reseller's credits are running out: 87. Buy")
    assert json.loads(server.cli("music", "status").stdout)["credits"] == 87
    assert server.api("GET", "/status").json()["credits"] == 87
