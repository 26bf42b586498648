"""Runs boathook commands as processes without starting a new Python interpreter for each."""

import array
import atexit
import functools
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import IO

_FORK_SERVER = Path(__file__).with_name("fork_server.py")
_HARMLESS = {"PYTHONPATH", "PYTHONUNBUFFERED"}


def boathook_command(
    *arguments: str, cwd: Path, env: Mapping[str, str], timeout: float = 300
) -> "subprocess.CompletedProcess[str]":
    """Run ``python -m boathook`` with these arguments and return its output and exit code.

    The process is forked from the fork server, which has already imported boathook. A new interpreter is started only
    when the environment changes how Python starts.

    Raises:
        TimeoutExpired: it ran for longer than *timeout* seconds, and was killed.
    """
    if _needs_own_process(env):
        return boathook_process(*arguments, cwd=cwd, env=env, timeout=timeout)
    return _fork_server().run(arguments, cwd, env, timeout)


def boathook_process(
    *arguments: str, cwd: Path, env: Mapping[str, str], timeout: float = 300
) -> "subprocess.CompletedProcess[str]":
    """Do the same with a new Python interpreter."""
    return subprocess.run(
        [sys.executable, "-m", "boathook", *arguments],
        cwd=cwd,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


def boathook_running(
    *arguments: str, cwd: Path, env: Mapping[str, str], output: IO[bytes]
) -> "ForkedProcess | subprocess.Popen[bytes]":
    """Start ``python -m boathook`` with these arguments in a session of its own, and leave it running.

    It is forked like `boathook_command`'s, and writes all that it says to *output*.
    """
    if _needs_own_process(env):
        return subprocess.Popen(
            [sys.executable, "-m", "boathook", *arguments],
            cwd=cwd,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    return _fork_server().start(arguments, cwd, env, output)


class ForkedProcess:
    """A command that the fork server has started, with the part of `subprocess.Popen` that tests use."""

    def __init__(self, arguments: tuple[str, ...], answer: int) -> None:
        self.args = arguments
        self.pid = int(_line(answer, 300))
        self.returncode: int | None = None
        self._answer = answer

    def poll(self) -> int | None:
        """Return its exit code, or the signal's number below zero; None while it runs."""
        return self._ended(0)

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end and return what `poll` does then. Raises TimeoutExpired."""
        code = self._ended(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return code

    def _ended(self, timeout: float | None) -> int | None:
        if self.returncode is None and (line := _line(self._answer, timeout)):
            self.returncode = int(line)
            os.close(self._answer)
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)


def _needs_own_process(env: Mapping[str, str]) -> bool:
    asks_python = any(
        name.startswith("PYTHON") and os.environ.get(name) != env[name] for name in env.keys() - _HARMLESS
    )
    folders = env.get("PYTHONPATH", "").split(os.pathsep)
    is_patched = any(Path(folder, "sitecustomize.py").exists() for folder in folders if folder)
    return asks_python or is_patched or "BOATHOOK_CRASH_POINT" in env


@functools.cache
def _fork_server() -> "_ForkServer":
    return _ForkServer()


class _ForkServer:
    """Client of the fork server process, which ends when this process ends."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._turn = threading.Lock()
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(_FORK_SERVER)], stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment,
                start_new_session=True,
            )  # fmt: skip
        atexit.register(self._close)

    def _close(self) -> None:
        self._requests.close()
        self._process.wait(300)

    def run(
        self, arguments: tuple[str, ...], cwd: Path, env: Mapping[str, str], timeout: float
    ) -> "subprocess.CompletedProcess[str]":
        written = [os.memfd_create("stdout"), os.memfd_create("stderr")]
        answer, theirs = os.pipe()
        try:
            self._ask({"arguments": arguments, "cwd": str(cwd), "env": dict(env)}, theirs, written)
            code = _code(answer, arguments, timeout)
            out, err = map(_text, written)
        finally:
            for descriptor in (answer, *written):
                os.close(descriptor)
        return subprocess.CompletedProcess(arguments, code, out, err)

    def start(self, arguments: tuple[str, ...], cwd: Path, env: Mapping[str, str], output: IO[bytes]) -> ForkedProcess:
        answer, theirs = os.pipe()
        request = {"arguments": arguments, "cwd": str(cwd), "env": dict(env), "has_session": True}
        self._ask(request, theirs, [output.fileno(), output.fileno()])
        return ForkedProcess(arguments, answer)

    def _ask(self, request: dict, answer: int, written: list[int]) -> None:
        with Path(os.devnull).open() as nothing, self._turn:
            files = array.array("i", [answer, nothing.fileno(), *written])
            self._requests.sendmsg(
                [json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files.tobytes())]
            )
        os.close(answer)


def _code(answer: int, arguments: tuple[str, ...], timeout: float) -> int:
    """Read the process id and then the exit code from *answer*; kill the process when *timeout* expires."""
    pid = int(_line(answer, 60))
    answer_line = _line(answer, timeout)
    if not answer_line:
        os.kill(pid, signal.SIGKILL)
        raise subprocess.TimeoutExpired(arguments, timeout)
    return int(answer_line)


def _line(answer: int, timeout: float | None) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([answer], [], [], timeout)[0]:
            return b""
        piece = os.read(answer, 1)
        assert piece, "the fork server ended before the command"
        line += piece
    return line


def _text(written: int) -> str:
    with open(written, closefd=False) as file:
        file.seek(0)
        return file.read()
