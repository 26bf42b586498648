"""The HTTP client: requests, streams and downloads, each through the guard, in one thread around libcurl."""

import asyncio
import contextlib
import functools
import re
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from boathook.config import Settings
from boathook.config.tables import OutboundSettings
from boathook.domain.errors import FetchFailed
from boathook.http_client.addresses import ANY_NETWORK, read_address
from boathook.http_client.download import DownloadSpec, download
from boathook.http_client.guard import ProxyPolicy
from boathook.http_client.messages import (
    DownloadResult,
    HttpResponse,
    OutgoingRequest,
    RequestResult,
    Sink,
    TransportFailure,
)
from boathook.http_client.response import ResponseFuture, ResponseStream
from boathook.http_client.sender import CurlThread

MAX_CONCURRENT_REQUESTS: Final = 16
"""Maximum concurrent requests; others are queued, and their timeout starts when they start."""
MAX_CONCURRENT_DOWNLOADS: Final = 4
"""Maximum concurrent downloads; they and streams do not count as requests, so big files do not delay short requests."""
MAX_PENDING: Final = 10_000
"""Maximum requests, streams and downloads in progress or queued; further ones are refused."""
METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH"})
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]{1,200}")
_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_OURS: Final = frozenset({
    "connection", "content-length", "expect", "host", "keep-alive", "proxy-authorization", "proxy-connection", "te",
    "trailer", "transfer-encoding", "upgrade",
})  # fmt: skip
"""Headers that control the framing and routing of a request."""


def unguarded_settings(settings: Settings) -> OutboundSettings:
    """Return the settings for requests to URLs that the operator configured, which may be in any network.

    The guard is for URLs that others choose; only the operator knows where their own machines, collectors and gateways
    are.

    Raises:
        ConfigError: the proxy cannot be read.
    """
    proxy = settings.resolve(settings.outbound.proxy, "outbound.proxy")
    return settings.outbound.model_copy(
        update={"allow": ANY_NETWORK, "ports": (), "require_https": False, "proxy": proxy}
    )


class Client:
    """Makes HTTP requests; create one per process, for any thread and event loop.

    Each request has its own connection, so none is sent twice because a kept connection broke. The messages of
    FetchFailed contain only scheme and host of the URL, because paths and queries may contain tokens.

    Args:
        settings: limits, proxies and allowed destinations; `proxy` is the URL itself, not a reference to it.
        max_concurrent: the maximum of concurrent requests.

    Raises:
        ConfigError: the proxy is written as a reference.
    """

    def __init__(self, settings: OutboundSettings, *, max_concurrent: int = MAX_CONCURRENT_REQUESTS) -> None:
        ProxyPolicy(settings)
        self._settings = settings
        self._read = functools.partial(
            read_address, ports=frozenset(settings.ports), require_https=settings.require_https
        )
        self._max_concurrent = max_concurrent
        self._download_threads = ThreadPoolExecutor(MAX_CONCURRENT_DOWNLOADS, thread_name_prefix="boathook-download")
        self._lock = threading.Lock()
        self._thread: CurlThread | None = None
        self._waiting: deque[OutgoingRequest] = deque()
        self.in_progress = self._running = 0
        self._is_closed = False

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Path = b"",
        timeout_s: float = 20.0,
        max_bytes: int = 1_048_576,
    ) -> HttpResponse:
        """Send one request and return its response, whatever its status; a `Path` body is read from the file.

        Raises:
            FetchFailed: it is not allowed or failed, or the response is larger than *max_bytes*.
        """
        answer = self.submit(method, url, headers=headers, body=body, timeout_s=timeout_s, max_bytes=max_bytes)
        return await asyncio.wrap_future(answer)

    def submit(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: bytes | Path = b"",
        timeout_s: float,
        max_bytes: int,
    ) -> Future[HttpResponse]:
        """Start a request as `request` does, without an event loop; cancelling the future ends it."""
        answer = ResponseFuture(self._read_origin(url), max_bytes)
        request = self._prepare(method, url, headers or {}, body, timeout_s, answer)
        with self._lock:
            self._count_in()
            self._waiting.append(request)
            self._send_waiting()
        return answer

    @contextlib.asynccontextmanager
    async def stream(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float
    ) -> AsyncIterator[ResponseStream]:
        """Send one request and yield its response, whose body is read as it arrives, within *timeout_s* in total.

        Raises:
            FetchFailed: it is not allowed or failed.
        """
        response = self._open(method, url, headers or {}, timeout_s)
        try:
            await asyncio.wrap_future(response.started)
            yield response
        finally:
            response.close()

    async def download(
        self,
        url: str,
        to: Path,
        *,
        max_bytes: int,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 300.0,
    ) -> DownloadResult:
        """Fetch a file to *to*, which appears only once it is complete.

        A partial file of an earlier call (``<name>.part``, in the same directory) is resumed with a Range request if
        the server still has the same file (by its ETag or Last-Modified); otherwise the download starts again.

        Raises:
            FetchFailed: it is not allowed or failed, the file is larger than *max_bytes*, or another download to the
                same path is in progress. The partial file is kept unless it is too large.
        """
        spec = DownloadSpec(url=url, to=to, headers=dict(headers or {}), max_bytes=max_bytes, timeout_s=timeout_s)
        is_cancelled = threading.Event()

        def is_stopped() -> bool:
            return self._is_closed or is_cancelled.is_set()

        def open_response(more: Mapping[str, str], left_s: float, stall_s: int) -> ResponseStream:
            return self._open("GET", url, {**spec.headers, **more}, left_s, stall_s=stall_s, is_stopped=is_stopped)

        with self._lock:
            self._count_in()
            # In separate threads, because downloads write to disk, wait for locks and read the partial file.
            downloading = self._download_threads.submit(download, spec, open_response, is_stopped)
        # Outside the lock: a finished download calls back immediately, in this thread.
        downloading.add_done_callback(lambda _: self._count_out(1))
        try:
            return await asyncio.wrap_future(downloading)
        finally:
            is_cancelled.set()

    def close(self) -> None:
        """Cancel everything in progress."""
        with self._lock:
            self._is_closed = True
            waiting, self._waiting = self._waiting, deque()
        for request in waiting:
            assert request.sink is not None
            request.sink.end(
                RequestResult(request, 0, {}, b"", 0.0, TransportFailure.CLOSED, "boathook is shutting down")
            )
        if self._thread is not None:
            self._thread.close()
        self._download_threads.shutdown(wait=False)

    def _open(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        timeout_s: float,
        *,
        stall_s: int = 0,
        is_stopped: Callable[[], bool] = lambda: False,
    ) -> ResponseStream:
        response = ResponseStream(self._read_origin(url), is_stopped)
        request = self._prepare(method, url, headers, b"", timeout_s, response, stall_s)
        with self._lock:
            self._count_in()
            thread = self._get_thread()
            response.resume = functools.partial(thread.resume, request)
            thread.send([request])
        return response

    def _read_origin(self, url: str) -> str:
        """Return scheme, host and port of an allowed URL, as far as its text shows. Raises FetchFailed."""
        try:
            address = self._read(url)
        except ValueError as error:
            raise FetchFailed(str(error), is_final=True) from None
        return address.origin

    def _prepare(
        self,
        method: str,
        url: str,
        headers: Mapping[str, str],
        body: bytes | Path,
        timeout_s: float,
        sink: Sink,
        stall_s: int = 0,
    ) -> OutgoingRequest:
        """Build the request; refuse one that is invalid or could be read as several requests. Raises FetchFailed."""
        if method not in METHODS:
            raise FetchFailed(f"the method {method[:20]!r} is not one of {', '.join(sorted(METHODS))}", is_final=True)
        if body and method == "HEAD":
            raise FetchFailed("a HEAD request has no body", is_final=True)
        if not timeout_s > 0:
            raise FetchFailed("timeout_s must be more than 0", is_final=True)
        for name, value in headers.items():
            if not _NAME.fullmatch(name):
                raise FetchFailed("a header name contains invalid characters", is_final=True)
            if name.lower() in _OURS:
                raise FetchFailed(f"the header {name} is set by boathook; remove it", is_final=True)
            if _CONTROL.search(value):
                raise FetchFailed(
                    f"the header {name} contains a line break or another control character", is_final=True
                )
        own_names = {name.lower() for name in headers}
        usual = {"Accept-Encoding": "identity", "User-Agent": self._settings.user_agent or "boathook"}
        return OutgoingRequest(
            method=method,
            url=url,
            headers=(*headers.items(), *[pair for pair in usual.items() if pair[0].lower() not in own_names]),
            body=body,
            timeout_s=timeout_s,
            sink=sink,
            stall_s=stall_s,
        )

    # Requests in progress, counted under the lock.

    def _count_in(self) -> None:
        if self._is_closed:
            raise FetchFailed("shutting down")
        if self.in_progress >= MAX_PENDING:
            raise FetchFailed(f"{self.in_progress:,} other requests are in progress or queued")
        self.in_progress += 1

    def _get_thread(self) -> CurlThread:
        if self._thread is None:
            self._thread = CurlThread(self._settings, on_results=self._end)
        return self._thread

    def _send_waiting(self) -> None:
        batch: list[OutgoingRequest] = []
        while self._waiting and self._running < self._max_concurrent:
            request = self._waiting.popleft()
            if request.sink is not None and request.sink.is_cancelled():
                self.in_progress -= 1
            else:
                self._running += 1
                batch.append(request)
        if batch:
            self._get_thread().send(batch)

    def _end(self, results: list[RequestResult]) -> None:
        """End the sinks of finished responses, in the thread that read them."""
        # First, so that the caller of a finished request can make another one at once.
        self._count_out(len(results), sum(isinstance(result.request.sink, ResponseFuture) for result in results))
        for result in results:
            assert result.request.sink is not None
            result.request.sink.end(result)

    def _count_out(self, number: int, turns: int = 0) -> None:
        with self._lock:
            self.in_progress -= number
            self._running -= turns
            self._send_waiting()
