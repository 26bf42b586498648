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
from boathook.outbound.outgoing import Answer, Outgoing, Trouble
from boathook.outbound.transfers import Transfers
from boathook.telemetry.log import get_logger

__all__ = ["Answer", "Courier", "Outgoing", "Trouble"]

_LOG: Final = get_logger("outbound")
_CLOSE_S: Final = 5.0


class Courier:
    """Makes many POSTs at once; one for a process.

    Args:
        settings: limits, proxies and what may be dialled; `proxy` is the address itself, not where it stands.
        done: told the answers, many at a time, in the asyncio loop that made the courier.

    Raises:
        ConfigError: the proxy is written as a reference.
    """

    def __init__(self, settings: OutboundSettings, *, done: Callable[[list[Answer]], None]) -> None:
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._transfers = Transfers(settings)
        self._inbox: deque[Sequence[Outgoing]] = deque()
        self._answers: deque[list[Answer]] = deque()
        self._is_woken = self._is_told = self._is_closed = False
        self._thread = threading.Thread(target=self._run, name="boathook-courier", daemon=True)
        self._thread.start()

    def send(self, batch: Sequence[Outgoing]) -> None:
        """Begin these requests; each is answered once. Raises RuntimeError once closed."""
        if self._is_closed:
            raise RuntimeError("the courier is closed")
        self._inbox.append(batch)
        self._rouse()

    def close(self) -> None:
        """End the thread; what is under way is answered as CLOSED, and may have arrived all the same."""
        if self._is_closed:
            return
        self._is_closed = True
        self._transfers.bell.ring()
        self._thread.join(_CLOSE_S)
        if self._thread.is_alive():
            _LOG.error("courier_stuck")

    def _rouse(self) -> None:
        # The thread drains the inbox after lowering the flag, so what was put there before is seen.
        if not self._is_woken:
            self._is_woken = True
            self._transfers.bell.ring()

    def _run(self) -> None:
        while not self._is_closed:
            try:
                self._hand_over(self._turn())
            except Exception as error:  # noqa: BLE001 - a fault fails requests, never the thread
                _LOG.error("courier_fault", exc_info=error)
                self._hand_over(self._transfers.give_up(Trouble.FAULT, f"boathook failed: {type(error).__name__}"))
        while self._inbox:
            self._begin(self._inbox.popleft())
        self._hand_over(self._transfers.give_up(Trouble.CLOSED, "boathook is shutting down"))
        self._transfers.close()

    def _turn(self) -> list[Answer]:
        events = self._transfers.wait()
        self._is_woken = False
        while self._inbox:
            self._begin(self._inbox.popleft())
        return self._transfers.turn(events)

    def _begin(self, batch: Sequence[Outgoing]) -> None:
        for outgoing in batch:
            self._transfers.begin(outgoing)

    def _hand_over(self, answers: list[Answer]) -> None:
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
        answers: list[Answer] = []
        while self._answers:
            answers.extend(self._answers.popleft())
        if answers:
            self._done(answers)
