"""Serves generated audio and covers for simulations and tests: loopback only, with Range, ETag and failures.

``/files/`` works; ``/broken/`` breaks off in the middle, the first time; ``/gone/`` has expired; ``/page/`` responds
with an HTML page declared as audio.
"""

import hashlib
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final, Self

_BEGINNINGS: Final = {"mp3": b"ID3\x04\x00\x00\x00\x00\x00\x00", "jpeg": b"\xff\xd8\xff\xe0\x00\x10JFIF"}
_TYPES: Final = {"mp3": "audio/mpeg", "jpeg": "image/jpeg"}
_PAGE: Final = b"<!doctype html><title>Please log in</title>"
_RANGE: Final = re.compile(r"bytes=([0-9]{1,9})-")


def content_of(path: str) -> bytes:
    """Return the file at a path: some kilobytes derived from its name."""
    name = path.rpartition("/")[2]
    seed = hashlib.sha256(name.encode()).digest()
    length = 20_000 + int.from_bytes(seed[:2], "big")
    return (_BEGINNINGS[name.rpartition(".")[2]] + hashlib.shake_256(seed).digest(length))[:length]


class FileServer:
    """Serves on a free port of loopback while its ``with`` block runs."""

    def __init__(self) -> None:
        self._server = _Server(("127.0.0.1", 0), _Answers)
        self._server.file_server = self  # type: ignore[attr-defined]
        self._lock = threading.Lock()
        self._broken: set[str] = set()
        self.asked: list[tuple[str, str | None]] = []
        """Requested paths, each with its Range."""

    @property
    def url(self) -> str:
        """The server's base URL."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def note(self, path: str, byte_range: str | None) -> None:
        """Record a request."""
        with self._lock:
            self.asked.append((path, byte_range))

    def content(self, path: str) -> bytes:
        """Return the content of a path."""
        return _PAGE if path.startswith("/page/") else content_of(path)

    def pieces(self, path: str, content: bytes) -> Iterator[bytes]:
        """Yield the parts of a body that are sent."""
        middle = len(content) // 2
        with self._lock:
            breaks_off = path.startswith("/broken/") and path not in self._broken
            self._broken.add(path)
        yield content[:middle]
        if not breaks_off:
            yield content[middle:]


class _Server(ThreadingHTTPServer):
    block_on_close = False

    def handle_error(self, *_: Any) -> None:
        """Ignore clients that disconnect."""


class _Answers(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        file_server: FileServer = self.server.file_server  # type: ignore[attr-defined]
        range_header = self.headers.get("range")
        file_server.note(self.path, range_header)
        folder, extension = self.path[1:].partition("/")[0], self.path.rpartition(".")[2]
        if folder == "gone" or extension not in _TYPES:
            self._answer(404, b"", {})
            return
        content = file_server.content(self.path)
        tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
        headers = {"content-type": _TYPES[extension], "etag": tag, "accept-ranges": "bytes"}
        match = _RANGE.fullmatch(range_header or "")
        if match is None or self.headers.get("if-range", tag) != tag or int(match[1]) >= len(content):
            self._answer(200, content, headers)
            return
        start = int(match[1])
        headers["content-range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        self._answer(206, content[start:], headers)

    def _answer(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        file_server: FileServer = self.server.file_server  # type: ignore[attr-defined]
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        sent = 0
        for piece in file_server.pieces(self.path, content):
            self.wfile.write(piece)
            self.wfile.flush()
            sent += len(piece)
        self.close_connection = sent < len(content)

    def log_message(self, *_: Any) -> None:
        """Log nothing."""
