"""Whether a request is genuine: one check for each kind of proof, compiled once for a source.

Every refusal is a `Rejected`; whatever a stranger sends, nothing here raises.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final, Protocol, assert_never

from boathook.domain.errors import ConfigError
from boathook.inbound.places import Header
from boathook.inbound.providers.proofs import (
    Addresses,
    Asymmetric,
    Fetched,
    FieldMac,
    Hmac,
    Jwt,
    NoProof,
    Proof,
    Token,
)
from boathook.inbound.providers.recipe import Capture, Recipe
from boathook.inbound.proving.fields import FieldCheck
from boathook.inbound.proving.keyring import KeyRing
from boathook.inbound.proving.macs import HmacCheck
from boathook.inbound.proving.origins import AddressCheck
from boathook.inbound.proving.tokens import Proven, TokenCheck, refuse
from boathook.inbound.verdict import KeyWanted, Reason, Rejected, Request, SourceSpec

_ANY_SECRET: Final = "0" * 64
"""Stands for a secret the sender has not told yet; it is readable in every key form, and never compared with."""


class Check(Protocol):
    """Judges the proof of requests to one source."""

    @property
    def evidence(self) -> frozenset[str]:
        """The headers needed to check a request again later; never one that holds a token."""
        ...

    def check(self, request: Request, now: float, /) -> Proven | KeyWanted | Rejected:
        """Check one request received at *now*, in seconds since 1970."""
        ...


class NoCheck:
    """Lets everything through, because the owner said so in as many words."""

    def __init__(self, spec: SourceSpec) -> None:
        if spec.secrets:
            raise ConfigError(f"sources.{spec.name}.unsigned: there are secrets too; remove them, or unsigned = true")

    @property
    def evidence(self) -> frozenset[str]:
        """Nothing is checked, so nothing is needed."""
        return frozenset()

    def check(self, _request: Request, _now: float) -> Proven:
        """Accept one request."""
        return Proven(None)


class NoSecretYet:
    """Lets nothing through until the sender has told the secret it will sign with."""

    def __init__(self, spec: SourceSpec, evidence: frozenset[str]) -> None:
        self._source = spec.name
        self.evidence = evidence

    def check(self, _request: Request, _now: float) -> Rejected:
        """Refuse one request."""
        return refuse(
            Reason.SIGNATURE_MISSING,
            f"sources.{self._source} has no secret yet: the sender tells it once, when its webhook is set up",
            may_reverify=True,
        )


class NoSecretLeft:
    """Lets nothing through, because every secret of the source has ended."""

    def __init__(self, source: str, evidence: frozenset[str]) -> None:
        self._source = source
        self.evidence = evidence

    def check(self, _request: Request, _now: float) -> Rejected:
        """Refuse one request."""
        return refuse(
            Reason.SIGNATURE_MISMATCH,
            f"the last secret of {self._source} has ended; add one, or write it into sources.{self._source}.secrets",
            may_reverify=True,
        )


def make_check(recipe: Recipe, spec: SourceSpec, settings: Mapping[str, str], ring: KeyRing) -> Check:
    """Compile the check of one source.

    Raises:
        ConfigError: a secret is missing, empty or not in the form the sender uses, or another setting is impossible.
    """
    if spec.unsigned:
        return NoCheck(spec)
    if not spec.secrets and any(isinstance(handshake.answer, Capture) for handshake in recipe.handshakes):
        stand_in = make_check(recipe, replace(spec, secrets=(_ANY_SECRET,)), settings, ring)
        return NoSecretYet(spec, stand_in.evidence)
    _refuse_needless_secrets(recipe, spec)
    match recipe.proof:
        case Hmac() as proof:
            return HmacCheck(proof, spec)
        case FieldMac() as proof:
            return FieldCheck(proof, spec, settings)
        case Asymmetric() as proof:
            # Few sources have public keys or tokens. A gateway compiles its checks before it listens, so that no
            # request waits for an import.
            from boathook.inbound.proving.asymmetric import AsymmetricCheck

            return AsymmetricCheck(proof, spec, settings, ring)
        case Jwt() as proof:
            from boathook.inbound.proving.jwt import JwtCheck

            return JwtCheck(proof, spec, settings, ring)
        case Token() as proof:
            return TokenCheck(proof, spec)
        case Addresses(networks=networks):
            return AddressCheck(spec, networks)
        case NoProof():
            raise ConfigError(
                f"sources.{spec.name}.unsigned: requests carry no proof; write unsigned = true if anybody may send"
            )
        case _ as never:
            assert_never(never)


def _refuse_needless_secrets(recipe: Recipe, spec: SourceSpec) -> None:
    """Refuse secrets that nothing would be checked against, lest their owner rely on them."""
    match recipe.proof:
        case Addresses():
            why = "signs nothing and is known by its addresses"
        case Asymmetric(key=Fetched()) | Jwt(key_set=str()):
            why = "signs with keys that boathook fetches by itself"
        case _:
            return
    if spec.secrets:
        raise ConfigError(f"sources.{spec.name}.secrets: {recipe.title} {why}; remove them")


def signature_headers(proof: Proof) -> frozenset[str]:
    """Return the headers that a proof stands in; lower case."""
    match proof:
        case Hmac(headers=sets):
            return frozenset(names.signature for names in sets)
        case FieldMac(evidence=evidence) | Asymmetric(evidence=evidence):
            return frozenset(evidence)
        case Token(place=Header(name=name)) | Jwt(header=name):
            return frozenset({name})
        case _:
            return frozenset()
