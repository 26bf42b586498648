"""What delivering is set against: bare loops that only POST, by libcurl's multi interface and by aiohttp.

They sign nothing and record nothing. ``python -m benchmarks.bare_clients libcurl|aiohttp PORT ENDPOINTS COUNT
CONCURRENCY SIZE`` posts COUNT bodies of SIZE bytes and prints how many a second.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import uvloop

from benchmarks.sink import addresses
from boathook.domain.errors import ConfigError

SINK_ADDRESSES: Final = 200
"""At how many addresses the sink listens."""
_HEADERS: Final = {"content-type": "application/json", "user-agent": "benchmark"}


def urls(port: int, count: int) -> list[str]:
    """Return the URLs of so many endpoints at the sink, spread over its addresses."""
    hosts = addresses(SINK_ADDRESSES)
    return [f"http://{hosts[number % SINK_ADDRESSES]}:{port}/hook/{number}" for number in range(count)]


def post(kind: str, port: int, *, endpoints: int, count: int, concurrency: int, size: int) -> float:
    """Let a bare loop post in a process of its own; return requests a second.

    Raises:
        ConfigError: it failed; the message carries its own words.
    """
    numbers = map(str, (port, endpoints, count, concurrency, size))
    command = [sys.executable, "-m", "benchmarks.bare_clients", kind, *numbers]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ConfigError(f"the {kind} loop of the benchmark failed: {done.stderr.strip()[-1000:]}")
    return float(done.stdout.split()[-1])


async def _aiohttp(port: int, endpoints: int, count: int, concurrency: int, body: bytes) -> float:
    import aiohttp

    left = iter(range(count))
    targets = urls(port, endpoints)
    connector = aiohttp.TCPConnector(limit=concurrency)
    async with aiohttp.ClientSession(connector=connector, headers=_HEADERS) as session:

        async def work() -> None:
            for number in left:
                async with session.post(targets[number % endpoints], data=body) as response:
                    await response.read()
                    assert response.status == 204, response.status

        began = time.perf_counter()
        await asyncio.gather(*[work() for _ in range(concurrency)])
        return count / (time.perf_counter() - began)


async def _libcurl(port: int, endpoints: int, count: int, concurrency: int, body: bytes) -> float:
    return _Multi(urls(port, endpoints), body, concurrency).post(count)


class _Multi:
    """The shortest loop around libcurl's multi interface that keeps its handles."""

    def __init__(self, targets: list[str], body: bytes, concurrency: int) -> None:
        import pycurl

        self._targets = targets
        self._multi = pycurl.CurlMulti()
        self._multi.setopt(pycurl.M_MAXCONNECTS, max(concurrency, 2 * len(targets)))
        self._handles = [pycurl.Curl() for _ in range(concurrency)]
        self._url = pycurl.URL
        for handle in self._handles:
            handle.setopt(pycurl.POST, 1)
            handle.setopt(pycurl.POSTFIELDS, body)
            handle.setopt(pycurl.HTTPHEADER, [*[f"{name}: {value}" for name, value in _HEADERS.items()], "Expect:"])
            handle.setopt(pycurl.WRITEFUNCTION, len)
            handle.setopt(pycurl.NOSIGNAL, 1)
            handle.setopt(pycurl.PROXY, "")

    def post(self, count: int) -> float:
        """Post *count* times and return how many a second."""
        began = time.perf_counter()
        sent = min(len(self._handles), count)
        for number, handle in enumerate(self._handles[:sent]):
            self._begin(handle, number)
        done = 0
        while done < count:
            self._multi.perform()
            queued = 1
            while queued:
                queued, ended, failed = self._multi.info_read()
                assert not failed, failed
                for handle in ended:
                    self._multi.remove_handle(handle)
                    if sent < count:
                        self._begin(handle, sent)
                        sent += 1
                done += len(ended)
            if done < count:
                self._multi.select(1.0)
        return count / (time.perf_counter() - began)

    def _begin(self, handle: Any, number: int) -> None:
        handle.setopt(self._url, self._targets[number % len(self._targets)])
        self._multi.add_handle(handle)


def main() -> None:
    """Post by one kind of loop and print the requests a second."""
    kind, *numbers = sys.argv[1:]
    port, endpoints, count, concurrency, size = map(int, numbers)
    measure: Callable[..., Any] = {"aiohttp": _aiohttp, "libcurl": _libcurl}[kind]
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(runner.run(measure(port, endpoints, count, concurrency, b"x" * size)))


if __name__ == "__main__":
    main()
