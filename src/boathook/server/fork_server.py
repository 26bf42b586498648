"""The fork server: starts child processes as copies of one process that has imported their modules.

A child starts within milliseconds, and all children share the memory of the imported code. The fork server is forked
from the supervisor before that starts an event loop, a thread or user code. It stays single-threaded, so that no child
inherits a held lock. It communicates with the supervisor over a socket, and ends when that closes. If it is killed, its
children go on, and another fork server starts as a new interpreter.
"""

import array
import asyncio
import contextlib
import gc
import os
import select
import signal
import socket
import sys
from collections import deque
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import Final, NoReturn, Self

import msgspec
import setproctitle

_MODULES: Final = {
    "gateway": ("boathook.server.gateway",),
    # The API and the pages are imported by their first requests; see `boathook.server.interfaces`.
    "console": ("boathook.handlers.outbox", "boathook.service.unit_of_work"),
    "worker": ("boathook.delivery.handler_executor", "boathook.delivery.sender", "boathook.delivery.http_executor"),
    "keeper": ("boathook.alerts.service", "boathook.delivery.keeper"),
}
"""Modules that the children of each role in `server.roles` need. Only children import user code."""
_SHARED_MODULES: Final = ("boathook.server.child", "boathook.server.loading")
_MAX_MESSAGE: Final = 4_096
_MAX_DESCRIPTORS: Final = 8
_HANDLED_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that a terminal or service manager may send to all processes; only the supervisor handles them."""


class StartRequest(msgspec.Struct, tag="start"):
    """Requests a child; its standard input, heartbeat pipe and optional listening socket are sent as descriptors."""

    role: str
    slot: str


class SignalRequest(msgspec.Struct, tag="signal"):
    """Requests a signal to a child; only the fork server tracks which process ids are still its children."""

    pid: int
    number: int


class Started(msgspec.Struct, tag="started"):
    """Answers `StartRequest` with the process id, or with the errno of a failed fork."""

    pid: int = 0
    error: int = 0


class Ended(msgspec.Struct, tag="ended"):
    """Reports the exit of a child: its exit code, or the negative signal number."""

    pid: int
    code: int


_encode = msgspec.json.Encoder().encode
_decode_request = msgspec.json.Decoder(StartRequest | SignalRequest).decode
_decode_answer = msgspec.json.Decoder(Started | Ended).decode


class Process:
    """A child process as the supervisor sees it."""

    def __init__(self, server: "ForkServer", pid: int) -> None:
        self._server = server
        self._fork_server_pid = server.pid
        self.pid = pid
        self.returncode: int | None = None
        """Its exit code, or the negative signal number; None while it runs."""

    @property
    def is_orphan(self) -> bool:
        """Whether its fork server has ended, so that the exit of this process is not reported."""
        return self._server.has_ended or self._server.pid != self._fork_server_pid

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal; does nothing if the process has ended."""
        if self.returncode is not None:
            return
        if not self.is_orphan:
            self._server.send_request(SignalRequest(self.pid, number))
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


class ForkServer:
    """The supervisor's side of the fork server."""

    def __init__(self, pid: int, connection: socket.socket) -> None:
        self.pid = pid
        self.has_ended = False
        """Whether it died: no child can be started, and exits of children are not reported."""
        self._connection = connection
        self._starting: deque[asyncio.Future[Process]] = deque()
        self._processes: dict[int, Process] = {}

    @classmethod
    def start(cls, roles: Iterable[str], added: Iterable[str] = ()) -> Self:
        """Fork the fork server for these roles of `server.roles`; the calling process must be single-threaded.

        Args:
            roles: the roles.
            added: modules of optional packages that the children need besides.
        """
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        # Each process would write the buffered output.
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid == 0:
            ours.close()
            _serve(theirs, roles, added)
        theirs.close()
        ours.setblocking(False)
        return cls(pid, ours)

    def restart(self, roles: Iterable[str], added: Iterable[str] = ()) -> None:
        """Replace a fork server that has ended: start a new interpreter, as the calling process has threads by now.

        Raises:
            OSError: the system has no more processes or memory.
        """
        self._connection.close()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)  # if only its connection was lost
        os.waitpid(self.pid, 0)
        self._connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._connection.setblocking(False)
        with theirs:
            theirs.set_inheritable(True)
            arguments = f"{theirs.fileno()}, {[*roles]!r}, {[*added]!r}"
            code = f"from boathook.server import fork_server; fork_server.serve({arguments})"
            self.pid = os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ)
        self.has_ended = False
        self.attach()

    def attach(self) -> None:
        """Start to read its answers in the running event loop."""
        asyncio.get_running_loop().add_reader(self._connection, self._on_message)

    async def spawn(self, role: str, slot: str, descriptors: Sequence[int]) -> Process:
        """Start a child of *role* with descriptors for standard input, heartbeats and optionally the listening socket.

        Raises:
            OSError: the system has no more processes or memory, or the fork server has ended.
        """
        if self.has_ended:
            raise OSError("the fork server has ended")
        started: asyncio.Future[Process] = asyncio.get_running_loop().create_future()
        self._starting.append(started)
        self.send_request(StartRequest(role, slot), descriptors)
        return await started

    def send_request(self, request: StartRequest | SignalRequest, descriptors: Sequence[int] = ()) -> None:
        """Send a request."""
        files = array.array("i", descriptors)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)] if descriptors else []
        try:
            self._connection.sendmsg([_encode(request)], ancillary)
        except OSError:
            self._mark_ended()

    def _on_message(self) -> None:
        try:
            message = self._connection.recv(_MAX_MESSAGE)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self._mark_ended()
            return
        match _decode_answer(message):
            case Started(pid, error):
                self._note_started(pid, error)
            case Ended(pid, code):
                self._processes.pop(pid).returncode = code

    def _note_started(self, pid: int, error: int) -> None:
        process = Process(self, pid)
        if pid:
            self._processes[pid] = process
        started = self._starting.popleft()
        if started.done():
            process.send_signal(signal.SIGKILL)  # its caller was cancelled
        elif error:
            started.set_exception(OSError(error, os.strerror(error)))
        else:
            started.set_result(process)

    def _mark_ended(self) -> None:
        if self.has_ended:
            return
        self.has_ended = True
        asyncio.get_running_loop().remove_reader(self._connection)
        while self._starting:
            started = self._starting.popleft()
            if not started.done():
                started.set_exception(OSError("the fork server has ended"))

    def close(self) -> None:
        """Close the connection, and wait for the fork server to exit."""
        self._connection.close()
        with contextlib.suppress(ChildProcessError):  # another one could not be started
            os.waitpid(self.pid, 0)


def serve(descriptor: int, roles: Iterable[str], added: Iterable[str]) -> NoReturn:
    """Serve the supervisor at the other end of this socket; the entry point of `ForkServer.restart`."""
    os.set_inheritable(descriptor, False)
    _serve(socket.socket(fileno=descriptor), roles, added)


def _serve(connection: socket.socket, roles: Iterable[str], added: Iterable[str]) -> NoReturn:
    """Fork a child for each request until the supervisor closes the connection."""
    # Ctrl-C signals the terminal's foreground process group; the supervisor stops the children itself.
    os.setpgid(0, 0)
    setproctitle.setproctitle("boathook: fork server")
    for number in _HANDLED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    gc.disable()  # no garbage to collect during imports; a child enables it, see server/child_config
    import_modules(roles, added)
    gc.freeze()
    awake, waker = os.pipe()
    for descriptor in (awake, waker):
        os.set_blocking(descriptor, False)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    running: set[int] = set()
    start: StartRequest | None = None
    descriptors: list[int] = []
    while start is None:
        readable, _, _ = select.select([connection.fileno(), awake], [], [])
        if awake in readable:
            os.read(awake, _MAX_MESSAGE)
            _reap(connection, running)
        if connection.fileno() in readable:
            message, descriptors = _receive(connection)
            if not message:
                os._exit(0)
            start = _answer(connection, message, descriptors, running)
    signal.set_wakeup_fd(-1)
    connection.close()
    for descriptor in (awake, waker):
        os.close(descriptor)
    _become_child(start, descriptors)


def import_modules(roles: Iterable[str], added: Iterable[str] = ()) -> None:
    """Import the modules that children of these roles need, and those of optional packages."""
    for module in (*_SHARED_MODULES, *(module for role in roles for module in _MODULES[role]), *added):
        import_module(module)


def _receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    descriptors = array.array("i")
    try:
        message, ancillary, _, _ = connection.recvmsg(
            _MAX_MESSAGE, socket.CMSG_LEN(_MAX_DESCRIPTORS * descriptors.itemsize)
        )
    except OSError:
        return b"", []
    for _, _, data in ancillary:
        descriptors.frombytes(data)
    return message, list(descriptors)


def _answer(
    connection: socket.socket, message: bytes, descriptors: Sequence[int], running: set[int]
) -> StartRequest | None:
    """Handle a request; in a new child, return the request that started it."""
    request: StartRequest | SignalRequest = _decode_request(message)
    if isinstance(request, SignalRequest):
        if request.pid in running:
            os.kill(request.pid, request.number)
        return None
    # A signal that arrives before the child has restored its handlers must wait until then.
    signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED_SIGNALS)
    try:
        pid = os.fork()
    except OSError as error:
        _send(connection, Started(error=error.errno or 0))
    else:
        if pid == 0:
            return request
        running.add(pid)
        _send(connection, Started(pid))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED_SIGNALS)
    for descriptor in descriptors:
        os.close(descriptor)
    return None


def _reap(connection: socket.socket, running: set[int]) -> None:
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        running.discard(pid)
        _send(connection, Ended(pid, os.waitstatus_to_exitcode(status)))


def _send(connection: socket.socket, answer: Started | Ended) -> None:
    try:
        connection.send(_encode(answer))
    except OSError:
        os._exit(0)  # the supervisor is gone; children detect it by their standard input


def _become_child(start: StartRequest, descriptors: Sequence[int]) -> NoReturn:
    from boathook.server.child import run_child

    os.setpgid(0, 0)
    setproctitle.setproctitle(f"boathook: {start.slot}")
    standard_input, beat, *bound = descriptors
    os.dup2(standard_input, 0)
    os.close(standard_input)
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HANDLED_SIGNALS)
    sys.exit(run_child(start.role, beat, *bound))
