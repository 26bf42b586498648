"""Live messages between processes: told in a transaction, heard by whoever listens when it commits.

All of them travel on one channel of PostgreSQL, so that a process needs one connection for whatever it hears. They are
hints for screens that are being looked at, not events: who does not listen misses them, and so does everybody while a
connection is lost. PostgreSQL makes transactions that notify commit one after another; a live view bears that, the
hot path of events would not.
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
from boathook.observability.log import get_logger

CHANNEL: Final = "boathook_live"
MAX_BYTES: Final = 7_900
"""Of one message with its channel's name, as JSON; PostgreSQL carries less than 8,000."""
MAX_QUEUED: Final = 1_000
"""Messages that wait for one reader; of more, the oldest are dropped."""

_NOTIFY: Final = SqlFunction("pg_catalog.pg_notify", ("text", "text"))
_CHANNEL_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,100}")


class _Envelope(msgspec.Struct):
    c: str
    m: Any


_DECODER: Final = msgspec.json.Decoder(_Envelope)


def notify_call(channel: str, message: Any) -> SqlCall:
    """Return the call by which a transaction sends *message* to all subscribers of *channel*, when it commits.

    Raises:
        InvalidMessage: the channel's name is none, JSON cannot hold the message, or it is too large.
    """
    try:
        text = msgspec.json.encode(_Envelope(_check_channel(channel), message))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidMessage(f"live message on {channel}: the message must be what JSON can hold: {error}") from None
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
    """What one reader hears on one channel, as an endless asynchronous iterator; letting go of it ends it."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self._waiting: deque[Any] = deque(maxlen=MAX_QUEUED)
        self._has_messages = asyncio.Event()

    def put(self, message: Any) -> None:
        """Add what was told."""
        self._waiting.append(message)
        self._has_messages.set()

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Any:
        """Return the oldest message that was not read yet, waiting for one."""
        while not self._waiting:
            self._has_messages.clear()
            await self._has_messages.wait()
        return self._waiting.popleft()


class Subscriber:
    """What one process hears, on one connection that is made for its first reader, and made again when it is lost."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._listening: asyncio.Task[None] | None = None

    def subscribe(self, channel: str) -> Subscription:
        """Yield what is told on *channel* from now on, but for the moments in which a connection is being made.

        Raises:
            InvalidMessage: the channel's name is none.
        """
        hearing = Subscription(_check_channel(channel))
        self._subscriptions.add(hearing)
        if self._listening is None:
            self._listening = asyncio.create_task(
                self._database.listen(CHANNEL, self._on_notification), name="ear:listen"
            )
        return hearing

    def _on_notification(self, text: str) -> None:
        try:
            told = _DECODER.decode(text)
        except msgspec.DecodeError as error:
            get_logger("db").warning("live_message_unreadable", error=str(error))
            return
        for reader in self._subscriptions:
            if reader.channel == told.c:
                reader.put(told.m)
