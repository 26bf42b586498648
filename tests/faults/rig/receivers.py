"""Receivers of messages: one port, a path for each endpoint, and a behaviour for each path that can change at run time."""

import asyncio
import contextlib
import gzip
import hashlib
import time
from collections import defaultdict
from collections.abc import Callable
from functools import cache
from typing import Literal

import msgspec

from tests.faults.rig.history import Arrived, Fact

_DRIP_S = 1.0
_LONG = 3600.0


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """How a receiver responds."""

    status: int = 204
    after_s: float = 0.0
    """Seconds until it answers."""
    how: Literal["answer", "hang", "drip", "flood", "bomb", "heads", "reset"] = "answer"
    """Else: never answer; send a byte a second; a body of *size* bytes; one that
    is a few kilobytes and unpacks to *size*; headers of *size* bytes; cut the connection."""
    size: int = 0
    headers: dict[str, str] = {}


class Receivers:
    """Records every message, and responds as the behaviour of its path says."""

    def __init__(self, write: Callable[[Fact], None], address: str) -> None:
        self._write = write
        self._address = address
        self.behaviours: dict[str, Behaviour] = defaultdict(Behaviour)
        self.arrived = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def open(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._serve, self._address, self.port, backlog=1024)
        self.port = self._server.sockets[0].getsockname()[1]

    async def shut(self) -> None:
        """Refuse new connections and cut existing ones, until `open` is called again; the port stays the same."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while await self._take(reader, writer):
                pass
        except (OSError, EOFError, asyncio.CancelledError):
            pass
        finally:
            self._serving.discard(task)
            with contextlib.suppress(OSError, RuntimeError):
                writer.transport.abort()

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection may bring another."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        place = head[0].split()[1]
        behaviour = self.behaviours[place]
        self._note(headers, place, body, behaviour)
        await asyncio.sleep(behaviour.after_s)
        match behaviour.how:
            case "answer":
                writer.write(_head(behaviour, length=0))
                await writer.drain()
                return True
            case "hang":
                await asyncio.sleep(_LONG)
            case "drip":
                await _drip(writer)
            case "flood":
                writer.write(_head(behaviour, length=behaviour.size))
                await _pour(writer, b"x" * 65_536, behaviour.size)
            case "bomb":
                packed = _packed(behaviour.size)
                writer.write(_head(behaviour, length=len(packed)) + packed)
                await writer.drain()
            case "heads":
                writer.write(b"HTTP/1.1 200 X\r\n")
                await _pour(writer, b"x-filler: " + b"y" * 1_000 + b"\r\n", behaviour.size)
            case "reset":
                pass
        return False

    def _note(self, headers: dict[str, str], place: str, body: bytes, behaviour: Behaviour) -> None:
        """Log the message before responding, so that every accepted message is in the log."""
        self.arrived += 1
        status = behaviour.status if behaviour.how == "answer" else 0
        sha = hashlib.sha256(body).hexdigest()
        self._write(Arrived(at=time.time(), message=headers.get("webhook-id", ""), place=place, sha=sha, status=status))


def _head(behaviour: Behaviour, *, length: int) -> bytes:
    lines = [f"HTTP/1.1 {behaviour.status} X", *(f"{name}: {value}" for name, value in behaviour.headers.items())]
    if behaviour.status != 204:
        lines.append(f"content-length: {length}")
    return "\r\n".join([*lines, "", ""]).encode()


@cache
def _packed(size: int) -> bytes:
    return gzip.compress(bytes(size))


async def _drip(writer: asyncio.StreamWriter) -> None:
    for byte in b"HTTP/1.1 200 X\r\ncontent-length: 1000\r\n\r\n" + b"x" * 1_000:
        writer.write(bytes([byte]))
        await writer.drain()
        await asyncio.sleep(_DRIP_S)


async def _pour(writer: asyncio.StreamWriter, piece: bytes, size: int) -> None:
    for _ in range(size // len(piece) + 1):
        writer.write(piece)
        await writer.drain()
