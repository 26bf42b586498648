"""The input and output of verification: a request, a source's specification, and the verdicts."""

from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, ClassVar, Final

import msgspec

from boathook.domain.model import ProofStrength
from boathook.domain.redaction import RedactedStruct
from boathook.domain.replies import Reply as Reply  # noqa: PLC0414 - part of the verdicts, re-exported


class Request(msgspec.Struct, kw_only=True):
    """An unauthenticated request, as verification reads it."""

    method: str
    url: str
    """The public URL that the sender used, with its query; some senders sign it."""
    path: str
    query: str
    """The part after the question mark, still percent-encoded."""
    headers: Mapping[str, str]
    """Lower-case names; values decoded as Latin-1; repeated headers joined by a comma and a space."""
    body: bytes
    """The bytes as sent, before any Content-Encoding is decoded."""
    client: str
    """The sender's IP address."""

    def __repr__(self) -> str:
        # The URL and the headers may contain tokens.
        return f"Request(method={self.method!r}, path={self.path!r}, client={self.client!r})"


class SourceSpec(RedactedStruct, frozen=True, kw_only=True):
    """All settings of a source that verification needs; compiled once by `Verifier`."""

    hidden_fields: ClassVar[frozenset[str]] = frozenset({"secrets"})

    name: str
    provider: str
    """A recipe's name or alias, case-insensitive."""
    secrets: tuple[str, ...] = ()
    """Resolved secrets, tried in order; several during a rotation. For asymmetric signatures, the sender's public
    keys."""
    public_url: str = ""
    """Base URL that senders use; required by senders that sign the URL."""
    addresses: tuple[str, ...] = ()
    """Networks from which requests are accepted, in addition to the provider's own check; empty for any."""
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Provider-specific settings, by their names in boathook.toml."""
    methods: frozenset[str] = frozenset()
    """HTTP methods that are accepted for events, instead of the provider's usual ones."""
    unsigned: bool = False
    """Whether the operator explicitly accepts requests without any proof."""
    tolerance_s: float | None = None
    """Maximum distance of a signed timestamp from now, in seconds; None uses the provider's default."""
    dedup_fields: tuple[str, ...] = ()
    """JSON paths that together identify an event if the provider sends no id."""
    dedup_headers: tuple[str, ...] = ()
    """Headers that tell requests with equal bodies apart if the provider sends no id; lower case."""
    dedup_object: str = ""
    """JSON path of the object that an event is about; empty for none."""
    volatile: tuple[str, ...] = ()
    """JSON paths that may differ between two requests for one event, in addition to the recipe's."""
    schema: Any = None
    """The JSON Schema that verified bodies must match; None accepts any body."""
    keep: tuple[str, ...] = ()
    """Headers that are stored in addition to the recipe's; lower case."""


class Reason(StrEnum):
    """Why a request was rejected; a code for metrics and filters."""

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
    TOKEN_MISSING = "token_missing"  # noqa: S105 - a code, not a secret
    TOKEN_MISMATCH = "token_mismatch"  # noqa: S105 - the same
    KEY_UNAVAILABLE = "key_unavailable"
    """The sender's public key could not be fetched, so the signature cannot be checked; not the sender's fault."""
    ADDRESS_NOT_ALLOWED = "address_not_allowed"
    CHALLENGE_REFUSED = "challenge_refused"
    BODY_MALFORMED = "body_malformed"
    DECODED_TOO_LARGE = "decoded_too_large"
    """The signature is valid, but the body decodes to more than `limits.max_decoded` bytes."""
    BODY_INVALID = "body_invalid"
    """The signature is valid, but the body does not match the source's schema."""
    TOO_MANY_DELIVERIES = "too_many_deliveries"
    """The signature is valid, but the batch has more items or deliveries than an event can have."""
    BODY_TOO_LARGE = "body_too_large"
    CONTENT_ENCODING = "content_encoding"
    METHOD_NOT_ALLOWED = "method_not_allowed"
    UNKNOWN_PATH = "unknown_path"
    """No source is at the path; the request belongs to no source."""
    CLIENT_RATE = "client_rate"
    SOURCE_RATE = "source_rate"
    UNVERIFIED_BYTES = "unverified_bytes"
    """The bodies that wait for their verification took `limits.max_unverified_bytes` already."""
    SLOW_REQUEST = "slow_request"
    HEAD_TOO_LARGE = "head_too_large"
    REQUEST_MALFORMED = "request_malformed"
    """It is not HTTP as boathook reads it."""


HEAD_REASONS: Final = frozenset(
    {
        Reason.BODY_TOO_LARGE,
        Reason.CONTENT_ENCODING,
        Reason.METHOD_NOT_ALLOWED,
        Reason.UNKNOWN_PATH,
        Reason.CLIENT_RATE,
        Reason.SOURCE_RATE,
        Reason.UNVERIFIED_BYTES,
        Reason.SLOW_REQUEST,
        Reason.HEAD_TOO_LARGE,
        Reason.REQUEST_MALFORMED,
    }
)
"""Reasons for which a request is rejected before its body is read, so that no body is stored with the rejection."""


class BatchItem(msgspec.Struct, frozen=True, kw_only=True):
    """One item of a request with many items (a batch)."""

    path: str
    """Dotted path of the item in the JSON body, such as ``events.3``."""
    type: str
    dedup_key: str
    """As `Verified.dedup_key`, but for the item alone."""
    digest: bytes
    """SHA-256 of the item's canonical JSON: a different digest under the same key is a conflict."""
    document: Any
    """The parsed item."""


class Verified(msgspec.Struct, kw_only=True):
    """The request is verified, with the values that identify the event."""

    grade: ProofStrength
    type: str
    """The sender's name for what happened; `UNKNOWN_TYPE` if the request has none."""
    dedup_key: str
    """The sender's event id, else ``fields:`` and a JSON array, else ``sha256:`` and the body's hash."""
    dedup_object: str | None = None
    """The object that the event is about, if the source names its path: see `NewEvent.object_hash`."""
    replay_material: bytes | None
    """The signed content, if unsigned values could change `dedup_key`; else None."""
    volatile: tuple[str, ...]
    """JSON paths that may differ between two requests for the same event without being a conflict."""
    kept_headers: dict[str, str]
    """The headers to store: an allow-list without credentials and signatures."""
    timestamp: datetime | None
    """The signed time of sending; None if the provider signs none."""
    items: tuple[BatchItem, ...] = ()
    """The items of a batch, deduplicated and delivered individually."""
    reply: Reply | None = None
    """The reply that this sender expects; None for boathook's default reply."""
    query: bytes | None = None
    """The query of a GET request, stored as a form instead of a body, without tokens. None for other requests."""


class Challenge(msgspec.Struct, frozen=True, kw_only=True):
    """A handshake: send the response and store no event."""

    status: int
    body: bytes
    content_type: str
    visit: str | None = None
    """A URL on the sender's own host that must be fetched first to confirm a subscription."""
    capture: str | None = None
    """A secret that the sender transmits once in the handshake: store it for later verification and show it only to
    operators."""


class KeyRequired(msgspec.Struct, frozen=True, kw_only=True):
    """The signature needs a public key or key set that is not in the key ring: fetch it, add it, verify again."""

    url: str
    """On a host that the recipe fixes; the request never chooses the host."""


class Rejected(msgspec.Struct, frozen=True, kw_only=True):
    """The request is rejected; its body was not parsed unless the signature was valid."""

    status: int
    """401 for any failure of the proof, 400 for a verified body that cannot be read."""
    reason: Reason
    detail: str
    """For the operator; the sender sees only `public_detail`. Contains no secret."""
    may_reverify: bool
    """Whether another secret or setting could change the verdict."""
    public_detail: str = ""
    """Further details that the sender may see because its signature was valid; empty for none."""


Verdict = Verified | Challenge | KeyRequired | Rejected

UNKNOWN_TYPE = "unknown"
