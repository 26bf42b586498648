"""A RabbitMQ broker in virtual time, as the delivery lane uses it: queues, and delays that lead to them."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any, cast

from boathook_rabbitmq.connection import BrokerConnection, Delivery
from boathook_rabbitmq.queues import Arguments
from tests.simulation.loop import VirtualLoop


class FakeBroker:
    """A broker that loses nothing."""

    def __init__(self, loop: VirtualLoop) -> None:
        self.published: list[str] = []
        """The queue of each message that names a recipient, in order."""
        self._loop = loop
        self._arguments: dict[str, Arguments] = {}
        self._queues: defaultdict[str, asyncio.Queue[bytes]] = defaultdict(asyncio.Queue)

    async def connect(self, _access: object, *, purpose: str, avoid: str = "") -> BrokerConnection:
        return cast("BrokerConnection", FakeConnection(self))

    def declare(self, queue: str, arguments: Arguments) -> None:
        self._arguments[queue] = arguments

    def put(self, queue: str, body: bytes) -> None:
        """Put a message into a queue; from a delay queue it moves on once it has expired."""
        arguments = self._arguments[queue]
        target = arguments.get("x-dead-letter-routing-key")
        if target is None:
            self._queues[queue].put_nowait(body)
        else:
            wait_s = float(arguments["x-message-ttl"]) / 1000
            self._loop.call_later(wait_s, self.put, str(target), body, context=self._loop.world.context)

    async def take(self, queue: str) -> bytes:
        return await self._queues[queue].get()


class FakeConnection:
    """One connection, which never fails."""

    host = "mq.example:5672"
    server_version = (4, 0, 5)

    def __init__(self, broker: FakeBroker) -> None:
        self.on_close: Callable[[], None] | None = None
        self._broker = broker
        self._queue = ""

    async def declare(self, queue: str, arguments: Arguments) -> None:
        self._broker.declare(queue, arguments)

    async def publish(self, queue: str, body: bytes, _within_s: float) -> None:
        await asyncio.sleep(0.001)
        if body != b"[]":
            self._broker.published.append(queue)
        self._broker.put(queue, body)

    async def consume(self, queues: Sequence[str], _prefetch: int) -> None:
        (self._queue,) = queues

    async def next(self, _within_s: float) -> Delivery:
        return Delivery(self._queue, await self._broker.take(self._queue), cast("Any", None))

    async def acknowledge(self, _delivery: Delivery) -> None:
        return

    async def close(self) -> None:
        return
