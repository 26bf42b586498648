"""One POST about to be made, and what came of it: the values that senders and the courier exchange."""

from collections.abc import Mapping
from enum import StrEnum

import msgspec


class TransportFailure(StrEnum):
    """Why a request got no HTTP answer."""

    URL = "URL"
    """The address is not one that is dialled; nothing was asked of anybody."""
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
    """The courier was closed meanwhile."""
    FAULT = "FAULT"
    """Our own fault; the log tells more."""


class OutgoingRequest(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """One POST about to be made."""

    url: str
    headers: tuple[tuple[str, str], ...]
    """All that are sent besides Host, Accept and Content-Length, in order and as spelled."""
    body: bytes
    timeout_s: float
    """For the whole attempt."""
    basic: tuple[str, str] | None = None
    """User name and password."""
    client_certificate: tuple[str, str] | None = None
    """The certificate and its key as PEM texts."""
    token: object = None
    """The caller's own, handed back with the answer."""

    def __repr__(self) -> str:
        """Name it without what may be secret, which is nearly all of it."""
        return f"Outgoing(timeout_s={self.timeout_s})"


class RequestResult(msgspec.Struct, frozen=True, eq=False):
    """What came of an outgoing request."""

    request: OutgoingRequest
    status: int
    """The HTTP status; 0 for no HTTP answer."""
    headers: Mapping[str, str]
    """Names in lower case; capped; of a repeated one the last."""
    body: bytes
    """The first bytes of the response, not decoded."""
    duration_s: float
    """Until the response's headers, or the trouble."""
    failure: TransportFailure | None
    error: str
    """One line for people; empty where an HTTP answer came."""
    is_cut: bool = False
    """Whether the response's body went on, or broke off."""
