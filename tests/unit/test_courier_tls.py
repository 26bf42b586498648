"""The courier over TLS on loopback: whom it believes, and which client certificate it shows to whom."""

import os
import shutil
import signal
import ssl
import subprocess
import sys
from pathlib import Path

import pycurl
import pytest

from boathook.http_client import curl_multi
from boathook.http_client.sender import TransportFailure
from tests.unit.receivers import Authority, Receiver, open_courier


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


async def test_a_receiver_that_the_authority_vouches_for_is_sent_to(authority):
    async with Receiver(context=authority.context()) as receiver, open_courier(ca_file=authority.file) as post:
        for _ in range(5):
            answer = await post(receiver.url, body=b"abc")
            assert (answer.status, answer.failure) == (200, None)
        assert (receiver.accepted, receiver.requests[0].body) == (1, b"abc")


async def test_a_receiver_nobody_vouches_for_reads_nothing(authority):
    async with Receiver(context=authority.context()) as receiver, open_courier() as post:
        answer = await post(receiver.url)
        assert (answer.status, answer.failure) == (0, TransportFailure.TLS)
        assert "certificate" in answer.error
        assert receiver.requests == []


@pytest.mark.parametrize("wrong", [{"names": ("other.test",)}, {"names": ("127.0.0.1",), "days": (-9, -5)}])
async def test_a_certificate_for_another_name_or_time_is_not_believed(authority, wrong):
    context = authority.context(*wrong.pop("names"), **wrong)
    async with Receiver(context=context) as receiver, open_courier(ca_file=authority.file) as post:
        assert (await post(receiver.url)).failure is TransportFailure.TLS
        assert receiver.requests == []


async def test_mutant_without_the_check_any_server_could_answer(authority, monkeypatch):
    plain = curl_multi._options
    off = [(pycurl.SSL_VERIFYPEER, 0), (pycurl.SSL_VERIFYHOST, 0)]
    monkeypatch.setattr(curl_multi, "_options", lambda settings: [*plain(settings), *off])
    async with Receiver(context=authority.context("other.test")) as receiver, open_courier() as post:
        assert (await post(receiver.url)).status == 200


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_older_versions_of_tls_are_not_spoken(authority):
    context = authority.context()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    async with Receiver(context=context) as receiver, open_courier(ca_file=authority.file) as post:
        assert (await post(receiver.url)).failure is TransportFailure.TLS
        assert receiver.requests == []


async def test_a_plain_receiver_is_no_https(authority):
    async with Receiver() as receiver, open_courier(ca_file=authority.file) as post:
        answer = await post(receiver.url.replace("http:", "https:"), timeout_s=0.5)
        assert answer.failure in {TransportFailure.TLS, TransportFailure.TIMEOUT}
        assert receiver.requests == []


async def test_a_receiver_that_wants_a_client_certificate_gets_the_right_one(authority):
    context = authority.context(asks_client=True)
    ann, bob = authority.issue("ann"), authority.issue("bob")
    async with Receiver(context=context) as receiver, open_courier(ca_file=authority.file) as post:
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
async def test_a_broken_client_certificate_is_a_trouble_of_tls(authority, broken):
    context = authority.context(asks_client=True)
    _, key = authority.issue("ann")
    async with Receiver(context=context) as receiver, open_courier(ca_file=authority.file) as post:
        answer = await post(receiver.url, client_certificate=(broken, key))
        assert (answer.status, answer.failure) == (0, TransportFailure.TLS)
        assert "PRIVATE" not in answer.error


async def test_another_ones_key_is_a_trouble_of_tls(authority):
    context = authority.context(asks_client=True)
    ann, bob = authority.issue("ann"), authority.issue("bob")
    async with Receiver(context=context) as receiver, open_courier(ca_file=authority.file) as post:
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
def http2_port(authority, tmp_path):
    if NODE is None:
        pytest.skip("the HTTP/2 server is one of Node.js")
    authority.context()
    command = [NODE, "-e", HTTP2_SERVER, str(tmp_path / "server.pem")]
    # In a session of its own: what is called node may be a wrapper, and the server its child.
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as server:
        try:
            yield int(server.stdout.readline())
        finally:
            os.killpg(server.pid, signal.SIGKILL)


async def test_http_2_is_spoken_where_the_receiver_offers_it(authority, http2_port):
    async with open_courier(ca_file=authority.file) as post:
        for status in (200, 503, 410):
            url = f"https://127.0.0.1:{http2_port}/{status}"
            answer = await post(url, body=b"x" * 100_000, headers=(("Webhook-Id", "msg_1"),))
            assert (answer.status, answer.failure, answer.headers["x-sessions"]) == (status, None, "1")
            assert (answer.headers["x-size"], answer.headers["x-id"]) == ("100000", "msg_1")
