"""The events for clients, ``track.ready`` and ``track.failed``: when they are published, once each, and what they carry."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from uuid import uuid4

import httpx
import jsonschema_rs
import pytest
from standardwebhooks.webhooks import Webhook

from boathook.config import load
from boathook.server.loading import bound, load_hooks, migrations_of, with_apps
from boathook.server.supervisor import prepare_database
from boathook_app_tools.downloads import StoredFile
from boathook_music import client_events, files, jobs, tracks
from boathook_music.app import hook
from boathook_music.callbacks import Callback, Clip, Stage
from boathook_music.files import FileRef
from boathook_music.kinds import Kind
from boathook_music.tracks import Delivery, NewTrack
from tests.apps.music.server import SECRET, MusicServer, clip, started, unique
from tests.support import eventually, until

CLIP = Clip(
    id="c", title="Iron Man", audio_url="https://cdn.example.com/a.mp3", cover_url="https://cdn.example.com/a.jpeg"
)
AUDIO = FileRef(task_id="t", clip_id="c", kind=Kind.AUDIO, round=1)
COVER = FileRef(task_id="t", clip_id="c", kind=Kind.COVER, round=1)


@pytest.fixture
async def music(pg_url, tmp_path) -> AsyncIterator[None]:
    """The app, bound to this test's database; tracks without an application are those of ``studio``."""
    file = tmp_path / "boathook.toml"
    file.write_text(
        f'[database]\nurl = "{pg_url}"\n[apps]\nload = ["music"]\n'
        f'[music]\nsecret = "{SECRET}"\napplication = "studio"\npublic_url = "https://music.example.com"\n'
    )
    settings, apps = with_apps(load(file))
    await prepare_database(settings, load_hooks(settings), migrations_of(apps))
    async with bound(settings, apps):
        yield


async def register(**fields: Any) -> None:
    async with hook.transaction() as tx:
        await tracks.register(tx, NewTrack(task_id="t", owner="anna", title="Iron Man", **fields))


async def take(stage: Stage, *, code: int | None = None, message: str = "", clips: tuple[Clip, ...] = (CLIP,)) -> None:
    delivery = Delivery(event_id=uuid4(), delivery_id=str(uuid4()), received_at=datetime.now(UTC))
    is_complete = stage is Stage.COMPLETE
    callback = Callback(task_id="t", stage=stage, code=code, message=message, clips=clips if is_complete else ())
    async with hook.transaction() as tx:
        await tracks.take(tx, delivery, [callback])


async def end(ref: FileRef, *, is_stored: bool = True, meanwhile: Any = None) -> None:
    """End a file as the handler `store` does."""
    async with hook.transaction() as tx:
        await tracks.lock(tx, "t")
        if is_stored:
            kept = StoredFile(key=f"tracks/t/c.{ref.kind}", size=3, sha256="0" * 64, content_type="audio/mpeg")
            assert await files.mark_stored(tx, ref, kept)
        else:
            await files.mark_failed(tx, ref, is_final=True, code="URL_EXPIRED", error="gone from /srv/files")
        await client_events.announce(tx, "t")
        if meanwhile is not None:
            await meanwhile()


async def published() -> list[tuple[str, dict[str, Any]]]:
    """Return application and message of the events for clients, each valid according to its schema."""
    async with hook.transaction() as tx:
        names = {await hook.operations.put_application(tx, uid, name=uid): uid for uid in ("acme", "studio")}
        rows = await tx.fetch(
            "select application, type, body from boathook.event where type like 'track.%' order by accepted_at, id"
        )
    messages = [(names[row["application"]], json.loads(row["body"])) for row in rows]
    for row, (_, message) in zip(rows, messages, strict=True):
        assert row["type"] == message["type"]
        assert problems(message) == []
    return messages


def problems(message: dict[str, Any]) -> list[str]:
    validator = jsonschema_rs.validator_for(client_events.schemas()[message["type"]], validate_formats=True)
    return [str(error) for error in validator.iter_errors(message)]


def test_the_examples_of_the_schemas_are_valid_and_a_missing_field_is_not():
    for name, schema in client_events.schemas().items():
        assert schema["examples"], name
        for example in schema["examples"]:
            assert problems(example) == []
            for field in schema["properties"]["data"]["required"]:
                rest = {key: value for key, value in example["data"].items() if key != field}
                assert problems({**example, "data": rest}), field


async def test_a_track_is_ready_when_its_last_file_has_ended(music: None):
    await register()
    await take(Stage.COMPLETE)
    await end(COVER, is_stored=False)
    assert await published() == []
    await end(AUDIO)
    ((application, message),) = await published()
    assert (application, message["type"]) == ("studio", "track.ready")
    (shown,) = message["data"]["clips"]
    assert message["data"]["owner"] == "anna"
    assert shown["audio"]["url"].startswith("https://music.example.com/api/music/files/tracks/t/c.audio?expires=")
    assert shown["cover"] is None
    await take(Stage.COMPLETE)
    await take(Stage.ERROR, code=500)
    assert len(await published()) == 1, "it is announced once"


async def test_an_event_is_part_of_the_transaction(music: None):
    await register()

    async def fail() -> None:
        raise RuntimeError("the attempt fails")

    await take(Stage.COMPLETE, clips=(Clip(id="c", audio_url=CLIP.audio_url),))
    with pytest.raises(RuntimeError):
        await end(AUDIO, meanwhile=fail)
    assert await published() == []
    await end(AUDIO)
    assert [message["type"] for _, message in await published()] == ["track.ready"]


async def test_a_failure_is_announced_once_and_success_may_follow(music: None):
    await register(application="acme")
    await take(Stage.ERROR, code=501, message="Audio generation failed")
    await take(Stage.ERROR, code=500, message="again")
    await take(Stage.COMPLETE)
    await end(AUDIO)
    await end(COVER)
    (first, failed), (second, ready) = await published()
    assert (first, second) == ("acme", "acme")
    assert (failed["data"]["code"], failed["data"]["message"]) == ("501", "Audio generation failed")
    assert ready["type"] == "track.ready"


async def test_a_song_whose_audio_cannot_be_stored_has_failed(music: None):
    await register()
    await take(Stage.COMPLETE)
    await end(COVER)
    await end(AUDIO, is_stored=False)
    ((_, message),) = await published()
    assert (message["type"], message["data"]["code"]) == ("track.failed", "FILES_FAILED")
    assert "/srv/files" not in json.dumps(message), "what clients get names no place on the server"
    async with hook.transaction() as tx:
        assert await files.request_again(tx, "t", "c", Kind.AUDIO)
    await end(FileRef(task_id="t", clip_id="c", kind=Kind.AUDIO, round=2))
    assert [message["type"] for _, message in await published()] == ["track.failed", "track.ready"]


async def test_a_worker_that_is_gone_leaves_no_track_unannounced(music: None):
    await register()
    await take(Stage.COMPLETE)
    async with hook.transaction() as tx:
        await tx.execute("update music.file set wanted_at = now() - interval '4 days'")
    await jobs.give_up()
    assert [message["data"]["code"] for _, message in await published()] == ["FILES_FAILED"]


async def test_a_deleted_track_and_one_without_application_are_not_announced(music: None, monkeypatch):
    await register()
    async with hook.transaction() as tx:
        await tracks.mark_deleted(tx, "t")
    await take(Stage.ERROR, code=500)
    assert await published() == []
    monkeypatch.setattr(client_events, "settings", lambda: type("Settings", (), {"application": ""}))
    async with hook.transaction() as tx:
        await tx.execute("update music.track set status = 'pending'")
    await take(Stage.ERROR, code=500, message="again")
    assert await published() == []


async def test_a_callback_that_waited_is_announced_with_its_track(music: None):
    await take(Stage.ERROR, code=500)
    assert await published() == []
    async with hook.transaction() as tx:
        await tx.execute("insert into music.track (task_id, application) values ('t', 'acme')")
        await tracks.catch_up(tx, "t")
    assert [application for application, _ in await published()] == ["acme"]


async def waits_for_a_lock() -> bool:
    async with hook.transaction() as tx:
        count = await tx.fetchval(
            "select count(*) from pg_locks where locktype = 'advisory' and not granted"
            " and database = (select oid from pg_database where datname = current_database())"
        )
    return bool(count)


async def test_the_last_two_files_see_each_other(music: None):
    await register()
    await take(Stage.COMPLETE)
    others: list[asyncio.Task[None]] = []

    async def start_the_other() -> None:
        others.append(asyncio.create_task(end(COVER)))
        await eventually(waits_for_a_lock)

    await end(AUDIO, meanwhile=start_the_other)
    await others[0]
    assert [message["type"] for _, message in await published()] == ["track.ready"]


async def test_without_the_lock_nobody_would_announce(music: None, monkeypatch):
    """The mutant of the lock."""
    await register()
    await take(Stage.COMPLETE)
    monkeypatch.setitem(tracks.SQL, "lock_task", "select $1::text")

    async def end_the_other() -> None:
        await end(COVER)

    await end(AUDIO, meanwhile=end_the_other)
    assert await published() == []


async def test_the_types_are_declared_with_schema_and_examples(music: None):
    await jobs.declare_types()
    await jobs.declare_types()
    async with hook.transaction() as tx:
        rows = await tx.fetch("select name, schemas from boathook.event_type order by name")
    assert [row["name"] for row in rows] == ["track.failed", "track.ready"]
    assert [json.loads(row["schemas"])["1"] for row in rows] == [
        client_events.schemas()[name] for name in ("track.failed", "track.ready")
    ]


@pytest.mark.parametrize("application", ["a b", "x" * 257, "app_2x", ".", "..", "music", "é"])
async def test_an_invalid_application_is_refused_by_field_and_by_the_table(music: None, application: str):
    problem = tracks.problem_of(NewTrack(task_id="t", application=application))
    assert problem is not None
    assert problem.startswith("application: ")
    with pytest.raises(Exception, match="check constraint"):
        async with hook.transaction() as tx:
            await tx.execute("insert into music.track (task_id, application) values ('t', $1)", application)


# To a client's endpoint, on a running server


class Client:
    """A client's endpoint, which verifies what it receives."""

    def __init__(self) -> None:
        self.received: list[tuple[dict[str, str], bytes]] = []
        client = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                client.received.append(({name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Log nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hooks"
        Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    made = Client()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture(scope="module")
def sending_server(tmp_path_factory, admin_url, pg_template) -> Iterator[MusicServer]:
    with started(tmp_path_factory.mktemp("clients"), admin_url, pg_template, senders=1) as running:
        yield running


def test_a_client_gets_its_song_signed_and_can_fetch_it(sending_server: MusicServer, client: Client, file_server):
    server = sending_server
    server.cli("applications", "create", "acme", "--uid", "acme")
    made = server.cli("endpoints", "create", "-a", "acme", "--url", client.url, "--type", "track.*", "--json").stdout
    endpoint = json.loads(made)
    task = unique()
    server.register(task, application="acme", title="Iron Man")
    server.send_callback(task, "complete", clips=[clip(f"{task}-1", file_server.url)])
    until(lambda: client.received)
    secret = server.cli("endpoints", "secret", endpoint["id"], "-a", "acme").stdout.strip()
    headers, body = client.received[0]
    message = Webhook(secret).verify(body, headers)
    assert (message["type"], message["data"]["task_id"]) == ("track.ready", task)
    (shown,) = message["data"]["clips"]
    fetched = httpx.get(server.base + shown["audio"]["url"], timeout=60)
    assert (fetched.status_code, len(fetched.content)) == (200, shown["audio"]["size"])
    assert server.cli("music", "status").stdout.startswith('{"waiting_callbacks": 0')
