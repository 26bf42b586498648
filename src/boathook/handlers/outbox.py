"""Publishes messages: stores a message and its deliveries in the publisher's transaction.

Messages are routed in memory, by routes that were read through the publisher's own session. So publishing needs no
connection of its own and no set-up, in a worker or elsewhere. When PostgreSQL stores the
message, it rejects outdated routes. So every endpoint that existed before the call receives the message.

A message to an application that has moved to another installation is stored with one delivery, which passes it on.
"""

import hashlib
import re
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Generator, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Self, assert_never
from uuid import UUID

import msgspec

from boathook.config import RetentionSettings
from boathook.db.route_registry import Routing, decode_routing
from boathook.db.sql_functions import PUBLISH_MESSAGE, REPLICATE, REPLICATE_ARGUMENTS, ROUTES_FOR, SqlCall
from boathook.domain import ids
from boathook.domain.due import due_recipients
from boathook.domain.endpoints import check_channels, check_tags
from boathook.domain.errors import (
    ApplicationNotFound,
    DatabaseError,
    DuplicateMessage,
    InvalidMessage,
    RoutesChanged,
    ServedElsewhere,
    TooManyDeliveries,
)
from boathook.domain.filters import Router
from boathook.domain.ids import message_key
from boathook.domain.json_document import encode
from boathook.domain.messages import Message, check_message, check_printable
from boathook.domain.model import (
    MAX_DELIVERIES,
    Accepted,
    Claim,
    Duplicate,
    IdempotencyConflict,
    IdempotencyKey,
    IdempotentReplay,
    NewDelivery,
    Published,
    Receipt,
)
from boathook.handlers.causes import current_cause
from boathook.handlers.collector import add_due
from boathook.handlers.sessions import call, call_sync
from boathook.observability import meters, tracer

_MEMORY_DAYS: Final = 90.0
"""The default retention of events in days."""
IDEMPOTENCY_DAYS: Final = 1.0
"""Days for which the idempotency key of a message without its own id is stored."""
_MAX_ROUNDS: Final = 5
MAX_ROUTES: Final = 100_000
"""Maximum number of compiled routes in memory, over all applications."""
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")


class Draft(msgspec.Struct, frozen=True):
    """A validated message, ready to be routed and stored."""

    message: Message
    id: UUID
    dedup_key: str
    replay_key: UUID | None
    memory_days: float
    """How long its keys are stored."""
    headers: Mapping[str, str]
    content_type: str
    channels: tuple[str, ...]
    tags: tuple[str, ...]
    body: bytes
    began_ns: int
    cause: Claim | None = None
    """The delivery whose handler publishes it."""


class CompiledRoutes(msgspec.Struct, frozen=True):
    """The compiled routes of one application."""

    routing: Routing
    router: Router
    name: str
    """The name under which its events are stored."""
    uid: str | None
    """The given name if it is a uid or an imported id, which another application can take over; None for an id."""

    @property
    def home(self) -> str | None:
        """The installation that the application has moved to; None if it is here."""
        return None if self.routing.application is None else self.routing.application.home

    def recipients(self, draft: Draft) -> tuple[NewDelivery, ...]:
        """Return the deliveries of *draft*. Raises InvalidMessage and TooManyDeliveries."""
        check_message(draft.message, is_for_application=self.routing.application is not None)
        return self.route(draft.message.type, draft.headers, draft.body, draft.channels)

    def route(
        self, type: str, headers: Mapping[str, str], body: bytes, channels: tuple[str, ...]
    ) -> tuple[NewDelivery, ...]:
        """Return the deliveries of a message with these values. Raises TooManyDeliveries."""
        deliveries = self.router.route(
            source=None, application=self.name, type=type, headers=headers, body=body, channels=channels
        )
        if len(deliveries) > MAX_DELIVERIES:
            raise TooManyDeliveries(f"message matches {len(deliveries)} recipients; the maximum is {MAX_DELIVERIES}")
        return deliveries

    def due(self, draft: Draft) -> datetime | None:
        """Return when the deliveries of *draft* are due; None is at once."""
        # Its home gets the message at once: until it is due, it is looked for there.
        return None if self.home else draft.message.deliver_at

    def arguments(self, draft: Draft, deliveries: Sequence[NewDelivery]) -> tuple[str, str, str]:
        """Return the arguments of `PUBLISH_MESSAGE`."""
        message, application = draft.message, self.routing.application
        row = {
            "id": draft.id,
            "organization": message.organization,
            "type": message.type,
            "origin": message.origin,
            "dedup_key": draft.dedup_key,
            "replay_key": draft.replay_key,
            "request_sha256": message.request_sha256 and "\\x" + message.request_sha256.hex(),
            "memory": f"{draft.memory_days} days",
            "headers": draft.headers,
            "content_type": draft.content_type,
            "channels": draft.channels or None,
            "tags": draft.tags or None,
            "deliver_at": message.deliver_at,
            "due": self.due(draft),
            "content_until": message.content_until,
            "application": application and application.id,
            "uid": self.uid,
            "name": self.name,
            "registry": self.routing.registry,
            "routes": application and application.version,
            "key": message_key(self.name, draft.dedup_key),
        }
        if draft.cause is not None:
            row |= {"cause_id": draft.cause.event_id, "cause_ordinal": draft.cause.ordinal}
        return _text(row), "\\x" + draft.body.hex(), _text(deliveries)


class Outbox:
    """Publishes messages with cached routes, and reloads the routes when they are outdated."""

    def __init__(self, *, memory_days: float = _MEMORY_DAYS) -> None:
        """Remember messages with their own id for *memory_days*."""
        self._memory_days = memory_days
        self._route_cache = _RouteCache()
        self.published = 0
        """Messages stored so far; their transactions may still roll back."""

    @classmethod
    def of(cls, retention: RetentionSettings) -> Self:
        """Return one that remembers messages as long as their events are stored, and dedup keys at the least."""
        return cls(memory_days=max(retention.events_days, retention.dedup_days))

    async def publish(self, session: Any, message: Message, *, passes_on: bool = True) -> Published:
        """Store *message* through an async session, in its transaction.

        Args:
            session: a session of a supported library.
            message: the message.
            passes_on: whether a message to an application that has moved is passed on to its home, or refused.

        Raises:
            InvalidMessage: a field breaks a rule; the message names it.
            ApplicationNotFound: no application has this id, uid or imported id, and no handler names it.
            TooManyDeliveries: it matches more endpoints than one event can have deliveries.
            RoutesChanged: the routes kept changing.
            ServedElsewhere: the application has moved to another installation, and the message is not to be passed on.
        """
        steps = self._steps(session, message, passes_on=passes_on)
        step = next(steps)
        while True:
            answer = await call(session, *step)
            try:
                step = steps.send(answer)
            except StopIteration as stop:
                return self._counted(stop.value)

    def publish_sync(self, session: Any, message: Message) -> Published:
        """Do what `publish` does through a sync session."""
        steps = self._steps(session, message)
        step = next(steps)
        while True:
            answer = call_sync(session, *step)
            try:
                step = steps.send(answer)
            except StopIteration as stop:
                return self._counted(stop.value)

    def draft(self, message: Message) -> Draft:
        """Validate *message* and return it ready for storage. Raises InvalidMessage."""
        return _draft(message, self._memory_days)

    def cached_routes(self, organization: str, application: str) -> CompiledRoutes | None:
        """Return the cached routes for an application's id, uid or imported id; they may be outdated."""
        return self._route_cache.get((organization, application))

    def cache_routes(self, organization: str, application: str, routing: Routing) -> CompiledRoutes:
        """Compile and cache the routes of an application's id, uid or imported id. Raises ApplicationNotFound."""
        compiled = _compile(application, routing)
        self._route_cache.put((organization, application), compiled)
        return compiled

    def forget_routes(self, organization: str, application: str) -> None:
        """Drop the cached routes of an application's id, uid or imported id."""
        self._route_cache.drop((organization, application))

    def count(self, drafts: Iterable[Draft]) -> None:
        """Count messages that were stored in a group."""
        ended_ns = time.time_ns()
        number = 0
        for number, draft in enumerate(drafts, start=1):  # noqa: B007 - the last number is the count
            tracer.note_publish(draft.id, draft.headers, draft.began_ns, ended_ns, draft.message.type)
        self.published += number
        meters.count("boathook_messages_published_total", number)

    def _steps(self, session: Any, message: Message, *, passes_on: bool = True) -> Generator[SqlCall, Any, Published]:
        """Yield the SQL calls that publish *message*; each is resumed with the call's result."""
        draft = self.draft(message)
        key = message.organization, message.application
        compiled = self._route_cache.get(key)
        for _ in range(_MAX_ROUNDS):
            if compiled is None or (compiled.home and not passes_on):
                routing = decode_routing((yield ROUTES_FOR, key))
                if not passes_on:
                    require_here(message.application, routing)
                compiled = self.cache_routes(*key, routing)
            deliveries = compiled.recipients(draft)
            answer: str = yield PUBLISH_MESSAGE, compiled.arguments(draft, deliveries)
            if answer not in {"outdated", "missing"}:
                outcome = _outcome(draft, answer, compiled.home)
                if isinstance(outcome, Accepted):
                    add_due(
                        session, due_recipients([delivery.recipient for delivery in deliveries], compiled.due(draft))
                    )
                    tracer.note_publish(draft.id, draft.headers, draft.began_ns, time.time_ns(), message.type)
                else:
                    yield REPLICATE, REPLICATE_ARGUMENTS
                return outcome
            compiled = None
        raise RoutesChanged("the routes kept changing while this message was published; try again")

    def _counted(self, outcome: Published) -> Published:
        if isinstance(outcome, Accepted):
            self.published += 1
            meters.count("boathook_messages_published_total")
        return outcome


class _RouteCache:
    """LRU cache of compiled routes, bounded by the number of routes, as one application may have many."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[str, str], CompiledRoutes] = OrderedDict()
        self._lines = 0

    def get(self, key: tuple[str, str]) -> CompiledRoutes | None:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: tuple[str, str], compiled: CompiledRoutes) -> None:
        with self._lock:
            self._remove(key)
            self._kept[key] = compiled
            self._lines += _weight(compiled)
            while self._lines > MAX_ROUTES and len(self._kept) > 1:
                self._lines -= _weight(self._kept.popitem(last=False)[1])

    def drop(self, key: tuple[str, str]) -> None:
        with self._lock:
            self._remove(key)

    def _remove(self, key: tuple[str, str]) -> None:
        before = self._kept.pop(key, None)
        self._lines -= _weight(before) if before else 0


def _weight(compiled: CompiledRoutes) -> int:
    # An entry without routes uses memory too.
    return 10 + len(compiled.routing.routes)


def _compile(name: str, routing: Routing) -> CompiledRoutes:
    is_id = is_application_id(name)
    if routing.application is None and is_id:
        raise ApplicationNotFound(f"there is no application {name}; it may have been deleted")
    if routing.application is None and not routing.routes:
        raise ApplicationNotFound(
            f"there is no application {name!r}, and no handler for one of this name; create it with: "
            f"boathook applications create NAME --uid {name}"
        )
    stored_as = name if routing.application is None else routing.application.name
    is_own_id = is_id and routing.application is not None and ids.read(ids.APPLICATION, name) == routing.application.id
    return CompiledRoutes(routing, Router(routing.routes, 0), stored_as, None if is_own_id else name)


def receipt_of(message: Message, published: Published) -> Receipt:
    """Return the receipt for a publisher that identifies its messages by id.

    Raises:
        DuplicateMessage: the application has a different message with this id or idempotency key.
    """
    match published:
        case Accepted() | Duplicate(conflict=False):
            return published
        case IdempotentReplay(first):
            return Duplicate(first)
        case Duplicate(first):
            raise DuplicateMessage(
                f"{ids.show(ids.MESSAGE, first)} of application {message.application} already has the id"
                f" {message.id!r} with a different payload; use a unique id for each message"
            )
        case IdempotencyConflict(first):
            raise DuplicateMessage(
                f"the idempotency key was already used for another request, which created"
                f" {ids.show(ids.MESSAGE, first)}; use each key for one request"
            )
        case _:
            assert_never(published)


def require_here(name: str, routing: Routing) -> None:
    """Raise ServedElsewhere if the application with this name has moved."""
    application = routing.application
    if application is not None and application.home is not None:
        raise ServedElsewhere(name, application.home, application.revision)


def is_application_id(name: str) -> bool:
    """Return whether *name* has the form of an application's id."""
    try:
        return name.startswith(f"{ids.APPLICATION}_") and ids.read(ids.APPLICATION, name) is not None
    except ValueError:
        return False


def hash_key(key: IdempotencyKey) -> UUID:
    """Return the hash of an idempotency key, as it is stored beside the message."""
    return _hash_key(b"idempotency\x00" + key.key)


def _hash_key(material: bytes) -> UUID:
    return UUID(bytes=hashlib.sha256(material).digest()[:16])


def _draft(message: Message, memory_days: float) -> Draft:
    began_ns = time.time_ns()
    identifier = message.event_id or ids.make(began_ns // 1_000_000, secrets.randbits(74))
    _check_storable("application", message.application)
    body, default_content_type = _encoded(message.payload)
    content_type = message.content_type or default_content_type
    check_printable(content_type, "content_type")
    channels, tags = _names("channels", message.channels), _names("tags", message.tags)
    _moment("deliver_at", message.deliver_at)
    _moment("content_until", message.content_until)
    return Draft(
        message,
        identifier,
        message.id or ids.show(ids.EVENT, identifier),
        None if message.idempotency is None else hash_key(message.idempotency),
        memory_days if message.id else IDEMPOTENCY_DAYS,
        tracer.add_headers(_headers(message.headers or {})),
        content_type,
        channels,
        tags,
        body,
        began_ns,
        current_cause(),
    )


def _check_storable(field: str, text: Any) -> None:
    if not isinstance(text, str) or _UNSTORABLE.search(text):
        raise InvalidMessage(f"write a text without NUL and lone surrogates, not {text!r}", field)


_RULES: Final = {"channels": check_channels, "tags": check_tags}


def _names(field: str, values: Iterable[str]) -> tuple[str, ...]:
    names = tuple(values)
    try:
        return _RULES[field](names) if names else ()
    except (TypeError, ValueError) as error:
        raise InvalidMessage(str(error), field) from None


def _headers(values: Mapping[Any, Any]) -> dict[str, str]:
    for name, value in values.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidMessage(f"use strings, not {name!r}: {value!r}", "headers")
        _check_storable("headers", name)
        _check_storable("headers", value)
    return {name.lower(): value for name, value in values.items()}


def _moment(field: str, time: datetime | None) -> datetime | None:
    if time is not None and time.tzinfo is None:
        raise InvalidMessage(f"{time} has no time zone; add one, such as UTC", field)
    try:
        return time and time.astimezone(UTC)
    except OverflowError:
        raise InvalidMessage(f"{time} is not within the years 1 to 9999 in UTC", field) from None


def _encoded(payload: Any) -> tuple[bytes, str]:
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload), "application/octet-stream"
    try:
        return encode(payload), "application/json"
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InvalidMessage(f"it cannot be written as JSON: {error}", "payload") from None


def _text(value: Mapping[str, Any] | Iterable[NewDelivery]) -> str:
    return msgspec.json.encode(value).decode()


def _outcome(draft: Draft, answer: str, home: str | None) -> Published:
    verdict, _, first = answer.partition(" ")
    match verdict:
        case "accepted":
            return Accepted(draft.id, home=home)
        case "duplicate" | "conflict":
            return Duplicate(UUID(first), conflict=verdict == "conflict")
        case "repeated":
            return IdempotentReplay(UUID(first))
        case "clash":
            return IdempotencyConflict(UUID(first))
        case _:
            raise DatabaseError(f"boathook.publish_message returned {answer!r}, unsupported by this version; upgrade")
