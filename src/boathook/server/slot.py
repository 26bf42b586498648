"""A child of the supervisor's: its process, its beats, and when it is started again."""

import asyncio
import contextlib
import os
import platform
import signal
import socket
import sys
import time
import uuid
from typing import Final

import msgspec

from boathook.config import Settings
from boathook.server.order import PREPARED, READY, Order
from boathook.telemetry import emit, log

_LOG = log.get_logger("server")
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 10.0
_HEALTHY_S: Final = 30.0
_MOST_PREDECESSORS: Final = 20


class Child:
    """One slot and the process in it."""

    def __init__(self, role: str, slot: str) -> None:
        self.role = role
        self.slot = slot
        self.process: asyncio.subprocess.Process | None = None
        self.worker_id = ""
        self.predecessors: list[str] = []
        self.started_at = 0.0
        self.beat_at = 0.0
        self.is_ready = False
        self.restart_at = 0.0
        self.pause_s = _FIRST_PAUSE_S
        self._beats = -1

    async def start(self, settings: Settings, bound: socket.socket | None, *, is_prepared: bool) -> None:
        """Start a process in this slot, and tell it whether the ground in PostgreSQL is prepared."""
        if self.worker_id:
            self.predecessors = [*self.predecessors, self.worker_id][-_MOST_PREDECESSORS:]
        self.worker_id = f"{self.slot}@{platform.node()}:{uuid.uuid4().hex[:12]}"
        self._beats, beat = os.pipe()
        os.set_blocking(self._beats, False)
        os.set_blocking(beat, False)
        descriptors = [beat] + ([bound.fileno()] if bound is not None and self.role == "gateway" else [])
        try:
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "boathook.server", "_child", self.role),
                stdin=asyncio.subprocess.PIPE,
                pass_fds=descriptors,
                # Ctrl-C on a terminal goes to its foreground group; children hear of it from the supervisor.
                process_group=0,
            )
        finally:
            os.close(beat)
        order = Order(
            slot=self.slot,
            worker_id=self.worker_id,
            predecessors=self.predecessors,
            settings=settings.model_dump_json(),
            socket=bound.fileno() if bound is not None and self.role == "gateway" else -1,
            beat=beat,
        )
        self.started_at = self.beat_at = time.monotonic()
        self.is_ready = False
        assert self.process.stdin is not None
        with contextlib.suppress(ConnectionError):
            self.process.stdin.write(msgspec.json.encode(order) + b"\n" + (PREPARED if is_prepared else b""))
            await self.process.stdin.drain()

    def tell_prepared(self) -> None:
        """Tell a process that has been started earlier."""
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.write(PREPARED)

    def hear(self, now: float) -> None:
        """Take in beats."""
        try:
            heard = os.read(self._beats, 4096)
        except BlockingIOError:
            return
        if heard:
            self.beat_at = now
        if READY in heard and not self.is_ready:
            self.is_ready = True
            _LOG.info("child_ready", child=self.slot, pid=self.pid, seconds=round(now - self.started_at, 2))

    @property
    def pid(self) -> int | None:
        """The process id, while there is a process."""
        return self.process.pid if self.process is not None else None

    def has_ended(self) -> bool:
        """Return whether its process is over."""
        return self.process is not None and self.process.returncode is not None

    def has_stopped_well(self) -> bool:
        """Return whether a stop ended its process as it should, which may be before it had begun its work."""
        if self.process is None or self.process.returncode == 0:
            return True
        return not self.is_ready and self.process.returncode == -signal.SIGTERM

    def bury(self, now: float) -> None:
        """Note the end of its process and plan the next one: soon after a long life, later after short ones."""
        assert self.process is not None
        code = self.process.returncode
        self.pause_s = _FIRST_PAUSE_S if now - self.started_at > _HEALTHY_S else min(_LONGEST_PAUSE_S, self.pause_s * 2)
        self.restart_at = now + self.pause_s
        how = f"signal {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        _LOG.warning("child_ended", child=self.slot, pid=self.pid, how=how, restart_in_s=self.pause_s)
        emit.count("boathook_restarts_total", role=self.role)
        self.close()

    def close(self) -> None:
        """Forget the process."""
        if self._beats >= 0:
            os.close(self._beats)
            self._beats = -1
        self.process = None

    def send(self, number: signal.Signals) -> None:
        """Send a signal, if there is somebody to get it."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
