"""The shape of a recipe: how one sender signs, names its events, shakes hands and wants to be answered.

A recipe is data. What is done with it stands in `boathook.verification` (is it genuine?) and in
`boathook.verification.verifier` (what does it bring?).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final

from boathook.domain.model import ProofStrength
from boathook.domain.signing import Algorithm, Encoding, KeyFormat
from boathook.providers.options import Options
from boathook.providers.request_reader import RequestReader, Selector
from boathook.providers.schemes import Addresses, Asymmetric, FetchedKey, Hmac, Jwt, NoProof, Proof

PLAIN_TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
PRINTABLE: Final = re.compile(r"[\x20-\x7e]{1,4096}")
FINAL_4XX: Final = frozenset({400, 403, 404, 405, 406, 410, 413, 415, 422, 429})
"""What may be answered to a proven request and ends its retries, at senders who take every 4xx for the last word."""


# What an event is called.


@dataclass(frozen=True, slots=True, kw_only=True)
class EventId:
    """Where the sender's id of an event stands."""

    selectors: tuple[Selector | tuple[Selector, ...], ...] = ()
    """The first that holds something counts; a tuple is composed, and must be there whole."""
    form: str = ""
    """How a composed id is written, with ``{}`` for each part; empty: the parts joined by dots. An id that a place
    holds by itself and that begins like one is set apart, so that nobody can choose what another event will be called.
    """
    is_signed: bool = True
    """Whether the signature covers it; else a captured body could come back under another id."""
    is_repeatable: bool = False
    """Whether the same bytes, sent again, may tell of something else, as where all a sender ever says is "look there".
    Then a request without an id is nobody's duplicate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventType:
    """Where the name of what happened stands."""

    selectors: tuple[Selector | tuple[Selector, ...], ...] = ()
    """The first that holds something counts; the parts of a tuple that are there are joined by dots."""
    first_key_except: tuple[str, ...] | None = None
    """For senders that say what happened by the key it stands under: where no place holds something, the first key of
    the JSON object that is none of these."""
    is_part_of_replay_key: bool = False
    """Whether one body may tell of several things, such as an order both created and paid, under several types: then it
    counts as a replay only under the same type."""
    read: Callable[[RequestReader], str | None] | None = None
    """For what no place can name, such as XML in a form: finds it in a proven request where no place holds something;
    one that raises has found nothing."""
    known: tuple[str, ...] = ()
    """Types, or their first parts, that the sender is known to send; a spelling close to one of them is taken for a
    mistake. Senders add types whenever they like, so others are never refused."""

    @property
    def is_named(self) -> bool:
        """Whether a request can say what happened; else the type of each is ``unknown``."""
        return bool(self.selectors) or self.first_key_except is not None or self.read is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchItems:
    """What a batch is made of: each item is deduplicated and delivered by itself."""

    paths: tuple[str, ...]
    """Dotted paths with ``*`` for each element, such as ``events.*``, or ``*`` where the body is an array; the items of
    all the paths count, in this order."""
    id: EventId = field(default_factory=EventId)
    """`Json` places seen from the item; where none holds something, the item's own content is its key."""
    type: EventType = field(default_factory=EventType)
    """`Json` places seen from the item; where none holds something, the request's type."""
    around: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By path: keys of the object whose array holds the item, such as the time of what happened; their values count as
    the item's content where that is its key."""


# How a sender wants to be talked to before events flow.


@dataclass(frozen=True, slots=True, kw_only=True)
class Echo:
    """Answer with a text of the question."""

    selector: Selector
    wrap: str = ""
    """For JSON: the key of the object around the text, such as ``verification``; empty: the bare text."""
    allowed: re.Pattern[str] = PRINTABLE
    """What the whole text must match; anything else is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StaticAnswer:
    """Answer always the same."""

    body: str = ""
    setting: str = ""
    """The source's setting that holds the answer, instead of `body`."""
    content_type: str = PLAIN_TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class SignText:
    """Answer with a MAC over a text of the question, made with the source's first secret.

    It makes us sign a stranger's words with the key that signs events, so `allowed` must keep apart what the two sign.
    """

    selector: Selector
    allowed: re.Pattern[str]
    """What the whole text must match, such that no signed request could look like it."""
    template: str
    """The answer, with ``{text}``, ``{mac}`` and the source's settings by name; for JSON both are plain words."""
    content_type: str = JSON
    algorithm: Algorithm = Algorithm.SHA256
    encoding: Encoding = Encoding.HEX
    key_form: KeyFormat = KeyFormat.TEXT


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmByFetch:
    """Fetch an address of the question, on the sender's own host, and answer 200."""

    selector: Selector
    pattern: re.Pattern[str]
    """What the whole address must match: scheme, host and path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaptureSecret:
    """Keep a secret that the sender tells once, as long as the source has none, and answer 200."""

    selector: Selector
    allowed: re.Pattern[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """A question the sender asks before events flow, and its answer."""

    when: tuple[Selector | tuple[Selector, str], ...]
    """What makes a request the question: places that hold something, or exactly that text; all of them must."""
    answer: Echo | StaticAnswer | SignText | ConfirmByFetch | CaptureSecret
    unless: tuple[Selector, ...] = ()
    """Places that hold something in an event and never in the question: an event that looks like it is not lost."""
    method: str = "POST"
    is_proven: bool = True
    """Whether it is answered only once the request's proof has held; some senders ask before they can sign."""
    token: tuple[Selector, str] | None = None
    """A place that must hold the text of one of the source's settings, such as Meta's ``hub.verify_token``."""
    status: int = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpectedReply:
    """The answer a sender wants for an accepted request."""

    body: tuple[str | Selector, ...] = ()
    """Text, and places of the request whose text goes there; such as ``("OK", Form("InvId"))``."""
    status: int = 200
    content_type: str = PLAIN_TEXT
    only_with: tuple[Selector, ...] = ()
    """Places of which one must hold something; other requests get boathook's own answer. Empty: all requests get it."""


# The whole.


class BodyFormat(StrEnum):
    """What a sender's bodies are."""

    JSON = "json"
    """Always JSON: another body, though proven, is refused."""
    ANY = "any"
    """JSON or not; facts are read from it where it is JSON or a form."""


class Confidence(StrEnum):
    """How a fact is known."""

    PRIMARY = "V"
    """Read in the vendor's own documentation or code."""
    SECONDARY = "S"
    """Read elsewhere."""
    MEMORY = "R"
    """Unchecked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A setting of a source that only this sender needs."""

    name: str
    help: str
    """One sentence for people, without a full stop."""
    is_required: bool = False
    default: str = ""
    choices: tuple[str, ...] = ()
    is_secret: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A request such as this sender makes, before it is signed; for tests, demonstrations and ``sources test``."""

    body: bytes
    """Its event id holds ``boathook-sample`` where the sender's form of id allows it."""
    content_type: str = JSON
    headers: Mapping[str, str] = field(default_factory=dict)
    """Those that name id and type, where they stand in headers; lower-case names."""
    query: str = ""
    method: str = "POST"
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings the source needs for it."""
    secret: str = "boathook-sample-secret"
    """A secret in the form this sender uses; for key pairs, the public half is derived by `boathook.testing`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything boathook knows of one sender."""

    name: str
    title: str
    docs: str
    """Address of the sender's own documentation."""
    grade: ProofStrength
    """What its proof covers."""
    proof: Proof
    sample: Sample
    aliases: tuple[str, ...] = ()
    id: EventId = field(default_factory=EventId)
    type: EventType = field(default_factory=EventType)
    items: BatchItems | None = None
    """For senders of batches."""
    body: BodyFormat = BodyFormat.JSON
    volatile: tuple[str, ...] = ()
    """JSON paths that may differ between two sendings of one event; ``*`` as in `BatchItems.paths`, for items."""
    keep: tuple[str, ...] = ()
    """Headers stored with the event, besides content-type, user-agent and those of id and type."""
    handshakes: tuple[Handshake, ...] = ()
    reply: ExpectedReply | None = None
    """The answer it wants; None for any 2xx."""
    methods: frozenset[str] = frozenset({"POST"})
    """How events are sent; handshakes add their own methods."""
    stop_statuses: frozenset[int] = frozenset()
    """Statuses by which this sender stops retrying or switches the webhook off; never sent by accident."""
    settings: tuple[Setting, ...] = ()
    schemes: Mapping[str, "Recipe"] = field(default_factory=dict)
    """Other ways in which this sender may prove itself, chosen by the source's ``scheme`` setting."""
    has_empty_error_body: bool = False
    """Whether it takes even a refusal only with an empty body."""
    answer_within_s: float | None = None
    """How long it waits for an answer; None where not published."""
    retries: str = ""
    """Its retry habit, in a few words for people."""
    retries_for_days: float | None = None
    """How long after the first sending the last one may come; dedup memory outlives it. None where not known."""
    checked: tuple[str, ...] = ()
    """What it is tested against, for people: ``stripe (Python), both ways``, ``3 vectors of its documentation``."""
    setup: tuple[str, ...] = ()
    """How its webhook is set up, as steps for people; ``{url}`` stands for the source's address."""
    is_secret_chosen: bool = False
    """Whether its user chooses the secret, so that boathook can make one."""
    confidence: Mapping[str, Confidence] = field(default_factory=dict)
    """How sure each fact is, by field name; facts not named are read in the vendor's own documentation or code."""
    configure: Callable[[Options, "Recipe"], "Recipe"] | None = None
    """For what `settings` cannot say: makes the recipe of one source from its settings."""

    @property
    def signs_url(self) -> bool:
        """Whether the signature covers the address, so that the source must know its public URL."""
        return self.needs_url or (isinstance(self.proof, Hmac) and "{url}" in self.proof.template)

    @property
    def takes_secrets(self) -> bool:
        """Whether a source of it has secrets that prove its requests; those whose keys are fetched have none."""
        match self.proof:
            case NoProof() | Addresses() | Asymmetric(key=FetchedKey()) | Jwt(key_set=str()):
                return False
            case _:
                return True

    @property
    def has_event_types(self) -> bool:
        """Whether its requests or their items can say what happened; else ``unknown`` is all its types there are."""
        return self.type.is_named or (self.items is not None and self.items.type.is_named)

    needs_url: bool = False
    """For proofs whose `read_signed_parts` reads the address."""

    def describe(self) -> dict[str, Any]:
        """Return what listings show of it, as plain JSON values."""
        return {
            "name": self.name,
            "title": self.title,
            "aliases": list(self.aliases),
            "grade": self.grade.value,
            "docs": self.docs,
            "schemes": sorted(self.schemes),
            "signs_url": self.signs_url,
            "batches": self.items is not None,
            "setup": list(self.setup),
            "settings": {one.name: one.help for one in self.settings},
            "answer_within_s": self.answer_within_s,
            "retries": self.retries,
            "retries_for_days": self.retries_for_days,
            "stop_statuses": sorted(self.stop_statuses),
            "checked": list(self.checked),
            "sure": {fact: confidence.value for fact, confidence in self.confidence.items()},
        }
