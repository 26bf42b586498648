"""What resellers send according to their documentation, `tests/reality/suno`: parsed, and handled by a real server.

The last part sends the callback that the team's document prints, byte for byte, to a server without a proof.
"""

import json
from collections.abc import Iterator
from decimal import Decimal

import httpx
import pytest

from boathook.providers import find_recipe
from boathook.testing import signed_request
from boathook_music.callbacks import Callback, Stage, read_callbacks
from tests import reality
from tests.apps.music.server import SECRET, MusicServer, proof, started, unique
from tests.support import until
from tests.unit.verifier_factory import NOW, request, verifier

CALLBACKS = reality.examples("suno", "callback_*") | reality.examples("suno", "document_*")
STAGES = {
    "callback_complete.json": Stage.COMPLETE,
    "callback_complete_short.json": Stage.COMPLETE,
    "callback_error.json": Stage.ERROR,
    "callback_error_field.json": Stage.ERROR,
    "callback_first.json": Stage.FIRST,
    "callback_text.json": Stage.TEXT,
    "document_complete.json": Stage.COMPLETE,
}
TASK = "5c1e0a7d93b24f68a0d2c7e4b91f3a56"


def parsed(body: bytes) -> Callback:
    (callback,) = read_callbacks(json.loads(body))
    return callback


def key_of(body: bytes) -> tuple[str, str]:
    """Return the dedup key and the type of an event, of a sender without delivery ids."""
    verdict = verifier("suno", secrets=(), unsigned=True).verify(request(body, {}), NOW)
    return verdict.dedup_key, verdict.type


@pytest.mark.parametrize("name", sorted(CALLBACKS))
def test_each_documented_callback_names_task_stage_and_key(name: str):
    callback = parsed(CALLBACKS[name])
    task = "abc" if name.startswith("document") else TASK
    assert (callback.task_id, callback.stage) == (task, STAGES[name])
    assert key_of(CALLBACKS[name]) == (f"suno:{task}:{STAGES[name]}", STAGES[name])


def test_the_documented_callbacks_carry_songs_and_errors():
    clips = parsed(CALLBACKS["callback_complete.json"]).clips
    assert [clip.duration_s for clip in clips] == [Decimal("171.2"), Decimal("184.96")]
    assert clips[0].audio_url == "https://example.com/0f3c8a52-71d4-4c0e-9a6b-2f8e5d1b7c43.mp3"
    assert clips[0].cover_url == "https://example.com/0f3c8a52-71d4-4c0e-9a6b-2f8e5d1b7c43.jpeg"
    assert parsed(CALLBACKS["document_complete.json"]).clips == ()
    error = parsed(CALLBACKS["callback_error.json"])
    assert (error.code, error.message, error.clips) == (501, "Audio generation failed", ())


LEVELS = [
    ({"taskId": "t", "stage": "first"}, Stage.FIRST, "suno:t:first"),
    ({"task_id": "t", "callbackType": "text"}, Stage.TEXT, "suno:t:text"),
    ({"taskId": "t", "data": {"stage": "complete"}}, Stage.COMPLETE, "suno:t:complete"),
    ({"stage": "complete", "data": {"taskId": "t"}}, Stage.COMPLETE, "suno:t:complete"),
    ({"data": {"task_id": "t", "stage": "text"}}, Stage.TEXT, "suno:t:text"),
    ({"taskId": "t", "callbackType": "error", "msg": "x"}, Stage.ERROR, "suno:t:error"),
    ({"taskId": "t", "data": {"callbackType": "error"}}, Stage.ERROR, "suno:t:error"),
    ({"callbackType": "error", "data": {"task_id": "t"}}, Stage.ERROR, "suno:t:error"),
    ({"taskId": "t", "stage": "error"}, Stage.ERROR, "suno:t:error"),
    # Fields that contradict each other: an error at either level is one.
    ({"taskId": "t", "callbackType": "error", "data": {"stage": "complete"}}, Stage.ERROR, "suno:t:complete"),
    ({"taskId": "t", "stage": "remix"}, Stage.UNKNOWN, "suno:t:remix"),
    # A word that is not known is not passed over for one that is.
    ({"taskId": "t", "stage": "remix", "status": "success"}, Stage.UNKNOWN, "suno:t:remix"),
]


@pytest.mark.parametrize(("document", "stage", "key"), LEVELS)
def test_stage_and_task_are_read_at_both_levels(document: dict, stage: Stage, key: str):
    callback = parsed(json.dumps(document).encode())
    assert (callback.task_id, callback.stage) == ("t", stage)
    assert key_of(json.dumps(document).encode())[0] == key
    assert key_of(json.dumps(document, separators=(",", ":")).encode())[0] == key, "spacing does not matter"


@pytest.mark.parametrize(("document", "stage", "key"), LEVELS)
def test_the_signature_covers_the_task_that_the_app_reads(document: dict, stage: Stage, key: str):
    made = signed_request(find_recipe("suno").name, SECRET, json.dumps(document).encode(), timestamp=NOW)
    sent = request(made.body, {name.lower(): text for name, text in made.headers.items()})
    assert verifier("suno", SECRET).verify(sent, NOW).dedup_key == key


# On a running server, signed


def test_an_unknown_stage_fails_and_is_retried_by_hand(server: MusicServer):
    task = unique()
    server.register(task)
    response = server.post(json.dumps({"taskId": task, "stage": "remix"}).encode(), proof(task))
    assert (response.status_code, response.json()["status"]) == (202, "accepted")
    (row,) = until(lambda: [row for row in failed(server) if task in row["note"]])
    assert (row["code"], row["standing"], row["stage"]) == ("UNKNOWN_STAGE", "failed", "remix")
    assert row["note"] == f"'remix' is none of the stages text, first, complete, error; the track {task} is unchanged"
    assert server.status(task) == "pending"
    until(lambda: counted(server) >= 1)
    assert server.cli("music", "deliveries", "replay", row["id"]).stdout == "1 of 1 are tried again\n"


def failed(server: MusicServer) -> list[dict]:
    return server.api("GET", "/deliveries", params={"status": "failed"}).json()["data"]


def counted(server: MusicServer) -> float:
    lines = httpx.get(f"{server.base}/metrics", timeout=60).text.splitlines()
    values = [line for line in lines if line.startswith("music_callbacks_total{") and 'stage="unknown"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in values)


# On a server without a proof: the document's own request


@pytest.fixture(scope="module")
def unsigned(tmp_path_factory, admin_url, pg_template) -> Iterator[MusicServer]:
    folder = tmp_path_factory.mktemp("unsigned")
    with started(folder, admin_url, pg_template, music='provider = "unsigned"\n') as running:
        yield running


def send(server: MusicServer, body: str, path: str = "/generate-music-callb", **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): text for name, text in headers.items()}
    return server.post(body.encode(), {"content-type": "application/json"} | named, path)


@pytest.mark.parametrize("path", ["/generate-music-callb", "/functions/v1/generate-music-callb", "/in/suno"])
def test_the_documents_callback_completes_its_track(unsigned: MusicServer, path: str):
    task, delivery = ("abc", "test-123") if path.startswith("/functions") else (unique("abc"), unique("test"))
    body = '{"taskId":"abc","stage":"complete","suno_id":"xyz"}'.replace("abc", task)
    unsigned.cli("music", "tracks", "add", task)
    first = send(unsigned, body, path, x_delivery_id=delivery)
    again = send(unsigned, body, path, x_delivery_id=delivery)
    assert (first.status_code, first.json()["status"], again.content) == (200, "applied", first.content)
    assert (unsigned.status(task), unsigned.events(delivery)) == ("complete", 1)


def test_without_headers_task_and_stage_are_the_key(unsigned: MusicServer):
    task = unique()
    unsigned.cli("music", "tracks", "add", task)
    sent = [f'{{"taskId":"{task}","stage":"first"}}', f'{{"taskId": "{task}", "stage": "first"}}']
    first, spaced = (send(unsigned, body) for body in sent)
    assert first.json()["tracks"] == [{"task_id": task, "stage": "first", "status": "applied"}]
    assert spaced.status_code < 300
    assert (unsigned.events(f"suno:{task}:first"), unsigned.status(task)) == (1, "first")
    assert len(unsigned.api("GET", f"/tracks/{task}").json()["callbacks"]) == 1
    error = send(unsigned, f'{{"taskId":"{task}","callbackType":"error","msg":"x"}}')
    assert error.json()["tracks"] == [{"task_id": task, "stage": "error", "status": "applied"}]
    track = unsigned.track(task)
    assert (track["status"], track["error_code"], track["error"]) == ("failed", "ERROR", "x")
    assert unsigned.events(f"suno:{task}:error") == 1


def test_a_repetition_under_another_delivery_id_has_no_effect(unsigned: MusicServer):
    task = unique()
    unsigned.cli("music", "tracks", "add", task)
    body = f'{{"taskId":"{task}","stage":"first"}}'
    assert send(unsigned, body, x_delivery_id=f"1-{task}").json()["status"] == "applied"
    for number, text in ((2, body), (3, body.replace(":", ": "))):
        assert send(unsigned, text, x_delivery_id=f"{number}-{task}").json()["status"] == "late"
    assert unsigned.status(task) == "first"


def test_an_unknown_stage_of_one_task_does_not_hold_up_another(unsigned: MusicServer):
    good, odd = unique(), unique()
    unsigned.register(good)
    unsigned.register(odd)
    clips = [{"clip_id": good, "state": "succeeded"}, {"clip_id": odd, "state": "remixed"}]
    assert send(unsigned, json.dumps({"code": 200, "data": clips})).status_code == 202
    until(lambda: [row for row in failed(unsigned) if odd in row["note"]])
    assert (unsigned.status(good), unsigned.status(odd)) == ("complete", "pending")
