"""Collects the recipients of what is published, so that they are notified after the commit."""

import contextlib
from collections.abc import Collection, Iterator
from contextvars import ContextVar
from typing import Any

from boathook.domain.due import DueRecipient
from boathook.handlers.transaction import SyncTransaction, Transaction


class DueCollector:
    """The recipients of what a block of code publishes; empty once they are taken."""

    def __init__(self) -> None:
        self._due: set[DueRecipient] = set()
        self._is_open = True

    def add(self, due: Collection[DueRecipient]) -> None:
        """Add recipients, unless the block has ended."""
        if self._is_open:
            self._due.update(due)

    def take(self) -> frozenset[DueRecipient]:
        """Return the recipients; nothing is collected afterwards."""
        self._is_open = False
        due, self._due = frozenset(self._due), set()
        return due


_current: ContextVar[DueCollector | None] = ContextVar("due_collector", default=None)


@contextlib.contextmanager
def collecting_due() -> Iterator[DueCollector]:
    """Collect the recipients of what the block publishes, also in its threads and tasks.

    What it publishes in a block of ``hook.transaction()`` is left out: that block notifies of it.
    """
    before, collector = _current.get(), DueCollector()
    _current.set(collector)
    try:
        yield collector
    finally:
        # Not by a token: a generator may be closed in another context than it began in.
        _current.set(before)


def add_due(session: Any, due: Collection[DueRecipient]) -> None:
    """Add recipients of what was published through a session."""
    if isinstance(session, SyncTransaction):
        session = session._transaction  # noqa: SLF001 - a wrapper of the same transaction
    own = session.due if isinstance(session, Transaction) else None
    if own is not None:
        own.update(due)
    elif (collector := _current.get()) is not None:
        collector.add(due)
