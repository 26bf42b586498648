"""Receives responses from the thread that reads them: in memory for a future, or buffered for a reader."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from typing import Final

import pycurl

from boathook.domain.errors import FetchFailed
from boathook.http_client.messages import HttpResponse, RequestResult, TransportFailure, host_of

MAX_BUFFERED: Final = 1_048_576
"""Maximum buffered bytes of a streamed body; beyond that, reading from the server pauses."""
_FINAL: Final = frozenset({TransportFailure.URL, TransportFailure.BLOCKED})


def make_error(origin: str, result: RequestResult) -> FetchFailed | None:
    """Return why a request failed, or None if it did not.

    Args:
        origin: scheme, host and port; the rest of a URL may contain tokens.
        result: the result of the request.
    """
    if result.failure is None:
        return None
    return FetchFailed(f"{origin}: {result.error}", is_final=result.failure in _FINAL, host=host_of(origin))


class ResponseFuture(Future[HttpResponse]):
    """A future response, collected in memory; cancelling it ends the request.

    Args:
        origin: as for `make_error`.
        max_bytes: maximum size of the body.
    """

    def __init__(self, origin: str, max_bytes: int) -> None:
        super().__init__()
        self._origin = origin
        self._max_bytes = max_bytes
        self._size = self._status = 0
        self._headers: Mapping[str, str] = {}
        self._pieces: list[bytes] = []

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Store the head."""
        self._status, self._headers = status, headers

    def take(self, piece: bytes) -> int | None:
        """Store a piece of the body, unless the body becomes too large."""
        self._size += len(piece)
        if self._size > self._max_bytes:
            return -1
        self._pieces.append(piece)
        return None

    def end(self, result: RequestResult) -> None:
        """Set the response, or the error."""
        error = make_error(self._origin, result)
        if self._size > self._max_bytes:
            error = FetchFailed(
                f"{self._origin}: the response is larger than {self._max_bytes:,} bytes",
                status=self._status,
                host=host_of(self._origin),
            )
        with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
            if error is None:
                self.set_result(HttpResponse(self._status, self._headers, b"".join(self._pieces), self._origin))
            else:
                self.set_exception(error)

    def is_cancelled(self) -> bool:
        """Return whether the future was cancelled."""
        return self.cancelled()


class ResponseStream:
    """A response whose body is read as it arrives, by one reader in any thread; a slow reader slows the server down.

    Args:
        origin: as for `make_error`.
        is_stopped: returns whether to stop reading the response.
    """

    def __init__(self, origin: str, is_stopped: Callable[[], bool] = lambda: False) -> None:
        self.origin = origin
        self.status = 0
        self.headers: Mapping[str, str] = {}
        """By lower-case name; repeated headers are joined by a comma and a space."""
        self.started: Future[None] = Future()
        """Completes once status and headers are there. Fails with FetchFailed."""
        self.started.set_running_or_notify_cancel()
        self.ended: Future[None] = Future()
        """Completes once the connection is gone; never fails."""
        self.resume: Callable[[], None] = lambda: None
        """Makes the thread check this response again; set when it is opened."""
        self._is_stopped = is_stopped
        self._is_closed = self._is_paused = self._is_ended = False
        self._lock = threading.Lock()
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._error: FetchFailed | None = None
        self._reader: Future[bytes] | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body as it arrives. Raises FetchFailed if it breaks off."""
        while piece := await asyncio.wrap_future(self.read()):
            yield piece

    def read(self) -> Future[bytes]:
        """Return a future of the next piece of the body; empty at the end. It fails with FetchFailed."""
        reader: Future[bytes] = Future()
        reader.set_running_or_notify_cancel()
        with self._lock:
            self._reader = reader
            self._answer_reader()
            has_room = self._is_paused and self._size <= MAX_BUFFERED // 2
            self._is_paused = self._is_paused and not has_room
        if has_room:
            self.resume()
        return reader

    def close(self) -> None:
        """End the response, in any state."""
        self._is_closed = True
        self.resume()

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Store the head."""
        self.status, self.headers = status, headers
        self.started.set_result(None)

    def take(self, piece: bytes) -> int | None:
        """Buffer a piece of the body if there is room."""
        with self._lock:
            if self._size >= MAX_BUFFERED:
                self._is_paused = True
                return int(pycurl.WRITEFUNC_PAUSE)
            self._pieces.append(piece)
            self._size += len(piece)
            self._answer_reader()
        return None

    def end(self, result: RequestResult) -> None:
        """Record the end, or the failure."""
        with self._lock:
            self._is_ended, self._error = True, make_error(self.origin, result)
            self._answer_reader()
        if not self.started.done():
            self.started.set_exception(
                self._error or FetchFailed(f"{self.origin}: no response received", host=host_of(self.origin))
            )
        self.ended.set_result(None)

    def is_cancelled(self) -> bool:
        """Return whether to stop reading the response."""
        return self._is_closed or self._is_stopped()

    def _answer_reader(self) -> None:
        """Complete the pending read, if there is one and data or the end has arrived."""
        if self._reader is None or not (self._pieces or self._is_ended):
            return
        reader, self._reader = self._reader, None
        if self._pieces:
            piece = self._pieces.popleft()
            self._size -= len(piece)
            reader.set_result(piece)
        elif self._error is None:
            reader.set_result(b"")
        else:
            reader.set_exception(self._error)
