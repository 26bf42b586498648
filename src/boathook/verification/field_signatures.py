"""Proofs over chosen fields of a request: a MAC, or a plain hash with the secret mixed in."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from boathook.domain import signing
from boathook.domain.errors import ConfigError
from boathook.domain.signing import ENCODERS, HmacKey, decode_key
from boathook.domain.verification import Reason, Rejected, Request, SourceSpec
from boathook.providers.request_reader import RequestReader
from boathook.providers.schemes import FieldMac
from boathook.providers.selectors import Header
from boathook.verification.signed_content import SignedMessage, join_signed, read_signed_messages, read_signed_timestamp
from boathook.verification.timestamps import TimestampWindow
from boathook.verification.tokens import ValidProof, describe_secrets, reject, required_secrets

MAX_STATEMENTS: Final = 2_000
"""Signed parts read from one request, such as the items of a batch that are signed one by one."""


class _Key(NamedTuple):
    secret: str
    mac: HmacKey | None
    """None where the secret is mixed into the bytes instead."""


class FieldCheck:
    """Checks what requests to one source state under MACs or hashes; all of it must be signed under one secret."""

    def __init__(self, proof: FieldMac, spec: SourceSpec, settings: Mapping[str, str]) -> None:
        self._proof = proof
        self._settings = settings
        self._keys = tuple(_key(spec, proof, position) for position in range(len(required_secrets(spec))))
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
        refused = reject(Reason.SIGNATURE_MISSING, "there is no secret to check it with")
        for key in self._keys:
            claims = read_signed_messages(
                self._proof.read_signed_parts, self._proof.form, reader, key.secret, most=MAX_STATEMENTS
            )
            if isinstance(claims, Rejected):
                return claims
            misfit = self._judge(key, claims)
            if misfit is None:
                return ValidProof(sent_at, self._once(claims))
            refused = misfit
        return refused

    def _once(self, claims: tuple[SignedMessage, ...]) -> Sequence[bytes]:
        if not self._proof.is_signed_once:
            return ()
        signed = join_signed(claims)
        # The secret is in what is hashed, and must not leave this room.
        return (signed,) if self._proof.is_keyed else (hashlib.sha256(signed).digest(),)

    def _fits(self, key: _Key, claim: SignedMessage) -> bool:
        expected = [self._expect(key, signed) for signed in (claim.signed, *claim.alternatives)]
        signatures = (given.lower() if self._is_hex else given for given in claim.signatures)
        return any(
            given.isascii() and signing.equal_constant_time(one, given) for given in signatures for one in expected
        )

    def _expect(self, key: _Key, signed: bytes) -> str:
        if key.mac is None:
            return self._write(hashlib.new(self._proof.algorithm.value, signed, usedforsecurity=False).digest())
        return self._write(key.mac.digest((signed,)))

    def _judge(self, key: _Key, claims: tuple[SignedMessage, ...]) -> Rejected | None:
        """Return a refusal unless every claim is signed under one key."""
        for selector, claim in enumerate(claims, 1):
            if not self._fits(key, claim):
                which = "the signature" if len(claims) == 1 else f"signature {selector} of {len(claims)}"
                detail = f"{which} does not fit what is signed under {describe_secrets(len(self._keys))}"
                return reject(Reason.SIGNATURE_MISMATCH, detail, may_reverify=True)
        return None


def _key(spec: SourceSpec, proof: FieldMac, position: int) -> _Key:
    secret = spec.secrets[position]
    if not proof.is_keyed:
        return _Key(secret, None)
    try:
        return _Key(secret, HmacKey(decode_key(secret, proof.key_form), proof.algorithm))
    except ValueError as error:
        raise ConfigError(
            f"sources.{spec.name}.secrets[{position}]: {error}, as {spec.provider} wants it; copy it from the sender"
        ) from None
