"""Live messages between processes: sent in a transaction, and received by subscribers when it commits.

All messages use one PostgreSQL channel, so that a process needs one connection for all its subscriptions. They are
hints for live views, not events: processes that are not subscribed miss them, and so do all while a connection is lost.
PostgreSQL serializes the commits of transactions that notify; a live view tolerates that, the hot path of events would
not.
"""

import asyncio
import re
from collections import deque
from typing import Any, Final, Self
from weakref import WeakSet

import msgspec

from boathook.db.database import Database
from boathook.db.sql_functions import SqlCall, SqlFunction
from boathook.domain.errors import InvalidMessage
from boathook.domain.json_document import encode
from boathook.observability.log import get_logger

CHANNEL: Final = "boathook_live"
MAX_BYTES: Final = 7_900
"""Size limit of one message with its channel name, as JSON; PostgreSQL allows less than 8,000 bytes."""
MAX_QUEUED: Final = 1_000
"""Messages queued for one reader; beyond that, the oldest are dropped."""

_NOTIFY: Final = SqlFunction("pg_catalog.pg_notify", ("text", "text"))
_CHANNEL_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,100}")


class _Envelope(msgspec.Struct):
    c: str
    m: Any


_DECODER: Final = msgspec.json.Decoder(_Envelope)


def notify_call(channel: str, message: Any) -> SqlCall:
    """Return the call by which a transaction sends *message* to all subscribers of *channel* when it commits.

    Raises:
        InvalidMessage: the channel name is invalid, the message cannot be encoded as JSON, or it is too large.
    """
    try:
        text = b'{"c":%s,"m":%s}' % (msgspec.json.encode(_check_channel(channel)), encode(message))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidMessage(f"live message on {channel}: the message must be valid as JSON: {error}") from None
    if len(text) > MAX_BYTES:
        raise InvalidMessage(
            f"live message on {channel}: the message is {len(text):,} bytes of JSON, more than {MAX_BYTES:,}; "
            "send an id, and let readers fetch the rest"
        )
    return _NOTIFY, (CHANNEL, text.decode())


def _check_channel(channel: str) -> str:
    if not _CHANNEL_NAME.fullmatch(channel):
        raise InvalidMessage(
            f"the channel {channel!r} must be named by 1 to 100 letters, digits and _ . : / -, such as fleet.cars"
        )
    return channel


class Subscription:
    """The messages of one channel for one reader, as an endless asynchronous iterator; dropping it unsubscribes."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self._waiting: deque[Any] = deque(maxlen=MAX_QUEUED)
        self._has_messages = asyncio.Event()

    def put(self, message: Any) -> None:
        """Queue a message."""
        self._waiting.append(message)
        self._has_messages.set()

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Any:
        """Return the oldest unread message, waiting for one if there is none."""
        while not self._waiting:
            self._has_messages.clear()
            await self._has_messages.wait()
        return self._waiting.popleft()


class Subscriber:
    """The subscriptions of one process, on one connection, opened for the first reader and reopened when lost."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._listening: asyncio.Task[None] | None = None

    def subscribe(self, channel: str) -> Subscription:
        """Subscribe to *channel*; messages sent while the connection is being opened are missed.

        Raises:
            InvalidMessage: the channel name is invalid.
        """
        subscription = Subscription(_check_channel(channel))
        self._subscriptions.add(subscription)
        if self._listening is None:
            self._listening = asyncio.create_task(
                self._database.listen(CHANNEL, self._on_notification), name="ear:listen"
            )
        return subscription

    def _on_notification(self, text: str) -> None:
        try:
            envelope = _DECODER.decode(text)
        except msgspec.DecodeError as error:
            get_logger("db").warning("live_message_unreadable", error=str(error))
            return
        for reader in self._subscriptions:
            if reader.channel == envelope.c:
                reader.put(envelope.m)
