"""Signed links to stored files: of a running server for a folder, and of a bucket."""

import json
import time
from datetime import datetime
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest

from boathook_app_tools import file_links
from boathook_app_tools.s3 import S3, Bucket
from boathook_music.file_server import content_of
from boathook_music.links import links
from boathook_music.settings import MusicSettings
from tests.apps.music.server import MusicServer, S3Server, clip, unique


@pytest.fixture(scope="module")
def song(server: MusicServer, file_server) -> str:
    """The task of a song that is stored."""
    task = unique()
    server.register(task)
    server.send_callback(task, "complete", clips=[clip(f"{task}-1", file_server.url)])
    server.await_files(task, "stored", "stored")
    return task


def get(server: MusicServer, link: str, **headers: str) -> httpx.Response:
    return httpx.get(server.base + link, headers=headers, timeout=300)


def secret_of(server: MusicServer) -> bytes:
    return bytes(server.rows("select key from music.link_key")[0]["key"])


def test_a_link_gives_the_file_to_anyone_for_an_hour(server: MusicServer, file_server, song: str):
    audio, cover = server.api("GET", f"/tracks/{song}").json()["files"]
    content = content_of(f"{file_server.url}/files/{song}-1.mp3")
    response = get(server, audio["link"])
    assert (response.status_code, response.content) == (200, content)
    assert (response.headers["content-type"], response.headers["x-content-type-options"]) == ("audio/mpeg", "nosniff")
    assert get(server, cover["link"]).headers["content-type"] == "image/jpeg"
    part = get(server, audio["link"], range="bytes=100-199")
    assert (part.status_code, part.content) == (206, content[100:200])
    left_s = datetime.fromisoformat(audio["link_expires_at"]).timestamp() - time.time()
    assert 0 < left_s <= 3_600
    assert get(server, "/api/music/tracks").status_code == 401, "the other paths stay closed"
    shown = json.loads(server.cli("music", "tracks", "show", song).stdout)["files"][0]
    assert get(server, shown["link"]).status_code == 200
    listed = [row for row in server.listing("music", "files", "list") if row["task_id"] == song]
    assert all(get(server, row["link"]).is_success for row in listed)


def test_links_that_are_forged_changed_or_expired_are_refused(server: MusicServer, song: str):
    files = server.api("GET", f"/tracks/{song}").json()["files"]
    link, other = files[0]["link"], files[1]["link"]
    key, secret, now = files[0]["key"], secret_of(server), int(time.time())
    query = parse_qs(urlsplit(link).query)
    refused = [
        link.replace(query["signature"][0], "0" * 64),
        link.replace(query["expires"][0], str(int(query["expires"][0]) - 1)),
        f"{urlsplit(link).path}?{urlsplit(other).query}",
        urlsplit(link).path,
        f"{urlsplit(link).path}?expires=%C2%B2&signature=%C3%A9",
        links.sign(secret, key, now - 1),
        # Even a signature cannot extend the hour.
        links.sign(secret, key, now + 2 * file_links.MAX_S),
        links.sign(b"another secret", key, now + 600),
    ]
    assert [get(server, path).status_code for path in refused] == [403] * len(refused)
    assert get(server, links.sign(secret, key, now + 600)).status_code == 200
    outside = links.sign(secret, "../../boathook.toml", now + 600)
    assert get(server, outside).status_code in {403, 404}
    assert get(server, links.sign(secret, "tracks/absent/absent.mp3", now + 600)).status_code == 404


def test_a_deleted_song_has_no_link_that_works(server: MusicServer, file_server):
    task = unique()
    server.register(task)
    assert server.api("GET", f"/tracks/{task}").json()["files"] == []
    server.send_callback(task, "complete", clips=[clip(f"{task}-1", file_server.url, "/gone/")])
    failed = server.await_files(task, "failed", "failed")
    assert len(failed) == 2
    assert {file["link"] for file in server.api("GET", f"/tracks/{task}").json()["files"]} == {None}
    stored = unique()
    server.register(stored)
    server.send_callback(stored, "complete", clips=[clip(f"{stored}-1", file_server.url)])
    server.await_files(stored, "stored", "stored")
    link = server.api("GET", f"/tracks/{stored}").json()["files"][0]["link"]
    assert get(server, link).status_code == 200
    server.api("DELETE", f"/tracks/{stored}")
    assert get(server, link).status_code == 404


def test_a_new_key_ends_all_links(server: MusicServer, song: str):
    link = server.api("GET", f"/tracks/{song}").json()["files"][0]["link"]
    server.rows("delete from music.link_key")
    assert get(server, link).status_code == 403
    assert get(server, server.api("GET", f"/tracks/{song}").json()["files"][0]["link"]).status_code == 200


async def test_a_link_to_a_bucket_gives_its_object(s3_server: S3Server):
    s3_server.put("tracks/a b/c.mp3", b"ID3 song")
    bucket = Bucket(
        endpoint=s3_server.url,
        name=s3_server.bucket,
        region="us-east-1",
        **s3_server.KEYS,
    )
    link = await S3(bucket, http=None).link("tracks/a b/c.mp3", 3_600)
    async with httpx.AsyncClient(timeout=60) as client:
        assert (await client.get(link)).content == b"ID3 song"
    assert parse_qs(urlsplit(link).query)["X-Amz-Expires"] == ["3600"]
    assert s3_server.KEYS["secret_key"] not in link


@pytest.mark.parametrize("keys", [{"links_s": 3_601}, {"links_s": 0}, {"public_url": "music.example.com"}])
def test_links_last_an_hour_at_most(keys: dict):
    with pytest.raises(ValueError, match=next(iter(keys))):
        MusicSettings(provider="unsigned", **keys)
