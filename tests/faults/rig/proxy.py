"""TCP proxy with faults that are switched on and off while connections are open.

A proxy runs in a thread of its own, so that neither the test nor what it tests can hold it up::

    with Proxy("/run/postgres/.s.PGSQL.5432") as wire:      # or ("127.0.0.1", 8080)
        wire.port                                           # connect here
        wire.set(latency_s=0.2, jitter_s=0.05)              # every chunk, both ways, from this moment on
        wire.set(slice_bytes=1, bytes_per_s=10_000)
        wire.set(is_stalled=True)                           # silence: nothing passes, without an error
        wire.set(deaf="up")                                 # half-open: one direction falls silent ("up": client to server)
        wire.set(is_refusing=True)                          # newcomers are reset
        wire.reset()                                        # every open connection ends with RST
        wire.heal()                                         # as at the beginning; what was held back is passed on

`wire.target` may be changed at any time, for connections made from then on: a load balancer in one line.

`set` replaces all switches at once: what it does not name is off.
"""

import asyncio
import contextlib
import random
import socket
import struct
import threading
import time
from dataclasses import dataclass
from typing import Literal

from tests.support import run_and_close

Target = str | tuple[str, int]
"""Where a proxy connects to: the path of a unix socket, or a host and a port."""

_CHUNK = 65_536
_CHECK_S = 0.005
_CONNECT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Switches:
    """The faults of a proxy; by default, none."""

    latency_s: float = 0.0
    jitter_s: float = 0.0
    """Added to the latency, between nothing and this much, anew for each chunk."""
    bytes_per_s: float = 0.0
    """For each connection and direction; 0 for no limit."""
    slice_bytes: int = 0
    """Most bytes written at once; 0 leaves chunks as they come."""
    is_stalled: bool = False
    """Nothing passes in either direction, and connections stay open."""
    deaf: Literal["", "up", "down"] = ""
    """The direction that falls silent: up is from the client to the server."""
    is_refusing: bool = False
    """Connections are reset as soon as they are made."""


class Proxy:
    """One listening port of loopback in front of *target*."""

    def __init__(self, target: Target, *, seed: int = 0) -> None:
        self.target = target
        self.port = 0
        self.connections = 0
        """How many were made through it so far."""
        self._switches = Switches()
        self._dice = random.Random(seed)
        self._open: set[_Pair] = set()
        self._begun = 0
        self._loop = asyncio.new_event_loop()
        self._stop = asyncio.Event()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=run_and_close, args=(self._loop, self._serve()), daemon=True)

    def __enter__(self) -> "Proxy":
        self._thread.start()
        assert self._is_ready.wait(300), "the proxy does not listen"
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(300)

    def set(
        self,
        *,
        latency_s: float = 0.0,
        jitter_s: float = 0.0,
        bytes_per_s: float = 0.0,
        slice_bytes: int = 0,
        is_stalled: bool = False,
        deaf: Literal["", "up", "down"] = "",
        is_refusing: bool = False,
    ) -> None:
        """Apply these faults from the next chunk on."""
        self._switches = Switches(
            latency_s=latency_s, jitter_s=jitter_s, bytes_per_s=bytes_per_s, slice_bytes=slice_bytes,
            is_stalled=is_stalled, deaf=deaf, is_refusing=is_refusing,
        )  # fmt: skip

    def heal(self) -> None:
        """Clear all faults."""
        self.set()

    def reset(self) -> int:
        """End every open connection with RST, and return how many there were."""

        async def cut() -> int:
            pairs = list(self._open)
            for pair in pairs:
                pair.cut()
            return len(pairs)

        return asyncio.run_coroutine_threadsafe(cut(), self._loop).result(300)

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._take, "127.0.0.1", 0, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        self._is_ready.set()
        await self._stop.wait()
        server.close()
        for pair in list(self._open):
            pair.cut()
        await asyncio.gather(*(pair.task for pair in list(self._open) if pair.task is not None), return_exceptions=True)
        while self._begun:  # noqa: ASYNC110 - for these clients the way to the target is still being opened
            await asyncio.sleep(_CHECK_S)
        for _ in range(3):
            await asyncio.sleep(0)  # the loop closes what was aborted in its next round; nobody else would

    async def _take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._begun += 1
        try:
            await self._connect(reader, writer)
        finally:
            self._begun -= 1

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._switches.is_refusing:
            _abort(writer)
            return
        try:
            async with asyncio.timeout(_CONNECT_S):
                if isinstance(self.target, str):
                    far = await asyncio.open_unix_connection(self.target)
                else:
                    far = await asyncio.open_connection(*self.target)
        except OSError:  # a timeout is one
            _abort(writer)
            return
        pair = _Pair((reader, writer), far)
        if self._stop.is_set():
            pair.cut()
            return
        self._open.add(pair)
        # A task apart: asyncio complains of a server's own tasks where those are cancelled.
        pair.task = pumps = asyncio.gather(self._pump("up", reader, far[1]), self._pump("down", far[0], writer))
        try:
            await pumps
        except (OSError, asyncio.CancelledError):
            pair.cut()
        finally:
            self._open.discard(pair)
            for end in pair.ends:
                with contextlib.suppress(OSError, RuntimeError):
                    end.close()

    async def _pump(
        self, way: Literal["up", "down"], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        while chunk := await reader.read(_CHUNK):
            for piece in self._slices(chunk):
                await self._hold(way, len(piece))
                writer.write(piece)
                await writer.drain()
        await self._hold(way, 0)  # the end of a connection is delayed like all data
        with contextlib.suppress(OSError):
            writer.write_eof()

    def _slices(self, chunk: bytes) -> list[bytes]:
        size = self._switches.slice_bytes or len(chunk)
        return [chunk[start : start + size] for start in range(0, len(chunk), size)]

    async def _hold(self, way: Literal["up", "down"], size: int) -> None:
        switches = self._switches
        wait_s = switches.latency_s + self._dice.random() * switches.jitter_s
        if switches.bytes_per_s:
            wait_s += size / switches.bytes_per_s
        due = time.monotonic() + wait_s
        while (left_s := due - time.monotonic()) > 0 and self._switches == switches:  # noqa: ASYNC110 - switched from another thread
            await asyncio.sleep(min(left_s, 0.05))
        while self._switches.is_stalled or self._switches.deaf == way:  # noqa: ASYNC110 - likewise
            await asyncio.sleep(_CHECK_S)


Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class _Pair:
    """The two connections of one client."""

    def __init__(self, near: Stream, far: Stream) -> None:
        self.ends = (near[1], far[1])
        self.task: asyncio.Future[tuple[None, None]] | None = None

    def cut(self) -> None:
        """End both at once, without a clean shutdown."""
        for writer in self.ends:
            _abort(writer)
        if self.task is not None:
            self.task.cancel()


def _abort(writer: asyncio.StreamWriter) -> None:
    """Close with RST, by a zero linger time."""
    sock = writer.get_extra_info("socket")
    with contextlib.suppress(OSError):
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    with contextlib.suppress(OSError, RuntimeError):
        writer.transport.abort()
