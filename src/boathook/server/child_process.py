"""Manages a child process of the supervisor: its heartbeats and restarts. Also sends notifications to systemd."""

import asyncio
import contextlib
import os
import platform
import signal
import socket
import time
import uuid
from collections.abc import MutableMapping
from pathlib import Path
from typing import Final

import msgspec

from boathook.config import Settings
from boathook.observability import log, meters
from boathook.server.child_config import PREPARED, READY, ChildConfig
from boathook.server.fork_server import ForkServer, Process

_BEATS_PER_TIMEOUT: Final = 2
"""Number of watchdog notifications within the service manager's timeout."""


class ServiceNotifier:
    """Notifies systemd, or any service manager that sets ``NOTIFY_SOCKET``; does nothing if it is not set.

    Args:
        environment: its variables are removed, because they are meant for this process and not for its children.
    """

    def __init__(self, environment: MutableMapping[str, str] | None = None) -> None:
        environment = os.environ if environment is None else environment
        self._address = _address(environment.pop("NOTIFY_SOCKET", ""))
        self._every_s = _watchdog_timeout_s(environment) / _BEATS_PER_TIMEOUT
        self._is_ready = False
        self._beat_at = 0.0

    def beat(self, *, is_ready: bool) -> None:
        """Report once that the service is ready, and periodically that it is alive."""
        if is_ready and not self._is_ready:
            self._is_ready = self._notify("READY=1")
        now = time.monotonic()
        if self._every_s and now - self._beat_at >= self._every_s:
            self._beat_at = now
            self._notify("WATCHDOG=1")

    def stop(self) -> None:
        """Report that the service is stopping."""
        self._notify("STOPPING=1")

    def _notify(self, state: str) -> bool:
        """Return whether the notification was sent; it is optional and never blocks."""
        if not self._address:
            return True
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify_socket:
            notify_socket.setblocking(False)
            try:
                notify_socket.sendto(state.encode(), self._address)
            except OSError:  # the socket is gone or full
                return False
        return True


def _address(text: str) -> str:
    """Return the socket's address: a path, or a name in Linux's abstract namespace, written with an @."""
    return f"\0{text[1:]}" if text.startswith("@") else text if text.startswith("/") else ""


def _watchdog_timeout_s(environment: MutableMapping[str, str]) -> float:
    """Return the watchdog timeout in seconds; 0 if there is none for this process."""
    pid, timeout_us = environment.pop("WATCHDOG_PID", ""), environment.pop("WATCHDOG_USEC", "")
    is_ours = not pid or pid == str(os.getpid())
    return int(timeout_us) / 1_000_000 if is_ours and timeout_us.isdigit() else 0.0


_LOG = log.get_logger("server")
_MIN_RESTART_DELAY_S: Final = 0.1
_MAX_RESTART_DELAY_S: Final = 10.0
_HEALTHY_S: Final = 30.0
_MAX_PREDECESSORS: Final = 20
_UNKNOWN_CODE: Final = 1_000
"""Stands for the exit code of a process whose fork server has ended."""
_SILENCE_S: Final = 5.0
"""How long an event loop is silent before it matters why."""


def read_run_delays(pid: int) -> dict[str, float]:
    """Return the seconds for which each thread of a process was ready to run but waited for a processor.

    From Linux's ``/proc/PID/task/TID/schedstat`` (Documentation/scheduler/sched-stats.rst of the kernel); empty where
    there is none.
    """
    delays = {}
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError, ValueError, IndexError):  # such as a thread that has just ended
            delays[file.parent.name] = int(file.read_text(encoding="ascii").split()[1]) / 1e9
    return delays


class ChildProcess:
    """One slot and its current process."""

    def __init__(self, role: str, slot: str) -> None:
        self.role = role
        self.slot = slot
        self.process: Process | None = None
        self.worker_id = ""
        self.predecessors: list[str] = []
        self.started_at = 0.0
        self.beat_at = 0.0
        self.is_ready = False
        self.restart_at = 0.0
        self.pause_s = _MIN_RESTART_DELAY_S
        self._beats = -1
        self._delays_before: dict[str, float] | None = None
        self._stdin: asyncio.WriteTransport | None = None

    async def start(
        self, server: ForkServer, settings: Settings, bound: socket.socket | None, *, is_prepared: bool
    ) -> None:
        """Start a process in this slot, and pass it whether the database is prepared."""
        if self.worker_id:
            self.predecessors = [*self.predecessors, self.worker_id][-_MAX_PREDECESSORS:]
        self.worker_id = f"{self.slot}@{platform.node()}:{uuid.uuid4().hex[:12]}"
        self._beats, beat = os.pipe()
        standard_input, stdin_write = os.pipe()
        for descriptor in (self._beats, beat):
            os.set_blocking(descriptor, False)
        shared = [bound.fileno()] if bound is not None and self.role == "gateway" else []
        self.started_at = self.beat_at = time.monotonic()
        self._delays_before = None
        self.is_ready = False
        try:
            self.process = await server.spawn(self.role, self.slot, [standard_input, beat, *shared])
        except OSError as error:
            os.close(stdin_write)
            self._plan_restart(self.started_at)
            _LOG.error("child_not_started", child=self.slot, error=str(error), restart_in_s=self.pause_s)
            return
        finally:
            os.close(standard_input)
            os.close(beat)
        loop = asyncio.get_running_loop()
        self._stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, os.fdopen(stdin_write, "wb", buffering=0))
        config = ChildConfig(
            slot=self.slot,
            worker_id=self.worker_id,
            predecessors=self.predecessors,
            settings=settings.model_dump_json(),
        )
        self._stdin.write(msgspec.json.encode(config) + b"\n" + (PREPARED if is_prepared else b""))

    def notify_prepared(self) -> None:
        """Report to a running process that the database is prepared."""
        if self._stdin is not None:
            self._stdin.write(PREPARED)

    def silent_s(self, now: float) -> float:
        """Return for how long the event loop has been silent, without the time its threads waited for a processor."""
        silence = now - self.beat_at
        if silence < _SILENCE_S or self.pid is None:
            return silence
        delays = read_run_delays(self.pid)
        if self._delays_before is None:
            self._delays_before = delays
        before = self._delays_before
        return silence - max((delay - before.get(thread, 0.0) for thread, delay in delays.items()), default=0.0)

    def read_heartbeats(self, now: float) -> None:
        """Read heartbeats and the ready message from the pipe."""
        try:
            received = os.read(self._beats, 4096)
        except BlockingIOError:
            return
        self._delays_before = None
        if not received and self.process is not None and self.process.is_orphan:
            self.process.returncode = _UNKNOWN_CODE
        if received:
            self.beat_at = now
        if READY in received and not self.is_ready:
            self.is_ready = True
            _LOG.info("child_ready", child=self.slot, pid=self.pid, seconds=round(now - self.started_at, 2))

    @property
    def pid(self) -> int | None:
        """The process id, or None without a process."""
        return self.process.pid if self.process is not None else None

    def has_ended(self) -> bool:
        """Return whether the process has ended."""
        return self.process is not None and self.process.returncode is not None

    def has_stopped_cleanly(self) -> bool:
        """Return whether the process stopped cleanly, possibly by the signal before it was ready."""
        if self.process is None or self.process.returncode in {0, _UNKNOWN_CODE}:
            return True
        return not self.is_ready and self.process.returncode == -signal.SIGTERM

    def record_exit(self, now: float) -> None:
        """Record the exit and schedule the next start, with back-off after short lifetimes."""
        assert self.process is not None
        code = self.process.returncode
        pid = self.pid
        self._plan_restart(now)
        cause = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        if code == _UNKNOWN_CODE:
            cause = "unknown: the fork server that started it has ended"
        _LOG.warning("child_ended", child=self.slot, pid=pid, how=cause, restart_in_s=self.pause_s)
        meters.count("boathook_process_restarts_total", role=self.role)

    def _plan_restart(self, now: float) -> None:
        self.pause_s = (
            _MIN_RESTART_DELAY_S if now - self.started_at > _HEALTHY_S else min(_MAX_RESTART_DELAY_S, self.pause_s * 2)
        )
        self.restart_at = now + self.pause_s
        self.close()

    def close(self) -> None:
        """Release the process and its pipes."""
        if self._stdin is not None:
            self._stdin.close()
            self._stdin = None
        if self._beats >= 0:
            os.close(self._beats)
            self._beats = -1
        self.process = None

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if there is a process."""
        if self.process is not None:
            self.process.send_signal(number)
