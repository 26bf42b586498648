"""Makes one request in the calling thread, through the guard of all that goes out, and feeds its answer to a sink."""

import functools
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol, Self

import pycurl

from boathook.config.tables import OutboundSettings
from boathook.domain.errors import FetchFailed
from boathook.http_client.addresses import Address, read_address
from boathook.http_client.connect_guard import ConnectGuard, Options, common_options
from boathook.http_client.messages import TransportFailure
from boathook.http_client.proxy import ANY_NETWORK, ProxyPolicy, pin
from boathook.http_client.request import HttpRequest, RequestBody, header_lines
from boathook.http_client.resolver import look_up_within

_MOST_HEAD: Final = 65_536
_MOST_INTERIM: Final = 16
"""Answers of 1xx before the final one."""
_SLOWEST: Final = 1_024
"""Bytes a second below which a transfer that may stall counts as stalled."""
_BLANK: Final = frozenset({b"\r\n", b"\n"})

Stopped = Callable[[], bool]


class Sink(Protocol):
    """Takes an answer as it comes; what it raises ends the connection, and is raised to whoever asked."""

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the head of the final answer."""
        ...

    def take(self, piece: bytes) -> None:
        """Take a piece of its body."""
        ...


class CurlEasyClient:
    """The way out for requests of apps; may be used by many threads at once.

    Each request has a connection of its own: none is sent twice because an old connection broke.

    Args:
        settings: limits, proxies and what may be dialled.

    Raises:
        ConfigError: the proxy is written as a reference.
    """

    def __init__(self, settings: OutboundSettings) -> None:
        self._allow = settings.allow
        self._connect_s = settings.connect_timeout_s
        self._user_agent = settings.user_agent or "boathook"
        self._proxy = ProxyPolicy(settings)
        self._read = functools.partial(
            read_address, ports=frozenset(settings.ports), require_https=settings.require_https
        )
        self._options = _options(settings)

    def send(self, call: HttpRequest, sink: Sink, is_stopped: Stopped) -> None:
        """Make one request.

        Raises:
            FetchFailed: it may not or could not be sent or answered. The message names scheme and host, and nothing
                else of the address, as paths and queries hold tokens.
        """
        call.check()
        try:
            address = self._read(call.url)
        except ValueError as error:
            raise FetchFailed(str(error), is_final=True) from None
        try:
            self._exchange(call, address, sink, is_stopped)
        except FetchFailed as error:
            host = f"[{address.host}]" if ":" in address.host else address.host
            told = f"{address.scheme}://{host}: {error}"
            raise FetchFailed(told, status=error.status, is_final=error.is_final) from None

    def _exchange(self, call: HttpRequest, address: Address, sink: Sink, is_stopped: Stopped) -> None:
        began = time.monotonic()
        pinned, is_proxied = self._pin(address, min(self._connect_s, call.timeout_s))
        spent_s = time.monotonic() - began
        sending = RequestBody(call)
        try:
            with _Handle(ANY_NETWORK if is_proxied else self._allow, sink, is_stopped) as handle:
                handle.set([*self._options, *pinned, *sending.options()])
                handle.set(self._particulars(call, address, spent_s))
                handle.perform()
        finally:
            sending.close()

    def _pin(self, address: Address, within_s: float) -> tuple[Options, bool]:
        """Return the options that make libcurl dial what was judged, and whether through the proxy."""
        uses_proxy = self._proxy.applies_to(address)
        if address.is_number and not uses_proxy:
            return [], False
        found = look_up_within(address.host, self._allow, within_s)
        if found.failure is not None:
            raise FetchFailed(found.error, is_final=found.failure is TransportFailure.BLOCKED)
        if uses_proxy and not self._proxy.is_bypassed(found.addresses):
            return [*self._proxy.options(), (pycurl.CONNECT_TO, pin(address, found.addresses[0]))], True
        numbers = ",".join(f"[{number}]" if ":" in number else number for number in found.addresses)
        return [(pycurl.RESOLVE, [f"{address.host.rstrip('.')}:{address.port}:{numbers}"])], False

    def _particulars(self, call: HttpRequest, address: Address, spent_s: float) -> Options:
        left_s = max(0.001, call.timeout_s - spent_s)
        connect_s = min(left_s, max(0.001, self._connect_s - spent_s))
        return [
            (pycurl.URL, address.url),
            (pycurl.HTTPHEADER, header_lines(call, address, self._user_agent)),
            (pycurl.TIMEOUT_MS, max(1, int(left_s * 1_000))),
            (pycurl.CONNECTTIMEOUT_MS, max(1, int(connect_s * 1_000))),
            (pycurl.LOW_SPEED_TIME, call.stall_s),
            (pycurl.LOW_SPEED_LIMIT, _SLOWEST if call.stall_s else 0),
        ]


def _options(settings: OutboundSettings) -> Options:
    return [
        *common_options(settings.ca_file or None, protocols=pycurl.PROTO_HTTP | pycurl.PROTO_HTTPS),
        (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),
        (pycurl.PATH_AS_IS, 1),
        (pycurl.NOPROGRESS, 0),
        (pycurl.FRESH_CONNECT, 1),
        (pycurl.FORBID_REUSE, 1),
    ]


class _Handle:
    """One handle of libcurl's, for one request."""

    def __init__(self, allow: Any, sink: Sink, is_stopped: Stopped) -> None:
        self._sink = sink
        self._opened: list[socket.socket] = []
        self._guard = ConnectGuard(allow, self._opened)
        self._is_stopped = is_stopped
        self._failure: Exception | None = None
        self._lines: list[bytes] = []
        self._head_size = self._interim = 0
        self._is_answered = False
        self._curl = pycurl.Curl()

    def __enter__(self) -> Self:
        self.set(
            [
                (pycurl.OPENSOCKETFUNCTION, self._open_socket),
                (pycurl.HEADERFUNCTION, self._take_header),
                (pycurl.WRITEFUNCTION, self._take),
                (pycurl.XFERINFOFUNCTION, lambda *_: self._is_stopped()),
            ]
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._curl.close()
        for opened in self._opened:
            opened.close()

    def set(self, options: Options) -> None:
        for option, value in options:
            self._curl.setopt(option, value)

    def perform(self) -> None:
        """Make the request. Raises FetchFailed, and what the sink raised."""
        try:
            self._curl.perform()
        except pycurl.error as error:
            if self._failure is not None:
                raise self._failure from None
            refusal = self._guard.refusal
            raise FetchFailed(refusal or self._why(*error.args), is_final=refusal is not None) from None
        if not self._is_answered:
            raise FetchFailed("no answer came")

    def _why(self, code: int, message: str) -> str:
        match code:
            case pycurl.E_ABORTED_BY_CALLBACK if self._is_stopped():
                return "canceled: the caller is gone"
            case pycurl.E_ABORTED_BY_CALLBACK | pycurl.E_READ_ERROR:
                return "the file that is sent cannot be read on, or has become shorter"
            case _:
                return " ".join(message.split()) or "no answer came"

    def _open_socket(self, purpose: int, address: Any) -> socket.socket | int:
        try:
            return self._guard.open_socket(purpose, address)
        except Exception as error:  # noqa: BLE001 - libcurl cannot carry it
            self._note(error)
            return int(pycurl.SOCKET_BAD)

    def _take_header(self, line: bytes) -> int | None:
        try:
            self._read_header(line)
        except Exception as error:  # noqa: BLE001 - as above
            self._note(error)
            return -1
        return None

    def _read_header(self, line: bytes) -> None:
        self._head_size += len(line)
        if self._head_size > _MOST_HEAD:
            raise FetchFailed(f"the answer's headers are larger than {_MOST_HEAD:,} bytes")
        if self._is_answered:  # only trailers can come
            return
        if line not in _BLANK:
            self._lines.append(line)
            return
        lines, self._lines = self._lines, []
        status = _read_status(lines)
        if status >= 200:
            self._is_answered = True
            self._sink.begin(status, _read_headers(lines))
            return
        self._interim += 1
        if self._interim > _MOST_INTERIM:
            raise FetchFailed(f"more than {_MOST_INTERIM} interim answers came, and no final one")

    def _take(self, piece: bytes) -> int | None:
        try:
            self._sink.take(piece)
        except Exception as error:  # noqa: BLE001 - as above
            self._note(error)
            return -1
        return None

    def _note(self, error: Exception) -> None:
        if self._failure is None:
            self._failure = error


def _read_status(lines: list[bytes]) -> int:
    try:
        return int(lines[0].split(None, 2)[1])
    except (IndexError, ValueError):
        raise FetchFailed("the answer has no status") from None


def _read_headers(lines: list[bytes]) -> dict[str, str]:
    found: dict[str, str] = {}
    for line in lines[1:]:
        raw_name, colon, raw_value = line.partition(b":")
        if colon:
            name, value = raw_name.decode("latin-1").strip().lower(), raw_value.strip().decode("latin-1")
            found[name] = f"{found[name]}, {value}" if name in found else value
    return found
