"""Mutants of the music app: without each safeguard, the failure that it prevents does happen."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import uuid4

import pytest

from boathook.config import load
from boathook.domain.errors import ConfigError
from boathook.domain.policy import is_failure_of, matches
from boathook.server.loading import bound, load_hooks, migrations_of, with_apps
from boathook.server.supervisor import prepare_database
from boathook_app_tools.downloads import DownloadFailed, StorageUnavailable
from boathook_music import tracks
from boathook_music.app import hook
from boathook_music.callbacks import Callback, Clip, Stage
from boathook_music.stages import Forward, Status
from boathook_music.tracks import Delivery, NewTrack
from tests.apps.music.server import SECRET
from tests.support import eventually

CLIP = Clip(id="c", audio_url="https://cdn.example.com/a.mp3", cover_url="https://cdn.example.com/a.jpeg")


@pytest.fixture(autouse=True)
async def music(pg_url, tmp_path) -> AsyncIterator[None]:
    """The app, bound to this test's database."""
    file = tmp_path / "boathook.toml"
    callback_of = f'[database]\nurl = "{pg_url}"\n[apps]\nload = ["music"]\n[music]\nsecret = "{SECRET}"\n'
    file.write_text(callback_of)
    settings, apps = with_apps(load(file))
    await prepare_database(settings, load_hooks(settings), migrations_of(apps))
    async with bound(settings, apps):
        yield


def delivery() -> Delivery:
    event_id = uuid4()
    return Delivery(event_id=event_id, delivery_id=str(event_id), received_at=datetime.now(UTC))


def callback_of(stage: Stage) -> Callback:
    return Callback(task_id="t", stage=stage, clips=(CLIP,) if stage is Stage.COMPLETE else ())


async def take(*stages: Stage) -> None:
    for stage in stages:
        async with hook.transaction() as tx:
            await tracks.take(tx, delivery(), [callback_of(stage)])


async def value(sql: str):
    async with hook.transaction() as tx:
        return await tx.fetchval(sql)


async def register() -> None:
    async with hook.transaction() as tx:
        await tracks.register(tx, NewTrack(task_id="t"))


STATUS = "select status from music.track where task_id = 't'"
WANTED = "select count(*) from boathook.event where type = 'file.wanted'"


async def test_a_late_stage_does_not_change_a_complete_song():
    await register()
    await take(Stage.COMPLETE, Stage.FIRST, Stage.ERROR)
    assert await value(STATUS) == "complete"


async def test_without_forward_only_stages_it_would(monkeypatch):
    monkeypatch.setattr(tracks, "step", lambda _status, stage: Forward(Status(stage.value)))
    await register()
    await take(Stage.COMPLETE, Stage.FIRST)
    assert await value(STATUS) == "first"


async def test_repeated_callbacks_request_files_once():
    await register()
    await take(Stage.COMPLETE, Stage.COMPLETE, Stage.COMPLETE)
    assert await value(WANTED) == 2


async def test_without_the_guard_repeated_callbacks_request_files_again(monkeypatch):
    from boathook_music import files

    always = files.SQL["want_file"].replace("where f.state in ('removed', 'missing')", "where true")
    monkeypatch.setitem(files.SQL, "want_file", always)
    await register()
    await take(Stage.COMPLETE, Stage.COMPLETE)
    assert await value(WANTED) == 4


async def test_an_event_that_is_handled_again_changes_nothing():
    await register()
    one = delivery()
    for _ in range(3):
        async with hook.transaction() as tx:
            (taken,) = await tracks.take(tx, one, [callback_of(Stage.COMPLETE)])
        assert taken.result == "applied"
    assert await value("select count(*) from music.callback") == 1
    assert await value(WANTED) == 2


async def waits_for_a_lock() -> bool:
    return bool(
        await value(
            "select count(*) from pg_locks where locktype = 'advisory' and not granted"
            " and database = (select oid from pg_database where datname = current_database())"
        )
    )


async def test_a_registration_waits_for_a_callback_that_is_just_being_noted():
    async with hook.transaction() as tx:
        await tracks.take(tx, delivery(), [callback_of(Stage.TEXT)])
        registering = asyncio.create_task(register())
        await eventually(waits_for_a_lock)
    await registering
    assert await value(STATUS) == "text"


async def test_without_the_lock_they_would_miss_each_other(monkeypatch):
    monkeypatch.setitem(tracks.SQL, "lock_task", "select $1::text")
    async with hook.transaction() as tx:
        await tracks.take(tx, delivery(), [callback_of(Stage.TEXT)])
        await register()
    assert await value(STATUS) == "pending"
    assert await value("select state from music.callback") == "waiting"
    async with hook.transaction() as tx:
        (task,) = await tracks.with_waiting(tx)
        await tracks.catch_up(tx, task)
    assert await value(STATUS) == "text", "the chore mends even that"


async def test_only_a_storage_that_fails_opens_the_breaker_of_files():
    handler = hook.handlers["music.store"]
    assert handler.breaker is not None
    assert handler.breaker.dependency == "storage"
    storage = StorageUnavailable("no room", "NO_ROOM", is_final=False, dependency="storage")
    elsewhere = DownloadFailed("no answer", "HTTP_503", is_final=False, dependency="cdn.example.com")
    assert is_failure_of(handler.breaker, storage)
    assert not is_failure_of(handler.breaker, elsewhere), "one server of files would hold up those of the others"
    assert handler.retry_on is not None
    assert matches(storage, handler.retry_on)
    assert matches(ConfigError("a secret is missing"), handler.retry_on)
    assert not matches(KeyError("a mistake"), handler.retry_on)
