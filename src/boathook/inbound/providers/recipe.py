"""The shape of a recipe: how one sender signs, names its events, shakes hands and wants to be answered.

A recipe is data. What is done with it stands in `boathook.inbound.proof` (is it genuine?) and
`boathook.inbound.verify` (what does it bring?).
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from boathook.domain.model import Grade
from boathook.domain.signing import Algorithm, Encoding, KeyForm
from boathook.inbound.providers.places import Header, Place, Query

if TYPE_CHECKING:
    from boathook.inbound.providers.options import Options
    from boathook.inbound.verdict import Reply

MAX_SIGNATURES: Final = 16
"""Signatures tried from one header; senders rotate between two or three."""

_SCHEME: Final = re.compile(r"[A-Za-z0-9]{1,12}(?=[=,])")


# How a signature header is written.


class Parsed(NamedTuple):
    """What a signature header holds."""

    signatures: tuple[str, ...] = ()
    """Of the scheme looked for; at most `MAX_SIGNATURES`."""
    timestamp: str | None = None
    problem: str | None = None
    """Why the header cannot be read at all; None where it could, even if no signature of the scheme is in it."""
    seen: tuple[str, ...] = ()
    """Names of the schemes that are there instead, for the operator."""


@dataclass(frozen=True, slots=True)
class Plain:
    """The signature alone, perhaps behind a prefix such as ``sha256=``; several separated by commas."""

    prefix: str = ""

    def read(self, value: str) -> Parsed:
        """Read a header's value."""
        prefix = self.prefix
        if "," not in value:
            word = value.strip()
            if word.startswith(prefix):
                return Parsed((word[len(prefix) :],))
            return Parsed(seen=(_scheme(word),))
        words = [word.strip() for word in value.split(",", MAX_SIGNATURES)[:MAX_SIGNATURES]]
        fitting = tuple(word[len(prefix) :] for word in words if word.startswith(prefix))
        return Parsed(fitting, seen=tuple(_scheme(word) for word in words if not word.startswith(prefix)))

    def write(self, signatures: list[str], _timestamp: str | None) -> str:
        """Write what `read` reads."""
        return ",".join(self.prefix + signature for signature in signatures)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Named values such as ``t=1700000000,v1=…``; unknown names are passed over, as senders add them."""

    signature: str
    timestamp: str | None = None
    separator: str = ","

    def read(self, value: str) -> Parsed:
        """Read a header's value."""
        signatures: list[str] = []
        seen: list[str] = []
        stamp: str | None = None
        for pair in value.split(self.separator, 2 * MAX_SIGNATURES)[: 2 * MAX_SIGNATURES]:
            name, equals, text = pair.strip().partition("=")
            if not equals:
                return Parsed(problem=f"one of its parts separated by {self.separator!r} has no equals sign")
            if name == self.signature:
                signatures.append(text)
            elif name == self.timestamp:
                if stamp is not None:
                    return Parsed(problem=f"it holds {name}= twice")
                stamp = text
            else:
                seen.append(_scheme(pair.strip()))
        return Parsed(tuple(signatures[:MAX_SIGNATURES]), stamp, seen=tuple(seen))

    def write(self, signatures: list[str], timestamp: str | None) -> str:
        """Write what `read` reads."""
        pairs = [] if self.timestamp is None else [f"{self.timestamp}={timestamp}"]
        return self.separator.join([*pairs, *(f"{self.signature}={signature}" for signature in signatures)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Versioned:
    """Standard Webhooks: ``v1,`` and the signature, several separated by spaces."""

    version: str = "v1"

    def read(self, value: str) -> Parsed:
        """Read a header's value."""
        signatures: list[str] = []
        seen: list[str] = []
        for word in value.split(None, MAX_SIGNATURES)[:MAX_SIGNATURES]:
            version, comma, text = word.partition(",")
            if not comma:
                return Parsed(problem="one of its parts separated by spaces has no comma")
            if version == self.version:
                # A repeated header was joined by a comma and a space, so a comma may trail.
                signatures.append(text.rstrip(","))
            else:
                seen.append(_scheme(version + ","))
        return Parsed(tuple(signatures), seen=tuple(seen))

    def write(self, signatures: list[str], _timestamp: str | None) -> str:
        """Write what `read` reads."""
        return " ".join(f"{self.version},{signature}" for signature in signatures)


SignatureForm = Plain | Pairs | Versioned


def _scheme(word: str) -> str:
    # Only the name in front is shown: the rest could be a credential sent to the wrong header.
    name = _SCHEME.match(word)
    return name[0] if name else "no scheme's name"


# What makes a request genuine.


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedHeaders:
    """The names under which one sender's proof travels; lower case."""

    signature: str
    timestamp: str | None = None
    id: str | None = None


class TimeUnit(StrEnum):
    """How a timestamp is written."""

    SECONDS = "s"
    MILLISECONDS = "ms"
    ISO = "iso"
    """ISO 8601, such as ``2026-11-21T10:00:00Z``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hmac:
    """A MAC over a template of the request's parts."""

    headers: tuple[SignedHeaders, ...]
    """Alternative sets of names; the first whose signature header is present is used."""
    template: str = "{body}"
    """The signed bytes, from ``{body} {timestamp} {id} {url} {path} {method}`` and literal text."""
    form: SignatureForm = field(default_factory=Plain)
    algorithm: Algorithm = Algorithm.SHA256
    encoding: Encoding = Encoding.HEX
    key_form: KeyForm = KeyForm.TEXT
    time_unit: TimeUnit = TimeUnit.SECONDS
    tolerance_s: float = 300.0
    """How far a signed timestamp may lie in the past or the future."""


@dataclass(frozen=True, slots=True)
class Basic:
    """The password of HTTP Basic authentication (RFC 7617), under one user name."""

    username: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A static secret sent along; it proves the sender but covers nothing of the request."""

    place: Header | Query | Basic
    prefix: str = ""
    """What stands before the token, such as ``Bearer`` and a space."""


@dataclass(frozen=True, slots=True)
class NoProof:
    """Anybody may send; only ever by the owner's explicit ``unsigned = true``."""


Proof = Hmac | Token | NoProof


# What an event is called, and how a sender wants to be talked to.


@dataclass(frozen=True, slots=True, kw_only=True)
class EventId:
    """Where the sender's id of an event stands."""

    places: tuple[Place | tuple[Place, ...], ...] = ()
    """The first that holds something counts; a tuple is composed, and must be there whole."""
    is_signed: bool = True
    """Whether the signature covers it; else a captured body could come back under another id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventType:
    """Where the name of what happened stands."""

    places: tuple[Place | tuple[Place, ...], ...] = ()
    """The first that holds something counts; the parts of a tuple that are there are joined by dots."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handshake:
    """A question the sender asks before events flow; answered only once the request's proof has held."""

    when: Place
    equals: str
    """The text at `when` that makes a request the question."""
    echo: Place
    """Whose text is the answer."""
    status: int = 200
    content_type: str = "text/plain; charset=utf-8"


class BodyForm(StrEnum):
    """What a sender's bodies are."""

    JSON = "json"
    """Always JSON: another body, though proven, is refused."""
    ANY = "any"
    """JSON or not; facts are read from it where it is JSON or a form."""


class Sure(StrEnum):
    """How a fact is known."""

    PRIMARY = "V"
    """Read in the vendor's own documentation or code."""
    SECONDARY = "S"
    """Read elsewhere."""
    MEMORY = "R"
    """Unchecked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything boathook knows of one sender."""

    name: str
    title: str
    docs: str
    """Address of the sender's own documentation."""
    grade: Grade
    """What its proof covers."""
    proof: Proof
    aliases: tuple[str, ...] = ()
    id: EventId = field(default_factory=EventId)
    type: EventType = field(default_factory=EventType)
    body: BodyForm = BodyForm.JSON
    volatile: tuple[str, ...] = ()
    """JSON paths that may differ between two sendings of one event."""
    keep: tuple[str, ...] = ()
    """Headers stored with the event, besides content-type, user-agent and those of id and type."""
    handshakes: tuple[Handshake, ...] = ()
    reply: "Reply | None" = None
    """The answer it wants; None for any 2xx."""
    methods: frozenset[str] = frozenset({"POST"})
    answer_within_s: float | None = None
    """How long it waits for an answer; None where not published."""
    retries: str = ""
    """Its retry habit, in a few words for people."""
    sure: Mapping[str, Sure] = field(default_factory=dict)
    """How sure each fact is, by field name; facts not named are read in the vendor's own documentation or code."""
    configure: "Callable[[Options, Recipe], Recipe] | None" = None
    """For generic recipes: makes the recipe of one source from its settings."""

    def describe(self) -> dict[str, Any]:
        """Return what listings show of it, as plain JSON values."""
        return {
            "name": self.name,
            "title": self.title,
            "aliases": list(self.aliases),
            "grade": self.grade.value,
            "docs": self.docs,
            "answer_within_s": self.answer_within_s,
            "retries": self.retries,
            "sure": {fact: sure.value for fact, sure in self.sure.items()},
        }
