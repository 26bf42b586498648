"""Notifies senders and workers of due deliveries through RabbitMQ.

A message names recipients, each with the time at which it has something due; only PostgreSQL stores which deliveries
these are. So a message that is lost, doubled or late harms nothing: its receiver queries PostgreSQL. Publishers do not
rely on it either: what is not confirmed in time, they announce through PostgreSQL instead.
"""

import asyncio
import contextlib
import math
import random
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from typing import Final

import msgspec

from boathook.config import Settings
from boathook.domain.due import ANY_RECIPIENT, Announce, DueRecipient, Receive, RecipientKind
from boathook.observability import meters
from boathook.observability.log import get_logger
from boathook_rabbitmq.access import BrokerAccess, read_access
from boathook_rabbitmq.connection import BrokerConnection, first_connection
from boathook_rabbitmq.errors import BrokerRefused, BrokerUnavailable
from boathook_rabbitmq.queues import (
    DELAY_SLACK_S,
    DELAYS_S,
    DUE_ENDPOINTS,
    DUE_HANDLERS,
    LANE_QUEUES,
    arguments_of,
    queue_for,
)
from boathook_rabbitmq.settings import brokers_of

MAX_NAMES: Final = 256
"""Maximum recipients of one message; other processes share the next ones."""
_MAX_RECIPIENT: Final = 512
_MAX_BYTES: Final = 1 << 20
_MAX_WAITING: Final = 100_000
"""Maximum recipients that wait to be published."""
_RESOLUTION_S: Final = 0.1
_PREFETCH: Final = 32
_PUBLISH_INTERVAL_S: Final = 0.005
_NEXT_S: Final = 60.0
_RECONNECT_S: Final = (0.1, 0.5, 1.0, 2.0)
_DECODER: Final = msgspec.json.Decoder(list[DueRecipient])
_LOG = get_logger("lane")


def open_lane(settings: Settings, kind: RecipientKind | None, now: Callable[[], float] = time.time) -> "DueLane":
    """Return the lane of an installation; see `boathook.domain.due.OpenNotifier`. Raises ConfigError."""
    queue = "" if kind is None else {"endpoints": DUE_ENDPOINTS, "handlers": DUE_HANDLERS}[kind]
    return DueLane(read_access(settings), confirm_s=brokers_of(settings).confirm_s, queue=queue, now=now)


def decode(body: bytes) -> list[DueRecipient]:
    """Return the recipients that a message names. Raises ValueError if it is not a valid message of the lane."""
    if len(body) > _MAX_BYTES:
        raise ValueError("the message is too large for the delivery lane")
    recipients = _DECODER.decode(body)
    if len(recipients) > MAX_NAMES or not all(
        0 < len(name) <= _MAX_RECIPIENT and name.isprintable() for name, _ in recipients
    ):
        raise ValueError("the message does not belong to the delivery lane")
    return recipients


class DueLane:
    """Publishes to the lane's queues, and receives from one of them.

    Args:
        access: the brokers.
        confirm_s: seconds a message may take to be confirmed.
        queue: the queue to receive from; empty only publishes.
        now: PostgreSQL's clock, in seconds since 1970.
    """

    def __init__(
        self, access: BrokerAccess, *, confirm_s: float, queue: str = "", now: Callable[[], float] = time.time
    ) -> None:
        self._now = now
        self._access = access
        self._confirm_s = confirm_s
        self._queue = queue
        self._connection: BrokerConnection | None = None
        self._failed_host = ""
        self._is_declared = False
        self._failure: asyncio.Future[None] | None = None
        """Gets the error of the open connection."""
        self._waiting: dict[str, set[DueRecipient]] = defaultdict(set)
        """Recipients passed to `put`, by queue."""
        self._has_waiting = asyncio.Event()
        self._problem = "no broker has been reached yet"

    @property
    def is_available(self) -> bool:
        """Whether brokers confirm messages, and none are known to be lost."""
        return not self._problem

    @property
    def min_wait_s(self) -> float:
        """The shortest time until a delivery is due that has a queue."""
        return DELAYS_S[0] - DELAY_SLACK_S

    async def announce(self, notify: Announce, due: Collection[DueRecipient]) -> None:
        """Publish recipients with due deliveries, what is due later to delay queues.

        Call *notify* for what names no recipient, and for all if brokers are unavailable.
        """
        unnamed = [recipient for recipient in due if recipient[0] == ANY_RECIPIENT]
        if self.is_available:
            by_queue: dict[str, list[DueRecipient]] = defaultdict(list)
            for recipient, due_at in due:
                if recipient != ANY_RECIPIENT:
                    by_queue[queue_for(recipient, due_at - self._now())].append((recipient, due_at))
            with contextlib.suppress(BrokerUnavailable):
                for queue, names in by_queue.items():
                    await self._publish(queue, names)
                due = unnamed
        if due:
            await notify(due)

    def put(self, recipient: str, due_at: float, wait_s: float) -> None:
        """Name a recipient that has a delivery due in *wait_s*, once it is due; drop it if that is not possible."""
        waiting = self._waiting[queue_for(recipient, wait_s)]
        if self.is_available and len(waiting) < _MAX_WAITING:
            # Of many retries, those that are due at about the same time share a name.
            waiting.add((recipient, math.ceil(due_at / _RESOLUTION_S) * _RESOLUTION_S))
            self._has_waiting.set()

    async def run(self, receive: Receive = lambda _: None) -> None:
        """Stay connected until cancelled, and call *receive* with the recipients that a message names.

        It is called with none after connecting and disconnecting, because messages may have been missed.
        """
        meters.gauge("boathook_due_lane_unavailable", 1)
        tries = 0
        while True:
            try:
                await self._connect()
                tries = 0
                receive(())
                try:
                    await self._serve(receive)
                finally:
                    receive(())
            except BrokerUnavailable as error:
                self._set_unavailable(str(error))
            except Exception as error:  # noqa: BLE001 - deliveries do not depend on the lane, whatever happens to it
                _LOG.error("due_lane_failed", exc_info=error)
                self._set_unavailable(str(error) or type(error).__name__)
            finally:
                await self._disconnect()
            await asyncio.sleep(_RECONNECT_S[min(tries, len(_RECONNECT_S) - 1)] * random.uniform(0.5, 1))
            tries += 1

    async def _connect(self) -> None:
        connection = self._connection = await first_connection(
            self._access, purpose="delivery lane", avoid=self._failed_host
        )
        failure = self._failure = asyncio.get_running_loop().create_future()
        connection.on_close = lambda: _fail(failure, BrokerUnavailable(f"{connection.host} has closed the connection"))
        if not self._is_declared:
            for queue in LANE_QUEUES:
                await connection.declare(queue, arguments_of(queue, connection.server_version))
            self._is_declared = True
        # Only a confirmation shows that a queue has a leader and a majority, and that the broker is not blocked.
        for queue in (DUE_ENDPOINTS, DUE_HANDLERS):
            await connection.publish(queue, b"[]", self._confirm_s)
        if self._queue:
            await connection.consume([self._queue], _PREFETCH)
        self._problem = self._failed_host = ""
        meters.gauge("boathook_due_lane_unavailable", 0)
        _LOG.info("due_lane_connected", host=connection.host)

    async def _serve(self, receive: Receive) -> None:
        """Publish and receive until the connection fails."""
        assert self._connection is not None
        assert self._failure is not None
        tasks = [asyncio.create_task(self._publish_waiting())]
        if self._queue:
            tasks.append(asyncio.create_task(self._receive(self._connection, receive)))
        try:
            finished_tasks, _ = await asyncio.wait([self._failure, *tasks], return_when=asyncio.FIRST_COMPLETED)
            for finished_task in finished_tasks:
                finished_task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _receive(self, connection: BrokerConnection, receive: Receive) -> None:
        while True:
            message = await connection.next(_NEXT_S)
            if message is None:
                continue
            try:
                recipients = decode(message.body)
            except ValueError:
                meters.count("boathook_due_lane_messages_total", outcome="unreadable")
                _LOG.warning("due_message_unreadable", queue=message.queue, bytes=len(message.body))
            else:
                meters.count("boathook_due_lane_messages_total", outcome="received")
                if recipients:
                    receive(recipients)
            await connection.acknowledge(message)

    async def _publish_waiting(self) -> None:
        while True:
            await self._has_waiting.wait()
            self._has_waiting.clear()
            waiting, self._waiting = self._waiting, defaultdict(set)
            for queue, due in waiting.items():
                with contextlib.suppress(BrokerRefused):  # the walk finds what a full delay queue does not take
                    await self._publish(queue, list(due))
            await asyncio.sleep(_PUBLISH_INTERVAL_S)

    async def _publish(self, queue: str, due: Sequence[DueRecipient]) -> None:
        """Publish the names of recipients.

        Raises:
            BrokerRefused: the queue is full.
            BrokerUnavailable: the connection failed, and is used no more.
        """
        for first in range(0, len(due), MAX_NAMES):
            names = due[first : first + MAX_NAMES]
            try:
                if self._connection is None:
                    raise BrokerUnavailable(self._problem)
                await self._connection.publish(queue, msgspec.json.encode(names), self._confirm_s)
            except BrokerRefused:
                meters.count("boathook_due_lane_messages_total", outcome="failed")
                raise
            except BrokerUnavailable as error:
                meters.count("boathook_due_lane_messages_total", outcome="failed")
                self._set_unavailable(str(error))
                _fail(self._failure, error)
                raise
            meters.count("boathook_due_lane_messages_total", outcome="published")

    def _set_unavailable(self, problem: str) -> None:
        if problem != self._problem:
            _LOG.warning("due_lane_unavailable", error=problem, note="until then PostgreSQL notifies of due deliveries")
        self._problem = problem
        self._waiting.clear()
        meters.gauge("boathook_due_lane_unavailable", 1)

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            self._failed_host = connection.host
            connection.on_close = None
            await connection.close()


def _fail(failure: "asyncio.Future[None] | None", error: BrokerUnavailable) -> None:
    if failure is not None and not failure.done():
        failure.set_exception(error)
        failure.exception()  # it may not be awaited any more
