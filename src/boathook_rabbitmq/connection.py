"""One connection to a RabbitMQ host, with a deadline on every call.

A host that was cut off from the network closes no connection, and a broker that is short of memory stops reading
without an error. So no call waits for the library: each runs in a task of its own, which is abandoned at the deadline.
After its first error a connection is used no more. Its owner opens another one, to another host first. The library's
own reconnection is not used, because a publish waits in it without a limit.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final, Self, TypeVar

import aio_pika
import msgspec
from aio_pika.abc import AbstractIncomingMessage
from aio_pika.exceptions import CONNECTION_EXCEPTIONS, ChannelNotFoundEntity, ChannelPreconditionFailed, DeliveryError

from boathook_rabbitmq.access import BrokerAccess
from boathook_rabbitmq.errors import BrokerMisconfigured, BrokerRefused, BrokerUnavailable
from boathook_rabbitmq.queues import Arguments

T = TypeVar("T")

HEARTBEAT_S: Final = 2
"""The broker drops a client that was silent for two of these, and so gives its messages to the next one."""
_CLOSE_S: Final = 2.0
_abandoned: set[asyncio.Future[Any]] = set()
"""Calls that were given up, kept until they end."""

# The errors that it logs are raised too, and logged where they are handled.
for _name in ("aio_pika", "aiormq"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class Delivery(msgspec.Struct, frozen=True):
    """One message that waits for its acknowledgement."""

    queue: str
    body: bytes
    message: AbstractIncomingMessage


class BrokerConnection:
    """An open connection with one channel; `open` makes it.

    Args:
        connection: the library's connection.
        channel: its channel, with confirms.
        host: where it leads, for messages.
        timeout_s: deadline of calls that name no other.
    """

    def __init__(self, connection: Any, channel: Any, host: str, timeout_s: float) -> None:
        self._connection = connection
        self._channel = channel
        self._timeout_s = timeout_s
        self._deliveries: asyncio.Queue[Delivery | None] = asyncio.Queue()
        self._is_closed = False
        self.host = host
        """The address and port of the broker."""
        self.on_close: Callable[[], None] | None = None
        """Called once the connection, the channel or a consumer has ended."""
        self.server_version: tuple[int, ...] = (0,)

    @classmethod
    async def open(cls, access: BrokerAccess, host: tuple[str, int], *, purpose: str) -> Self:
        """Connect to one host, as *purpose* in the broker's list of connections.

        Raises:
            BrokerUnavailable: it does not answer in time.
            BrokerMisconfigured: it refuses the user, the password or the vhost.
        """
        address = f"{host[0]}:{host[1]}"
        connection = await _bounded(
            aio_pika.connect(
                host=host[0],
                port=host[1],
                login=access.user,
                password=access.password,
                virtualhost=access.vhost,
                ssl=access.tls is not None,
                ssl_context=access.tls,
                heartbeat=HEARTBEAT_S,
                client_properties={"connection_name": f"boathook {purpose}"},
            ),
            access.timeout_s,
            f"{address} accepted the connection",
        )
        try:
            channel = connection.channel(publisher_confirms=True, on_return_raises=True)
            await _bounded(channel.initialize(), access.timeout_s, f"{address} opened a channel")
            opened = cls(connection, channel, address, access.timeout_s)
            await opened._watch()
        except BaseException:
            _abandon(asyncio.ensure_future(connection.close()))
            raise
        return opened

    async def _watch(self) -> None:
        """Note when the connection, the channel or a consumer ends."""
        self._connection.close_callbacks.add(self._on_end)
        self._channel.close_callbacks.add(self._on_end)
        channel = await self._channel.get_underlay_channel()
        channel.on_consumer_cancel_callbacks.add(self._on_end)
        properties = channel.connection.server_properties
        self.server_version = _version(str(properties.get("version", "0")))

    @property
    def is_closed(self) -> bool:
        """Whether the connection, its channel or a consumer has ended."""
        return self._is_closed

    async def declare(self, queue: str, arguments: Arguments) -> None:
        """Create a queue, or verify that it has these arguments.

        Raises:
            BrokerMisconfigured: it exists with other arguments.
            BrokerUnavailable: the broker does not answer in time.
        """
        await self._call(
            self._channel.declare_queue(queue, durable=True, arguments=dict(arguments)), f"declared {queue}"
        )

    async def find(self, queue: str) -> int:
        """Return how many messages of an existing queue are ready; 0 may also mean that the queue has no majority.

        Raises:
            BrokerMisconfigured: there is no such queue.
            BrokerUnavailable: the broker does not answer in time.
        """
        declared = await self._call(self._channel.declare_queue(queue, passive=True), f"found {queue}")
        return int(declared.declaration_result.message_count)

    async def publish(self, queue: str, body: bytes, within_s: float) -> None:
        """Publish one message; return once a majority of the queue's members has synced it to disk.

        Raises:
            BrokerUnavailable: the broker did not confirm it in time, or refuses it, for example because the queue is
                full. Whether it has the message is unknown.
        """
        message = aio_pika.Message(body, delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
        publishing = self._channel.default_exchange.publish(message, routing_key=queue, mandatory=True)
        await self._call(publishing, f"confirmed a message for {queue}", within_s)

    async def consume(self, queues: Sequence[str], prefetch: int) -> None:
        """Receive messages of queues, for `next`.

        Args:
            queues: the queues.
            prefetch: maximum number of unacknowledged messages of each queue.

        Raises:
            BrokerUnavailable: the broker does not answer in time.
        """
        await self._call(self._channel.set_qos(prefetch_count=prefetch), "set the prefetch count")
        for name in queues:
            queue = await self._call(self._channel.get_queue(name, ensure=False), f"found {name}")

            async def receive(message: AbstractIncomingMessage, name: str = name) -> None:
                self._deliveries.put_nowait(Delivery(name, message.body, message))

            await self._call(queue.consume(receive, timeout=None), f"started to deliver {name}")

    async def next(self, within_s: float) -> Delivery | None:
        """Return the next message, or None if there is none within *within_s*.

        Raises:
            BrokerUnavailable: the connection or a consumer has ended.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                delivery = await self._deliveries.get()
                if delivery is not None:
                    return delivery
        if self.is_closed:
            raise BrokerUnavailable(f"{self.host} has closed the connection")
        return None

    def next_ready(self) -> Delivery | None:
        """Return the next message if it has been received already."""
        with contextlib.suppress(asyncio.QueueEmpty):
            return self._deliveries.get_nowait()
        return None

    async def get(self, queue: str) -> Delivery | None:
        """Return the oldest message of a queue, to be acknowledged; None if it is empty. Raises BrokerUnavailable."""
        queue_object = await self._call(self._channel.get_queue(queue, ensure=False), f"found {queue}")
        message = await self._call(queue_object.get(fail=False), f"gave a message of {queue}")
        return None if message is None else Delivery(queue, message.body, message)

    async def acknowledge(self, delivery: Delivery) -> None:
        """Let the broker delete a message. Raises BrokerUnavailable; then it is delivered again."""
        await self._call(delivery.message.ack(), "took an acknowledgement")

    async def close(self) -> None:
        """Close the connection; unacknowledged messages go back to their queues."""
        self._on_end()
        with contextlib.suppress(BrokerUnavailable):
            await _bounded(self._connection.close(), _CLOSE_S, "closed the connection")

    async def _call(self, call: Coroutine[Any, Any, T], action: str, within_s: float | None = None) -> T:
        if self.is_closed:
            call.close()
            raise BrokerUnavailable(f"{self.host} has closed the connection")
        return await _bounded(call, self._timeout_s if within_s is None else within_s, f"{self.host} {action}")

    def _on_end(self, *_: object) -> None:
        self._is_closed = True
        self._deliveries.put_nowait(None)
        if self.on_close is not None:
            self.on_close()


async def _bounded(call: Coroutine[Any, Any, T], within_s: float, action: str) -> T:
    """Return the result of a call of the library; abandon it at the deadline, even if it does not let itself cancel.

    Args:
        call: the call.
        within_s: the deadline, in seconds.
        action: what the broker would have done, such as "mq1:5672 opened a channel".

    Raises:
        BrokerUnavailable: it took too long, or the connection failed.
        BrokerMisconfigured: the broker refuses it, and will until its configuration changes.
    """
    task = asyncio.ensure_future(call)
    try:
        await asyncio.wait([task], timeout=within_s)
    except asyncio.CancelledError:
        _abandon(task)
        raise
    if not task.done():
        _abandon(task)
        raise BrokerUnavailable(f"it took longer than {within_s:g} s until {action}")
    try:
        return task.result()
    except asyncio.CancelledError:
        raise BrokerUnavailable(f"the connection ended before {action}") from None
    except (ChannelPreconditionFailed, ChannelNotFoundEntity) as error:
        raise BrokerMisconfigured(f"before {action}: {_reason(error)}") from None
    except aio_pika.exceptions.ProbableAuthenticationError as error:
        raise BrokerMisconfigured(f"before {action}: {_reason(error)}; check buffer.user and buffer.password") from None
    except DeliveryError as error:
        raise BrokerRefused(f"the broker refused a message: {_reason(error)}") from None
    except CONNECTION_EXCEPTIONS as error:
        reason = _reason(error)
        if (
            "Connection.OpenOk" in reason or "NOT_ALLOWED" in reason
        ):  # the library hides what the broker says of a vhost
            fix = "check buffer.vhost, and the permissions of buffer.user"
            raise BrokerMisconfigured(f"before {action}: the broker refused the vhost; {fix}") from None
        raise BrokerUnavailable(f"the connection failed before {action}: {reason}") from None
    except Exception as error:
        raise BrokerUnavailable(f"the connection failed before {action}: {_reason(error)}") from error


def _reason(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _abandon(task: "asyncio.Future[Any]") -> None:
    task.cancel()
    _abandoned.add(task)
    task.add_done_callback(_forget)


def _forget(task: "asyncio.Future[Any]") -> None:
    _abandoned.discard(task)
    if not task.cancelled():
        task.exception()


def _version(text: str) -> tuple[int, ...]:
    """Return a version such as 3.10.8 as numbers; what cannot be read counts as 0."""
    return tuple(int(part) if part.isdecimal() else 0 for part in text.split("+", maxsplit=1)[0].split("."))


async def first_connection(access: BrokerAccess, *, purpose: str, avoid: str = "") -> BrokerConnection:
    """Connect to the first host that answers, in random order, so that connections spread over the cluster.

    Args:
        access: the cluster.
        purpose: what the connection is for.
        avoid: the host that failed last, as `BrokerConnection.host`; it is tried after the others.

    Raises:
        BrokerUnavailable: none answers; the message has the reason of each.
        BrokerMisconfigured: no node accepts the connection, and one rejects it permanently.
    """
    hosts = random.sample(access.hosts, len(access.hosts))
    hosts.sort(key=lambda host: f"{host[0]}:{host[1]}" == avoid)
    failures: list[BrokerUnavailable] = []
    for host in hosts:
        try:
            return await BrokerConnection.open(access, host, purpose=purpose)
        except BrokerUnavailable as error:
            failures.append(error)
    for failure in failures:
        if isinstance(failure, BrokerMisconfigured):
            raise failure
    raise BrokerUnavailable("; ".join(str(failure) for failure in failures))
