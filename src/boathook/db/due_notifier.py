"""Tells whoever waits for due deliveries that there are some, at most once in a short while."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from boathook.domain.errors import DatabaseError

MIN_INTERVAL_S: Final = 0.005
"""Shortest time between two announcements: one in every transaction would cost more than the transaction."""


class DueNotifier:
    """Announces after it is rung, many rings by one announcement.

    Args:
        announce: tells everybody, such as `boathook.db.delivery_commands.notify_due`.
    """

    def __init__(self, announce: Callable[[], Awaitable[None]]) -> None:
        self._announce = announce
        self._requested = asyncio.Event()

    def notify(self) -> None:
        """Ask for an announcement of what has been committed."""
        self._requested.set()

    async def run(self) -> None:
        """Announce until cancelled."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            # A hint that is lost costs a poll interval, never a delivery.
            with contextlib.suppress(DatabaseError):
                await self._announce()
            await asyncio.sleep(MIN_INTERVAL_S)
