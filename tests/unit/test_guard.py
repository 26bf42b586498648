"""The guard over real sockets: trusted certificates, and connections through a proxy."""

import asyncio
import base64
import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pycurl
import pytest

from boathook.domain.errors import ConfigError
from boathook.http_client import connection_pool, curl_multi, guard, transfer
from boathook.http_client import resolver as names
from boathook.http_client.messages import TransportFailure
from boathook.http_client.sender import HttpSender
from tests.unit.receivers import Authority, Receiver, open_sender, outbound, stop_serving

# TLS, and the certificates that are shown.


verified_both_ways = pytest.mark.usefixtures("way")


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


@verified_both_ways
async def test_a_receiver_that_the_authority_vouches_for_is_sent_to(authority):
    async with Receiver(context=authority.context()) as receiver, open_sender(ca_file=authority.file) as post:
        for _ in range(5):
            answer = await post(receiver.url, body=b"abc")
            assert (answer.status, answer.failure) == (200, None)
        assert (receiver.accepted, receiver.requests[0].body) == (1, b"abc")


@verified_both_ways
async def test_an_untrusted_receiver_gets_no_request(authority):
    async with Receiver(context=authority.context()) as receiver, open_sender() as post:
        answer = await post(receiver.url)
        assert (answer.status, answer.failure) == (0, TransportFailure.TLS)
        assert "certificate" in answer.error
        assert receiver.requests == []


@verified_both_ways
@pytest.mark.parametrize("wrong", [{"names": ("other.test",)}, {"names": ("127.0.0.1",), "days": (-9, -5)}])
async def test_a_certificate_with_wrong_name_or_dates_is_refused(authority, wrong):
    context = authority.context(*wrong["names"], days=wrong.get("days", (-1, 1)))
    async with Receiver(context=context) as receiver, open_sender(ca_file=authority.file) as post:
        assert (await post(receiver.url)).failure is TransportFailure.TLS
        assert receiver.requests == []


@verified_both_ways
async def test_mutant_without_the_check_any_server_could_answer(authority, monkeypatch):
    plain = guard.handle_options
    off = [(pycurl.SSL_VERIFYPEER, 0), (pycurl.SSL_VERIFYHOST, 0)]
    monkeypatch.setattr(curl_multi, "handle_options", lambda settings: [*plain(settings), *off])
    monkeypatch.setattr(connection_pool, "tls_context", lambda _: ssl._create_unverified_context())
    async with Receiver(context=authority.context("other.test")) as receiver, open_sender() as post:
        assert (await post(receiver.url)).status == 200


@verified_both_ways
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_old_tls_versions_are_refused(authority):
    context = authority.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    async with Receiver(context=context) as receiver, open_sender(ca_file=authority.file) as post:
        assert (await post(receiver.url)).failure is TransportFailure.TLS
        assert receiver.requests == []


@verified_both_ways
async def test_a_plain_http_receiver_fails_https(authority):
    async with Receiver() as receiver, open_sender(ca_file=authority.file) as post:
        answer = await post(receiver.url.replace("http:", "https:"), timeout_s=0.5)
        assert answer.failure in {TransportFailure.TLS, TransportFailure.TIMEOUT}
        assert receiver.requests == []


@verified_both_ways
async def test_the_configured_client_certificate_is_sent(authority):
    context = authority.context(asks_client=True)
    ann, bob = authority.issue("ann"), authority.issue("bob")
    async with Receiver(context=context) as receiver, open_sender(ca_file=authority.file) as post:
        for who in (ann, bob, ann, bob, bob):
            assert (await post(receiver.url, client_certificate=who)).status == 200
        assert [request.peer for request in receiver.requests] == ["ann", "bob", "ann", "bob", "bob"]
        assert receiver.accepted == 2
        answer = await post(receiver.url)
        assert (
            answer.status,
            answer.failure in {TransportFailure.TLS, TransportFailure.READ, TransportFailure.SEND},
        ) == (0, True)
        assert len(receiver.requests) == 5


@pytest.mark.parametrize("broken", ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
async def test_a_broken_client_certificate_is_a_tls_failure(authority, broken):
    context = authority.context(asks_client=True)
    _, key = authority.issue("ann")
    async with Receiver(context=context) as receiver, open_sender(ca_file=authority.file) as post:
        answer = await post(receiver.url, client_certificate=(broken, key))
        assert (answer.status, answer.failure) == (0, TransportFailure.TLS)
        assert "PRIVATE" not in answer.error


async def test_a_mismatched_client_key_is_a_tls_failure(authority):
    context = authority.context(asks_client=True)
    ann, bob = authority.issue("ann"), authority.issue("bob")
    async with Receiver(context=context) as receiver, open_sender(ca_file=authority.file) as post:
        assert (await post(receiver.url, client_certificate=(ann[0], bob[1]))).failure is TransportFailure.TLS
        assert receiver.requests == []


NODE = shutil.which("node", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")]))
HTTP2_SERVER = """
const http2 = require('http2'), pem = require('fs').readFileSync(process.argv[1]);
let sessions = 0;
const server = http2.createSecureServer({cert: pem, key: pem});
server.on('session', () => sessions++);
server.on('stream', (stream, headers) => {
  let size = 0;
  stream.on('data', data => size += data.length);
  stream.on('end', () => {
    const status = Number(headers[':path'].slice(1));
    stream.respond({':status': status, 'x-sessions': sessions, 'x-size': size, 'x-id': headers['webhook-id']});
    stream.end('done');
  });
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
"""


@pytest.fixture
def http2_port(authority, tmp_path, request):
    """The port of an HTTP/2 server; its program may be a parameter."""
    if NODE is None:
        pytest.skip("the HTTP/2 server is one of Node.js")
    authority.context()
    command = [NODE, "-e", getattr(request, "param", HTTP2_SERVER), str(tmp_path / "server.pem")]
    # In a session of its own: what is called node may be a wrapper, and the server its child.
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as server:
        try:
            yield int(server.stdout.readline())
        finally:
            os.killpg(server.pid, signal.SIGKILL)


async def test_http_2_is_used_if_the_receiver_offers_it(authority, http2_port):
    async with open_sender(ca_file=authority.file) as post:
        for status in (200, 503, 410):
            url = f"https://127.0.0.1:{http2_port}/{status}"
            answer = await post(url, body=b"x" * 100_000, headers=(("Webhook-Id", "msg_1"),))
            assert (answer.status, answer.failure) == (status, None)
            # The first connection shows what the receiver prefers; the second one carries all requests.
            assert answer.headers["x-sessions"] in {"1", "2"}
            assert (answer.headers["x-size"], answer.headers["x-id"]) == ("100000", "msg_1")


REFUSING_SERVER = """
const http2 = require('http2'), pem = require('fs').readFileSync(process.argv[1]);
let sent = 0;
const server = http2.createSecureServer({cert: pem, key: pem});
server.on('stream', (stream, headers) => {
  if (headers[':path'] === '/count') { stream.respond({':status': 200, 'x-sent': sent}); stream.end(); return; }
  sent++;
  stream.on('error', () => {});
  if (headers[':path'] === '/refuse') stream.close(http2.constants.NGHTTP2_REFUSED_STREAM);
  else { stream.respond({':status': 200}); stream.end(); }
});
server.listen(0, '127.0.0.1', () => console.log(server.address().port));
"""


@pytest.mark.parametrize("http2_port", [REFUSING_SERVER], indirect=True)
async def test_a_refused_stream_is_one_request_for_one_attempt(authority, http2_port):
    """libcurl sends the request again up to five times by itself (RFC 9113, section 8.7)."""
    async with open_sender(ca_file=authority.file) as post:
        url = f"https://127.0.0.1:{http2_port}"
        for number, path in enumerate(("refuse", "refuse", "ok", "refuse", "ok", "ok"), 1):
            answer = await post(f"{url}/{path}")
            if path == "ok":
                assert (answer.status, answer.failure) == (200, None)
            else:
                assert (answer.status, answer.failure) == (0, TransportFailure.READ)
                assert "refused the stream" in answer.error
            assert (await post(f"{url}/count")).headers["x-sent"] == str(number)


@pytest.mark.parametrize("http2_port", [REFUSING_SERVER], indirect=True)
async def test_mutant_libcurl_sends_a_refused_request_again(authority, http2_port, monkeypatch):
    monkeypatch.setattr(transfer.CurlTransfer, "_allow_send", lambda *_: pycurl.PREREQFUNC_OK)
    async with open_sender(ca_file=authority.file) as post:
        url = f"https://127.0.0.1:{http2_port}"
        assert (await post(f"{url}/refuse")).failure is not None
        assert int((await post(f"{url}/count")).headers["x-sent"]) > 1


# Proxies: CONNECT and SOCKS5.


class Proxy:
    """A proxy on loopback that records its targets."""

    def __init__(self, *, refuses=False, context=None):
        self.asked = []
        self.heads = []
        self._refuses = refuses
        self._context = context
        self._tasks = set()

    async def __aenter__(self):
        # Not the receivers' address, so that a sender that judged the proxy would refuse it.
        self._server = await asyncio.start_server(self._serve, "127.0.0.3", 0, ssl=self._context)
        self.place = f"127.0.0.3:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_):
        await stop_serving(self._server, self._tasks)

    async def _serve(self, reader, writer):
        self._tasks.add(asyncio.current_task())
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            first = await reader.readexactly(1)
            host, port = await (
                self._greet(reader, writer) if first == b"\x05" else self._connect(first, reader, writer)
            )
            self.asked.append(f"{host}:{port}")
            far_reader, far_writer = await asyncio.open_connection(host, port)
            pumps = self._pump(reader, far_writer), self._pump(far_reader, writer)
            await asyncio.gather(*pumps, return_exceptions=True)
        writer.close()

    async def _connect(self, first, reader, writer):
        head = (first + await reader.readuntil(b"\r\n\r\n")).decode()
        self.heads.append(head)
        method, place, _ = head.split(" ", 2)
        if self._refuses or method != "CONNECT":
            writer.write(b"HTTP/1.1 403 No\r\nx-secret: of the proxy\r\ncontent-length: 3\r\n\r\nno!")
            raise asyncio.IncompleteReadError(b"", 1)
        writer.write(b"HTTP/1.1 200 Connected\r\nx-secret: of the proxy\r\n\r\n")
        host, _, port = place.rpartition(":")
        return host.strip("[]"), int(port)

    async def _greet(self, reader, writer):
        await reader.readexactly((await reader.readexactly(1))[0])
        writer.write(b"\x05\x00")
        _, command, _, kind = await reader.readexactly(4)
        assert command == 1
        match kind:
            case 1:
                host = socket.inet_ntop(socket.AF_INET, await reader.readexactly(4))
            case 4:
                host = socket.inet_ntop(socket.AF_INET6, await reader.readexactly(16))
            case _:
                host = (await reader.readexactly((await reader.readexactly(1))[0])).decode()
        port = int.from_bytes(await reader.readexactly(2), "big")
        writer.write(b"\x05\x02\x00\x01" + bytes(6) if self._refuses else b"\x05\x00\x00\x01" + bytes(6))
        if self._refuses:
            raise asyncio.IncompleteReadError(b"", 1)
        return host, port

    async def _pump(self, reader, writer):
        try:
            while data := await reader.read(65_536):
                writer.write(data)
        finally:
            writer.close()


@pytest.fixture
def resolver(monkeypatch):
    """Receiver names with chosen addresses."""
    known = {"receiver.test": ["127.0.0.1"]}
    plain = socket.getaddrinfo

    def look_up(name, *args, **kwargs):
        if name not in known:
            return plain(name, *args, **kwargs)
        return [(10 if ":" in a else 2, 1, 6, "", (a, 0)) for a in known[name]]

    monkeypatch.setattr("socket.getaddrinfo", look_up)
    return known


@pytest.mark.parametrize("scheme", ["http", "socks5", "socks5h"])
async def test_the_proxy_gets_the_checked_address_and_the_receiver_the_name(resolver, scheme):
    async with Receiver() as receiver, Proxy() as proxy, open_sender(proxy=f"{scheme}://{proxy.place}") as post:
        for path in "ab":
            answer = await post(f"http://receiver.test:{receiver.port}/{path}", body=b"x" * 100_000)
            assert (answer.status, answer.failure, "x-secret" in answer.headers) == (200, None, False)
        assert proxy.asked == [f"127.0.0.1:{receiver.port}"]
        assert receiver.requests[0].headers["host"] == f"receiver.test:{receiver.port}"
        assert len(receiver.requests[1].body) == 100_000


@pytest.mark.parametrize("scheme", ["http", "socks5"])
async def test_tls_goes_through_the_tunnel_and_is_verified_against_the_name(resolver, tmp_path, scheme):
    authority = Authority(tmp_path)
    resolver["other.test"] = ["127.0.0.1"]
    async with Receiver(context=authority.context("receiver.test")) as receiver, Proxy() as proxy:
        async with open_sender(proxy=f"{scheme}://{proxy.place}", ca_file=authority.file) as post:
            assert (await post(f"https://receiver.test:{receiver.port}/")).status == 200
            assert (await post(f"https://other.test:{receiver.port}/")).failure is TransportFailure.TLS
        assert set(proxy.asked) == {f"127.0.0.1:{receiver.port}"}
        assert len(receiver.requests) == 1


async def test_a_proxy_may_be_reached_by_tls(resolver, tmp_path):
    authority = Authority(tmp_path)
    async with Receiver() as receiver, Proxy(context=authority.context("127.0.0.3")) as proxy:
        async with open_sender(proxy=f"https://{proxy.place}", ca_file=authority.file) as post:
            assert (await post(f"http://receiver.test:{receiver.port}/")).status == 200
        async with open_sender(proxy=f"https://{proxy.place}") as post:
            assert (await post(f"http://receiver.test:{receiver.port}/")).status == 0
        assert len(receiver.requests) == 1


async def test_the_proxy_password_is_sent_only_to_the_proxy(resolver):
    async with Receiver() as receiver, Proxy() as proxy, open_sender(proxy=f"http://me:p%40ss@{proxy.place}") as post:
        await post(f"http://receiver.test:{receiver.port}/")
        assert base64.b64encode(b"me:p@ss").decode() in proxy.heads[0]
        assert "proxy-authorization" not in receiver.requests[0].headers


@pytest.mark.parametrize("scheme", ["http", "socks5"])
@pytest.mark.parametrize("addresses", [["10.0.0.1"], ["127.0.0.1", "169.254.169.254"], ["::1"], ["64:ff9b::a00:1"]])
async def test_a_private_address_is_never_requested_through_the_proxy(resolver, scheme, addresses):
    resolver["evil.test"] = addresses
    async with Proxy() as proxy, open_sender(proxy=f"{scheme}://{proxy.place}") as post:
        hosts = ["evil.test", *(f"[{a}]" if ":" in a else a for a in addresses if a != "127.0.0.1")]
        for answer in await post.many([f"http://{host}:8080/" for host in hosts]):
            assert (answer.status, answer.failure) == (0, TransportFailure.BLOCKED)
        assert (proxy.asked, proxy.heads) == ([], [])


async def test_mutant_without_the_guard_the_proxy_gets_the_request(resolver, monkeypatch):
    monkeypatch.setattr(names, "find_denial_on_host", lambda *_: None)
    async with Receiver() as receiver, Proxy() as proxy, open_sender(proxy=f"http://{proxy.place}", allow=[]) as post:
        assert (await post(f"http://receiver.test:{receiver.port}/")).status == 200
        assert proxy.asked == [f"127.0.0.1:{receiver.port}"]


@pytest.mark.parametrize(
    ("bypass", "host", "is_bypassed"),
    [
        ("receiver.test", "receiver.test", True),
        ("Receiver.TEST", "receiver.test", True),
        ("receiver.test", "a.receiver.test", False),
        (".receiver.test", "receiver.test", True),
        (".receiver.test", "a.receiver.test", True),
        (".receiver.test", "areceiver.test", False),
        ("other.test", "receiver.test", False),
        ("127.0.0.0/8", "127.0.0.1", True),
        ("127.0.0.0/8", "receiver.test", True),
        ("127.0.0.1", "127.0.0.1", True),
        ("10.0.0.0/8", "127.0.0.1", False),
    ],
)
async def test_the_bypass_list(resolver, monkeypatch, bypass, host, is_bypassed):
    monkeypatch.setenv("no_proxy", "*")
    resolver[host] = ["127.0.0.1"]
    async with Receiver() as receiver, Proxy() as proxy:
        async with open_sender(proxy=f"http://{proxy.place}", proxy_bypass=[bypass]) as post:
            for _ in range(2):
                assert (await post(f"http://{host}:{receiver.port}/")).status == 200
        assert (proxy.asked == []) == is_bypassed


@pytest.mark.parametrize("scheme", ["http", "socks5"])
async def test_a_refusing_proxy_is_a_proxy_failure(resolver, scheme):
    async with Proxy(refuses=True) as proxy, open_sender(proxy=f"{scheme}://{proxy.place}") as post:
        answer = await post("https://receiver.test/")
        assert (answer.status, answer.failure, answer.body, dict(answer.headers)) == (
            0,
            TransportFailure.PROXY,
            b"",
            {},
        )


async def test_an_unreachable_proxy_is_a_proxy_failure(resolver):
    async with Proxy() as proxy:
        place = proxy.place
    async with open_sender(proxy=f"http://{place}") as post:
        assert (await post("https://receiver.test/")).failure is TransportFailure.PROXY


async def test_an_unresolved_proxy_reference_is_refused():
    with pytest.raises(ConfigError, match=r"outbound\.proxy"):
        HttpSender(outbound(proxy="env:PROXY"), on_results=lambda _: None)
