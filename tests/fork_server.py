"""Fork server: runs boathook commands in forks of one process that has imported boathook; `tests.commands` starts it.

A fork starts in the state of ``python -m boathook`` after its imports, which take most of the time of a short command.
Each fork has its own working directory, environment, files and exit code, as a separate process would.
"""

import array
import atexit
import contextlib
import ctypes
import gc
import json
import os
import random
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from typing import NoReturn

import setproctitle

_MODULES = (
    "boathook.cli.app_commands",
    "boathook.service.sending.applications",
    "boathook.service.sending.endpoint_secrets",
    "boathook.service.sending.endpoints",
    "boathook.service.sending.event_types",
    "boathook.service.sending.messages",
    "boathook_embedded.server",
    "boathook_dev.dev",
    "boathook_dev.init",
    "boathook_dev.listen",
    "boathook.server.supervisor",
    "cryptography.fernet",
    "uvloop",
)
"""Modules that most commands import while they run."""
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def main() -> NoReturn:
    """Fork for each request on the socket at standard input, until the socket is closed."""
    sys.path.pop(0)  # the folder of this file
    from boathook.cli.commands import COMMAND_ENTRIES
    from boathook.server.fork_server import import_modules

    import_modules(("gateway", "console", "worker", "keeper"))
    commands = (f"boathook.cli.{entry.place.partition(':')[0]}" for entry in COMMAND_ENTRIES.values())
    for name in (*commands, *_MODULES):
        import_module(name)
    setproctitle.getproctitle()  # finds the place of the title now, as it cannot once a fork has changed its environment
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the process that supervises a command is not waited for
    requests = socket.socket(fileno=os.dup(0))
    while True:
        message, descriptors = _receive(requests)
        if not message:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            _end_with_parent()
            _watch(json.loads(message), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _receive(requests: socket.socket) -> tuple[bytes, list[int]]:
    descriptors = array.array("i")
    message, ancillary, _, _ = requests.recvmsg(1 << 20, socket.CMSG_LEN(4 * descriptors.itemsize))
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    return message, list(descriptors)


def _watch(request: dict, descriptors: list[int]) -> NoReturn:
    """Fork the command; write its process id and then its exit code, in the convention of `subprocess`."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    answer, *files = descriptors
    pid = os.fork()
    if pid == 0:
        os.close(answer)
        _end_with_parent()
        _become(request, files)
    os.write(answer, b"%d\n" % pid)
    _, status = os.waitpid(pid, 0)
    with contextlib.suppress(BrokenPipeError):  # the client has stopped waiting
        os.write(answer, b"%d\n" % os.waitstatus_to_exitcode(status))
    os._exit(0)


def _end_with_parent() -> None:
    """Have the kernel kill this process with its parent: a killed run of the tests would leave its servers behind."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def _become(request: dict, files: list[int]) -> NoReturn:
    if request.get("has_session"):
        os.setsid()
    for number, descriptor in enumerate(files):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.path[:0] = [request["cwd"], *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    sys.argv = ["boathook", *request["arguments"]]
    random.seed()
    from boathook.cli import context
    from boathook.cli import main as run

    # A console takes its width and colours from the environment when it is made, which was in another process.
    context.out.__init__(highlight=False)  # type: ignore[misc]
    context.err.__init__(stderr=True, highlight=False)  # type: ignore[misc]
    _end(_code_of(run))


def _code_of(run: Callable[[], None]) -> int:
    try:
        run()
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:  # noqa: BLE001 - the process ends here
        traceback.print_exc()
        return 1
    return 0


def _end(code: int) -> NoReturn:
    """Exit as an interpreter does: wait for threads, run the atexit functions and flush the output streams."""
    try:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


if __name__ == "__main__":
    main()
