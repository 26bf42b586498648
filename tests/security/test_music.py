"""Attacks on the music app: it reports errors and loses nothing."""

import json
from dataclasses import replace

import pytest

from boathook.handlers.platform import HttpResponse
from boathook.http_client.client import Client
from boathook_app_tools.downloads import Download, DownloadFailed, keep
from boathook_app_tools.s3 import S3, Bucket
from boathook_app_tools.storage import LocalFolder, StorageFailed
from boathook_music.callbacks import count_clips
from boathook_music.kinds import FORMATS, Kind
from tests.apps.music.conftest import file_server, server
from tests.apps.music.server import unique
from tests.support import until
from tests.unit.receivers import outbound

__all__ = ["file_server", "server"]

LISTING = "<ListBucketResult><IsTruncated>{more}</IsTruncated><NextContinuationToken>x</NextContinuationToken>{rest}"
BUCKET = Bucket(endpoint="http://127.0.0.1:9", name="b", region="us-east-1", key_id="id", secret_key="secret")


class FixedResponse:
    """An HTTP client with a fixed response."""

    def __init__(self, answer: HttpResponse) -> None:
        self._answer = answer
        self.asked = 0

    async def request(self, *_: object, **__: object) -> HttpResponse:
        self.asked += 1
        assert self.asked < 50, "it goes on for ever"
        return self._answer


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"<html><body>Welcome to our network</body></html>", "BAD_ANSWER"),
        (b"<Error><Code>SlowDown</Code></Error>", "SlowDown"),
        ((LISTING.format(more="true", rest="") + "</ListBucketResult>").encode(), "BAD_ANSWER"),
    ],
)
async def test_an_invalid_listing_is_not_an_empty_bucket(body: bytes, code: str, monkeypatch):
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _seconds: None)
    with pytest.raises(StorageFailed) as caught:
        async for _ in S3(BUCKET, FixedResponse(HttpResponse(200, {}, body))).pages("tracks/"):
            pass
    assert caught.value.code == code


async def test_a_listing_without_a_zone_is_in_utc():
    one = "<Contents><Key>tracks/a/b.mp3</Key><Size>1</Size><LastModified>2026-01-01T00:00:00</LastModified></Contents>"
    body = (LISTING.format(more="false", rest=one) + "</ListBucketResult>").encode()
    pages = [page async for page in S3(BUCKET, FixedResponse(HttpResponse(200, {}, body))).pages("tracks/")]
    assert pages[0][0].modified_at.isoformat() == "2026-01-01T00:00:00+00:00"


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"last-modified": "yesterday", "content-length": "1"},
        {"last-modified": "Sat, 21 Nov 2026 16:00:00 GMT", "content-length": "many"},
    ],
)
async def test_invalid_object_metadata_is_a_storage_error(headers: dict[str, str]):
    with pytest.raises(StorageFailed) as caught:
        await S3(BUCKET, FixedResponse(HttpResponse(200, headers, b""))).head("tracks/a/b.mp3")
    assert caught.value.code == "BAD_ANSWER"


async def test_an_unusable_download_folder_is_a_retryable_error(file_server, tmp_path):
    (tmp_path / "file").write_text("in the way")
    client = Client(outbound())
    work = Download(
        url=f"{file_server.url}/files/{unique()}.mp3",
        stem="tracks/t/c",
        kind=Kind.AUDIO,
        formats=FORMATS[Kind.AUDIO],
        max_bytes=1_000_000,
        timeout_s=20,
        incoming=tmp_path / "file" / "incoming",
        http=client,
        storage=LocalFolder(tmp_path / "kept"),
    )
    try:
        with pytest.raises(DownloadFailed, match="cannot be fetched to") as caught:
            await keep(work)
        assert (caught.value.code, caught.value.is_final) == ("INCOMING_FAILED", False)
        await keep(replace(work, incoming=tmp_path / "incoming"))
    finally:
        client.close()


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("task_id", " around "),
        ("task_id", "line\N{LINE SEPARATOR}break"),
        ("task_id", "nul\x00"),
        ("title", "nul\x00"),
        ("title", "x" * 501),
        ("owner", "x" * 201),
        ("prompt", "nul\x00"),
        ("prompt", {"nul\x00": 1}),
        ("prompt", [{"deep": "\\\\\x00"}]),
    ],
)
def test_an_invalid_track_is_refused_by_its_field(server, field: str, value: object):
    body = {"task_id": unique()} | {field: value}
    response = server.api("POST", "/tracks", content=json.dumps(body).encode())
    assert response.status_code == 400, response.text
    assert response.json()["error"]["field"] == field


def test_backslashes_are_no_nul(server):
    body = {"task_id": unique(), "prompt": "\\u0000"}
    response = server.api("POST", "/tracks", content=json.dumps(body).encode())
    assert (response.status_code, response.json()["prompt"]) == (201, "\\u0000")


@pytest.mark.parametrize(
    ("path", "status"), [("/tracks/a%00", 400), ("/tracks?owner=%00", 400), ("/tracks?after=%00", 400)]
)
def test_a_nul_in_a_path_is_no_server_error(server, path: str, status: int):
    assert server.api("GET", path).status_code == status


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (("tracks", "add", "x", "--prompt", '{"a": "\\u0000"}'), "prompt"),
        (("tracks", "add", "x", "--prompt", "NaN"), "prompt"),
        (("tracks", "add", "x", "--prompt", "[" * 9_000), "prompt"),
        (("tracks", "add", "x", "--title", "x" * 501), "title"),
        (("tracks", "list", "--limit", "99999999999999999999"), "--limit"),
        (("files", "list", "--state", "lost"), "--state"),
        (("deliveries", "cleanup", "--days", "1e300"), "--days"),
    ],
)
def test_commands_name_wrong_arguments(server, words: tuple[str, ...], named: str):
    ended = server.cli("music", *words, check=False)
    assert ended.returncode != 0
    assert "Traceback" not in ended.stderr
    assert named in ended.stderr


def test_clips_beyond_the_limit_are_left_out_and_logged(server):
    clips = [{"id": f"clip{number}"} for number in range(25)]
    server.send_callback(unique(), "complete", clips=clips, answer=202)
    until(lambda: "music_clips_left_out" in server.log())


def test_clips_are_counted_in_every_shape():
    clips = [{"id": "a"}, {"id": "b"}, {"id": "b"}, 17]
    bodies: tuple[object, ...] = (
        {"data": {"task_id": "t", "data": clips}},
        {"data": clips},
        {"clips": clips},
        {"data": None},
        [],
    )
    assert [count_clips(body) for body in bodies] == [2, 2, 2, 0, 0]
