"""Proofs over chosen fields of a request: a MAC, or a plain hash with the secret mixed in."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from boathook.domain import signing
from boathook.domain.errors import ConfigError
from boathook.domain.signing import WRITERS, Mac, read_key
from boathook.inbound.facts import Facts
from boathook.inbound.places import Header
from boathook.inbound.providers.proofs import FieldMac
from boathook.inbound.proving.stamps import Window
from boathook.inbound.proving.statements import Claim, once, read_claims, read_stamp
from boathook.inbound.proving.tokens import Proven, name_secrets, refuse, secrets_of
from boathook.inbound.verdict import Reason, Rejected, Request, SourceSpec

MAX_STATEMENTS: Final = 2_000
"""Signed parts read from one request, such as the items of a batch that are signed one by one."""


class _Key(NamedTuple):
    secret: str
    mac: Mac | None
    """None where the secret is mixed into the bytes instead."""


class FieldCheck:
    """Checks what requests to one source state under MACs or hashes; all of it must be signed under one secret."""

    def __init__(self, proof: FieldMac, spec: SourceSpec, settings: Mapping[str, str]) -> None:
        self._proof = proof
        self._settings = settings
        self._keys = tuple(_key(spec, proof, position) for position in range(len(secrets_of(spec))))
        self._window = None if proof.stamp is None else Window(spec, proof.stamp.tolerance_s, proof.stamp.unit)
        self._write = WRITERS[proof.encoding]
        self._is_hex = proof.encoding is signing.Encoding.HEX

    @property
    def evidence(self) -> frozenset[str]:
        """The headers needed to check a request again later."""
        stamp = self._proof.stamp
        stamps = (stamp.place.name,) if stamp is not None and isinstance(stamp.place, Header) else ()
        return frozenset((*self._proof.evidence, *stamps))

    def check(self, request: Request, now: float) -> Proven | Rejected:
        """Check one request received at *now*, in seconds since 1970."""
        facts = Facts(request, self._settings)
        sent_at = read_stamp(self._proof.stamp, self._window, facts, now)
        if isinstance(sent_at, Rejected):
            return sent_at
        refused = refuse(Reason.SIGNATURE_MISSING, "there is no secret to check it with")
        for key in self._keys:
            claims = read_claims(self._proof.state, self._proof.form, facts, key.secret, most=MAX_STATEMENTS)
            if isinstance(claims, Rejected):
                return claims
            misfit = self._judge(key, claims)
            if misfit is None:
                return Proven(sent_at, self._once(claims))
            refused = misfit
        return refused

    def _once(self, claims: tuple[Claim, ...]) -> Sequence[bytes]:
        if not self._proof.signs_once:
            return ()
        signed = once(claims)
        # The secret is in what is hashed, and must not leave this room.
        return (signed,) if self._proof.is_keyed else (hashlib.sha256(signed).digest(),)

    def _fits(self, key: _Key, claim: Claim) -> bool:
        expected = [self._expect(key, signed) for signed in (claim.signed, *claim.or_signed)]
        signatures = (given.lower() if self._is_hex else given for given in claim.signatures)
        return any(given.isascii() and signing.same(one, given) for given in signatures for one in expected)

    def _expect(self, key: _Key, signed: bytes) -> str:
        if key.mac is None:
            return self._write(hashlib.new(self._proof.algorithm.value, signed, usedforsecurity=False).digest())
        return self._write(key.mac.digest((signed,)))

    def _judge(self, key: _Key, claims: tuple[Claim, ...]) -> Rejected | None:
        """Return a refusal unless every claim is signed under one key."""
        for place, claim in enumerate(claims, 1):
            if not self._fits(key, claim):
                which = "the signature" if len(claims) == 1 else f"signature {place} of {len(claims)}"
                detail = f"{which} does not fit what is signed under {name_secrets(len(self._keys))}"
                return refuse(Reason.SIGNATURE_MISMATCH, detail, may_reverify=True)
        return None


def _key(spec: SourceSpec, proof: FieldMac, position: int) -> _Key:
    secret = spec.secrets[position]
    if not proof.is_keyed:
        return _Key(secret, None)
    try:
        return _Key(secret, Mac(read_key(secret, proof.key_form), proof.algorithm))
    except ValueError as error:
        raise ConfigError(
            f"sources.{spec.name}.secrets[{position}]: {error}, as {spec.provider} wants it; copy it from the sender"
        ) from None
