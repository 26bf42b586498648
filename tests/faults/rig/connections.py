"""Kept HTTP connections of the recorder's senders: no client library, so that it costs little beside what is tested."""

import asyncio
import contextlib
from collections.abc import Mapping

_MAX_IDLE = 128


class ConnectionPool:
    """Sends POST requests, each over an idle connection if there is one."""

    def __init__(self) -> None:
        self._idle: dict[str, list[_Connection]] = {}

    async def post(
        self, host: str, path: str, headers: Mapping[str, str], body: bytes, *, is_keeping: bool = True
    ) -> tuple[int, bytes]:
        """Return the status and the body of the response; *is_keeping* keeps the connection for the next request."""
        idle = self._idle.setdefault(host, [])
        connection = idle.pop() if idle else await _Connection.open(host)
        is_fine = False
        try:
            status, is_open, content = await connection.post(host, path, headers, body)
            is_fine = is_open and is_keeping and len(idle) < _MAX_IDLE
        finally:
            if is_fine:
                idle.append(connection)
            else:
                connection.close()
        return status, content


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, host: str) -> "_Connection":
        name, _, port = host.rpartition(":")
        return cls(*await asyncio.open_connection(name, int(port)))

    async def post(self, host: str, path: str, headers: Mapping[str, str], body: bytes) -> tuple[int, bool, bytes]:
        """Return the status, whether the connection may be used again, and the body."""
        fields = {"host": host, "content-type": "application/json", **headers, "content-length": str(len(body))}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._writer.write(f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body)
        await self._writer.drain()
        answer = (await self._reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = answer.partition("content-length:")[2].partition("\r\n")[0].strip()
        content = await self._reader.readexactly(int(length or 0))
        return int(answer.split(" ", 2)[1]), bool(length) and "connection: close" not in answer, content

    def close(self) -> None:
        with contextlib.suppress(OSError, RuntimeError):
            self._writer.close()
