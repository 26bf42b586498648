"""The demo's customer: its server on loopback, with one endpoint that works and one that fails at first.

It verifies requests with the endpoint's secret, as any customer would, and keeps its own record.
"""

import asyncio
import contextlib
import secrets
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, cast

import httptools

from boathook import config
from boathook.db.database import Database
from boathook.db.secret_box import open_secret_box
from boathook.domain.model import Role
from boathook.handlers.outbox import Outbox
from boathook.service.access import operators
from boathook.service.sending import applications, endpoint_secrets, endpoints
from boathook.service.unit_of_work import AppContext
from boathook.verification.library import verify
from boathook_demo.folder import Folder
from boathook_demo.handlers import APPLICATION

HEALTHY: Final = "/healthy"
FLAKY: Final = "/shaky"
FLAKY_FAILURES: Final = 6
"""Requests that the flaky endpoint rejects before it works."""


@dataclass(slots=True)
class ReceiverLog:
    """Requests received at one path."""

    secret: str = field(default="", repr=False)
    """The secret its requests are signed with; set once the endpoint exists."""
    taken: Counter[str] = field(default_factory=Counter)
    """How often each message was accepted, by its id."""
    unavailable_count: int = 0
    forged: int = 0
    """Requests with an invalid signature."""


class Receiver:
    """The customer's server."""

    def __init__(self) -> None:
        self.records = {HEALTHY: ReceiverLog(), FLAKY: ReceiverLog()}
        self.port = 0

    def url(self, path: str) -> str:
        """Return the URL of *path*."""
        return f"http://127.0.0.1:{self.port}{path}"

    def take(self, path: str, headers: list[tuple[str, str]], body: bytes) -> HTTPStatus:
        """Check one request and return the status of the response."""
        record = self.records.get(path)
        if record is None:
            return HTTPStatus.NOT_FOUND
        verdict = verify("standard-webhooks", record.secret, headers, body)
        if verdict.event is None:
            record.forged += 1
            return HTTPStatus.UNAUTHORIZED
        if path == FLAKY and record.unavailable_count < FLAKY_FAILURES:
            record.unavailable_count += 1
            return HTTPStatus.SERVICE_UNAVAILABLE
        record.taken[verdict.event.dedup_key] += 1
        return HTTPStatus.OK

    @contextlib.asynccontextmanager
    async def listen(self) -> AsyncIterator[None]:
        """Listen on a free port until the block ends."""
        server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()


class _Connection(asyncio.Protocol):
    """One keep-alive connection."""

    def __init__(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._path = ""
        self._headers: list[tuple[str, str]] = []
        self._body = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_message_begin(self) -> None:
        self._path, self._headers, self._body = "", [], b""

    def on_url(self, url: bytes) -> None:
        self._path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.decode("latin-1").lower(), value.decode("latin-1")))

    def on_body(self, part: bytes) -> None:
        self._body += part

    def on_message_complete(self) -> None:
        assert self._transport is not None
        status = self._receiver.take(self._path, self._headers, self._body)
        self._transport.write(f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Length: 0\r\n\r\n".encode())


OPERATOR_NAME: Final = "demo"
"""The console user who runs the demo."""

_QUICK: Final = (0.5, 1.0, 2.0, 4.0)
"""Seconds between attempts; short, because it is a demo."""


async def set_up(database: Database, folder: Folder, receiver: Receiver) -> dict[str, str]:
    """Create the customer's application with an endpoint for each path; return the recipients by path."""
    recipients = {}
    async with _app_context(database, folder).work(actor="demo") as work:
        new = applications.NewApplication(name="A customer of the shop", uid=APPLICATION)
        application = await applications.create(work, new)
        for path, record in receiver.records.items():
            endpoint = await endpoints.create(
                work, application, endpoints.NewEndpoint(url=receiver.url(path), retry=_QUICK)
            )
            record.secret = await endpoint_secrets.get_secret(work, application, endpoint.shown_id)
            recipients[path] = endpoint.recipient
    return recipients


async def create_operator(database: Database, folder: Folder) -> str:
    """Create an operator for the console, and return their password."""
    password = secrets.token_urlsafe(12)
    async with _app_context(database, folder).work(actor="demo") as work:
        await operators.create(work, OPERATOR_NAME, Role.ADMIN, password)
    return password


def _app_context(database: Database, folder: Folder) -> AppContext:
    settings = config.load(folder.configuration, {"server.data_dir": str(folder.data)})
    return AppContext(settings, database, open_secret_box(settings), Outbox.of(settings.retention))


def compare(receiver: Receiver, sent: dict[str, set[str]], *, may_repeat: bool) -> Iterator[str]:
    """Yield one sentence for each difference between the customer's record and the store.

    Args:
        receiver: the customer's server.
        sent: ids of the messages that the store has as delivered, by the customer's path.
        may_repeat: whether a message may have come again, because PostgreSQL was stopped before it was recorded.
    """
    for path, record in receiver.records.items():
        delivered = sent.get(path, set())
        if record.forged:
            yield f"{record.forged} requests to {path} had an invalid signature"
        for message in sorted(delivered - record.taken.keys()):
            yield f"{message} is recorded as delivered to {path}, but never arrived"
        for message in sorted(record.taken.keys() - delivered):
            yield f"{message} arrived at {path}, but is not recorded as delivered"
        for message, number in record.taken.items():
            if number > 1 and not may_repeat:
                yield f"{message} was delivered to {path} {number} times"
    if receiver.records[FLAKY].taken and receiver.records[FLAKY].unavailable_count != FLAKY_FAILURES:
        yield f"{FLAKY} should have turned {FLAKY_FAILURES} requests away first"
