"""Defines recipes: how one provider signs, identifies its events, does handshakes and expects replies.

A recipe is data. The code that uses it is in `boathook.verification`, which checks requests and extracts their
events.
"""

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec

from boathook.domain.model import ProofStrength
from boathook.domain.signing import Algorithm, Encoding, KeyFormat
from boathook.providers.options import Options
from boathook.providers.request_reader import Form, Json, RequestReader, Selector
from boathook.providers.schemes import (
    Addresses,
    Asymmetric,
    ConfiguredKey,
    FetchedKey,
    FieldMac,
    Hmac,
    Jwt,
    NoProof,
    Proof,
)

PLAIN_TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
PRINTABLE: Final = re.compile(r"[\x20-\x7e]{1,4096}")
FINAL_4XX: Final = frozenset({400, 403, 404, 405, 406, 410, 413, 415, 422, 429})
"""Statuses that end the retries of a verified request, for senders that treat every 4xx as final."""


# Event id and type.


class EventId(msgspec.Struct, frozen=True, kw_only=True):
    """The location of the sender's event id."""

    selectors: tuple[Selector | tuple[Selector, ...], ...] = ()
    """The first selector with a value is used; a tuple is a composed id, of which all parts are required."""
    form: str = ""
    """Format of a composed id, with ``{}`` for each part; if empty, the parts are joined by dots. A single id that
    starts like a composed one gets a prefix, so that no sender can choose another event's id."""
    is_signed: bool = True
    """Whether the signature covers the id; otherwise a captured body can be sent again under another id."""
    is_kept_in_retries: bool | None = None
    """Whether the sender's retries carry the id of the first attempt; None if that is unconfirmed. If they do not, the
    id is only stored with the event, and the type and the body are its key. An id in the body needs no value."""
    is_repeatable: bool = False
    """Whether the same bytes may mean another event when sent again, for senders that only signal that something
    changed. Then a request without an id is never a duplicate."""


class EventType(msgspec.Struct, frozen=True, kw_only=True):
    """The location of the event type."""

    selectors: tuple[Selector | tuple[Selector, ...], ...] = ()
    """The first selector with a value is used; the present parts of a tuple are joined by dots."""
    first_key_except: tuple[str, ...] | None = None
    """For senders that use the type as a JSON key: if no selector has a value, the first key of the JSON object that is
    none of these."""
    is_part_of_replay_key: bool = False
    """Whether one body may mean several events of different types, such as an order created and paid. Then a body is
    repeated only if its type is the same."""
    read: Callable[[RequestReader], str | None] | None = None
    """For types that no selector can read, such as XML in a form. It reads the type of a verified request if no
    selector has a value; if it raises, there is no type."""
    known: tuple[str, ...] = ()
    """Types, or their first parts, that the sender is known to send; a similar spelling counts as a typo. Senders add
    types at any time, so other types are never rejected."""
    rests: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """By first part: how the types continue after it and a dot, as far as known. A first part without an entry here or
    with an empty one may stand alone; the others never do."""

    @property
    def is_named(self) -> bool:
        """Whether a request can state its type; otherwise the type is always ``unknown``."""
        return bool(self.selectors) or self.first_key_except is not None or self.read is not None


class BatchItems(msgspec.Struct, frozen=True, kw_only=True):
    """How a batch is split; each item is deduplicated and delivered separately."""

    paths: tuple[str, ...]
    """Dotted paths with ``*`` for each element, such as ``events.*``, or ``*`` if the body is an array; the items of
    all paths are used, in this order."""
    id: EventId = msgspec.field(default_factory=EventId)
    """`Json` selectors relative to the item; if none has a value, the item's content is its key."""
    type: EventType = msgspec.field(default_factory=EventType)
    """`Json` selectors relative to the item; if none has a value, the request's type is used."""
    around: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """By path: keys of the object whose array holds the item, such as a time; their values are part of the item's
    content if that is its key."""


# Handshakes before events are sent.


class Echo(msgspec.Struct, frozen=True, kw_only=True):
    """Reply with a text of the challenge."""

    selector: Selector
    wrap: str = ""
    """For JSON: the key of the object around the text, such as ``verification``; empty for plain text."""
    allowed: re.Pattern[str] = PRINTABLE
    """Pattern for the whole text; other texts are rejected."""


class StaticAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Reply with a fixed text."""

    body: str = ""
    setting: str = ""
    """The source's setting that holds the reply, instead of `body`."""
    content_type: str = PLAIN_TEXT


class SignText(msgspec.Struct, frozen=True, kw_only=True):
    """Reply with a MAC over a text of the challenge, made with the source's first secret.

    It signs text of an unauthenticated client with the key that signs events, so `allowed` must exclude everything that
    an event's signature could cover.
    """

    selector: Selector
    allowed: re.Pattern[str]
    """Pattern for the whole text; no signed request may match it."""
    template: str
    """The reply, with ``{text}``, ``{mac}`` and the source's settings by name; in JSON, values are escaped as strings.
    """
    content_type: str = JSON
    algorithm: Algorithm = Algorithm.SHA256
    encoding: Encoding = Encoding.HEX
    key_form: KeyFormat = KeyFormat.TEXT


class ConfirmByFetch(msgspec.Struct, frozen=True, kw_only=True):
    """Fetch a URL of the challenge, on the sender's own host, and reply with 200."""

    selector: Selector
    pattern: re.Pattern[str]
    """Pattern for the whole URL: scheme, host and path."""


class CaptureSecret(msgspec.Struct, frozen=True, kw_only=True):
    """Store a secret that the sender sends once, if the source has none, and reply with 200."""

    selector: Selector
    allowed: re.Pattern[str]


class Handshake(msgspec.Struct, frozen=True, kw_only=True):
    """A challenge that the sender sends before events, and its reply."""

    when: tuple[Selector | tuple[Selector, str], ...]
    """Selectors that must have a value, or exactly the given text, in a challenge; all must match."""
    answer: Echo | StaticAnswer | SignText | ConfirmByFetch | CaptureSecret
    unless: tuple[Selector, ...] = ()
    """Selectors with a value in events and never in the challenge, so that an event that resembles it is not lost."""
    method: str = "POST"
    is_proven: bool = True
    """Whether it is answered only after the request's proof is verified; some senders send it before they can sign."""
    token: tuple[Selector, str] | None = None
    """A selector that must have the value of one of the source's settings, such as Meta's ``hub.verify_token``."""
    status: int = 200


class ExpectedReply(msgspec.Struct, frozen=True, kw_only=True):
    """The reply a sender expects for an accepted request."""

    body: tuple[str | Selector, ...] = ()
    """Text, and selectors whose text is inserted, such as ``("OK", Form("InvId"))``."""
    status: int = 200
    content_type: str = PLAIN_TEXT
    only_with: tuple[Selector, ...] = ()
    """Selectors of which one must have a value; other requests get boathook's own reply. If empty, all requests get
    this one."""


# Recipes.

MIB: Final = 1 << 20


class BodyFormat(StrEnum):
    """The format of a sender's bodies."""

    JSON = "json"
    """Always JSON: another body is rejected, even if verified."""
    ANY = "any"
    """Any format; fields are read if it is JSON or a form."""


class Confidence(StrEnum):
    """The source of a fact."""

    PRIMARY = "V"
    """From the vendor's own documentation or code."""
    SECONDARY = "S"
    """From another source."""
    MEMORY = "R"
    """Not verified."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """A provider-specific setting of a source."""

    name: str
    help: str
    """One sentence for users, without a full stop."""
    is_required: bool = False
    default: str = ""
    choices: tuple[str, ...] = ()
    is_secret: bool = False


class SecretForm(msgspec.Struct, frozen=True, kw_only=True):
    """The form of the secrets that a sender issues, so that another value in their place is found before a request."""

    prefix: str = ""
    """How each of them begins; more follows. Empty: not all begin alike."""
    others: Mapping[str, str] = msgspec.field(default_factory=dict)
    """What the sender's other values are, by regular expressions of how they begin: ``sk_`` is ``an API key``. None of
    them can be a secret."""

    def find_fault(self, secret: str) -> str:
        """Return what is wrong with a secret, without showing it; empty if it may have this form."""
        if self.prefix and secret.startswith(self.prefix) and len(secret) > len(self.prefix):
            return ""
        kind = next((kind for start, kind in self.others.items() if re.match(start, secret)), "")
        begins = f"it begins with {self.prefix}" if self.prefix else ""
        return "; ".join(part for part in (begins, f"this is {kind}" if kind else "") if part)


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """An example request of this sender, before it is signed; for tests, demonstrations and ``sources test``."""

    body: bytes
    """Its event id contains ``boathook-sample`` if the sender's id format allows it."""
    content_type: str = JSON
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The headers that hold id and type, if these are in headers; lower-case names."""
    query: str = ""
    method: str = "POST"
    settings: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Settings the source needs for it."""
    secret: str = "boathook-sample-secret"
    """A secret in the format of this sender; for key pairs, `boathook.testing` derives the public key."""


class Recipe(msgspec.Struct, frozen=True, kw_only=True):
    """All facts about one sender."""

    name: str
    title: str
    docs: str
    """URL of the sender's own documentation."""
    grade: ProofStrength
    """The coverage of its proof."""
    proof: Proof
    sample: Sample
    aliases: tuple[str, ...] = ()
    id: EventId = msgspec.field(default_factory=EventId)
    type: EventType = msgspec.field(default_factory=EventType)
    items: BatchItems | None = None
    """For senders of batches."""
    body: BodyFormat = BodyFormat.JSON
    volatile: tuple[str, ...] = ()
    """JSON paths that may differ between two copies of one event; ``*`` as in `BatchItems.paths`, for items."""
    keep: tuple[str, ...] = ()
    """Headers stored with the event, besides content-type, user-agent and those of id and type."""
    handshakes: tuple[Handshake, ...] = ()
    reply: ExpectedReply | None = None
    """The reply it expects; None for any 2xx."""
    methods: frozenset[str] = frozenset({"POST"})
    """HTTP methods of events; handshakes add their own methods."""
    stop_statuses: frozenset[int] = frozenset()
    """Statuses that make this sender stop retrying or disable the webhook; boathook never sends them by accident."""
    settings: tuple[Setting, ...] = ()
    example_settings: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Settings in the example of a source's table that have defaults but usually need other values."""
    schemes: Mapping[str, "Recipe"] = msgspec.field(default_factory=dict)
    """Alternative proofs of this sender, selected by the source's ``scheme`` setting."""
    has_empty_error_body: bool = False
    """Whether it accepts even an error reply only with an empty body."""
    answer_within_s: float | None = None
    """How long it waits for a reply, in seconds; None if not documented."""
    max_body: int | None = None
    """The largest body that it documents, in bytes; None if unknown. Where it says MB, MiB are meant here."""
    retries: str = ""
    """Its retry policy, as a short text for users."""
    retries_for_days: float | None = None
    """Days from the first attempt to the last; dedup keys are kept longer. None if unknown."""
    checked: tuple[str, ...] = ()
    """The libraries and vectors it is tested against, as texts for users: ``stripe (Python), both ways``, ``3 vectors
    of its documentation``."""
    setup: tuple[str, ...] = ()
    """How to set up its webhook, as steps for users; ``{url}`` stands for the source's URL."""
    secret_form: SecretForm | None = None
    """The form of its secrets; None if the sender documents none, or the user chooses them."""
    is_secret_chosen: bool = False
    """Whether the user chooses the secret, so that boathook can generate it."""
    confidence: Mapping[str, Confidence] = msgspec.field(default_factory=dict)
    """Confidence by field name; fields not listed are from the vendor's own documentation or code."""
    configure: Callable[[Options, "Recipe"], "Recipe"] | None = None
    """For settings that need code: returns the recipe of one source from its settings."""

    @property
    def signs_url(self) -> bool:
        """Whether the signature covers the URL, so that the source needs its public URL."""
        return self.needs_url or (isinstance(self.proof, Hmac) and "{url}" in self.proof.template)

    @property
    def signs_time(self) -> bool:
        """Whether the proof covers a time that is checked, so that a captured request is worthless later."""
        match self.proof:
            case Hmac():
                return "{timestamp}" in self.proof.template
            case FieldMac() | Asymmetric():
                return self.proof.timestamp is not None
            case Jwt():
                return self.proof.must_expire
            case _:
                return False

    @property
    def signs_id(self) -> bool:
        """Whether the proof covers the event's id, or those of its items."""
        is_signed = self.grade in {ProofStrength.BODY, ProofStrength.METADATA}
        has_id = bool(self.id.selectors) or (self.items is not None and bool(self.items.id.selectors))
        return is_signed and has_id and self.id.is_signed

    @property
    def retries_keep_id(self) -> bool | None:
        """Whether the sender's retries carry the id of the first attempt; None if that is unconfirmed."""
        if self.id.is_kept_in_retries is not None or not self.id.selectors:
            return self.id.is_kept_in_retries
        parts = (
            part
            for selector in self.id.selectors
            for part in (selector if isinstance(selector, tuple) else (selector,))
        )
        return True if all(isinstance(part, Json | Form) for part in parts) else None

    @property
    def can_be_repeated(self) -> bool:
        """Whether a captured request can be sent again under another id at any time: neither id nor time is signed."""
        is_signed = self.grade in {ProofStrength.BODY, ProofStrength.METADATA}
        return is_signed and bool(self.id.selectors) and not (self.signs_id or self.signs_time)

    @property
    def takes_secrets(self) -> bool:
        """Whether a source has secrets that prove its requests; sources with fetched keys have none."""
        match self.proof:
            case NoProof() | Addresses() | Asymmetric(key=FetchedKey()) | Jwt(key_set=str()):
                return False
            case _:
                return True

    @property
    def has_secret_form(self) -> bool:
        """Whether not every text can be one of its secrets."""
        match self.proof:
            case Asymmetric(key=ConfiguredKey()):
                return True
            case Hmac(key_form=form) | FieldMac(key_form=form) if form not in {KeyFormat.TEXT, KeyFormat.SHA1}:
                return True
            case _:
                return self.secret_form is not None and bool(self.secret_form.prefix)

    @property
    def has_event_types(self) -> bool:
        """Whether its requests or their items can state a type; otherwise the type is always ``unknown``."""
        return self.type.is_named or (self.items is not None and self.items.type.is_named)

    needs_url: bool = False
    """For proofs whose `read_signed_parts` reads the URL."""

    def describe(self) -> dict[str, Any]:
        """Return the recipe as plain JSON values, for listings."""
        return {
            "name": self.name,
            "title": self.title,
            "aliases": list(self.aliases),
            "grade": self.grade.value,
            "docs": self.docs,
            "schemes": sorted(self.schemes),
            "signs_url": self.signs_url,
            "signs_time": self.signs_time,
            "signs_id": self.signs_id,
            "retries_keep_id": self.retries_keep_id,
            "batches": self.items is not None,
            "setup": list(self.setup),
            "settings": {setting.name: setting.help for setting in self.settings},
            "answer_within_s": self.answer_within_s,
            "max_body": self.max_body,
            "retries": self.retries,
            "retries_for_days": self.retries_for_days,
            "stop_statuses": sorted(self.stop_statuses),
            "checked": list(self.checked),
            "sure": {fact: confidence.value for fact, confidence in self.confidence.items()},
        }
