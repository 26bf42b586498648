"""The gateway's HTTP, spoken to byte by byte over real sockets: slow clients, doubtful requests, pipelining, draining."""

import contextlib
import gzip
import hashlib
import hmac
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from boathook.http.backlog import refuse_new_handshakes
from tests.support import sampled

GATEWAY_PROCESS = Path(__file__).parent / "gateway_process.py"
SECRET = "whsec_gateway_of_the_tests"
SOURCES = {
    "open": {"provider": "token", "header": "X-Token", "unsigned": True},
    "small": {"provider": "token", "header": "X-Token", "unsigned": True, "max_body": 1000},
    "stripe": {"provider": "stripe", "secrets": [SECRET], "paths": ["/webhooks/stripe"]},
    "packed": {"provider": "stripe", "secrets": [SECRET], "content_encodings": ["gzip", "deflate"]},
    "rated-okta": {"provider": "okta", "unsigned": True, "rate": 1, "burst": 3},
    "rated": {"provider": "token", "header": "X-Token", "unsigned": True, "rate": 1, "burst": 3},
}


class Gateway:
    """A gateway subprocess and raw connections to it."""

    def __init__(self, **options: object) -> None:
        self.bound = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.port = self.bound.getsockname()[1]
        self.process = subprocess.Popen(
            [
                sys.executable,
                str(GATEWAY_PROCESS),
                str(self.bound.fileno()),
                json.dumps({"sources": SOURCES, **options}),
            ],
            pass_fds=[self.bound.fileno()],
            stdout=subprocess.PIPE,
            text=True,
        )

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=300)

    def ask(self, *pieces: bytes) -> bytes:
        """Send on one connection and return all that comes until it closes."""
        with self.connect() as client:
            for piece in pieces:
                client.sendall(piece)
            return read_all(client)

    def drain(self) -> dict[str, object]:
        refuse_new_handshakes(self.bound)
        self.process.send_signal(signal.SIGTERM)
        out, _ = self.process.communicate(timeout=300)
        return json.loads(out)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.bound.close()


@pytest.fixture
def make_gateway() -> Iterator[Callable[..., Gateway]]:
    made: list[Gateway] = []

    def make(**options: object) -> Gateway:
        made.append(Gateway(**options))
        assert is_alive(made[-1])
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(scope="module")
def gateway() -> Iterator[Gateway]:
    one = Gateway()
    assert is_alive(one)
    yield one
    one.close()


def is_alive(one: Gateway) -> bool:
    return statuses(one.ask(b"GET /healthz HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")) == [200]


def read_all(client: socket.socket, timeout_s: float = 300) -> bytes:
    client.settimeout(timeout_s)
    got = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := client.recv(65536):
            got += piece
    return got


def read_response(client: socket.socket) -> tuple[int, dict[str, str], bytes]:
    """Read exactly one response with a Content-Length; status 0 where the connection ended instead."""
    got = b""
    while b"\r\n\r\n" not in got:
        piece = client.recv(1)
        if not piece:
            return 0, {}, got
        got += piece
    lines = got.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:] if line)}
    body = b""
    while len(body) < int(headers.get("content-length", 0)):
        body += client.recv(int(headers["content-length"]) - len(body))
    return int(lines[0].split()[1]), headers, body


def post(body: bytes = b"{}", path: str = "/in/open", extra: bytes = b"", length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%s\r\n%s" % (path.encode(), size, extra, body)


def signed_header(body: bytes) -> bytes:
    stamp = int(time.time())
    mac = hmac.new(SECRET.encode(), f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
    return f"Stripe-Signature: t={stamp},v1={mac}\r\n".encode()


def statuses(got: bytes) -> list[int]:
    return [int(part[:3]) for part in got.split(b"HTTP/1.1 ")[1:]]


def test_an_accepted_request_gets_the_documented_response(make_gateway: Callable[..., Gateway]):
    one = make_gateway()
    body = b'{"id":"evt_1","type":"payment.paid"}'
    with one.connect() as client:
        answers = []
        for _ in range(2):
            client.sendall(post(body, "/webhooks/stripe", signed_header(body)))
            answers.append(read_response(client))
    (status, headers, first), (_, _, second) = answers
    assert status == 200
    assert "server" not in headers
    assert "connection" not in headers
    reply, again = json.loads(first), json.loads(second)
    assert reply == {
        "ok": True,
        "event_id": reply["event_id"],
        "duplicate": False,
        "request_id": headers["x-request-id"],
    }
    assert reply["event_id"].startswith("evt_")
    assert again["duplicate"] is True
    assert again["event_id"] == reply["event_id"]


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (post(b"{}", "/in/nobody"), 404),
        (b"GET /in/stripe HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (b"DELETE /in/open HTTP/1.1\r\nHost: a\r\n\r\n", 405),
        (post(b"{}", "/in/stripe"), 401),
        (post(b"{}", "/in/open", b"Content-Encoding: gzip\r\n"), 415),
        (post(b"x" * 1001, "/in/small"), 413),
        (post(b"", "/in/small", length=10**9), 413),
        (
            b"POST /in/small HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
            + b"100\r\n%s\r\n" % (b"x" * 256) * 5,
            413,
        ),
        (b"GET /in/open" + b"a" * 20000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431),
        (b"POST /in/open HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 20000 + b"\r\n\r\n", 431),
        (b"POST /in/open HTTP/1.1\r\nHost: a\r\n" + b"X: a\r\n" * 200 + b"\r\n", 431),
        (b"POST /in/open HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 20000, 431),
    ],
    ids=[
        "source",
        "get",
        "method",
        "signature",
        "encoding",
        "size",
        "announced size",
        "chunked size",
        "target",
        "header",
        "headers",
        "endless header",
    ],
)
def test_a_rejection_has_its_status_no_details_and_closes(gateway: Gateway, request_bytes: bytes, status: int):
    got = gateway.ask(request_bytes)
    assert statuses(got) == [status]
    head, _, body = got.partition(b"\r\n\r\n")
    assert b"connection: close" in head
    assert json.loads(body)["ok"] is False
    assert b"stripe" not in body.lower()


CHUNKED = b"POST /in/open HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n"
HEAD = b"POST /in/open HTTP/1.1\r\nHost: a\r\n"
SMUGGLED = b"GET /healthz HTTP/1.1\r\nHost: evil\r\n\r\n"
DOUBTFUL = {
    "te_and_cl": HEAD + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "cl_and_te": HEAD + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "cl_twice": HEAD + b"Content-Length: 5\r\nContent-Length: 5\r\n\r\nhello",
    "cl_differ": HEAD + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello",
    "cl_list": HEAD + b"Content-Length: 5, 5\r\n\r\nhello",
    "cl_plus": HEAD + b"Content-Length: +5\r\n\r\nhello",
    "cl_minus": HEAD + b"Content-Length: -5\r\n\r\nhello",
    "cl_hex": HEAD + b"Content-Length: 0x5\r\n\r\nhello",
    "cl_empty": HEAD + b"Content-Length: \r\n\r\nhello",
    "cl_word": HEAD + b"Content-Length: five\r\n\r\nhello",
    "cl_huge": HEAD + b"Content-Length: 99999999999999999999999999\r\n\r\nhello",
    "cl_vertical_tab": HEAD + b"Content-Length:\x0b5\r\n\r\nhello",
    "cl_space_colon": HEAD + b"Content-Length : 5\r\n\r\nhello",
    "cl_tab_colon": HEAD + b"Content-Length\t: 5\r\n\r\nhello",
    "cl_underscore": HEAD + b"Content_Length: 5\r\n\r\n",
    "te_underscore": HEAD + b"Transfer_Encoding: chunked\r\n\r\n",
    "te_twice": HEAD + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "te_list": HEAD + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "te_chunked_twice": HEAD + b"Transfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "te_identity": HEAD + b"Transfer-Encoding: identity\r\n\r\n",
    "te_unknown": HEAD + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "te_trailing_space": HEAD + b"Transfer-Encoding: chunked \r\n\r\n0\r\n\r\n",
    "te_quoted": HEAD + b'Transfer-Encoding: "chunked"\r\n\r\n0\r\n\r\n',
    "te_parameter": HEAD + b"Transfer-Encoding: chunked;q=1\r\n\r\n0\r\n\r\n",
    "te_vertical_tab": HEAD + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "te_empty": HEAD + b"Transfer-Encoding:\r\n\r\n",
    "te_folded": HEAD + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "te_http10": b"POST /in/open HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "lf_everywhere": b"POST /in/open HTTP/1.1\nHost: a\nContent-Length: 0\n\n",
    "lf_request_line": b"POST /in/open HTTP/1.1\nHost: a\r\n\r\n",
    "lf_header": HEAD + b"X: y\nContent-Length: 0\r\n\r\n",
    "lf_end": HEAD + b"\n",
    "cr_header": HEAD + b"X: y\rContent-Length: 5\r\n\r\n",
    "cr_cr_lf": HEAD + b"X: y\r\r\n\r\n",
    "fold": HEAD + b"X: a\r\n b\r\n\r\n",
    "fold_tab": HEAD + b"X: a\r\n\tb\r\n\r\n",
    "fold_first": b"POST /in/open HTTP/1.1\r\n Host: a\r\n\r\n",
    "nul_value": HEAD + b"X: a\x00b\r\n\r\n",
    "nul_name": HEAD + b"X\x00: a\r\n\r\n",
    "control_value": HEAD + b"X: a\x01b\r\n\r\n",
    "name_empty": HEAD + b": a\r\n\r\n",
    "name_not_ascii": HEAD + b"X\xc3\xa9: a\r\n\r\n",
    "no_colon": HEAD + b"abc\r\n\r\n",
    "host_missing": b"POST /in/open HTTP/1.1\r\nContent-Length: 0\r\n\r\n",
    "host_twice": HEAD + b"Host: b\r\nContent-Length: 0\r\n\r\n",
    "version_0_9": b"GET /in/open\r\n\r\n",
    "version_1_2": b"GET /in/open HTTP/1.2\r\nHost: a\r\n\r\n",
    "version_2_0": b"GET /in/open HTTP/2.0\r\nHost: a\r\n\r\n",
    "preface_2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "space_in_target": b"POST /in/open x HTTP/1.1\r\nHost: a\r\n\r\n",
    "nul_in_target": b"POST /in/\x00open HTTP/1.1\r\nHost: a\r\n\r\n",
    "not_ascii_target": b"POST /in/\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n",
    "not_http": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "chunk_plus": CHUNKED + b"+5\r\nhello\r\n0\r\n\r\n",
    "chunk_minus": CHUNKED + b"-5\r\nhello\r\n0\r\n\r\n",
    "chunk_hex_prefix": CHUNKED + b"0x5\r\nhello\r\n0\r\n\r\n",
    "chunk_space": CHUNKED + b"5 \r\nhello\r\n0\r\n\r\n",
    "chunk_leading_space": CHUNKED + b" 5\r\nhello\r\n0\r\n\r\n",
    "chunk_lf": CHUNKED + b"5\nhello\r\n0\r\n\r\n",
    "chunk_cr": CHUNKED + b"5\rhello\r\n0\r\n\r\n",
    "chunk_data_lf": CHUNKED + b"5\r\nhello\n0\r\n\r\n",
    "chunk_data_unended": CHUNKED + b"5\r\nhello0\r\n\r\n",
    "chunk_too_long": CHUNKED + b"5\r\nhelloXX\r\n0\r\n\r\n",
    "chunk_overflow": CHUNKED + b"FFFFFFFFFFFFFFFFF\r\n",
    "chunk_underscore": CHUNKED + b"5_0\r\nhello\r\n",
    "chunk_empty_size": CHUNKED + b"\r\nhello\r\n",
    "chunk_extension_lf": CHUNKED + b"5;a\nb\r\nhello\r\n0\r\n\r\n",
    "chunk_extension_nul": CHUNKED + b"5;\x00\r\nhello\r\n0\r\n\r\n",
    "chunk_end_lf": CHUNKED + b"5\r\nhello\r\n0\r\n\n",
    "trailer_length": CHUNKED + b"5\r\nhello\r\n0\r\nContent-Length: 9\r\n\r\n",
    "trailer_encoding": CHUNKED + b"5\r\nhello\r\n0\r\nTransfer-Encoding: chunked\r\n\r\n",
}


@pytest.mark.parametrize("name", DOUBTFUL)
def test_an_ambiguous_request_is_refused_and_nothing_after_it_read(gateway: Gateway, name: str):
    got = gateway.ask(DOUBTFUL[name] + SMUGGLED)
    assert statuses(got) in ([400], [405]), got
    assert b"connection: close" in got
    assert b'"pid"' not in got, "the smuggled request was answered"


def test_the_same_bytes_after_a_valid_request_are_read(gateway: Gateway):
    """The mutant: after an unambiguous request, the same bytes are read as a second request."""
    got = gateway.ask(post(b"hello") + SMUGGLED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
    assert statuses(got) == [200, 200]
    assert b'"pid"' in got


def test_chunks_may_be_split_anywhere(gateway: Gateway):
    wire = (
        HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n5;a=b\r\nhello\r\n1\r\n!\r\n0\r\nX: y\r\n\r\n"
    )
    got = gateway.ask(*(wire[i : i + 1] for i in range(len(wire))))
    assert statuses(got) == [200]


def chunked_with_extensions(chunks: int, extension: int) -> bytes:
    """A request whose chunks have one byte each, with an extension of some length."""
    chunk = b"1;" + b"a" * (extension - 1) + b"\r\nx\r\n"
    return HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n" + chunk * chunks + b"0\r\n\r\n"


@pytest.mark.parametrize(
    ("chunks", "extension", "status"), [(1, 40_000, 400), (100, 1_000, 400), (1, 10_000, 200), (1_000, 9, 200)]
)
@pytest.mark.parametrize("cut", [1_000_000, 500])
def test_chunk_extensions_count_against_the_limit_of_a_head(
    gateway: Gateway, chunks: int, extension: int, status: int, cut: int
):
    """RFC 9112, section 7.1.1."""
    wire = chunked_with_extensions(chunks, extension)
    with gateway.connect() as client:
        with contextlib.suppress(ConnectionError):
            for begin in range(0, len(wire), cut):
                client.sendall(wire[begin : begin + cut])
        assert statuses(read_all(client)) == [status]


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"FOO /in/open HTTP/1.1", 501),
        (b"post /in/open HTTP/1.1", 501),
        (b"M-SEARCHES * HTTP/1.1", 501),
        (b"CONNECT a:1 HTTP/1.1", 501),
        (b"PROPFIND /in/open HTTP/1.1", 405),
        (b"FOO /in/open", 400),
        (b"F(O /in/open HTTP/1.1", 400),
    ],
)
def test_a_method_is_unknown_or_not_allowed(gateway: Gateway, line: bytes, status: int):
    """RFC 9110, section 9.1: 501 if it is unknown, 405 if the resource does not have it."""
    got = gateway.ask(line + b"\r\nHost: a\r\nContent-Length: 0\r\n\r\n" + SMUGGLED)
    assert statuses(got) == [status]
    assert b"connection: close" in got


@pytest.mark.parametrize(
    "host",
    [
        b"a",
        b"",
        b"a:80",
        b"a:",
        b"127.0.0.1:8080",
        b"[::1]",
        b"[::1]:443",
        b"[v1.a:b]",
        b"a_b.example",
        b"%61",
        b"A.B",
        b"a~!",
    ],
)
def test_a_valid_host_is_accepted(gateway: Gateway, host: bytes):
    wire = b"POST /in/open HTTP/1.1\r\nConnection: Close\r\nHost: %s\r\nContent-Length: 1\r\n\r\nx" % host
    assert statuses(gateway.ask(wire)) == [200]


def test_pipelined_requests_are_answered_in_order(make_gateway: Callable[..., Gateway]):
    one = make_gateway(commit_s=0.02)
    with one.connect() as client:
        client.sendall(b"".join(post(b"n=%d" % n) for n in range(20)) + b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n")
        answers = [read_response(client) for _ in range(21)]
        assert [status for status, _, _ in answers] == [200] * 21
        assert b"pid" in answers[-1][2]
        numbers = [headers["x-request-id"] for _, headers, _ in answers[:-1]]
        assert numbers == sorted(numbers)
        client.sendall(post(b"again"))
        assert read_response(client)[0] == 200


def test_an_ambiguous_pipelined_request_is_refused_after_earlier_responses(make_gateway: Callable[..., Gateway]):
    got = make_gateway(commit_s=0.05).ask(post(b"one") + post(b"two") + DOUBTFUL["te_and_cl"] + SMUGGLED)
    assert statuses(got) == [200, 200, 400]


def test_a_client_may_finish_sending_before_it_reads(make_gateway: Callable[..., Gateway]):
    one = make_gateway(commit_s=0.1)
    with one.connect() as client:
        client.sendall(post(b"x"))
        client.shutdown(socket.SHUT_WR)
        assert statuses(read_all(client)) == [200]


def test_expect_continue_is_sent_unless_the_body_is_too_large(gateway: Gateway):
    with gateway.connect() as client:
        client.sendall(post(b"", extra=b"Expect: 100-continue\r\nConnection: close\r\n", length=2))
        assert client.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.sendall(b"{}")
        assert statuses(read_all(client)) == [200]
    got = gateway.ask(post(b"", "/in/small", b"Expect: 100-continue\r\n", length=5000))
    assert statuses(got) == [413]


def test_the_413_reaches_a_client_that_is_still_sending(gateway: Gateway):
    with gateway.connect() as client:
        client.sendall(post(b"", "/in/small", length=3_000_000))
        with contextlib.suppress(ConnectionError):
            for _ in range(30):
                client.sendall(b"x" * 100_000)
        assert statuses(read_all(client)) == [413]


def test_a_body_that_nobody_read_is_dropped_and_the_connection_stays_usable(gateway: Gateway):
    with gateway.connect() as client:
        client.sendall(post(b"x" * 3_000_000, "/healthz").replace(b"POST", b"GET", 1))
        assert read_response(client)[0] == 200
        client.sendall(post(b"next"))
        assert read_response(client)[0] == 200


def test_a_connection_is_closed_if_its_client_was_never_asked_for_the_body(gateway: Gateway):
    """The client may leave the body out; its next request would be read as that body."""
    got = gateway.ask(post(b"", "/healthz", b"Expect: 100-continue\r\n", length=500).replace(b"POST", b"GET", 1))
    assert statuses(got) == [200]
    assert b"connection: close" in got


QUICK = {"head_timeout_s": 0.5, "body_timeout_s": 2.0, "keep_alive_s": 1.0}


def seconds_until_closed(client: socket.socket, drip: bytes = b"") -> tuple[float, bytes]:
    """Send bytes slowly until the other side closes."""
    started, got = time.monotonic(), b""
    client.setblocking(False)
    while time.monotonic() - started < 15:
        readable, _, _ = select.select([client], [], [], 0.05)
        if readable:
            try:
                piece = client.recv(65536)
            except ConnectionError:
                break
            if not piece:
                break
            got += piece
        elif drip:
            with contextlib.suppress(ConnectionError):
                client.send(drip)
    return time.monotonic() - started, got


@pytest.mark.extended("waits for intervals and deadlines of the product")
@pytest.mark.parametrize(
    ("begin", "drip", "within_s", "status"),
    [
        (b"POST /in/open HT", b"", 8, [408]),
        (b"POST /in/open HTTP/1.1\r\nHost: a\r\n", b"X", 8, [408]),
        (post(b"x", length=9000), b"", 9, [408]),
        (post(b"x", length=900000), b"x" * 30, 9, [408]),
        (post(b"x", length=10**6), b"x" * 100, 9, [408]),
        (b"", b"", 8, []),
    ],
    ids=["head", "dripping head", "no body", "slow body", "endless body", "silence"],
)
def test_a_slow_client_is_closed_in_time(make_gateway: Callable[..., Gateway], begin, drip, within_s, status):
    one = make_gateway(limits=QUICK)
    with one.connect() as client:
        client.sendall(begin)
        spent_s, got = seconds_until_closed(client, drip)
    assert spent_s < within_s
    assert statuses(got) == status


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_a_slow_client_stays_when_the_deadlines_are_far(make_gateway: Callable[..., Gateway]):
    """The mutant: with long deadlines the same client is not cut off."""
    one = make_gateway(limits={"head_timeout_s": 60})
    with one.connect() as client:
        client.sendall(b"POST /in/open HT")
        client.settimeout(2)
        with pytest.raises(TimeoutError):
            client.recv(1)


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_an_idle_connection_is_closed_after_keep_alive(make_gateway: Callable[..., Gateway]):
    one = make_gateway(limits=QUICK)
    with one.connect() as client:
        client.sendall(post(b"x"))
        assert read_response(client)[0] == 200
        spent_s, got = seconds_until_closed(client)
    assert spent_s > 0.8
    assert got == b""


@pytest.mark.extended("floods a gateway once more; one flood stays")
def test_trickling_sockets_do_not_slow_down_good_traffic(make_gateway: Callable[..., Gateway]):
    one = make_gateway(limits={**QUICK, "max_connections_per_client": 5000})
    trickles = [one.connect() for _ in range(300)]
    for client in trickles:
        client.sendall(b"POST /in/open HTTP/1.1\r\nHost: a\r\nX: ")
    slowest = 0.0
    with one.connect() as good:
        for n in range(200):
            started = time.monotonic()
            good.sendall(post(b"%d" % n))
            assert read_response(good)[0] == 200
            slowest = max(slowest, time.monotonic() - started)
    assert slowest < 5, "one after another, they would take minutes"
    for client in trickles:
        assert seconds_until_closed(client)[0] < 12
        client.close()


def test_connections_are_capped_for_one_client_and_freed_again(make_gateway: Callable[..., Gateway]):
    one = make_gateway(limits={"max_connections_per_client": 5})
    held = []
    for _ in range(5):
        client = one.connect()
        client.sendall(post(b"x", extra=b"Expect: 100-continue\r\n")[:-1])
        assert client.recv(100).startswith(b"HTTP/1.1 100")
        held.append(client)
    got = one.ask(post(b"x"))
    assert statuses(got) in ([503], [])
    held.pop().close()
    deadline = time.monotonic() + 60
    while statuses(one.ask(post(b"x", extra=b"Connection: close\r\n"))) != [200]:
        assert time.monotonic() < deadline
    for client in held:
        client.close()


def test_an_idle_connection_makes_room_for_a_new_one_of_its_client(make_gateway: Callable[..., Gateway]):
    one = make_gateway(limits={"max_connections_per_client": 2})
    with contextlib.ExitStack() as stack:
        first, second, third = (stack.enter_context(_answered(one)) for _ in range(3))
        assert first.recv(1) == b""
        for client in (second, third):
            client.sendall(post(b"x"))
            assert read_response(client)[0] == 200


def _answered(one: Gateway) -> socket.socket:
    """Return a connection that has had one answer."""
    client = one.connect()
    client.sendall(post(b"x"))
    assert read_response(client)[0] == 200
    return client


def test_a_flood_of_single_byte_chunks_is_cut_off(gateway: Gateway):
    with gateway.connect() as client:
        started = time.monotonic()
        with contextlib.suppress(ConnectionError):
            client.sendall(CHUNKED + b"1\r\nx\r\n" * 200_000)
        got = read_all(client)
    assert statuses(got) == [400]
    assert time.monotonic() - started < 300


def test_rates_answer_429_with_retry_after(make_gateway: Callable[..., Gateway]):
    one = make_gateway()
    answers = [one.ask(post(b"{}", "/in/rated", b"Connection: close\r\n")) for _ in range(5)]
    assert [status for got in answers for status in statuses(got)] == [200, 200, 200, 429, 429]
    assert b"retry-after: 1\r\n" in answers[-1]


def test_a_sender_that_never_retries_after_429_gets_503(make_gateway: Callable[..., Gateway]):
    one = make_gateway()
    answers = [one.ask(post(b"{}", "/in/rated-okta", b"Connection: close\r\n")) for _ in range(4)]
    assert statuses(answers[-1]) == [503]
    assert b"retry-after: 1\r\n" in answers[-1]


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_client_rates_use_the_address_behind_a_trusted_proxy(make_gateway: Callable[..., Gateway]):
    limits = {"client_rate": 1, "client_burst": 2}
    one = make_gateway(limits=limits, trusted_proxies=["127.0.0.0/8"])

    def ask(forwarded: bytes) -> int:
        return statuses(one.ask(post(b"{}", extra=b"X-Forwarded-For: %s\r\nConnection: close\r\n" % forwarded)))[0]

    assert [ask(b"1.1.1.1") for _ in range(3)] == [200, 200, 429]
    assert ask(b"9.9.9.9, 1.1.1.1") == 429, "a stranger's own entry must not count"
    assert ask(b"2.2.2.2") == 200
    other = make_gateway(limits=limits)
    found = [
        statuses(other.ask(post(b"{}", extra=b"X-Forwarded-For: 1.1.1.%d\r\nConnection: close\r\n" % n)))[0]
        for n in range(3)
    ]
    assert found == [200, 200, 429], "without a trusted proxy the header must not count"


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        (b"gzip", gzip.compress(b'{"id":"evt_9","type":"a.b"}'), 200),
        (b"deflate", zlib.compress(b'{"id":"evt_9","type":"a.b"}'), 200),
        (b"gzip", gzip.compress(b" " * 9_000_000 + b"{}"), 413),
        (b"gzip", gzip.compress(gzip.compress(b" " * 9_000_000)), 400),
        (b"gzip", b"no gzip at all", 400),
        (b"gzip", gzip.compress(b'{"id":"evt_9","type":"a.b"}')[:-4], 400),
        (b"GZip", gzip.compress(b'{"id":"evt_9","type":"a.b"}'), 200),
        (b"x-gzip", gzip.compress(b'{"id":"evt_9","type":"a.b"}'), 200),
        (b"Identity", b'{"id":"evt_9","type":"a.b"}', 200),
        (b"br", b"xx", 415),
        (b"gzip, gzip", b"xx", 415),
    ],
    ids=["gzip", "deflate", "bomb", "nested", "garbage", "cut", "capitals", "x-gzip", "identity", "brotli", "twice"],
)
def test_bodies_are_decoded_within_limits_after_verification(
    gateway: Gateway, encoding: bytes, body: bytes, status: int
):
    head = b"Content-Encoding: %s\r\nConnection: close\r\n" % encoding
    assert statuses(gateway.ask(post(body, "/in/packed", head + signed_header(body)))) == [status]
    if status != 415:
        forged = signed_header(body + b"x")
        assert statuses(gateway.ask(post(body, "/in/packed", head + forged))) == [401], "unpacked before the proof"


class Load:
    """Clients that keep sending, each request either answered whole or counted as failed."""

    def __init__(self, one: Gateway, *, clients: int, keep_alive: bool) -> None:
        self.answered = self.failed = 0
        self.faults: list[str] = []
        self._one, self._keep_alive = one, keep_alive
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(clients)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        extra = b"" if self._keep_alive else b"Connection: close\r\n"
        client = None
        while not self._stop.is_set():
            if client is None:
                try:
                    client = socket.create_connection(("127.0.0.1", self._one.port), timeout=0.4)
                except OSError:
                    return  # never connected: refused or dropped, which is no failed request
                client.settimeout(10)
            try:
                client.sendall(post(b"x", extra=extra))
                status, headers, _ = read_response(client)
            except OSError as error:
                status, headers = 0, {}
                self.faults.append(repr(error))
            if status != 200:
                self.failed += 1
                self.faults.append(f"status {status}")
                client.close()
                return
            self.answered += 1
            if headers.get("connection") == "close":
                client.close()
                client = None
        if client is not None:
            client.close()

    def wait_for(self, count: int) -> None:
        deadline = time.monotonic() + 20
        while self.answered < count:
            assert time.monotonic() < deadline, self.faults
            time.sleep(0.01)

    def end(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(300)


@pytest.mark.parametrize("keep_alive", [True, False], ids=["kept alive", "one request each"])
@pytest.mark.parametrize("run", sampled(range(3), keep=1))
def test_draining_under_load_fails_no_request(make_gateway: Callable[..., Gateway], keep_alive: bool, run: int):
    one = make_gateway(commit_s=0.005)
    load = Load(one, clients=12, keep_alive=keep_alive)
    load.wait_for(100)
    result = one.drain()
    one.bound.close()
    load.end()
    assert result["is_clean"] is True
    assert load.failed == 0, load.faults
    assert load.answered >= 100


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
def test_killing_under_load_fails_requests(make_gateway: Callable[..., Gateway]):
    """The mutant: without a drain requests fail."""
    one = make_gateway(commit_s=0.05)
    load = Load(one, clients=12, keep_alive=True)
    load.wait_for(50)
    os.kill(one.process.pid, signal.SIGKILL)
    one.bound.close()
    load.end()
    assert load.failed > 0


@pytest.mark.extended("waits for intervals and deadlines of the product")
def test_a_slow_request_under_way_is_finished_while_draining(make_gateway: Callable[..., Gateway]):
    one = make_gateway(commit_s=0.1)
    with one.connect() as client:
        body = b"x" * 4000
        client.sendall(post(body)[:-2000])
        waiter = threading.Timer(0.7, client.sendall, [body[:2000]])
        waiter.start()
        result = one.drain()
        status, headers, _ = read_response(client)
    assert (status, headers["connection"]) == (200, "close")
    assert result["is_clean"] is True


def test_the_kernel_drops_new_handshakes_but_keeps_the_backlog():
    with socket.create_server(("127.0.0.1", 0)) as bound, socket.create_connection(bound.getsockname()) as waiting:
        refuse_new_handshakes(bound)
        with pytest.raises(TimeoutError):
            socket.create_connection(bound.getsockname(), timeout=0.5)
        accepted, _ = bound.accept()
        waiting.sendall(b"still here")
        assert accepted.recv(100) == b"still here"
        accepted.close()
