"""One request of an app: what is checked before anything is asked of anybody, and how libcurl is told of it."""

import base64
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Final

import pycurl

from boathook.domain.errors import FetchFailed
from boathook.http_client.addresses import Address
from boathook.http_client.connect_guard import Options

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"})
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_OURS: Final = frozenset({
    "connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization", "proxy-connection", "te",
    "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
"""Headers that say where a request begins, ends and goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpRequest:
    """One request about to be made."""

    method: str
    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | Path = field(default=b"", repr=False)
    timeout_s: float
    """For all of it, finding the name included."""
    stall_s: int = 0
    """Seconds below a kibibyte a second after which it fails; 0: never."""

    def check(self) -> None:
        """Refuse what cannot be sent, or would be read as more than one request. Raises FetchFailed."""
        if self.method not in METHODS:
            raise FetchFailed(f"the method {self.method[:20]!r} is none of {', '.join(sorted(METHODS))}")
        if self.body and self.method == "HEAD":
            raise FetchFailed("a HEAD request carries no body")
        if not self.timeout_s > 0:
            raise FetchFailed("timeout_s must be more than 0")
        for name, value in self.headers.items():
            if not _NAME.fullmatch(name):
                raise FetchFailed("a header's name holds characters that no name holds")
            if name.lower() in _OURS:
                raise FetchFailed(f"the header {name} is boathook's own to write; leave it out")
            if _CONTROL.search(value):
                raise FetchFailed(f"the header {name} holds a line break or another control character")


def header_lines(call: HttpRequest, address: Address, user_agent: str) -> list[bytes]:
    """Return the headers of *call* as libcurl takes them."""
    given = {name.lower() for name in call.headers}
    # A value that is empty is written with a semicolon; libcurl takes the colon as a wish to leave the header out.
    lines = [f"{name}: {value}" if value else f"{name};" for name, value in call.headers.items()]
    lines.append("Expect:")
    if "content-type" not in given:
        lines.append("Content-Type:")
    if "accept-encoding" not in given:
        lines.append("Accept-Encoding: identity")
    if "user-agent" not in given:
        lines.append(f"User-Agent: {user_agent}")
    if address.user is not None and "authorization" not in given:
        lines.append("Authorization: Basic " + base64.b64encode(":".join(address.user).encode()).decode())
    return [_encode(line) for line in lines]


def _encode(line: str) -> bytes:
    try:
        return line.encode("latin-1")
    except UnicodeEncodeError:
        return line.encode("utf-8", "replace")


class RequestBody:
    """The body of a request on its way out; a file is read as it is sent, and is as long as it was at first.

    Raises:
        FetchFailed: the file cannot be read.
    """

    def __init__(self, call: HttpRequest) -> None:
        self._call = call
        self._file: BinaryIO | None = None
        self._left = 0
        if isinstance(call.body, Path):
            try:
                self._file = call.body.open("rb")
                self._left = os.fstat(self._file.fileno()).st_size
            except OSError as error:
                raise FetchFailed(f"{call.body.name} cannot be read: {error.strerror}") from None

    def options(self) -> Options:
        """Return the options that say method and body."""
        method = self._call.method
        if self._file is not None:
            return [
                (pycurl.UPLOAD, 1),
                (pycurl.CUSTOMREQUEST, method),
                (pycurl.INFILESIZE_LARGE, self._left),
                (pycurl.READFUNCTION, self._read),
            ]
        if method == "HEAD":
            return [(pycurl.NOBODY, 1)]
        if self._call.body or method in {"POST", "PUT", "PATCH"}:
            return [(pycurl.POSTFIELDS, self._call.body), (pycurl.CUSTOMREQUEST, method)]
        return [(pycurl.CUSTOMREQUEST, method)]

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _read(self, size: int) -> bytes | int:
        assert self._file is not None
        try:
            piece = self._file.read(min(size, self._left))
        except OSError:
            return int(pycurl.READFUNC_ABORT)
        if not piece and self._left:
            return int(pycurl.READFUNC_ABORT)
        self._left -= len(piece)
        return piece
