"""MACs over a template of a request's parts, with the signature in a header.

The work goes from cheap to dear and never looks inside the body: headers, signature header, timestamp, MAC.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from boathook.domain import signing
from boathook.domain.errors import ConfigError
from boathook.domain.signing import ENCODERS, HmacKey, decode_key
from boathook.domain.verification import Reason, Rejected, Request, SourceSpec
from boathook.providers.schemes import Hmac, SignatureHeaders
from boathook.providers.signature_formats import MAX_SIGNATURES, ParsedSignatures, SignatureFormat
from boathook.providers.template import Template
from boathook.verification.timestamps import TimestampWindow
from boathook.verification.tokens import ValidProof, describe_secrets, reject, required_secrets

MAX_HEADER: Final = 8_192
"""Characters of a signature header that are looked at; sixteen SHA-512 signatures take a quarter of it."""


class ParsedHeaders(NamedTuple):
    """What the headers of one request say about its MAC."""

    signatures: tuple[str, ...]
    timestamp: str = ""
    """The timestamp as sent, because that is what was signed; empty where none is."""
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
        signed = self.template.fill(request, reading.timestamp, reading.identifier)
        if self._fits(signed, reading.signatures):
            return ValidProof(reading.moment, signed, reading.identifier or None)
        return self._mismatch(len(reading.signatures))

    def read(self, request: Request, now: float) -> ParsedHeaders | Rejected:
        """Return what the headers say; a refusal where they cannot be read or the timestamp is too far from *now*."""
        names, value = self._find(request)
        if value is None:
            known = [known.signature for known in self.proof.headers[:3]]
            return reject(Reason.SIGNATURE_MISSING, f"there is no header {' or '.join(known)}")
        parsed = self._read_form(value[:MAX_HEADER])
        if self._any_header:
            parsed = self._read_others(request, names, parsed)
        if parsed.problem or not parsed.signatures or not all(map(str.isascii, parsed.signatures)):
            return _unreadable(names, self.proof.form, parsed)
        timestamp, moment = "", None
        if self._needs_stamp:
            found = parsed.timestamp if names.timestamp is None else request.headers.get(names.timestamp)
            if found is None:
                return _timestamp_missing(names)
            judged = self._window.judge(found, now)
            if isinstance(judged, Rejected):
                return judged
            timestamp, moment = found, judged
        identifier = self._read_id(request, names) if self._needs_id else ""
        if isinstance(identifier, Rejected):
            return identifier
        return ParsedHeaders(parsed.signatures, timestamp, moment, identifier)

    def _fits(self, chunks: list[bytes], signatures: tuple[str, ...]) -> bool:
        for mac in self._macs:
            expected = self._write(mac.digest(chunks))
            for signature in signatures:
                if signing.equal_constant_time(expected, signature.lower() if self._is_hex else signature):
                    return True
        return False

    def _find(self, request: Request) -> tuple[SignatureHeaders, str | None]:
        for names in self._headers:
            value = request.headers.get(names.signature)
            if value is not None:
                return names, value
        return self._headers[0], None

    def _read_others(self, request: Request, first: SignatureHeaders, parsed: ParsedSignatures) -> ParsedSignatures:
        """Return what all the signature headers of a request hold, `MAX_SIGNATURES` at most."""
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
                Reason.ID_MALFORMED, f"the id in {names.id} holds {stop!r}, so the signed bytes are ambiguous"
            )
        return identifier

    def _mismatch(self, count: int) -> Rejected:
        tried = "the signature" if count == 1 else f"none of {count} signatures"
        verb = "does not fit" if count == 1 else "fits"
        detail = f"{tried} {verb} the body under {describe_secrets(len(self._macs))}"
        detail += ": another secret signed it, or something changed the body on the way"
        if count == MAX_SIGNATURES:
            detail += f"; only the first {MAX_SIGNATURES} were tried"
        return reject(Reason.SIGNATURE_MISMATCH, detail, may_reverify=True)


def _key(spec: SourceSpec, proof: Hmac, position: int) -> HmacKey:
    try:
        return HmacKey(decode_key(spec.secrets[position], proof.key_form), proof.algorithm)
    except ValueError as error:
        raise ConfigError(
            f"sources.{spec.name}.secrets[{position}]: {error}, as {spec.provider} wants it; copy it from the sender"
        ) from None


def _timestamp_missing(names: SignatureHeaders) -> Rejected:
    where = f"header {names.timestamp}" if names.timestamp else f"timestamp in {names.signature}"
    return reject(Reason.TIMESTAMP_MISSING, f"there is no {where}")


def _unreadable(names: SignatureHeaders, form: SignatureFormat, parsed: ParsedSignatures) -> Rejected:
    if parsed.problem:
        return reject(Reason.SIGNATURE_MALFORMED, f"{names.signature} cannot be read: {parsed.problem}")
    if parsed.signatures:
        return reject(Reason.SIGNATURE_MALFORMED, f"{names.signature} holds characters outside ASCII")
    there = ", ".join(dict.fromkeys(parsed.seen)) or "nothing"
    return reject(
        Reason.UNKNOWN_SCHEME,
        f"{names.signature} holds no {form.expected_text}, but {there}",
        may_reverify=True,
    )


def make_signatures(
    proof: Hmac, secrets: Sequence[str], request: Request, timestamp: str, identifier: str
) -> list[str]:
    """Return the signatures a sender with these secrets would send; for tests and demonstrations."""
    chunks = Template(proof.template).fill(request, timestamp, identifier)
    write = ENCODERS[proof.encoding]
    return [write(HmacKey(decode_key(secret, proof.key_form), proof.algorithm).digest(chunks)) for secret in secrets]
