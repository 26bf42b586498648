"""Webhook receiver on loopback: records requests, sends scripted responses and verifies signatures.

Signatures are verified with the packages `standardwebhooks` and `svix` (HMAC) and `cryptography` (Ed25519), never with
boathook's own code.
"""

import base64
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import msgspec
import standardwebhooks
import svix.webhooks
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from tests.support import until


@dataclass(frozen=True, slots=True)
class Answer:
    """The response to one request."""

    status: int = 200
    body: bytes = b"thanks"
    headers: tuple[tuple[str, str], ...] = ()
    delay_s: float = 0.0
    echo: bool = False
    """Return the request's own headers and body, as a careless receiver does."""


@dataclass(frozen=True, slots=True)
class Received:
    """A received request, byte for byte."""

    path: str
    headers: tuple[tuple[str, str], ...]
    body: bytes
    at: float

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)

    def header(self, name: str) -> str | None:
        return next((value for key, value in self.headers if key.lower() == name.lower()), None)

    @property
    def message(self) -> str:
        """The id of the message, as the sender names it."""
        return self.header("webhook-id") or self.header("svix-id") or ""

    @property
    def signatures(self) -> list[str]:
        return (self.header("webhook-signature") or self.header("svix-signature") or "").split(" ")

    def check(self, secret: str) -> None:
        """Verify with both packages that the request was signed with this ``whsec_`` key."""
        headers = {name.lower(): value for name, value in self.headers}
        standardwebhooks.Webhook(secret).verify(self.body, headers)
        svix.webhooks.Webhook(secret).verify(self.body, headers)

    def is_signed_by(self, secret: str) -> bool:
        """Whether one of the signatures was made with this key: a secret ``whsec_`` or a public ``whpk_``."""
        if secret.startswith("whpk_"):
            return any(self._fits(signature, secret) for signature in self.signatures)
        try:
            self.check(secret)
        except (standardwebhooks.WebhookVerificationError, svix.webhooks.WebhookVerificationError):
            return False
        return True

    def _fits(self, signature: str, public: str) -> bool:
        version, _, text = signature.partition(",")
        if version != "v1a":
            return False
        signed = f"{self.message}.{self.header('webhook-timestamp') or self.header('svix-timestamp')}.".encode()
        key = Ed25519PublicKey.from_public_bytes(base64.b64decode(public.removeprefix("whpk_")))
        try:
            key.verify(base64.b64decode(text), signed + self.body)
        except InvalidSignature:
            return False
        return True


@dataclass(slots=True)
class Mailbox:
    """One path of the receiver, with its own responses and recorded requests."""

    url: str
    answers: Sequence[Answer] = (Answer(),)
    """One for each request in turn; the last one for all later requests."""
    received: list[Received] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, request: Received) -> Answer:
        with self._lock:
            self.received.append(request)
            return self.answers[min(len(self.received), len(self.answers)) - 1]

    def respond_with(self, *answers: Answer) -> None:
        """Use these responses from the next request on."""
        with self._lock:
            self.answers = (*(answers[0],) * len(self.received), *answers)

    def messages(self) -> list[str]:
        return [request.message for request in list(self.received)]

    def wait(self, count: int = 1, *, timeout: float = 300) -> list[Received]:
        """Wait for at least *count* requests and return them."""
        until(lambda: len(self.received) >= count, timeout=timeout)
        return list(self.received)


class Receiver:
    """The HTTP server with all paths."""

    def __init__(self) -> None:
        self._mailboxes: dict[str, Mailbox] = {}
        mailboxes = self._mailboxes

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 300

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                request = Received(self.path, tuple(self.headers.items()), body, time.monotonic())
                mailbox = mailboxes.get(self.path.split("?")[0])
                self._reply(mailbox.take(request) if mailbox else Answer(404, b"unknown path"), request)

            def _reply(self, answer: Answer, request: Received) -> None:
                time.sleep(answer.delay_s)
                text = msgspec.json.encode([request.headers, request.body.decode()]) if answer.echo else answer.body
                self.send_response(answer.status)
                for name, value in answer.headers:
                    self.send_header(name, value)
                self.send_header("content-length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 512

            def handle_error(self, *_: object) -> None:
                pass  # a killed sender closes its connection during a request

        self._server = Server(("127.0.0.1", 0), Handler)
        self.base = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    def mailbox(self, *answers: Answer) -> Mailbox:
        """Add a path with these responses; 200 by default."""
        path = f"/{uuid.uuid4().hex}"
        box = Mailbox(self.base + path, answers or (Answer(),))
        self._mailboxes[path] = box
        return box

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(300)
