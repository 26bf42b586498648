"""The fetcher over real sockets and TLS on loopback: accepted and refused URLs and responses."""

import asyncio
import contextlib
import socket
import ssl
import threading
import time
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address, ip_network

import pycurl
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from boathook.domain.errors import FetchFailed
from boathook.http_client import curl_multi, guard, resolver
from boathook.http_client import fetch as fetching
from boathook.http_client.fetch import Fetcher
from tests.support import until
from tests.unit.test_addresses import SPELLINGS

LOOPBACK = (ip_network("127.0.0.1/32"),)
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"


class Server:
    """A TLS server with a configurable response; it counts connections and requests."""

    def __init__(self, context):
        self.answer: bytes | tuple[bytes, ...] = OK
        self.delay_s = 0.0
        self.accepted = 0
        self.requests = []
        self._context = context
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._servers = [self._call(self._start("127.0.0.1", 0))]
        self.port = self._servers[0].sockets[0].getsockname()[1]
        self._servers.append(self._call(self._start("127.0.0.2", self.port)))
        self.url = f"https://127.0.0.1:{self.port}/key.pem"

    def _call(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(300)

    async def _start(self, host, port):
        # Plain sockets, so that a connection counts before any TLS.
        return await asyncio.start_server(self._serve, host, port)

    async def _serve(self, reader, writer):
        self.accepted += 1
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ssl.SSLError), contextlib.closing(writer):
            await writer.start_tls(self._context)
            self.requests.append(await reader.readuntil(b"\r\n\r\n"))
            await asyncio.sleep(self.delay_s)
            for piece in [self.answer] if isinstance(self.answer, bytes) else self.answer:
                writer.write(piece)
                await writer.drain()

    def close(self):
        async def stop():
            for server in self._servers:
                server.close()
            others = asyncio.all_tasks() - {asyncio.current_task()}
            for task in others:
                task.cancel()
            await asyncio.gather(*others, return_exceptions=True)

        self._call(stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(300)
        self._loop.close()


def make_certificate(folder, *, names=("127.0.0.1", "127.0.0.2", "sender.test", "localhost"), days=(-1, 1)):
    """Write a CA and a server's certificate and key; return the paths of the CA and of the server's chain."""
    now = datetime.now(UTC)

    def build(subject, issuer, public, extension):
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=days[0]))
            .not_valid_after(now + timedelta(days=days[1]))
            .add_extension(extension, critical=False)
        )

    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    ca = build("ca", "ca", ca_key.public_key(), x509.BasicConstraints(ca=True, path_length=None)).sign(
        ca_key, hashes.SHA256()
    )
    alternatives = [x509.IPAddress(ip_address(n)) if n[0].isdigit() else x509.DNSName(n) for n in names]
    leaf = build("server", "ca", key.public_key(), x509.SubjectAlternativeName(alternatives)).sign(
        ca_key, hashes.SHA256()
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "ca.pem").write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    (folder / "server.pem").write_bytes(leaf.public_bytes(serialization.Encoding.PEM) + private)
    return str(folder / "ca.pem"), str(folder / "server.pem")


@pytest.fixture
def certificate(tmp_path):
    return make_certificate(tmp_path)


def serve(chain):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(chain)
    return Server(context)


@pytest.fixture
def server(certificate):
    running = serve(certificate[1])
    yield running
    running.close()


@pytest.fixture
def fetcher(server, certificate):
    one = Fetcher(LOOPBACK, ca_file=certificate[0], ports=frozenset({server.port}))
    yield one
    one.close()


def refused(fetcher, url, words=".", **limits):
    with pytest.raises(FetchFailed, match=words):
        fetcher.fetch_sync(url, **({"max_bytes": 100} | limits))


# What it fetches.


async def test_fetches_a_url(server, fetcher):
    assert await fetcher.fetch(server.url, max_bytes=5) == b"hello"
    assert await asyncio.to_thread(fetcher.fetch_sync, server.url, max_bytes=100) == b"hello"
    head = server.requests[0].decode()
    assert head.startswith("GET /key.pem HTTP/1.1\r\n")
    assert "authorization" not in head.lower()


async def test_many_at_once_share_one_request(server, fetcher):
    server.delay_s = 0.2
    found = await asyncio.gather(*(fetcher.fetch(server.url, max_bytes=100) for _ in range(50)))
    assert set(found) == {b"hello"}
    assert len(server.requests) == 1


async def test_cancelling_one_caller_keeps_the_shared_fetch(server, fetcher):
    server.delay_s = 0.2
    first = asyncio.create_task(fetcher.fetch(server.url, max_bytes=100))
    second = asyncio.create_task(fetcher.fetch(server.url, max_bytes=100))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == b"hello"
    assert len(server.requests) == 1


async def test_no_more_than_four_run_and_thirty_two_wait(server, fetcher):
    server.delay_s = 0.3
    base = server.url
    tasks = [asyncio.create_task(fetcher.fetch(f"{base}?{i}", max_bytes=100)) for i in range(40)]
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert sum(isinstance(one, FetchFailed) and "other addresses" in str(one) for one in found) == 8
    assert sum(one == b"hello" for one in found) == 32


# What it does not: addresses.


def test_blocked_addresses_get_no_connection(server, certificate):
    fetcher = Fetcher((), ca_file=certificate[0], ports=frozenset({server.port}))
    refused(fetcher, server.url, "this machine")
    refused(fetcher, f"https://localhost:{server.port}/", "this machine")
    refused(fetcher, f"https://[::1]:{server.port}/", "this machine")
    refused(fetcher, f"https://[::ffff:127.0.0.1]:{server.port}/", "disguise")
    refused(fetcher, f"https://[::ffff:7f00:1]:{server.port}/", "disguise")
    assert server.accepted == 0


def test_mutant_without_the_guard_it_connects(server, certificate, monkeypatch):
    fetcher = Fetcher((), ca_file=certificate[0], ports=frozenset({server.port}))
    monkeypatch.setattr(guard, "find_denial_on_host", lambda *_: None)
    assert fetcher.fetch_sync(server.url, max_bytes=100) == b"hello"


@pytest.mark.parametrize("spelling", [*SPELLINGS, "%31%32%37.0.0.1", "127.0.0.1.", "127.0.0.1%00.sender.test"])
def test_no_spelling_of_a_blocked_address_is_connected(server, certificate, spelling):
    fetcher = Fetcher((), ca_file=certificate[0], ports=frozenset({server.port}))
    refused(fetcher, f"https://{spelling}:{server.port}/", timeout_s=2.0)
    assert server.accepted == 0


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:PORT/",
        "HTTP://127.0.0.1:PORT/",
        "ftp://127.0.0.1:PORT/",
        "file:///etc/passwd",
        "gopher://127.0.0.1:PORT/_x",
        "dict://127.0.0.1:PORT/x",
        "data:text/plain,x",
        "ws://127.0.0.1:PORT/",
        "127.0.0.1:PORT/",
        "//127.0.0.1:PORT/",
        "https://good.test@127.0.0.1:PORT/",
        "https://user:secret@127.0.0.1:PORT/",
        "https://127.0.0.1:PORT#@good.test/",
        "https://good.test\\@127.0.0.1:PORT/",
        "https://127.0.0.1:PORT/\r\nx: y",
        "https://127.0.0.1:PORT/\tx",
        "https://127.0.0.1:PORT/ x",
        " https://127.0.0.1:PORT/",
        "https://127.0.0.1:99999/",
        "https://127.0.0.1:22/",
        "https://127.0.0.1:-1/",
        "https://127.0.0.1:5432/",
        "https://[::1/",
        "https://",
        "https:///x",
        "https:127.0.0.1:PORT/",
        "",
        "https://127.0.0.1:PORT/" + "a" * 2_000,
    ],
)
def test_only_plain_addresses_of_https_are_fetched(server, fetcher, url):
    refused(fetcher, url.replace("PORT", str(server.port)))
    assert server.accepted == 0


def resolving(monkeypatch, addresses):
    """Resolve every name to these addresses, without a cache."""
    found = [(2, 1, 6, "", (address, 0)) for address in addresses]
    monkeypatch.setattr(resolver, "FRESH_S", 0.0)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


def test_a_name_is_checked_again_at_each_fetch(server, fetcher, monkeypatch):
    url = f"https://sender.test:{server.port}/"
    with monkeypatch.context() as patch:
        resolving(patch, ["127.0.0.1"])
        assert fetcher.fetch_sync(url, max_bytes=100) == b"hello"
    resolving(monkeypatch, ["127.0.0.2"])
    refused(fetcher, url, "this machine")
    assert server.accepted == 1


def test_a_name_with_good_and_bad_addresses_is_not_fetched_from(server, fetcher, monkeypatch):
    resolving(monkeypatch, ["127.0.0.2", "127.0.0.1"])
    refused(fetcher, f"https://sender.test:{server.port}/", "this machine")
    assert server.accepted == 0


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_not_followed(server, fetcher, status):
    server.answer = f"HTTP/1.1 {status} Moved\r\nlocation: {server.url}/2\r\nrefresh: 0; url=/3\r\ncontent-length: 0\r\n\r\n".encode()
    refused(fetcher, server.url, f"status {status}")
    assert len(server.requests) == 1


def test_proxy_and_netrc_environment_is_ignored(server, certificate, monkeypatch, tmp_path):
    for name in ("https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.2:1")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login a password b\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    fetcher = Fetcher(LOOPBACK, ca_file=certificate[0], ports=frozenset({server.port}))
    assert fetcher.fetch_sync(server.url, max_bytes=100) == b"hello"
    assert b"uthorization" not in server.requests[0]


# What it does not: certificates and answers.


def test_an_untrusted_certificate_is_refused(server):
    fetcher = Fetcher(LOOPBACK, ports=frozenset({server.port}))
    refused(fetcher, server.url, "(?i)certificate")
    assert server.requests == []


@pytest.mark.parametrize("wrong", [{"names": ("other.test",)}, {"days": (-10, -5)}])
def test_a_certificate_with_wrong_name_or_dates_is_refused(tmp_path, wrong):
    ca_file, chain = make_certificate(tmp_path, **wrong)
    server = serve(chain)
    try:
        refused(Fetcher(LOOPBACK, ca_file=ca_file, ports=frozenset({server.port})), server.url, "(?i)certificate|ssl")
        assert server.requests == []
    finally:
        server.close()


def test_mutant_without_the_certificate_check_any_server_could_answer(server, monkeypatch):
    plain = guard.handle_options
    off = [(pycurl.SSL_VERIFYPEER, 0), (pycurl.SSL_VERIFYHOST, 0)]
    monkeypatch.setattr(curl_multi, "handle_options", lambda settings: [*plain(settings), *off])
    assert Fetcher(LOOPBACK, ports=frozenset({server.port})).fetch_sync(server.url, max_bytes=100) == b"hello"


@pytest.mark.parametrize("status", [204, 206, 400, 401, 403, 404, 410, 429, 500, 503])
def test_only_200_is_an_answer(server, fetcher, status):
    server.answer = f"HTTP/1.1 {status} X\r\ncontent-length: 0\r\n\r\n".encode()
    refused(fetcher, server.url, f"status {status}")


def test_a_too_large_response_is_refused_with_or_without_length(server, fetcher):
    server.answer = b"HTTP/1.1 200 OK\r\ncontent-length: 101\r\n\r\n" + b"x" * 101
    refused(fetcher, server.url, "larger than 100 bytes")
    server.answer = (b"HTTP/1.1 200 OK\r\n\r\n", *(b"x" * 65_536 for _ in range(1_000)))
    refused(fetcher, server.url + "2", "larger than 100 bytes")
    server.answer = b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 60_000 + b"\r\nz: " + b"y" * 60_000 + b"\r\n\r\n"
    refused(fetcher, server.url + "3", "headers")


def test_a_compressed_response_is_not_decompressed(server, fetcher):
    server.answer = b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\n\x1f\x8b\x08\x00"
    assert fetcher.fetch_sync(server.url, max_bytes=100) == b"\x1f\x8b\x08\x00"
    assert b"accept-encoding: identity\r\n" in server.requests[0].lower()


def test_a_slow_response_times_out(server, fetcher):
    server.delay_s = 3_600
    refused(fetcher, server.url, "(?i)timed out", timeout_s=0.4)


# Failures are remembered.


def test_a_failed_url_is_not_retried_for_a_while(server, fetcher, monkeypatch):
    server.answer = b"HTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n"
    refused(fetcher, server.url, "status 404")
    for _ in range(20):
        refused(fetcher, server.url, "not tried again")
    assert server.accepted == 1
    server.answer = OK
    later = time.monotonic() + fetching.FAILED_S + 1
    monkeypatch.setattr(time, "monotonic", lambda: later)
    assert fetcher.fetch_sync(server.url, max_bytes=100) == b"hello"


def test_mutant_without_the_failure_cache_each_fetch_requests_again(server, fetcher, monkeypatch):
    server.answer = b"HTTP/1.1 404 X\r\ncontent-length: 0\r\n\r\n"
    monkeypatch.setattr(Fetcher, "_remember", lambda *_: None)
    for _ in range(3):
        refused(fetcher, server.url, "status 404")
    assert server.accepted == 3


def test_the_memory_of_failures_is_bounded(fetcher):
    for i in range(3_000):
        fetcher._remember(f"https://sender.test/{i}", "no")
    assert len(fetcher._failed) == 1_024


def test_a_closed_fetcher_fails_pending_and_new_fetches(server, fetcher):
    server.delay_s = 30
    running = fetcher._begin(server.url, 100, 60.0)
    until(lambda: server.requests, timeout=300, every=0.01)
    fetcher.close()
    with pytest.raises(FetchFailed):
        running.result(300)
    refused(fetcher, server.url, "shutting down")
