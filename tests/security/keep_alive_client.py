"""One kept-alive HTTP/1.1 connection to a gateway, for many small requests at little cost."""

import asyncio
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_TIMEOUT_S = 15.0


@dataclass(frozen=True, slots=True)
class TimedResponse:
    """The response to a request."""

    status: int
    body: bytes
    seconds: float
    """From the request's first byte to the answer's last."""

    @property
    def json(self) -> Any:
        """The body's JSON; an empty object where it is none."""
        try:
            return json.loads(self.body)
        except ValueError:
            return {}


class KeepAliveClient:
    """A connection with at most one request under way; opened when needed, and again after it broke."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._port = port
        self._host = host
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def request(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> TimedResponse:
        """Send one request and return the answer.

        Raises:
            ConnectionError: there was no whole answer; whether the request was heard is not known.
        """
        shown = f"[{self._host}]" if ":" in self._host else self._host
        lines = [f"{method} {path} HTTP/1.1", f"host: {shown}:{self._port}", f"content-length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self._exchange("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        except (OSError, TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
            self.close()
            raise ConnectionError(f"no answer: {error!r}") from error
        except BaseException:
            # Half an answer may be left on the connection.
            self.close()
            raise

    async def _exchange(self, request: bytes) -> TimedResponse:
        if self._streams is None or self._streams[0].at_eof():
            self.close()
            self._streams = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._streams
        began = time.perf_counter()
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = head.partition(b"content-length:")[2].partition(b"\r\n")[0]
        body = await reader.readexactly(int(length or b"0"))
        if b"connection: close" in head:
            self.close()
        return TimedResponse(int(head[9:12]), body, time.perf_counter() - began)

    def close(self) -> None:
        """Drop the connection, if any."""
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None
