"""Every vector of tests/ssrf_vectors.txt, checked by the table and through the sender with canaries."""

import asyncio
import contextlib
import re
import socket
from pathlib import Path

import pytest

from boathook.domain.errors import FetchFailed
from boathook.http_client import guard, resolver
from boathook.http_client.addresses import find_denial
from boathook.http_client.client import Client
from boathook.http_client.messages import TransportFailure
from tests.unit.receivers import Receiver, open_sender, outbound

sent_both_ways = pytest.mark.usefixtures("way")
_FILE = Path(__file__).parent.parent / "ssrf_vectors.txt"
VECTORS = [line.split(" ", 2) for line in _FILE.read_text("utf-8").splitlines() if line and not line.startswith("#")]
NEVER_DIALLED = {TransportFailure.URL, TransportFailure.BLOCKED, TransportFailure.DNS}


def of_kind(*kinds, expected="deny"):
    return [value for wish, kind, value in VECTORS if kind in kinds and wish == expected]


def unescaped(text):
    return re.sub(r"\\(x[0-9a-f]{2}|u[0-9a-f]{4}|[rnt])", lambda m: m[0].encode().decode("unicode_escape"), text)


def test_the_vectors_are_many_and_well_formed():
    assert len(VECTORS) >= 200
    assert {(wish, kind) for wish, kind, _ in VECTORS} <= {
        *(("deny", "address"), ("pass", "address"), ("deny", "host"), ("deny", "url")),
    }


@pytest.mark.parametrize("address", of_kind("address"))
def test_the_table_denies(address):
    assert find_denial(address)


@pytest.mark.parametrize("address", of_kind("address", expected="pass"))
def test_the_table_allows(address):
    assert find_denial(address) is None


def written(address):
    return f"[{address.replace('%', '%25')}]" if ":" in address and address[0] != "[" else address


@sent_both_ways
async def test_the_sender_connects_to_none_of_them(monkeypatch):
    async with Receiver() as canary, Receiver(host="::1") as second, open_sender(allow=[]) as post:
        urls = [f"http://{written(address)}:{canary.port}/" for address in of_kind("address")]
        urls += [f"http://{host}:{port}/" for host in of_kind("host") for port in (canary.port, second.port)]
        urls += [unescaped(url).replace("PORT", str(canary.port)) for url in of_kind("url")]
        opened: list[object] = []
        monkeypatch.setattr(guard.ConnectGuard, "open_socket", _watched(guard.ConnectGuard.open_socket, opened))
        answers = await post.many(urls, timeout_s=20.0)
        dialled = [
            (a.request.url, a.failure, a.error)
            for a in answers
            if a.failure not in NEVER_DIALLED and "not found in time" not in a.error
        ]
        assert dialled == []
        assert opened == []
        assert (canary.accepted, second.accepted) == (0, 0)


async def test_the_client_connects_to_none_of_them(monkeypatch):
    opened: list[object] = []
    plain = guard.ConnectGuard.open_socket
    monkeypatch.setattr(guard.ConnectGuard, "open_socket", _watched(plain, opened))
    async with Receiver() as canary:
        urls = [f"http://{written(host)}:{canary.port}/" for host in of_kind("address", "host")]
        urls += [unescaped(url).replace("PORT", str(canary.port)) for url in of_kind("url")]
        with contextlib.closing(Client(outbound(allow=[]), max_concurrent=500)) as client:
            asked = [client.request("GET", url) for url in urls]
            ended = await asyncio.gather(*asked, return_exceptions=True)
        assert {type(one) for one in ended} == {FetchFailed}
        assert (opened, canary.accepted) == ([], 0)


def _watched(plain, opened):
    def open_socket(self, purpose, address):
        made = plain(self, purpose, address)
        if isinstance(made, socket.socket):
            opened.append(address)
        return made

    return open_socket


@sent_both_ways
async def test_mutant_without_the_guard_many_of_them_would_reach_the_canary(monkeypatch):
    monkeypatch.setattr(guard, "find_denial_on_host", lambda *_: None)
    monkeypatch.setattr(resolver, "find_denial_on_host", lambda *_: None)
    spellings = ["127.0.0.1", "0177.0.0.1", "0x7f.1", "2130706433", "127.1", "localhost", "0", "[::ffff:127.0.0.1]"]
    async with Receiver() as canary, open_sender(allow=[]) as post:
        answers = await post.many([f"http://{host}:{canary.port}/" for host in spellings])
        assert [answer.status for answer in answers] == [200] * len(spellings)


@sent_both_ways
@pytest.mark.parametrize("status", [301, 302, 303, 307, 308, 200])
@pytest.mark.parametrize(
    "where", ["http://127.0.0.1:PORT/", "//127.0.0.1:PORT/", "file:///etc/passwd", "gopher://127.0.0.1:PORT/_"]
)
async def test_no_response_redirects_the_sender(status, where):
    async with Receiver() as canary, open_sender() as post:
        target = where.replace("PORT", str(canary.port)).encode()
        script = b'HTTP/1.1 %d X\r\nlocation: %s\r\nrefresh: 0; url=%s\r\nalt-svc: h2="127.0.0.1:%d"\r\nlink: <%s>\r\ncontent-length: 0\r\n\r\n'
        async with Receiver((script % (status, target, target, canary.port, target),)) as receiver:
            for _ in range(2):
                assert (await post(receiver.url)).status == status
        assert canary.accepted == 0
