"""Starts a gateway process and sends raw bytes to it over sockets."""

import contextlib
import hashlib
import hmac
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil

GATEWAY_PROCESS: Final = Path(__file__).parent / "gateway_process.py"
SECRET: Final = "whsec_wire_of_the_tests"
SOURCES: Final[dict[str, dict[str, Any]]] = {
    "open": {"provider": "token", "header": "X-Token", "unsigned": True, "dedup_fields": ["id"]},
    "signed": {"provider": "stripe", "secrets": [SECRET]},
    "packed": {"provider": "stripe", "secrets": [SECRET], "content_encodings": ["gzip", "deflate"]},
}


class Gateway:
    """A gateway subprocess and connections to it."""

    def __init__(
        self,
        *,
        mutant: str = "",
        sources: dict[str, dict[str, Any]] = SOURCES,
        limits: dict[str, float] | None = None,
        trusted_proxies: tuple[str, ...] = (),
        send_buffer: int | None = None,
    ) -> None:
        self.bound = socket.create_server(("127.0.0.1", 0), backlog=2048)
        if send_buffer is not None:
            self.bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
        self.port = self.bound.getsockname()[1]
        options = {"mutant": mutant, "sources": sources, "limits": limits or {}, "trusted_proxies": trusted_proxies}
        self.process = subprocess.Popen(
            [sys.executable, str(GATEWAY_PROCESS), str(self.bound.fileno()), json.dumps(options)],
            pass_fds=[self.bound.fileno()],
        )
        self.seen = psutil.Process(self.process.pid)

    def connect(self, *, source: str = "127.0.0.1", port: int = 0) -> socket.socket:
        client = socket.create_connection(("127.0.0.1", port or self.port), timeout=300, source_address=(source, 0))
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return client

    def ask(self, *pieces: bytes, port: int = 0) -> bytes:
        """Send on one connection and return all that comes until it closes."""
        with self.connect(port=port) as client:
            with contextlib.suppress(ConnectionError):
                for piece in pieces:
                    client.sendall(piece)
            return read_all(client)

    def inspect(self, path: str) -> Any:
        """Return the JSON that the gateway serves at an inspection path, over a new connection."""
        got = self.ask(b"GET %s HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n" % path.encode())
        return json.loads(got.partition(b"\r\n\r\n")[2])

    def stored(self) -> dict[str, bytes]:
        """Return the bodies stored so far, by key."""
        return {event["key"]: bytes.fromhex(event["body"]) for event in self.inspect("/seen")}

    @property
    def peak(self) -> int:
        """The peak memory of the process in bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024

    @property
    def cpu_s(self) -> float:
        """Processor time spent so far."""
        times = self.seen.cpu_times()
        return float(times.user + times.system)

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.bound.close()


@contextlib.contextmanager
def gateway(**options: Any) -> Iterator[Gateway]:
    """Yield a gateway that accepts requests."""
    one = Gateway(**options)
    try:
        assert one.inspect("/seen") == []
        yield one
    finally:
        one.close()


def read_all(client: socket.socket, timeout_s: float = 300) -> bytes:
    client.settimeout(timeout_s)
    got = bytearray()
    with contextlib.suppress(ConnectionError):
        while piece := client.recv(65536):
            got += piece
    return bytes(got)


def read_answer(client: socket.socket) -> tuple[int, bytes]:
    """Read one response with a Content-Length; status 0 if the connection was closed instead."""
    got = b""
    while b"\r\n\r\n" not in got:
        piece = client.recv(65536)
        if not piece:
            return 0, got
        got += piece
    head, _, body = got.partition(b"\r\n\r\n")
    lengths = [line.partition(b":")[2] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    while len(body) < int(lengths[0]):
        body += client.recv(65536)
    return int(head.split()[1]), body


def post(path: str, body: bytes, extra: bytes = b"", *, length: int | None = None) -> bytes:
    size = len(body) if length is None else length
    return b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n%s\r\n%s" % (path.encode(), size, extra, body)


def proof(body: bytes, secret: str = SECRET) -> bytes:
    """Return the signature header of Stripe for *body*."""
    stamp = int(time.time())
    mac = hmac.new(secret.encode(), b"%d." % stamp + body, hashlib.sha256).hexdigest()
    return b"Stripe-Signature: t=%d,v1=%s\r\n" % (stamp, mac.encode())


def statuses(got: bytes) -> list[int]:
    """Return the statuses of all responses except interim ones."""
    found = [int(part[:3]) for part in got.split(b"HTTP/1.1 ")[1:]]
    return [status for status in found if status >= 200]
