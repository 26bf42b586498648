"""A customer's server on loopback, with two addresses: one that works, and one that is down at first.

It verifies what comes by the endpoint's secret, as any customer would, and keeps a record of its own.
"""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Final, cast

import httptools

from boathook.verification.library import verify

HEALTHY: Final = "/healthy"
FLAKY: Final = "/shaky"
FLAKY_FAILURES: Final = 6
"""Requests that the shaky address turns away before it works."""


@dataclass(slots=True)
class ReceiverLog:
    """What came to one address."""

    secret: str = field(default="", repr=False)
    """What its sender signs with; set once the endpoint is made."""
    taken: Counter[str] = field(default_factory=Counter)
    """How often each message was taken, by its id."""
    unavailable_count: int = 0
    forged: int = 0
    """Requests whose signature did not hold."""


class Receiver:
    """The customer's server."""

    def __init__(self) -> None:
        self.records = {HEALTHY: ReceiverLog(), FLAKY: ReceiverLog()}
        self.port = 0

    def url(self, path: str) -> str:
        """Return the address at *path*."""
        return f"http://127.0.0.1:{self.port}{path}"

    def take(self, path: str, headers: list[tuple[str, str]], body: bytes) -> HTTPStatus:
        """Judge one request and return the status to answer."""
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
        """Take requests on a free port until the end."""
        server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()


class _Connection(asyncio.Protocol):
    """One kept-alive connection."""

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
