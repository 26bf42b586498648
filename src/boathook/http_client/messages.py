"""A request about to be made, and what came of it."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import msgspec


class TransportFailure(StrEnum):
    """Why a request got no HTTP answer."""

    URL = "URL"
    """The address is not one that is dialled; nothing was asked of any server."""
    BLOCKED = "BLOCKED"
    """The name stands for an address that may not be dialled; no packet went there."""
    DNS = "DNS"
    CONNECT = "CONNECT"
    TLS = "TLS"
    PROXY = "PROXY"
    """The proxy could not be reached, or refused."""
    TIMEOUT = "TIMEOUT"
    SEND = "SEND"
    """The connection broke before the request was sent whole."""
    READ = "READ"
    """The connection broke before an answer, or what came is none."""
    CLOSED = "CLOSED"
    """The client was closed meanwhile."""
    FAULT = "FAULT"
    """Our own fault; the log tells more."""


class Sink(Protocol):
    """Takes a response as it comes, in the thread that reads it; it neither raises nor blocks."""

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the head of the final response."""
        ...

    def take(self, piece: bytes) -> int | None:
        """Take a piece of its body; return WRITEFUNC_PAUSE of libcurl to refuse it for now, -1 to end the response."""
        ...

    def end(self, result: "RequestResult") -> None:
        """Take note of the end of the response, or of the failure."""
        ...

    def is_cancelled(self) -> bool:
        """Return whether the response is no longer wanted."""
        ...


class OutgoingRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One request about to be made; a POST over a kept connection unless it has a sink."""

    url: str
    headers: tuple[tuple[str, str], ...]
    """All that are sent besides Host, Accept and Content-Length, in order and as spelled."""
    body: bytes | Path
    """The bytes, or with a sink the file that they are read from."""
    timeout_s: float
    """For the whole attempt."""
    basic: tuple[str, str] | None = None
    """User name and password."""
    client_certificate: tuple[str, str] | None = None
    """The certificate and its key as PEM texts."""
    token: object = None
    """The caller's own, handed back with the answer."""
    sink: Sink | None = None
    """Takes the response as it comes; None: its first bytes are kept for the result."""
    method: str = "POST"
    """Another only with a sink."""
    stall_s: int = 0
    """With a sink: seconds below a kibibyte a second after which it fails; 0: never."""

    def __repr__(self) -> str:
        """Name it without what may be secret, which is nearly all of it."""
        return f"OutgoingRequest(timeout_s={self.timeout_s})"


class RequestResult(msgspec.Struct, frozen=True, eq=False):
    """What came of an outgoing request."""

    request: OutgoingRequest
    status: int
    """The HTTP status; 0 for no HTTP answer."""
    headers: Mapping[str, str]
    """Names in lower case; capped; of a repeated one the last. Empty where a sink took them."""
    body: bytes
    """The first bytes of the response, not decoded. Empty where a sink took them."""
    duration_s: float
    """Until the response's headers, or the failure."""
    failure: TransportFailure | None
    error: str
    """One line for people; empty where an HTTP answer came."""
    is_cut: bool = False
    """Whether the response's body went on, or broke off."""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What a server answered."""

    status: int
    headers: Mapping[str, str]
    """By lower-case name; those that come twice are joined by a comma and a space."""
    body: bytes

    @property
    def is_ok(self) -> bool:
        """Whether the status is one of success."""
        return 200 <= self.status < 300


@dataclass(frozen=True, slots=True)
class DownloadResult:
    """A file that was fetched whole."""

    size: int
    content_type: str
    """As the server named it; empty where it named none."""
    sha256: str
    """In hexadecimal digits."""
