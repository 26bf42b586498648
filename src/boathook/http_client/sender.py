"""Makes many concurrent requests: plain POSTs over the connections of a pool, all others in a thread around libcurl.

It may send to untrusted URLs: every IP address is checked when connecting, redirects are not followed, nothing is taken
from the environment, and time, headers and body are limited.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from boathook.config.tables import OutboundSettings
from boathook.http_client.connection_pool import ConnectionPool
from boathook.http_client.curl_multi import CurlMultiClient
from boathook.http_client.messages import OutgoingRequest, RequestResult, TransportFailure
from boathook.observability.log import get_logger

_LOG: Final = get_logger("http_client")
_CLOSE_S: Final = 5.0


class CurlThread:
    """Makes requests in a thread.

    Args:
        settings: limits, proxies and allowed destinations; `proxy` is the URL itself, not a reference to it.
        done: called with the results, in batches, in the thread.

    Raises:
        ConfigError: the proxy is written as a reference.
    """

    def __init__(self, settings: OutboundSettings, *, on_results: Callable[[list[RequestResult]], None]) -> None:
        self._done = on_results
        self._curl = CurlMultiClient(settings)
        self._inbox: deque[Sequence[OutgoingRequest]] = deque()
        self._resumed: deque[OutgoingRequest] = deque()
        self._is_woken = self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="boathook-http", daemon=True)
        self._thread.start()

    def send(self, batch: Sequence[OutgoingRequest]) -> None:
        """Start these requests; each gets one result. Raises RuntimeError once closed."""
        if self._is_closed:
            raise RuntimeError("the sender is closed")
        self._inbox.append(batch)
        self._wake_thread()

    def resume(self, request: OutgoingRequest) -> None:
        """Continue a response that its sink has paused, or end it if it is to be stopped."""
        self._resumed.append(request)
        self._wake_thread()

    def close(self) -> None:
        """End the thread; requests in progress fail as CLOSED, although the server may have received them."""
        if self._is_closed:
            return
        self._is_closed = True
        self._curl.waker.wake()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            _LOG.error("http_client_stuck")

    def _wake_thread(self) -> None:
        # The thread drains the inbox after it clears the flag, so it sees everything added before.
        if not self._is_woken:
            self._is_woken = True
            self._curl.waker.wake()

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self._hand_over(self._turn())
            except Exception as error:  # noqa: BLE001 - a bug fails requests, never the thread
                _LOG.error("http_client_fault", exc_info=error)
                self._hand_over(self._curl.give_up(TransportFailure.FAULT, f"boathook failed: {type(error).__name__}"))
        while self._inbox:
            self._begin(self._inbox.popleft())
        self._hand_over(self._curl.give_up(TransportFailure.CLOSED, "boathook is shutting down"))
        self._curl.close()

    def _turn(self) -> list[RequestResult]:
        events = self._curl.wait()
        self._is_woken = False
        while self._inbox:
            self._begin(self._inbox.popleft())
        results = self._curl.turn(events)
        # Only now: resuming may close sockets that the events refer to.
        while self._resumed:
            self._curl.resume(self._resumed.popleft())
        return results

    def _begin(self, batch: Sequence[OutgoingRequest]) -> None:
        for request in batch:
            self._curl.begin(request)

    def _hand_over(self, results: list[RequestResult]) -> None:
        if results:
            self._done(results)


class HttpSender:
    """Makes many concurrent POSTs for an event loop; create one per process.

    A request goes to the pool unless it needs libcurl: for a proxy, a client certificate, HTTP/2 or an unusual URL.

    Args:
        settings: as for `CurlThread`.
        done: called with the results, in batches, in the event loop that created the sender.

    Raises:
        ConfigError: the proxy is written as a reference.
    """

    def __init__(self, settings: OutboundSettings, *, on_results: Callable[[list[RequestResult]], None]) -> None:
        self._settings = settings
        self._done = on_results
        self._loop = asyncio.get_running_loop()
        self._results: deque[list[RequestResult]] = deque()
        self._is_scheduled = self._is_closed = False
        self.pool = ConnectionPool(
            settings, on_results=on_results, pass_on=lambda request: self._send_by_libcurl([request])
        )
        self._thread: CurlThread | None = None

    def send(self, batch: Sequence[OutgoingRequest]) -> None:
        """Start these requests; each gets one result. Raises RuntimeError once closed."""
        if self._is_closed:
            raise RuntimeError("the sender is closed")
        rest = [request for request in batch if not self.pool.send(request)]
        if rest:
            self._send_by_libcurl(rest)

    def close(self) -> None:
        """End the requests in progress; they fail as CLOSED, although the server may have received them."""
        self._is_closed = True
        self.pool.close()
        if self._thread is not None:
            self._thread.close()

    def _send_by_libcurl(self, batch: Sequence[OutgoingRequest]) -> None:
        if self._thread is None:
            self._thread = CurlThread(self._settings, on_results=self._hand_over)
        self._thread.send(batch)

    def _hand_over(self, results: list[RequestResult]) -> None:
        self._results.append(results)
        if not self._is_scheduled:
            self._is_scheduled = True
            # A closed loop has no receiver for results.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._report)

    def _report(self) -> None:
        self._is_scheduled = False
        results: list[RequestResult] = []
        while self._results:
            results.extend(self._results.popleft())
        if results:
            self._done(results)
