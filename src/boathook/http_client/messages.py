"""Outgoing requests and their results."""

from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec

from boathook.domain.errors import FetchFailed

BODY_S: Final = 3.0
"""Maximum seconds for a response's body after its headers, unless a sink receives it."""
MAX_BODY_READ: Final = 65_536
"""Bytes of a response's body after which the connection is closed, unless a sink receives it."""
MAX_HEAD: Final = 65_536
"""Maximum bytes of a response's head, with the interim responses before it."""
MAX_INTERIM: Final = 16
"""Maximum 1xx responses before the final one."""
MAX_HEADERS: Final = 64
"""Maximum headers of a response that are stored."""


class TransportFailure(StrEnum):
    """Why a request got no HTTP response."""

    URL = "URL"
    """The URL is not allowed; no server was contacted."""
    BLOCKED = "BLOCKED"
    """The host resolves to an address that is not allowed; no packet was sent."""
    DNS = "DNS"
    CONNECT = "CONNECT"
    TLS = "TLS"
    PROXY = "PROXY"
    """The proxy was unreachable or refused the request."""
    TIMEOUT = "TIMEOUT"
    SEND = "SEND"
    """The connection broke before the request was fully sent."""
    READ = "READ"
    """The connection broke before a response, or the response is not valid HTTP."""
    CLOSED = "CLOSED"
    """The client was closed meanwhile."""
    FAULT = "FAULT"
    """A bug in boathook; the log has details."""


class Sink(Protocol):
    """Receives a response as it arrives, in the thread that reads it; it must neither raise nor block."""

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Receive the head of the final response."""
        ...

    def take(self, piece: bytes) -> int | None:
        """Receive a piece of the body; return libcurl's WRITEFUNC_PAUSE to pause, -1 to end the response."""
        ...

    def end(self, result: "RequestResult") -> None:
        """Record the end of the response, or the failure."""
        ...

    def is_cancelled(self) -> bool:
        """Return whether to stop reading the response."""
        ...


class OutgoingRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One request to be sent; a POST over a kept connection unless it has a sink."""

    url: str
    headers: tuple[tuple[str, str], ...]
    """All headers except Host, Accept and Content-Length, in order and as spelled."""
    body: bytes | Path
    """The bytes, or with a sink the path of the file to send."""
    timeout_s: float
    """For the whole attempt."""
    basic: tuple[str, str] | None = None
    """User name and password."""
    client_certificate: tuple[str, str] | None = None
    """The certificate and its key as PEM texts."""
    token: object = None
    """An object of the caller, returned with the result."""
    sink: Sink | None = None
    """Receives the response as it arrives; None stores its first bytes in the result."""
    method: str = "POST"
    """Other methods only with a sink."""
    stall_s: int = 0
    """With a sink: seconds below 1 KiB/s after which the request fails; 0 disables it."""

    def __repr__(self) -> str:
        """Omit everything that may be secret, which is nearly all of it."""
        return f"OutgoingRequest(timeout_s={self.timeout_s})"


class RequestResult(msgspec.Struct, frozen=True, eq=False):
    """The result of an outgoing request."""

    request: OutgoingRequest
    status: int
    """The HTTP status; 0 if there was no HTTP response."""
    headers: Mapping[str, str]
    """By lower-case name, limited in size; of repeated headers the last. Empty if a sink received them."""
    body: bytes
    """The first bytes of the response, not decoded. Empty if a sink received them."""
    duration_s: float
    """Until the response's headers, or the failure."""
    failure: TransportFailure | None
    error: str
    """A one-line message; empty if there was an HTTP response."""
    is_cut: bool = False
    """Whether the response's body was cut at the limit or broke off."""


def host_of(url: str) -> str | None:
    """Return the host of a URL or origin; None if it has none."""
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


class HttpResponse(msgspec.Struct, frozen=True):
    """A server's response."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name; repeated headers are joined by a comma and a space."""
    body: bytes
    origin: str = ""
    """Scheme, host and port of the URL; the rest of it may contain tokens."""

    @property
    def is_ok(self) -> bool:
        """Whether the status is 2xx."""
        return 200 <= self.status < 300

    def raise_for_status(self) -> None:
        """Raise FetchFailed unless the status is 2xx."""
        if not self.is_ok:
            raise FetchFailed(
                f"{self.origin}: the server answered with status {self.status}",
                status=self.status,
                host=host_of(self.origin),
                headers=self.headers,
            )


class DownloadResult(msgspec.Struct, frozen=True):
    """A completely downloaded file."""

    size: int
    content_type: str
    """As the server sent it; empty if it sent none."""
    sha256: str
    """In hexadecimal digits."""
