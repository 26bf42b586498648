"""Downloads over real sockets: complete or absent, resumed where they stopped, never mixed from two files."""

import asyncio
import hashlib
import itertools
import json
import os
import random
import signal
import sys

import pytest

from boathook.domain.errors import FetchFailed
from boathook.http_client import download, guard
from boathook.http_client.client import Client
from tests.support import eventually
from tests.unit.file_server import OLD, FileServer
from tests.unit.receivers import outbound

SONG = random.Random(7).randbytes(400_000)
OTHER = random.Random(8).randbytes(400_000)


@pytest.fixture
def client():
    one = Client(outbound())
    yield one
    one.close()


@pytest.fixture
def target(tmp_path):
    return tmp_path / "song.mp3"


def left(target):
    return sorted(path.name for path in target.parent.iterdir())


async def failing(client, server, target, words=".", **more):
    with pytest.raises(FetchFailed, match=words) as caught:
        await client.download(server.url, target, **({"max_bytes": 10_000_000} | more))
    return caught.value


async def fetched(client, server, target, content=SONG):
    done = await client.download(server.url, target, max_bytes=10_000_000)
    assert target.read_bytes() == content
    assert (done.size, done.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert left(target) == [target.name]
    return done


# Whole files.


@pytest.mark.parametrize("size", [0, 1, 70_000, 5_000_000])
async def test_a_file_is_fetched_whole(client, target, size):
    content = random.Random(size).randbytes(size)
    async with FileServer(content) as server:
        done = await fetched(client, server, target, content)
    assert done.content_type == "audio/mpeg"
    assert "\r\nAccept-Encoding: identity\r\n" in server.heads[0]


async def test_a_file_of_unknown_length_is_fetched_whole(client, target):
    async with FileServer(SONG, length=None) as server:
        await fetched(client, server, target)


async def test_the_target_appears_only_once_it_is_whole(client, target):
    target.write_bytes(b"before")
    async with FileServer(SONG, pause_s=0.05) as server:
        task = asyncio.create_task(client.download(server.url, target, max_bytes=10_000_000))
        part_file = target.with_name("song.mp3.part")
        await eventually(lambda: part_file.exists() and part_file.stat().st_size > 100_000)
        assert target.read_bytes() == b"before"
        await task
    assert target.read_bytes() == SONG


async def test_headers_of_the_caller_are_sent_but_not_those_of_ranges(client, target):
    async with FileServer(SONG) as server:
        await client.download(server.url, target, max_bytes=10_000_000, headers={"Authorization": "Bearer x"})
        assert "\r\nAuthorization: Bearer x\r\n" in server.heads[0]
        for name in ("Range", "if-range", "Accept-Encoding"):
            await failing(client, server, target, f"the header {name} is set by boathook", headers={name: "x"})
        assert len(server.heads) == 1


# Resumed downloads.


async def test_an_interrupted_download_is_resumed(client, target):
    async with FileServer(SONG, cut_after=150_000) as server:
        await failing(client, server, target)
        assert left(target) == ["song.mp3.part", "song.mp3.part.json"]
        came = (target.with_name("song.mp3.part")).stat().st_size
        assert 0 < came <= 150_000
        server.cut_after = None
        await fetched(client, server, target)
    assert server.ranges == [None, f"{came}-"]
    assert '\r\nIf-Range: "v1"\r\n' in server.heads[1]
    assert server.sent[1] == len(SONG) - came


async def test_downloads_interrupted_at_random_give_the_same_file(tmp_path):
    seed = int(os.environ.get("BOATHOOK_TEST_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
    print(f"BOATHOOK_TEST_SEED={seed}")  # noqa: T201 - repeats the run
    dice = random.Random(seed)
    for round in range(25):
        content = dice.randbytes(dice.choice([1, 2, 1_000, 65_536, 200_000, 300_000]))
        tag = dice.choice([{"etag": '"a"'}, {"etag": 'W/"a"'}, {"etag": None, "modified": OLD}, {"etag": None}])
        server = FileServer(content, **tag, length=dice.choice([-1, -1, None]), piece=dice.choice([1_000, 65_536]))
        server.heeds_range = dice.random() < 0.8
        server.heeds_if_range = dice.random() < 0.8
        server.names_etag_in_parts = dice.random() < 0.5
        target = tmp_path / f"file{round}"
        days = itertools.count(10)  # none comes twice, as nothing else may tell two files apart
        async with server:
            for _ in range(dice.randrange(1, 6)):
                # A file of unknown length that is cut off cannot be told from a whole one.
                server.cut_after = None if server.length is None else dice.randrange(0, len(content))
                client = Client(outbound())
                try:
                    await client.download(server.url, target, max_bytes=10_000_000)
                except FetchFailed:
                    assert not target.exists(), seed
                finally:
                    client.close()
                if target.exists():
                    break
                if dice.random() < 0.2:  # the file changes on the server
                    server.content = content = dice.randbytes(len(content) + dice.randrange(-1, 2))
                    server.etag = server.etag and f'"{dice.random()}"'
                    server.modified = server.modified and OLD.replace("20 Nov", f"{next(days)} Nov")
                if not content:
                    break
            server.cut_after = None
            client = Client(outbound())
            done = await client.download(server.url, target, max_bytes=10_000_000)
            client.close()
        assert target.read_bytes() == content, seed
        assert done.sha256 == hashlib.sha256(content).hexdigest(), seed
    assert not [path for path in tmp_path.iterdir() if ".part" in path.name], seed


@pytest.mark.parametrize("heeds_if_range", [True, False])
@pytest.mark.parametrize("tag", [{"etag": '"v1"'}, {"etag": None, "modified": OLD}])
async def test_a_changed_file_is_downloaded_from_the_start(client, target, tag, heeds_if_range):
    async with FileServer(SONG, cut_after=150_000, **tag, heeds_if_range=heeds_if_range) as server:
        await failing(client, server, target)
        server.cut_after, server.content = None, OTHER
        server.etag = server.etag and '"v2"'
        server.modified = server.modified and OLD.replace("20 Nov", "19 Nov")
        await fetched(client, server, target, OTHER)
    assert len(server.heads) == (2 if heeds_if_range else 3)


async def test_a_partial_response_without_an_etag_restarts(client, target):
    unnamed = FileServer(SONG, cut_after=150_000, heeds_if_range=False, names_etag_in_parts=False)
    async with unnamed as server:
        await failing(client, server, target)
        server.cut_after, server.content, server.etag = None, OTHER, '"v2"'
        await fetched(client, server, target, OTHER)


async def test_mutant_without_that_check_two_files_would_become_one(client, target, monkeypatch):
    async with FileServer(SONG, cut_after=150_000, heeds_if_range=False) as server:
        await failing(client, server, target)
        server.cut_after, server.content, server.etag = None, OTHER, '"v2"'
        monkeypatch.setattr(download, "go_on", lambda *_: len(OTHER))
        await client.download(server.url, target, max_bytes=10_000_000)
    assert target.read_bytes() not in {SONG, OTHER}


async def test_a_file_of_another_size_restarts(client, target):
    async with FileServer(SONG, cut_after=150_000) as server:
        await failing(client, server, target)
        server.cut_after, server.content = None, OTHER[:-1]
        await fetched(client, server, target, OTHER[:-1])


async def test_a_server_that_ignores_ranges_is_read_from_the_start(client, target):
    async with FileServer(SONG, cut_after=150_000, heeds_range=False) as server:
        await failing(client, server, target)
        server.cut_after = None
        await fetched(client, server, target)
    assert server.sent[1] == len(SONG)


@pytest.mark.parametrize(
    "tag", [{"etag": None}, {"etag": 'W/"v1"'}, {"etag": None, "modified": "Sat, 21 Nov 2026 12:00:00 GMT"}]
)
async def test_a_file_without_a_strong_validator_restarts(client, target, tag):
    async with FileServer(SONG, cut_after=150_000, **tag) as server:
        await failing(client, server, target)
        server.cut_after = None
        await fetched(client, server, target)
    assert server.ranges == [None, None]


async def test_a_download_from_another_url_is_not_resumed(client, target):
    async with FileServer(SONG, cut_after=150_000) as server:
        await failing(client, server, target)
        server.cut_after = None
        server.url += "&file=2"
        await fetched(client, server, target)
    assert server.ranges == [None, None]


async def test_a_download_from_before_a_reboot_is_not_resumed(client, target, monkeypatch):
    async with FileServer(SONG, cut_after=150_000) as server:
        await failing(client, server, target)
        server.cut_after = None
        monkeypatch.setattr(download, "_boot", lambda: "another")
        await fetched(client, server, target)
    assert server.ranges == [None, None]


@pytest.mark.parametrize("note", [b"", b"{", b"[]", b"{}", b'{"url": 1}', b"\xff", b"null"])
async def test_a_corrupt_resume_file_restarts(client, target, note):
    async with FileServer(SONG, cut_after=150_000) as server:
        await failing(client, server, target)
        target.with_name("song.mp3.part.json").write_bytes(note)
        server.cut_after = None
        await fetched(client, server, target)
    assert server.ranges == [None, None]


@pytest.mark.parametrize("more", [b"", b"too much"])
async def test_a_complete_part_file_is_requested_again(client, target, monkeypatch, more):
    """The process was killed between the last byte and the renaming."""
    async with FileServer(SONG) as server:
        monkeypatch.setattr(
            download.PartialDownload, "complete", lambda _: (_ for _ in ()).throw(FetchFailed("killed"))
        )
        await failing(client, server, target, "killed")
        monkeypatch.undo()
        with target.with_name("song.mp3.part").open("ab") as stream:
            stream.write(more)
        await fetched(client, server, target)
    assert server.ranges == [None, f"{len(SONG) - 1}-"]


async def test_a_file_now_shorter_than_the_part_restarts(client, target):
    async with FileServer(SONG, cut_after=150_000, heeds_if_range=False) as server:
        await failing(client, server, target)
        server.cut_after, server.content, server.etag = None, OTHER[:1_000], '"v2"'
        await fetched(client, server, target, OTHER[:1_000])
    assert len(server.heads) == 3


def test_the_note_holds_no_credential(target):
    note = download.make_metadata("https://h/bot1:secret/x?token=hidden", validator='"e"', total=5, content_type="x")
    assert not any(word in json.dumps(repr(note)) for word in ("secret", "hidden", "bot1"))


# Killed.

KILLED = """
import asyncio, sys
from pathlib import Path
from boathook.http_client.client import Client
from tests.unit.receivers import outbound
print("begun", flush=True)
asyncio.run(Client(outbound()).download(sys.argv[1], Path(sys.argv[2]), max_bytes=10_000_000))
"""


async def test_a_killed_process_download_is_resumed_by_another(client, target):
    async with FileServer(SONG, piece=20_000, pause_s=0.05) as server:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            KILLED,
            server.url,
            str(target),
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )
        part_file = target.with_name("song.mp3.part")
        await eventually(lambda: part_file.exists() and part_file.stat().st_size > 60_000)
        process.send_signal(signal.SIGKILL)
        assert await process.wait() == -signal.SIGKILL
        assert not target.exists()
        came = part_file.stat().st_size
        server.pause_s = 0.0
        await fetched(client, server, target)
    assert server.ranges == [None, f"{came}-"]


# Too large, too slow, refused.


@pytest.mark.parametrize(
    "lie",
    [
        {},
        {"length": None},
        {"length": None, "is_endless": True},
        {"is_endless": True, "more_headers": ("content-length: 5000000",)},
    ],
)
async def test_a_too_large_file_is_discarded(client, target, lie):
    async with FileServer(SONG, **lie) as server:
        await failing(client, server, target, "the file is larger than 100,000 bytes", max_bytes=100_000)
        assert left(target) == []
        assert server.sent[0] < 30_000_000


async def test_a_too_large_resumed_file_is_discarded(client, target):
    async with FileServer(SONG, cut_after=150_000) as server:
        await failing(client, server, target)
        server.cut_after = None
        await failing(client, server, target, "larger than 200,000 bytes", max_bytes=200_000)
        assert left(target) == []


@pytest.mark.parametrize("told", [len(SONG) + 1, 10_000_000])
async def test_a_file_shorter_than_its_length_is_incomplete(client, target, told):
    async with FileServer(SONG, length=told) as server:
        await failing(client, server, target, max_bytes=20_000_000)
        assert not target.exists()


@pytest.mark.extended("waits for intervals and deadlines of the product")
async def test_a_stalled_download_fails_and_keeps_its_part(client, target, monkeypatch):
    monkeypatch.setattr(download, "STALL_S", 2)
    async with FileServer(SONG, piece=50, pause_s=0.2) as server:
        await failing(client, server, target, "(?i)too slow", timeout_s=60.0)
        assert left(target) == ["song.mp3.part", "song.mp3.part.json"]
        server.piece, server.pause_s = 65_536, 0.0
        await fetched(client, server, target)
        assert server.ranges[1] is not None


@pytest.mark.extended("waits for intervals and deadlines of the product")
async def test_mutant_without_a_slowest_rate_it_would_drip_on(client, target, monkeypatch):
    monkeypatch.setattr(download, "STALL_S", 0)
    async with FileServer(SONG, piece=50, pause_s=0.2) as server:
        await failing(client, server, target, "(?i)timed out", timeout_s=4.0)


async def test_a_file_takes_no_longer_than_it_may_in_all(client, target):
    async with FileServer(SONG, piece=5_000, pause_s=0.05) as server:
        await failing(client, server, target, "(?i)timed out", timeout_s=0.5)


@pytest.mark.parametrize("status", [204, 206, 301, 302, 307, 404, 416, 500])
async def test_only_200_is_a_file(client, target, status):
    async with FileServer(SONG, status=status, more_headers=("location: http://127.0.0.1:1/",)) as server:
        error = await failing(client, server, target, f"status {status}")
        assert error.status == status
        assert len(server.heads) == 1
        assert "hidden" not in str(error)
        assert "secret" not in str(error)
        assert not target.exists()


async def test_an_error_status_keeps_the_part_file(client, target):
    async with FileServer(SONG, cut_after=150_000) as server:
        await failing(client, server, target)
        server.status = 503
        await failing(client, server, target, "status 503")
        server.status = server.cut_after = None
        await fetched(client, server, target)
        assert server.ranges[2] is not None


async def test_a_compressed_file_is_refused(client, target):
    async with FileServer(SONG, more_headers=("content-encoding: gzip",)) as server:
        await failing(client, server, target, "compressed the file")


async def test_blocked_addresses_get_no_connection(target):
    client = Client(outbound(allow=[]))
    async with FileServer(SONG) as canary:
        await failing(client, canary, target, "this machine")
        assert canary.heads == []
    assert left(target) == []


async def test_mutant_without_the_guard_the_canary_is_reached(client, target, monkeypatch):
    monkeypatch.setattr(guard, "find_denial_on_host", lambda *_: None)
    async with FileServer(SONG) as canary:
        await fetched(Client(outbound(allow=[])), canary, target)
        assert len(canary.heads) == 1


# The disk.


async def test_a_place_that_cannot_be_written_is_named_without_its_folder(client, tmp_path):
    async with FileServer(SONG) as server:
        error = await failing(
            client, server, tmp_path / "none" / "song.mp3", "song.mp3 cannot be written: No such file"
        )
        assert str(tmp_path) not in str(error)
        (tmp_path / "x.part").symlink_to("/etc/passwd")
        await failing(client, server, tmp_path / "x", "x cannot be written: Too many levels of symbolic links")
        (tmp_path / "folder").mkdir()
        await failing(client, server, tmp_path / "folder", "folder cannot be written: Is a directory")


async def test_a_full_disk_is_reported_and_the_part_kept(client, target, monkeypatch):
    plain, room = download.PartialDownload.add, [100_000]

    def add(self, piece):
        room[0] -= len(piece)
        if room[0] < 0:
            with download.writing("song.mp3"):
                raise OSError(28, "No space left on device")
        plain(self, piece)

    async with FileServer(SONG) as server:
        with monkeypatch.context() as patch:
            patch.setattr(download.PartialDownload, "add", add)
            await failing(client, server, target, "song.mp3 cannot be written: No space left on device")
        await fetched(client, server, target)
        assert server.ranges[1] is not None


# Several at once.


async def test_two_downloads_to_one_place_exclude_each_other(client, target, monkeypatch):
    monkeypatch.setattr(download, "LOCK_S", 0.2)
    async with FileServer(SONG, piece=20_000, pause_s=0.05) as server:
        first = asyncio.create_task(client.download(server.url, target, max_bytes=10_000_000))
        await eventually(lambda: server.heads)
        await failing(Client(outbound()), server, target, "another download to song.mp3 is in progress")
        await first
    assert target.read_bytes() == SONG
    assert len(server.heads) == 1


async def test_the_second_waits_a_little_for_the_first(client, target):
    async with FileServer(SONG, piece=100_000, pause_s=0.05) as server:
        downloads = [client.download(server.url, target, max_bytes=10_000_000) for _ in range(2)]
        done = await asyncio.gather(*downloads)
    assert {one.sha256 for one in done} == {hashlib.sha256(SONG).hexdigest()}
    assert left(target) == ["song.mp3"]
    assert len(server.heads) == 2


async def test_many_downloads_end_and_keep_no_request_waiting(client, tmp_path):
    async with FileServer(SONG, piece=40_000, pause_s=0.05) as server:
        files = [client.download(server.url, tmp_path / f"{i}.mp3", max_bytes=10_000_000) for i in range(12)]
        tasks = [asyncio.create_task(file) for file in files]
        await eventually(lambda: len(server.heads) == 4)
        assert (await client.request("GET", server.url)).body == SONG
        await asyncio.gather(*tasks)
    assert all((tmp_path / f"{i}.mp3").read_bytes() == SONG for i in range(12))


async def test_a_cancelled_download_keeps_its_part(client, target):
    async with FileServer(SONG, piece=20_000, pause_s=0.1) as server:
        task = asyncio.create_task(client.download(server.url, target, max_bytes=10_000_000))
        await eventually(lambda: target.with_name("song.mp3.part").exists() and server.sent[0] > 60_000)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: client.in_progress == 0)
        assert not target.exists()
        server.pause_s = 0.0
        await fetched(client, server, target)
        assert server.ranges[1] is not None
