"""The core types of boathook, and the table of legal transitions between delivery states."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

import msgspec

from boathook.domain.policy import RetryPolicy


class Role(StrEnum):
    """The permissions of an operator; each role includes those before it."""

    VIEWER = "viewer"
    """May view everything except secrets."""
    OPERATOR = "operator"
    """May also replay, ignore, test, and manage applications, endpoints and event types."""
    ADMIN = "admin"
    """May also purge, and manage keys, secrets of sources and other operators."""

    def covers(self, needed: "Role") -> bool:
        """Return whether this role includes the permissions of *needed*."""
        return _RANKS[self] >= _RANKS[needed]

    def at_most(self, other: "Role") -> "Role":
        """Return the lower one of two roles."""
        return self if other.covers(self) else other


_RANKS: Final = {role: rank for rank, role in enumerate(Role)}


class MountRole(StrEnum):
    """The permissions of a caller below a mounted path of an app; each role includes those before it."""

    READER = "reader"
    """May read, and open WebSockets."""
    OPERATOR = "operator"
    """May also change."""

    def covers(self, needed: "MountRole") -> bool:
        """Return whether this role includes the permissions of *needed*."""
        return self is MountRole.OPERATOR or needed is MountRole.READER


class ProofStrength(StrEnum):
    """The coverage of a request's verification; stored with the event, because "verified" can mean different things."""

    BODY = "body signed"
    METADATA = "metadata only"
    TOKEN = "token"
    ADDRESS = "address"
    NONE = "none"


class Origin(StrEnum):
    """How an event was created."""

    RECEIVED = "received"
    PUBLISHED = "published"
    ACCEPTED_CONFLICT = "accepted_conflict"
    """An operator accepted a conflict; `dedup_key` is the conflict's id."""


class State(StrEnum):
    """The state of a delivery."""

    PENDING = "pending"
    LEASED = "leased"
    SUCCEEDED = "succeeded"
    IGNORED = "ignored"
    DEAD = "dead"


TRANSITIONS: Final[Mapping[State, frozenset[State]]] = {
    State.PENDING: frozenset({State.LEASED, State.DEAD}),
    State.LEASED: frozenset({State.SUCCEEDED, State.IGNORED, State.PENDING, State.DEAD}),
    State.DEAD: frozenset({State.PENDING, State.IGNORED}),
    State.SUCCEEDED: frozenset(),
    State.IGNORED: frozenset(),
}
"""The legal next states of each state. `docs/explanation/architecture.md` shows the same table."""


MAX_DELIVERIES: Final = 32_767
"""Maximum number of deliveries of an event when it is accepted, and of its items: ordinals are 16-bit integers."""


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of a published message beside its event, until it is stored."""

    application_id: UUID
    """The application, found when the message was accepted."""
    organization: str
    memory_days: float
    """How long its keys are remembered."""
    channels: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    deliver_at: datetime | None = None
    content_until: datetime | None = None
    request_sha256: bytes | None = None
    """`IdempotencyKey.request_sha256` of its request; None without a key."""


class NewEvent(msgspec.Struct, kw_only=True):
    """An event to be stored, with everything that the accepting transaction needs."""

    id: UUID
    """Created when the request was accepted; contains that time to the millisecond."""
    source: str | None
    """The name of the source that received it; None for published messages."""
    application: str | None
    """The tenant of a published message; None for received events."""
    type: str
    """The sender's name for what happened, such as ``payment_intent.succeeded``."""
    dedup_key: str
    """Two requests with the same key are the same event."""
    key_hash: UUID
    """The first 128 bits of SHA-256 over scope and dedup key; identifies the row in the dedup table."""
    replay_hash: UUID | None
    """The same hash over the signed content, if the sender's event id is not signed itself, or over the idempotency key
    of a message; else None."""
    grade: ProofStrength
    origin: Origin
    headers: str
    """A JSON object of the stored headers (an allow-list: never credentials)."""
    content_type: str
    body: bytes
    """The bytes as sent."""
    body_sha256: bytes
    deliveries: tuple["NewDelivery", ...] = ()
    """Its recipients, as computed from the routes of `routes_version`."""
    routes_version: int = 0
    """The version of the routes that `deliveries` was computed from; the database rejects an outdated one."""
    volatile: tuple[str, ...] = ()
    """JSON paths that may differ between two requests for the same event without being a conflict."""
    items: tuple["NewBatchItem", ...] = ()
    """The items of a batch: each is deduplicated separately, and only new ones are delivered."""
    publication: Publication | None = None
    """Set for a message that was accepted without PostgreSQL; its recipients are decided when it is stored."""
    object_hash: UUID | None = None
    """As `key_hash`, for the object that it is about, if its source has `dedup_object`: it is a duplicate only while an
    event with its key is the newest of that object."""


class NewBatchItem(msgspec.Struct, frozen=True, kw_only=True):
    """One item of a batch to be stored."""

    path: str
    """Its dotted path in the event's JSON body, such as ``events.3``."""
    type: str
    dedup_key: str
    key_hash: UUID
    """As `NewEvent.key_hash`, for this item."""
    digest: bytes
    """SHA-256 of the item's canonical JSON: a different digest under the same key is a conflict."""


class NewDelivery(msgspec.Struct, frozen=True):
    """A delivery to be stored with its event."""

    recipient: str
    """The route's name, such as ``handler:upgrade``."""
    order_key: str | None = None
    """Deliveries to one recipient with the same order key run one at a time, in accept order."""
    item: int | None = None
    """The index of the event's item that it delivers, from 0; None if the event is not a batch."""


@dataclass(slots=True)
class Accepted:
    """The event is durable, and so are its deliveries."""

    event_id: UUID
    conflict: bool = False
    """Whether an item of a batch has a known key but different content. Such an item is stored as a conflict, raises an
    alert and is not delivered."""
    is_spooled: bool = False
    """Whether it is durable in the spool and will be delivered from there; else it is committed to the database."""
    has_deliveries: bool = field(default=True, compare=False)
    """Whether it has deliveries, if known."""
    is_new: bool = field(default=True, compare=False)
    """Whether this call stored it; else an earlier call with the same event did."""
    home: str | None = field(default=None, compare=False)
    """The installation that a message is passed on to, because its application has moved there."""


class Duplicate(msgspec.Struct, frozen=True):
    """The event, or every item of it, was already stored; nothing new was stored."""

    event_id: UUID
    """The earlier event; for a batch, the event with its first item."""
    conflict: bool = False
    """Whether the key or the body, but not both, was seen before. For a request it is stored as a conflict and raises
    an alert; for a message, it is reported to the publisher."""
    by_idempotency_key: bool = False
    """Whether a message's idempotency key was seen before, rather than its own id."""


Receipt = Accepted | Duplicate


class IdempotencyKey(msgspec.Struct, frozen=True):
    """Identifies a request that may be sent twice."""

    key: bytes
    """32-byte hash of the caller and its permissions, the client's key, and the route."""
    request_sha256: bytes
    """SHA-256 of everything that decides what the request does: the query and the body in canonical form."""

    @property
    def context(self) -> str:
        """The encryption context that binds a response to its key."""
        return f"idempotency:{self.key.hex()}"


class IdempotentReplay(msgspec.Struct, frozen=True):
    """The same request, identified by its idempotency key, published a message before; nothing was stored."""

    event_id: UUID
    """The message of the first request."""


class IdempotencyConflict(msgspec.Struct, frozen=True):
    """The idempotency key was used before for a different request; nothing was stored."""

    event_id: UUID
    """The message of that request."""


Published = Receipt | IdempotentReplay | IdempotencyConflict
"""The result of publishing a message."""

DEFAULT_ORGANIZATION: Final = "default"
"""The organization of applications for which none is named."""


REQUEST_ID: Final = "boathook-request-id"
"""The name among an event's headers of the id of its request."""


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One accepted fact, immutable."""

    id: UUID
    source: str | None
    application: str | None
    type: str
    dedup_key: str
    grade: ProofStrength
    origin: Origin
    accepted_at: datetime
    headers: Mapping[str, str]
    content_type: str
    body: bytes
    same_body_as: UUID | None = None
    """The first event with the same signed body, if this one came later under another id; the sender may have meant it
    twice, or another client repeated a captured request."""


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """Maps events of a source or application, by type patterns and filter, to one recipient."""

    recipient: str
    """The stable name under which its deliveries are stored, such as ``handler:upgrade``."""
    app: str
    """The app that declared it, such as ``shop.hooks:hook``; an app retires only its own routes."""
    source: str | None = None
    """Only events of this source; None with `application` None means any source."""
    application: str | None = None
    types: tuple[str, ...] = ("*",)
    """Patterns of event types, in which ``*`` matches any characters; one match is enough."""
    channels: tuple[str, ...] | None = None
    """Only messages with one of these channels; None accepts all messages."""
    filter: Mapping[str, Any] | None = None
    """Operators on body and headers, see `boathook.domain.filters`; None accepts every event."""
    order_by: str | None = None
    """Dotted path into the JSON body whose value is the order key; ``*`` for one key for all events; None for no
    order."""
    policy: RetryPolicy = msgspec.field(default_factory=RetryPolicy)
    timeout_s: float = 30.0
    """Maximum duration of one attempt."""
    since_s: float | None = None
    """Maximum age in seconds of already stored events that are delivered when the recipient is first registered; None
    for no backfill."""


class BufferMark(msgspec.Struct, frozen=True):
    """How far a series of events from brokers has arrived in PostgreSQL."""

    sequence: int
    lost: int
    """How many events up to there are missing."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's right to attempt one delivery until the lease ends."""

    event_id: UUID
    ordinal: int
    recipient: str
    fence: int
    """Increases with each claim; a settle with a lower fence changes nothing."""
    attempt: int
    """The number of this attempt, from 1; counted on claim, so a crash counts."""
    attempts_before: int
    """Attempts before the latest replay; the retry budget does not include them."""
    enqueued_at: datetime
    """When it was accepted or last replayed; the retry policy's maximum age counts from here."""
    order_key: str | None
    free_retries: int = 0
    """Attempts since `enqueued_at` that failed because of a lost connection; they do not count against the budget."""
    suspect: bool
    """Whether the lease of an earlier attempt expired. Such a delivery runs alone, so that a payload that crashes its
    worker does not affect others."""
    item_path: str | None = None
    """The path in the JSON body of the batch item that is delivered; None for the whole event."""
    item_type: str | None = None
    """The type of that item."""


class Attempt(msgspec.Struct, frozen=True, kw_only=True):
    """One recorded attempt of a delivery."""

    number: int
    outcome: str
    code: str | None
    error: str | None
    traceback: str | None
    started_at: datetime
    ended_at: datetime
    worker: str
    dependency: str | None = None
    """The service that a handler called and that failed, if it is known."""


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """One event for one recipient: the unit of work."""

    event_id: UUID
    ordinal: int
    recipient: str
    state: State
    attempts: int
    due_at: datetime | None
    code: str | None
    note: str | None
    ended_at: datetime | None
    order_key: str | None
    replays: int
