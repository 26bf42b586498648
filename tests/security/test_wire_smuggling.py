"""Ambiguous requests: each is refused, or read as intended."""

import contextlib
import json
import random
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.acceptance.conftest import free_port
from tests.security.gateway_client import Gateway, gateway, read_all, statuses
from tests.security.smuggling_vectors import BODY, MARK, VECTORS, Vector
from tests.support import until

ROOT = Path(__file__).parents[2]


def test_there_are_a_hundred_and_twenty_vectors_of_different_bytes():
    assert len({vector.wire for vector in VECTORS}) == len(VECTORS) >= 120
    assert sum(MARK.partition(b"?")[0] in vector.wire for vector in VECTORS) > 120


def whole(wire: bytes) -> list[bytes]:
    return [wire]


def in_two(wire: bytes) -> list[bytes]:
    cut = random.Random(wire).randrange(1, len(wire))
    return [wire[:cut], wire[cut:]]


def by_the_byte(wire: bytes) -> list[bytes]:
    return [wire[place : place + 1] for place in range(len(wire))]


def responses_and_events(
    one: Gateway, vector: Vector, pieces: list[bytes], *, ends: bool
) -> tuple[list[int], set[bytes]]:
    """Return what a vector is answered until the gateway closes, and the bodies stored of it.

    Where the vector is to be refused, its sender leaves the closing to the gateway, unless it *ends*.
    """
    before = one.stored()
    with one.connect() as client:
        try:
            for piece in pieces:
                client.sendall(piece)
            if ends or not vector.statuses or vector.statuses[-1] < 400:
                client.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # closed already
        found = statuses(read_all(client))
    return found, {body for key, body in one.stored().items() if key not in before}


def marks(one: Gateway) -> list[str]:
    """Return the marks that the gateway took for requests of their own."""
    return [json.loads(body)["id"] for body in one.stored().values() if body.startswith(b'{"id":"smuggled-')]


def misread(one: Gateway, cut: Callable[[bytes], list[bytes]], *, ends: bool = False) -> dict[str, object]:
    """Return the responses and stored bodies of each vector that was not read as intended."""
    wrong: dict[str, object] = {}
    for vector in VECTORS:
        found = responses_and_events(one, vector, cut(vector.wire), ends=ends)
        if found != (list(vector.statuses), set(vector.bodies)):
            wrong[vector.name] = found
    return wrong


@pytest.mark.parametrize(
    "cut",
    [whole, pytest.param(in_two, marks=pytest.mark.extended("another cut of the same requests stays")), by_the_byte],
)
def test_each_vector_is_refused_or_read_as_intended(cut: Callable[[bytes], list[bytes]]):
    with gateway() as one:
        assert misread(one, cut) == {}


def test_a_request_after_a_valid_one_is_stored():
    """The mutant of the mark: it is answered wherever it is read as a request."""
    with gateway() as one:
        assert statuses(one.ask(MARK + MARK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))) == [200, 200]
        assert list(one.stored().values()) == [BODY]
        assert marks(one) == ["smuggled-000"]


@pytest.mark.extended("the mutant of a test that stays: it shows that the test can fail")
@pytest.mark.parametrize(("name", "least"), [("no judge of heads", 5), ("lenient parser", 20)])
def test_mutant_without_the_safeguard_marks_are_smuggled(name: str, least: int):
    with gateway(mutant=name) as one:
        misread(one, whole, ends=True)
        assert len(marks(one)) >= least


# Behind a proxy: whatever it makes of a vector, it and the gateway count the same requests.

NGINX = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log crit;
events {{ worker_connections 256; }}
http {{
    log_format line '$request_uri'; access_log {folder}/access.log line;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/f;
    uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
    ignore_invalid_headers off; underscores_in_headers on; merge_slashes off;
    upstream gateway {{ server 127.0.0.1:{gateway}; keepalive 4; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://gateway; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_request_buffering off;
        }}
    }}
}}
"""
HAPROXY = """
global
    log stdout format raw daemon
defaults
    mode http
    log global
    log-format "%HU"
    timeout connect 2s
    timeout client 4s
    timeout server 4s
    http-reuse always
    option accept-invalid-http-request
frontend front
    bind 127.0.0.1:{port}
    default_backend back
backend back
    server one 127.0.0.1:{gateway}
"""
PROXIES = {
    "nginx": (NGINX, "nginx-light", ["nginx", "-p", "{folder}", "-c", "{file}"]),
    "haproxy": (HAPROXY, "haproxy", ["haproxy", "-db", "-f", "{file}"]),
}


class Proxy:
    """A proxy in front of a gateway, with its own record of the requests it has read."""

    def __init__(self, name: str, folder: Path, one: Gateway) -> None:
        text, package, command = PROXIES[name]
        if shutil.which(name) is None:
            subprocess.run([ROOT / "scripts/need-program", name, package], check=True, timeout=110)
        self.port = free_port()
        file = folder / "proxy.conf"
        file.write_text(text.format(folder=folder, port=self.port, gateway=one.port))
        self._logs = [folder / "access.log", folder / "out.log"]
        with self._logs[1].open("wb") as out:
            line = [word.format(folder=folder, file=file) for word in command]
            self.process = subprocess.Popen(line, stdout=out, stderr=out, cwd=folder)

    def read(self) -> str:
        """Return the targets of all requests it has read."""
        return "".join(log.read_text(errors="replace") for log in self._logs if log.exists())

    def is_up(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(300)


@pytest.fixture(params=PROXIES)
def proxied(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Gateway, Proxy]]:
    monkeypatch.setenv("PATH", "/usr/sbin", prepend=":")
    with gateway() as one:
        proxy = Proxy(request.param, tmp_path, one)
        try:
            until(proxy.is_up)
            yield one, proxy
        finally:
            proxy.close()


def unread_marks(one: Gateway, proxy: Proxy) -> list[str]:
    """Return the marks that the gateway took for requests, and the proxy did not."""
    until(lambda: "/echo/last" in proxy.read())
    return [key for key in marks(one) if f"?{key}" not in proxy.read()]


def echo(one: Gateway, proxy: Proxy, word: bytes) -> bytes:
    """Return the response to an honest request through the proxy."""
    got = one.ask(b"GET /echo/%s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" % word, port=proxy.port)
    return got.rpartition(b"\r\n\r\n")[2]


@pytest.mark.soak
def test_a_proxy_and_the_gateway_count_the_same_requests(proxied: tuple[Gateway, Proxy]):
    one, proxy = proxied
    for number, vector in enumerate(VECTORS):
        with one.connect(port=proxy.port) as client, contextlib.suppress(ConnectionError, TimeoutError):
            client.sendall(vector.wire)
            client.settimeout(0.3)
            while client.recv(65536):
                pass
        word = b"word-%d" % number
        assert echo(one, proxy, word) == word, vector.name
    assert echo(one, proxy, b"last") == b"last"
    assert len(one.stored()) > 20
    assert unread_marks(one, proxy) == []


@pytest.mark.soak
def test_a_mark_that_went_past_the_proxy_would_be_found(proxied: tuple[Gateway, Proxy]):
    """The mutant: the same mark sent to the gateway itself is in no log of the proxy."""
    one, proxy = proxied
    assert statuses(one.ask(MARK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))) == [200]
    assert echo(one, proxy, b"last") == b"last"
    assert unread_marks(one, proxy) == ["smuggled-000"]
