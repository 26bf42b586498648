"""Reads one HTTP/1.1 response from pieces of a connection, within the limits of `messages`; without I/O.

It takes the heads that libcurl takes, and rejects the others in the same words. httptools is stricter: it rejects a
repeated Content-Length, and one beside Transfer-Encoding, which some receivers send. It decodes chunked bodies.
"""

import re
from typing import Final

import httptools

from boathook.http_client.messages import MAX_BODY_READ, MAX_HEAD, MAX_HEADERS, MAX_INTERIM

_END_OF_HEAD: Final = re.compile(rb"\r?\n\r?\n")
_STATUS: Final = re.compile(rb"HTTP/(1\.[01]|2\.0)[ \t]([0-9]{3})(?![0-9])", re.IGNORECASE)
FOLD: Final = re.compile(rb"\n[ \t]+")
_NO_BODY: Final = frozenset({204, 304})
_FRAMING: Final = frozenset({"connection", "content-length", "transfer-encoding"})
_MAX_DIGITS: Final = 19
"""Digits of a Content-Length; a longer one is ignored, and the body ends with the connection."""
_MAX_ENCODED: Final = 8 * MAX_BODY_READ
"""Bytes of a chunked body before decoding, after which the connection is closed."""
_CHUNKED_HEAD: Final = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class InvalidResponse(Exception):
    """The bytes are not an HTTP response, or its head is too large."""


class ResponseReader:
    """Reads the final response to one request.

    Args:
        keep: maximum bytes of the body that are stored.
    """

    __slots__ = (
        "_body", "_body_size", "_buffer", "_chunks", "_head_size", "_interim", "_is_broken", "_keep", "_left",
        "has_length", "headers", "is_complete", "is_empty", "keeps_alive", "status",
    )  # fmt: skip

    def __init__(self, keep: int) -> None:
        self.status = 0
        """The status; 0 until the final head is complete."""
        self.headers: dict[str, str] = {}
        """By lower-case name, limited in number; of repeated headers the last."""
        self.is_empty = True
        """Whether no byte has come."""
        self.has_length = False
        """Whether the body ends before the connection does."""
        self.is_complete = False
        self.keeps_alive = False
        """Whether the connection can be used again, once the response is complete."""
        self._keep = keep
        self._buffer = b""
        self._head_size = self._interim = self._body_size = self._left = 0
        self._body: list[bytes] = []
        self._is_broken = False
        self._chunks: httptools.HttpResponseParser | None = None

    @property
    def body(self) -> bytes:
        """The first bytes of the body."""
        return b"".join(self._body)[: self._keep]

    @property
    def is_cut(self) -> bool:
        """Whether the body is longer than what is stored, or invalid."""
        return self._is_broken or self._body_size > self._keep

    def feed(self, data: bytes) -> None:
        """Read the next bytes. Raises InvalidResponse before the final head is complete, never later."""
        self.is_empty = False
        if self.status:
            self._read_body(data)
            return
        searched = max(0, len(self._buffer) - 3)
        buffer = self._buffer + data if self._buffer else data
        while buffer:
            if not b"HTTP/".startswith(buffer[:5].upper()):
                raise InvalidResponse("Received HTTP/0.9 when not allowed")
            match = _END_OF_HEAD.search(buffer, searched)
            end = match.end() if match is not None else len(buffer)
            if self._head_size + end > MAX_HEAD:
                raise InvalidResponse(f"the answer's headers are larger than {MAX_HEAD} bytes")
            if match is None:
                break
            self._head_size += end
            head, buffer, searched = buffer[: match.start()], buffer[end:], 0
            if self._read_head(head):
                self._read_body(buffer)
                buffer = b""
        self._buffer = buffer

    def describe_end(self) -> str:
        """Explain why a connection closed before the final head gave no response."""
        return "no response received" if b"\n" in self._buffer else "Empty reply from server"

    def _read_head(self, head: bytes) -> bool:
        """Read a head without its last line end; return whether it is the final one."""
        head = head.replace(b"\r\n", b"\n")
        if b"\0" in head:
            raise InvalidResponse("NUL byte in header")
        if b"\r" in head:
            raise InvalidResponse("Carriage return found in header")
        start, _, rest = head.partition(b"\n")
        line = _STATUS.match(start)
        if line is None:
            raise InvalidResponse(_describe_version(start))
        status = int(line[2])
        if status < 100:
            raise InvalidResponse("Unsupported response code in HTTP response")
        if status < 200:
            self._pass_over(status)
            return False
        self._read_headers(rest, version=line[1], has_body=status not in _NO_BODY)
        self.status = status
        return True

    def _pass_over(self, status: int) -> None:
        self._interim += 1
        if self._interim > MAX_INTERIM:
            raise InvalidResponse(f"more than {MAX_INTERIM} interim responses, and no final one")
        if status == 101:  # no other protocol was offered
            raise InvalidResponse("no response received")

    def _read_headers(self, text: bytes, *, version: bytes, has_body: bool) -> None:
        if b"\n " in text or b"\n\t" in text:
            text = FOLD.sub(b" ", text)
        framing: dict[str, str] = {}
        lines = text.decode("latin-1").split("\n") if text else []
        for number, line in enumerate(lines):
            name, colon, value = line.partition(":")
            if not colon:
                raise InvalidResponse("Header without colon")
            name, value = name.lower(), value.strip()
            if name in _FRAMING:
                framing[name] = f"{framing[name]},{value}" if name in framing else value
            if number < MAX_HEADERS:
                self.headers[name] = value
        length, coding = framing.get("content-length"), framing.get("transfer-encoding")
        if length is not None:
            self._read_length(length)
        is_chunked = coding is not None and _is_chunked(coding)
        if not has_body:
            self.has_length, self._left = True, 0
        elif is_chunked:
            self.has_length = True
            self._left = 0
            self._chunks = httptools.HttpResponseParser(self)
            self._chunks.set_dangerous_leniencies(
                lenient_optional_cr_before_lf=True, lenient_spaces_after_chunk_size=True
            )
            self._chunks.feed_data(_CHUNKED_HEAD)
        is_kept = version == b"1.1"
        if "connection" in framing:
            options = {option.strip() for option in framing["connection"].lower().split(",")}
            is_kept = "keep-alive" in options if version == b"1.0" else is_kept and "close" not in options
        # Where length and coding disagree, the next bytes may be part of this response.
        self.keeps_alive = is_kept and self.has_length and (length is None or coding is None)

    def _read_length(self, text: str) -> None:
        length = text
        if "," in text:
            length, *others = {part.strip() for part in text.split(",")}
            length = "" if others else length
        if not length.isdecimal():
            raise InvalidResponse("Invalid Content-Length: value")
        if len(length) <= _MAX_DIGITS:
            self.has_length, self._left = True, int(length)

    def _read_body(self, data: bytes) -> None:
        if self._chunks is not None:
            self._left += len(data)
            self._decode(self._chunks, data)
        elif not self.has_length:
            self.on_body(data)
        else:
            part = data[: self._left]
            self._left -= len(part)
            if part:
                self.on_body(part)
            if self._left == 0:
                self.is_complete = True
                self.keeps_alive = self.keeps_alive and len(part) == len(data)
        if self._body_size > MAX_BODY_READ or (self._chunks is not None and self._left > _MAX_ENCODED):
            self._break_off()

    def _decode(self, chunks: httptools.HttpResponseParser, data: bytes) -> None:
        try:
            chunks.feed_data(data)
        except httptools.HttpParserError:
            self.keeps_alive = False
            if not self.is_complete:
                self._break_off()
        if self.is_complete:
            self._chunks = None

    def _break_off(self) -> None:
        self.is_complete = self._is_broken = True
        self.keeps_alive = False

    # Callbacks of httptools.

    def on_message_begin(self) -> None:
        """Note that bytes follow the response."""
        if self.is_complete:
            self.keeps_alive = False

    def on_body(self, data: bytes) -> None:
        """Store a piece of the body."""
        if self.is_complete:  # of what follows the response
            return
        if self._body_size < self._keep:
            self._body.append(data)
        self._body_size += len(data)

    def on_message_complete(self) -> None:
        """Note the end of a chunked body."""
        self.is_complete = True


def _describe_version(line: bytes) -> str:
    version = line[5:6]
    if version == b"1":
        return "Unsupported HTTP/1 subversion in response"
    return "Version mismatch (from HTTP/1 to HTTP/2)" if version == b"2" else "Unsupported HTTP version in response"


def _is_chunked(codings: str) -> bool:
    """Return whether a body with these transfer codings is chunked. Raises InvalidResponse."""
    is_chunked = False
    for coding in [part.strip()[:50] for part in codings.lower().split(",")]:
        if coding == "chunked":
            is_chunked = True
        elif is_chunked:
            raise InvalidResponse(f"A Transfer-Encoding ({coding}) was listed after chunked")
        elif coding not in {"", "identity"}:
            raise InvalidResponse(f"Unsolicited Transfer-Encoding ({coding}) found")
    return is_chunked
