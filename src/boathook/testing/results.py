"""The results of a test: those of each handler, and the messages that were published."""

import re
import sys
import sysconfig
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from boathook.domain.replies import Reply

Outcome = Literal["succeeded", "ignored", "retry", "waiting", "dead", "failed"]
"""How an attempt ended: it returned nothing, `Ignore`, `Retry`, `WaitFor` or `Dead`, or it raised."""

_FRAME: Final = re.compile(r'^  File "(.+)", line (\d+)', re.MULTILINE)
_LIBRARIES: Final = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))


@dataclass(frozen=True, kw_only=True)
class PublishedMessage:
    """A message that was published."""

    application: str
    """As `Boathook.publish` was given it, in `run`; in ``published``, its id, or the name if no application has it."""
    type: str
    payload: Any
    """Parsed JSON, or bytes if it is none."""
    channels: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True, repr=False)
class HandlerResult:
    """The result of one handler for an event."""

    handler: str
    """Its name."""
    outcome: Outcome
    code: str | None = None
    """The code of `Retry`, `WaitFor` or `Dead`, or that of the exception: its class, or ``APPLICATION_NOT_FOUND``."""
    note: str | None = None
    """The reason of `Ignore` or the note of `Dead`; of `WaitFor` what it waits for, until when and why."""
    error: str | None = None
    """The exception in one line, such as ``KeyError: 'customer'``."""
    traceback: str | None = None
    """The exception's traceback, from the handler on."""
    exception: BaseException | None = None
    """The exception itself; None for a handler of a server."""
    is_final: bool = False
    """Whether the exception makes the delivery dead at once, by ``retry_on`` or ``final``. False for a handler of a
    server, which may be dead because its attempts are used up."""
    dependency: str | None = None
    """The service that failed, if it is known."""
    effects: Mapping[str, Any] = field(default_factory=dict)
    """The results of ``event.once``, by name."""

    @property
    def location(self) -> str | None:
        """File and line of the user's code that raised, such as ``/shop/hooks.py:12``; None without an exception."""
        frames = _FRAME.findall(self.traceback or "")
        own = [frame for frame in frames if not frame[0].startswith(_LIBRARIES)] or frames
        return ":".join(own[-1]) if own else None

    def __repr__(self) -> str:
        parts = [self.handler, self.outcome, self.error or self.code, self.note]
        place = f" at {self.location}" if self.location else ""
        return f"<{' '.join(filter(None, parts))}{place}>"


def print_failures(results: Iterable[HandlerResult]) -> None:
    """Write the traceback of each handler that failed to standard error, which pytest shows if the test fails."""
    for result in results:
        if result.outcome == "failed":
            sys.stderr.write(
                f"handler {result.handler} failed at {result.location}\n{result.traceback or result.error}\n"
            )


@dataclass(frozen=True, kw_only=True, repr=False)
class EventResult:
    """The results of an event's handlers; attributes are those of the first that did not succeed, else the first."""

    handlers: Sequence[HandlerResult]
    """The result of each handler, in the order of the handlers."""

    def __getitem__(self, handler: str) -> HandlerResult:
        """Return the result of the handler with this name. Raises KeyError, which names those that ran."""
        result = next((result for result in self.handlers if result.handler == handler), None)
        if result is None:
            raise KeyError(f"{handler} did not run; {', '.join(result.handler for result in self.handlers)} did")
        return result

    @property
    def _first(self) -> HandlerResult:
        return next((handler for handler in self.handlers if handler.outcome != "succeeded"), self.handlers[0])

    @property
    def outcome(self) -> Outcome:
        """``succeeded`` if every handler did."""
        return self._first.outcome

    @property
    def code(self) -> str | None:
        """As `HandlerResult.code`."""
        return self._first.code

    @property
    def note(self) -> str | None:
        """As `HandlerResult.note`."""
        return self._first.note

    @property
    def error(self) -> str | None:
        """As `HandlerResult.error`."""
        return self._first.error

    @property
    def traceback(self) -> str | None:
        """As `HandlerResult.traceback`."""
        return self._first.traceback

    @property
    def location(self) -> str | None:
        """As `HandlerResult.location`."""
        return self._first.location

    @property
    def exception(self) -> BaseException | None:
        """As `HandlerResult.exception`."""
        return self._first.exception

    @property
    def effects(self) -> Mapping[str, Any]:
        """As `HandlerResult.effects`, of all handlers."""
        return {name: result for handler in self.handlers for name, result in handler.effects.items()}

    def __repr__(self) -> str:
        return " ".join(map(repr, self.handlers))


@dataclass(frozen=True, kw_only=True, repr=False)
class RunResult(EventResult):
    """The result of `run` or `run_sync`."""

    published: Sequence[PublishedMessage] = ()
    """The messages that a worker would have committed: not those of a handler that failed."""
    reply: Reply | None = None
    """The reply to the sender of a source with ``mode = "inline"``."""


@dataclass(frozen=True, kw_only=True, repr=False)
class DeliverResult(EventResult):
    """The result of a request to a server."""

    event_id: str
    """The event's id, such as ``evt_01h455vb4pex5vsknk084sn02q4``."""
    is_duplicate: bool
    """Whether an earlier request was this event; the results are those of that event."""
    status: int
    """The status of the response to the sender."""
    response: bytes
    """The body of the response."""
