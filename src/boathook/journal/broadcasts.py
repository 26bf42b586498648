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

from boathook.domain.errors import InvalidMessage
from boathook.journal.calls import Call, Step
from boathook.journal.database import Database
from boathook.telemetry.log import get_logger

CHANNEL: Final = "boathook_live"
MOST_BYTES: Final = 7_900
"""Of one message with its channel's name, as JSON; PostgreSQL carries less than 8,000."""
MOST_KEPT: Final = 1_000
"""Messages that wait for one reader; of more, the oldest are dropped."""

_TELL: Final = Call("pg_catalog.pg_notify", ("text", "text"))
_NAME: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,100}")


class _Told(msgspec.Struct):
    c: str
    m: Any


_DECODER: Final = msgspec.json.Decoder(_Told)


def tell(channel: str, message: Any) -> Step:
    """Return the call by which a transaction tells *message* to all who hear *channel*, when it commits.

    Raises:
        InvalidMessage: the channel's name is none, JSON cannot hold the message, or it is too large.
    """
    try:
        text = msgspec.json.encode(_Told(_checked(channel), message))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidMessage(f"broadcast on {channel}: the message must be what JSON can hold: {error}") from None
    if len(text) > MOST_BYTES:
        raise InvalidMessage(
            f"broadcast on {channel}: the message is {len(text):,} bytes of JSON, more than {MOST_BYTES:,}; "
            "send an id, and let readers fetch the rest"
        )
    return _TELL, (CHANNEL, text.decode())


def _checked(channel: str) -> str:
    if not _NAME.fullmatch(channel):
        raise InvalidMessage(
            f"the channel {channel!r} must be named by 1 to 100 letters, digits and _ . : / -, such as fleet.cars"
        )
    return channel


class Hearing:
    """What one reader hears on one channel, as an endless asynchronous iterator; letting go of it ends it."""

    def __init__(self, channel: str) -> None:
        self.channel = channel
        self._waiting: deque[Any] = deque(maxlen=MOST_KEPT)
        self._is_some = asyncio.Event()

    def put(self, message: Any) -> None:
        """Add what was told."""
        self._waiting.append(message)
        self._is_some.set()

    def __aiter__(self) -> Self:
        """Return itself."""
        return self

    async def __anext__(self) -> Any:
        """Return the oldest message that was not read yet, waiting for one."""
        while not self._waiting:
            self._is_some.clear()
            await self._is_some.wait()
        return self._waiting.popleft()


class Ear:
    """What one process hears, on one connection that is made for its first reader, and made again when it is lost."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._readers: WeakSet[Hearing] = WeakSet()
        self._listening: asyncio.Task[None] | None = None

    def hear(self, channel: str) -> Hearing:
        """Yield what is told on *channel* from now on, but for the moments in which a connection is being made.

        Raises:
            InvalidMessage: the channel's name is none.
        """
        hearing = Hearing(_checked(channel))
        self._readers.add(hearing)
        if self._listening is None:
            self._listening = asyncio.create_task(self._database.listen(CHANNEL, self._heard), name="ear:listen")
        return hearing

    def _heard(self, text: str) -> None:
        try:
            told = _DECODER.decode(text)
        except msgspec.DecodeError as error:
            get_logger("journal").warning("broadcast_unreadable", error=str(error))
            return
        for reader in self._readers:
            if reader.channel == told.c:
                reader.put(told.m)
