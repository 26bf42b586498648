"""Commands of boathook, run as processes of their own without starting Python anew for each."""

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

_FORGE = Path(__file__).with_name("fork_server.py")
_HARMLESS = {"PYTHONPATH", "PYTHONUNBUFFERED"}


def boathook_command(
    *arguments: str, cwd: Path, env: Mapping[str, str], timeout: float = 120
) -> "subprocess.CompletedProcess[str]":
    """Run ``python -m boathook`` with these arguments and return what it wrote and the code it ended with.

    The process is a fork of one that has imported boathook, unless its environment asks for what happens while Python
    starts.

    Raises:
        TimeoutExpired: it ran for longer than *timeout* seconds, and was killed.
    """
    if _needs_a_start(env):
        return boathook_process(*arguments, cwd=cwd, env=env, timeout=timeout)
    return _forge().run(arguments, cwd, env, timeout)


def boathook_process(
    *arguments: str, cwd: Path, env: Mapping[str, str], timeout: float = 120
) -> "subprocess.CompletedProcess[str]":
    """Do the same with a Python of its own."""
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


def _needs_a_start(env: Mapping[str, str]) -> bool:
    asks_python = any(
        name.startswith("PYTHON") and os.environ.get(name) != env[name] for name in env.keys() - _HARMLESS
    )
    folders = env.get("PYTHONPATH", "").split(os.pathsep)
    is_patched = any(Path(folder, "sitecustomize.py").exists() for folder in folders if folder)
    return asks_python or is_patched or "BOATHOOK_CRASH_POINT" in env


@functools.cache
def _forge() -> "_Forge":
    return _Forge()


class _Forge:
    """The process that forks, which ends when this one does."""

    def __init__(self) -> None:
        self._requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._turn = threading.Lock()
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(_FORGE)], stdin=theirs.fileno(), stdout=subprocess.DEVNULL, env=environment,
                start_new_session=True,
            )  # fmt: skip
        atexit.register(self._close)

    def _close(self) -> None:
        self._requests.close()
        self._process.wait(30)

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

    def _ask(self, request: dict, answer: int, written: list[int]) -> None:
        with Path(os.devnull).open() as nothing, self._turn:
            files = array.array("i", [answer, nothing.fileno(), *written])
            self._requests.sendmsg(
                [json.dumps(request).encode()], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files.tobytes())]
            )
        os.close(answer)


def _code(answer: int, arguments: tuple[str, ...], timeout: float) -> int:
    """Return the second number that is written to *answer*; the first is the process to be killed if that takes long."""
    pid = int(_line(answer, 60))
    told = _line(answer, timeout)
    if not told:
        os.kill(pid, signal.SIGKILL)
        raise subprocess.TimeoutExpired(arguments, timeout)
    return int(told)


def _line(answer: int, timeout: float) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        if not select.select([answer], [], [], timeout)[0]:
            return b""
        piece = os.read(answer, 1)
        assert piece, "what ran the command ended before it"
        line += piece
    return line


def _text(written: int) -> str:
    with open(written, closefd=False) as file:
        file.seek(0)
        return file.read()
