"""Notifies processes that wait for due deliveries, at a limited rate."""

import asyncio
import contextlib
import math
from collections.abc import Awaitable, Callable, Collection
from typing import Final, Protocol

from boathook.db.database import Connection, Database
from boathook.db.statements import load
from boathook.domain.due import ANY_DUE, ANY_RECIPIENT, DueRecipient
from boathook.domain.errors import DatabaseError

SQL = load(__file__)
DUE_CHANNEL: Final = "boathook_due"
MIN_INTERVAL_S: Final = 0.005
"""Minimum interval between notifications: one in every transaction would cost more than the transaction."""
_MAX_PAYLOAD: Final = 4_000
"""Maximum payload; PostgreSQL allows 8,000 bytes."""


class NotifyDue(Protocol):
    """Requests a notification about newly committed deliveries."""

    def __call__(self, due: Collection[DueRecipient] = ANY_DUE, /) -> None:
        """Request it."""
        ...


class DueNotifier:
    """Sends notifications on request, many requests by one notification.

    Args:
        announce: sends a notification, such as `notify_due`.
    """

    def __init__(self, announce: Callable[[Collection[DueRecipient]], Awaitable[None]]) -> None:
        self._announce = announce
        self._requested = asyncio.Event()
        self._due: set[DueRecipient] = set()

    def notify(self, due: Collection[DueRecipient] = ANY_DUE, /) -> None:
        """Request a notification about newly committed deliveries."""
        self._due.update(due)
        self._requested.set()

    async def run(self) -> None:
        """Send requested notifications until cancelled."""
        while True:
            await self._requested.wait()
            self._requested.clear()
            await self.send()
            await asyncio.sleep(MIN_INTERVAL_S)

    async def send(self) -> None:
        """Send what is requested now. A lost notification costs a poll interval, never a delivery."""
        due, self._due = self._due, set()
        if due:
            with contextlib.suppress(DatabaseError):
                await self._announce(due)


async def notify_due(to: Database | Connection, due: Collection[DueRecipient] = ANY_DUE) -> None:
    """Notify all workers and senders of due deliveries."""
    await to.execute(SQL["announce_due"], encode_due(due))


def encode_due(due: Collection[DueRecipient]) -> list[str]:
    """Return the payloads of notifications about *due*; they name no recipients if these are too many.

    Each line is a recipient, followed by a tab and a time if it is due later. An empty payload stands for any recipient
    now. Earlier versions ignore a recipient with a time, and find its deliveries by themselves.
    """
    for recipients in (set(due), {(ANY_RECIPIENT, due_at) for _, due_at in due}):
        is_any_due = ANY_DUE[0] in recipients
        # Who has something due now is included in any recipient.
        payload = "\n".join(
            sorted(_write(recipient) for recipient in recipients if not (is_any_due and recipient[1] <= 0))
        )
        if len(payload.encode()) <= _MAX_PAYLOAD:
            return ["", payload] if is_any_due and payload else [payload]
    return [""]


def _write(due: DueRecipient) -> str:
    recipient, due_at = due
    return f"{recipient}\t{due_at:.2f}" if due_at > 0 else recipient


def read_payload(payload: str) -> list[DueRecipient]:
    """Return what a notification is about; what cannot be read stands for any recipient now."""
    try:
        return [_read(line) for line in payload.split("\n")]
    except ValueError:
        return list(ANY_DUE)


def _read(line: str) -> DueRecipient:
    recipient, _, text = line.partition("\t")
    due_at = float(text or 0)
    if not math.isfinite(due_at):
        raise ValueError("the time is not finite")
    return recipient, due_at
