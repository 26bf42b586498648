"""Resolves host names, one lookup per name at a time, and checks all their addresses before any is used.

It uses its own threads instead of libcurl's: there, a few requests to one name with silent DNS servers would delay the
lookups of all other names.
"""

import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from boathook.http_client.addresses import Network, find_denial_on_host
from boathook.http_client.messages import TransportFailure
from boathook.observability.log import get_logger

FRESH_S: Final = 30.0
"""Seconds a name's addresses are cached."""
_THREADS: Final = 64
_MAX_KEPT: Final = 10_000
_LOG: Final = get_logger("http_client")


class Resolution(msgspec.Struct, frozen=True):
    """The result of a lookup: addresses that are all allowed, or a failure."""

    addresses: tuple[str, ...] = ()
    failure: TransportFailure | None = None
    error: str = ""


class Resolver:
    """Resolves and caches host names; belongs to one thread, except for the lookups.

    Args:
        allow: networks that are allowed although they are not public.
        wake: called from any thread when a lookup has ended.
    """

    def __init__(self, allow: Sequence[Network], wake: Callable[[], None]) -> None:
        self._allow = tuple(allow)
        self._wake = wake
        self._known: dict[str, tuple[float, Resolution]] = {}
        self._asked: set[str] = set()
        self._questions: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._ended: deque[tuple[str, Resolution]] = deque()
        self._threads = 0

    def find(self, name: str) -> Resolution | None:
        """Return the resolution of *name*; None if its lookup was started, whose result `ended` returns."""
        entry = self._known.get(name)
        if entry is not None and time.monotonic() < entry[0]:
            return entry[1]
        if name not in self._asked:
            self._asked.add(name)
            if self._threads < min(_THREADS, len(self._asked)):
                self._threads += 1
                threading.Thread(target=self._run, name="boathook-names", daemon=True).start()
            self._questions.put(name)
        return None

    def ended(self) -> list[tuple[str, Resolution]]:
        """Return the lookups that ended since the last call."""
        resolved: list[tuple[str, Resolution]] = []
        while self._ended:
            name, resolution = self._ended.popleft()
            self._asked.discard(name)
            if resolution.failure is None:
                self._remember(name, resolution)
            resolved.append((name, resolution))
        return resolved

    def close(self) -> None:
        """End the threads, each after its current lookup."""
        for _ in range(self._threads):
            self._questions.put(None)

    def _remember(self, name: str, resolution: Resolution) -> None:
        self._known.pop(name, None)
        if len(self._known) >= _MAX_KEPT:
            del self._known[next(iter(self._known))]
        self._known[name] = (time.monotonic() + FRESH_S, resolution)

    def _run(self) -> None:
        while (name := self._questions.get()) is not None:
            try:
                resolution = look_up(name, self._allow)
            except Exception as error:  # noqa: BLE001 - a bug fails requests, never the thread
                _LOG.error("resolver_fault", exc_info=error)
                resolution = Resolution((), TransportFailure.FAULT, f"boathook failed: {type(error).__name__}")
            self._ended.append((name, resolution))
            self._wake()


def look_up(name: str, allow: Sequence[Network]) -> Resolution:
    """Resolve *name* with the system's resolver; one denied address makes the whole name denied."""
    try:
        answers = socket.getaddrinfo(name, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        return Resolution(
            (), TransportFailure.DNS, f"the name {name} cannot be found: {getattr(error, 'strerror', None) or error}"
        )
    addresses = tuple(dict.fromkeys(str(address[0]) for *_, address in answers))
    for address in addresses:
        reason = find_denial_on_host(address, allow)
        if reason is not None:
            return Resolution((), TransportFailure.BLOCKED, f"the name resolves to a blocked address: {reason}")
    return Resolution(addresses)
