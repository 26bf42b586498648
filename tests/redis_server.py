"""A Redis or Valkey server of the tests' own, on loopback and a free port, and a server that only pretends to be one."""

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from boathook_demo.redis_server import PROGRAMS
from tests.acceptance.conftest import free_port
from tests.support import until


@dataclass
class RedisServer:
    """One server, which keeps nothing on disk."""

    folder: Path
    port: int
    program: str
    process: subprocess.Popen | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        command = [self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        with (self.folder / "redis.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd=self.folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True
            )
        until(self._answers)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "redis.log").read_text()
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=5) as line:
            line.sendall(b"PING\r\n")
            return line.recv(7) == b"+PONG\r\n"
        return False

    def kill(self) -> None:
        """Kill it; its data is lost."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(300)
            self.process = None

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Let it accept connections and answer nothing for the duration of the block."""
        assert self.process is not None
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)


@contextlib.contextmanager
def running_redis(folder: Path) -> Iterator[RedisServer]:
    """Run a server for the duration of the block."""
    program = next(filter(None, map(shutil.which, PROGRAMS)), None)
    if program is None:
        pytest.skip("redis-server is not installed")
    server = RedisServer(folder, free_port(), program)
    server.start()
    try:
        yield server
    finally:
        server.kill()


@contextlib.asynccontextmanager
async def lying_redis(answer: Callable[[bytes], bytes | None]) -> AsyncIterator[str]:
    """Yield the URL of a server that accepts everything a client says first, and then answers each lease as it likes.

    Args:
        answer: returns what to send for a lease, in Redis's protocol; None sends nothing, ever.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                command = await _read_command(reader)
                reply = answer(command[0]) if command[0].upper() == b"EVAL" else b"+OK\r\n"
                if reply is not None:
                    writer.write(reply)
                    await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0"
    finally:
        server.close()


async def _read_command(reader: asyncio.StreamReader) -> list[bytes]:
    parts = int((await reader.readuntil(b"\r\n"))[1:])
    command = []
    for _ in range(parts):
        size = int((await reader.readuntil(b"\r\n"))[1:])
        command.append((await reader.readexactly(size + 2))[:-2])
    return command
