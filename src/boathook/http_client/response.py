"""Takes responses from the thread that reads them: collected for one who waits, or buffered for one who reads along."""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future, InvalidStateError
from typing import Final

import pycurl

from boathook.domain.errors import FetchFailed
from boathook.http_client.messages import HttpResponse, RequestResult, TransportFailure

MAX_BUFFERED: Final = 1_048_576
"""Bytes of a streamed body that wait for their reader; beyond, the server is held up."""
_FINAL: Final = frozenset({TransportFailure.URL, TransportFailure.BLOCKED})


def make_error(origin: str, result: RequestResult) -> FetchFailed | None:
    """Return why a request failed; None where it did not.

    Args:
        origin: scheme and host; the rest of an address may hold tokens.
    """
    if result.failure is None:
        return None
    return FetchFailed(f"{origin}: {result.error}", is_final=result.failure in _FINAL)


class ResponseFuture(Future[HttpResponse]):
    """A response to come, collected in memory; cancelling it ends the request.

    Args:
        origin: as for `make_error`.
        max_bytes: the largest body.
    """

    def __init__(self, origin: str, max_bytes: int) -> None:
        super().__init__()
        self._origin = origin
        self._max_bytes = max_bytes
        self._size = self._status = 0
        self._headers: Mapping[str, str] = {}
        self._pieces: list[bytes] = []

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the head."""
        self._status, self._headers = status, headers

    def take(self, piece: bytes) -> int | None:
        """Take a piece of the body, unless it makes it too large."""
        self._size += len(piece)
        if self._size > self._max_bytes:
            return -1
        self._pieces.append(piece)
        return None

    def end(self, result: RequestResult) -> None:
        """Give the response, or why there is none."""
        error = make_error(self._origin, result)
        if self._size > self._max_bytes:
            error = FetchFailed(
                f"{self._origin}: the answer is larger than {self._max_bytes:,} bytes", status=self._status
            )
        with contextlib.suppress(InvalidStateError):  # cancelled meanwhile
            if error is None:
                self.set_result(HttpResponse(self._status, self._headers, b"".join(self._pieces)))
            else:
                self.set_exception(error)

    def is_cancelled(self) -> bool:
        """Return whether nobody waits for it any more."""
        return self.cancelled()


class ResponseStream:
    """A response whose body is read as it comes, by one reader in any thread; a slow one holds the server up.

    Args:
        origin: as for `make_error`.
        is_stopped: whether nobody reads any more.
    """

    def __init__(self, origin: str, is_stopped: Callable[[], bool] = lambda: False) -> None:
        self.origin = origin
        self.status = 0
        self.headers: Mapping[str, str] = {}
        """By lower-case name; those that come twice are joined by a comma and a space."""
        self.started: Future[None] = Future()
        """Ends once status and headers are there. Fails with FetchFailed."""
        self.started.set_running_or_notify_cancel()
        self.ended: Future[None] = Future()
        """Ends, and never fails, once the connection is gone."""
        self.resume: Callable[[], None] = lambda: None
        """Makes the thread look at this response again; whoever opens it sets it."""
        self._is_stopped = is_stopped
        self._is_closed = self._is_paused = self._is_ended = False
        self._lock = threading.Lock()
        self._pieces: deque[bytes] = deque()
        self._size = 0
        self._error: FetchFailed | None = None
        self._reader: Future[bytes] | None = None

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the body as it comes. Raises FetchFailed where it breaks off."""
        while piece := await asyncio.wrap_future(self.read()):
            yield piece

    def read(self) -> Future[bytes]:
        """Return the next piece of the body; an empty one at its end. Fails with FetchFailed."""
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
        """End the response, wherever it is."""
        self._is_closed = True
        self.resume()

    def begin(self, status: int, headers: Mapping[str, str]) -> None:
        """Take the head."""
        self.status, self.headers = status, headers
        self.started.set_result(None)

    def take(self, piece: bytes) -> int | None:
        """Take a piece of the body when there is room."""
        with self._lock:
            if self._size >= MAX_BUFFERED:
                self._is_paused = True
                return int(pycurl.WRITEFUNC_PAUSE)
            self._pieces.append(piece)
            self._size += len(piece)
            self._answer_reader()
        return None

    def end(self, result: RequestResult) -> None:
        """Take note of the end, or of the failure."""
        with self._lock:
            self._is_ended, self._error = True, make_error(self.origin, result)
            self._answer_reader()
        if not self.started.done():
            self.started.set_exception(self._error or FetchFailed(f"{self.origin}: no answer came"))
        self.ended.set_result(None)

    def is_cancelled(self) -> bool:
        """Return whether nobody reads it any more."""
        return self._is_closed or self._is_stopped()

    def _answer_reader(self) -> None:
        """Give the reader that waits, if any, what there is for it."""
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
