"""Tells whoever waits for due deliveries that there are some, at most once in a short while."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from boathook.domain.errors import JournalError

GAP_S: Final = 0.005
"""Shortest time between two announcements: one in every transaction would cost more than the transaction."""


class Announcer:
    """Announces after it is rung, many rings by one announcement.

    Args:
        announce: tells everybody, such as `boathook.journal.moves.announce_due`.
    """

    def __init__(self, announce: Callable[[], Awaitable[None]]) -> None:
        self._announce = announce
        self._rung = asyncio.Event()

    def ring(self) -> None:
        """Ask for an announcement of what has been committed."""
        self._rung.set()

    async def run(self) -> None:
        """Announce until cancelled."""
        while True:
            await self._rung.wait()
            self._rung.clear()
            # A hint that is lost costs a poll interval, never a delivery.
            with contextlib.suppress(JournalError):
                await self._announce()
            await asyncio.sleep(GAP_S)
