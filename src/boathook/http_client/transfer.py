"""One request and its response on a libcurl handle; the only module that configures handles."""

import base64
import contextlib
import os
import socket
import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO, Final

import pycurl

from boathook.http_client.addresses import Address, Network
from boathook.http_client.guard import ConnectGuard, Options
from boathook.http_client.messages import (
    MAX_BODY_READ,
    MAX_HEAD,
    MAX_HEADERS,
    MAX_INTERIM,
    OutgoingRequest,
    RequestResult,
    Sink,
    TransportFailure,
)
from boathook.observability.log import get_logger

_BLANK: Final = frozenset({b"\r\n", b"\n"})
_LONG_BODY: Final = 65_536
"""Size in bytes above which an idle handle does not keep the request's body in memory."""
_MIN_RATE: Final = 1_024
"""Bytes per second below which a transfer counts as stalled."""
_POOLED: Final[Options] = [(pycurl.POST, 1), (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_2TLS)]
_ONE_OFF: Final[Options] = [
    (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),
    # Use a separate connection, so that no request is sent twice because a kept connection broke.
    (pycurl.FRESH_CONNECT, 1),
    (pycurl.FORBID_REUSE, 1),
]
_LOG: Final = get_logger("http_client")

_TLS_ERRORS: Final = (
    *(pycurl.E_SSL_CONNECT_ERROR, pycurl.E_PEER_FAILED_VERIFICATION, pycurl.E_SSL_ENGINE_NOTFOUND),
    *(pycurl.E_SSL_ENGINE_SETFAILED, pycurl.E_SSL_CERTPROBLEM, pycurl.E_SSL_CIPHER, pycurl.E_SSL_CACERT),
    *(pycurl.E_SSL_CACERT_BADFILE, pycurl.E_SSL_SHUTDOWN_FAILED, pycurl.E_SSL_CRL_BADFILE),
    *(pycurl.E_SSL_ISSUER_ERROR, pycurl.E_SSL_PINNEDPUBKEYNOTMATCH, 98),
    pycurl.E_BAD_FUNCTION_ARGUMENT,  # a client certificate with the key of another one
)
_FAILURES: Final[Mapping[int, TransportFailure]] = dict.fromkeys(_TLS_ERRORS, TransportFailure.TLS) | {
    pycurl.E_URL_MALFORMAT: TransportFailure.URL,
    pycurl.E_COULDNT_RESOLVE_PROXY: TransportFailure.PROXY,
    97: TransportFailure.PROXY,
    pycurl.E_COULDNT_RESOLVE_HOST: TransportFailure.DNS,
    pycurl.E_COULDNT_CONNECT: TransportFailure.CONNECT,
    pycurl.E_INTERFACE_FAILED: TransportFailure.CONNECT,
    pycurl.E_OPERATION_TIMEDOUT: TransportFailure.TIMEOUT,
    pycurl.E_SEND_ERROR: TransportFailure.SEND,
}
"""The failures for libcurl's error codes; all other codes are read failures."""


class CurlTransfer:
    """One reusable handle, with its current POST and the response so far.

    Args:
        options: the options common to all handles.
        allow: networks that are allowed although they are not public.
        opened: as for `ConnectGuard`.
        keep: bytes of a response's body that are stored.
        home: the pool to which the handle returns; None for a handle that is used once.
        is_proxied: whether requests go through a proxy, which is then the only connection.
    """

    __slots__ = (
        "_answered_at", "_began_at", "_body", "_body_size", "_fault", "_guard", "_head_size", "_interim", "_is_proxied",
        "_keep", "_limits", "_lines", "_may_resend", "_refusal", "_sent", "_status", "_url", "handle", "home",
        "is_http1", "origin", "request",
    )  # fmt: skip
    own_options: Options = _POOLED

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
        self._set([*options, *self.own_options, *self._callbacks()])

    def _callbacks(self) -> Options:
        return [
            (pycurl.OPENSOCKETFUNCTION, self._guard.open_socket),
            (pycurl.PREREQFUNCTION, self._allow_send),
            (pycurl.WRITEFUNCTION, self._take),
            (pycurl.HEADERFUNCTION, self._take_header),
        ]

    def _set(self, options: Options) -> None:
        for option, value in options:
            self.handle.setopt(option, value)

    def prepare(
        self,
        request: OutgoingRequest,
        address: Address,
        pinned: Options,
        connect_s: float,
        spent_s: float = 0.0,
        *,
        may_resend: bool = False,
    ) -> None:
        """Set the options that differ between requests.

        Args:
            request: the request to send.
            address: its parsed URL.
            pinned: options that hold the checked addresses of the host.
            connect_s: seconds for DNS, connecting and the TLS handshake.
            spent_s: seconds already spent.
            may_resend: whether to send the request once more if a kept connection turns out to be dead.

        Raises:
            ValueError: a header cannot be encoded, or the body cannot be read.
        """
        handle = self.handle
        self._set_body(request)
        handle.setopt(pycurl.HTTPHEADER, _header_lines(request, address))
        for option, value in pinned:
            handle.setopt(option, value)
        if address.url != self._url:
            handle.setopt(pycurl.URL, address.url)
            self._url = address.url
        self._limit(request.timeout_s - spent_s, connect_s - spent_s)
        self.request = request
        self._guard.reset()
        self._refusal = self._fault = None
        self._answered_at = None
        self._may_resend = may_resend
        self._sent = 0
        self.origin = address.host, address.port
        self.is_http1 = False
        self._status = self._head_size = self._body_size = self._interim = 0
        self._began_at = time.monotonic() - spent_s

    def _set_body(self, request: OutgoingRequest) -> None:
        self.handle.setopt(pycurl.POSTFIELDS, request.body)

    def _limit(self, timeout_s: float, connect_s: float) -> None:
        if (timeout_s, connect_s) == self._limits:
            return
        self._limits = timeout_s, connect_s
        self.handle.setopt(pycurl.TIMEOUT_MS, max(1, int(timeout_s * 1_000)))
        self.handle.setopt(pycurl.CONNECTTIMEOUT_MS, max(1, int(min(timeout_s, connect_s) * 1_000)))

    def _allow_send(self, *_addresses: object) -> int:
        """Forbid that libcurl sends the request again by itself, which would exceed the endpoint's rate.

        It does so up to five times if an HTTP/2 receiver refuses the stream (RFC 9113, section 8.7).
        """
        self._sent += 1
        if self._sent == 1:
            self._may_resend = self._may_resend and not self._guard.has_opened
        elif self._sent > 2 or not self._may_resend:
            self._refusal = "the receiver refused the stream or closed the connection without a response"
            return int(pycurl.PREREQFUNC_ABORT)
        return int(pycurl.PREREQFUNC_OK)

    def is_over(self, answered_before: float) -> bool:
        """Return whether to end the transfer: its headers came before this time of the monotonic clock."""
        return self._answered_at is not None and self._answered_at < answered_before

    def resume(self) -> None:
        """Continue a response that its sink has paused."""
        # An error here is reported as the end of the transfer.
        with contextlib.suppress(pycurl.error):
            self.handle.pause(pycurl.PAUSE_CONT)

    def finish(self, error: int, message: str) -> RequestResult:
        """Return the result, and reset the handle for the next request.

        Args:
            error: libcurl's error code; 0 for none.
            message: libcurl's error message.
        """
        request = self.request
        # Once a final status has arrived, the receiver has decided; a broken body changes nothing.
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
            failure, error_text = self._classify_failure(error, message)
            answer = RequestResult(request, 0, {}, b"", time.monotonic() - self._began_at, failure, error_text)
        self._lines.clear()
        self._body.clear()
        if isinstance(request.body, bytes) and len(request.body) > _LONG_BODY:
            self.handle.setopt(pycurl.POSTFIELDS, b"")
        del self.request
        return answer

    def close(self) -> None:
        """Free the handle."""
        self.handle.close()

    def _classify_failure(self, error: int, message: str) -> tuple[TransportFailure, str]:
        fault = self._fault or self._guard.fault
        if fault is not None:
            return TransportFailure.FAULT, fault
        if self._guard.refusal is not None:
            return TransportFailure.BLOCKED, self._guard.refusal
        if self._refusal is not None:
            return TransportFailure.READ, self._refusal
        failure = _FAILURES.get(error, TransportFailure.READ)
        if self._is_proxied and failure is TransportFailure.CONNECT:
            failure = TransportFailure.PROXY
        return failure, " ".join(message.split()) or "no response received"

    def _take_header(self, line: bytes) -> int | None:
        # This runs for each line of each response, so rare cases are handled elsewhere.
        self._head_size += len(line)
        if line in _BLANK or self._head_size > MAX_HEAD or self._answered_at is not None:
            return self._take_rare()
        self._lines.append(line)
        return None

    def _take_rare(self) -> int | None:
        try:
            if self._head_size > MAX_HEAD:
                self._refusal = f"the answer's headers are larger than {MAX_HEAD} bytes"
                return -1
            # After the final head, only trailers can come.
            return self._end_head() if self._answered_at is None else None
        except Exception as error:  # noqa: BLE001 - libcurl cannot propagate exceptions
            self._note(error)
            return -1

    def _end_head(self) -> int | None:
        if not self._lines:
            self._refusal = "Received HTTP/0.9 when not allowed"
            return -1
        self._status = int(self._lines[0].split(None, 2)[1])
        if self._status >= 200:
            self._answered_at = time.monotonic()
            self.is_http1 = self._lines[0].startswith(b"HTTP/1")
            return None
        self._lines.clear()
        self._interim += 1
        if self._interim > MAX_INTERIM:
            self._refusal = f"more than {MAX_INTERIM} interim responses, and no final one"
            return -1
        return None

    def _take(self, piece: bytes) -> int | None:
        if self._body_size < self._keep:
            self._body.append(piece)
        self._body_size += len(piece)
        return -1 if self._body_size > MAX_BODY_READ else None

    def _note(self, error: Exception) -> None:
        _LOG.error("http_client_fault", exc_info=error)
        self._fault = f"boathook failed: {type(error).__name__}"


class SinkTransfer(CurlTransfer):
    """One handle for one request of any method, whose response goes to a sink as it arrives."""

    own_options = _ONE_OFF

    def _set_body(self, request: OutgoingRequest) -> None:
        assert request.sink is not None
        self._sink: Sink = request.sink
        self._file: BinaryIO | None = None
        options: Options = [(pycurl.LOW_SPEED_TIME, request.stall_s), (pycurl.LOW_SPEED_LIMIT, _MIN_RATE)]
        if isinstance(request.body, Path):
            options += self.file_options(request.body)
        elif request.method == "HEAD":
            options.append((pycurl.NOBODY, 1))
        elif request.body or request.method in {"POST", "PUT", "PATCH"}:
            options.append((pycurl.POSTFIELDS, request.body))
        self._set([*options, (pycurl.CUSTOMREQUEST, request.method)])

    def file_options(self, path: Path) -> Options:
        """Open the file that is the body of the request, and return the options that send it."""
        try:
            self._file = path.open("rb")
            self._left = os.fstat(self._file.fileno()).st_size
        except OSError as error:
            raise ValueError(f"{path.name} cannot be read: {error.strerror}") from None
        return [
            (pycurl.UPLOAD, 1),
            (pycurl.INFILESIZE_LARGE, self._left),
            (pycurl.READFUNCTION, self._read_file),
        ]

    def _read_file(self, size: int) -> bytes | int:
        """Return the file's next bytes; exactly the initial size is sent."""
        assert self._file is not None
        try:
            piece = self._file.read(min(size, self._left))
        except OSError:
            piece = b""
        if not piece and self._left:
            self._refusal = "the file that is sent cannot be read on, or has become shorter"
            return int(pycurl.READFUNC_ABORT)
        self._left -= len(piece)
        return piece

    def is_over(self, answered_before: float) -> bool:  # noqa: ARG002 - its body may take as long as the request
        """Return whether to end the transfer: the sink no longer accepts data."""
        return self._sink.is_cancelled()

    def finish(self, error: int, message: str) -> RequestResult:
        """Return the result without what the sink received; a response that broke off is a failure."""
        failure, error_text = None, ""
        if error != 0 or self._answered_at is None:
            failure, error_text = self._classify_failure(error, message)
        duration_s = (self._answered_at or time.monotonic()) - self._began_at
        return RequestResult(self.request, self._status, {}, b"", duration_s, failure, error_text)

    def close(self) -> None:
        """Free the handle, and close the file."""
        super().close()
        if self._file is not None:
            self._file.close()

    def _end_head(self) -> int | None:
        refusal = super()._end_head()
        if self._answered_at is not None:
            self._sink.begin(self._status, _join_headers(self._lines))
        return refusal

    def _take(self, piece: bytes) -> int | None:
        try:
            return self._sink.take(piece)
        except Exception as error:  # noqa: BLE001 - libcurl cannot propagate exceptions
            self._note(error)
            return -1


def _header_lines(request: OutgoingRequest, address: Address) -> list[str] | list[bytes]:
    """Format the headers for libcurl. Raises ValueError."""
    # An empty value is written with a semicolon; with a colon libcurl would omit the header.
    lines = [f"{name}: {value}" if value else f"{name};" for name, value in request.headers]
    names = lower_names(tuple([name for name, _ in request.headers]))
    lines.append("Expect:")
    if "content-type" not in names:
        lines.append("Content-Type:")
    basic = request.basic or address.user
    if basic is not None and "authorization" not in names:
        lines.append(authorization_line(basic))
    whole = "".join(lines)
    return lines if whole.isascii() and whole.isprintable() else [encode_line(line) for line in lines]


@lru_cache(1_024)
def lower_names(names: tuple[str, ...]) -> frozenset[str]:
    """Return the names of headers in lower case."""
    return frozenset(name.lower() for name in names)


def authorization_line(basic: tuple[str, str]) -> str:
    """Return the header of a user name and password."""
    return "Authorization: Basic " + base64.b64encode(":".join(basic).encode()).decode()


def encode_line(line: str) -> bytes:
    """Encode a header line that is not plain ASCII. Raises ValueError for a control character."""
    if any(char < " " and char != "\t" for char in line) or "\x7f" in line:
        raise ValueError(f"the header {line.partition(':')[0]!r} contains a control character")
    try:
        return line.encode("latin-1")
    except UnicodeEncodeError:
        return line.encode("utf-8", "replace")


def _read_headers(lines: Sequence[bytes]) -> dict[str, str]:
    """Return the first headers by name; of repeated headers the last."""
    fields: dict[str, str] = {}
    for line in lines[1 : MAX_HEADERS + 1]:
        name, colon, value = line.partition(b":")
        if colon:
            fields[name.decode("latin-1").lower()] = value.strip().decode("latin-1")
    return fields


def _join_headers(lines: Sequence[bytes]) -> dict[str, str]:
    """Return all headers by name; repeated headers are joined by a comma and a space."""
    fields: dict[str, str] = {}
    for line in lines[1:]:
        raw_name, colon, raw_value = line.partition(b":")
        if colon:
            name, value = raw_name.decode("latin-1").strip().lower(), raw_value.strip().decode("latin-1")
            fields[name] = f"{fields[name]}, {value}" if name in fields else value
    return fields
