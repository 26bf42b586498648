"""How soon after acceptance a handler starts, and after publishing a message arrives, at steady rates."""

import asyncio
import os
import time
from array import array
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final, cast

import httptools
import uvloop

from benchmarks.delivery_setup import SETTINGS, DeliverySetup, create_setup, make_token, wait_for_sender
from benchmarks.environment import BenchmarkEnvironment, read_cpu
from benchmarks.load import Client, prepare, run_own_client
from benchmarks.publish import make_request
from boathook.domain.errors import ConfigError
from boathook_demo.rabbitmq import RabbitNode

RATES: Final = (100, 1_000)
_CONNECTIONS: Final = 32
_BODY_BYTES: Final = 1_024
_WARM_UP_S: Final = 2.0
_TIMEOUT_S: Final = 60.0
_NO_CONTENT: Final = b"HTTP/1.1 204 No Content\r\n\r\n"


def latency(environment: BenchmarkEnvironment, seconds: float) -> dict[str, Any]:
    """Send webhooks to handlers, and publish messages to an endpoint, at each rate; report how long each waited.

    Each is measured on a server of its own, from when the client begins the request, or from acceptance for handlers.
    """
    figures: dict[str, Any] = {}
    for rate in RATES:
        figures |= {f"handler_{rate}_{name}": value for name, value in _handled(environment, rate, seconds).items()}
        figures |= {f"arrival_{rate}_{name}": value for name, value in arrived(environment, rate, seconds).items()}
    return figures


def _handled(environment: BenchmarkEnvironment, rate: int, seconds: float) -> dict[str, Any]:
    """Send webhooks at a rate to a whole boathook, and report the waits its handler saw."""
    from benchmarks.handle import make_table

    url = environment.new_database()
    make_table(url)
    starts = environment.folder / f"starts-{rate}"
    os.environ["BOATHOOK_BENCHMARK_STARTS"] = str(starts)
    try:
        with (
            environment.corpus() as warm,
            environment.corpus() as corpus,
            environment.serve(url, roles="gateway,worker,keeper") as server,
        ):
            prepare(warm, rate, parts=1)
            prepare(corpus, int(rate * seconds * 2), parts=1, first=rate)
            server.wait_until_idle()
            environment.report(f"{rate} webhooks a second")
            run_own_client(warm, server.port, connections=_CONNECTIONS, seconds=5, rate=rate)
            load = run_own_client(corpus, server.port, connections=_CONNECTIONS, seconds=seconds * 2 + 5, rate=rate)
    finally:
        del os.environ["BOATHOOK_BENCHMARK_STARTS"]
    return _figures(_read(starts, skip=rate)) | {
        "ack_p50_ms": round(load.p50_ms, 2),
        "ack_p99_ms": round(load.p99_ms, 2),
        "refused": load.refused,
        "broken": load.broken,
    }


def _figures(waits_ms: Sequence[float]) -> dict[str, Any]:
    if not waits_ms:
        raise ConfigError("nothing arrived that the benchmark has sent")
    waits = sorted(waits_ms)
    return {
        "p50_ms": round(waits[len(waits) // 2], 2),
        "p99_ms": round(waits[len(waits) * 99 // 100], 2),
        "max_ms": round(waits[-1], 1),
        "count": len(waits),
    }


def _read(starts: Path, *, skip: int) -> list[float]:
    """Return the waits of all worker processes, those of the warm-up's first second left out."""
    waits = array("d")
    for file in starts.parent.glob(f"{starts.name}.*"):
        part = array("d")
        part.frombytes(file.read_bytes())
        waits.extend(part[skip:] if len(part) > skip else part)
    return list(waits)


def arrived(
    environment: BenchmarkEnvironment, rate: int, seconds: float, *, more: str = "", nodes: Sequence[RabbitNode] = (),
    ahead_s: float = 0.0,
) -> dict[str, Any]:  # fmt: skip
    """Publish messages by the API at a rate to an endpoint in this process, and report when they arrived there.

    Args:
        more: further settings.
        nodes: the brokers that these use.
        ahead_s: also publish messages with a `deliverAt` so far ahead; those that arrive are counted from it on.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        receiver = runner.run(_Receiver.listen())
        setup = create_setup(environment, [f"http://127.0.0.1:{receiver.port}/"])
        token = asyncio.run(make_token(setup))
        roles = "gateway,console,worker,keeper"
        with environment.serve(setup.database_url, roles=roles, app="", more=SETTINGS + more) as server:
            asyncio.run(wait_for_sender(setup))
            server.wait_until_idle()
            environment.report(f"{rate} messages a second")
            publisher = _Publisher(setup, token, server.port, rate)
            runner.run(publisher.publish(int(rate * _WARM_UP_S), receiver))
            before = read_cpu(environment, server, nodes)
            waits = runner.run(publisher.publish(int(rate * seconds * 2), receiver))
            used = read_cpu(environment, server, nodes).since(before, len(waits))
            later = runner.run(publisher.publish_later(int(rate * seconds), receiver, ahead_s)) if ahead_s else []
    # Of a message that is published, delivered and recorded.
    figures = _figures(waits) | {"product_us": round(used.gateway, 1)}
    if later:
        figures |= {f"later_{name}": value for name, value in _figures(later).items()}
    if nodes:
        figures["brokers_us"] = round(used.brokers, 1)
    return figures | ({} if used.postgres is None else {"postgres_us": round(used.postgres, 1)})


class _Receiver:
    """An endpoint in this process that records when each message arrives."""

    def __init__(self) -> None:
        self.port = 0
        self.arrived_s: dict[int, float] = {}
        """When each message first arrived, by its number."""

    @classmethod
    async def listen(cls) -> "_Receiver":
        receiver = cls()
        listener = await asyncio.get_running_loop().create_server(lambda: _Arrivals(receiver), "127.0.0.1", 0)
        receiver.port = listener.sockets[0].getsockname()[1]
        return receiver

    async def wait_for(self, count: int) -> None:
        """Wait until so many messages have arrived. Raises ConfigError if they do not."""
        deadline = time.monotonic() + _TIMEOUT_S
        while len(self.arrived_s) < count:
            if time.monotonic() > deadline:
                raise ConfigError(f"{len(self.arrived_s)} of {count} messages of the benchmark have arrived")
            await asyncio.sleep(0.01)


class _Arrivals(asyncio.Protocol):
    """One connection of a sender."""

    def __init__(self, receiver: _Receiver) -> None:
        self._receiver = receiver
        self._transport: asyncio.Transport | None = None
        self._body = b""
        self._parser = httptools.HttpRequestParser(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_message_begin(self) -> None:
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        assert self._transport is not None
        number = int(self._body[5 : self._body.index(b",")])  # the payload begins with {"n":NUMBER,
        self._receiver.arrived_s.setdefault(number, time.perf_counter())
        self._transport.write(_NO_CONTENT)


class _Publisher:
    """Publishes messages at a rate, each when it is due however long those before took."""

    def __init__(self, setup: DeliverySetup, token: str, port: int, rate: int) -> None:
        self._setup = setup
        self._token = token
        self._port = port
        self._rate = rate
        self._published = 0

    async def publish(self, count: int, receiver: _Receiver, ahead_s: float = 0.0) -> list[float]:
        """Publish so many messages; return the milliseconds from when each was due until it arrived."""
        loop = asyncio.get_running_loop()
        first = self._published
        self._published += count
        idle: asyncio.Queue[Client] = asyncio.Queue()
        clients = [(await loop.create_connection(Client, "127.0.0.1", self._port))[1] for _ in range(_CONNECTIONS)]
        for client in clients:
            idle.put_nowait(client)
        began, began_at = time.perf_counter(), datetime.now(UTC)
        async with asyncio.TaskGroup() as group:
            for number in range(count):
                await asyncio.sleep(max(0.0, began + number / self._rate - time.perf_counter()))
                deliver_at = began_at + timedelta(seconds=number / self._rate + ahead_s) if ahead_s else None
                group.create_task(self._publish_one(idle, first + number, deliver_at))
        await receiver.wait_for(self._published)
        for client in clients:
            client.close()
        dues_s = [began + number / self._rate + ahead_s for number in range(count)]
        return [(receiver.arrived_s[first + number] - due_s) * 1e3 for number, due_s in enumerate(dues_s)]

    async def publish_later(self, count: int, receiver: _Receiver, ahead_s: float) -> list[float]:
        """Do so once the API has answered the first of these: it builds their routes by then."""
        await self.publish(1, receiver, ahead_s)
        return await self.publish(count, receiver, ahead_s)

    async def _publish_one(self, idle: "asyncio.Queue[Client]", number: int, deliver_at: datetime | None) -> None:
        client = await idle.get()
        payload = b'{"n":%d,"text":"%s"}' % (number, b"x" * (_BODY_BYTES - 60))
        status = await client.send(make_request(self._setup.application, self._token, payload, deliver_at=deliver_at))
        if status != 202:
            raise ConfigError(f"a message of the benchmark was answered {status}")
        idle.put_nowait(client)
