"""Starts a Redis or Valkey server from the distribution's package, on a free port of loopback, without files."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from boathook.domain.errors import BoathookError, ConfigError

PROGRAMS: Final = ("redis-server", "valkey-server")
_START_S: Final = 120.0
_POLL_S: Final = 0.05
_ANSWER_S: Final = 5.0
_LOG: Final = "redis.log"
_PID: Final = "pid"


def server_program() -> str:
    """Return the program that runs a server. Raises ConfigError if none is installed."""
    for program in PROGRAMS:
        if path := shutil.which(program):
            return path
    raise ConfigError("redis-server is not installed; install it, for example by: apt-get install redis-server")


def require() -> None:
    """Check that a server can be started and used. Raises ConfigError if it, or boathook's extra, is not installed."""
    server_program()
    if find_spec("redis") is None:
        raise ConfigError("Redis needs more: pip install 'boathook[redis]'")


@dataclass
class RedisServer:
    """One server, which keeps nothing on disk."""

    folder: Path
    """The folder of its log."""
    port: int
    process: "subprocess.Popen[bytes] | None" = None

    @property
    def url(self) -> str:
        """The URL of its first database."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start it, and wait until it answers.

        Raises:
            ConfigError: none is installed.
            BoathookError: it does not start.
        """
        command = [
            server_program(),
            "--port",
            str(self.port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        with (self.folder / _LOG).open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        (self.folder / _PID).write_text(str(self.process.pid))
        deadline = time.monotonic() + _START_S
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                log_end = (self.folder / _LOG).read_text(errors="replace")[-2000:]
                raise BoathookError(f"Redis does not start:\n{log_end}")
            time.sleep(_POLL_S)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=_ANSWER_S) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(7) == b"+PONG\r\n"
        except OSError:
            return False

    def kill(self) -> None:
        """Kill it; its data is lost."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None


@contextlib.contextmanager
def running(folder: Path) -> Iterator[RedisServer]:
    """Run a server on a free port until the block ends. Raises as `RedisServer.start`."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        server = RedisServer(folder, probe.getsockname()[1])
    try:
        server.start()
        yield server
    finally:
        server.kill()


def end_left_over(folder: Path) -> None:
    """End the server that a killed process has left running in *folder*."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((folder / _PID).read_text())
        if Path(f"/proc/{pid}/cwd").resolve() == folder.resolve():  # the number may belong to another process by now
            os.kill(pid, signal.SIGKILL)
