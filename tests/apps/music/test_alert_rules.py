"""The app's alerts reach a channel: a webhook on loopback, on a real server."""

from collections.abc import Iterator

import pytest

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
"""
)


@pytest.fixture(scope="module")
def alert_receiver() -> Iterator[AlertReceiver]:
    with AlertReceiver() as made:
        yield made


@pytest.fixture(scope="module")
def server(tmp_path_factory, admin_url, pg_template, alert_receiver) -> Iterator[MusicServer]:
    folder = tmp_path_factory.mktemp("alerts")
    extra = RULES.format(url=alert_receiver.url, secret=SECRET)
    with started(folder, admin_url, pg_template, music="overdue_s = 1.0\n", storage=extra) as running:
        yield running


@pytest.mark.extended("waits for evaluations of alert rules; two such tests stay")
def test_an_unknown_stage_is_sent_to_the_channel(server: MusicServer, alert_receiver: AlertReceiver):
    task = unique()
    server.register(task)
    server.send_callback(task, "text")
    server.send_callback(task, "mastered", answer=202)
    alert = alert_receiver.await_kind("music.unknown_stage", "firing")
    assert alert["summary"].startswith("callbacks with an unknown stage in ")


@pytest.mark.extended("waits for evaluations of alert rules; two such tests stay")
def test_a_song_without_a_callback_is_sent_until_it_is_finished(server: MusicServer, alert_receiver: AlertReceiver):
    task = unique()
    server.register(task)
    alert = alert_receiver.await_kind("music.overdue_tracks", "firing")
    assert alert["summary"].startswith("songs without a callback: ")
    for row in server.rows("select task_id from music.track"):
        server.send_callback(row["task_id"], "error", code=500)
    alert_receiver.await_kind("music.overdue_tracks", "firing", "recovered")
