"""Starts a Redis or Valkey server from the distribution's package, on a free port of loopback, without files."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from boathook.domain.errors import BoathookError, ConfigError

PROGRAMS: Final = ("redis-server", "valkey-server")
_START_S: Final = 120.0
_POLL_S: Final = 0.05
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


@contextlib.contextmanager
def running(folder: Path) -> Iterator[str]:
    """Run a server with its log in *folder*, and yield its URL.

    Raises:
        ConfigError: none is installed.
        BoathookError: it does not start.
    """
    program = server_program()
    folder.mkdir(parents=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ("--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no")
    with (folder / "redis.log").open("wb") as log:
        process = subprocess.Popen(
            [program, *options], cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
        )
    (folder / _PID).write_text(str(process.pid))
    try:
        _wait(process, port, folder / "redis.log")
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.kill()
        process.wait()


def end_left_over(folder: Path) -> None:
    """End the server that a killed process has left running in *folder*."""
    with contextlib.suppress(OSError, ValueError):
        pid = int((folder / _PID).read_text())
        if Path(f"/proc/{pid}/cwd").resolve() == folder.resolve():  # the number may belong to another process by now
            os.kill(pid, signal.SIGKILL)


def _wait(process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_S
    while True:
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", port), timeout=_START_S) as connection,
        ):
            connection.sendall(b"PING\r\n")
            if connection.recv(7) == b"+PONG\r\n":
                return
        if process.poll() is not None or time.monotonic() > deadline:
            raise BoathookError(f"Redis does not start:\n{log.read_text(errors='replace')[-2000:]}")
        time.sleep(_POLL_S)
