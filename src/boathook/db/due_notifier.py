"""Notifies processes that wait for due deliveries, at a limited rate."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection
from typing import Final, Protocol

from boathook.db.database import Connection, Database
from boathook.db.statements import load
from boathook.domain.errors import DatabaseError

SQL = load(__file__)
DUE_CHANNEL: Final = "boathook_due"
MIN_INTERVAL_S: Final = 0.005
"""Minimum interval between notifications: one in every transaction would cost more than the transaction."""
ANY_RECIPIENT: Final[tuple[str, ...]] = ()
"""Stands for recipients that are not known to the notifier, or not due yet."""
_MAX_PAYLOAD: Final = 4_000
"""Maximum payload; PostgreSQL allows 8,000 bytes."""


class NotifyDue(Protocol):
    """Requests a notification about newly committed deliveries to *recipients*."""

    def __call__(self, recipients: Collection[str] = ANY_RECIPIENT, /) -> None:
        """Request it."""
        ...


class DueNotifier:
    """Sends notifications on request, many requests by one notification.

    Args:
        announce: sends a notification to all processes, such as `notify_due`.
    """

    def __init__(self, announce: Callable[[Collection[str]], Awaitable[None]]) -> None:
        self._announce = announce
        self._requested = asyncio.Event()
        self._recipients: set[str] = set()
        self._is_any = False

    def notify(self, recipients: Collection[str] = ANY_RECIPIENT, /) -> None:
        """Request a notification about newly committed deliveries."""
        if recipients:
            self._recipients.update(recipients)
        else:
            self._is_any = True
        self._requested.set()

    async def run(self) -> None:
        """Send requested notifications until cancelled."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            recipients = ANY_RECIPIENT if self._is_any else tuple(self._recipients)
            self._recipients.clear()
            self._is_any = False
            # A lost notification costs a poll interval, never a delivery.
            with contextlib.suppress(DatabaseError):
                await self._announce(recipients)
            await asyncio.sleep(MIN_INTERVAL_S)


async def notify_due(to: Database | Connection, recipients: Collection[str] = ANY_RECIPIENT) -> None:
    """Notify all workers and senders that deliveries to *recipients* are due; name none if they are too many."""
    payload = "\n".join(recipients)
    await to.execute(SQL["announce_due"], payload if len(payload.encode()) <= _MAX_PAYLOAD else "")


def read_payload(payload: str) -> tuple[str, ...]:
    """Return the recipients that a notification is about, or `ANY_RECIPIENT`."""
    return tuple(payload.split("\n")) if payload else ANY_RECIPIENT
