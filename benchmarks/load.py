"""Load from outside: signed requests prepared beforehand, sent by wrk, or by a client of our own where wrk is missing.

Run as a module it is that client: ``python -m benchmarks.load FILE --port P --connections N [--rate R]``.
"""

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import uvloop

from boathook.domain.errors import ConfigError
from boathook.testing import sign

SECRET = "whsec_benchmark"  # noqa: S105 - a secret for made-up traffic
TYPES = ("invoice.paid", "customer.subscription.updated", "payment_intent.succeeded")
_LENGTH_DIGITS = 8


@dataclass(frozen=True, slots=True)
class LoadResult:
    """The result of a load."""

    requests: int
    seconds: float
    p50_ms: float
    p99_ms: float
    refused: int
    """Answers that were not 2xx or 3xx."""
    broken: int
    """Connections that failed or timed out."""

    @property
    def rate(self) -> float:
        """Requests answered a second."""
        return self.requests / self.seconds


def prepare(
    prefix: Path,
    count: int,
    *,
    parts: int,
    first: int = 0,
    size: int = 1024,
    repeat: int = 1,
    source: str = "stripe",
) -> None:
    """Write *count* distinct Stripe-signed requests of *size* bytes of JSON into *parts* files, each *repeat* times.

    The signatures hold for five minutes.
    """
    for part in range(parts):
        requests = [make_webhook(number, size, source) for number in range(first + part, first + count, parts)]
        write_requests(Path(f"{prefix}.{part}"), requests * repeat)


def write_requests(path: Path, requests: Iterable[bytes]) -> None:
    """Write requests as `run_load` reads them."""
    with path.open("wb") as file:
        for request in requests:
            file.write(b"%0*d" % (_LENGTH_DIGITS, len(request)))
            file.write(request)


def make_webhook(number: int, size: int, source: str = "stripe") -> bytes:
    """Return a signed HTTP request with *size* bytes of JSON."""
    kind = TYPES[number % len(TYPES)]
    head = f'{{"id":"evt_{number:012d}","object":"event","type":"{kind}","data":{{"object":{{"n":{number},"text":"'
    body = (head + "x" * (size - len(head) - 4) + '"}}}').encode()
    headers = {"host": "127.0.0.1", "content-type": "application/json", "content-length": str(len(body))}
    headers |= sign("stripe", SECRET, body)
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    return f"POST /in/{source} HTTP/1.1\r\n{lines}\r\n".encode("latin-1") + body


def run_load(prefix: Path, port: int, *, connections: int = 64, seconds: float, parts: int = 1) -> LoadResult:
    """Send a prepared corpus to a server on loopback as fast as it answers, for at most *seconds*.

    Raises:
        ConfigError: the generator failed; the message carries its own words.
    """
    if shutil.which("wrk") is None:
        return run_own_client(prefix, port, connections=connections, seconds=seconds)
    command = ["wrk", f"-t{parts}", f"-c{connections}", f"-d{max(1, round(seconds))}s", "--timeout", "30s"]
    command += ["-s", str(Path(__file__).with_name("wrk.lua")), f"http://127.0.0.1:{port}", "--", str(prefix)]
    return _read_result(subprocess.run(command, capture_output=True, text=True, check=False))


def run_own_client(
    prefix: Path,
    port: int,
    *,
    connections: int,
    seconds: float,
    rate: float | None = None,
    answers: Path | None = None,
) -> LoadResult:
    """Do the same with boathook's own client.

    With *rate*, that many requests are begun a second, whatever the answers do. With *answers*, the number of each
    accepted request and the body of its answer are written to this file, see `read_answers`.
    """
    command = [sys.executable, "-m", "benchmarks.load", f"{prefix}.0", "--port", str(port)]
    command += ["--connections", str(connections), "--seconds", str(seconds)]
    command += ["--rate", str(rate)] if rate is not None else []
    command += ["--answers", str(answers)] if answers is not None else []
    return _read_result(subprocess.run(command, capture_output=True, text=True, check=False))


def _read_result(done: subprocess.CompletedProcess[str]) -> LoadResult:
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode != 0 or not lines:
        raise ConfigError(f"the load generator failed: {(done.stderr or done.stdout).strip()[-500:]}")
    return LoadResult(**json.loads(lines[-1]))


def read(path: Path) -> Iterator[bytes]:
    """Return the requests of one prepared file, in order."""
    with path.open("rb") as file:
        while length := file.read(_LENGTH_DIGITS):
            yield file.read(int(length))


def read_answers(path: Path) -> Iterator[tuple[int, str]]:
    """Return the number of each accepted request of a load, and the body of its answer."""
    with path.open() as file:
        for line in file:
            number, body = json.loads(line)
            yield number, body


class Client(asyncio.Protocol):
    """One kept-alive connection that has at most one request under way."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._answer = b""
        self._waiter: asyncio.Future[int] | None = None
        self.body = b""
        """That of the last answer."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self.transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail the request under way."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_exception(exc or ConnectionResetError("the server closed the connection"))

    def close(self) -> None:
        """Close the connection."""
        if self.transport is not None:
            self.transport.close()

    async def send(self, request: bytes) -> int:
        """Send one request and return the answer's status."""
        assert self.transport is not None
        self._waiter = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._waiter

    def data_received(self, data: bytes) -> None:
        """End the request under way once its answer is whole."""
        self._answer += data
        head, blank, rest = self._answer.partition(b"\r\n\r\n")
        if not blank:
            return
        lowered = head.lower()
        at = lowered.find(b"content-length:")
        length = int(lowered[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
        if len(rest) >= length and self._waiter is not None:
            self.body, self._answer = rest[:length], rest[length:]
            self._waiter.set_result(int(head[9:12]))


class _Run:
    def __init__(self, requests: Sequence[bytes], seconds: float, rate: float | None) -> None:
        self._requests = requests
        self._interval_s = 1 / rate if rate else 0.0
        self._next = 0
        self._start = time.perf_counter()
        self._end = self._start + seconds
        self.waits_s: list[float] = []
        self.answers: list[tuple[int, str]] = []
        self.refused = 0
        self.broken = 0

    async def work(self, port: int) -> None:
        loop = asyncio.get_running_loop()
        try:
            _, client = await loop.create_connection(Client, "127.0.0.1", port)
            while self._next < len(self._requests) and time.perf_counter() < self._end:
                number = self._next
                self._next += 1
                await self._send_one(client, number)
        except OSError:
            self.broken += 1

    async def _send_one(self, client: Client, number: int) -> None:
        began = time.perf_counter()
        if self._interval_s:
            # An open load counts waiting from the moment the request was due, or a slow server would hide its queue.
            due = self._start + number * self._interval_s
            await asyncio.sleep(max(0.0, due - began))
            began = due
        status = await client.send(self._requests[number])
        self.waits_s.append(time.perf_counter() - began)
        self.refused += status >= 400
        if status < 300:
            self.answers.append((number, client.body.decode()))

    def result(self) -> LoadResult:
        waits = sorted(self.waits_s) or [0.0]
        return LoadResult(
            requests=len(self.waits_s),
            seconds=time.perf_counter() - self._start,
            p50_ms=waits[len(waits) // 2] * 1e3,
            p99_ms=waits[len(waits) * 99 // 100] * 1e3,
            refused=self.refused,
            broken=self.broken,
        )


async def _main(arguments: argparse.Namespace) -> LoadResult:
    run = _Run(list(read(arguments.file)), arguments.seconds, arguments.rate)
    await asyncio.gather(*[run.work(arguments.port) for _ in range(arguments.connections)])
    if arguments.answers is not None:
        arguments.answers.write_text("".join(f"{json.dumps(answer)}\n" for answer in run.answers))
    return run.result()


def main() -> None:
    """Send a prepared file and print the result as one JSON object."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--rate", type=float, help="requests begun a second; absent: as fast as they are answered")
    parser.add_argument("--answers", type=Path, help="file for the answers to accepted requests")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(asdict(runner.run(_main(arguments)))))


if __name__ == "__main__":
    main()
