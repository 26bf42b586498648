"""The state of the database as plain values: read by `store_reader`, checked by `checker`, made by hand in tests."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """A row of `boathook.event`."""

    id: str
    key: str
    """Its dedup key."""
    sha: str
    """SHA-256 in hex of the stored bytes, computed when they are read."""
    claimed: str = ""
    """The column `body_sha256` in hex; empty where it is the same."""
    fanout: int = 1
    message: str = ""
    """The id it is sent with, for what was published; empty for what was received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """A stored conflict: a signed request with the key of another event and a different body."""

    key: str
    sha: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """A delivery, pending or ended."""

    event: str
    ordinal: int = 0
    recipient: str = "handler:move"
    state: str = "succeeded"
    attempts: int = 1
    replays: int = 0
    is_replay: bool = False
    place: str = ""
    """The path of the endpoint's URL; empty for handlers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A recorded attempt."""

    event: str
    ordinal: int = 0
    number: int = 1
    outcome: str = "succeeded"
    code: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """One change of a delivery's row, written by a trigger in the transaction that made it."""

    number: int
    event: str
    ordinal: int = 0
    recipient: str = "handler:move"
    before: str = ""
    """Its state; empty where the row was new."""
    after: str = ""
    """Empty if the row was deleted: the delivery ended."""
    fence: int = 0
    attempts: int = 0
    """What the row counts after the change; before it where it was deleted."""
    attempts_before: int = 0
    """What it counted before the change."""
    order_key: str = ""
    seq: int = 0
    """Its place in accept order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """A row a handler of the bank left behind, in the order in which they were written."""

    number: int
    key: str
    event: str
    handler: str = "move"
    attempt: int = 1
    account: str = ""
    other: str = ""
    sha: str = ""
    """SHA-256 in hex of the body the handler was given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """Everything that is read of a store."""

    events: tuple[StoredEvent, ...] = ()
    conflicts: tuple[Conflict, ...] = ()
    remembered: frozenset[str] = frozenset()
    """Ids of the events that dedup memory names."""
    deliveries: tuple[Delivery, ...] = ()
    attempts_made: tuple[Attempt, ...] = ()
    edges: tuple[Edge, ...] = ()
    effects: tuple[Effect, ...] = ()
    balances: Mapping[str, int] = field(default_factory=dict)
    opening: int = 0
    """What each account began with."""
    reported: Mapping[str, str] = field(default_factory=dict)
    """By the id of each message that `message.duplicate` reports as not stored, the id of the message it repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spooled:
    """A record that waits in a gateway's spool."""

    key: str
    sha: str
    message: str = ""
    """The id it is sent with, for what was published; empty for what was received."""
    is_refused: bool = False
    """Whether PostgreSQL rejects it, so that it waits for an operator."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a scenario."""

    attempts: Mapping[str, int] = field(default_factory=dict)
    """Most attempts of a recipient's deliveries, without free retries; a recipient that is not named has no limit."""
    without_effect: frozenset[str] = frozenset()
    """Recipients whose success leaves no row of the bank."""
    message_prefixes: Mapping[str, str] = field(default_factory=lambda: {"letter": "told:"})
    """By handler, the prefix of the key of the message that it publishes for an event."""
    ordered: frozenset[str] = frozenset({"move", "letter", "slow", "flaky"})
    """Handlers that take the events of one line one after another."""
    quiet_s: float = 60.0
    """Longest time from the end of the last fault until nothing is open."""
    wire_copies: int = 0
    """Most messages that may come again although an earlier copy was answered 2xx."""
    bystander_ratio: float = 0.0
    """Longest p99 of the lane `bystander` after the first fault, as a multiple of that before; 0: not judged."""
    bystander_floor_s: float = 0.05
    """A p99 below this is fast enough whatever it was before."""
    is_spool_empty: bool = True
    """Whether nothing may wait in a spool in the end."""
