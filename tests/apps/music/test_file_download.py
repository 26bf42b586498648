"""One file on its way from its address into a folder, by real sockets; each step may be done twice."""

import asyncio
import hashlib
from pathlib import Path

import pytest

from boathook.http_client.client import Client
from boathook_app_tools.downloads import Download, DownloadFailed, keep
from boathook_app_tools.storage import LocalFolder, StorageFailed
from boathook_music.file_server import content_of
from boathook_music.kinds import FORMATS, Kind
from tests.apps.music.server import unique
from tests.unit.receivers import outbound


@pytest.fixture
def http():
    client = Client(outbound())
    yield client
    client.close()


@pytest.fixture
def work(tmp_path, http, file_server) -> Download:
    name = unique("clip")
    return Download(
        url=f"{file_server.url}/files/{name}.mp3",
        stem=f"tracks/t/{name}",
        kind=Kind.AUDIO,
        formats=FORMATS[Kind.AUDIO],
        max_bytes=1_000_000,
        timeout_s=20,
        incoming=tmp_path / "incoming",
        http=http,
        storage=LocalFolder(tmp_path / "kept"),
    )


def there(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.rglob("*") if one.is_file())


async def test_a_file_that_is_kept_twice_is_there_once(work, tmp_path):
    first, again = await keep(work), await keep(work)
    content = content_of(work.url)
    assert first == again
    assert (first.size, first.sha256) == (len(content), hashlib.sha256(content).hexdigest())
    assert (tmp_path / "kept" / first.key).read_bytes() == content
    assert there(tmp_path) == [Path(first.key).name]


async def test_two_workers_at_one_file_leave_one_whole_file(work, tmp_path):
    ended = await asyncio.gather(*(keep(work) for _ in range(4)), return_exceptions=True)
    kept = [one for one in ended if not isinstance(one, BaseException)]
    assert kept
    assert all(isinstance(one, DownloadFailed) and not one.is_final for one in ended if isinstance(one, BaseException))
    assert (tmp_path / "kept" / kept[0].key).read_bytes() == content_of(work.url)
    await keep(work)
    assert there(tmp_path) == [Path(kept[0].key).name]


async def test_a_downloaded_file_is_not_downloaded_again_after_a_storage_error(
    work, file_server, tmp_path, monkeypatch
):
    async def put(self, path, key, **_):
        raise StorageFailed("no room", "NO_ROOM")

    with monkeypatch.context() as broken:
        broken.setattr(LocalFolder, "put", put)
        with pytest.raises(DownloadFailed, match="no room") as caught:
            await keep(work)
    assert (caught.value.code, caught.value.is_final) == ("NO_ROOM", False)
    await keep(work)
    assert [path for path, _ in file_server.asked if path in work.url] == [work.url.removeprefix(file_server.url)]


@pytest.mark.parametrize(
    ("folder", "code", "is_final", "dependency"),
    [
        ("/gone/", "URL_EXPIRED", True, "127.0.0.1"),
        ("/page/", "NOT_AUDIO", True, None),
        ("/broken/", "DOWNLOAD_FAILED", False, "127.0.0.1"),
    ],
)
async def test_a_download_failure_has_a_code_finality_and_host(work, tmp_path, folder, code, is_final, dependency):
    from dataclasses import replace

    with pytest.raises(DownloadFailed) as caught:
        await keep(replace(work, url=work.url.replace("/files/", folder)))
    assert (caught.value.code, caught.value.is_final, caught.value.dependency) == (code, is_final, dependency)
    assert there(tmp_path / "kept") == []


async def test_a_file_that_is_too_large_leaves_nothing(work, tmp_path):
    from dataclasses import replace

    with pytest.raises(DownloadFailed, match="larger than 1,000 bytes") as caught:
        await keep(replace(work, max_bytes=1_000))
    assert (caught.value.code, caught.value.is_final) == ("REFUSED", True)
    assert there(tmp_path) == []
