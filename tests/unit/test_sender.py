"""The sender over real sockets on loopback: its requests, results of any response, and no leaks."""

import asyncio
import base64
import contextlib
import re
import socket
import threading
from pathlib import Path

import pycurl
import pytest

from boathook.http_client import connection_pool, curl_multi, guard, response_reader, transfer
from boathook.http_client.messages import OutgoingRequest, TransportFailure
from boathook.http_client.sender import HttpSender
from tests.support import eventually
from tests.unit.receivers import OK, Receiver, SenderHarness, open_sender, outbound, set_limit

pytestmark = pytest.mark.usefixtures("way")
by_libcurl = pytest.mark.parametrize("way", ["libcurl"], indirect=True)
NO_BODY = b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n"


# What is sent.


async def test_body_and_headers_arrive_unchanged_and_in_order():
    body = bytes(range(256)) * 5_000
    headers = (("Webhook-Id", "msg_1"), ("x-ODD", "a: b; c"), ("Content-Type", "text/x"), ("x-ä", "é"), ("x-none", ""))
    async with Receiver() as receiver, open_sender() as post:
        answer = await post(receiver.url + "?a=%20b&c", headers=headers, body=body)
        assert (answer.status, answer.body, answer.failure, answer.error) == (200, b"ok", None, "")
        assert answer.headers == {"content-length": "2"}
        assert not answer.is_cut
        [request] = receiver.requests
    assert request.body == body
    assert request.lines == [
        "POST /hook?a=%20b&c HTTP/1.1",
        f"Host: 127.0.0.1:{receiver.port}",
        "Accept: */*",
        "Webhook-Id: msg_1",
        "x-ODD: a: b; c",
        "Content-Type: text/x",
        "x-ä: é",
        "x-none:",
        f"Content-Length: {len(body)}",
    ]


async def test_nothing_of_one_request_shows_in_the_next_over_the_same_handle():
    async with Receiver() as receiver, open_sender() as post:
        await post(receiver.url, headers=(("a", "1"), ("content-type", "x/y")), body=b"long body", basic=("u", "p"))
        await post(receiver.url, headers=(), body=b"")
        first, second = receiver.requests
        assert receiver.accepted == 1
    assert first.headers["authorization"] == "Basic dTpw"
    assert second.body == b""
    assert set(second.headers) == {"host", "accept", "content-length"}


async def test_connections_are_used_again():
    async with Receiver() as receiver, open_sender() as post:
        for _ in range(50):
            assert (await post(receiver.url)).status == 200
        assert receiver.accepted == 1


async def test_a_connection_closed_by_the_receiver_is_replaced():
    async with Receiver((OK, "close")) as receiver, open_sender() as post:
        for _ in range(5):
            assert (await post(receiver.url)).status == 200
        assert receiver.accepted == 5


@pytest.mark.parametrize(
    ("info", "fields", "expected"),
    [
        ("ann:s%3Ae%20c@", {}, "ann:s:e c"),
        ("ann@", {}, "ann:"),
        ("", {"basic": ("bob", "pä:ss")}, "bob:pä:ss"),
        ("ann:x@", {"basic": ("bob", "y")}, "bob:y"),
    ],
)
async def test_user_information_becomes_basic_authentication(info, fields, expected):
    async with Receiver() as receiver, open_sender() as post:
        await post(receiver.url.replace("//", f"//{info}"), **fields)
        [request] = receiver.requests
    assert base64.b64decode(request.headers["authorization"].removeprefix("Basic ")).decode() == expected
    assert "@" not in request.head.decode()


async def test_a_header_of_authorization_wins():
    async with Receiver() as receiver, open_sender() as post:
        await post(receiver.url, basic=("a", "b"), headers=(("Authorization", "Bearer x"),))
        assert [line for line in receiver.requests[0].lines if "uthoriz" in line] == ["Authorization: Bearer x"]


@pytest.mark.parametrize("value", ["a\r\nx: y", "a\nb", "a\x00b", "\x7f"])
async def test_a_header_that_would_break_out_is_not_sent(value):
    async with Receiver() as receiver, open_sender() as post:
        answer = await post(receiver.url, headers=(("x-note", value),))
        assert (answer.status, answer.failure) == (0, TransportFailure.FAULT)
        assert "x-note" in answer.error
        assert receiver.accepted == 0


async def test_proxy_and_netrc_environment_is_ignored(monkeypatch, tmp_path):
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    async with Receiver() as receiver, open_sender() as post:
        assert (await post(receiver.url)).status == 200
        assert "authorization" not in receiver.requests[0].headers


# What answers mean.


@pytest.mark.parametrize("status", [200, 201, 204, 299, 304, 400, 401, 404, 407, 410, 417, 429, 500, 503, 599])
async def test_any_status_is_an_answer(status):
    async with Receiver((NO_BODY % status,)) as receiver, open_sender() as post:
        answer = await post(receiver.url)
        assert (answer.status, answer.failure, len(receiver.requests)) == (status, None, 1)


@pytest.mark.parametrize("status", [300, 301, 302, 303, 305, 307, 308])
async def test_redirects_are_not_followed(status):
    async with Receiver() as other, open_sender() as post:
        moved = (
            f"HTTP/1.1 {status} X\r\nlocation: {other.url}\r\nrefresh: 0; url={other.url}\r\ncontent-length: 0\r\n\r\n"
        )
        async with Receiver((moved.encode(),)) as receiver:
            answer = await post(receiver.url)
            assert (answer.status, answer.headers["location"]) == (status, other.url)
        assert other.accepted == 0


@by_libcurl
async def test_mutant_following_redirects_reaches_the_target(monkeypatch):
    plain, both = guard.handle_options, pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS
    follow = [(pycurl.FOLLOWLOCATION, 1), (pycurl.REDIR_PROTOCOLS, both)]
    monkeypatch.setattr(curl_multi, "handle_options", lambda settings: [*plain(settings), *follow])
    async with Receiver() as other, open_sender() as post:
        moved = f"HTTP/1.1 307 X\r\nlocation: {other.url}\r\ncontent-length: 0\r\n\r\n"
        async with Receiver((moved.encode(),)) as receiver:
            await post(receiver.url)
        assert other.accepted == 1


async def test_the_kept_response_body_is_limited():
    script = (b"HTTP/1.1 500 X\r\ncontent-length: 5000\r\n\r\n" + b"x" * 5_000,)
    async with Receiver(script) as receiver, open_sender(max_response=100) as post:
        answer = await post(receiver.url)
        assert (answer.status, answer.body, answer.is_cut) == (500, b"x" * 100, True)
        assert (await post(receiver.url)).status == 500
        assert receiver.accepted == 1


async def test_a_huge_body_is_cut_off_and_the_status_counts():
    endless = (b"HTTP/1.1 200 OK\r\n\r\n", *[b"x" * 65_536] * 1_000)
    async with Receiver(endless) as receiver, open_sender() as post:
        answer = await post(receiver.url)
        assert (answer.status, answer.body, answer.is_cut) == (200, b"x" * 4_096, True)
        assert receiver.finished == 0


async def test_a_slow_body_is_cut_off_and_the_status_counts(monkeypatch):
    set_limit(monkeypatch, "BODY_S", 0.1)
    drip = (b"HTTP/1.1 202 OK\r\ncontent-length: 900\r\n\r\n", *[b"x", 0.1] * 900)
    async with Receiver(drip) as receiver, open_sender() as post:
        answer = await post(receiver.url, timeout_s=60.0)
        assert (answer.status, answer.failure, answer.is_cut) == (202, None, True)
        assert receiver.finished == 0


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
async def test_mutant_without_the_limit_a_slow_body_would_be_waited_for(monkeypatch):
    set_limit(monkeypatch, "BODY_S", 1_000.0)
    drip = (b"HTTP/1.1 202 OK\r\ncontent-length: 10\r\n\r\n", *[b"x", 0.1] * 10)
    async with Receiver(drip) as receiver, open_sender() as post:
        assert not (await post(receiver.url)).is_cut
        await eventually(lambda: receiver.finished == 1)


@pytest.mark.parametrize(
    "script",
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", "close"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", 0.05, "reset"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nhalf\r\nZZ", "close"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", 30.0),
    ],
)
async def test_a_body_that_breaks_off_changes_nothing(script):
    async with Receiver(script) as receiver, open_sender() as post:
        answer = await post(receiver.url, timeout_s=0.5)
        assert (answer.status, answer.failure, answer.body, answer.is_cut) == (200, None, b"half", True)


async def test_a_compressed_body_is_not_unpacked():
    packed = b"\x1f\x8b\x08\x00\xff"
    async with (
        Receiver((b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 5\r\n\r\n" + packed,)) as receiver,
        open_sender() as post,
    ):
        assert (await post(receiver.url)).body == packed


async def test_some_interim_responses_are_skipped():
    async with (
        Receiver((b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 X\r\nlink: a\r\n\r\n" + OK,)) as receiver,
        open_sender() as post,
    ):
        answer = await post(receiver.url)
        assert (answer.status, answer.headers) == (200, {"content-length": "2"})


async def test_trailers_are_no_headers():
    body = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntrailer: t\r\n\r\n2\r\nok\r\n0\r\nt: 1\r\n\r\n"
    async with Receiver((body,)) as receiver, open_sender() as post:
        answer = await post(receiver.url)
        assert (answer.status, answer.body, "t" in answer.headers) == (200, b"ok", False)


async def test_only_so_many_headers_are_kept():
    many = b"".join(b"x-%d: y\r\n" % n for n in range(1_000))
    async with (
        Receiver((b"HTTP/1.1 200 OK\r\n" + many + b"content-length: 0\r\n\r\n",)) as receiver,
        open_sender() as post,
    ):
        assert len((await post(receiver.url)).headers) == 64


# What is no answer.


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (("reset",), "."),
        (("close",), "(?i)empty|no response|reset|retried"),
        ((b"HTTP/1.1 200 OK\r\nx: y\r\n", "close"), "."),
        ((b"HTTP/1.1 200 OK\r\nx: y\r\n", 0.05, "reset"), "."),
        ((b"hello\r\n", "close"), "0.9"),
        ((b"\r\n" + OK, "close"), "0.9"),
        ((b"HTTP/1.1 abc\r\n\r\n", "close"), "."),
        ((b"HTTP/9.1 200 OK\r\n\r\n", "close"), "."),
        ((*[b"HTTP/1.1 102 X\r\n\r\n"] * 5_000, OK), "interim"),
        ((b"HTTP/1.1 200 OK\r\n", *[b"x: " + b"y" * 8_000 + b"\r\n"] * 500), "larger"),
        ((b"HTTP/1.1 200 OK\r\n", *[b"y" * 8_000] * 500), "."),
        ((b"HTTP/1.1 200 OK\r\n", *[b"x: y\r\n" * 1_000] * 500), "."),
        ((b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab", "close"), "."),
    ],
)
async def test_an_invalid_response_is_a_read_failure(script, words):
    async with Receiver(script) as receiver, open_sender() as post:
        answer = await post(receiver.url)
        assert (answer.status, answer.failure, answer.body) == (0, TransportFailure.READ, b"")
        assert "\n" not in answer.error
        assert re.search(words, answer.error)


async def test_mutant_without_the_limit_all_interim_responses_are_read(monkeypatch):
    set_limit(monkeypatch, "MAX_INTERIM", 10**9)
    async with Receiver((*[b"HTTP/1.1 102 X\r\n\r\n"] * 1_000, OK)) as receiver, open_sender() as post:
        assert (await post(receiver.url)).status == 200


@pytest.mark.parametrize("script", [(30.0,), (b"HTTP/1.1 200 OK\r\n", *[b"x: y\r\n", 0.1] * 300)])
async def test_a_slow_response_times_out(script):
    async with Receiver(script) as receiver, open_sender() as post:
        answer = await post(receiver.url, timeout_s=0.4)
        assert (answer.status, answer.failure) == (0, TransportFailure.TIMEOUT)
        assert answer.duration_s >= 0.4
        assert re.match("(Operation|Connection) timed out after [0-9]+ milliseconds", answer.error)


async def test_a_receiver_that_never_accepts_times_out():
    async with open_sender() as post:
        with socket_that_never_accepts() as port:
            answer = await post(f"https://127.0.0.1:{port}/", timeout_s=0.4)
            assert (answer.status, answer.failure) == (0, TransportFailure.TIMEOUT)


@contextlib.contextmanager
def socket_that_never_accepts():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        yield listener.getsockname()[1]


async def test_connect_and_dns_failures_are_distinguished():
    async with Receiver() as receiver, open_sender() as post:
        receiver._server.close()
        assert (await post(receiver.url)).failure is TransportFailure.CONNECT
        answer = await post("http://" + "a" * 64 + ".test/")
        assert (answer.failure, answer.status) == (TransportFailure.DNS, 0)


# Where it goes.


async def test_blocked_addresses_get_no_connection():
    async with Receiver() as receiver, open_sender(allow=[]) as post:
        for host in ("127.0.0.1", "localhost", "0x7f.1", "0"):
            answer = await post(f"http://{host}:{receiver.port}/")
            assert (answer.status, answer.failure) == (0, TransportFailure.BLOCKED)
            assert "this machine" in answer.error or "this network" in answer.error
        assert receiver.accepted == 0


async def test_mutant_without_the_guard_it_connects(monkeypatch):
    monkeypatch.setattr(guard, "find_denial_on_host", lambda *_: None)
    async with Receiver() as receiver, open_sender(allow=[]) as post:
        assert (await post(receiver.url)).status == 200


async def test_an_allowed_name_is_resolved_once_for_many_requests(monkeypatch):
    asked = []

    def answer(name, *_, **__):
        asked.append(name)
        return [(2, 1, 6, "", ("127.0.0.1", 0))]

    monkeypatch.setattr("socket.getaddrinfo", answer)
    async with Receiver() as receiver, open_sender() as post:
        answers = await post.many([f"http://Receiver.test:{receiver.port}/{n}" for n in range(100)])
        assert {one.status for one in answers} == {200}
        assert receiver.requests[0].headers["host"] == f"Receiver.test:{receiver.port}"
    assert asked == ["receiver.test"]


async def test_a_name_with_one_blocked_address_is_blocked(monkeypatch):
    both = [(2, 1, 6, "", ("127.0.0.1", 0)), (2, 1, 6, "", ("127.0.0.2", 0))]
    async with Receiver() as receiver, Receiver(host="127.0.0.2") as canary, open_sender() as post:
        for answers in (both, both[::-1]):
            monkeypatch.setattr("socket.getaddrinfo", lambda *_, a=answers, **__: a)
            answer = await post(f"http://mixed.test:{receiver.port}/")
            assert (answer.failure, receiver.accepted, canary.accepted) == (TransportFailure.BLOCKED, 0, 0)


@pytest.mark.parametrize(
    ("changes", "url", "words"),
    [
        ({}, "ftp://127.0.0.1/", "https:// or http://"),
        ({"require_https": True}, "http://127.0.0.1/", "start with https://$"),
        ({}, "http://127.0.0.1:6379/", "port 6379"),
        ({"ports": [443]}, "http://127.0.0.1/", "port 80 is not in outbound.ports"),
    ],
)
async def test_an_invalid_url_fails_at_once(changes, url, words):
    async with open_sender(**changes) as post:
        answer = await post(url)
        assert (answer.status, answer.failure) == (0, TransportFailure.URL)
        assert re.search(words, answer.error)


# Many at once, and the end.


async def test_hundreds_at_once_are_each_answered_once_in_batches():
    async with Receiver((0.2, OK)) as receiver, open_sender() as post:
        answers = await post.many([f"{receiver.url}/{n}" for n in range(300)])
        assert [one.status for one in answers] == [200] * 300
        assert sum(map(len, post.batches)) == 300
        assert len(post.batches) < 150
        assert sorted(int(r.lines[0].split("/")[2].split()[0]) for r in receiver.requests) == list(range(300))


async def test_results_arrive_in_the_creating_event_loop():
    seen = asyncio.get_running_loop().create_future()
    async with Receiver() as receiver:
        sender = HttpSender(outbound(), on_results=lambda _: seen.set_result(threading.current_thread()))
        sender.send([OutgoingRequest(url=receiver.url, headers=(), body=b"", timeout_s=5.0)])
        assert await asyncio.wait_for(seen, 300) is threading.current_thread()
        sender.close()


@by_libcurl
async def test_requests_added_while_the_queue_drains_are_started(monkeypatch):
    answered: asyncio.Queue[str] = asyncio.Queue()

    def note(answers):
        for one in answers:
            answered.put_nowait(one.request.url)

    sender = HttpSender(outbound(), on_results=note)
    more = [OutgoingRequest(url="nowhere:2", headers=(), body=b"", timeout_s=5.0)]
    turn = curl_multi.CurlMultiClient.turn

    def add_and_turn(self, events):
        if more:
            sender.send([more.pop()])
        return turn(self, events)

    monkeypatch.setattr(curl_multi.CurlMultiClient, "turn", add_and_turn)
    # Neither is ever under way, so nothing else ends the sender's wait.
    sender.send([OutgoingRequest(url="nowhere:1", headers=(), body=b"", timeout_s=5.0)])
    assert {await asyncio.wait_for(answered.get(), 300) for _ in range(2)} == {"nowhere:1", "nowhere:2"}
    sender.close()


async def test_nothing_leaks(monkeypatch):
    set_limit(monkeypatch, "BODY_S", 0.1)
    scripts = [(OK,), ("reset",), (30.0,), (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n", 30.0)]

    def descriptors():
        return len(list(Path("/proc/self/fd").iterdir()))

    def names():
        return {thread.name for thread in threading.enumerate() if thread.name.startswith("boathook")}

    before, threads = descriptors(), names()
    for _ in range(3):
        async with open_sender() as post:
            for script in scripts:
                async with Receiver(script) as receiver:
                    await post.many([receiver.url] * 20, timeout_s=0.3)
            await post.many(["http://localhost:1/", "http://10.0.0.1/", "nonsense"], timeout_s=0.3)
    await eventually(lambda: descriptors() <= before)
    await eventually(lambda: names() <= threads)


async def test_closing_fails_requests_in_flight():
    async with Receiver((30.0,)) as receiver:
        post = SenderHarness(outbound())
        waiting = asyncio.create_task(post.many([receiver.url] * 10))
        await eventually(lambda: len(receiver.requests) == 10)
        post.sender.close()
        assert {one.failure for one in await waiting} == {TransportFailure.CLOSED}
        post.sender.close()
        with pytest.raises(RuntimeError, match="closed"):
            await post(receiver.url)


async def test_an_exception_in_a_callback_fails_only_its_request(monkeypatch, way):
    async with Receiver() as receiver, open_sender() as post:
        with monkeypatch.context() as patch:
            patch.setattr(guard, "find_denial_on_host", lambda *_: 1 / 0)
            answer = await post(receiver.url)
            assert (answer.failure, "ZeroDivisionError" in answer.error) == (TransportFailure.FAULT, True)
        with monkeypatch.context() as patch:
            if way == "pool":
                patch.setattr(response_reader.ResponseReader, "_read_head", lambda *_: 1 / 0)
            else:
                # A handle has bound its callbacks, but looks the method up at each call.
                patch.setattr(transfer.CurlTransfer, "_end_head", lambda _: 1 / 0)
            assert (await post(receiver.url)).failure is TransportFailure.FAULT
        assert (await post(receiver.url)).status == 200


@by_libcurl
async def test_an_exception_in_the_thread_fails_requests_but_not_the_thread(monkeypatch):
    async with Receiver((0.3, OK)) as receiver, open_sender() as post:
        with monkeypatch.context() as patch:
            patch.setattr(curl_multi.CurlMultiClient, "_collect", lambda _: 1 / 0)
            assert {one.failure for one in await post.many([receiver.url] * 5)} == {TransportFailure.FAULT}
        assert (await post(receiver.url)).status == 200


async def test_an_exception_while_starting_fails_only_its_request(monkeypatch, way):
    async with Receiver() as receiver, open_sender() as post:
        with monkeypatch.context() as patch:
            place = (connection_pool, "_encode") if way == "pool" else (transfer, "_header_lines")
            patch.setattr(*place, lambda *_, **__: 1 / 0)
            for url in (receiver.url, f"http://localhost:{receiver.port}/"):
                assert (await post(url)).failure is TransportFailure.FAULT
        assert (await post(receiver.url)).status == 200
