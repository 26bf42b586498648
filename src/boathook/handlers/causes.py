"""The delivery that is being handled, as the cause of the events that its handler publishes."""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

from boathook.domain.model import Claim

_current: ContextVar[Claim | None] = ContextVar("cause", default=None)


@contextlib.contextmanager
def as_cause(claim: Claim) -> Iterator[None]:
    """Make a claim the cause of what the block publishes, also in its threads and tasks."""
    before = _current.get()
    _current.set(claim)
    try:
        yield
    finally:
        _current.set(before)


def current_cause() -> Claim | None:
    """Return the claim that is being handled; None outside of handlers."""
    return _current.get()
