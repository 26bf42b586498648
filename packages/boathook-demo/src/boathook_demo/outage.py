"""Stops the demo's PostgreSQL for some seconds while its senders continue, so that a broker takes their events."""

import asyncio
import contextlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from boathook_demo.folder import ServerProcess
from boathook_demo.sample_events import SenderLog, SendResult
from boathook_embedded.server import EmbeddedServer

_MIN_S: Final = 3.0
"""Longer than the maximum age of metrics, so that older values are not mistaken for the final ones."""
_MAX_S: Final = 20.0
_RECOVERY_S: Final = 120.0
_POLL_S: Final = 0.1


class Outage:
    """One outage of PostgreSQL in the middle of the demo, and what became of it.

    Args:
        server: the demo's PostgreSQL, which nothing else uses through its data folder.
        data_dir: its data folder.
        length_s: how long the senders send; the outage is the second third of it, or 20 s.
        stop_requested: ends the outage early.
        say: prints a line.
    """

    def __init__(
        self,
        server: EmbeddedServer,
        data_dir: Path,
        length_s: float,
        stop_requested: asyncio.Event,
        say: Callable[[str], None],
    ) -> None:
        self._server = server
        self._data_dir = data_dir
        self._length_s = length_s
        self._stop_requested = stop_requested
        self._say = say
        self.seconds = 0.0
        """How long PostgreSQL was stopped; 0 if the user stopped the demo before."""
        self.answered = 0
        """Genuine requests that were answered 2xx from its stop until all events of that time were stored."""
        self.buffered = 0
        """Events that a broker confirmed."""
        self.complaints: tuple[str, ...] = ()
        """One sentence for each problem."""

    async def play(self, process: ServerProcess, sender_log: SenderLog) -> None:
        """Wait for a third of the time, stop PostgreSQL, start it again, and wait until events go there directly.

        Raises:
            DatabaseUnavailable: PostgreSQL does not start again.
        """
        third_s = self._length_s / 3
        await self._pause(third_s)
        if self._stop_requested.is_set():
            self._say("stopped before PostgreSQL was; no outage was played")
            return
        sender_log.is_outage = sender_log.had_outage = True
        began = time.monotonic()
        self._say("stopping PostgreSQL; the senders continue, and RabbitMQ stores their events")
        await self._server.stop()
        await self._pause(min(max(third_s, _MIN_S), _MAX_S))
        self.buffered = round(await process.read_metric("boathook_buffer_appended_total") or 0)
        self._server = await EmbeddedServer.start(self._data_dir, progress=self._say)
        self.seconds = time.monotonic() - began
        if await self._recover(process):
            self._say("PostgreSQL is back, and all events that waited with RabbitMQ are stored")
        else:
            self.complaints += (f"events did not leave RabbitMQ within {_RECOVERY_S:.0f} s",)
        sender_log.is_outage = False
        self.answered = sender_log.answered_in_outage

    def judge(self, sender_log: SenderLog) -> None:
        """Add a complaint if senders noticed the outage, or if no event waited with a broker."""
        if unanswered := sender_log.total(SendResult.UNANSWERED):
            self.complaints += (f"{unanswered} requests got no answer, or a 429 or 5xx",)
        if self.seconds and not self.buffered:
            self.complaints += ("no event waited with RabbitMQ",)

    async def stop(self) -> None:
        """Stop PostgreSQL for good."""
        await self._server.stop()

    async def _recover(self, process: ServerProcess) -> bool:
        """Wait until the gateway stores events directly again; return whether it does."""
        deadline = time.monotonic() + _RECOVERY_S
        while time.monotonic() < deadline:
            names = ("database_unavailable", "spool_events", "buffer_events")
            if all([await process.read_metric(f"boathook_{name}") == 0 for name in names]):
                return True
            await asyncio.sleep(_POLL_S)
        return False

    async def _pause(self, seconds: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._stop_requested.wait(), seconds)
