"""Builds the check that decides whether a request is genuine: one for each kind of proof, compiled once per source.

Every failure is returned as a `Rejected`; nothing here raises, whatever the request contains.
"""

from collections.abc import Mapping
from typing import Final, Protocol, assert_never

from msgspec.structs import replace

from boathook.domain.errors import ConfigError
from boathook.domain.verification import KeyRequired, Reason, Rejected, Request, SourceSpec
from boathook.providers.recipe import CaptureSecret, Recipe
from boathook.providers.request_reader import Header
from boathook.providers.schemes import Addresses, Asymmetric, FetchedKey, FieldMac, Hmac, Jwt, NoProof, Proof, Token
from boathook.verification.hmac import FieldCheck, HmacCheck
from boathook.verification.keyring import KeyRing
from boathook.verification.tokens import AddressCheck, TokenCheck, ValidProof, reject

_PLACEHOLDER_SECRET: Final = "0" * 64
"""Placeholder until the sender has sent its secret; valid in every key format, and never compared with anything."""


class Check(Protocol):
    """Checks the proof of requests to one source."""

    @property
    def proof_headers(self) -> frozenset[str]:
        """The headers needed to check a request again later; never one that holds a token."""
        ...

    def check(self, request: Request, now: float, /) -> ValidProof | KeyRequired | Rejected:
        """Check one request received at *now*, in seconds since 1970."""
        ...


class NoCheck:
    """Accepts every request; used only if the source sets ``unsigned = true``."""

    def __init__(self, spec: SourceSpec) -> None:
        if spec.secrets:
            raise ConfigError(f"sources.{spec.name}.unsigned: there are secrets too; remove them or unsigned = true")

    @property
    def proof_headers(self) -> frozenset[str]:
        """Empty, because nothing is checked."""
        return frozenset()

    def check(self, _request: Request, _now: float) -> ValidProof:
        """Accept one request."""
        return ValidProof(None)


class NoSecretYet:
    """Rejects every request until the sender has sent the secret it will sign with."""

    def __init__(self, spec: SourceSpec, proof_headers: frozenset[str]) -> None:
        self._source = spec.name
        self.proof_headers = proof_headers

    def check(self, _request: Request, _now: float) -> Rejected:
        """Reject one request."""
        return reject(
            Reason.SIGNATURE_MISSING,
            f"sources.{self._source} has no secret yet: the sender sends it once, when its webhook is set up",
            may_reverify=True,
        )


class NoSecretLeft:
    """Rejects every request, because all secrets of the source have expired."""

    def __init__(self, source: str, proof_headers: frozenset[str]) -> None:
        self._source = source
        self.proof_headers = proof_headers

    def check(self, _request: Request, _now: float) -> Rejected:
        """Reject one request."""
        return reject(
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
    if not spec.secrets and any(isinstance(handshake.answer, CaptureSecret) for handshake in recipe.handshakes):
        stand_in = make_check(recipe, replace(spec, secrets=(_PLACEHOLDER_SECRET,)), settings, ring)
        return NoSecretYet(spec, stand_in.proof_headers)
    _refuse_needless_secrets(recipe, spec)
    match recipe.proof:
        case Hmac() as proof:
            return HmacCheck(proof, spec)
        case FieldMac() as proof:
            return FieldCheck(proof, spec, settings)
        case Asymmetric() as proof:
            # Few sources use public keys or tokens, so these are imported here. A gateway compiles its checks before it
            # listens, so no request waits for an import.
            from boathook.verification.asymmetric import AsymmetricCheck

            return AsymmetricCheck(proof, spec, settings, ring)
        case Jwt() as proof:
            from boathook.verification.jwt import JwtCheck

            return JwtCheck(proof, spec, settings, ring)
        case Token() as proof:
            return TokenCheck(proof, spec)
        case Addresses(networks=networks):
            return AddressCheck(spec, networks)
        case NoProof():
            raise ConfigError(
                f"sources.{spec.name}.unsigned: its requests are not signed; set unsigned = true if anyone may send"
            )
        case _ as never:
            assert_never(never)


def _refuse_needless_secrets(recipe: Recipe, spec: SourceSpec) -> None:
    """Reject secrets that no check would use, so that the operator does not rely on them."""
    match recipe.proof:
        case Addresses():
            reason = "does not sign and is identified by its addresses"
        case Asymmetric(key=FetchedKey()) | Jwt(key_set=str()):
            reason = "signs with keys that boathook fetches automatically"
        case _:
            return
    if spec.secrets:
        raise ConfigError(f"sources.{spec.name}.secrets: {recipe.title} {reason}; remove them")


def signature_headers(proof: Proof) -> frozenset[str]:
    """Return the headers that carry the proof, in lower case."""
    match proof:
        case Hmac(headers=sets):
            return frozenset(names.signature for names in sets)
        case FieldMac(proof_headers=proof_headers):
            return frozenset(proof_headers)
        case Asymmetric(headers=sets, proof_headers=proof_headers):
            names_of_headers = {name for names in sets for name in (names.signature, names.id) if name}
            return frozenset(proof_headers) | names_of_headers
        case Token(selector=Header(name=name)) | Jwt(header=name):
            return frozenset({name})
        case _:
            return frozenset()
