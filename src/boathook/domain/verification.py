"""The input and output of verification: a request, a source's specification, and three verdicts."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from boathook.domain.model import ProofStrength
from boathook.domain.replies import Reply as Reply  # noqa: PLC0414 - a part of verdicts, to be had with them


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A stranger's request, as far as verification looks at it."""

    method: str
    url: str
    """The public URL as the sender saw it, query included; some senders sign it."""
    path: str
    query: str
    """What follows the question mark, still percent-encoded."""
    headers: Mapping[str, str]
    """Lower-case names; values decoded as Latin-1; repeated headers joined by a comma and a space."""
    body: bytes
    """The bytes as sent, before any Content-Encoding is undone."""
    client: str
    """The sender's address."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSpec:
    """All that verification needs to know of one source; compiled once by `Verifier`."""

    name: str
    provider: str
    """A recipe's name or alias, in any letter case."""
    secrets: tuple[str, ...] = ()
    """Resolved secrets, tried in order; several while one is being rotated. For signatures made with a private key
    they are the sender's public keys."""
    public_url: str = ""
    """Base of the address senders use; needed by senders that sign it."""
    addresses: tuple[str, ...] = ()
    """Networks requests may come from, besides what the proof demands; empty: any."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Settings only some providers have, under the names they have in boathook.toml."""
    methods: frozenset[str] = frozenset()
    """HTTP methods by which events may come, instead of those the sender is known to use."""
    unsigned: bool = False
    """The owner says in as many words that requests carry no proof at all."""
    tolerance_s: float | None = None
    """How far a signed timestamp may lie in the past or the future; None: the provider's own default."""
    dedup_fields: tuple[str, ...] = ()
    """JSON paths that together name an event, for when the provider gives no id."""
    schema: Any = None
    """The JSON Schema that proven bodies must fit; None: any body."""
    keep: tuple[str, ...] = ()
    """Headers that are stored with events besides those the recipe names; lower case."""


class Reason(StrEnum):
    """Why a request was refused; a word to count and filter by."""

    SIGNATURE_MISSING = "signature_missing"
    SIGNATURE_MALFORMED = "signature_malformed"
    SIGNATURE_MISMATCH = "signature_mismatch"
    UNKNOWN_SCHEME = "unknown_scheme"
    TIMESTAMP_MISSING = "timestamp_missing"
    TIMESTAMP_MALFORMED = "timestamp_malformed"
    TIMESTAMP_TOO_OLD = "timestamp_too_old"
    TIMESTAMP_IN_FUTURE = "timestamp_in_future"
    ID_MISSING = "id_missing"
    ID_MALFORMED = "id_malformed"
    TOKEN_MISSING = "token_missing"  # noqa: S105 - a word, not a secret
    TOKEN_MISMATCH = "token_mismatch"  # noqa: S105 - the same
    KEY_UNAVAILABLE = "key_unavailable"
    """The sender's public key could not be had, so nothing can be said about the signature: our fault, not theirs."""
    ADDRESS_NOT_ALLOWED = "address_not_allowed"
    CHALLENGE_REFUSED = "challenge_refused"
    BODY_MALFORMED = "body_malformed"
    BODY_TOO_LARGE = "body_too_large"
    BODY_INVALID = "body_invalid"
    """The proof holds, but the body does not fit the source's schema."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItem:
    """One of the things that a request with many items (a batch) tells of."""

    path: str
    """Dotted path of the item in the JSON body, such as ``events.3``."""
    type: str
    dedup_key: str
    """As `Verified.dedup_key`, but for the item alone."""
    digest: bytes
    """SHA-256 of the item's JSON written canonically: another digest under the same key is a conflict."""
    document: Any
    """The item itself, parsed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """The request is what its source says it is; here is what names the event."""

    grade: ProofStrength
    type: str
    """The sender's name for what happened; `UNKNOWN_TYPE` where the request carries none."""
    dedup_key: str
    """The sender's event id, else ``fields:`` and a JSON array, else ``sha256:`` and the body's hash."""
    replay_material: bytes | None
    """What was signed, where something unsigned could give it another `dedup_key`; else None."""
    volatile: tuple[str, ...]
    """JSON paths that may differ between two sendings of one event without being a conflict."""
    kept_headers: dict[str, str]
    """The headers worth storing: an allow-list that holds no credential and no signature."""
    timestamp: datetime | None
    """The signed moment of sending; None where the provider signs none."""
    items: tuple[BatchItem, ...] = ()
    """What the request is made of, for senders of batches; deduplicated and delivered one by one."""
    reply: Reply | None = None
    """The answer this sender wants; None for boathook's own."""
    query: bytes | None = None
    """What a request by GET brings, stored as a form in place of a body; a token in it is left out. None for others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """A handshake: answer it, store no event."""

    status: int
    body: bytes
    content_type: str
    visit: str | None = None
    """An address on the sender's own host that must be fetched first to confirm a subscription."""
    capture: str | None = None
    """A secret the sender tells once, in band: keep it for verifying what follows, show it to the operator only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyRequired:
    """The proof needs a public key or key set that is not in the key ring: fetch it, add it, verify again."""

    url: str
    """On a host that the recipe pins; never a stranger's choice of host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """The request is refused; nothing of its body was looked at unless its proof had held."""

    status: int
    """401 for whatever is wrong with the proof, 400 for a proven body that cannot be read."""
    reason: Reason
    detail: str
    """For the operator, never for the stranger but as `public_detail`; holds no secret."""
    may_reverify: bool
    """Whether another secret or setting could change the verdict."""
    public_detail: str = ""
    """What the sender may know of it besides, as the proof held; empty: nothing."""


Verdict = Verified | Challenge | KeyRequired | Rejected

UNKNOWN_TYPE = "unknown"
