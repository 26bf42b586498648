"""Fetches small public things, such as a sender's certificate, from addresses that strangers may have a say in.

What makes that safe: https only, no redirects, no proxies or credentials from the environment, every address judged
at the moment of dialling, and caps on time, bytes, simultaneous fetches and repeated failures.
"""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

import pycurl

from boathook.domain.errors import FetchFailed
from boathook.http_client.address_rules import Network
from boathook.http_client.connect_guard import ConnectGuard, Options, common_options

CONNECT_S: Final = 3.0
"""For finding the name's address, connecting and agreeing on TLS."""
FAILED_S: Final = 30.0
_AT_ONCE: Final = 4
_MOST_WAITING: Final = 32
_MOST_FAILED: Final = 1_024
_MAX_URL: Final = 2_000
_MAX_HEADERS: Final = 65_536
_ODD: Final = frozenset(' \\@#"<>{}|^`')
"""What Python and libcurl might read differently in an address."""


@dataclass(frozen=True, slots=True)
class _Failure:
    message: str
    until: float
    """On the monotonic clock."""


class Fetcher:
    """Fetches by GET, from threads of its own; one for a process.

    Args:
        allow: networks that may be dialled although they are not public.
        ca_file: certificates to trust instead of the system's.
        ports: the ports that may be dialled.
    """

    def __init__(
        self, allow: Sequence[Network] = (), *, ca_file: str | None = None, ports: frozenset[int] = frozenset({443})
    ) -> None:
        self._allow = tuple(allow)
        self._ca_file = ca_file
        self._ports = ports
        self._threads = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="boathook-fetch")
        self._lock = threading.Lock()
        self._running: dict[tuple[str, int], Future[bytes]] = {}
        self._failed: dict[str, _Failure] = {}
        self._is_closed = False

    async def fetch(self, url: str, *, max_bytes: int, timeout_s: float = 5.0) -> bytes:
        """Return what lies at *url*.

        Whoever asks for the same address meanwhile shares the answer, also if the first no longer waits for it.

        Raises:
            FetchFailed: it may not or could not be fetched, or failed less than 30 seconds ago.
        """
        return await asyncio.shield(asyncio.wrap_future(self._begin(url, max_bytes, timeout_s)))

    def fetch_sync(self, url: str, *, max_bytes: int, timeout_s: float = 5.0) -> bytes:
        """Return what lies at *url*, blocking the calling thread; otherwise as `fetch`."""
        return self._begin(url, max_bytes, timeout_s).result()

    def close(self) -> None:
        """Give up what is being fetched."""
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin(self, url: str, max_bytes: int, timeout_s: float) -> Future[bytes]:
        self._check(url)
        key = (url, max_bytes)
        with self._lock:
            running = self._running.get(key)
            if running is not None:
                return running
            failure = self._failed.get(url)
            if failure is not None and time.monotonic() < failure.until:
                raise FetchFailed(f"{failure.message} (a moment ago; not tried again)")
            if len(self._running) >= _MOST_WAITING:
                raise FetchFailed(f"{len(self._running)} other addresses are being fetched")
            future = self._threads.submit(self._run, url, max_bytes, timeout_s)
            self._running[key] = future
        # Outside of the lock: a fetch that has ended already calls back at once, in this thread.
        future.add_done_callback(lambda _: self._forget(key))
        return future

    def _forget(self, key: tuple[str, int]) -> None:
        with self._lock:
            self._running.pop(key, None)

    def _run(self, url: str, max_bytes: int, timeout_s: float) -> bytes:
        download = _Download(
            _options(url, timeout_s, self._ca_file),
            allow=self._allow,
            max_bytes=max_bytes,
            is_given_up=lambda: self._is_closed,
        )
        try:
            content = download.run()
        except FetchFailed as error:
            self._remember(url, str(error))
            raise
        with self._lock:
            self._failed.pop(url, None)
        return content

    def _remember(self, url: str, message: str) -> None:
        with self._lock:
            self._failed.pop(url, None)
            if len(self._failed) >= _MOST_FAILED:
                del self._failed[next(iter(self._failed))]
            self._failed[url] = _Failure(message, time.monotonic() + FAILED_S)

    def _check(self, url: str) -> None:
        """Refuse an address that is not plainly one of https, before anything is asked of anybody."""
        if self._is_closed:
            raise FetchFailed("shutting down")
        if len(url) > _MAX_URL or not url.isascii() or not url.isprintable() or not _ODD.isdisjoint(url):
            raise FetchFailed("the address holds what no plain address holds")
        try:
            parts = urlsplit(url)
            port = parts.port
        except ValueError:
            raise FetchFailed("the address cannot be read") from None
        if parts.scheme != "https" or not parts.hostname:
            raise FetchFailed("only https is fetched")
        if (port or 443) not in self._ports:
            raise FetchFailed(f"port {port} is not one that is fetched from")


class _Download:
    """One request and its answer."""

    def __init__(
        self,
        options: Options,
        *,
        allow: Sequence[Network],
        max_bytes: int,
        is_given_up: Callable[[], bool],
    ) -> None:
        self._opened: list[socket.socket] = []
        self._guard = ConnectGuard(allow, self._opened)
        self._is_given_up = is_given_up
        self._max_bytes = max_bytes
        self._pieces: list[bytes] = []
        self._size = 0
        self._header_size = 0
        self._refusal: str | None = None
        self._curl = pycurl.Curl()
        for option, value in (*options, *self._callbacks()):
            self._curl.setopt(option, value)

    def run(self) -> bytes:
        """Return the answer's body. Raises FetchFailed."""
        try:
            self._curl.perform()
            status = self._curl.getinfo(pycurl.RESPONSE_CODE)
        except pycurl.error as error:
            raise FetchFailed(self._guard.refusal or self._refusal or str(error.args[-1])) from None
        finally:
            self._curl.close()
            for opened in self._opened:
                opened.close()
        if status != 200:
            raise FetchFailed(f"the server answered with status {status}")
        return b"".join(self._pieces)

    def _callbacks(self) -> tuple[tuple[int, Callable[..., Any]], ...]:
        return (
            (pycurl.OPENSOCKETFUNCTION, self._guard.open_socket),
            (pycurl.WRITEFUNCTION, self._take),
            (pycurl.HEADERFUNCTION, self._take_header),
            (pycurl.XFERINFOFUNCTION, self._check_given_up),
        )

    def _take(self, piece: bytes) -> int | None:
        self._size += len(piece)
        if self._size > self._max_bytes:
            self._refusal = f"the answer is larger than {self._max_bytes} bytes"
            return -1
        self._pieces.append(piece)
        return None

    def _take_header(self, line: bytes) -> int | None:
        self._header_size += len(line)
        if self._header_size > _MAX_HEADERS:
            self._refusal = f"the answer's headers are larger than {_MAX_HEADERS} bytes"
            return -1
        return None

    def _check_given_up(self, *_progress: float) -> bool:
        return self._is_given_up()


def _options(url: str, timeout_s: float, ca_file: str | None) -> Options:
    return [
        *common_options(ca_file, protocols=pycurl.PROTO_HTTPS),
        (pycurl.URL, url),
        (pycurl.HTTP_VERSION, pycurl.CURL_HTTP_VERSION_1_1),
        (pycurl.USERAGENT, "boathook"),
        (pycurl.NOPROGRESS, 0),
        (pycurl.FRESH_CONNECT, 1),
        (pycurl.FORBID_REUSE, 1),
        (pycurl.CONNECTTIMEOUT_MS, int(min(CONNECT_S, timeout_s) * 1000)),
        (pycurl.TIMEOUT_MS, int(timeout_s * 1000)),
    ]
