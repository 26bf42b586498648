"""Makes many POSTs at once, in a thread of its own around libcurl's multi interface.

What makes it safe to send to addresses that strangers choose: every address is judged at the moment of dialling,
redirects are not followed, nothing is taken from the environment, and time, headers and body are capped.
"""

import asyncio
import contextlib
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from boathook.config.tables import OutboundSettings
from boathook.http_client.curl_multi import CurlMultiClient
from boathook.http_client.messages import OutgoingRequest, RequestResult, TransportFailure
from boathook.observability.log import get_logger

__all__ = ["HttpSender", "OutgoingRequest", "RequestResult", "TransportFailure"]

_LOG: Final = get_logger("http_client")
_CLOSE_S: Final = 5.0


class HttpSender:
    """Makes many POSTs at once; one for a process.

    Args:
        settings: limits, proxies and what may be dialled; `proxy` is the address itself, not where it stands.
        done: told the answers, many at a time, in the asyncio loop that made the courier.

    Raises:
        ConfigError: the proxy is written as a reference.
    """

    def __init__(self, settings: OutboundSettings, *, done: Callable[[list[RequestResult]], None]) -> None:
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._curl = CurlMultiClient(settings)
        self._inbox: deque[Sequence[OutgoingRequest]] = deque()
        self._answers: deque[list[RequestResult]] = deque()
        self._is_woken = self._is_told = self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="boathook-courier", daemon=True)
        self._thread.start()

    def send(self, batch: Sequence[OutgoingRequest]) -> None:
        """Begin these requests; each is answered once. Raises RuntimeError once closed."""
        if self._is_closed:
            raise RuntimeError("the sender is closed")
        self._inbox.append(batch)
        self._wake_thread()

    def close(self) -> None:
        """End the thread; what is under way is answered as CLOSED, and may have arrived all the same."""
        if self._is_closed:
            return
        self._is_closed = True
        self._curl.waker.wake()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            _LOG.error("courier_stuck")

    def _wake_thread(self) -> None:
        # The thread drains the inbox after lowering the flag, so what was put there before is seen.
        if not self._is_woken:
            self._is_woken = True
            self._curl.waker.wake()

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self._hand_over(self._turn())
            except Exception as error:  # noqa: BLE001 - a fault fails requests, never the thread
                _LOG.error("courier_fault", exc_info=error)
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
        return self._curl.turn(events)

    def _begin(self, batch: Sequence[OutgoingRequest]) -> None:
        for request in batch:
            self._curl.begin(request)

    def _hand_over(self, answers: list[RequestResult]) -> None:
        if not answers:
            return
        self._answers.append(answers)
        if not self._is_told:
            self._is_told = True
            # A loop that is closed has nobody left to tell.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._tell)

    def _tell(self) -> None:
        self._is_told = False
        answers: list[RequestResult] = []
        while self._answers:
            answers.extend(self._answers.popleft())
        if answers:
            self._done(answers)
