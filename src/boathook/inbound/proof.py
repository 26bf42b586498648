"""Whether a request is genuine: its MAC, its token, or nothing to check.

The work goes from cheap to dear and never looks inside the body: headers, signature header, timestamp, MAC.
Every refusal is a `Rejected`; whatever a stranger puts into a header, nothing here raises.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from boathook.domain import signing
from boathook.domain.errors import ConfigError
from boathook.domain.signing import WRITERS, Mac, read_key
from boathook.inbound.hints import explain_mismatch
from boathook.inbound.providers.forms import MAX_SIGNATURES, Parsed
from boathook.inbound.providers.proofs import Hmac, NoProof, Proof, SignedHeaders, Token
from boathook.inbound.stamps import Window
from boathook.inbound.template import Template
from boathook.inbound.tokens import Proven, TokenCheck, refuse, secrets_of
from boathook.inbound.verdict import Reason, Rejected, Request, SourceSpec

MAX_HEADER: Final = 8_192
"""Characters of a signature header that are looked at; sixteen SHA-512 signatures take a quarter of it."""


class _Stamp(NamedTuple):
    text: str
    """As sent, because that is what was signed."""
    moment: float | None


_NO_STAMP: Final = _Stamp("", None)


class HmacCheck:
    """Checks the MAC of requests to one source."""

    def __init__(self, proof: Hmac, spec: SourceSpec) -> None:
        self._proof = proof
        self._template = Template(proof.template)
        self._secrets = secrets_of(spec)
        self._macs = tuple(_key(spec, proof, position) for position in range(len(spec.secrets)))
        self._write = WRITERS[proof.encoding]
        self._is_hex = proof.encoding is signing.Encoding.HEX
        self._window = Window(spec, proof.tolerance_s, proof.time_unit)
        self._needs_stamp = "timestamp" in self._template.fields
        self._needs_id = "id" in self._template.fields

    @property
    def evidence(self) -> frozenset[str]:
        """The headers needed to check a request again later."""
        sets = self._proof.headers
        return frozenset(name for names in sets for name in (names.signature, names.timestamp, names.id) if name)

    def check(self, request: Request, now: float) -> Proven | Rejected:
        """Check one request received at *now*, in seconds since 1970."""
        names, value = self._find(request)
        if value is None:
            return refuse(Reason.SIGNATURE_MISSING, f"there is no header {' or '.join(self._signature_names())}")
        parsed = self._proof.form.read(value[:MAX_HEADER])
        if parsed.problem or not parsed.signatures or not all(map(str.isascii, parsed.signatures)):
            return _unreadable(names, parsed)
        stamp = self._read_stamp(request, parsed, names, now) if self._needs_stamp else _NO_STAMP
        if isinstance(stamp, Rejected):
            return stamp
        identifier = self._read_id(request, names) if self._needs_id else ""
        if isinstance(identifier, Rejected):
            return identifier
        if self._fits(self._template.fill(request, stamp.text, identifier), parsed.signatures):
            return Proven(stamp.moment)
        return self._mismatch(request, parsed, stamp.text, identifier)

    def _fits(self, chunks: list[bytes], signatures: tuple[str, ...]) -> bool:
        for mac in self._macs:
            expected = self._write(mac.digest(chunks))
            for signature in signatures:
                if signing.same(expected, signature.lower() if self._is_hex else signature):
                    return True
        return False

    def _find(self, request: Request) -> tuple[SignedHeaders, str | None]:
        for names in self._proof.headers:
            value = request.headers.get(names.signature)
            if value is not None:
                return names, value
        return self._proof.headers[0], None

    def _signature_names(self) -> list[str]:
        return [names.signature for names in self._proof.headers]

    def _read_stamp(self, request: Request, parsed: Parsed, names: SignedHeaders, now: float) -> _Stamp | Rejected:
        text = parsed.timestamp if names.timestamp is None else request.headers.get(names.timestamp)
        if text is None:
            where = f"header {names.timestamp}" if names.timestamp else f"timestamp in {names.signature}"
            return refuse(Reason.TIMESTAMP_MISSING, f"there is no {where}")
        moment = self._window.judge(text, now)
        return moment if isinstance(moment, Rejected) else _Stamp(text, moment)

    def _read_id(self, request: Request, names: SignedHeaders) -> str | Rejected:
        identifier = request.headers.get(names.id or "", "")
        if not identifier:
            return refuse(Reason.ID_MISSING, f"there is no header {names.id}, and the signature covers it")
        stop = self._template.id_stop
        if stop and stop in identifier:
            return refuse(
                Reason.ID_MALFORMED, f"the id in {names.id} holds {stop!r}, so the signed bytes are ambiguous"
            )
        return identifier

    def _mismatch(self, request: Request, parsed: Parsed, stamp: str, identifier: str) -> Rejected:
        count = len(parsed.signatures)
        tried = "the signature" if count == 1 else f"none of {count} signatures"
        verb = "does not fit" if count == 1 else "fits"
        detail = f"{tried} {verb} the body under any of {len(self._macs)} secrets"
        if count == MAX_SIGNATURES:
            detail += f"; only the first {MAX_SIGNATURES} were tried"
        hint = explain_mismatch(
            self._proof, self._template, self._secrets, request, parsed.signatures, stamp, identifier
        )
        return refuse(Reason.SIGNATURE_MISMATCH, f"{detail}; {hint}" if hint else detail, may_reverify=True)


def _key(spec: SourceSpec, proof: Hmac, position: int) -> Mac:
    try:
        return Mac(read_key(spec.secrets[position], proof.key_form), proof.algorithm)
    except ValueError as error:
        raise ConfigError(
            f"sources.{spec.name}.secrets[{position}]: {error}, as {spec.provider} wants it; copy it from the sender"
        ) from None


def _unreadable(names: SignedHeaders, parsed: Parsed) -> Rejected:
    if parsed.problem:
        return refuse(Reason.SIGNATURE_MALFORMED, f"{names.signature} cannot be read: {parsed.problem}")
    if parsed.signatures:
        return refuse(Reason.SIGNATURE_MALFORMED, f"{names.signature} holds characters outside ASCII")
    there = ", ".join(dict.fromkeys(parsed.seen)) or "nothing"
    return refuse(
        Reason.UNKNOWN_SCHEME,
        f"{names.signature} holds no signature of the scheme configured, but {there}",
        may_reverify=True,
    )


class NoCheck:
    """Lets everything through, because the owner said so in as many words."""

    def __init__(self, spec: SourceSpec) -> None:
        if spec.secrets:
            raise ConfigError(f"sources.{spec.name}.unsigned: there are secrets too; remove them, or unsigned = true")

    @property
    def evidence(self) -> frozenset[str]:
        """Nothing is checked, so nothing is needed."""
        return frozenset()

    def check(self, _request: Request, _now: float) -> Proven | Rejected:
        """Accept one request."""
        return Proven(None)


Check = HmacCheck | TokenCheck | NoCheck


def make_check(proof: Proof, spec: SourceSpec) -> Check:
    """Compile the check of one source.

    Raises:
        ConfigError: a secret is missing, empty or not in the form the sender uses, or the tolerance is impossible.
    """
    if spec.unsigned:
        return NoCheck(spec)
    match proof:
        case Hmac():
            return HmacCheck(proof, spec)
        case Token():
            return TokenCheck(proof, spec)
        case NoProof():
            raise ConfigError(
                f"sources.{spec.name}.unsigned: requests carry no proof; write unsigned = true if anybody may send"
            )
        case _:
            raise NotImplementedError(proof)


def signatures_of(proof: Hmac, secrets: Sequence[str], request: Request, stamp: str, identifier: str) -> list[str]:
    """Return the signatures a sender with these secrets would send; for tests and demonstrations."""
    chunks = Template(proof.template).fill(request, stamp, identifier)
    write = WRITERS[proof.encoding]
    return [write(Mac(read_key(secret, proof.key_form), proof.algorithm).digest(chunks)) for secret in secrets]
