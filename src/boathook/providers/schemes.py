"""Signature schemes as data: a MAC, a hash or a signature over signed parts, a token, an address.

A template says which bytes are signed, a signature format how the signature is written into a header or field.

A proof says what must be checked; `boathook.verification` has the code that checks it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from boathook.domain.signing import Algorithm, Encoding, KeyFormat
from boathook.domain.verification import Request
from boathook.providers.request_reader import BasicPassword, Form, Header, Json, Query, RequestReader, Selector

Field = Callable[[Request, str, str], bytes]
"""Returns one field's bytes from the request, the timestamp's text and the id's text."""

# Header values were decoded as Latin-1, so encoding them as Latin-1 restores the original bytes.
_FIELDS: Final[dict[str, Field]] = {
    "body": lambda request, _stamp, _id: request.body,
    "timestamp": lambda _request, timestamp, _id: timestamp.encode("latin-1", "replace"),
    "id": lambda _request, _stamp, identifier: identifier.encode("latin-1", "replace"),
    "url": lambda request, _stamp, _id: request.url.encode("utf-8", "replace"),
    "path": lambda request, _stamp, _id: request.path.encode("utf-8", "replace"),
    "method": lambda request, _stamp, _id: request.method.encode("utf-8", "replace"),
}
_HOLE: Final = re.compile(r"\{([^{}]*)\}")


def fields_of(template: str) -> frozenset[str]:
    """Return the names of the fields a template uses.

    Raises:
        ValueError: it uses an unknown field, or has an unmatched brace.
    """
    names = frozenset(_HOLE.findall(template))
    fields = ", ".join(f"{{{name}}}" for name in _FIELDS)
    for name in names - _FIELDS.keys():
        raise ValueError(f"there is no field {{{name}}}; write {fields} and literal text")
    if {"{", "}"} & set(_HOLE.sub("", template)):
        raise ValueError(f"unmatched brace; write {fields} and literal text")
    return names


class Template:
    """A parsed template; `fill` returns the signed bytes of one request."""

    __slots__ = ("_parts", "fields", "id_stop")

    def __init__(self, template: str) -> None:
        self.fields = fields_of(template)
        # Splitting at a pattern with one group gives literals and names alternately.
        pieces = _HOLE.split(template)
        self._parts: tuple[bytes | Field, ...] = tuple(
            _FIELDS[piece] if position % 2 else piece.encode() for position, piece in enumerate(pieces)
        )
        self.id_stop = pieces[pieces.index("id", 1) + 1][:1] if "id" in self.fields else ""
        """The character that ends an id: an id that contains it would be ambiguous."""

    def fill(self, request: Request, timestamp: str, identifier: str) -> list[bytes]:
        """Return the signed bytes in pieces, so that a large body is never copied."""
        return [part if isinstance(part, bytes) else part(request, timestamp, identifier) for part in self._parts]


MAX_SIGNATURES: Final = 16
"""Maximum signatures tried from one header; senders rotate between two or three."""

_SCHEME: Final = re.compile(r"[A-Za-z0-9]{1,12}(?=[=,])")


class ParsedSignatures(NamedTuple):
    """The parsed content of a signature header."""

    signatures: tuple[str, ...] = ()
    """Signatures of the expected scheme; at most `MAX_SIGNATURES`."""
    timestamp: str | None = None
    problem: str | None = None
    """Why the header is malformed; None if it is well-formed, even without a signature of the scheme."""
    seen: tuple[str, ...] = ()
    """Names of other schemes found in the header, for the operator."""


class Plain(msgspec.Struct, frozen=True):
    """The signature alone, optionally with a prefix such as ``sha256=``; several separated by commas."""

    prefix: str = ""
    is_prefix_optional: bool = False
    """Whether a signature without an equals sign needs no prefix; for hexadecimal signatures only."""

    @property
    def expected_text(self) -> str:
        """The format that `read` expects, for the operator."""
        return f"{self.prefix}…"

    def read(self, value: str) -> ParsedSignatures:
        """Parse a header's value."""
        prefix = self.prefix
        if "," not in value:
            word = value.strip()
            if self._fits(word):
                return ParsedSignatures((word.removeprefix(prefix),))
            return ParsedSignatures(seen=(_scheme_name(word),))
        words = [word.strip() for word in value.split(",", MAX_SIGNATURES)[:MAX_SIGNATURES]]
        fitting = tuple(word.removeprefix(prefix) for word in words if self._fits(word))
        return ParsedSignatures(fitting, seen=tuple(_scheme_name(word) for word in words if not self._fits(word)))

    def _fits(self, word: str) -> bool:
        return word.startswith(self.prefix) or (self.is_prefix_optional and "=" not in word)

    def write(self, signatures: list[str], _timestamp: str | None) -> str:
        """Format signatures for `read`."""
        return ",".join(self.prefix + signature for signature in signatures)


class Pairs(msgspec.Struct, frozen=True, kw_only=True):
    """Named values such as ``t=1700000000,v1=…``; unknown names are ignored, because senders add names."""

    signature: str
    timestamp: str | None = None
    separator: str = ","

    @property
    def expected_text(self) -> str:
        """The format that `read` expects, for the operator."""
        return f"{self.signature}=…"

    def read(self, value: str) -> ParsedSignatures:
        """Parse a header's value."""
        signatures: list[str] = []
        seen: list[str] = []
        timestamp: str | None = None
        for pair in value.split(self.separator, 2 * MAX_SIGNATURES)[: 2 * MAX_SIGNATURES]:
            name, equals, text = pair.strip().partition("=")
            if not equals:
                return ParsedSignatures(problem=f"one of its parts separated by {self.separator!r} has no equals sign")
            if name == self.signature:
                signatures.append(text)
            elif name == self.timestamp:
                if timestamp is not None:
                    return ParsedSignatures(problem=f"it contains {name}= twice")
                timestamp = text
            else:
                seen.append(_scheme_name(pair.strip()))
        return ParsedSignatures(tuple(signatures[:MAX_SIGNATURES]), timestamp, seen=tuple(seen))

    def write(self, signatures: list[str], timestamp: str | None) -> str:
        """Format signatures for `read`."""
        pairs = [] if self.timestamp is None else [f"{self.timestamp}={timestamp}"]
        return self.separator.join([*pairs, *(f"{self.signature}={signature}" for signature in signatures)])


class Versioned(msgspec.Struct, frozen=True, kw_only=True):
    """Standard Webhooks: ``v1,`` and the signature, several separated by spaces."""

    version: str = "v1"

    @property
    def expected_text(self) -> str:
        """The format that `read` expects, for the operator."""
        return f"{self.version},…"

    def read(self, value: str) -> ParsedSignatures:
        """Parse a header's value."""
        signatures: list[str] = []
        seen: list[str] = []
        for word in value.split(None, MAX_SIGNATURES)[:MAX_SIGNATURES]:
            version, comma, text = word.partition(",")
            if not comma:
                return ParsedSignatures(problem="one of its parts separated by spaces has no comma")
            if version == self.version:
                # A repeated header was joined by a comma and a space, so a comma may trail.
                signatures.append(text.rstrip(","))
            else:
                seen.append(_scheme_name(version + ","))
        return ParsedSignatures(tuple(signatures), seen=tuple(seen))

    def write(self, signatures: list[str], _timestamp: str | None) -> str:
        """Format signatures for `read`."""
        return " ".join(f"{self.version},{signature}" for signature in signatures)


class KeyedPairs(msgspec.Struct, frozen=True):
    """Braintree: ``public_key|signature``, several separated by ``&``; those of other public keys are ignored."""

    public_key: str = ""
    """The source's own key, from its settings."""

    @property
    def expected_text(self) -> str:
        """The format that `read` expects, for the operator."""
        return f"{self.public_key}|…"

    def read(self, value: str) -> ParsedSignatures:
        """Parse a field's value."""
        signatures: list[str] = []
        others = 0
        for pair in value.split("&", MAX_SIGNATURES)[:MAX_SIGNATURES]:
            key, bar, text = pair.partition("|")
            if not bar:
                return ParsedSignatures(problem="one of its parts separated by & has no bar")
            if key == self.public_key:
                signatures.append(text)
            else:
                others += 1
        return ParsedSignatures(tuple(signatures), seen=("a signature under another public key",) * bool(others))

    def write(self, signatures: list[str], _timestamp: str | None) -> str:
        """Format signatures for `read`."""
        return "&".join(f"{self.public_key}|{signature}" for signature in signatures)


SignatureFormat = Plain | Pairs | Versioned | KeyedPairs


def _scheme_name(word: str) -> str:
    # Only the leading name is shown: the rest could be a credential sent in the wrong header.
    name = _SCHEME.match(word)
    return name[0] if name else "no scheme name"


TOLERANCE_S: Final = 300.0
"""Maximum distance of a signed timestamp from now, in the past or the future, unless the source overrides it."""


class SignatureHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """The header names of one sender's proof, in lower case."""

    signature: str
    timestamp: str | None = None
    id: str | None = None


def present_headers(sets: Sequence[SignatureHeaders], headers: Mapping[str, str]) -> SignatureHeaders:
    """Return the first set of names whose signature header is present, or the first of all."""
    return next((names for names in sets if names.signature in headers), sets[0])


class TimestampFormat(StrEnum):
    """The format of a timestamp."""

    SECONDS = "s"
    MILLISECONDS = "ms"
    ISO = "iso"
    """ISO 8601, such as ``2026-11-21T10:00:00Z``."""


class Hmac(msgspec.Struct, frozen=True, kw_only=True):
    """A MAC over a template of the request's parts; the signature is in a header."""

    headers: tuple[SignatureHeaders, ...]
    """Alternative sets of names; the first whose signature header is present is used."""
    template: str = "{body}"
    """The signed bytes, from ``{body} {timestamp} {id} {url} {path} {method}`` and literal text."""
    form: SignatureFormat = msgspec.field(default_factory=Plain)
    algorithm: Algorithm = Algorithm.SHA256
    encoding: Encoding = Encoding.HEX
    key_form: KeyFormat = KeyFormat.TEXT
    time_unit: TimestampFormat = TimestampFormat.SECONDS
    tolerance_s: float = TOLERANCE_S
    any_header: bool = False
    """Whether the signatures of all sets count, because DocuSign sends one header for each key."""
    url_forms: Callable[[str], tuple[str, ...]] | None = None
    """Returns the forms of the URL of which one was signed, the usual one first; None if the URL is signed as sent."""


class SignedPart(NamedTuple):
    """One part of a request that has its own signature."""

    selector: Selector
    """The location of the signature; a `Json` path without ``*``."""
    signed: bytes
    alternatives: tuple[bytes, ...] = ()
    """Other bytes that may have been signed instead, for senders that sign in several ways; at most a few."""


SignedParts = tuple[SignedPart, ...]
ReadSignedParts = Callable[[RequestReader, str], SignedParts | str]
"""Returns the signed parts of a request, from its content and the secret (for hashes that include the secret).

Every part must have a valid signature. A returned text says, for the operator, what the request lacks.
"""


class SignedTimestamp(msgspec.Struct, frozen=True, kw_only=True):
    """A timestamp that the signature covers."""

    selector: Selector
    unit: TimestampFormat = TimestampFormat.SECONDS
    tolerance_s: float = TOLERANCE_S


class FieldMac(msgspec.Struct, frozen=True, kw_only=True):
    """A MAC, or a plain hash that includes the secret, over chosen fields of the request."""

    read_signed_parts: ReadSignedParts
    is_keyed: bool = True
    """If False, `algorithm` is used as a plain hash, and `read_signed_parts` includes the secret in the bytes."""
    form: SignatureFormat = msgspec.field(default_factory=Plain)
    algorithm: Algorithm = Algorithm.SHA256
    encoding: Encoding = Encoding.HEX
    key_form: KeyFormat = KeyFormat.TEXT
    timestamp: SignedTimestamp | None = None
    proof_headers: tuple[str, ...] = ()
    """Headers that `read_signed_parts` reads, in lower case; a rejection must store them to be verified again."""
    is_signed_once: bool = False
    """Whether no two events have the same signed bytes, so that these bytes identify the event against replays; for
    proofs that leave the body unsigned."""


class SignatureAlgorithm(StrEnum):
    """A kind of asymmetric signature."""

    RSA_SHA1 = "RSA PKCS#1 v1.5 with SHA-1"
    RSA_SHA256 = "RSA PKCS#1 v1.5 with SHA-256"
    ECDSA_SHA256 = "ECDSA P-256 with SHA-256"
    ED25519 = "Ed25519"


class PublicKeyFormat(StrEnum):
    """The format of a configured public key."""

    PEM = "PEM"
    """``-----BEGIN PUBLIC KEY-----`` or a certificate."""
    SPKI = "base64 of SubjectPublicKeyInfo"
    HEX = "hexadecimal"
    """The 32 bytes of an Ed25519 key."""
    STANDARD = "whpk_"
    """Standard Webhooks: ``whpk_`` and the base64 of the 32 bytes of an Ed25519 key."""


class ConfiguredKey(msgspec.Struct, frozen=True, kw_only=True):
    """The sender's public keys are in the source's ``secrets``."""

    text: PublicKeyFormat


class FetchedKey(msgspec.Struct, frozen=True, kw_only=True):
    """The request contains the URL of the sender's certificate, which must be on the sender's own host."""

    selector: Selector
    pattern: re.Pattern[str]
    """Pattern for the whole URL: scheme, host and path; an attacker must not be able to choose the host."""


class Asymmetric(msgspec.Struct, frozen=True, kw_only=True):
    """A signature made with the sender's private key over signed parts."""

    read_signed_parts: ReadSignedParts
    scheme: SignatureAlgorithm | Callable[[RequestReader], SignatureAlgorithm | str]
    """A returned text says, for the operator, why the scheme chosen by the request is rejected."""
    key: ConfiguredKey | FetchedKey
    form: SignatureFormat = msgspec.field(default_factory=Plain)
    encoding: Encoding = Encoding.BASE64
    timestamp: SignedTimestamp | None = None
    headers: tuple[SignatureHeaders, ...] = ()
    """Alternative sets of names, as `Hmac.headers`, if the timestamp and the id are in signed headers; the timestamp's
    selector then holds the first set's name."""
    proof_headers: tuple[str, ...] = ()
    """As `FieldMac.proof_headers`; without those in `headers`."""
    is_signed_once: bool = False
    """As `FieldMac.is_signed_once`."""


class Jwt(msgspec.Struct, frozen=True, kw_only=True):
    """A JSON Web Token (RFC 7519) whose claims refer to the request, or at least to its receiver."""

    header: str
    prefix: str = ""
    """Text before the token, such as ``Bearer`` and a space."""
    algorithms: tuple[str, ...]
    """The accepted algorithms, such as ``HS256``; the token's own choice is never trusted."""
    key_set: str | None = None
    """URL of the issuer's public keys (a JWK set, RFC 7517); None for the source's secrets, as text."""
    issuers: tuple[str, ...] = ()
    """Accepted values of ``iss``; empty accepts any."""
    must_expire: bool = True
    check_claims: Callable[[Mapping[str, Any], RequestReader], str | None]
    """Returns, for the operator, what is wrong with the claims, or None if they match the request and the settings."""
    claim: Callable[[RequestReader, float], dict[str, Any]]
    """Returns this sender's claims for a request made at a time, in seconds since 1970; for `boathook.testing`."""


class Token(msgspec.Struct, frozen=True, kw_only=True):
    """A static secret in the request; it identifies the sender but covers nothing of the request."""

    selector: Header | Query | Form | Json | BasicPassword
    """A `Json` path with ``*`` requires the token in every element, and at least one element."""
    prefix: str = ""
    """Text before the token, such as ``Bearer`` and a space."""


class Addresses(msgspec.Struct, frozen=True, kw_only=True):
    """The sender's networks are the only proof; the source's ``addresses`` setting replaces them."""

    networks: tuple[str, ...]


class NoProof(msgspec.Struct, frozen=True):
    """No proof: any client may send; only with an explicit ``unsigned = true``."""


Proof = Hmac | FieldMac | Asymmetric | Jwt | Token | Addresses | NoProof
