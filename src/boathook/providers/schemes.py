"""Signature schemes as data: a MAC, a hash or a signature over signed parts, a token, an address.

A proof says what must be checked; `boathook.verification` has the code that checks it.
"""

import re
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

import msgspec

from boathook.domain.signing import Algorithm, Encoding, KeyFormat
from boathook.providers.request_reader import BasicPassword, Form, Header, Json, Query, RequestReader, Selector
from boathook.providers.signature_formats import Plain, SignatureFormat

TOLERANCE_S: Final = 300.0
"""Maximum distance of a signed timestamp from now, in the past or the future, unless the source overrides it."""


class SignatureHeaders(msgspec.Struct, frozen=True, kw_only=True):
    """The header names of one sender's proof, in lower case."""

    signature: str
    timestamp: str | None = None
    id: str | None = None


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
    proof_headers: tuple[str, ...] = ()
    """As `FieldMac.proof_headers`."""
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
