"""Scripted HTTP receivers, a certificate authority, and a sender whose answers can be awaited."""

import asyncio
import contextlib
import ssl
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from boathook.config.loader import defaults
from boathook.config.tables import OutboundSettings
from boathook.http_client import connection_pool, curl_multi, response_reader, transfer
from boathook.http_client.messages import OutgoingRequest
from boathook.http_client.sender import HttpSender

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


def outbound(**changes):
    """Return the default outbound settings with these changes; loopback is allowed by default."""
    return OutboundSettings(**(defaults()["outbound"] | {"allow": ["127.0.0.1/32"]} | changes))


def set_limit(monkeypatch, name, value):
    """Set a limit of responses for both ways of making requests."""
    for module in (connection_pool, curl_multi, response_reader, transfer):
        monkeypatch.setattr(module, name, value, raising=False)


class SenderHarness:
    """Wraps a sender so that its answers can be awaited."""

    def __init__(self, settings):
        self.batches = []
        self._waiting = {}
        self.sender = HttpSender(settings, on_results=self._done)

    async def __call__(self, url, **fields):
        return (await self.many([url], **fields))[0]

    async def many(self, urls, **fields):
        loop = asyncio.get_running_loop()
        fields = {"headers": (("content-type", "application/json"),), "body": b"{}", "timeout_s": 10.0} | fields
        waiting = [loop.create_future() for _ in urls]
        self.sender.send(
            [OutgoingRequest(url=url, token=token, **fields) for url, token in zip(urls, waiting, strict=True)]
        )
        return await asyncio.gather(*waiting)

    def _done(self, answers):
        self.batches.append(answers)
        for answer in answers:
            # A second answer to one request raises here, and fails the test.
            answer.request.token.set_result(answer)


@contextlib.asynccontextmanager
async def open_sender(**changes):
    """Yield a sender with these settings."""
    post = SenderHarness(outbound(**changes))
    try:
        yield post
    finally:
        post.sender.close()


@dataclass
class Request:
    """A received request."""

    head: bytes
    body: bytes
    peer: str | None
    """The common name of the client's certificate."""

    @property
    def lines(self):
        return self.head.decode("latin-1").split("\r\n")[:-2]

    @property
    def headers(self):
        return {name.lower(): value for name, _, value in (line.partition(": ") for line in self.lines[1:])}


async def stop_serving(server, tasks):
    """Stop a server and end the tasks of its connections."""
    server.close()
    # A connection accepted just now has a task that has not begun; one cancelled before that closes nothing.
    await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    # What they closed is gone only with the loop's next turn.
    await asyncio.sleep(0)


@dataclass
class Receiver:
    """A server on loopback that answers each request by its script: bytes, seconds to wait, or "reset"."""

    script: tuple = (OK,)
    context: ssl.SSLContext | None = None
    host: str = "127.0.0.1"
    accepted: int = 0
    finished: int = 0
    """The number of scripts run to the end."""
    requests: list[Request] = field(default_factory=list)

    async def __aenter__(self):
        self._tasks = set()
        self._server = await asyncio.start_server(self._serve, self.host, 0, backlog=1_024)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http{'s' if self.context else ''}://{self.host}:{self.port}/hook"
        return self

    async def __aexit__(self, *_):
        await stop_serving(self._server, self._tasks)

    async def _serve(self, reader, writer):
        self.accepted += 1
        task = asyncio.current_task()
        self._tasks.add(task)
        try:
            if self.context:
                await writer.start_tls(self.context)
            while await self._answer(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _answer(self, reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        request = Request(head, b"", _peer(writer))
        request.body = await reader.readexactly(int(request.headers.get("content-length", 0)))
        self.requests.append(request)
        for step in self.script:
            if step == "reset":
                writer.transport.abort()
                return False
            if step == "close":
                return False
            if isinstance(step, bytes):
                writer.write(step)
                await writer.drain()
            else:
                await asyncio.sleep(step)
        self.finished += 1
        return True


def _peer(writer):
    certificate = writer.get_extra_info("peercert")
    return dict(pair[0] for pair in certificate["subject"])["commonName"] if certificate else None


class Authority:
    """A certificate authority with its files in a folder."""

    def __init__(self, folder):
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._certificate = self._sign("ca", self._key, x509.BasicConstraints(ca=True, path_length=None), (-1, 1))
        self.file = str(folder / "ca.pem")
        (folder / "ca.pem").write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name, *names, days=(-1, 1)):
        """Return a certificate and its key as PEM texts."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = [x509.IPAddress(ip_address(n)) if n[0].isdigit() else x509.DNSName(n) for n in names or (name,)]
        certificate = self._sign(name, key, x509.SubjectAlternativeName(alternatives), days)
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return certificate.public_bytes(serialization.Encoding.PEM).decode(), private.decode()

    def context(self, *names, days=(-1, 1), asks_client=False):
        """Return a server's TLS context with a certificate for these names."""
        chain = self._folder / "server.pem"
        chain.write_text("".join(self.issue("server", *(names or ("127.0.0.1", "receiver.test")), days=days)))
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(chain)
        if asks_client:
            context.load_verify_locations(self.file)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def _sign(self, name, key, extension, days):
        now = datetime.now(UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")]))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + timedelta(days=days[0]))
            .not_valid_after(now + timedelta(days=days[1]))
            .add_extension(extension, critical=False)
            .sign(self._key, hashes.SHA256())
        )
