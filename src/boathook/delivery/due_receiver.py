"""Receives notifications of due deliveries, from PostgreSQL or a package, and keeps what is due later until then."""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from boathook.config import Settings
from boathook.config.packages import resolve
from boathook.db.due_notifier import read_payload
from boathook.domain.due import ANY_RECIPIENT, DueRecipient, Notifier, OpenNotifier, RecipientKind
from boathook.domain.errors import ConfigError

_MAX_WAIT_S: Final = 60.0
"""What PostgreSQL notifies of longer before is left to the poll."""
_MAX_TIMERS: Final = 10_000
_MARGIN_S: Final = 0.002


def open_notifier(
    settings: Settings, kind: RecipientKind | None, now: Callable[[], float] = time.time
) -> Notifier | None:
    """Return the notifier of the package that `delivery.lane` names; None if PostgreSQL notifies.

    Args:
        settings: the settings.
        kind: the recipients whose notifications this process receives; None only announces.
        now: PostgreSQL's clock, in seconds since 1970.

    Raises:
        ConfigError: the package has no notifier, or its extra is not installed.
    """
    if not settings.has_package_notifier:
        return None
    name = settings.delivery.lane
    reference = next((package.notifier for package in settings.packages if package.name == name), None)
    if reference is None:
        raise ConfigError(f'delivery.lane: the package {name} does not notify of due deliveries; write "postgresql"')
    make: OpenNotifier = resolve(reference)
    return make(settings, kind, now)


class DueReceiver:
    """Passes the recipients of notifications on when they have something due.

    Args:
        include: gets recipients with due deliveries, among them `ANY_RECIPIENT`.
        now: PostgreSQL's clock, in seconds since 1970.
        notifier: takes back what is due later; None if PostgreSQL notifies.
    """

    def __init__(
        self, include: Callable[[Sequence[str]], None], now: Callable[[], float], notifier: Notifier | None
    ) -> None:
        self._include = include
        self._now = now
        self._notifier = notifier
        self._timers: dict[DueRecipient, asyncio.TimerHandle] = {}

    @property
    def relies_on_notifier(self) -> bool:
        """Whether the notifier of a package notifies of due deliveries."""
        return self._notifier is not None and self._notifier.is_available

    def notified(self, payload: str) -> None:
        """Take a notification of PostgreSQL. All processes get it, so what is due later is not put back."""
        for due, wait_s in self._include_due(read_payload(payload)):
            if wait_s <= _MAX_WAIT_S:
                self._start_timer(due, wait_s)

    def received(self, recipients: Sequence[DueRecipient]) -> None:
        """Take a notification of a package, which no other process gets; none named stands for missed ones."""
        for (recipient, due_at), wait_s in self._include_due(recipients or [(ANY_RECIPIENT, 0.0)]):
            self.include_later(recipient, due_at, wait_s)

    def include_later(self, recipient: str, due_at: float, wait_s: float) -> None:
        """Let this process claim for a recipient soon, or any process later."""
        if self._notifier is None or wait_s < self._notifier.min_wait_s:
            self._start_timer((recipient, due_at), wait_s)
        else:
            self._notifier.put(recipient, due_at, wait_s)

    def close(self) -> None:
        """Stop waiting."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _include_due(self, recipients: Sequence[DueRecipient]) -> list[tuple[DueRecipient, float]]:
        """Pass on who has something due; return the others, each with the seconds until then."""
        now = self._now()
        due = [recipient for recipient, due_at in recipients if due_at <= now]
        if due:
            self._include(due)
        return [(recipient, recipient[1] - now) for recipient in recipients if recipient[1] > now]

    def _start_timer(self, due: DueRecipient, wait_s: float) -> None:
        if due not in self._timers and len(self._timers) < _MAX_TIMERS:
            loop = asyncio.get_running_loop()
            self._timers[due] = loop.call_later(wait_s + _MARGIN_S, self._end_timer, due)

    def _end_timer(self, due: DueRecipient) -> None:
        del self._timers[due]
        self._include([due[0]])
