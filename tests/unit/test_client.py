"""The HTTP client of apps over real sockets: requests as they are sent, and what it neither sends nor accepts."""

import asyncio
import hashlib
import hmac
import logging
import random
import socket
import time

import pycurl
import pytest

from boathook.domain.errors import ConfigError, FetchFailed
from boathook.http_client import client as module
from boathook.http_client import guard, resolver, response, transfer
from boathook.http_client.client import Client
from boathook.http_client.resolver import Resolution
from tests.support import eventually
from tests.unit.file_server import FileServer
from tests.unit.receivers import OK, Authority, Receiver, outbound

MAX_PIECE = 16_384
"""The most bytes that libcurl hands over at once."""


@pytest.fixture
def client():
    one = Client(outbound())
    yield one
    one.close()


async def refused(client, words, method="GET", url="http://127.0.0.1:9999/", **more):
    with pytest.raises(FetchFailed, match=words) as caught:
        await client.request(method, url, **more)
    return caught.value


# Requests as they are sent.


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE", "PATCH"])
@pytest.mark.parametrize("body", [b"", b"hello", b"\x00\xff" * 100_000])
async def test_every_method_is_sent_with_its_body_and_headers(client, method, body):
    async with Receiver() as receiver:
        answer = await client.request(method, receiver.url, headers={"X-A": "b", "X-Empty": ""}, body=body)
    assert (answer.status, answer.body, answer.is_ok) == (200, b"ok", True)
    sent = receiver.requests[0]
    assert sent.lines[0] == f"{method} /hook HTTP/1.1"
    assert sent.body == body
    assert sent.headers["x-a"] == "b"
    assert "X-Empty:" in sent.lines
    assert sent.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert sent.headers["accept-encoding"] == "identity"
    assert sent.headers["user-agent"] == "boathook"
    assert {"expect", "transfer-encoding", "content-type", "authorization", "cookie"}.isdisjoint(sent.headers)
    has_length = bool(body) or method in {"POST", "PUT", "PATCH"}
    assert sent.headers.get("content-length") == (str(len(body)) if has_length else None)


async def test_head_asks_for_no_body(client):
    async with Receiver((b'HTTP/1.1 200 OK\r\ncontent-length: 5000000000\r\netag: "x"\r\n\r\n',)) as receiver:
        answer = await client.request("HEAD", receiver.url)
    assert (answer.status, answer.body, answer.headers["etag"]) == (200, b"", '"x"')
    await refused(client, "HEAD request has no body", "HEAD", body=b"x")


@pytest.mark.parametrize("method", ["PUT", "POST"])
@pytest.mark.parametrize("size", [0, 1, 3_000_000])
async def test_a_file_is_streamed_from_disk(client, tmp_path, method, size):
    path = tmp_path / "song.mp3"
    path.write_bytes(random.Random(size).randbytes(size))
    async with Receiver() as receiver:
        answer = await client.request(method, receiver.url, body=path, headers={"Content-Type": "audio/mpeg"})
    sent = receiver.requests[0]
    assert answer.is_ok
    assert sent.body == path.read_bytes()
    assert sent.lines[0].startswith(method)
    assert (sent.headers["content-length"], sent.headers["content-type"]) == (str(size), "audio/mpeg")
    assert "transfer-encoding" not in sent.headers


async def test_an_unreadable_or_shrinking_file_fails_the_request(client, tmp_path, monkeypatch):
    path = tmp_path / "song.mp3"
    async with Receiver() as receiver:
        error = await refused(client, "song.mp3 cannot be read: No such file", "PUT", receiver.url, body=path)
        assert str(tmp_path) not in str(error)
        assert receiver.accepted == 0
        path.write_bytes(b"x" * 1_000)
        plain = transfer.SinkTransfer.file_options

        def shorten(*args):
            options = plain(*args)
            path.write_bytes(b"x" * 10)
            return options

        monkeypatch.setattr(transfer.SinkTransfer, "file_options", shorten)
        await refused(client, "has become shorter", "PUT", receiver.url, body=path, timeout_s=10.0)
        await eventually(lambda: receiver.accepted == 1)
        assert receiver.requests == []


async def test_the_response_is_returned_unchanged_for_any_status(client):
    for status in (204, 302, 401, 404, 429, 500):
        head = f"HTTP/1.1 {status} X\r\nlocation: http://127.0.0.1:1/\r\nX-Twice: a\r\nx-twice: b\r\n".encode()
        body = b"" if status == 204 else b"content-length: 3\r\n\r\nwhy"
        async with Receiver((head + (body or b"\r\n"),)) as receiver:
            answer = await client.request("POST", receiver.url)
        assert (answer.status, answer.is_ok) == (status, status == 204)
        assert answer.headers["x-twice"] == "a, b"
        assert answer.body == (b"" if status == 204 else b"why")
        assert len(receiver.requests) == 1  # redirects are not followed


async def test_interim_responses_are_skipped(client):
    async with Receiver((b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK,)) as receiver:
        assert (await client.request("GET", receiver.url)).body == b"ok"
    async with Receiver((b"HTTP/1.1 103 Early Hints\r\n\r\n" * 20 + OK,)) as receiver:
        await refused(client, "interim", url=receiver.url)


async def test_a_compressed_response_is_not_decompressed(client):
    async with Receiver(
        (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n\x1f\x8b",)
    ) as receiver:
        assert (await client.request("GET", receiver.url)).body == b"\x1f\x8b"


async def test_user_and_password_of_the_address_become_a_header(client):
    async with Receiver() as receiver:
        await client.request("GET", receiver.url.replace("//", "//me:pass@"))
        await client.request("GET", receiver.url.replace("//", "//me:pass@"), headers={"Authorization": "Bearer x"})
    assert [sent.headers["authorization"] for sent in receiver.requests] == ["Basic bWU6cGFzcw==", "Bearer x"]


async def test_https_certificates_are_verified(tmp_path):
    authority = Authority(tmp_path)
    trusting, doubting = Client(outbound(ca_file=authority.file)), Client(outbound())
    async with Receiver(context=authority.context()) as receiver:
        assert (await trusting.request("GET", receiver.url)).is_ok
        await refused(doubting, "(?i)certificate", url=receiver.url)
    assert len(receiver.requests) == 1


# What is not sent.


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({"X-A": "b\r\nHost: evil"}, "the header X-A contains a line break"),
        ({"X-A": "b\nc"}, "the header X-A contains a line break"),
        ({"X-A": "b\x00"}, "the header X-A contains"),
        ({"X-A\r\nX-B": "c"}, "a header name"),
        ({"X A": "c"}, "a header name"),
        ({"": "c"}, "a header name"),
        ({"X:A": "c"}, "a header name"),
        ({"Host": "evil.test"}, "the header Host is set by boathook"),
        ({"content-length": "5"}, "the header content-length is set by boathook"),
        ({"Transfer-Encoding": "chunked"}, "the header Transfer-Encoding is set by boathook"),
        ({"Connection": "upgrade"}, "the header Connection is set by boathook"),
        ({"Proxy-Authorization": "x"}, "the header Proxy-Authorization is set by boathook"),
    ],
)
async def test_unsafe_headers_are_refused(client, headers, words):
    async with Receiver() as receiver:
        await refused(client, words, url=receiver.url, headers=headers)
    assert receiver.accepted == 0


@pytest.mark.parametrize("method", ["get", "CONNECT", "TRACE", "OPTIONS", "", "GET / HTTP/1.1\r\nx: y"])
async def test_other_methods_are_refused(client, method):
    async with Receiver() as receiver:
        await refused(client, "is not one of", method, receiver.url)
    assert receiver.accepted == 0


@pytest.mark.parametrize(
    "url",
    ["ftp://127.0.0.1:PORT/", "file:///etc/passwd", "127.0.0.1:PORT", "", "http://a@b@127.0.0.1:PORT/", "http://127.0.0.1:22/",
     "http://127.0.0.1:PORT/\r\nx: y", "http://127.0.0.1:PORT/ x", "http://127.0.0.1:PORT\\@x/", "gopher://127.0.0.1:PORT/x"],
)  # fmt: skip
async def test_invalid_urls_are_refused(client, url):
    async with Receiver() as receiver:
        await refused(client, ".", url=url.replace("PORT", str(receiver.port)))
    assert receiver.accepted == 0


async def test_https_and_ports_can_be_enforced():
    await refused(Client(outbound(require_https=True)), "must start with https", url="http://127.0.0.1:8080/")
    await refused(Client(outbound(ports=[443])), "not in outbound.ports", url="https://127.0.0.1:8443/")


async def test_blocked_addresses_get_no_connection():
    client = Client(outbound(allow=[]))
    async with Receiver() as canary:
        for host in (
            "127.0.0.1",
            "localhost",
            "[::1]",
            "[::ffff:127.0.0.1]",
            "0.0.0.0",
            "127.1",
            "2130706433",
            "0x7f000001",
        ):
            await refused(
                client,
                "blocked address|not dialled|[Nn]ot found|cannot be found|resolve",
                url=f"http://{host}:{canary.port}/",
            )
    assert canary.accepted == 0


async def test_mutant_without_the_guard_the_canary_is_reached(monkeypatch):
    monkeypatch.setattr(guard, "find_denial_on_host", lambda *_: None)
    async with Receiver() as canary:
        await Client(outbound(allow=[])).request("GET", canary.url)
    assert canary.accepted == 1


async def test_a_name_with_one_blocked_address_is_not_connected(monkeypatch):
    found = [(2, 1, 6, "", (address, 0)) for address in ("127.0.0.1", "10.0.0.1")]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    async with Receiver() as canary:
        await refused(Client(outbound()), "private", url=f"http://sender.test:{canary.port}/")
        assert canary.accepted == 0
        found.pop()
        assert (await Client(outbound()).request("GET", f"http://sender.test:{canary.port}/x")).is_ok
        assert canary.requests[0].headers["host"] == f"sender.test:{canary.port}"


async def test_the_checked_address_is_the_one_connected(monkeypatch):
    """A name that changes after the check is still connected at the checked address."""
    monkeypatch.setattr(resolver, "look_up", lambda *_: Resolution(("127.0.0.1",)))
    async with Receiver() as receiver:
        assert (await Client(outbound()).request("GET", f"http://nowhere.invalid:{receiver.port}/")).is_ok


async def test_a_name_that_is_not_found_in_time_fails(monkeypatch):
    def find_slowly(*_, **__) -> list:
        time.sleep(1.0)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", find_slowly)
    await refused(
        Client(outbound(connect_timeout_s=0.1)), "sender.test was not found in time", url="http://sender.test/"
    )


async def test_proxy_environment_variables_are_ignored(client, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with Receiver() as receiver:
        assert (await client.request("GET", receiver.url)).is_ok


async def test_the_configured_proxy_connects_to_the_checked_address():
    async with Receiver((b"HTTP/1.1 403 No\r\ncontent-length: 0\r\n\r\n",)) as proxy:
        client = Client(outbound(proxy=f"http://127.0.0.1:{proxy.port}"))
        await refused(client, "403|CONNECT", url="http://127.0.0.1:8080/bot123:secret/x")
        assert proxy.requests[0].lines[0] == "CONNECT 127.0.0.1:8080 HTTP/1.1"
        await refused(client, "blocked address: private", url="http://10.1.2.3:8080/")
        assert len(proxy.requests) == 1
    with pytest.raises(ConfigError, match=r"outbound\.proxy"):
        Client(outbound(proxy="env:PROXY"))


# Responses that are rejected.


async def test_a_too_large_response_is_cut_off(client):
    async with Receiver((b"HTTP/1.1 200 OK\r\ncontent-length: 101\r\n\r\n" + b"x" * 101,)) as receiver:
        error = await refused(client, "larger than 100 bytes", url=receiver.url, max_bytes=100)
        assert error.status == 200
        assert len((await client.request("GET", receiver.url, max_bytes=101)).body) == 101
    async with FileServer(is_endless=True) as server:
        await refused(client, "larger than 1,048,576 bytes", url=server.url)
        assert server.sent[0] < 30_000_000
    async with Receiver((b"HTTP/1.1 200 OK\r\n" + (b"x: " + b"y" * 1_000 + b"\r\n") * 100 + b"\r\n",)) as receiver:
        await refused(client, "headers", url=receiver.url)


@pytest.mark.parametrize(
    "answer",
    [b"", b"hello\r\n\r\n", b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nshort", b"HTTP/1.1 200 OK\r\ncont", b"HTTP/0.9\r\n\r\n",
     b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nhello\r\n"],
)  # fmt: skip
async def test_truncated_or_invalid_http_is_a_failure(client, answer):
    async with Receiver((answer, "close")) as receiver:
        await refused(client, r"^http://127\.0\.0\.1:\d+: ", url=receiver.url)


async def test_a_slow_response_times_out(client):
    async with Receiver((3_600.0,)) as receiver:
        await refused(client, "(?i)timed out", url=receiver.url, timeout_s=0.3)


async def test_errors_and_logs_contain_no_url_secrets(client, caplog, capfd):
    caplog.set_level(logging.DEBUG)
    hidden = "/bot123456:AAsecretAA/sendMessage?token=hidden"
    async with Receiver(("reset",)) as receiver:
        bad = (
            f"http://127.0.0.1:{receiver.port}{hidden}", f"http://127.0.0.1:1024{hidden}", f"http://me:pw1@127.0.0.1:22{hidden}",
            f"http://nowhere.invalid{hidden}", f"ftp://x{hidden}", f"http://10.0.0.1{hidden}", f"http://[::1]:{receiver.port}{hidden}",
        )  # fmt: skip
        for url in bad:
            with pytest.raises(FetchFailed) as caught:
                await client.request("POST", url, headers={"Authorization": "Bearer AAsecretAA"}, timeout_s=5)
            text = f"{caught.value!r} {caught.value} {caught.value.__cause__} {caught.value.__context__!r}"
            for secret in ("AAsecretAA", "hidden", "pw1", "bot123456"):
                assert secret not in text
    assert "AAsecretAA" not in caplog.text + "".join(capfd.readouterr())


# Many at once.


async def test_many_requests_at_once_are_all_answered(client):
    async with Receiver() as receiver:
        answers = await asyncio.gather(*(client.request("POST", receiver.url, body=b"%d" % i) for i in range(300)))
    assert {answer.status for answer in answers} == {200}
    assert sorted(int(sent.body) for sent in receiver.requests) == list(range(300))


async def test_concurrency_is_limited(client):
    async with Receiver((0.3, OK)) as receiver:
        tasks = [
            asyncio.create_task(client.request("GET", receiver.url)) for _ in range(2 * module.MAX_CONCURRENT_REQUESTS)
        ]
        await eventually(lambda: receiver.accepted == module.MAX_CONCURRENT_REQUESTS)
        assert receiver.accepted == module.MAX_CONCURRENT_REQUESTS
        await asyncio.gather(*tasks)
    assert receiver.accepted == 2 * module.MAX_CONCURRENT_REQUESTS


async def test_requests_beyond_the_queue_limit_are_refused(client, monkeypatch):
    monkeypatch.setattr(module, "MAX_PENDING", 3)
    async with Receiver((0.2, OK)) as receiver:
        tasks = [client.request("GET", receiver.url) for _ in range(5)]
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert sum(isinstance(one, FetchFailed) and "3 other requests" in str(one) for one in ended) == 2
        assert (await client.request("GET", receiver.url)).is_ok


async def test_cancelling_the_caller_aborts_the_request(client):
    async with Receiver((30.0, OK)) as receiver:
        tasks = [
            asyncio.create_task(client.request("GET", receiver.url)) for _ in range(module.MAX_CONCURRENT_REQUESTS + 1)
        ]
        await eventually(lambda: len(receiver.requests) == module.MAX_CONCURRENT_REQUESTS)
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, asyncio.CancelledError) for one in ended)
        await eventually(lambda: client.in_progress == 0)
        assert (
            len(receiver.requests) == module.MAX_CONCURRENT_REQUESTS
        )  # the one that waited for its turn was never sent


async def test_a_closed_client_fails_pending_and_new_requests(client):
    async with Receiver((30.0, OK)) as receiver:
        tasks = [
            asyncio.create_task(client.request("GET", receiver.url)) for _ in range(module.MAX_CONCURRENT_REQUESTS + 3)
        ]
        await eventually(lambda: len(receiver.requests) == module.MAX_CONCURRENT_REQUESTS)
        client.close()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(one, FetchFailed) for one in ended), ended
        await refused(client, "shutting down", url=receiver.url)
        client.close()


def test_works_across_consecutive_event_loops(client):
    async def ask():
        async with Receiver() as receiver:
            return await client.request("GET", receiver.url)

    assert asyncio.run(ask()).is_ok
    assert asyncio.run(ask()).is_ok


# As apps use it.


async def test_telegram_429_returns_its_retry_after(client):
    answer = b'{"ok":false,"error_code":429,"parameters":{"retry_after":3}}'
    head = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 3\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    async with Receiver((head % len(answer) + answer,)) as receiver:
        got = await client.request(
            "POST", f"http://127.0.0.1:{receiver.port}/bot1:AA/sendMessage", body=b'{"chat_id":1,"text":"down"}',
            headers={"Content-Type": "application/json"},
        )  # fmt: skip
    assert (got.status, got.headers["retry-after"], got.body) == (429, "3", answer)
    assert receiver.requests[0].lines[0] == "POST /bot1:AA/sendMessage HTTP/1.1"


async def test_a_request_signed_for_s3_arrives_as_signed(client, tmp_path):
    path = tmp_path / "cover.jpg"
    path.write_bytes(b"\xff\xd8" * 50_000)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    async with Receiver() as receiver:
        host = f"127.0.0.1:{receiver.port}"
        text = f"PUT\n/bucket/a%20b/%2Fcover.jpg\nhost:{host}\nx-amz-content-sha256:{digest}\n"
        signature = hmac.new(b"key", text.encode(), "sha256").hexdigest()
        headers = {"X-Amz-Content-Sha256": digest, "Authorization": f"AWS4-HMAC-SHA256 Signature={signature}"}
        await client.request("PUT", f"http://{host}/bucket/a%20b/%2Fcover.jpg", headers=headers, body=path)
    sent = receiver.requests[0]
    path_sent = sent.lines[0].split()[1]
    again = (
        f"PUT\n{path_sent}\nhost:{sent.headers['host']}\nx-amz-content-sha256:{hashlib.sha256(sent.body).hexdigest()}\n"
    )
    assert sent.headers["authorization"].endswith(hmac.new(b"key", again.encode(), "sha256").hexdigest())


async def test_a_connection_is_never_used_twice(client):
    """A request sent again because an old connection broke would be two."""
    assert {(pycurl.FRESH_CONNECT, 1), (pycurl.FORBID_REUSE, 1)} <= set(transfer.SinkTransfer.own_options)
    async with Receiver() as receiver:
        for _ in range(3):
            await client.request("GET", receiver.url)
        assert receiver.accepted == 3


# Streams.


async def test_a_stream_is_read_as_it_arrives(client):
    async with Receiver((b"HTTP/1.1 404 X\r\nx-a: b\r\n\r\none", 0.2, b"two", "close")) as receiver:
        async with client.stream("GET", receiver.url, headers={"X-C": "d"}, timeout_s=10.0) as response:
            assert (response.status, response.headers["x-a"]) == (404, "b")
            assert [piece async for piece in response] == [b"one", b"two"]
            assert await asyncio.wrap_future(response.read()) == b""
        assert receiver.requests[0].headers["x-c"] == "d"


async def test_a_slow_reader_applies_backpressure(client, monkeypatch):
    monkeypatch.setattr(response, "MAX_BUFFERED", 100_000)
    async with FileServer(is_endless=True) as server:
        async with client.stream("GET", server.url, timeout_s=30.0) as stream:
            await eventually(lambda: stream._is_paused)
            held, sent = stream._size, server.sent[0]
            assert held < 100_000 + MAX_PIECE
            await asyncio.sleep(0.3)
            assert stream._size == held
            assert server.sent[0] - sent < 10_000_000  # what the system's buffers hold
            read = 0
            async for piece in stream:
                read += len(piece)
                if read > 2 * sent + 10_000_000:
                    break
        await eventually(lambda: client.in_progress == 0)


async def test_a_truncated_stream_yields_its_data_then_fails(client):
    script = (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf", "close")
    async with Receiver(script) as receiver, client.stream("GET", receiver.url, timeout_s=10.0) as response:
        assert await asyncio.wrap_future(response.read()) == b"half"
        with pytest.raises(FetchFailed, match=r"^http://127\.0\.0\.1:\d+: "):
            await asyncio.wrap_future(response.read())


@pytest.mark.parametrize("script", [(30.0,), (b"HTTP/1.1 200 OK\r\n\r\nx", 30.0)])
async def test_an_abandoned_stream_is_closed(client, script):
    async with Receiver(script) as receiver:

        async def read():
            async with client.stream("GET", receiver.url, timeout_s=30.0) as response:
                async for _ in response:
                    pass

        task = asyncio.create_task(read())
        await eventually(lambda: receiver.requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: client.in_progress == 0)


async def test_abandoned_streams_do_not_slow_other_requests(client):
    async with Receiver((1.0, OK)) as receiver, FileServer(is_endless=True) as server:
        slow = asyncio.create_task(client.request("GET", receiver.url))
        for _ in range(40):
            async with client.stream("GET", server.url, timeout_s=30.0) as response:
                assert await asyncio.wrap_future(response.read())
        assert (await slow).is_ok
        await eventually(lambda: client.in_progress == 0)


async def test_a_closed_client_ends_its_streams(client):
    script = (b"HTTP/1.1 200 OK\r\n\r\nx", 30.0)
    async with Receiver(script) as receiver, client.stream("GET", receiver.url, timeout_s=30.0) as response:
        assert await asyncio.wrap_future(response.read()) == b"x"
        client.close()
        with pytest.raises(FetchFailed, match="shutting down"):
            await asyncio.wrap_future(response.read())


async def test_a_stream_is_refused_to_blocked_addresses():
    blocked = Client(outbound(allow=[]))
    async with Receiver() as canary:
        with pytest.raises(FetchFailed, match="this machine"):
            async with blocked.stream("GET", canary.url, timeout_s=5.0):
                pass
    assert canary.accepted == 0
