"""Songs whose callback does not come: asked for at the reseller, with growing pauses, on real PostgreSQL and sockets."""

import json
from collections.abc import AsyncIterator, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from boathook.config import load
from boathook.server.loading import bound, load_hooks, migrations_of, with_apps
from boathook.server.supervisor import prepare_database
from boathook_music import account, alerts, app, jobs, lookup, status, tracks
from boathook_music.app import hook
from boathook_music.callbacks import Stage, read_callbacks
from boathook_music.lookup import LookupFailed, ask_due, ask_now, read_record
from boathook_music.tracks import NewTrack
from tests import reality

RECORDS = reality.examples("suno", "record_*")
TASK = "5c1e0a7d93b24f68a0d2c7e4b91f3a56"
KEY = "reseller-key"
HOUR = 3_600


def record(name: str, task_id: str = TASK, **data: Any) -> bytes:
    document = json.loads(RECORDS[f"record_{name}.json"])
    if document["data"]:
        document["data"] |= {"taskId": task_id, **data}
    return json.dumps(document).encode()


@pytest.mark.parametrize(
    ("name", "stage", "songs"),
    [
        ("pending", None, 0),
        ("text", Stage.TEXT, 0),
        ("first", Stage.FIRST, 0),
        ("success", Stage.COMPLETE, 2),
        ("create_failed", Stage.ERROR, 0),
        ("audio_failed", Stage.ERROR, 0),
        ("sensitive", Stage.ERROR, 0),
        # The callback failed, not the songs.
        ("callback_exception", Stage.COMPLETE, 2),
    ],
)
def test_each_documented_status_is_read(name: str, stage: Stage | None, songs: int):
    shown = read_record(record(name), TASK)
    assert (shown and shown.stage, len(shown.clips) if shown else 0) == (stage, songs)


def test_the_error_of_a_task_is_read_and_a_failed_callback_without_songs_is_no_news():
    error = read_record(record("audio_failed"), TASK)
    assert error is not None
    assert (error.code, error.message) == (501, "Audio generation failed")
    assert read_record(record("callback_exception", response=None), TASK) is None
    assert read_record(record("callback_exception", response={"sunoData": [{"id": "a"}]}), TASK) is None


@pytest.mark.parametrize(
    ("body", "words", "concerns_all"),
    [
        (b"<html>", "not JSON", True),
        (b"[" * 100_000, "not JSON", True),
        (b"[]", "code None", True),
        (record("refused"), "code 401: You do not have access", True),
        (b'{"code": 429, "msg": "busy"}', "code 429", True),
        (b'{"code": 404, "msg": "no such task"}', "code 404", False),
        (record("success", "another-task"), "another one", False),
        (b'{"code": 200, "data": null}', "about no task", False),
        (record("success", status="REMIXED"), "'REMIXED' is not known", False),
    ],
)
def test_a_failed_look_up_is_no_failed_song(body: bytes, words: str, concerns_all: bool):
    with pytest.raises(LookupFailed, match=words) as caught:
        read_record(body, TASK)
    assert caught.value.concerns_all is concerns_all


# With a reseller on loopback


class Api:
    """A reseller: answers with a status and a body per task."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, bytes]] = {}
        self.asked: list[str] = []
        self.keys: set[str | None] = set()
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                if parts.path == "/api/v1/generate/record-info":
                    (task,) = parse_qs(parts.query)["taskId"]
                else:
                    task = parts.path
                api.asked.append(task)
                api.keys.add(self.headers.get("authorization"))
                status, body = api.answers.get(task, (200, record("pending", task)))
                self.send_response(status)
                if status == 302:
                    self.send_header("location", body.decode())
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: Any) -> None:
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    Thread(target=made.server.serve_forever, args=(0.05,), daemon=True).start()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
async def music(pg_url, tmp_path, api, request) -> AsyncIterator[None]:
    """The app, bound to this test's database, with look-ups at *api*."""
    allow = getattr(request, "param", '"127.0.0.0/8"')
    file = tmp_path / "boathook.toml"
    file.write_text(f"""
        [database]
        url = "{pg_url}"
        [apps]
        load = ["music"]
        [outbound]
        allow = [{allow}]
        [music]
        provider = "unsigned"
        [music.lookup]
        key = "{KEY}"
        url = "{api.url}"
        # Hours, so that the seconds a test takes do not matter.
        after_s = {10 * HOUR}
        max_interval_s = {60 * HOUR}
        credits_every_s = {HOUR}
    """)
    settings, apps = with_apps(load(file))
    await prepare_database(settings, load_hooks(settings), migrations_of(apps))
    async with bound(settings, apps):
        yield


async def add(task_id: str, *, quiet_s: float = 11 * HOUR) -> None:
    async with hook.transaction() as tx:
        await tracks.register(tx, NewTrack(task_id=task_id))
    await pass_time(task_id, quiet_s)


async def pass_time(task_id: str, seconds: float) -> None:
    """Move a track's times into the past."""
    async with hook.transaction() as tx:
        await tx.execute(
            "update music.track set created_at = created_at - $2 * interval '1 second', "
            "expected_since = expected_since - $2 * interval '1 second', "
            "asked_at = asked_at - $2 * interval '1 second' where task_id = $1",
            task_id,
            seconds,
        )


async def track(task_id: str) -> dict[str, Any]:
    async with hook.transaction() as tx:
        shown = await tracks.shown(tx, task_id)
    assert shown is not None
    return shown


async def test_a_song_without_a_callback_is_asked_for_and_stored(music: None, api: Api):
    api.answers["lost"] = (200, record("success", "lost"))
    await add("lost")
    await add("young", quiet_s=9 * HOUR)
    assert await ask_due() == 1
    assert (api.asked, api.keys) == (["lost"], {f"Bearer {KEY}"})
    shown = await track("lost")
    assert (shown["status"], shown["expected_since"], len(shown["clips"])) == ("complete", None, 2)
    assert {file["state"] for file in shown["files"]} == {"wanted"}
    assert [callback["delivery_id"] for callback in shown["callbacks"]] == ["record-info:lost:1"]
    assert (await track("young"))["status"] == "pending"
    assert await ask_due() == 0


async def test_the_pauses_grow_to_a_maximum_and_asking_ends(music: None, api: Api):
    await add("slow")
    for hours in (20, 40, 60, 60):
        assert await ask_due() == 1
        await pass_time("slow", (hours - 1) * HOUR)
        assert await ask_due() == 0
        await pass_time("slow", 2 * HOUR)
    assert (await track("slow"))["callbacks"] == [], "no news leaves no callback"
    await pass_time("slow", 336 * HOUR)
    assert await ask_due() == 0


async def test_news_starts_the_pauses_again(music: None, api: Api):
    api.answers["t"] = (200, record("first", "t"))
    await add("t")
    assert await ask_due() == 1
    shown = await track("t")
    assert (shown["status"], shown["asks"], shown["asked_at"]) == ("first", 0, None)
    await pass_time("t", 9 * HOUR)
    assert await ask_due() == 0
    await pass_time("t", 2 * HOUR)
    assert await ask_due() == 1
    assert len((await track("t"))["callbacks"]) == 1, "the same stage again is no news"


async def test_a_failed_song_fails_its_track(music: None, api: Api):
    api.answers["t"] = (200, record("sensitive", "t"))
    await add("t")
    assert await ask_due() == 1
    shown = await track("t")
    assert (shown["status"], shown["error_code"]) == ("failed", "400")
    assert shown["error"] == "The prompt contains a prohibited word"


async def test_a_complete_song_without_clips_is_asked_for(music: None, api: Api):
    """The document's own callback names no file."""
    api.answers["t"] = (200, record("success", "t"))
    await add("t", quiet_s=0)
    async with hook.transaction() as tx:
        (callback,) = read_callbacks({"taskId": "t", "stage": "complete"})
        await tracks.take_record(tx, callback, name="test")
    assert (await track("t"))["clips"] == []
    assert await ask_due() == 0
    await pass_time("t", 11 * HOUR)
    assert await ask_due() == 1
    assert len((await track("t"))["files"]) == 4
    await pass_time("t", 100 * HOUR)
    assert await ask_due() == 0


@pytest.mark.parametrize("answer", [(401, b""), (503, b"x"), (200, b"<html>"), (200, record("refused"))])
async def test_a_failure_of_the_service_ends_the_run_and_changes_no_track(music: None, api: Api, answer):
    for number in range(3):
        await add(f"t{number}")
        api.answers[f"t{number}"] = answer
    assert await ask_due() == 1
    assert len(api.asked) == 1
    for number in range(3):
        assert (await track(f"t{number}"))["status"] == "pending"
    assert (await track(api.asked[0]))["ask_error"]


async def test_a_failure_about_one_task_does_not_hold_up_the_others(music: None, api: Api):
    for number in range(3):
        await add(f"t{number}")
        api.answers[f"t{number}"] = (404, b"") if number < 2 else (200, record("success", "t2"))
    assert await ask_due() == 3
    assert [(await track(f"t{number}"))["status"] for number in range(3)] == ["pending", "pending", "complete"]


async def test_a_large_response_is_cut_off_and_a_redirect_not_followed(music: None, api: Api):
    api.answers["t"] = (200, b" " * (lookup.MAX_BYTES + 1))
    await add("t")
    with pytest.raises(LookupFailed):
        await ask_now("t")
    api.answers["t"] = (302, f"{api.url}/api/v1/generate/record-info?taskId=elsewhere".encode())
    with pytest.raises(LookupFailed, match="status 302"):
        await ask_now("t")
    assert api.asked == ["t", "t"]


@pytest.mark.parametrize("music", [""], indirect=True)
async def test_look_ups_go_through_the_guard(music: None, api: Api):
    await add("t")
    assert await ask_due() == 1
    assert api.asked == [], "a private address that outbound.allow does not list"
    assert "127.0.0.1" in (await track("t"))["ask_error"]


async def test_a_task_id_stays_one_parameter(music: None, api: Api):
    task = "a&taskId=b/../c?d"
    await add(task)
    await ask_now(task)
    assert api.asked == [task]


async def test_songs_without_news_are_counted_for_the_alert(music: None, api: Api, monkeypatch):
    shown: list[float] = []
    monkeypatch.setattr(jobs, "overdue_tracks", type("Gauge", (), {"set": staticmethod(shown.append)}))
    await add("late", quiet_s=2 * HOUR)
    await add("young", quiet_s=0)
    await jobs.count()
    async with hook.transaction() as tx:
        listed = await tracks.listed(tx, overdue_s=HOUR)
        (before,) = await alerts.find_overdue(tx)
        await tracks.mark_deleted(tx, "late")
        (after,) = await alerts.find_overdue(tx)
    await jobs.count()
    assert (shown, [row["task_id"] for row in listed]) == ([1, 0], ["late"])
    assert (before.value, after.value) == (1, 0)
    assert before.details["text"] == "songs without a callback"


async def test_without_a_claim_a_crash_would_ask_again_at_once(music: None, api: Api, monkeypatch):
    """The mutant of the claim that is committed before the request."""
    api.answers["t"] = (503, b"")
    await add("t")
    await ask_due()
    assert await ask_due() == 0
    unclaimed = lookup.SQL["claim_due"].replace("asked_at = now(), asks = asks + 1", "asks = asks")
    monkeypatch.setitem(lookup.SQL, "claim_due", unclaimed)
    await pass_time("t", 21 * HOUR)
    assert (await ask_due(), await ask_due()) == (1, 1)


# The account's credits

CREDITS = reality.examples("suno", "credit_*")
USUAL = account.USUAL_PATH


@pytest.mark.parametrize(("name", "credits"), [("sunoapi_org", 4120), ("kie", 87), ("sunoapi_com", 55)])
def test_each_documented_response_names_the_credits(name: str, credits: int):
    assert account.read_credits(CREDITS[f"credit_{name}.json"]) == credits


@pytest.mark.parametrize(
    "body",
    [
        b"<html>", b"[]", b"{}", RECORDS["record_refused.json"], b'{"code": 200}', b'{"code": 200, "data": "many"}',
        b'{"code": 200, "data": true}', b'{"code": 200, "data": -1}', b'{"code": 200, "data": 1e400}',
        b'{"code": 200, "data": NaN}', b'{"credits": null}', b'{"credits": 1, "extra_credits": "2"}',
        b'{"credits": ' + b"9" * 5_000 + b"}",
    ],
)  # fmt: skip
def test_another_response_names_none(body: bytes):
    with pytest.raises(LookupFailed):
        account.read_credits(body)


@pytest.mark.parametrize(
    ("url", "path"),
    [
        ("https://api.kie.ai", "/api/v1/chat/credit"),
        ("https://api.sunoapi.org/", "/api/v1/generate/credit"),
        ("https://api.sunoapi.com", "/api/v1/get-credits"),
        ("https://proxy.example.com/suno", "/api/v1/generate/credit"),
    ],
)
async def test_the_route_is_that_of_the_reseller(music: None, monkeypatch, url: str, path: str):
    asked: list[str] = []

    async def fetch(path: str, _config: Any) -> bytes:
        asked.append(path)
        return CREDITS["credit_kie.json"]

    monkeypatch.setattr(lookup, "fetch", fetch)
    config = app.settings().model_copy(update={"lookup": app.settings().lookup.model_copy(update={"url": url})})
    monkeypatch.setattr(account, "settings", lambda: config)
    await account.ask_due()
    assert asked == [path]


async def shown_status() -> dict[str, Any]:
    async with hook.transaction() as tx:
        return await status.read(tx)


async def pass_hour() -> None:
    async with hook.transaction() as tx:
        await tx.execute("update music.credit set asked_at = asked_at - interval '1 hour'")


async def test_the_credits_are_asked_for_once_an_interval_and_shown(music: None, api: Api, monkeypatch):
    shown: list[float] = []
    monkeypatch.setattr(jobs, "credits_gauge", type("Gauge", (), {"set": staticmethod(shown.append)}))
    await jobs.count()
    async with hook.transaction() as tx:
        assert await alerts.find_low_credits(tx) == [], "without a response there is no value that could fire the alert"
    assert shown == []
    api.answers[USUAL] = (200, CREDITS["credit_sunoapi_org.json"])
    for _ in range(3):
        await jobs.ask_for_credits()
    assert (api.asked, api.keys) == ([USUAL], {f"Bearer {KEY}"})
    await jobs.count()
    assert shown == [4120]
    before = await shown_status()
    assert (before["credits"], before["credits_error"]) == (4120, None)
    await pass_hour()
    api.answers[USUAL] = (503, b"")
    await jobs.ask_for_credits()
    after = await shown_status()
    assert (after["credits"], after["credits_at"]) == (4120, before["credits_at"]), "the last known number stays"
    assert after["credits_error"] == "the response has the status 503"
    async with hook.transaction() as tx:
        (reading,) = await alerts.find_low_credits(tx)
    assert reading.value == 4120
    assert (app.hook.manifest.alert_rules or {})["music.low_credits"].below == 50


async def test_without_the_claim_each_run_would_ask(music: None, api: Api, monkeypatch):
    """The mutant of the interval."""
    api.answers[USUAL] = (200, CREDITS["credit_kie.json"])
    always = account.SQL["claim_request"].replace("where credit.asked_at <=", "where $1 > 0 or now() >")
    monkeypatch.setitem(account.SQL, "claim_request", always)
    await account.ask_due()
    await account.ask_due()
    assert len(api.asked) == 2


@pytest.mark.parametrize("music", [""], indirect=True)
async def test_the_credits_are_asked_for_through_the_guard(music: None, api: Api):
    await account.ask_due()
    assert api.asked == []
    assert "127.0.0.1" in (await shown_status())["credits_error"]
