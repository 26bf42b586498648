"""Notifies processes that wait for due deliveries, at a limited rate."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Final

from boathook.domain.errors import DatabaseError

MIN_INTERVAL_S: Final = 0.005
"""Minimum interval between notifications: one in every transaction would cost more than the transaction."""


class DueNotifier:
    """Sends notifications on request, many requests by one notification.

    Args:
        announce: sends a notification to all processes, such as `boathook.db.delivery_commands.notify_due`.
    """

    def __init__(self, announce: Callable[[], Awaitable[None]]) -> None:
        self._announce = announce
        self._requested = asyncio.Event()

    def notify(self) -> None:
        """Request a notification about newly committed deliveries."""
        self._requested.set()

    async def run(self) -> None:
        """Send requested notifications until cancelled."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            # A lost notification costs a poll interval, never a delivery.
            with contextlib.suppress(DatabaseError):
                await self._announce()
            await asyncio.sleep(MIN_INTERVAL_S)
