"""A shop's receiver for tests and simulations: verifies each request like an external client, and records it."""

import asyncio
import contextlib
import json
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Final

from boathook import verify
from boathook_cashdesk.simulator import Change, read_change

_MAX_ID: Final = 1_048_576
_ENDINGS: Final = (
    ConnectionError, asyncio.CancelledError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError,
)  # fmt: skip
"""The exceptions with which a connection may end."""

Script = Callable[[str, int], int]
"""Returns the status for the n-th request to a path."""


class Receiver:
    """Listens on loopback; each path belongs to one shop."""

    def __init__(self, script: Script = lambda _path, _number: 204) -> None:
        self.base = ""
        self.secrets: dict[str, str] = {}
        """The secrets with which requests to each path are signed."""
        self.heard: defaultdict[str, Counter[Change]] = defaultdict(Counter)
        """The changes that each path accepted, with their counts."""
        self.bodies: defaultdict[str, list[bytes]] = defaultdict(list)
        """The bodies that each path accepted, in order."""
        self.tests: Counter[str] = Counter()
        """The number of test events that each path accepted."""
        self.forged: Counter[str] = Counter()
        """Requests to each path with an invalid signature."""
        self.requests: Counter[str] = Counter()
        self._script = script
        self._serving: set[asyncio.Task[None]] = set()

    @contextlib.asynccontextmanager
    async def open(self, port: int = 0) -> AsyncIterator["Receiver"]:
        """Listen until the block ends."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", port)
        self.base = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        try:
            yield self
        finally:
            server.close()
            for task in self._serving:
                task.cancel()
            await asyncio.gather(*self._serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)
        with contextlib.suppress(*_ENDINGS):
            while True:
                path, headers = _head(await reader.readuntil(b"\r\n\r\n"))
                length = int(headers.get("content-length", "0"))
                if length > _MAX_ID:
                    break
                status = self._take(path, headers, await reader.readexactly(length))
                empty = "" if status == 204 else "content-length: 0\r\n"
                writer.write(f"HTTP/1.1 {status} OK\r\n{empty}\r\n".encode())
                await writer.drain()
        writer.close()

    def _take(self, path: str, headers: Mapping[str, str], body: bytes) -> int:
        self.requests[path] += 1
        status = self._script(path, self.requests[path])
        if not 200 <= status < 300:
            return status
        if not verify("standard-webhooks", self.secrets.get(path, "whsec_"), headers, body, self.base + path):
            self.forged[path] += 1
            return 401
        self.bodies[path].append(body)
        payload = json.loads(body)
        if payload["action"] == "TEST":
            self.tests[path] += 1
        else:
            self.heard[path][read_change(payload)] += 1
        return status


def _head(head: bytes) -> tuple[str, dict[str, str]]:
    request, *lines = head.decode("latin-1").split("\r\n")
    pairs = (line.partition(":") for line in lines if line)
    return request.split(" ")[1], {name.strip().lower(): value.strip() for name, _, value in pairs}
