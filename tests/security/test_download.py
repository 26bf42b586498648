"""Downloads from hostile servers and beside hostile files end with the right file or FetchFailed."""

import asyncio
import json
import os

import pytest
from msgspec.structs import asdict

from boathook.domain.errors import FetchFailed
from boathook.http_client import download
from boathook.http_client.client import Client
from tests.unit.receivers import outbound

LENGTH = "Content-Length: 5"


@pytest.fixture
def client():
    one = Client(outbound())
    yield one
    one.close()


class Server:
    """Answers every request with the same bytes."""

    def __init__(self, *head: str) -> None:
        self._answer = "\r\n".join(("HTTP/1.1 200 OK", *head, "", "hello")).encode("latin-1")

    async def __aenter__(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/f"

    async def __aexit__(self, *_: object) -> None:
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(self._answer)
        await writer.drain()
        writer.close()


async def fetch(client: Client, url: str, to, **more) -> bytes:
    await asyncio.wait_for(client.download(url, to, max_bytes=100, **more), 300)
    return to.read_bytes()


@pytest.mark.parametrize(
    "dates",
    [
        ("Last-Modified: Mon, 01 Jan 99999999999999999999 00:00:00 GMT", "Date: Mon, 01 Jan 2020 00:00:00 GMT"),
        ("Last-Modified: Mon, 01 Jan 0000 00:00:00 -9999", "Date: Mon, 01 Jan 9999 00:00:00 +9999"),
        (f"Last-Modified: {'9' * 5_000}", "Date: Mon, 01 Jan 2020 00:00:00 GMT"),
        ("Last-Modified: ", "Date: ,"),
    ],
)
async def test_invalid_dates_are_tolerated(client, tmp_path, dates):
    async with Server(LENGTH, *dates) as url:
        assert await fetch(client, url, tmp_path / "f") == b"hello"


@pytest.mark.parametrize("length", ["99999999999999999999", "9" * 5_000])
async def test_a_huge_content_length_is_refused(client, tmp_path, length):
    async with Server(f"Content-Length: {length}") as url:
        with pytest.raises(FetchFailed, match="larger than 100 bytes"):
            await fetch(client, url, tmp_path / "f")
    assert not (tmp_path / "f").exists()


@pytest.mark.parametrize(
    "wrong",
    [
        {"total": "5"},
        {"total": []},
        {"validator": 5},
        {"validator": ["x"]},
        {"validator": '"a"\r\nX-Injected: y'},
        {"validator": "\ud800"},
        {"content_type": {}},
    ],
)
async def test_a_poisoned_resume_file_restarts(client, tmp_path, wrong):
    async with Server(LENGTH, 'ETag: "a"') as url:
        note = asdict(download.make_metadata(url, validator='"a"', total=None, content_type=""))
        (tmp_path / "f.part").write_bytes(b"evil")
        (tmp_path / "f.part.json").write_text(json.dumps({**note, **wrong}))
        assert await fetch(client, url, tmp_path / "f") == b"hello"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


async def test_a_deeply_nested_resume_file_restarts(client, tmp_path):
    (tmp_path / "f.part.json").write_text("[" * 200_000)
    async with Server(LENGTH) as url:
        assert await fetch(client, url, tmp_path / "f") == b"hello"


async def test_a_symlinked_resume_file_is_not_followed(client, tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "f.part.json").symlink_to(tmp_path / "precious")
    async with Server(LENGTH) as url:
        assert await fetch(client, url, tmp_path / "f") == b"hello"
    assert (tmp_path / "precious").read_text() == "mine"


async def test_a_fifo_as_the_resume_file_does_not_block(client, tmp_path):
    os.mkfifo(tmp_path / "f.part.json")
    async with Server(LENGTH) as url:
        assert await fetch(client, url, tmp_path / "f") == b"hello"


@pytest.mark.parametrize("name", ["a\0b", "a\ud800"])
async def test_an_invalid_file_name_is_reported(client, tmp_path, name):
    async with Server(LENGTH) as url:
        with pytest.raises(FetchFailed, match="cannot be written"):
            await fetch(client, url, tmp_path / name)
