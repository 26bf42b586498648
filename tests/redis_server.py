"""A Redis or Valkey server of the tests' own, on loopback and a free port, and a server that only pretends to be one."""

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from boathook_demo.redis_server import PROGRAMS, RedisServer, running


@contextlib.contextmanager
def frozen(server: RedisServer) -> Iterator[None]:
    """Let it accept connections and answer nothing for the duration of the block."""
    assert server.process is not None
    os.kill(server.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(server.process.pid, signal.SIGCONT)


@contextlib.contextmanager
def running_redis(folder: Path) -> Iterator[RedisServer]:
    """Run a server for the duration of the block."""
    if not any(map(shutil.which, PROGRAMS)):
        pytest.skip("redis-server is not installed")
    with running(folder) as server:
        yield server


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
