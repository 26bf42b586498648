"""Receives notifications of due deliveries, from PostgreSQL and RabbitMQ, and keeps what is due later until then."""

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from boathook.broker.queues import DELAY_SLACK_S, DELAYS_S
from boathook.db.due_notifier import read_payload
from boathook.domain.due import ANY_RECIPIENT, DueRecipient

if TYPE_CHECKING:
    from boathook.broker.due_lane import DueLane

_MAX_WAIT_S: Final = 60.0
"""What PostgreSQL notifies of longer before is left to the poll."""
_MAX_TIMERS: Final = 10_000
_MARGIN_S: Final = 0.002


class DueReceiver:
    """Passes the recipients of notifications on when they have something due.

    Args:
        include: gets recipients with due deliveries, among them `ANY_RECIPIENT`.
        now: PostgreSQL's clock, in seconds since 1970.
        lane: takes back what is due later; None if there is no lane.
    """

    def __init__(
        self, include: Callable[[Sequence[str]], None], now: Callable[[], float], lane: "DueLane | None"
    ) -> None:
        self._include = include
        self._now = now
        self._lane = lane
        self._timers: dict[DueRecipient, asyncio.TimerHandle] = {}

    @property
    def relies_on_lane(self) -> bool:
        """Whether brokers notify of due deliveries."""
        return self._lane is not None and self._lane.is_available

    def notified(self, payload: str) -> None:
        """Take a notification of PostgreSQL. All processes get it, so what is due later does not go to the lane."""
        for due, wait_s in self._include_due(read_payload(payload)):
            if wait_s <= _MAX_WAIT_S:
                self._start_timer(due, wait_s)

    def received(self, named: Sequence[DueRecipient]) -> None:
        """Take a message of the lane, which no other process gets; none named stands for missed messages."""
        for (recipient, due_at), wait_s in self._include_due(named or [(ANY_RECIPIENT, 0.0)]):
            self.include_later(recipient, due_at, wait_s)

    def include_later(self, recipient: str, due_at: float, wait_s: float) -> None:
        """Let this process claim for a recipient soon, or any process later."""
        if wait_s < DELAYS_S[0] - DELAY_SLACK_S:
            self._start_timer((recipient, due_at), wait_s)
        elif self._lane is not None:
            self._lane.put(recipient, due_at, wait_s)

    def close(self) -> None:
        """Stop waiting."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def _include_due(self, named: Sequence[DueRecipient]) -> list[tuple[DueRecipient, float]]:
        """Pass on who has something due; return the others, each with the seconds until then."""
        now = self._now()
        due = [recipient for recipient, due_at in named if due_at <= now]
        if due:
            self._include(due)
        return [(one, one[1] - now) for one in named if one[1] > now]

    def _start_timer(self, due: DueRecipient, wait_s: float) -> None:
        if due not in self._timers and len(self._timers) < _MAX_TIMERS:
            loop = asyncio.get_running_loop()
            self._timers[due] = loop.call_later(wait_s + _MARGIN_S, self._end_timer, due)

    def _end_timer(self, due: DueRecipient) -> None:
        del self._timers[due]
        self._include([due[0]])
