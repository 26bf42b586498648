"""Each rule of the app, through HTTP, on a running boathook with real PostgreSQL and real sockets."""

import contextlib
import hashlib
import hmac
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx
import psutil
import pytest

from boathook_music.file_server import content_of
from tests.apps.music.server import SECRET, callback, clip, proof, started, unique
from tests.support import until


@pytest.fixture
def song(server, file_server):
    """A registered task and the clips of its completion."""
    task = unique()
    server.register(task, owner="anna", title="Iron Man", prompt={"style": "rock"})
    return task, [clip(f"{task[-8:]}-{number}", file_server.url) for number in (1, 2)]


# What a delivery is called


@pytest.mark.parametrize(
    ("headers", "wanted"),
    [
        ({"x-delivery-id": "D-{}", "x-webhook-id": "W-{}"}, "D-{}"),
        ({"x-webhook-id": "W-{}"}, "W-{}"),
        ({}, "suno:{}:text"),
    ],
)
def test_the_delivery_id_is_read_from_headers_or_task_and_stage(server, headers, wanted):
    task = unique()
    server.register(task)
    named = {name: value.format(task) for name, value in headers.items()}
    first = server.send_callback(task, "text", headers=named)
    again = server.send_callback(task, "text", headers=named)
    assert (first.content, again.content) == (again.content, first.content)
    assert server.events(wanted.format(task)) == 1
    assert server.api("GET", f"/tracks/{task}").json()["callbacks"][0]["delivery_id"] == wanted.format(task)


def test_a_replay_with_another_delivery_id_is_no_second_event(server):
    task = unique()
    server.register(task)
    sent = proof(task)
    body = callback(task, "text")
    assert server.post(body, sent | {"x-delivery-id": f"a-{task}"}).status_code == 200
    assert server.post(body, sent | {"x-delivery-id": f"b-{task}"}).is_success
    assert (server.events(f"a-{task}"), server.events(f"b-{task}")) == (1, 0)
    assert len(server.api("GET", f"/tracks/{task}").json()["callbacks"]) == 1


def test_a_forged_request_is_refused_and_does_not_take_the_real_ones_id(server):
    task = unique()
    server.register(task)
    name = {"x-delivery-id": f"d-{task}"}
    forged = server.post(callback(task, "error", code=500), proof(task, "somebody-elses") | name)
    assert forged.status_code == 401
    assert server.status(task) == "pending"
    assert server.send_callback(task, "text", headers=name).json()["status"] == "applied"
    assert server.status(task) == "text"


def test_a_body_that_is_no_json_is_refused(server):
    task = unique()
    assert server.post(b"not json", proof(task)).status_code in (400, 401)


# Stages


def test_stages_are_taken_over_in_order(server, song):
    task, clips = song
    for stage in ("text", "first", "complete"):
        assert (
            server.send_callback(task, stage, clips=clips if stage == "complete" else ()).json()["status"] == "applied"
        )
        assert server.status(task) == stage
    assert server.track(task)["completed_at"] is not None


def test_a_late_stage_changes_nothing(server, song):
    task, clips = song
    server.send_callback(task, "complete", clips=clips)
    for stage in ("first", "text", "error"):
        answer = server.send_callback(task, stage, code=500 if stage == "error" else 200)
        assert answer.json()["status"] == "late"
        assert server.status(task) == "complete"
    notes = {one["stage"]: one["note"] for one in server.api("GET", f"/tracks/{task}").json()["callbacks"]}
    assert notes["first"] == "the track is at complete already"


@pytest.mark.parametrize("code", [400, 451, 500, 531])
def test_a_code_of_400_or_more_marks_the_track_failed(server, code):
    task = unique()
    server.register(task)
    server.send_callback(task, "complete", code=code, said="Audio generation failed")
    track = server.track(task)
    assert (track["status"], track["error_code"], track["error"]) == ("failed", str(code), "Audio generation failed")


def test_callback_type_error_marks_the_track_failed(server):
    task = unique()
    server.register(task)
    server.send_callback(task, "error", said="sensitive words")
    track = server.track(task)
    assert (track["status"], track["error_code"], track["error"]) == ("failed", "ERROR", "sensitive words")


def test_songs_that_arrive_in_spite_of_an_error_win(server, song):
    task, clips = song
    server.send_callback(task, "error", code=500)
    assert server.send_callback(task, "first").json()["status"] == "late"
    assert server.status(task) == "failed"
    server.send_callback(task, "complete", clips=clips)
    assert (server.status(task), server.track(task)["error_code"]) == ("complete", None)
    server.await_files(task, *["stored"] * 4)


# Unknown tracks


def test_an_unknown_track_answers_202_and_waits(server, file_server):
    task = unique()
    answer = server.send_callback(task, "complete", answer=202, clips=[clip(f"{task}-1", file_server.url)])
    assert answer.json()["status"] == "waiting"
    (row,) = server.rows("select state, stage from music.callback where task_id = %s", task)
    assert (row["state"], row["stage"]) == ("waiting", "complete")
    assert not server.rows("select from music.file where task_id = %s", task)


@pytest.mark.parametrize("way", ["api", "command", "sql"])
def test_waiting_callbacks_apply_once_when_the_track_is_registered(server, file_server, way):
    task = unique()
    server.send_callback(task, "text", answer=202)
    server.send_callback(task, "complete", answer=202, clips=[clip(f"{task}-1", file_server.url)])
    match way:
        case "api":
            assert server.register(task)["status"] == "complete"
        case "command":
            assert f"{task} added: complete" in server.cli("music", "tracks", "add", task).stdout
        case "sql":
            server.rows("insert into music.track (task_id) values (%s)", task)
    until(lambda: server.status(task) == "complete")
    server.await_files(task, "stored", "stored")
    server.register(task)
    states = server.rows("select state from music.callback where task_id = %s", task)
    assert [row["state"] for row in states] == ["applied", "applied"]
    wanted = server.rows(
        "select count(*) as n from boathook.event where convert_from(body, 'utf8') like %s and type = 'file.wanted'",
        f"%{task}%",
    )
    assert wanted[0]["n"] == 2


def test_a_concurrent_callback_and_registration_always_meet(server):
    tasks = [unique() for _ in range(12)]
    (keeper,) = server.children("keeper")
    keeper.suspend()  # otherwise its chore, which looks after plain SQL, would bring them together
    try:
        with ThreadPoolExecutor(8) as pool:
            told = [pool.submit(server.post, callback(task, "text"), proof(task)) for task in tasks]
            known = [pool.submit(server.register, task) for task in tasks]
            assert {one.result().status_code for one in told} <= {200, 202}
            assert all(one.result() for one in known)
        until(lambda: all(server.status(task) == "text" for task in tasks))
        assert server.children("keeper") == [keeper], "another keeper has run the chore"
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            keeper.resume()


# Files


def test_complete_stores_audio_and_cover_in_the_background(server, song):
    task, clips = song
    server.send_callback(task, "complete", clips=clips)
    files = server.await_files(task, *["stored"] * 4)
    for one in clips:
        for kind, url, extension in (("audio", one["audio_url"], "mp3"), ("cover", one["image_url"], "jpg")):
            row = files[one["id"], kind]
            content = content_of(url)
            assert row["key"] == f"tracks/{task}/{one['id']}.{extension}"
            assert (row["size"], row["sha256"]) == (len(content), hashlib.sha256(content).hexdigest())
            assert server.stored(row["key"]) == content


def test_a_second_complete_stores_nothing_twice(server, file_server, song):
    task, clips = song
    server.send_callback(task, "complete", clips=clips, headers={"x-delivery-id": f"1-{task}"})
    server.await_files(task, *["stored"] * 4)
    server.send_callback(task, "complete", clips=clips, said="again", headers={"x-delivery-id": f"2-{task}"})
    until(lambda: server.is_idle(task))
    asked = [path for path, _ in file_server.asked if clips[0]["id"] in path]
    assert sorted(asked) == sorted(f"/files/{clips[0]['id']}.{ending}" for ending in ("mp3", "jpeg"))
    assert len(list((server.folder / "data" / "music" / "tracks" / task).iterdir())) == 4


@pytest.mark.extended("downloads large files; the tests of the client's caps stay")
def test_an_interrupted_download_is_resumed(server, file_server, song):
    task, _ = song
    name = f"{task}-broken"
    server.send_callback(task, "complete", clips=[clip(name, file_server.url, "/broken/")])
    files = server.await_files(task, "stored", "stored", timeout=300)
    content = content_of(f"/broken/{name}.mp3")
    ranges = [asked for path, asked in file_server.asked if path == f"/broken/{name}.mp3"]
    assert ranges == [None, f"bytes={len(content) // 2}-"]
    assert server.stored(files[name, "audio"]["key"]) == content


def test_an_expired_address_is_dead_with_a_clear_code_and_visible(server, file_server, song):
    task, _ = song
    server.send_callback(task, "complete", clips=[clip(f"{task}-gone", file_server.url, "/gone/")])
    files = server.await_files(task, "failed", "failed")
    assert {row["error_code"] for row in files.values()} == {"URL_EXPIRED"}
    dead = [row for row in server.listing("dead", "list") if row["recipient"] == "handler:music.store"]
    assert "URL_EXPIRED" in {row["code"] for row in dead}
    listed = server.listing("music", "files", "list", "--state", "failed")
    assert {row["error_code"] for row in listed if row["task_id"] == task} == {"URL_EXPIRED"}


def test_new_urls_of_an_expired_file_are_tried(server, file_server, song):
    task, _ = song
    name = f"{task}-fresh"
    server.send_callback(
        task, "complete", clips=[clip(name, file_server.url, "/gone/")], headers={"x-delivery-id": f"1-{task}"}
    )
    server.await_files(task, "failed", "failed")
    server.send_callback(task, "complete", clips=[clip(name, file_server.url)], headers={"x-delivery-id": f"2-{task}"})
    server.await_files(task, "stored", "stored")


def test_a_file_that_is_not_audio_is_not_stored(server, file_server, song):
    task, _ = song
    server.send_callback(task, "complete", clips=[clip(f"{task}-page", file_server.url, "/page/")])
    files = server.await_files(task, "failed", "failed")
    assert {row["error_code"] for row in files.values()} == {"NOT_AUDIO", "NOT_COVER"}
    assert not (server.folder / "data" / "music" / "tracks" / task).exists()


def test_ids_in_requests_cannot_escape_the_folder(server, file_server):
    task = "../../../etc/" + unique()
    server.register(task)
    name = f"..%2f{unique()}"
    one = {**clip("x", file_server.url), "id": name}
    server.send_callback(task, "complete", clips=[one])
    files = server.await_files(task, "stored", "stored")
    for row in files.values():
        assert row["key"].startswith("tracks/x-")
        assert ".." not in row["key"]
        assert (server.folder / "data" / "music" / row["key"]).is_file()


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_a_storage_that_is_down_is_waited_for(server, file_server, song):
    task, _ = song
    kept = server.folder / "data" / "music"
    kept.mkdir(parents=True, exist_ok=True)
    away = kept.rename(kept.with_name("away"))
    kept.write_bytes(b"a file in the folder's place")
    name = f"{task}-1"
    server.send_callback(task, "complete", clips=[clip(name, file_server.url)])
    files = server.await_files(task, "retrying", "retrying")
    assert {row["error_code"] for row in files.values()} == {"STORAGE_FAILED"}
    kept.unlink()
    away.rename(kept)
    server.await_files(task, "stored", "stored")
    asked = sorted(path for path, _ in file_server.asked if name in path)
    assert asked == [f"/files/{name}.jpeg", f"/files/{name}.mp3"], "what was fetched already was fetched again"
    assert not list((server.folder / "data" / "music-incoming").iterdir())


class Canary:
    """An internal server that must never get a request."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        canary = self

        class ResponseCounts(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                canary.asked.append(self.path)
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"ID3 secrets of the inside")

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), ResponseCounts)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def canary():
    made = Canary()
    yield made
    made.close()


def inside(port: int) -> list[dict[str, str]]:
    hosts = [
        f"127.0.0.1:{port}",
        f"localhost:{port}",
        f"[::ffff:127.0.0.1]:{port}",
        f"2130706433:{port}",
        "169.254.169.254",
    ]
    return [{"id": f"c{number}", "audio_url": f"http://{host}/inside.mp3"} for number, host in enumerate(hosts)]


@pytest.fixture(scope="module")
def guarded(tmp_path_factory, admin_url, pg_template):
    """A server that may not connect to private addresses, with callbacks signed by a configured HMAC."""
    how = 'provider = "hmac"\nsource = {header = "X-Sig", prefix = "sha256="}\n'
    with started(tmp_path_factory.mktemp("guarded"), admin_url, pg_template, music=how, allow="") as running:
        yield running


def by_hmac(body: bytes, secret: str = SECRET) -> dict[str, str]:
    signature = hmac.new(secret.encode(), body, "sha256").hexdigest()
    return {"x-sig": f"sha256={signature}", "content-type": "application/json"}


@pytest.mark.extended("tries hostile input once more; the tables of hostile input stay")
def test_internal_addresses_are_never_requested(guarded, canary):
    task = unique()
    guarded.rows("insert into music.track (task_id) values (%s)", task)
    body = callback(task, "complete", clips=inside(canary.port))
    assert guarded.post(body, by_hmac(body)).status_code == 200
    files = guarded.await_files(task, *["failed"] * 5)
    assert {row["error_code"] for row in files.values()} == {"REFUSED"}
    assert canary.asked == []


def test_callbacks_may_be_signed_by_a_configured_hmac(guarded):
    task = unique()
    guarded.rows("insert into music.track (task_id) values (%s)", task)
    body = callback(task, "text")
    assert guarded.post(body, by_hmac(body, "other")).status_code == 401
    assert guarded.post(body, by_hmac(body)).json()["status"] == "applied"
    assert guarded.events(f"suno:{task}:text") == 1


def test_a_callback_that_names_no_task_is_kept_and_ignored(guarded):
    body = b'{"code":200,"data":{"what":"ever"}}'
    response = guarded.post(body, by_hmac(body))
    assert (response.status_code, response.json()["status"]) == (200, "ignored")
    notes = {(row["state"], row["note"]) for row in guarded.listing("deliveries", "list")}
    assert ("ignored", "it names no task") in notes


def test_without_the_guard_they_would_be(server, canary):
    task = unique()
    server.register(task)
    server.send_callback(task, "complete", clips=inside(canary.port)[:1])
    server.await_files(task, "stored")
    assert canary.asked == ["/inside.mp3"]


@pytest.fixture(scope="module")
def cloudy(tmp_path_factory, admin_url, pg_template, s3_server):
    """One that keeps its files in a bucket, and covers of up to 95,000 bytes."""
    how = {"music": "max_cover = 95000\n", "storage": s3_server.settings}
    with started(tmp_path_factory.mktemp("cloudy"), admin_url, pg_template, **how) as running:
        yield running


@pytest.mark.extended("downloads large files; the tests of the client's caps stay")
def test_size_caps_hold_by_kind(cloudy, file_server):
    task = unique()
    cloudy.register(task)
    cloudy.send_callback(task, "complete", clips=[clip(f"{task}-1", file_server.url, "/large/")])
    files = cloudy.await_files(task, "failed", "stored")
    cover = files[f"{task}-1", "cover"]
    assert (cover["error_code"], files[f"{task}-1", "audio"]["size"] > 95_000) == ("REFUSED", True)
    assert "larger than 95,000 bytes" in cover["error"]
    assert cloudy.listing("dead", "list")[0]["code"] == "REFUSED"


@pytest.mark.extended("starts a server of its own; the tests of the storage stay")
def test_a_bucket_can_be_configured_instead_of_the_folder(cloudy, file_server, s3_server):
    task = unique()
    cloudy.register(task)
    name = f"{task}-1"
    cloudy.send_callback(task, "complete", clips=[clip(name, file_server.url)])
    files = cloudy.await_files(task, "stored", "stored")
    assert s3_server.content(files[name, "audio"]["key"]) == content_of(f"{name}.mp3")
    assert s3_server.content(files[name, "cover"]["key"]) == content_of(f"{name}.jpeg")
    done = json.loads(cloudy.cli("music", "simulate", "--url", cloudy.base, "--count", "12", "--json").stdout)
    assert (done["differences"], done["unexpected"]) == ([], 0)
    objects = cloudy.rows("select key from music.file where state = 'stored' order by key collate \"C\"")
    assert sorted(s3_server.listed()) == [row["key"] for row in objects]
    assert cloudy.cli("check").returncode == 0


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_the_answer_does_not_depend_on_workers_being_up(server):
    task = unique()
    server.register(task)
    for process in server.children("worker"):
        process.suspend()
    try:
        answer = server.send_callback(task, "text", answer=202)
        assert answer.json() == {"ok": True, "status": "accepted"}
        assert answer.elapsed.total_seconds() < 15
    finally:
        for process in server.children("worker"):
            process.resume()
    until(lambda: server.status(task) == "text")


# For users


def test_the_api_demands_a_key(server):
    for path in ("/tracks", "/deliveries"):
        assert httpx.get(f"{server.base}/api/music{path}", timeout=300).status_code == 401
    assert server.api("GET", "/tracks").status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [(b"no json", 400), (b"[]", 400), (b"{}", 400), (b'{"task_id":""}', 400), (b'{"task_id":"a","x":1}', 400), (b" " * 300_000, 413),
     (b'{"task_id":"a\\u0000"}', 400), (b'{"task_id":"' + b"a" * 201 + b'"}', 400)],
)  # fmt: skip
def test_impossible_tracks_are_refused_with_a_reason(server, body, status):
    response = server.api("POST", "/tracks", content=body)
    assert response.status_code == status, response.text
    assert response.json()["error"]["message"]


def test_tracks_are_listed_shown_and_deleted(server, song):
    task, clips = song
    server.send_callback(task, "complete", clips=clips[:1])
    server.await_files(task, "stored", "stored")
    listed = server.api("GET", "/tracks?status=complete&owner=anna&limit=1").json()
    assert [row["task_id"] for row in listed["data"]] == [task]
    assert listed["next"] == task
    assert server.listing("music", "tracks", "list", "--limit", "1")[0]["stored"] == 2
    shown = server.api("GET", f"/tracks/{task}").json()
    assert (shown["prompt"], shown["clips"][0]["title"]) == ({"style": "rock"}, "Iron Man")
    assert server.api("DELETE", f"/tracks/{task}").status_code == 204
    assert server.api("DELETE", f"/tracks/{task}").status_code == 404
    assert server.send_callback(task, "first").json()["status"] == "late"
    assert server.api("GET", "/tracks/absent").status_code == 404
    assert server.api("GET", "/tracks?status=nonsense").status_code == 400


def test_the_cleanup_command_reports_what_it_did(server):
    done = json.loads(server.cli("music", "cleanup", "--dry-run", "--json").stdout)
    assert done["dry_run"] is True
    assert done["seen"] == done["young"] + done["foreign"] + done["kept"]
    assert "objects" not in server.cli("music", "cleanup").stderr.splitlines()


def test_callbacks_and_files_are_counted_in_metrics(server, song):
    task, clips = song
    server.send_callback(task, "complete", clips=clips)
    server.await_files(task, *["stored"] * 4)

    def is_shown(name: str) -> bool:
        return name in httpx.get(f"{server.base}/metrics", timeout=300).text

    for name in (
        'music_callbacks_total{result="applied",stage="complete"}',
        'music_files_total{kind="audio",result="stored"}',
        'music_file_bytes_total{kind="cover"}',
    ):
        until(partial(is_shown, name))


@pytest.mark.smoke
def test_made_up_traffic_ends_in_the_right_books(server):
    done = json.loads(
        server.cli("music", "simulate", "--url", server.base, "--count", "30", "--seed", "7", "--json").stdout
    )
    assert (done["differences"], done["unexpected"]) == ([], 0)
    assert done["sent"] > 60
    assert server.cli("check").returncode == 0
