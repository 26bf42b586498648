"""What a service manager wants to hear of a service: that it is ready, that it lives, that it stops (sd_notify(3))."""

import os
import socket
import time
from collections.abc import MutableMapping
from typing import Final

_BEATS_PER_TIMEOUT: Final = 2
"""How often within its patience the service manager hears that we live."""


class ServiceNotifier:
    """Tells systemd, or whoever has set ``NOTIFY_SOCKET``; nobody where it is not set.

    Args:
        environment: the variables are taken out of it, as they are meant for this process and not for its children.
    """

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self._address = _address(environment.pop("NOTIFY_SOCKET", ""))
        self._every_s = _watchdog_timeout_s(environment) / _BEATS_PER_TIMEOUT
        self._is_ready = False
        self._beat_at = 0.0

    def beat(self, *, is_ready: bool) -> None:
        """Tell that the service is ready, once it is, and from time to time that it lives."""
        if is_ready and not self._is_ready:
            self._is_ready = self._notify("READY=1")
        now = time.monotonic()
        if self._every_s and now - self._beat_at >= self._every_s:
            self._beat_at = now
            self._notify("WATCHDOG=1")

    def stop(self) -> None:
        """Tell that the service stops."""
        self._notify("STOPPING=1")

    def _notify(self, state: str) -> bool:
        """Return whether whoever asked has been told; the work goes on without, and does not wait for that."""
        if not self._address:
            return True
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as line:
            line.setblocking(False)
            try:
                line.sendto(state.encode(), self._address)
            except OSError:  # it is gone, or does not listen
                return False
        return True


def _address(text: str) -> str:
    """Return the socket's address: a path, or a name in Linux's abstract space, which is written with an @."""
    return f"\0{text[1:]}" if text.startswith("@") else text if text.startswith("/") else ""


def _watchdog_timeout_s(environment: MutableMapping[str, str]) -> float:
    """Return after how many seconds of silence this process is to be killed; 0: never."""
    pid, patience_us = environment.pop("WATCHDOG_PID", ""), environment.pop("WATCHDOG_USEC", "")
    is_ours = not pid or pid == str(os.getpid())
    return int(patience_us) / 1_000_000 if is_ours and patience_us.isdigit() else 0.0
