"""Both storages give the same guarantees; the bucket is moto's, on loopback, through the guarded client."""

import hashlib
import os
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from boathook.domain.errors import FetchFailed
from boathook.handlers.platform import HttpResponse
from boathook.http_client.client import Client
from boathook_app_tools.s3 import S3, Bucket
from boathook_app_tools.storage import LocalFolder, Storage, StorageFailed, Stored
from tests.apps.music.server import S3Server
from tests.unit.receivers import outbound


@pytest.fixture
def http() -> Iterator[Client]:
    client = Client(outbound())
    yield client
    client.close()


def bucket_of(s3_server: S3Server, **changes) -> Bucket:
    values = {"endpoint": s3_server.url, "name": s3_server.bucket, "region": "us-east-1", **s3_server.KEYS}
    return Bucket(**values | changes)


@pytest.fixture(params=["folder", "s3"])
def storage(request, tmp_path, http, s3_server) -> Storage:
    if request.param == "folder":
        return LocalFolder(tmp_path / "kept")
    for key in s3_server.listed():
        s3_server.client.delete_object(Bucket=s3_server.bucket, Key=key)
    return S3(bucket_of(s3_server), http)


async def put(storage: Storage, folder: Path, key: str, content: bytes) -> None:
    source = folder / "source"
    source.write_bytes(content)
    await storage.put(source, key, content_type="audio/mpeg", sha256=hashlib.sha256(content).hexdigest())


async def listed(storage: Storage, prefix: str, size: int = 1_000) -> list[list[Stored]]:
    return [list(page) async for page in storage.pages(prefix, size=size)]


async def test_objects_are_stored_replaced_and_deleted(storage, tmp_path):
    await put(storage, tmp_path, "tracks/t/c.mp3", b"abc")
    await put(storage, tmp_path, "tracks/t/c.mp3", b"abcdef")
    found = await storage.head("tracks/t/c.mp3")
    assert (found.key, found.size) == ("tracks/t/c.mp3", 6)
    assert abs((datetime.now(UTC) - found.modified_at).total_seconds()) < 60
    await storage.delete("tracks/t/c.mp3")
    await storage.delete("tracks/t/c.mp3")
    assert await storage.head("tracks/t/c.mp3") is None
    assert await listed(storage, "tracks/") == []


async def test_pages_hold_everything_once_in_the_order_of_keys(storage, tmp_path):
    keys = [
        "tracks/a-b/1.mp3",
        "tracks/a/1.mp3",
        "tracks/a/2.mp3",
        "tracks/a0/1.mp3",
        "tracks/b/1.jpg",
        "tracksy/x.mp3",
        "other/x.mp3",
    ]
    for key in keys:
        await put(storage, tmp_path, key, key.encode())
    pages = await listed(storage, "tracks/", size=2)
    assert [len(page) for page in pages] == [2, 2, 1]
    assert [one.key for page in pages for one in page] == sorted(key for key in keys if key.startswith("tracks/"))


async def test_empty_and_large_files_are_stored_completely(storage, tmp_path):
    large = os.urandom(3_000_001)
    await put(storage, tmp_path, "tracks/t/empty.mp3", b"")
    await put(storage, tmp_path, "tracks/t/large.mp3", large)
    assert [one.size for page in await listed(storage, "tracks/") for one in page] == [0, 3_000_001]


async def test_the_bucket_holds_the_very_bytes_and_their_type(s3_server, http, tmp_path):
    content = os.urandom(100_000)
    await put(S3(bucket_of(s3_server), http), tmp_path, "tracks/t/whole.mp3", content)
    assert s3_server.content("tracks/t/whole.mp3") == content
    head = s3_server.client.head_object(Bucket=s3_server.bucket, Key="tracks/t/whole.mp3")
    assert head["ContentType"] == "audio/mpeg"


# The folder


@pytest.mark.parametrize(
    "key", ["../x", "tracks/../../x", "/etc/x", "tracks//x", "tracks/./x", "tracks/x\x00", "", "tracks/", "a\\b", "é"]
)
async def test_no_key_leads_out_of_the_folder(key, tmp_path):
    folder = LocalFolder(tmp_path / "kept")
    with pytest.raises(StorageFailed):
        await put(folder, tmp_path, key, b"x")
    with pytest.raises(StorageFailed):
        await folder.delete(key)
    assert [one.name for one in tmp_path.iterdir()] == ["source"]


async def test_no_link_leads_out_of_the_folder(tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "c.mp3").write_bytes(b"x")
    (tmp_path / "kept" / "tracks").mkdir(parents=True)
    (tmp_path / "kept" / "tracks" / "t").symlink_to(outside)
    folder = LocalFolder(tmp_path / "kept")
    with pytest.raises(StorageFailed):
        await folder.delete("tracks/t/c.mp3")
    assert [one.key for page in await listed(folder, "tracks/") for one in page if one.key.endswith("mp3")] == []
    assert (outside / "c.mp3").exists()


async def test_a_partially_stored_file_is_not_listed(tmp_path):
    folder = LocalFolder(tmp_path / "kept")
    with pytest.raises(StorageFailed, match=r"tracks/t/c\.mp3 cannot be stored"):
        await folder.put(tmp_path / "absent", "tracks/t/c.mp3", content_type="audio/mpeg", sha256="")
    assert await listed(folder, "") == []
    (tmp_path / "kept" / "tracks" / "t" / ".storing-x").write_bytes(b"half")
    assert await listed(folder, "") == []


# The bucket


async def test_an_upload_is_signed_with_its_sha256(s3_server, http, tmp_path):
    seen = {}

    class Watching:
        async def request(self, method, url, **how):
            seen.update(how["headers"])
            return await http.request(method, url, **how)

    await put(S3(bucket_of(s3_server), Watching()), tmp_path, "tracks/t/c.mp3", b"abc")
    assert seen["x-amz-content-sha256"] == hashlib.sha256(b"abc").hexdigest()


async def test_the_environment_of_amazons_tools_leads_no_request_elsewhere(s3_server, http, tmp_path, monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody-elses")
    seen = []

    class Watching:
        async def request(self, method, url, **how):
            seen.append((url, how["headers"]["authorization"]))
            return await http.request(method, url, **how)

    storage = S3(bucket_of(s3_server), Watching())
    assert await storage.head("tracks/t/absent.mp3") is None
    ((url, proof),) = seen
    assert url.startswith(s3_server.url)
    assert s3_server.KEYS["key_id"] in proof
    assert s3_server.KEYS["secret_key"] not in repr(bucket_of(s3_server))


async def test_a_bucket_that_is_not_there_is_named(s3_server, http, tmp_path):
    with pytest.raises(StorageFailed, match="status 404, NoSuchBucket") as caught:
        await put(S3(bucket_of(s3_server, name="absent"), http), tmp_path, "tracks/t/c.mp3", b"abc")
    assert caught.value.code == "NoSuchBucket"


class ScriptedHttp:
    """An HTTP client with scripted answers."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = 0

    async def request(self, method, url, **how):
        self.asked += 1
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


def scripted_storage(s3_server, *answers, monkeypatch):
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _seconds: None)
    http = ScriptedHttp(*answers)
    return S3(bucket_of(s3_server), http), http


BUSY = HttpResponse(503, {}, b"<Error><Code>SlowDown</Code><Message>please</Message></Error>")


async def test_a_busy_service_is_retried_a_limited_number_of_times(s3_server, monkeypatch):
    storage, http = scripted_storage(
        s3_server, BUSY, FetchFailed("broke off"), HttpResponse(204, {}, b""), monkeypatch=monkeypatch
    )
    await storage.delete("tracks/t/c.mp3")
    assert http.asked == 3
    storage, http = scripted_storage(s3_server, BUSY, BUSY, BUSY, BUSY, monkeypatch=monkeypatch)
    with pytest.raises(StorageFailed) as caught:
        await storage.delete("tracks/t/c.mp3")
    assert (caught.value.code, http.asked) == ("SlowDown", 3)


async def test_a_refusal_is_not_retried(s3_server, monkeypatch):
    refusal = HttpResponse(403, {}, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
    storage, http = scripted_storage(s3_server, refusal, monkeypatch=monkeypatch)
    with pytest.raises(StorageFailed):
        await storage.delete("tracks/t/c.mp3")
    assert http.asked == 1


LAUGHS = "".join(f'<!ENTITY a{level} "{f"&a{level - 1};" * 10}">' for level in range(1, 12))
"""Entities that expand to a hundred billion letters."""


@pytest.mark.parametrize(
    "body",
    [
        f'<!DOCTYPE x [<!ENTITY a0 "a">{LAUGHS}]><ListBucketResult><Name>&a11;</Name></ListBucketResult>'.encode(),
        b'<!DOCTYPE x [<!ENTITY a "aaaa">]><ListBucketResult>&a;</ListBucketResult>',
        b"<html>",
        b"",
        b"\xff\xfe",
        b"<ListBucketResult><Contents><Key>tracks/a/b.mp3</Key></Contents></ListBucketResult>",
    ],
)
async def test_an_inconsistent_listing_is_an_error(body, s3_server, monkeypatch):
    storage, _ = scripted_storage(s3_server, *[HttpResponse(200, {}, body)] * 3, monkeypatch=monkeypatch)
    with pytest.raises(StorageFailed):
        await listed(storage, "tracks/")


async def test_no_secret_is_in_an_error(s3_server, monkeypatch):
    failure = FetchFailed("http://127.0.0.1: no answer came")
    storage, _ = scripted_storage(s3_server, failure, failure, failure, monkeypatch=monkeypatch)
    with pytest.raises(StorageFailed) as caught:
        await storage.delete("tracks/t/c.mp3")
    assert s3_server.KEYS["secret_key"] not in str(caught.value)
    assert caught.value.code == "STORAGE_UNREACHABLE"
