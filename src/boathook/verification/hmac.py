"""Checks MACs and hashes: over a template of a request's parts, or over chosen fields that include the secret."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import ClassVar, Final, NamedTuple

from msgspec.structs import replace

from boathook.domain import signing
from boathook.domain.errors import ConfigError
from boathook.domain.redaction import RedactedStruct
from boathook.domain.signing import ENCODERS, HmacKey, decode_key
from boathook.domain.verification import Reason, Rejected, Request, SourceSpec
from boathook.providers.request_reader import Header, RequestReader
from boathook.providers.schemes import (
    MAX_SIGNATURES,
    FieldMac,
    Hmac,
    ParsedSignatures,
    SignatureFormat,
    SignatureHeaders,
    Template,
)
from boathook.verification.signed_content import (
    SignedMessage,
    TimestampWindow,
    join_signed,
    read_signed_messages,
    read_signed_timestamp,
)
from boathook.verification.tokens import ValidProof, describe_secrets, reject, required_secrets

MAX_STATEMENTS: Final = 2_000
"""Maximum signed parts read from one request, such as batch items that are signed individually."""


class _Key(RedactedStruct, frozen=True):
    hidden_fields: ClassVar[frozenset[str]] = frozenset({"secret"})

    secret: str
    mac: HmacKey | None
    """None if the secret is part of the hashed bytes instead."""


class FieldCheck:
    """Checks the MACs or hashes over fields of requests to one source; all must be valid under the same secret."""

    def __init__(self, proof: FieldMac, spec: SourceSpec, settings: Mapping[str, str]) -> None:
        self._proof = proof
        self._settings = settings
        self._keys = tuple(_field_key(spec, proof, position) for position in range(len(required_secrets(spec))))
        self._window = (
            None
            if proof.timestamp is None
            else TimestampWindow(spec, proof.timestamp.tolerance_s, proof.timestamp.unit)
        )
        self._write = ENCODERS[proof.encoding]
        self._is_hex = proof.encoding is signing.Encoding.HEX

    @property
    def proof_headers(self) -> frozenset[str]:
        """The headers needed to check a request again later."""
        timestamp = self._proof.timestamp
        stamps = (timestamp.selector.name,) if timestamp is not None and isinstance(timestamp.selector, Header) else ()
        return frozenset((*self._proof.proof_headers, *stamps))

    def check(self, request: Request, now: float) -> ValidProof | Rejected:
        """Check one request received at *now*, in seconds since 1970."""
        reader = RequestReader(request, self._settings)
        sent_at = read_signed_timestamp(self._proof.timestamp, self._window, reader, now)
        if isinstance(sent_at, Rejected):
            return sent_at
        refused = reject(Reason.SIGNATURE_MISSING, "there is no secret to verify it with")
        for key in self._keys:
            claims = read_signed_messages(
                self._proof.read_signed_parts, self._proof.form, reader, key.secret, limit=MAX_STATEMENTS
            )
            if isinstance(claims, Rejected):
                return claims
            rejection = self._check_key(key, claims)
            if rejection is None:
                return ValidProof(sent_at, self._once(claims))
            refused = rejection
        return refused

    def _once(self, claims: tuple[SignedMessage, ...]) -> Sequence[bytes]:
        if not self._proof.is_signed_once:
            return ()
        signed = join_signed(claims)
        # The hashed bytes contain the secret and must not leave this object, so they are hashed.
        return (signed,) if self._proof.is_keyed else (hashlib.sha256(signed).digest(),)

    def _fits(self, key: _Key, claim: SignedMessage) -> bool:
        expected = [self._expect(key, signed) for signed in (claim.signed, *claim.alternatives)]
        signatures = (signature.lower() if self._is_hex else signature for signature in claim.signatures)
        return any(
            signature.isascii() and signing.equal_constant_time(digest, signature)
            for signature in signatures
            for digest in expected
        )

    def _expect(self, key: _Key, signed: bytes) -> str:
        if key.mac is None:
            return self._write(hashlib.new(self._proof.algorithm.value, signed, usedforsecurity=False).digest())
        return self._write(key.mac.digest((signed,)))

    def _check_key(self, key: _Key, claims: tuple[SignedMessage, ...]) -> Rejected | None:
        """Return a rejection unless every claim is signed with this key."""
        for selector, claim in enumerate(claims, 1):
            if not self._fits(key, claim):
                which = "the signature" if len(claims) == 1 else f"signature {selector} of {len(claims)}"
                detail = f"{which} does not match what is signed under {describe_secrets(len(self._keys))}"
                return reject(Reason.SIGNATURE_MISMATCH, detail, may_reverify=True)
        return None


def _field_key(spec: SourceSpec, proof: FieldMac, position: int) -> _Key:
    secret = spec.secrets[position]
    if not proof.is_keyed:
        return _Key(secret, None)
    try:
        return _Key(secret, HmacKey(decode_key(secret, proof.key_form), proof.algorithm))
    except ValueError as error:
        raise ConfigError(
            f"sources.{spec.name}.secrets[{position}]: {error} for provider {spec.provider}; copy it from the sender"
        ) from None


MAX_HEADER: Final = 8_192
"""Maximum characters of a signature header that are read; sixteen SHA-512 signatures need a quarter of it."""


class ParsedHeaders(NamedTuple):
    """The signatures, timestamp and id that the headers of one request hold."""

    signatures: tuple[str, ...]
    timestamp: str = ""
    """The timestamp exactly as sent, because that text is signed; empty if there is none."""
    moment: float | None = None
    identifier: str = ""


class HmacCheck:
    """Checks the MAC of requests to one source."""

    def __init__(self, proof: Hmac, spec: SourceSpec) -> None:
        self.proof: Final = proof
        self.template: Final = Template(proof.template)
        self.secrets: Final = required_secrets(spec)
        self._macs = tuple(_key(spec, proof, position) for position in range(len(spec.secrets)))
        self._headers = proof.headers
        self._read_form = proof.form.read
        self._any_header = proof.any_header
        self._write = ENCODERS[proof.encoding]
        self._is_hex = proof.encoding is signing.Encoding.HEX
        self._window = TimestampWindow(spec, proof.tolerance_s, proof.time_unit)
        self._needs_stamp = "timestamp" in self.template.fields
        self._needs_id = "id" in self.template.fields

    @property
    def proof_headers(self) -> frozenset[str]:
        """The headers needed to check a request again later."""
        sets = self.proof.headers
        return frozenset(name for names in sets for name in (names.signature, names.timestamp, names.id) if name)

    def check(self, request: Request, now: float) -> ValidProof | Rejected:
        """Check one request received at *now*, in seconds since 1970."""
        reading = self.read(request, now)
        if isinstance(reading, Rejected):
            return reading
        requests = _url_forms(self.proof, request)
        forms = [self.template.fill(body, reading.timestamp, reading.identifier) for body in requests]
        if any(self._fits(signed, reading.signatures) for signed in forms):
            return ValidProof(reading.moment, forms[0], reading.identifier or None)
        return self._mismatch(len(reading.signatures))

    def read(self, request: Request, now: float) -> ParsedHeaders | Rejected:
        """Return the parsed headers, or a rejection if they are malformed or the timestamp is too far from *now*."""
        for names in self._headers:
            value = request.headers.get(names.signature)
            if value is not None:
                break
        else:
            header_names = [header.signature for header in self._headers[:3]]
            return reject(Reason.SIGNATURE_MISSING, f"there is no header {' or '.join(header_names)}")
        parsed = self._read_form(value[:MAX_HEADER])
        if self._any_header:
            parsed = self._read_others(request, names, parsed)
        if parsed.problem or not parsed.signatures or not all(map(str.isascii, parsed.signatures)):
            return _unreadable(names, self.proof.form, parsed)
        timestamp, sent_at = "", None
        if self._needs_stamp:
            text = parsed.timestamp if names.timestamp is None else request.headers.get(names.timestamp)
            if text is None:
                return _timestamp_missing(names)
            result = self._window.check(text, now)
            if isinstance(result, Rejected):
                return result
            timestamp, sent_at = text, result
        identifier = self._read_id(request, names) if self._needs_id else ""
        if isinstance(identifier, Rejected):
            return identifier
        return ParsedHeaders(parsed.signatures, timestamp, sent_at, identifier)

    def _fits(self, chunks: list[bytes], signatures: tuple[str, ...]) -> bool:
        for mac in self._macs:
            expected = self._write(mac.digest(chunks))
            for signature in signatures:
                if signing.equal_constant_time(expected, signature.lower() if self._is_hex else signature):
                    return True
        return False

    def _read_others(self, request: Request, first: SignatureHeaders, parsed: ParsedSignatures) -> ParsedSignatures:
        """Return the signatures of all signature headers of a request, at most `MAX_SIGNATURES`."""
        signatures = list(parsed.signatures)
        for names in self.proof.headers:
            value = request.headers.get(names.signature) if names is not first else None
            if value is not None and len(signatures) < MAX_SIGNATURES:
                signatures += self.proof.form.read(value[:MAX_HEADER]).signatures
        return parsed._replace(signatures=tuple(signatures[:MAX_SIGNATURES]))

    def _read_id(self, request: Request, names: SignatureHeaders) -> str | Rejected:
        identifier = request.headers.get(names.id or "", "")
        if not identifier:
            return reject(Reason.ID_MISSING, f"there is no header {names.id}, and the signature covers it")
        stop = self.template.id_stop
        if stop and stop in identifier:
            return reject(
                Reason.ID_MALFORMED, f"the id in {names.id} contains {stop!r}, so the signed bytes are ambiguous"
            )
        return identifier

    def _mismatch(self, count: int) -> Rejected:
        tried = "the signature" if count == 1 else f"none of {count} signatures"
        verb = "does not match" if count == 1 else "matches"
        detail = f"{tried} {verb} the body under {describe_secrets(len(self._macs))}"
        detail += ": it was signed with another secret, or a proxy changed the body"
        if count == MAX_SIGNATURES:
            detail += f"; only the first {MAX_SIGNATURES} were tried"
        return reject(Reason.SIGNATURE_MISMATCH, detail, may_reverify=True)


def _key(spec: SourceSpec, proof: Hmac, position: int) -> HmacKey:
    try:
        return HmacKey(decode_key(spec.secrets[position], proof.key_form), proof.algorithm)
    except ValueError as error:
        raise ConfigError(
            f"sources.{spec.name}.secrets[{position}]: {error} for provider {spec.provider}; copy it from the sender"
        ) from None


def _url_forms(proof: Hmac, request: Request) -> tuple[Request, ...]:
    """Return the request with each form of its URL that may have been signed."""
    if proof.url_forms is None:
        return (request,)
    return tuple(replace(request, url=url) for url in dict.fromkeys(proof.url_forms(request.url)))


def _timestamp_missing(names: SignatureHeaders) -> Rejected:
    location = f"header {names.timestamp}" if names.timestamp else f"timestamp in {names.signature}"
    return reject(Reason.TIMESTAMP_MISSING, f"there is no {location}")


def _unreadable(names: SignatureHeaders, form: SignatureFormat, parsed: ParsedSignatures) -> Rejected:
    if parsed.problem:
        return reject(Reason.SIGNATURE_MALFORMED, f"{names.signature} cannot be read: {parsed.problem}")
    if parsed.signatures:
        return reject(Reason.SIGNATURE_MALFORMED, f"{names.signature} contains characters outside ASCII")
    there = ", ".join(dict.fromkeys(parsed.seen)) or "nothing"
    return reject(
        Reason.UNKNOWN_SCHEME,
        f"{names.signature} contains no {form.expected_text}, but {there}",
        may_reverify=True,
    )


def make_signatures(
    proof: Hmac, secrets: Sequence[str], request: Request, timestamp: str, identifier: str
) -> list[str]:
    """Return the signatures that a sender with these secrets would send; for tests and demonstrations."""
    chunks = Template(proof.template).fill(_url_forms(proof, request)[0], timestamp, identifier)
    write = ENCODERS[proof.encoding]
    return [write(HmacKey(decode_key(secret, proof.key_form), proof.algorithm).digest(chunks)) for secret in secrets]
