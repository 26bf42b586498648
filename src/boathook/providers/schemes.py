"""Signature schemes as data: a MAC, a hash or signature over stated bytes, a token, an address.

A proof says what is to be checked; `boathook.ingest` has the code that checks it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from boathook.domain.signing import Algorithm, Encoding, KeyFormat
from boathook.providers.request_reader import BasicPassword, Form, Header, Json, Query, RequestReader, Selector
from boathook.providers.signature_formats import Plain, SignatureFormat

TOLERANCE_S: Final = 300.0
"""How far a signed timestamp may lie in the past or the future, unless the source says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignatureHeaders:
    """The names under which one sender's proof travels; lower case."""

    signature: str
    timestamp: str | None = None
    id: str | None = None


class TimestampFormat(StrEnum):
    """How a timestamp is written."""

    SECONDS = "s"
    MILLISECONDS = "ms"
    ISO = "iso"
    """ISO 8601, such as ``2026-11-21T10:00:00Z``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hmac:
    """A MAC over a template of the request's parts; the signature stands in a header."""

    headers: tuple[SignatureHeaders, ...]
    """Alternative sets of names; the first whose signature header is present is used."""
    template: str = "{body}"
    """The signed bytes, from ``{body} {timestamp} {id} {url} {path} {method}`` and literal text."""
    form: SignatureFormat = field(default_factory=Plain)
    algorithm: Algorithm = Algorithm.SHA256
    encoding: Encoding = Encoding.HEX
    key_form: KeyFormat = KeyFormat.TEXT
    time_unit: TimestampFormat = TimestampFormat.SECONDS
    tolerance_s: float = TOLERANCE_S
    any_header: bool = False
    """Whether the signatures of all the sets count, as DocuSign sends one header for each key."""


class SignedPart(NamedTuple):
    """One thing that a request states under a signature."""

    selector: Selector
    """Where that signature stands; a `Json` path without ``*``."""
    signed: bytes
    alternatives: tuple[bytes, ...] = ()
    """Other bytes that may have been signed instead, for MACs of a sender that is not of one mind; a few at most."""


SignedParts = tuple[SignedPart, ...]
ReadSignedParts = Callable[[RequestReader, str], SignedParts | str]
"""Gives what a request states, by what it holds and the secret (for hashes that mix the secret in).

Every statement must be signed right. Text says, for the operator, what the request lacks to state anything."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedTimestamp:
    """A timestamp that the signature covers."""

    selector: Selector
    unit: TimestampFormat = TimestampFormat.SECONDS
    tolerance_s: float = TOLERANCE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldMac:
    """A MAC, or a plain hash with the secret mixed in, over chosen fields of the request."""

    read_signed_parts: ReadSignedParts
    is_keyed: bool = True
    """False: `algorithm` is used as a plain hash, and `read_signed_parts` mixes the secret into the bytes."""
    form: SignatureFormat = field(default_factory=Plain)
    algorithm: Algorithm = Algorithm.SHA256
    encoding: Encoding = Encoding.HEX
    key_form: KeyFormat = KeyFormat.TEXT
    timestamp: SignedTimestamp | None = None
    proof_headers: tuple[str, ...] = ()
    """Headers that `read_signed_parts` reads, lower case: a rejection must keep them to be judged again."""
    is_signed_once: bool = False
    """Whether no two events are ever signed alike, so that what is signed stands for the event against replays; for
    proofs that leave the body unsigned."""


class SignatureAlgorithm(StrEnum):
    """A kind of asymmetric signature."""

    RSA_SHA1 = "RSA PKCS#1 v1.5 with SHA-1"
    RSA_SHA256 = "RSA PKCS#1 v1.5 with SHA-256"
    ECDSA_SHA256 = "ECDSA P-256 with SHA-256"
    ED25519 = "Ed25519"


class PublicKeyFormat(StrEnum):
    """How a public key is written where the owner pastes it."""

    PEM = "PEM"
    """``-----BEGIN PUBLIC KEY-----`` or a certificate."""
    SPKI = "base64 of SubjectPublicKeyInfo"
    HEX = "hexadecimal"
    """The 32 bytes of an Ed25519 key."""
    STANDARD = "whpk_"
    """Standard Webhooks: ``whpk_`` and the base64 of the 32 bytes of an Ed25519 key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfiguredKey:
    """The sender's public keys stand in the source's ``secrets``."""

    text: PublicKeyFormat


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedKey:
    """The request names the address of the sender's certificate, which must lie where the sender keeps them."""

    selector: Selector
    pattern: re.Pattern[str]
    """What the whole address must match: scheme, host and path; a stranger must not choose the host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asymmetric:
    """A signature made with the sender's private key over stated bytes."""

    read_signed_parts: ReadSignedParts
    scheme: SignatureAlgorithm | Callable[[RequestReader], SignatureAlgorithm | str]
    """Text says, for the operator, why the request's own choice of scheme is refused."""
    key: ConfiguredKey | FetchedKey
    form: SignatureFormat = field(default_factory=Plain)
    encoding: Encoding = Encoding.BASE64
    timestamp: SignedTimestamp | None = None
    proof_headers: tuple[str, ...] = ()
    """As `FieldMac.proof_headers`."""
    is_signed_once: bool = False
    """As `FieldMac.is_signed_once`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Jwt:
    """A JSON Web Token (RFC 7519) whose claims tie it to the request, or to its addressee at least."""

    header: str
    prefix: str = ""
    """What stands before the token, such as ``Bearer`` and a space."""
    algorithms: tuple[str, ...]
    """Those accepted, such as ``HS256``; never what the token asks for."""
    key_set: str | None = None
    """Address of the issuer's public keys (a JWK set, RFC 7517); None: the source's secrets, as text."""
    issuers: tuple[str, ...] = ()
    """Values of ``iss`` accepted; empty: any."""
    must_expire: bool = True
    judge: Callable[[Mapping[str, Any], RequestReader], str | None]
    """Says, for the operator, what is wrong with the claims; None where they fit the request and the settings."""
    claim: Callable[[RequestReader, float], dict[str, Any]]
    """What this sender claims of a request made at a moment, in seconds since 1970; for `boathook.testing`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A static secret sent along; it proves the sender but covers nothing of the request."""

    selector: Header | Query | Form | Json | BasicPassword
    """A `Json` path with ``*`` demands the token of every element, of which there must be one."""
    prefix: str = ""
    """What stands before the token, such as ``Bearer`` and a space."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """The sender's networks are all there is to go by; the source's ``addresses`` setting replaces them."""

    networks: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class NoProof:
    """Anybody may send; only ever by the owner's explicit ``unsigned = true``."""


Proof = Hmac | FieldMac | Asymmetric | Jwt | Token | Addresses | NoProof
