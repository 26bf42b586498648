"""Fetches small public files, such as a sender's certificate, from URLs that unauthenticated requests can influence.

The safeguards besides the guard: https only, no credentials, no proxies, and limits on time, size, concurrent fetches
and repeated failures.
"""

import asyncio
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import Final

import msgspec

from boathook.config.loader import defaults
from boathook.config.tables import OutboundSettings
from boathook.domain.errors import FetchFailed
from boathook.http_client.addresses import Network
from boathook.http_client.client import Client
from boathook.http_client.messages import HttpResponse

CONNECT_S: Final = 3.0
"""Seconds for DNS, connecting and the TLS handshake."""
FAILED_S: Final = 30.0
_MAX_CONCURRENT: Final = 4
_MAX_WAITING: Final = 32
_MAX_FAILED: Final = 1_024
_ODD: Final = frozenset('@#"<>{}|^`')
"""Characters that the URL of a key does not contain, such as those of credentials."""


class _Failure(msgspec.Struct, frozen=True):
    message: str
    until: float
    """On the monotonic clock."""


class Fetcher:
    """Fetches by GET; create one per process.

    Args:
        allow: networks that are allowed although they are not public.
        ca_file: certificates to trust instead of the system's.
        ports: the allowed ports.
    """

    def __init__(
        self, allow: Sequence[Network] = (), *, ca_file: str = "", ports: frozenset[int] = frozenset({443})
    ) -> None:
        outbound = OutboundSettings(**defaults()["outbound"]).model_copy(
            update={
                "allow": tuple(allow),
                "ca_file": ca_file,
                "ports": tuple(ports),
                "require_https": True,
                "connect_timeout_s": CONNECT_S,
            }
        )
        self._client = Client(outbound, max_concurrent=_MAX_CONCURRENT)
        self._lock = threading.Lock()
        self._running: dict[tuple[str, int], Future[bytes]] = {}
        self._failed: dict[str, _Failure] = {}

    async def fetch(self, url: str, *, max_bytes: int, timeout_s: float = 5.0) -> bytes:
        """Return the content at *url*.

        Concurrent calls for the same URL share one request, even if the first caller no longer waits for it.

        Raises:
            FetchFailed: it is not allowed or failed, or failed less than 30 seconds ago.
        """
        return await asyncio.shield(asyncio.wrap_future(self._begin(url, max_bytes, timeout_s)))

    def fetch_sync(self, url: str, *, max_bytes: int, timeout_s: float = 5.0) -> bytes:
        """Return the content at *url*, blocking the calling thread; otherwise like `fetch`."""
        return self._begin(url, max_bytes, timeout_s).result()

    def close(self) -> None:
        """Cancel all fetches."""
        self._client.close()

    def _begin(self, url: str, max_bytes: int, timeout_s: float) -> Future[bytes]:
        if not _ODD.isdisjoint(url):
            raise FetchFailed("the address contains invalid characters")
        key = (url, max_bytes)
        with self._lock:
            running = self._running.get(key)
            if running is not None:
                return running
            failure = self._failed.get(url)
            if failure is not None and time.monotonic() < failure.until:
                raise FetchFailed(f"{failure.message} (a moment ago; not tried again)")
            if len(self._running) >= _MAX_WAITING:
                raise FetchFailed(f"{len(self._running)} other addresses are being fetched")
            answer = self._client.submit("GET", url, timeout_s=timeout_s, max_bytes=max_bytes)
            content: Future[bytes] = Future()
            content.set_running_or_notify_cancel()
            self._running[key] = content
        # Outside the lock: if the response is already there, the callback runs immediately, in this thread.
        answer.add_done_callback(lambda answer: self._end(key, answer, content))
        return content

    def _end(self, key: tuple[str, int], answer: Future[HttpResponse], content: Future[bytes]) -> None:
        try:
            body = _read_body(answer.result())
        except FetchFailed as error:
            self._remember(key[0], str(error))
            self._forget(key)
            content.set_exception(error)
            return
        with self._lock:
            self._failed.pop(key[0], None)
        self._forget(key)
        content.set_result(body)

    def _forget(self, key: tuple[str, int]) -> None:
        with self._lock:
            self._running.pop(key, None)

    def _remember(self, url: str, message: str) -> None:
        with self._lock:
            self._failed.pop(url, None)
            if len(self._failed) >= _MAX_FAILED:
                del self._failed[next(iter(self._failed))]
            self._failed[url] = _Failure(message, time.monotonic() + FAILED_S)


def _read_body(answer: HttpResponse) -> bytes:
    if answer.status != 200:
        raise FetchFailed(f"the server answered with status {answer.status}")
    return answer.body
