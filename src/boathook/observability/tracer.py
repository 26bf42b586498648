"""What follows messages and attempts through a process: nothing, unless a package installs a `Tracer`."""

from collections.abc import Mapping
from typing import Any, Protocol
from uuid import UUID


class Tracer(Protocol):
    """Follows messages and attempts through one process; none of its methods waits."""

    def add_headers(self, headers: dict[str, str]) -> dict[str, str]:
        """Return the headers of a message to publish, with those by which it is followed."""
        ...

    def note_publish(self, event_id: UUID, headers: Mapping[str, str], began_ns: int, ended_ns: int, type: str) -> None:
        """Note a message that was stored, whether or not its transaction commits; times are in ns since 1970."""
        ...

    def wrap_runner(self, runner: Any) -> Any:
        """Return the `boathook.handlers.runner.Runner` that runs the handlers of a worker, around *runner*."""
        ...

    def open_sender(self) -> Any:
        """Return a `boathook.delivery.endpoint_recorder.SenderTracer`, which follows the attempts of one sender."""
        ...


_tracer: Tracer | None = None


def install(tracer: Tracer | None) -> None:
    """Follow messages and attempts in this process from now on; None ends that."""
    global _tracer  # noqa: PLW0603 - one per process
    _tracer = tracer


def current() -> Tracer | None:
    """Return the tracer of this process, or None."""
    return _tracer


def add_headers(headers: dict[str, str]) -> dict[str, str]:
    """Return the headers of a message to publish, with those of the tracer if there is one."""
    return headers if _tracer is None else _tracer.add_headers(headers)


def note_publish(event_id: UUID, headers: Mapping[str, str], began_ns: int, ended_ns: int, type: str) -> None:
    """Tell the tracer of a stored message, if there is one."""
    if _tracer is not None:
        _tracer.note_publish(event_id, headers, began_ns, ended_ns, type)
