"""The sender's own connections: each response has the result that libcurl gives it, and no byte goes to another."""

import asyncio
import contextlib
import functools
import itertools
import re
import socket
import threading

import pytest
import uvloop
from hypothesis import given
from hypothesis import strategies as st

from boathook.http_client import connection_pool, response_reader
from boathook.http_client.connection_pool import ConnectionPool
from boathook.http_client.messages import OutgoingRequest, RequestResult, TransportFailure
from boathook.http_client.response_reader import InvalidResponse, ResponseReader
from tests.support import eventually, too_dear
from tests.unit.receivers import OK, Authority, Receiver, open_sender, outbound, stop_serving

HEAD = b"HTTP/1.1 200 OK\r\n"
CHUNKED = HEAD + b"transfer-encoding: chunked\r\n\r\n"
INTERIM = b"HTTP/1.1 102 X\r\n\r\n"
NO_CONTENT = b"HTTP/1.1 204 X\r\n"


def status_line(line):
    return line + b"\r\ncontent-length: 2\r\n\r\nok"


def header(lines):
    return HEAD + lines + b"\r\ncontent-length: 2\r\n\r\nok"


def framed(lines, body=b"ok"):
    return HEAD + lines + b"\r\n\r\n" + body


RESPONSES = {
    "nothing": (b"",),
    "half a head": (HEAD + b"x: y\r\n",),
    "no HTTP": (b"hello\r\n",),
    "no HTTP and no line": (b"hello",),
    "a leading line": (b"\r\n" + OK,),
    "a leading space": (b" " + OK,),
    "carriage returns": (OK.replace(b"\r\n", b"\r"),),
    "line feeds": (OK.replace(b"\r\n", b"\n"),),
    "line feeds within": (b"HTTP/1.1 200 OK\r\ncontent-length: 2\n\r\nok",),
    "a line feed at the end": (b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\nok",),
    **{
        line.decode("latin-1"): (status_line(line),)
        for line in (
            *(b"HTTP/1.0 200 OK", b"HTTP/1.2 200 OK", b"HTTP/9.1 200 OK", b"HTTP/0.9 200 OK", b"HTTP/2 200 OK"),
            *(b"HTTP/2.0 200 OK", b"http/1.1 200 OK", b"ICY 200 OK", b"HTTP/1.1 200", b"HTTP/1.1 200 ", b"HTTP/1.1"),
            *(b"HTTP/1.1  200 OK", b"HTTP/1.1 200 \xff\x01", b"HTTP/1.1 abc", b"HTTP/1.1 20 OK", b"HTTP/1.1 099 OK"),
            *(b"HTTP/1.1 000 OK", b"HTTP/1.1 600 OK", b"HTTP/1.1 999 OK", b"HTTP/1.1 204 OK", b"HTTP/1.1 304 OK"),
            *(b"HTTP/1.1 205 OK", b"HTTP/1.1 407 X\r\nproxy-authenticate: Basic", b"HTTP/1.1 417 X", b"HTTP/1.1 500 X"),
            *(b"HTTP/1.0 200 OK\r\nconnection: keep-alive", b"HTTP/1.1 408 X\r\nconnection: close"),
        )
    },
    **{
        "header " + repr(lines): (header(lines),)
        for lines in (
            *(b"no colon", b": no name", b"x : y", b"x y: z", b"x(y): z", b"x\0: y", b"x: \0", b"x: \x01", b"x: a\rb"),
            *(b"x: \xe4", b"x: a\r\n  b", b" x: y", b"x:\ty\t", b"X: 1\r\nx: 2", b"x:", b"content-encoding: gzip"),
            *(b'alt-svc: h2=":1"\r\nset-cookie: a=b\r\nrefresh: 0', b"x: " + b"y" * 64_000, b"x: y\r\n" * 99 + b"z: 1"),
            *(b"upgrade: h2c\r\nconnection: upgrade", b"connection: close", b"connection: x, Close", b"keep-alive: x"),
            *(b"proxy-connection: close", b"x: " + b"y" * 66_000, b"content-length: 2", b"content-length: 1"),
        )
    },
    **{
        "length " + repr(text): (framed(b"content-length: " + text),)
        for text in (
            *(
                b"2, 2",
                b"2,3",
                b"-1",
                b"+2",
                b"0x2",
                b"two",
                b"",
                b"2x",
                b"2 2",
                b"\xb2",
                b"002",
                b"9" * 24,
                b"9" * 5_000,
            ),
            *(b"9223372036854775807", b"5", b"1"),
        )
    },
    **{
        "coding " + repr(text): (framed(b"transfer-encoding: " + text, b"2\r\nok\r\n0\r\n\r\n"),)
        for text in (
            *(
                b"chunked",
                b"Chunked",
                b"gzip",
                b"gzip, chunked",
                b"xchunked",
                b"chunked, identity",
                b"chunked, chunked",
            ),
            *(b"chunked\r\ntransfer-encoding: chunked", b"chunked\r\ncontent-length: 2", b"identity, chunked"),
        )
    },
    "length and coding": (framed(b"content-length: 2\r\ntransfer-encoding: chunked", b"2\r\nok\r\n0\r\n\r\n"),),
    "an identical coding": (framed(b"content-length: 2\r\ntransfer-encoding: identity"),),
    **{
        "chunks " + repr(body): (CHUNKED + body,)
        for body in (
            *(
                b"2;a=b\r\nok\r\n0\r\n\r\n",
                b"4\r\nhalf\r\nZZ",
                b"ZZ\r\n",
                b"-2\r\nok\r\n0\r\n\r\n",
                b"f" * 19 + b"\r\nok",
            ),
            *(
                b"2  \r\nok\r\n0\r\n\r\n",
                b"2\r\nok0\r\n\r\n",
                b"2\r\nok\r\n0\r\nt: 1\r\n\r\n",
                b"2\r\nok\r\n",
                b"0\r\n\r\n",
            ),
            *(b"1\r\no\r\n1\r\nk\r\n0\r\n\r\n" + OK,),
        )
    },
    "trailers without end": (CHUNKED + b"2\r\nok\r\n0\r\n", *[b"x: " + b"y" * 8_000 + b"\r\n"] * 100),
    "an interim response": (b"HTTP/1.1 100 Continue\r\nlink: a\r\n\r\n" + OK,),
    "an interim response only": (INTERIM,),
    "an interim response with a length": (b"HTTP/1.1 100 C\r\ncontent-length: 2\r\n\r\n" + OK,),
    "an odd interim response": (b"HTTP/1.1 199 C\r\n\r\n" + OK,),
    "switching protocols": (b"HTTP/1.1 101 X\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n" + OK,),
    "sixteen interim responses": (*[INTERIM] * 16, OK),
    "seventeen interim responses": (*[INTERIM] * 17, OK),
    "no content": (NO_CONTENT + b"\r\n",),
    "no content but a body": (NO_CONTENT + b"content-length: 2\r\n\r\nok",),
    "no content in chunks": (NO_CONTENT + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",),
    "a body without length": (framed(b"x: y"),),
    "nothing without length": (framed(b"x: y", b""),),
    "bytes behind": (OK + b"surplus",),
    "two responses": (OK + b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n",),
    "the largest body": (framed(b"content-length: 65536", b"x" * 65_536),),
    "a larger body": (framed(b"content-length: 65537", b"x" * 65_537),),
    "a body without end": (framed(b"x: y", b""), *[b"x" * 65_536] * 40),
    "headers without end": (HEAD, *[b"x: " + b"y" * 8_000 + b"\r\n"] * 50),
    "a line without end": (HEAD, *[b"y" * 8_000] * 50),
    "short lines without end": (HEAD, *[b"x: y\r\n" * 1_000] * 50),
    "interim responses without end": tuple([b"HTTP/1.1 102 X\r\n" + b"x: y\r\n" * 2_000 + b"\r\n"] * 12),
}
"""What a receiver sends before it closes the connection."""
OWN_WORDS = {"a line without end", "short lines without end", "interim responses without end"}
"""Where libcurl has limits of its own, and other words for them."""


KEPT = {
    "a length": (OK, 1),
    "line feeds": (OK.replace(b"\r\n", b"\n"), 1),
    "chunks": (CHUNKED + b"2\r\nok\r\n0\r\n\r\n", 1),
    "a trailer": (CHUNKED + b"2\r\nok\r\n0\r\nt: 1\r\n\r\n", 1),
    "no content": (NO_CONTENT + b"\r\n", 1),
    "an interim response": (INTERIM + OK, 1),
    "a failure": (b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n", 1),
    "an old version that keeps it": (status_line(b"HTTP/1.0 200 OK\r\nconnection: keep-alive"), 1),
    "an old version": (status_line(b"HTTP/1.0 200 OK"), 2),
    "the wish to close it": (header(b"connection: close"), 2),
    "bytes behind": (OK + b"surplus", 2),
    "two responses": (OK + b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n", 2),
    "a body behind no content": (NO_CONTENT + b"content-length: 2\r\n\r\nok", 2),
    "chunks behind no content": (NO_CONTENT + b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n", 2),
}
"""Responses, and over how many connections two requests get them."""


async def send_both_ways(script, monkeypatch, *, requests=1):
    """Return for each transport the results of the requests, and the number of connections and requests."""
    seen = []
    for way in ("pool", "libcurl"):
        with monkeypatch.context() as patch:
            if way == "libcurl":
                patch.setattr(ConnectionPool, "send", lambda *_: False)
            async with Receiver(script) as receiver, open_sender() as post:
                found = [await post(receiver.url, timeout_s=60.0) for _ in range(requests)]
                seen.append((found, receiver.accepted, len(receiver.requests)))
    return seen


def facts(result):
    return result.status, result.failure, result.error, dict(result.headers), result.body, result.is_cut


@pytest.mark.parametrize("name", RESPONSES)
def test_a_response_has_the_same_result_both_ways(monkeypatch, name):
    own, theirs = uvloop.run(send_both_ways((*RESPONSES[name], "close"), monkeypatch))
    assert own[1:] == theirs[1:]
    expected = facts(theirs[0][0])
    if name in OWN_WORDS:
        expected = (*expected[:2], "the answer's headers are larger than 65536 bytes", *expected[3:])
    assert facts(own[0][0]) == expected


@pytest.mark.parametrize("name", KEPT)
def test_both_transports_keep_the_same_connections(monkeypatch, name):
    response, connections = KEPT[name]
    for found, accepted, requests in uvloop.run(send_both_ways((response,), monkeypatch, requests=2)):
        assert facts(found[0]) == facts(found[1])
        assert (accepted, requests) == (connections, 2)


class _Trusting(ResponseReader):
    """Mutant: keeps a connection whose response has both a length and chunks."""

    def _read_headers(self, text, *, version, has_body):
        super()._read_headers(text, version=version, has_body=has_body)
        self.keeps_alive = True


@pytest.mark.parametrize(("reader", "is_kept"), [(ResponseReader, False), (_Trusting, True)])
@pytest.mark.parametrize("length", [b"2", b"5"])
def test_a_connection_with_both_a_length_and_chunks_is_not_kept(reader, length, *, is_kept):
    """As RFC 9112, section 6.3, demands: https://www.rfc-editor.org/rfc/rfc9112#section-6.3"""
    response = reader(4_096)
    response.feed(HEAD + b"content-length: " + length + b"\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n")
    assert response.is_complete
    assert response.keeps_alive is is_kept


def read_pieces(pieces):
    """Return a reader's result for these pieces of a connection, which then ends."""
    reader = ResponseReader(4_096)
    try:
        for piece in pieces:
            if not reader.is_complete:
                reader.feed(piece)
    except InvalidResponse as error:
        return str(error)
    return reader.status, reader.headers, reader.body, reader.is_complete, reader.is_cut, reader.has_length


@given(
    st.sampled_from(sorted(RESPONSES)),
    st.lists(st.floats(0, 1), max_size=6),
)
def test_a_response_is_the_same_however_its_bytes_are_divided(name, places):
    whole = b"".join(RESPONSES[name])[:200_000]
    cuts = [0, *sorted(int(place * len(whole)) for place in places), len(whole)]
    pieces = [whole[start:end] for start, end in itertools.pairwise(cuts)]
    assert read_pieces(pieces) == read_pieces([whole])


SLOW = {
    "spaces before folded lines": framed(b"x: y\r\n z\r\nx: " + b" " * 60_000 + b"y"),
    "line feeds": framed(b"x: y" + b"\n " * 30_000),
    "carriage returns": framed(b"x: y" + b"\r" * 60_000),
    "many headers": framed(b"a: b\r\n" * 10_000 + b"c: d"),
    "many options": framed(b"connection: a\r\n" * 4_000 + b"c: d"),
    "many codings": framed(b"transfer-encoding: " + b"identity," * 7_000),
    "many lengths": framed(b"content-length: " + b"2," * 30_000 + b"2"),
}
"""Heads of the largest size that would take long to read if the time grew with its square."""


def test_no_response_head_takes_long_to_parse():
    for head in SLOW.values():
        assert len(head) < 65_536
        assert too_dear(functools.partial(read_pieces, [head]), most=60) is None


def test_mutant_a_slow_pattern_takes_long_to_parse_a_head(monkeypatch):
    monkeypatch.setattr(response_reader, "FOLD", re.compile(rb"[ \t]*\n[ \t]+"))
    head = framed(b"x: y\r\n z\r\nx: " + b" " * 10_000 + b"y")
    assert too_dear(lambda: read_pieces([head]), most=60) is not None


# Kept connections.


class Scripted:
    """A server with a script for each connection: the response to each request, None to close."""

    def __init__(self, *scripts):
        self.scripts = list(scripts)
        self.requests = []

    async def __aenter__(self):
        self._tasks = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/"
        return self

    async def __aexit__(self, *_):
        await stop_serving(self._server, self._tasks)

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            for step in self.scripts.pop(0):
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(re.search(rb"(?i)content-length: ([0-9]+)", head)[1]))
                self.requests.append(head)
                if step is None:
                    break
                writer.write(step)
            else:
                await reader.read()
        writer.close()


@pytest.mark.parametrize(
    ("scripts", "failure", "requests"),
    [
        ([[OK, None], [OK]], None, 3),
        ([[OK, None], [None]], TransportFailure.READ, 3),
        ([[OK, b"H", None], [OK]], TransportFailure.TIMEOUT, 2),
        ([[OK, INTERIM], [OK]], TransportFailure.TIMEOUT, 2),
    ],
)
@pytest.mark.usefixtures("way")
async def test_a_request_is_resent_once_if_a_reused_connection_is_dead(scripts, failure, requests):
    async with Scripted(*scripts) as server, open_sender() as post:
        assert (await post(server.url)).status == 200
        answer = await post(server.url, timeout_s=10.0 if failure is not TransportFailure.TIMEOUT else 0.3)
        assert answer.failure is failure
        await eventually(lambda: len(server.requests) == requests)


async def test_mutant_treating_new_connections_as_reused_resends_repeatedly(monkeypatch):
    monkeypatch.setattr(connection_pool.Connection, "_is_reused", property(lambda _: True, lambda *_: None))
    async with Scripted([None], [None], [OK]) as server, open_sender() as post:
        assert (await post(server.url)).status == 200
        assert len(server.requests) == 3


async def test_a_request_is_not_resent_after_a_byte_or_on_a_new_connection():
    for script, expected in (([b"H"], "Empty"), ([None], "Empty"), ([HEAD], "no response")):
        async with Receiver((*[step for step in script if step], "close")) as receiver, open_sender() as post:
            answer = await post(receiver.url)
            assert (answer.failure, len(receiver.requests)) == (TransportFailure.READ, 1)
            assert answer.error.startswith(expected)
    async with Scripted([OK, HEAD, None], [OK]) as server, open_sender() as post:
        await post(server.url)
        asked = asyncio.create_task(post(server.url, timeout_s=60.0))
        await eventually(lambda: len(server.requests) == 2)
        for task in server._tasks:
            task.cancel()
        assert (await asked).failure is TransportFailure.READ
        assert len(server.requests) == 2


async def test_bytes_received_while_idle_close_the_connection():
    async with Receiver((OK, 0.02, b"HTTP/1.1 500 X\r\ncontent-length: 0\r\n\r\n")) as receiver, open_sender() as post:
        assert (await post(receiver.url)).status == 200
        await eventually(lambda: not post.sender.pool.opened)
        assert (await post(receiver.url)).status == 200
        assert receiver.accepted == 2


class Planter:
    """A server, in a thread of its own, that sends a second answer when told to; each request has the next status."""

    def __init__(self, answer):
        self._answer = answer
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/"
        self._plant, self._is_planted = threading.Event(), threading.Event()
        self._statuses = itertools.count(201)
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._listening.close()

    def plant(self):
        """Send the second answer, and return once it has arrived; the caller's event loop reads nothing meanwhile."""
        self._plant.set()
        assert self._is_planted.wait(300)

    def _run(self):
        for plants in (True, False):
            with contextlib.suppress(OSError):
                self._serve(plants=plants)

    def _serve(self, *, plants):
        connection, _ = self._listening.accept()
        with connection:
            while connection.recv(65_536):
                connection.sendall(self._answer % next(self._statuses))
                if plants:
                    assert self._plant.wait(300)
                    connection.sendall(self._answer % 299)
                    self._is_planted.set()
                    plants = False


PLANTED = [
    b"HTTP/1.1 %d X\r\ncontent-length: 0\r\n\r\n",
    b"HTTP/1.1 %d X\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
]


@pytest.mark.parametrize("answer", PLANTED)
async def test_an_answer_before_its_request_is_not_the_answer_to_it(answer):
    with Planter(answer) as planter:
        async with open_sender() as post:
            assert (await post(planter.url)).status == 201
            planter.plant()
            assert (await post(planter.url)).status == 202


async def test_mutant_a_planted_answer_is_the_answer_to_the_next_request(monkeypatch):
    monkeypatch.setattr(connection_pool.Connection, "has_input", lambda _: False)
    with Planter(PLANTED[0]) as planter:
        async with open_sender() as post:
            assert (await post(planter.url)).status == 201
            planter.plant()
            assert (await post(planter.url)).status == 299


@pytest.mark.parametrize("answer", [OK, CHUNKED + b"2\r\nok\r\n0\r\n\r\n", NO_CONTENT + b"\r\n"])
async def test_an_answer_in_the_same_read_as_another_is_dropped(answer, way):
    planted = b"HTTP/1.1 299 X\r\ncontent-length: 0\r\n\r\n"
    async with Receiver((answer + planted,)) as receiver, open_sender() as post:
        statuses = [(await post(receiver.url)).status for _ in range(4)]
        assert 299 not in statuses
        if way != "libcurl":
            assert receiver.accepted == 4


async def test_idle_connections_are_bounded_and_closed_after_a_while(monkeypatch):
    monkeypatch.setattr(connection_pool, "KEPT_OPEN", 3)
    async with Receiver((0.05, OK)) as receiver, open_sender(concurrency=3) as post:
        assert {one.status for one in await post.many([receiver.url] * 10)} == {200}
        assert (receiver.accepted, len(post.sender.pool.opened)) == (10, 3)
        monkeypatch.setattr(connection_pool, "IDLE_S", 0.05)
        assert (await post(receiver.url)).status == 200
        await eventually(lambda: len(post.sender.pool.opened) == 2)
        assert receiver.accepted == 10


async def test_each_request_on_a_reused_connection_has_its_own_timeout():
    async with Scripted([OK, OK, OK, b""]) as server, open_sender() as post:
        for timeout_s in (60.0, 20.0, 60.0):
            assert (await post(server.url, timeout_s=timeout_s)).status == 200
        assert (await post(server.url, timeout_s=0.3)).failure is TransportFailure.TIMEOUT
        await eventually(lambda: len(server.requests) == 4)


async def test_an_early_response_to_an_unread_body_is_returned():
    async with open_sender() as post:
        refusal = b"HTTP/1.1 413 X\r\ncontent-length: 0\r\n\r\n"

        async def refuse(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(refusal)
            with contextlib.suppress(OSError):
                await reader.read()
            writer.close()

        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
            assert (await post(url, body=b"x" * 4_000_000)).status == 413
            # What is left of the request cannot be mistaken for the beginning of another one.
            await eventually(lambda: not post.sender.pool.opened)


# New connections.


@pytest.mark.parametrize(
    ("changes", "request_fields"),
    [
        ({"proxy": "http://127.0.0.1:3128"}, {}),
        ({}, {"client_certificate": ("a", "b")}),
        ({}, {"headers": (("Accept", "text/plain"),)}),
        ({}, {"headers": (("Transfer-Encoding", "chunked"),)}),
        *[({}, {"url": f"http://{host}/"}) for host in ("127.1", "0x7f.1", "2130706433", "[::1]", "receiver.test.")],
        *[({}, {"url": url}) for url in ("ftp://receiver.test/", "http://receiver.test:25/", "nonsense")],
        ({"require_https": True}, {}),
        ({"ports": [443]}, {}),
    ],
)
async def test_unsupported_requests_are_left_to_libcurl(changes, request_fields):
    pool = ConnectionPool(outbound(**changes), on_results=lambda _: None, pass_on=lambda _: None)
    usual = {"url": "http://receiver.test:8080/", "headers": (("x-a", "b"),), "body": b"", "timeout_s": 1.0}
    assert not pool.send(OutgoingRequest(**(usual | request_fields)))
    pool.close()


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("addresses", [["127.0.0.9", "127.0.0.1"], ["::1", "127.0.0.1"], ["127.0.0.1", "::1"]])
async def test_the_next_address_of_a_name_is_tried(monkeypatch, addresses):
    found = [(10 if ":" in one else 2, 1, 6, "", (one, 0)) for one in addresses]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: found)
    async with Receiver() as receiver, open_sender(allow=["127.0.0.0/8", "::1/128"]) as post:
        assert (await post(f"http://receiver.test:{receiver.port}/")).status == 200


async def test_connects_to_addresses_never_to_names(monkeypatch):
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: [(2, 1, 6, "", ("127.0.0.1", 0))])
    loop, connected = asyncio.get_running_loop(), []
    connect = loop.sock_connect

    async def note(opened, address):
        connected.append(address)
        await connect(opened, address)

    monkeypatch.setattr(loop, "sock_connect", note)
    async with Receiver((OK, "close")) as receiver, open_sender() as post:
        for _ in range(2):
            assert (await post(f"http://receiver.test:{receiver.port}/")).status == 200
        assert connected == [("127.0.0.1", receiver.port)] * 2


@pytest.mark.usefixtures("way")
async def test_failing_to_open_a_socket_is_a_fault(monkeypatch):
    async with Receiver() as receiver, open_sender() as post:
        with monkeypatch.context() as patch:
            patch.setattr("boathook.http_client.guard.socket.socket", _no_socket)
            answer = await post(receiver.url)
        assert (answer.failure, "could not open a socket" in answer.error) == (TransportFailure.FAULT, True)
        assert (await post(receiver.url)).status == 200


def _no_socket(*_):
    raise OSError(24, "Too many open files")


@pytest.mark.usefixtures("way")
async def test_an_unreadable_ca_file_is_a_tls_failure(tmp_path):
    (tmp_path / "empty.pem").touch()
    with socket.create_server(("127.0.0.1", 0)) as server:
        for name in ("none.pem", "empty.pem"):
            async with open_sender(ca_file=str(tmp_path / name)) as post:
                answer = await post(f"https://127.0.0.1:{server.getsockname()[1]}/")
                assert (answer.failure, name in answer.error) == (TransportFailure.TLS, True)


def test_tls_connections_are_kept_and_verified_in_production_s_loop(tmp_path):
    async def send():
        authority = Authority(tmp_path)
        async with Receiver(context=authority.context()) as receiver, open_sender(ca_file=authority.file) as post:
            answers = [await post(receiver.url, body=b"x" * 100_000) for _ in range(3)]
            assert [one.status for one in answers] == [200] * 3
            assert receiver.accepted == 1
            other = await post(receiver.url.replace("127.0.0.1", "localhost"))
            assert (other.failure, len(receiver.requests)) == (TransportFailure.TLS, 3)

    uvloop.run(send())


async def test_closing_cancels_pending_connects():
    with socket.create_server(("127.0.0.1", 0)) as server:
        results: list[RequestResult] = []
        pool = ConnectionPool(outbound(), on_results=results.extend, pass_on=lambda _: None)
        url = f"https://127.0.0.1:{server.getsockname()[1]}/"
        assert pool.send(OutgoingRequest(url=url, headers=(), body=b"", timeout_s=60.0))
        accepted, _ = await asyncio.get_running_loop().run_in_executor(None, server.accept)
        with accepted:
            pool.close()
            await eventually(lambda: [one.failure for one in results] == [TransportFailure.CLOSED])
