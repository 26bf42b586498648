"""Cleaning: removed, kept and missing objects, paged over a folder and a bucket."""

import json
import os
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from boathook.config import load
from boathook.server.loading import bound, load_hooks, migrations_of, with_apps
from boathook.server.supervisor import prepare_database
from boathook_app_tools.storage import Stored
from boathook_music import app, files, jobs
from boathook_music.cleaning import Cleaner, CleanupAction, Rules, decide, remove_leftovers
from boathook_music.kinds import PREFIX, stem_of
from tests.apps.music.server import SECRET, S3Server

NOW = datetime.now(UTC)
OLD = NOW - timedelta(days=30)
RULES = Rules(min_age=timedelta(hours=1), orphans=timedelta(days=7), done=timedelta(days=1), urls=timedelta(days=14))


class FolderFiles:
    """A folder with files written without the storage."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.settings = f'[music.storage]\nkind = "folder"\nfolder = "{root}"\n'

    def put(self, key: str, at: datetime) -> None:
        place = self.root / key
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(key.encode())
        os.utime(place, (at.timestamp(), at.timestamp()))

    def listed(self) -> list[str]:
        return sorted(str(one.relative_to(self.root)) for one in self.root.rglob("*") if one.is_file())


class BucketFiles:
    """moto's bucket with objects written without the storage."""

    def __init__(self, s3_server: S3Server) -> None:
        from moto.s3.models import s3_backends

        self._s3_server = s3_server
        self.settings = s3_server.settings
        self._backend = next(
            backend
            for account in s3_backends.values()
            for backend in account.values()
            if s3_server.bucket in backend.buckets
        )
        for key in s3_server.listed():
            self._backend.delete_object(s3_server.bucket, key)

    def put(self, key: str, at: datetime) -> None:
        made = self._backend.put_object(self._s3_server.bucket, key, key.encode())
        made.last_modified = at.replace(tzinfo=None)

    def listed(self) -> list[str]:
        return sorted(self._s3_server.listed())


@pytest.fixture(params=["folder", "s3"])
def place(request, tmp_path, s3_server):
    return FolderFiles(tmp_path / "kept") if request.param == "folder" else BucketFiles(s3_server)


@pytest.fixture
async def music(pg_url, tmp_path, place) -> AsyncIterator[None]:
    """The app, bound to this test's database and storage."""
    file = tmp_path / "boathook.toml"
    file.write_text(f"""
[database]
url = "{pg_url}"
[server]
data_dir = "{tmp_path / "data"}"
[apps]
load = ["music"]
[outbound]
allow = ["127.0.0.0/8"]
[music]
secret = "{SECRET}"
incoming = "{tmp_path / "incoming"}"
{place.settings}""")
    settings, apps = with_apps(load(file))
    await prepare_database(settings, load_hooks(settings), migrations_of(apps))
    async with bound(settings, apps):
        yield


async def add(
    task: str, *, status: str = "complete", state: str = "stored", extension: str = "mp3", since: datetime = OLD
) -> str:
    """Add a track with one file; return the file's key."""
    key = f"{stem_of(task, 'c')}.{extension}"
    is_stored = state == "stored"
    async with app.hook.transaction() as tx:
        await tx.execute(
            "insert into music.track (task_id, status, updated_at, completed_at) values ($1, $2, $3, $3)",
            task, status, since,
        )  # fmt: skip
        await tx.execute("insert into music.clip values ($1, 'c', 1, 'Song', null)", task)
        await tx.execute(
            "insert into music.file (task_id, clip_id, kind, url, stem, state, key, size, sha256, stored_at)"
            " values ($1, 'c', 'audio', 'http://127.0.0.1:9/x.mp3', $2, $3, $4, $5, $6, $7)",
            task, stem_of(task, "c"), state, *((key, len(key), "0" * 64, since) if is_stored else (None,) * 4),
        )  # fmt: skip
    return key


async def clean(**how):
    cleaner = Cleaner(app.storage(), app.hook.transaction, RULES, **how)
    return await cleaner.run()


async def states() -> Counter[str]:
    async with app.hook.transaction() as tx:
        rows = await tx.fetch("select state from music.file")
    return Counter(row["state"] for row in rows)


@pytest.mark.extended("needs thousands of rows, objects or connections")
@pytest.mark.usefixtures("music")
async def test_a_bucket_of_2500_objects_is_cleaned_page_by_page(place):
    kept: list[str] = []
    gone: list[str] = []
    async with app.hook.transaction() as tx:
        numbers = range(2_500)
        tasks = [f"task{number:04}" for number in numbers]
        status = ["failed" if number % 5 == 1 else "deleted" if number % 5 == 2 else "complete" for number in numbers]
        stems = [stem_of(task, "c") for task in tasks]
        known = [number for number in numbers if number % 5 != 3]
        await tx.executemany(
            "insert into music.track (task_id, status, updated_at, completed_at) values ($1, $2, $3, $3)",
            [(tasks[n], status[n], OLD) for n in known],
        )
        await tx.executemany("insert into music.clip values ($1, 'c', 1, 'Song', null)", [(tasks[n],) for n in known])
        await tx.executemany(
            "insert into music.file (task_id, clip_id, kind, url, stem, state, key, size, sha256, stored_at)"
            " values ($1, 'c', 'audio', 'http://127.0.0.1:9/x', $2, 'stored', $3, 1, '0', $4)",
            [(tasks[n], stems[n], f"{stems[n]}.mp3", OLD) for n in known],
        )
    for number in numbers:
        place.put(f"{stems[number]}.mp3", OLD)
        (gone if number % 5 in (1, 2, 3) else kept).append(f"{stems[number]}.mp3")
    report = await clean()
    assert (report.pages, report.seen) == (3, 2_500)
    assert (report.kept, report.orphan, report.done_with) == (1_000, 500, 1_000)
    assert (report.missing, report.foreign, report.young) == (0, 0, 0)
    assert report.bytes_freed == sum(map(len, gone))
    assert place.listed() == sorted(kept)
    assert await states() == {"stored": 1_000, "removed": 1_000}
    again = await clean()
    assert (again.seen, again.orphan, again.done_with, again.missing) == (1_000, 0, 0, 0)


@pytest.mark.usefixtures("music")
async def test_old_objects_of_failed_and_deleted_tracks_are_removed(place):
    old = [await add("f", status="failed"), await add("d", status="deleted")]
    fresh = await add("f2", status="failed", since=NOW)
    complete = await add("c")
    for key in (*old, fresh, complete):
        place.put(key, OLD)
    await clean()
    assert place.listed() == sorted([fresh, complete])


@pytest.mark.usefixtures("music")
async def test_old_orphans_are_removed(place):
    await add("wanted", state="wanted")
    keys = {name: f"{stem_of(name, 'c')}.mp3" for name in ("orphan", "newer", "newest", "wanted")}
    for name, age in (("orphan", 8), ("newer", 6), ("newest", 0), ("wanted", 30)):
        place.put(keys[name], NOW - timedelta(days=age))
    stray = await add("stray")
    place.put(stray, OLD)
    place.put(stray.replace(".mp3", ".wav"), OLD)
    report = await clean()
    assert place.listed() == sorted([keys["newer"], keys["newest"], keys["wanted"], stray])
    assert (report.orphan, report.young) == (2, 1)


@pytest.mark.usefixtures("music")
async def test_foreign_objects_are_never_touched(place):
    names = ["tracks/notes.txt", "tracks/a/b/c.mp3", "tracks/a/b.exe", "tracks/a/.hidden.mp3", "elsewhere/a/b.mp3"]
    for name in names:
        place.put(name, OLD)
    report = await clean()
    assert place.listed() == sorted(names)
    assert (report.foreign, report.seen) == (4, 4)


@pytest.mark.usefixtures("music")
async def test_recently_lost_files_are_requested_again(place):
    fresh = NOW - timedelta(days=2)
    lost_lately, lost_long_ago = await add("a", since=fresh), await add("z", since=OLD)
    there = await add("m", since=fresh)
    await add("just-stored", since=NOW)
    await add("done", status="deleted", since=OLD)
    await add("archived", since=fresh)
    async with app.hook.transaction() as tx:
        await tx.execute("update music.track set archived_at = now() where task_id = 'archived'")
    place.put(there, fresh)
    report = await clean()
    assert (report.missing, report.wanted_again) == (3, 1)
    assert await states() == {"wanted": 1, "missing": 2, "stored": 2, "removed": 1}
    async with app.hook.transaction() as tx:
        (wanted,) = await tx.fetch(
            "select convert_from(body, 'utf8') as body from boathook.event where type = $1", files.WANTED
        )
        (row,) = await tx.fetch("select round, key from music.file where task_id = 'a'")
    assert json.loads(wanted["body"]) == {"task_id": "a", "clip_id": "c", "kind": "audio", "round": 2}
    assert (row["round"], row["key"]) == (2, None)
    assert lost_lately != lost_long_ago


@pytest.mark.usefixtures("music")
async def test_files_on_a_remounted_disk_are_stored_again(place):
    """A disk that is not mounted while storage is cleaned must not cost its files once it is back."""
    keys = [await add("long-ago"), await add("failed-since")]
    assert (await clean()).missing == 2
    async with app.hook.transaction() as tx:
        await tx.execute("update music.file set state = 'failed' where task_id = 'failed-since'")
    for key in keys:
        place.put(key, OLD)
    report = await clean()
    assert (report.orphan, report.kept, place.listed()) == (0, 2, sorted(keys))
    assert await states() == {"stored": 2}
    assert (await clean()).missing == 0


@pytest.mark.usefixtures("music", "place")
@pytest.mark.parametrize("place", ["folder"], indirect=True)
async def test_abandoned_files_are_marked_as_failed():
    """A worker that dies during the last attempt records nothing about its file."""
    await add("tried", state="retrying")
    await add("never", state="wanted")
    await add("lately", state="retrying")
    async with app.hook.transaction() as tx:
        await tx.execute("update music.file set wanted_at = $1 where task_id <> 'lately'", OLD)
        await tx.execute("update music.file set error_code = 'HTTP_503', error = 'busy' where task_id = 'tried'")
    await jobs.give_up()
    async with app.hook.transaction() as tx:
        rows = await tx.fetch("select task_id, state, error_code from music.file")
    assert {row["task_id"]: (row["state"], row["error_code"]) for row in rows} == {
        "tried": ("failed", "HTTP_503"),
        "never": ("failed", "GIVEN_UP"),
        "lately": ("retrying", None),
    }


@pytest.mark.usefixtures("music")
async def test_rows_are_compared_across_missing_pages(place, monkeypatch):
    monkeypatch.setattr("boathook_music.cleaning.PAGE", 3)
    keys = [await add(f"t{number:02}") for number in range(20)]
    present = {0, 1, 2, 3, 11, 12, 19}
    for number in present:
        place.put(keys[number], OLD)
    report = await clean()
    assert (report.pages, report.missing, report.kept) == (3, 13, 7)
    assert await states() == {"stored": 7, "missing": 13}


@pytest.mark.usefixtures("music")
async def test_a_dry_run_counts_and_changes_nothing(place):
    place.put(await add("f", status="failed"), OLD)
    place.put(f"{stem_of('orphan', 'c')}.mp3", OLD)
    await add("lost")
    before = place.listed(), await states()
    report = await clean(is_dry=True)
    assert (report.done_with, report.orphan, report.missing) == (1, 1, 1)
    assert (place.listed(), await states()) == before


@pytest.mark.usefixtures("music")
async def test_an_object_stored_after_listing_is_kept(place):
    key = f"{stem_of('orphan', 'c')}.mp3"
    place.put(key, OLD)
    storage = app.storage()

    class SlowStudio:
        async def pages(self, prefix, *, size):
            async for page in storage.pages(prefix, size=size):
                place.put(key, NOW)
                yield page

        def __getattr__(self, name):
            return getattr(storage, name)

    await Cleaner(SlowStudio(), app.hook.transaction, RULES).run()
    assert place.listed() == [key]


@pytest.mark.usefixtures("music")
async def test_an_object_that_was_claimed_since_it_was_listed_stays(place):
    key = f"{stem_of('claimed', 'c')}.mp3"
    place.put(key, OLD)
    storage = app.storage()

    class SlowStudio:
        async def head(self, asked):
            await add("claimed", state="wanted")
            return await storage.head(asked)

        def __getattr__(self, name):
            return getattr(storage, name)

    await Cleaner(SlowStudio(), app.hook.transaction, RULES).run()
    assert place.listed() == [key]


@pytest.mark.usefixtures("music")
async def test_the_keeper_cleans_once_a_day_and_operators_at_any_time(place):
    assert await jobs.clean(not_within_s=86_400) is not None
    assert await jobs.clean(not_within_s=86_400) is None
    assert await jobs.clean() is not None
    async with app.hook.transaction() as tx:
        rows = await tx.fetch("select ended_at, report from music.cleaning")
    assert len(rows) == 2
    assert all(row["ended_at"] and json.loads(row["report"])["seen"] == 0 for row in rows)


class Endless:
    """A storage of very many objects, made as they are listed."""

    def __init__(self, pages: int) -> None:
        self._pages = pages

    async def pages(self, prefix: str, *, size: int) -> AsyncIterator[Sequence[Stored]]:
        for page in range(self._pages):
            yield [Stored(f"{PREFIX}t{page:05}-{number:04}/c.mp3", 1, OLD) for number in range(size)]


@pytest.mark.extended("needs thousands of rows, objects or connections")
@pytest.mark.usefixtures("music")
async def test_memory_does_not_grow_with_the_bucket(place):
    async def peak(pages: int) -> int:
        tracemalloc.start()
        cleaner = Cleaner(Endless(pages), app.hook.transaction, RULES, is_dry=True)
        report = await cleaner.run()
        highest = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert (report.seen, report.orphan) == (pages * 1_000, pages * 1_000)
        return highest

    await peak(2)
    assert await peak(40) < 1.5 * await peak(4)


async def test_old_partial_downloads_are_removed(tmp_path):
    for name, age in (("old.part", 8), ("old.part.json", 8), ("young.part", 1)):
        (tmp_path / name).write_bytes(b"x")
        moment = (NOW - timedelta(days=age)).timestamp()
        os.utime(tmp_path / name, (moment, moment))
    assert await remove_leftovers(tmp_path, timedelta(days=7), is_dry=True) == 2
    assert await remove_leftovers(tmp_path, timedelta(days=7), is_dry=False) == 2
    assert [one.name for one in tmp_path.iterdir()] == ["young.part"]
    assert await remove_leftovers(tmp_path / "absent", timedelta(days=7), is_dry=False) == 0


# Judgement alone


def seen(age: timedelta, key: str = "tracks/t/c.mp3") -> Stored:
    return Stored(key, 1, NOW - age)


def owner(**changes):
    usual = {
        "key": "tracks/t/c.mp3",
        "state": "stored",
        "was_stored": True,
        "status": "complete",
        "updated_at": OLD,
        "archived_at": None,
    }
    return usual | changes


@pytest.mark.parametrize(
    ("found", "row", "fate"),
    [
        (seen(timedelta(days=30)), owner(), CleanupAction.KEPT),
        (seen(timedelta(days=30)), None, CleanupAction.ORPHAN),
        (seen(timedelta(days=6)), None, CleanupAction.KEPT),
        (seen(timedelta(minutes=5)), None, CleanupAction.YOUNG),
        (seen(timedelta(minutes=5)), owner(status="failed"), CleanupAction.YOUNG),
        (seen(timedelta(days=30)), owner(status="failed"), CleanupAction.DONE_WITH),
        (seen(timedelta(days=30)), owner(status="deleted", updated_at=NOW), CleanupAction.KEPT),
        (seen(timedelta(days=30)), owner(status="failed", archived_at=OLD), CleanupAction.KEPT),
        (seen(timedelta(days=30)), owner(key="tracks/t/c.wav", archived_at=OLD), CleanupAction.KEPT),
        (seen(timedelta(days=30)), owner(state="wanted", key=None), CleanupAction.KEPT),
        (seen(timedelta(days=30)), owner(state="retrying", key=None), CleanupAction.KEPT),
        (seen(timedelta(days=30)), owner(state="failed", key=None), CleanupAction.KEPT),
        (seen(timedelta(days=30)), owner(state="failed", key=None, was_stored=False), CleanupAction.ORPHAN),
        (seen(timedelta(days=30)), owner(state="missing", key=None), CleanupAction.KEPT),
        (seen(timedelta(days=30)), owner(state="removed", key=None), CleanupAction.ORPHAN),
        (seen(timedelta(days=30)), owner(key="tracks/t/c.wav"), CleanupAction.ORPHAN),
        (seen(timedelta(days=30), "tracks/x"), None, CleanupAction.FOREIGN),
        (seen(timedelta(days=-1)), None, CleanupAction.YOUNG),
    ],
)
def test_the_fate_of_an_object_depends_on_row_and_age(found, row, fate):
    assert decide(found, row, RULES, NOW) is fate


def test_without_the_guard_of_age_a_file_being_stored_would_be_removed():
    unguarded = Rules(min_age=timedelta(0), orphans=timedelta(0), done=timedelta(0), urls=timedelta(0))
    assert decide(seen(timedelta(seconds=1)), None, RULES, NOW) is CleanupAction.YOUNG
    assert decide(seen(timedelta(seconds=1)), None, unguarded, NOW) is CleanupAction.ORPHAN
