"""The nouns of boathook and the one table of legal moves between a delivery's states."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID

from boathook.domain.policy import RetryPolicy


class Role(StrEnum):
    """What somebody may do; each may do what those before it may."""

    VIEWER = "viewer"
    """Look at everything but secrets."""
    OPERATOR = "operator"
    """Also replay, ignore, test, and manage what is sent to whom."""
    ADMIN = "admin"
    """Also purge, and manage keys, secrets of sources and other operators."""

    def covers(self, needed: "Role") -> bool:
        """Return whether who has this role may do what *needed* may."""
        return _RANKS[self] >= _RANKS[needed]


_RANKS: Final = {role: rank for rank, role in enumerate(Role)}


class ProofStrength(StrEnum):
    """What a verified request's proof covers; kept with the event, as "verified" is not one thing."""

    BODY = "body signed"
    METADATA = "metadata only"
    TOKEN = "token"
    ADDRESS = "address"
    NONE = "none"


class Origin(StrEnum):
    """How an event came to be."""

    RECEIVED = "received"
    PUBLISHED = "published"


class State(StrEnum):
    """Where a delivery stands."""

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
"""From each state, the states a delivery may go to next. `docs/explanation/architecture.md` draws the same table."""


MAX_DELIVERIES: Final = 32_767
"""The most deliveries an event may be owed when it is accepted, and the most items it may have: ordinals are small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewEvent:
    """An event about to be stored, with everything the accepting transaction needs."""

    id: UUID
    """Made when the request was accepted; carries that moment to the millisecond."""
    source: str | None
    """Name of the source it arrived at; None for what the owner's app published."""
    application: str | None
    """The tenant it is for; None for what arrived from outside."""
    type: str
    """The sender's name for what happened, such as ``payment_intent.succeeded``."""
    dedup_key: str
    """What makes two requests the same event, as text."""
    key_hash: UUID
    """The first 128 bits of SHA-256 over scope and dedup key: the row's identity in dedup memory."""
    replay_hash: UUID | None
    """The same over the signed material, where the sender's event id is not itself signed; else None."""
    grade: ProofStrength
    origin: Origin
    headers: str
    """A JSON object of the headers worth keeping (an allow-list: never credentials)."""
    content_type: str
    body: bytes
    """Exactly what was sent."""
    body_sha256: bytes
    deliveries: tuple["NewDelivery", ...] = ()
    """Who gets it; decided from the routes of `routes_version`."""
    routes_version: int = 0
    """Which reading of the routes decided `deliveries`; the journal refuses an outdated one."""
    volatile: tuple[str, ...] = ()
    """JSON paths that may differ between two sendings of one event without being a conflict."""
    items: tuple["NewBatchItem", ...] = ()
    """What a batch is made of: each is deduplicated by itself, and only those not seen before are delivered."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewBatchItem:
    """One item of a batch about to be stored."""

    path: str
    """Its dotted path in the event's JSON body, such as ``events.3``."""
    type: str
    dedup_key: str
    key_hash: UUID
    """As `NewEvent.key_hash`, for this item."""
    digest: bytes
    """SHA-256 of the item written canonically: another digest under the same key is a conflict."""


@dataclass(frozen=True, slots=True)
class NewDelivery:
    """A delivery about to be stored with its event."""

    recipient: str
    """The route's name, such as ``handler:upgrade``."""
    order_key: str | None = None
    """Deliveries of one recipient with the same order key run one after another, in accept order."""
    item: int | None = None
    """Which of the event's items it is about, counted from 0; None where the event is no batch."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The event is durable, and with it every delivery it is owed."""

    event_id: UUID
    conflict: bool = False
    """Whether it is a batch with an item whose key was seen before with another content: that item is stored as a
    conflict, alerted and not delivered."""
    is_spooled: bool = False
    """Whether it is durable in the spool, and owed from there; else it is committed."""
    has_deliveries: bool = field(default=True, compare=False)
    """Whether it has deliveries, where that is known."""
    is_new: bool = field(default=True, compare=False)
    """Whether this call has stored it; else an earlier one with the same event had, whoever heard of that."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """The event was there already, or every item of it; nothing was stored."""

    event_id: UUID
    """The event that came first; of a batch, the one that brought its first item."""
    conflict: bool = False
    """Whether its key or its body, but not both, were seen before. Of a request: stored as a conflict and alerted; of a
    message: its publisher is told."""


Receipt = Accepted | Duplicate


@dataclass(frozen=True, slots=True)
class IdempotentReplay:
    """A message was published before by the same request, told by its idempotency key; nothing was stored."""

    event_id: UUID
    """The message that came of it."""


@dataclass(frozen=True, slots=True)
class IdempotencyConflict:
    """The idempotency key was used before for another request; nothing was stored."""

    event_id: UUID
    """The message that came of that one."""


Published = Receipt | IdempotentReplay | IdempotencyConflict
"""What came of publishing a message."""

DEFAULT_ORGANIZATION: Final = "default"
"""Whose applications are meant where no organization is named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Who gets which events: from a source or application, through patterns and a filter, to one recipient."""

    recipient: str
    """The stable name under which its deliveries are stored, such as ``handler:upgrade``."""
    app: str
    """Which loaded app declared it, such as ``shop.hooks:hook``; an app only ever retires its own routes."""
    source: str | None = None
    """Only events of this source; None with `application` None means any source."""
    application: str | None = None
    types: tuple[str, ...] = ("*",)
    """Patterns of event types; ``*`` stands for any run of characters. One match suffices."""
    channels: tuple[str, ...] | None = None
    """Only messages with one of these channels; None: all, whatever their channels."""
    filter: Mapping[str, Any] | None = None
    """Operators on body and headers, see `boathook.domain.filters`; None lets everything through."""
    order_by: str | None = None
    """Dotted path into the JSON body whose value becomes the order key, or ``*``: one key for all; None: no order."""
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    timeout_s: float = 30.0
    """How long one attempt may take."""
    since_s: float | None = None
    """How many seconds before its recipient's first registration events were accepted that it is owed too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A worker's right to try one delivery, until the lease ends."""

    event_id: UUID
    ordinal: int
    recipient: str
    fence: int
    """Rises with each claim; a settle with an older one changes nothing."""
    attempt: int
    """Number of this attempt, 1 for the first; counted when claimed, so a crash counts."""
    attempts_before: int
    """Attempts made before the latest replay; the retry budget starts after them."""
    enqueued_at: datetime
    """When it was accepted, or last replayed; the retry policy's maximum age counts from here."""
    order_key: str | None
    free_retries: int = 0
    """Attempts since then that a lost connection cut off; they use up no budget."""
    suspect: bool
    """Whether an earlier attempt's lease ran out: such a delivery runs alone, so that a payload
    that kills its worker takes no other down with it."""
    item_path: str | None = None
    """Which item of a batch it is about, by its path in the JSON body; None where it is about the whole event."""
    item_type: str | None = None
    """That item's type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try of a delivery, as recorded."""

    number: int
    outcome: str
    code: str | None
    error: str | None
    traceback: str | None
    started_at: datetime
    ended_at: datetime
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
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
