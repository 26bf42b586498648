"""What a notification of due deliveries says: who has one, and from when on; and what notifies besides PostgreSQL."""

import math
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from datetime import datetime
from typing import Any, Final, Literal, Protocol

DueRecipient = tuple[str, float]
"""A recipient, and the time at which it has a due delivery, in seconds since 1970 by PostgreSQL's clock; 0 is now."""
ANY_RECIPIENT: Final = ""
"""Stands for recipients that are not known to the notifier."""
ANY_DUE: Final[tuple[DueRecipient, ...]] = ((ANY_RECIPIENT, 0.0),)
"""Something is due now, or at a time that is not known to the notifier."""
WALK_INTERVAL_S: Final = 10.0
"""Interval of looking for due deliveries that a notifier lost; a notification that waited longer is of no use."""
RecipientKind = Literal["endpoints", "handlers"]
Announce = Callable[[Collection[DueRecipient]], Awaitable[None]]
"""Notifies of due deliveries."""
Receive = Callable[[Sequence[DueRecipient]], None]
"""Takes recipients of due deliveries; none stands for notifications that may have been missed."""
_TICKS: Final = 50
"""Times are rounded up to so many parts of a second: what is due at about the same time shares a name."""


def due_recipients(recipients: Iterable[str], deliver_at: datetime | None = None) -> frozenset[DueRecipient]:
    """Return these recipients, each with a delivery that is due at *deliver_at*; None is now."""
    due_at = 0.0 if deliver_at is None else math.ceil(deliver_at.timestamp() * _TICKS) / _TICKS
    return frozenset((recipient, due_at) for recipient in recipients)


class Notifier(Protocol):
    """Notifies senders and workers of due deliveries instead of PostgreSQL, which notifies while it is unavailable.

    Only PostgreSQL stores which deliveries are due, so a notification that is lost, doubled or late harms nothing.
    """

    @property
    def is_available(self) -> bool:
        """Whether it notifies, and no notifications are known to be lost."""
        ...

    @property
    def min_wait_s(self) -> float:
        """The shortest time until a delivery is due that `put` takes; a process waits for others itself."""
        ...

    async def announce(self, notify: Announce, due: Collection[DueRecipient]) -> None:
        """Notify of due deliveries; call *notify* for what it cannot name, and for all while it is unavailable."""
        ...

    def put(self, recipient: str, due_at: float, wait_s: float) -> None:
        """Notify any process of a delivery that is due in *wait_s*, once it is; drop it if that is not possible."""
        ...

    async def run(self, receive: Receive = ..., /) -> None:
        """Stay connected until cancelled, and call *receive* with the recipients of each notification."""
        ...


class OpenNotifier(Protocol):
    """Makes the notifier of a package."""

    def __call__(self, settings: Any, kind: RecipientKind | None, now: Callable[[], float]) -> Notifier:
        """Return the notifier.

        Args:
            settings: the `Settings`.
            kind: the recipients whose notifications this process receives; None only announces.
            now: PostgreSQL's clock, in seconds since 1970.
        """
        ...
