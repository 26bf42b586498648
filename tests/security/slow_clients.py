"""Thousands of slow clients in a separate process, so that they do not slow down the test itself.

Arguments: the gateway's port, how many clients, and after how many seconds to give up. The last line of output is
JSON: for each kind, how many connections are still open, and the seconds until the gateway had closed the last.
"""

import itertools
import json
import select
import socket
import sys
import time
from dataclasses import dataclass
from typing import Final

HEAD: Final = b"POST /in/open HTTP/1.1\r\nHost: a\r\n"
DRIP_S: Final = 0.5
KINDS: Final = {
    "silent": (b"", b""),
    "empty lines": (b"\r\n", b"\r\n"),
    "head": (HEAD + b"X: ", b"a"),
    "body": (HEAD + b"Content-Length: 90000\r\n\r\n", b"a"),
    "chunks": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\na\r\n"),
    "extension": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n1;", b"a"),
    "expecting": (HEAD + b"Expect: 100-continue\r\nContent-Length: 9\r\n\r\n", b""),
    "idle": (HEAD + b"Content-Length: 4\r\n\r\nidle", b""),
    "second head": (HEAD + b"Content-Length: 4\r\n\r\nidle" + HEAD + b"X: ", b"a"),
    "no http": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"\x00"),
    "deaf": (b"GET /wide HTTP/1.1\r\nHost: a\r\n\r\n" * 4, b""),
    "deaf to little": (b"GET /wide HTTP/1.1\r\nHost: a\r\n\r\n", b""),
    "deaf at the end": (b"GET /wide HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", b""),
}
"""For each kind, the bytes that it sends first and those that it repeats; no client reads."""
GONE: Final = select.POLLHUP | select.POLLERR | select.POLLRDHUP


@dataclass(slots=True)
class Client:
    """One slow connection."""

    kind: str
    wire: socket.socket
    at: float
    """The time of its start."""


def open_one(number: int, kind: str, port: int) -> Client:
    wire = socket.socket()
    wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    wire.bind((f"127.0.{1 + number // 500}.1", 0))  # one client may only have so many connections
    wire.connect(("127.0.0.1", port))
    wire.sendall(KINDS[kind][0])
    wire.setblocking(False)
    return Client(kind, wire, time.monotonic())


def drip(client: Client) -> None:
    try:
        client.wire.send(KINDS[client.kind][1])
    except OSError:
        return  # the poll reports the end


def main(port: int, count: int, give_up_s: float) -> None:
    kinds = itertools.cycle(KINDS)
    poll = select.poll()
    waiting: dict[int, Client] = {}
    for number in range(count):
        client = open_one(number, next(kinds), port)
        waiting[client.wire.fileno()] = client
        poll.register(client.wire, GONE)
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    slowest = dict.fromkeys(KINDS, 0.0)
    deadline, next_drip = time.monotonic() + give_up_s, 0.0
    while waiting and time.monotonic() < deadline:
        if time.monotonic() >= next_drip:
            next_drip = time.monotonic() + DRIP_S
            for client in waiting.values():
                drip(client)
        for place, _ in poll.poll(50):
            client = waiting.pop(place)
            poll.unregister(place)
            slowest[client.kind] = max(slowest[client.kind], time.monotonic() - client.at)
            client.wire.close()
    left = [client.kind for client in waiting.values()]
    result = {kind: {"open": left.count(kind), "slowest_s": round(slowest[kind], 2)} for kind in KINDS}
    sys.stdout.write(json.dumps(result))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]))
