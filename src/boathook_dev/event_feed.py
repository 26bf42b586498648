"""Reads accepted events for `boathook listen`, from a gateway or from the configured database."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from datetime import UTC, datetime
from typing import ClassVar, Final
from urllib.parse import urlencode
from uuid import UUID

import msgspec
from msgspec.structs import replace

from boathook.cli.context import open_database
from boathook.config import Settings
from boathook.domain import ids
from boathook.domain.errors import BoathookError, ConfigError, DatabaseError, FetchFailed
from boathook.domain.redaction import RedactedStruct
from boathook.service.database import with_stored_sources
from boathook.service.id_prefixes import complete
from boathook.service.operating.event_feed import OVERLAP, EventFeed, FeedEvent, FeedFilter, feed_start, to_feed_event
from boathook.service.remote import RemoteClient

PATH: Final = "/api/v1/listen"
_READ_TIMEOUT_S: Final = 30.0
"""The gateway sends a heartbeat every ten seconds."""
_RETRY_DELAYS_S: Final = (0.5, 1.0, 2.0, 5.0, 10.0)
_POLL_INTERVAL_S: Final = 0.5
_MAX_LINE_BYTES: Final = 32 * 1_048_576

MessageCallback = Callable[[str], None]


class GatewayAddress(RedactedStruct, frozen=True):
    """The URL and key of a remote gateway."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"key"})

    url: str
    key: str
    client: RemoteClient


class SeenEvents:
    """Remembers received events, to drop repeated ones."""

    def __init__(self) -> None:
        self.latest: UUID | None = None
        """The event with the highest id."""
        self._seen: dict[UUID, None] = {}

    def is_new(self, event: UUID) -> bool:
        """Return whether an event is new, and remember it."""
        if event in self._seen:
            return False
        self._seen[event] = None
        self.latest = event if self.latest is None else max(event, self.latest)
        self._drop_before(ids.created_at(self.latest) - 2 * OVERLAP)
        return True

    def _drop_before(self, before: datetime) -> None:
        # The first entry is old enough to count as the oldest, as events are out of order only within the overlap.
        first = ids.first_of(before)
        while (oldest := next(iter(self._seen))) < first:
            del self._seen[oldest]


async def from_gateway(
    gateway: GatewayAddress, event_filter: FeedFilter, since: datetime | None, say: MessageCallback
) -> AsyncGenerator[FeedEvent, None]:
    """Yield the events of a gateway, each once, and reconnect after a lost connection.

    Args:
        since: the start time; None for now.
        say: called with a message when the connection is lost and when it is back.

    Raises:
        ConfigError: the gateway rejects the request, or the first connection failed.
    """
    memory, tries, has_begun = SeenEvents(), 0, False
    while True:
        try:
            async for kind, data in _messages(gateway, _query(event_filter, since, memory.latest)):
                if kind == "started":
                    if tries and has_begun:
                        say("connected again; nothing was missed")
                    tries, has_begun = 0, True
                if kind == "event":
                    event = _read(data)
                    if memory.is_new(event.event_id):
                        yield event
                elif kind in {"started", "caught_up"}:
                    # After days without events, a reconnect must not request a longer time than a gateway allows.
                    since = datetime.fromisoformat(data)
            reason = "the gateway ended the connection"
        except FetchFailed as error:
            reason = str(error)
            if not has_begun or error.status in {400, 401, 403, 404, 422}:
                raise ConfigError(f"cannot listen to {gateway.url}{PATH}: {reason}{_hint(error)}") from None
        if tries == 0:
            say(f"connection lost: {reason}; reconnecting")
        await asyncio.sleep(_RETRY_DELAYS_S[min(tries, len(_RETRY_DELAYS_S) - 1)])
        tries += 1


def _hint(error: FetchFailed) -> str:
    match error.status:
        case 401 | 403:
            return "; --key must come from `boathook keys create --scope organization`"
        case 404:
            return "; check that --url is a boathook with the role console"
        case _:
            return ""


def _query(event_filter: FeedFilter, since: datetime | None, after: UUID | None) -> str:
    pairs = {
        "source": event_filter.source,
        "application": event_filter.application,
        "type": event_filter.type,
        "since": since and since.astimezone(UTC).isoformat().replace("+00:00", "Z"),
        "after": after and ids.show(ids.EVENT, after),
    }
    return urlencode({name: value for name, value in pairs.items() if value})


async def _messages(gateway: GatewayAddress, query: str) -> AsyncIterator[tuple[str, str]]:
    """Yield the event name and the data of each server-sent event."""
    headers = {"authorization": f"Bearer {gateway.key}", "accept": "text/event-stream"}
    url = f"{gateway.url}{PATH}" + (f"?{query}" if query else "")
    fields: dict[bytes, bytes] = {}
    async for line in _lines(gateway.client.stream(url, headers, quiet_s=_READ_TIMEOUT_S)):
        if line:
            name, _, value = line.partition(b":")
            fields[name] = value.strip()
            continue
        if b"data" in fields:
            yield fields.get(b"event", b"").decode(), fields[b"data"].decode()
        fields = {}


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    rest = bytearray()
    async for piece in pieces:
        rest += piece
        if b"\n" in piece:
            *whole, last = bytes(rest).split(b"\n")
            for line in whole:
                yield line
            rest = bytearray(last)
        elif len(rest) > _MAX_LINE_BYTES:
            raise FetchFailed("the response is not an event stream")


def _read(data: str) -> FeedEvent:
    try:
        return msgspec.json.decode(data, type=FeedEvent)
    except msgspec.MsgspecError as error:
        raise BoathookError(f"the gateway sent an invalid event: {error}") from None


async def from_database(
    settings: Settings, event_filter: FeedFilter, since: datetime | None, say: MessageCallback
) -> AsyncGenerator[FeedEvent, None]:
    """Yield the events of the configured database, each once.

    Raises:
        ConfigError: there is no database yet.
        DatabaseError: the first query failed.
    """
    async with open_database(settings, purpose="listen") as database:
        settings = await with_stored_sources(settings, database)
        if event_filter.application is not None:
            whole = await complete(database, ids.APPLICATION, event_filter.application)
            event_filter = replace(event_filter, application=whole)
        tail = EventFeed(database, event_filter, feed_start(datetime.now(UTC), since, None))
        is_away, has_begun = False, False
        while True:
            try:
                events, has_more = await tail.poll(datetime.now(UTC))
            except DatabaseError as error:
                if not has_begun:
                    raise
                if not is_away:
                    say(f"PostgreSQL is unavailable: {error}; retrying")
                is_away, events, has_more = True, [], False
            else:
                if is_away:
                    say("PostgreSQL is back; nothing was missed")
                is_away, has_begun = False, True
            for event in events:
                yield to_feed_event(settings, event)
            if not has_more:
                await asyncio.sleep(_POLL_INTERVAL_S)
