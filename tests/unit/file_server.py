"""File server on loopback with faults: it cuts connections, ignores ranges, sends wrong lengths or sends slowly."""

import asyncio
import contextlib
import re
from dataclasses import dataclass, field

from tests.unit.receivers import stop_serving

DATE = "Sat, 21 Nov 2026 12:00:00 GMT"
OLD = "Fri, 20 Nov 2026 12:00:00 GMT"


@dataclass
class FileServer:
    """Serves one file, with one request per connection."""

    content: bytes = b""
    etag: str | None = '"v1"'
    modified: str | None = None
    heeds_range: bool = True
    heeds_if_range: bool = True
    names_etag_in_parts: bool = True
    length: int | None = -1
    """The Content-Length header; -1: the true length, None: no header."""
    status: int | None = None
    more_headers: tuple[str, ...] = ()
    cut_after: int | None = None
    """Bytes of the body after which the connection breaks."""
    pause_s: float = 0.0
    """Pause between pieces."""
    piece: int = 65_536
    is_endless: bool = False
    heads: list[str] = field(default_factory=list)
    sent: list[int] = field(default_factory=list)
    """Bytes of body sent for each request."""

    async def __aenter__(self):
        self._tasks = set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}/file/bot123:secret?token=hidden"
        return self

    async def __aexit__(self, *_):
        await stop_serving(self._server, self._tasks)

    @property
    def ranges(self):
        return [found[1] if (found := re.search(r"\r\nRange: bytes=(\S+)", head)) else None for head in self.heads]

    async def _serve(self, reader, writer):
        task = asyncio.current_task()
        self._tasks.add(task)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            self.heads.append(head)
            self.sent.append(0)
            await self._answer(writer, head, len(self.sent) - 1)
        self._tasks.discard(task)
        writer.transport.abort() if self.cut_after is not None else writer.close()

    async def _answer(self, writer, head, number):
        status, start, lines = self._judge(head)
        body = b"" if status == 416 else self.content[start:]
        length = len(body) if self.length == -1 else self.length
        lines = [f"HTTP/1.1 {status} X", "connection: close", f"date: {DATE}", *lines, *self.more_headers]
        lines += [] if length is None or self.is_endless else [f"content-length: {length}"]
        writer.write("".join(f"{line}\r\n" for line in [*lines, ""]).encode())
        sent = 0
        while self.is_endless or sent < len(body):
            piece = b"x" * self.piece if self.is_endless else body[sent : sent + self.piece]
            left = len(piece) if self.cut_after is None else self.cut_after - sent
            writer.write(piece[:left])
            await writer.drain()
            sent += min(left, len(piece))
            self.sent[number] = sent
            if self.cut_after is not None and sent >= self.cut_after:
                return
            await asyncio.sleep(self.pause_s)

    def _judge(self, head):
        lines = ["content-type: audio/mpeg"]
        wanted = re.search(r"\r\nRange: bytes=([0-9]+)-", head)
        condition = re.search(r"\r\nIf-Range: (.+?)\r\n", head)
        is_same = condition is None or condition[1] in {self.etag, self.modified} or not self.heeds_if_range
        is_part = wanted is not None and self.heeds_range and is_same
        if (self.names_etag_in_parts or not is_part) and self.etag is not None:
            lines.append(f"etag: {self.etag}")
        if self.modified is not None:
            lines.append(f"last-modified: {self.modified}")
        if self.status is not None:
            return self.status, 0, lines
        if not is_part:
            return 200, 0, lines
        start = int(wanted[1])
        if start >= len(self.content):
            return 416, 0, [*lines, f"content-range: bytes */{len(self.content)}"]
        return 206, start, [*lines, f"content-range: bytes {start}-{len(self.content) - 1}/{len(self.content)}"]
