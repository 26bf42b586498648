"""Takes requests in as fast as Python can: ``python -m benchmarks.sink PORT ADDRESSES``.

It listens on 127.0.0.1 and the addresses after it, each standing for a receiver of its own. It answers 204 at once,
except below ``/never``, where it answers not at all; ``GET /count`` tells how many POSTs it got.
"""

import asyncio
import signal
import socket
import sys
from typing import Final, cast

import httptools
import uvloop

from boathook.domain.errors import ConfigError

NO_ANSWER_PATH: Final = "/never"
_NO_CONTENT: Final = b"HTTP/1.1 204 No Content\r\n\r\n"
_BACKLOG: Final = 4_096


def addresses(count: int) -> list[str]:
    """Return so many loopback addresses; one only, many times, where the system has no others."""
    if sys.platform != "linux":
        return ["127.0.0.1"] * count
    return [f"127.0.{number // 250}.{number % 250 + 1}" for number in range(count)]


class RequestCounter:
    """What came."""

    def __init__(self) -> None:
        self.posts = 0


class _Connection(asyncio.Protocol):
    """One connection, kept alive."""

    def __init__(self, counter: RequestCounter) -> None:
        self._counter = counter
        self._transport: asyncio.Transport | None = None
        self._path = b""
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        assert self._transport is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._path = url

    def on_message_complete(self) -> None:
        assert self._transport is not None
        if self._parser.get_method() != b"POST":
            text = b"%d" % self._counter.posts
            self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(text), text))
            return
        self._counter.posts += 1
        if not self._path.startswith(NO_ANSWER_PATH.encode()):
            self._transport.write(_NO_CONTENT)


async def _serve(port: int, hosts: list[str]) -> None:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, stop.set)
    counter = RequestCounter()
    await loop.create_server(lambda: _Connection(counter), hosts, port, backlog=_BACKLOG)
    await stop.wait()


def read_count(port: int) -> int:
    """Ask a running sink how many POSTs it got."""
    with socket.create_connection(("127.0.0.1", port), timeout=10) as connection:
        connection.sendall(b"GET /count HTTP/1.1\r\nHost: sink\r\n\r\n")
        head, blank, rest = connection.recv(4_096).partition(b"\r\n\r\n")
    if not blank or b" 200 " not in head:
        raise ConfigError("the sink of the benchmark does not answer")
    return int(rest)


def main() -> None:
    """Serve until told to stop."""
    port, places = map(int, sys.argv[1:])
    uvloop.run(_serve(port, sorted(set(addresses(places)))))


if __name__ == "__main__":
    main()
