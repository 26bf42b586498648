"""The HTTP client that apps are given: requests and downloads, in threads of its own, through the guard."""

import asyncio
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, TypeVar

from boathook.config.tables import OutboundSettings
from boathook.domain.errors import FetchFailed
from boathook.http_client.curl_easy import CurlEasyClient, Stopped
from boathook.http_client.download import DownloadSpec, download
from boathook.http_client.request import HttpRequest
from boathook.http_client.response import DownloadResult, HttpResponse

MAX_CONCURRENT_REQUESTS: Final = 16
"""Requests at once; others wait for their turn, and their time begins with it."""
MAX_CONCURRENT_DOWNLOADS: Final = 4
"""Downloads at once, in threads apart, so that big files keep no short request waiting."""
MAX_PENDING: Final = 10_000
"""Requests and downloads under way and waiting; whoever comes then is refused."""

T = TypeVar("T")


class Client:
    """Makes the requests of apps; one for a process, for any thread and event loop.

    Args:
        settings: limits, proxies and what may be dialled; `proxy` is the address itself, not where it stands.

    Raises:
        ConfigError: the proxy is written as a reference.
    """

    def __init__(self, settings: OutboundSettings) -> None:
        self._curl = CurlEasyClient(settings)
        self._requests = ThreadPoolExecutor(MAX_CONCURRENT_REQUESTS, thread_name_prefix="boathook-request")
        self._downloads = ThreadPoolExecutor(MAX_CONCURRENT_DOWNLOADS, thread_name_prefix="boathook-download")
        self._lock = threading.Lock()
        self._under_way = 0
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
        """Send one request and return its answer, whatever its status; a `Path` is sent as the file's bytes.

        Raises:
            FetchFailed: it may not or could not be sent, or the answer is larger than *max_bytes*.
        """
        call = HttpRequest(method=method, url=url, headers=dict(headers or {}), body=body, timeout_s=timeout_s)
        return await self._run(self._requests, lambda is_stopped: self._ask(call, max_bytes, is_stopped))

    async def download(
        self,
        url: str,
        to: Path,
        *,
        max_bytes: int,
        headers: Mapping[str, str] | None = None,
        timeout_s: float = 300.0,
    ) -> DownloadResult:
        """Fetch a file to *to*, which appears only once it is whole.

        What an earlier call left unfinished beside it (``<name>.part``) is gone on with by a Range request, if the
        server still has the same file (by its ETag or Last-Modified), else begun anew.

        Raises:
            FetchFailed: it may not or could not be fetched, or is larger than *max_bytes*, or another download to the
                same place is under way; what came so far is kept unless it is too large.
        """
        spec = DownloadSpec(url=url, to=to, headers=dict(headers or {}), max_bytes=max_bytes, timeout_s=timeout_s)
        return await self._run(self._downloads, lambda is_stopped: download(self._curl, spec, is_stopped))

    def close(self) -> None:
        """Give up what is under way; it fails within a second."""
        self._is_closed = True
        for threads in (self._requests, self._downloads):
            threads.shutdown(wait=False)

    def _ask(self, call: HttpRequest, max_bytes: int, is_stopped: Stopped) -> HttpResponse:
        answer = _Collected(max_bytes)
        self._curl.send(call, answer, is_stopped)
        return HttpResponse(answer.status, answer.headers, b"".join(answer.pieces))

    async def _run(self, threads: ThreadPoolExecutor, work: Callable[[Stopped], T]) -> T:
        """Do *work* in one of these threads; it is stopped once nobody waits for it."""
        is_cancelled = threading.Event()

        def is_stopped() -> bool:
            return self._is_closed or is_cancelled.is_set()

        def begin() -> T:
            if is_stopped():
                raise FetchFailed("shutting down")
            return work(is_stopped)

        doing = self._submit(threads, begin)
        try:
            return await asyncio.wrap_future(doing)
        finally:
            is_cancelled.set()

    def _submit(self, threads: ThreadPoolExecutor, work: Callable[[], T]) -> Future[T]:
        with self._lock:
            if self._is_closed:
                raise FetchFailed("shutting down")
            if self._under_way >= MAX_PENDING:
                raise FetchFailed(f"{self._under_way:,} other requests are under way or wait for their turn")
            self._under_way += 1
            doing = threads.submit(work)
        # Outside of the lock: one that has ended already calls back at once, in this thread.
        doing.add_done_callback(self._count_out)
        return doing

    def _count_out(self, _: Future[Any]) -> None:
        with self._lock:
            self._under_way -= 1


class _Collected:
    """An answer that is kept in memory."""

    def __init__(self, max_bytes: int) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.pieces: list[bytes] = []
        self._left = max_bytes
        self._max_bytes = max_bytes

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, headers

    def take(self, piece: bytes) -> None:
        self._left -= len(piece)
        if self._left < 0:
            raise FetchFailed(f"the answer is larger than {self._max_bytes:,} bytes", status=self.status)
        self.pieces.append(piece)
