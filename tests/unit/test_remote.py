"""Requests to the operator's own servers: their content, limits, and use of the proxy."""

import asyncio
import logging
import re
import socket

import pytest

from boathook.config import load
from boathook.domain.errors import ConfigError, FetchFailed
from boathook.service.remote import RemoteClient
from tests.support import eventually
from tests.unit.receivers import OK, Authority, Receiver
from tests.unit.test_guard import Proxy


def client_with(**outbound):
    return RemoteClient(load(overrides={f"outbound.{name}": value for name, value in outbound.items()}))


async def ask(url, client=None, method="GET", **more):
    return await (client or RemoteClient()).request(method, url, **({"timeout_s": 10.0, "max_bytes": 1_000} | more))


async def refused(url, words, client=None, **more):
    with pytest.raises(FetchFailed, match=words) as caught:
        await ask(url, client, **more)
    return caught.value


async def streamed(url, **more):
    return [piece async for piece in RemoteClient().stream(url, **({"headers": {}, "quiet_s": 10.0} | more))]


async def test_a_request_arrives_as_it_was_written():
    async with Receiver() as receiver:
        url = f"{receiver.url}/a%2fb/../c?x='y'&z=[1]"
        answer = await ask(url, method="POST", headers={"X-A": "é", "x-empty": ""}, body=b"\x00\xff")
    assert (answer.status, answer.body, answer.is_ok) == (200, b"ok", True)
    sent = receiver.requests[0]
    assert sent.lines[0] == "POST /hook/a%2fb/../c?x='y'&z=[1] HTTP/1.1"
    assert (sent.headers["x-a"], sent.body) == ("é", b"\x00\xff")
    assert "x-empty: " in sent.lines
    assert sent.headers["host"] == f"127.0.0.1:{receiver.port}"
    assert (sent.headers["accept-encoding"], sent.headers["user-agent"]) == ("identity", "boathook")


async def test_url_credentials_become_a_header_unless_one_is_given():
    async with Receiver() as receiver:
        url = receiver.url.replace("//", "//me:pass@")
        await ask(url)
        await ask(url, headers={"Authorization": "Bearer x"})
    assert [sent.headers["authorization"] for sent in receiver.requests] == ["Basic bWU6cGFzcw==", "Bearer x"]


async def test_proxy_and_netrc_environment_is_ignored(monkeypatch, tmp_path):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    async with Receiver() as receiver:
        assert (await ask(receiver.url)).is_ok
        assert "authorization" not in receiver.requests[0].headers


async def test_redirects_are_not_followed():
    async with Receiver() as other:
        moved = f"HTTP/1.1 307 X\r\nlocation: {other.url}\r\ncontent-length: 0\r\n\r\n"
        async with Receiver((moved.encode(),)) as receiver:
            assert (await ask(receiver.url)).headers["location"] == other.url
    assert other.accepted == 0


async def test_a_compressed_response_is_not_decompressed():
    packed = (b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 2\r\n\r\n\x1f\x8b",)
    async with Receiver(packed) as receiver:
        assert (await ask(receiver.url)).body == b"\x1f\x8b"
        assert await streamed(receiver.url) == [b"\x1f\x8b"]


async def test_an_answer_has_limits_of_size_and_time():
    async with Receiver((b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * 65_536] * 1_000)) as receiver:
        assert (await refused(receiver.url, "larger than 1,000 bytes")).status == 200
        assert receiver.finished == 0
    async with Receiver((b"HTTP/1.1 200 OK\r\n\r\n", *[b"x", 0.1] * 100)) as receiver:
        await refused(receiver.url, r"no response within 0\.4 s", timeout_s=0.4)
        await eventually(lambda: receiver.accepted)
    async with Receiver((b"HTTP/1.1 200 OK\r\n\r\nx", 30.0)) as receiver:
        with pytest.raises(FetchFailed, match=r"^http://127\.0\.0\.1:\d+: no data received for 0\.3 s"):
            await streamed(receiver.url, quiet_s=0.3)
        await eventually(lambda: receiver.accepted)


async def test_errors_do_not_contain_the_url_path():
    for url in ("ftp://127.0.0.1/", "127.0.0.1:1", "http://a@b@c/", "http://127.0.0.1:1024/ x", ""):
        assert (await refused(url, ".")).is_final
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        error = await refused(
            f"http://127.0.0.1:{port}/hidden?token=hidden", f"(?i)^http://127.0.0.1:{port}: .*connect"
        )
    assert "hidden" not in str(error)


async def test_logs_contain_no_secrets_of_url_and_headers(caplog):
    caplog.set_level(logging.DEBUG)
    async with Receiver() as receiver:
        assert (await ask(f"{receiver.url}?token=hidden", headers={"authorization": "Bearer hidden"})).is_ok
    assert "hidden" not in caplog.text


@pytest.mark.parametrize("value", ["a\r\nx: y", "a\nb", "a\x00b"])
async def test_a_header_that_would_break_out_is_not_sent(value):
    async with Receiver() as receiver:
        await refused(receiver.url, ".", headers={"x-note": value})
    assert receiver.requests == []


async def test_a_stream_is_read_as_it_arrives_and_error_statuses_raise():
    async with Receiver((b"HTTP/1.1 200 OK\r\n\r\none", 0.2, b"two", "close")) as receiver:
        assert await streamed(receiver.url, headers={"X-C": "d"}) == [b"one", b"two"]
        assert receiver.requests[0].headers["x-c"] == "d"
    problems = b'{"detail": [{"loc": ["query", "since"], "msg": "is no time"}]}'
    for body, words in ((problems, "status 422: since: is no time$"), (b"[" * 5_000, "status 422$")):
        head = b"HTTP/1.1 422 X\r\ncontent-length: %d\r\n\r\n" % len(body)
        async with Receiver((head + body,)) as receiver:
            with pytest.raises(FetchFailed, match=words) as caught:
                await streamed(receiver.url)
            assert caught.value.status == 422


async def test_cancelling_the_reader_closes_the_connection():
    async with Receiver((b"HTTP/1.1 200 OK\r\n\r\nx", 0.3, *[b"x" * 65_536] * 1_000)) as receiver:
        task = asyncio.create_task(streamed(receiver.url))
        await eventually(lambda: receiver.requests)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await eventually(lambda: not receiver._tasks)
        assert receiver.finished == 0


async def test_certificates_are_verified(tmp_path):
    authority = Authority(tmp_path)
    async with Receiver(context=authority.context()) as receiver:
        assert (await ask(receiver.url, client_with(ca_file=authority.file))).is_ok
        await refused(receiver.url, "(?i)certificate", client_with())
        assert len(receiver.requests) == 1


@pytest.mark.parametrize("scheme", ["http", "socks5"])
async def test_requests_go_through_the_proxy_unless_they_bypass_it(tmp_path, scheme):
    if scheme == "socks5":
        pytest.importorskip("socksio")
    authority = Authority(tmp_path)
    async with Receiver(context=authority.context()) as receiver, Proxy() as proxy:
        through = {"proxy": f"{scheme}://{proxy.place}", "ca_file": authority.file}
        assert (await ask(receiver.url, client_with(**through))).is_ok
        assert proxy.asked == [f"127.0.0.1:{receiver.port}"]
        for bypass in ("127.0.0.0/8", "127.0.0.1"):
            assert (await ask(receiver.url, client_with(**through, proxy_bypass=[bypass]))).is_ok
        assert len(proxy.asked) == 1
        assert len(receiver.requests) == 3


def test_an_unreadable_proxy_setting_is_refused():
    with pytest.raises(ConfigError, match=re.escape("outbound.proxy")):
        client_with(proxy="env:BOATHOOK_TEST_NO_SUCH_PROXY")


async def test_each_request_opens_its_own_connection():
    async with Receiver((OK,)) as receiver:
        for _ in range(3):
            await ask(receiver.url)
        assert receiver.accepted == 3
