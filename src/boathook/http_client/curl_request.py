"""One request and its answer over a handle of libcurl's that is used again and again."""

import base64
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import pycurl

from boathook.http_client.address_rules import Network
from boathook.http_client.addresses import Address
from boathook.http_client.connect_guard import ConnectGuard, Options
from boathook.http_client.messages import OutgoingRequest, RequestResult, TransportFailure
from boathook.observability.log import get_logger

MAX_BODY_READ: Final = 65_536
"""Bytes of a response's body after which the connection is cut."""
_MOST_HEAD: Final = 65_536
_BLANK: Final = frozenset({b"\r\n", b"\n"})
_MOST_INTERIM: Final = 16
"""Answers of 1xx before the final one."""
_MOST_KEPT: Final = 64
"""Headers of a response that are kept."""
_LONG_BODY: Final = 65_536
"""A request's body that is not kept in memory by an idle handle."""
_LOG: Final = get_logger("http_client")

_TROUBLES: Final[Mapping[int, TransportFailure]] = {
    pycurl.E_URL_MALFORMAT: TransportFailure.URL,
    pycurl.E_UNSUPPORTED_PROTOCOL: TransportFailure.READ,
    pycurl.E_COULDNT_RESOLVE_PROXY: TransportFailure.PROXY,
    97: TransportFailure.PROXY,
    pycurl.E_COULDNT_RESOLVE_HOST: TransportFailure.DNS,
    pycurl.E_COULDNT_CONNECT: TransportFailure.CONNECT,
    pycurl.E_INTERFACE_FAILED: TransportFailure.CONNECT,
    pycurl.E_OPERATION_TIMEDOUT: TransportFailure.TIMEOUT,
    pycurl.E_SEND_ERROR: TransportFailure.SEND,
    pycurl.E_SSL_CONNECT_ERROR: TransportFailure.TLS,
    pycurl.E_PEER_FAILED_VERIFICATION: TransportFailure.TLS,
    pycurl.E_SSL_ENGINE_NOTFOUND: TransportFailure.TLS,
    pycurl.E_SSL_ENGINE_SETFAILED: TransportFailure.TLS,
    pycurl.E_SSL_CERTPROBLEM: TransportFailure.TLS,
    pycurl.E_SSL_CIPHER: TransportFailure.TLS,
    pycurl.E_SSL_CACERT: TransportFailure.TLS,
    pycurl.E_SSL_CACERT_BADFILE: TransportFailure.TLS,
    pycurl.E_SSL_SHUTDOWN_FAILED: TransportFailure.TLS,
    pycurl.E_SSL_CRL_BADFILE: TransportFailure.TLS,
    pycurl.E_SSL_ISSUER_ERROR: TransportFailure.TLS,
    pycurl.E_SSL_PINNEDPUBKEYNOTMATCH: TransportFailure.TLS,
    98: TransportFailure.TLS,
    pycurl.E_BAD_FUNCTION_ARGUMENT: TransportFailure.TLS,  # a client certificate with another one's key
}
"""What libcurl's errors come to; all others are troubles of reading."""


class CurlTransfer:
    """One handle, with the request it is making and what has come of it so far.

    Args:
        options: what all requests over the handle have in common.
        allow: networks that may be dialled although they are not public.
        opened: as for `ConnectGuard`.
        keep: bytes of a response's body that are kept.
        home: where it waits for its next request; None for one that serves only once.
        is_detour: whether the requests go through a proxy, which is then all that is dialled.
    """

    __slots__ = (
        "_answered_at",
        "_began_at",
        "_body",
        "_body_size",
        "_fault",
        "_guard",
        "_head_size",
        "_interim",
        "_is_proxied",
        "_keep",
        "_limits",
        "_lines",
        "_refusal",
        "_status",
        "_url",
        "handle",
        "home",
        "request",
    )

    def __init__(
        self,
        options: Options,
        *,
        allow: Sequence[Network],
        opened: list[socket.socket],
        keep: int,
        home: "list[CurlTransfer] | None" = None,
        is_proxied: bool = False,
    ) -> None:
        self._guard = ConnectGuard(allow, opened)
        self._keep = keep
        self._is_proxied = is_proxied
        self.home = home
        self._url = ""
        self._limits = 0.0, 0.0
        self._refusal: str | None
        self._fault: str | None
        self._answered_at: float | None
        self._lines: list[bytes] = []
        self._body: list[bytes] = []
        self.handle = pycurl.Curl()
        for option, value in (*options, *self._callbacks()):
            self.handle.setopt(option, value)

    def _callbacks(self) -> tuple[tuple[int, Callable[..., Any]], ...]:
        return (
            (pycurl.OPENSOCKETFUNCTION, self._open_socket),
            (pycurl.WRITEFUNCTION, self._take),
            (pycurl.HEADERFUNCTION, self._take_header),
        )

    def prepare(
        self, request: OutgoingRequest, address: Address, pinned: Options, connect_s: float, spent_s: float = 0.0
    ) -> None:
        """Set what differs between requests.

        Args:
            outgoing: the request.
            address: its address, read.
            pinned: options that say what the address's name stands for.
            connect_s: seconds for finding the name, connecting and agreeing on TLS.
            spent_s: seconds that went by already.

        Raises:
            ValueError: a header cannot be written.
        """
        handle = self.handle
        handle.setopt(pycurl.HTTPHEADER, _header_lines(request, address))
        handle.setopt(pycurl.POSTFIELDS, request.body)
        for option, value in pinned:
            handle.setopt(option, value)
        if address.url != self._url:
            handle.setopt(pycurl.URL, address.url)
            self._url = address.url
        self._limit(request.timeout_s - spent_s, connect_s - spent_s)
        self.request = request
        self._guard.refusal = None
        self._refusal = self._fault = None
        self._answered_at = None
        self._status = self._head_size = self._body_size = self._interim = 0
        self._began_at = time.monotonic() - spent_s

    def _limit(self, timeout_s: float, connect_s: float) -> None:
        if (timeout_s, connect_s) == self._limits:
            return
        self._limits = timeout_s, connect_s
        self.handle.setopt(pycurl.TIMEOUT_MS, max(1, int(timeout_s * 1_000)))
        self.handle.setopt(pycurl.CONNECTTIMEOUT_MS, max(1, int(min(timeout_s, connect_s) * 1_000)))

    def is_late(self, answered_before: float) -> bool:
        """Return whether its headers came before this moment of the monotonic clock."""
        return self._answered_at is not None and self._answered_at < answered_before

    def finish(self, error: int, message: str) -> RequestResult:
        """Return the answer, and be ready for the next request.

        Args:
            error: libcurl's; 0 for none.
            message: what it says about it.
        """
        request = self.request
        # Once a final status has come, the receiver has decided; how its body went on changes nothing.
        if self._answered_at is not None:
            body = b"".join(self._body) if self._body else b""
            answer = RequestResult(
                request,
                self._status,
                _read_headers(self._lines),
                body[: self._keep],
                self._answered_at - self._began_at,
                None,
                "",
                is_cut=error != 0 or len(body) > self._keep or self._body_size > len(body),
            )
        else:
            failure, why = self._classify_failure(error, message)
            answer = RequestResult(request, 0, {}, b"", time.monotonic() - self._began_at, failure, why)
        self._lines.clear()
        self._body.clear()
        if len(request.body) > _LONG_BODY:
            self.handle.setopt(pycurl.POSTFIELDS, b"")
        del self.request
        return answer

    def close(self) -> None:
        """Free the handle."""
        self.handle.close()

    def _classify_failure(self, error: int, message: str) -> tuple[TransportFailure, str]:
        if self._fault is not None:
            return TransportFailure.FAULT, self._fault
        if self._guard.refusal is not None:
            return TransportFailure.BLOCKED, self._guard.refusal
        if self._refusal is not None:
            return TransportFailure.READ, self._refusal
        failure = _TROUBLES.get(error, TransportFailure.READ)
        if self._is_proxied and failure is TransportFailure.CONNECT:
            failure = TransportFailure.PROXY
        return failure, " ".join(message.split()) or "no answer came"

    def _open_socket(self, purpose: int, address: Any) -> socket.socket | int:
        try:
            return self._guard.open_socket(purpose, address)
        except OSError as error:
            _LOG.error("courier_no_socket", error=str(error))
            self._fault = f"boathook could not open a socket: {error.strerror}"
            return int(pycurl.SOCKET_BAD)
        except Exception as error:  # noqa: BLE001 - libcurl cannot carry it
            self._note(error)
            return int(pycurl.SOCKET_BAD)

    def _take_header(self, line: bytes) -> int | None:
        # It runs for each line of each answer, so what is rare is elsewhere.
        self._head_size += len(line)
        if line in _BLANK or self._head_size > _MOST_HEAD or self._answered_at is not None:
            return self._take_rare()
        self._lines.append(line)
        return None

    def _take_rare(self) -> int | None:
        try:
            if self._head_size > _MOST_HEAD:
                self._refusal = f"the answer's headers are larger than {_MOST_HEAD} bytes"
                return -1
            # After the final head, only trailers can come.
            return self._end_head() if self._answered_at is None else None
        except Exception as error:  # noqa: BLE001 - libcurl cannot carry it
            self._note(error)
            return -1

    def _end_head(self) -> int | None:
        self._status = int(self._lines[0].split(None, 2)[1])
        if self._status >= 200:
            self._answered_at = time.monotonic()
            return None
        self._lines.clear()
        self._interim += 1
        if self._interim > _MOST_INTERIM:
            self._refusal = f"more than {_MOST_INTERIM} interim answers came, and no final one"
            return -1
        return None

    def _take(self, piece: bytes) -> int | None:
        if self._body_size < self._keep:
            self._body.append(piece)
        self._body_size += len(piece)
        return -1 if self._body_size > MAX_BODY_READ else None

    def _note(self, error: Exception) -> None:
        _LOG.error("courier_fault", exc_info=error)
        self._fault = f"boathook failed: {type(error).__name__}"


def _header_lines(request: OutgoingRequest, address: Address) -> list[str] | list[bytes]:
    """Write the headers as libcurl takes them. Raises ValueError."""
    # A value that is empty is written with a semicolon; libcurl takes the colon as a wish to leave the header out.
    lines = [f"{name}: {value}" if value else f"{name};" for name, value in request.headers]
    has_type, has_authorization = _look_for(tuple([name for name, _ in request.headers]))
    lines.append("Expect:")
    if not has_type:
        lines.append("Content-Type:")
    basic = request.basic or address.user
    if basic is not None and not has_authorization:
        lines.append("Authorization: Basic " + base64.b64encode(":".join(basic).encode()).decode())
    whole = "".join(lines)
    return lines if whole.isascii() and whole.isprintable() else [_encode(line) for line in lines]


@lru_cache(1_024)
def _look_for(names: tuple[str, ...]) -> tuple[bool, bool]:
    """Return whether Content-Type and Authorization are among these names."""
    lower = {name.lower() for name in names}
    return "content-type" in lower, "authorization" in lower


def _encode(line: str) -> bytes:
    if any(char < " " and char != "\t" for char in line) or "\x7f" in line:
        raise ValueError(f"the header {line.partition(':')[0]!r} holds a control character")
    try:
        return line.encode("latin-1")
    except UnicodeEncodeError:
        return line.encode("utf-8", "replace")


def _read_headers(lines: Sequence[bytes]) -> dict[str, str]:
    """Return the headers by name; of those that come twice the last."""
    found: dict[str, str] = {}
    for line in lines[1 : _MOST_KEPT + 1]:
        name, colon, value = line.partition(b":")
        if colon:
            found[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
    return found
