"""Signatures made with the sender's private key, checked with keys the owner pasted or the sender publishes.

A stranger may say which of the sender's certificates to use, but never where to look for one: the address must match
what the recipe pins before anything is fetched.
"""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Final

from boathook.domain.errors import ConfigError
from boathook.domain.signing import Encoding
from boathook.inbound.facts import Facts
from boathook.inbound.places import Header, Place
from boathook.inbound.providers.forms import MAX_SIGNATURES
from boathook.inbound.providers.proofs import Asymmetric, Configured, Fetched, Scheme
from boathook.inbound.proving.keyring import KeyRing
from boathook.inbound.proving.publickeys import DatedKey, fits, read_content, read_key, suits
from boathook.inbound.proving.stamps import Window
from boathook.inbound.proving.statements import Claim, name_place, once, read_claims, read_stamp
from boathook.inbound.proving.tokens import Proven, refuse, secrets_of
from boathook.inbound.verdict import KeyWanted, Reason, Rejected, Request, SourceSpec

MAX_ADDRESS: Final = 1_000
_MAX_STATEMENTS: Final = 16
_MAX_SIGNATURE: Final = 1_024
"""Bytes of one signature; those under an RSA key of 8,192 bits."""
_NOT_IN_ADDRESS: Final = frozenset(' \\@#"<>{}|^`')
"""What one program may read as part of a host and another not; no key's address needs it."""


class AsymmetricCheck:
    """Checks the public-key signatures of requests to one source.

    Raises:
        ConfigError: a key is missing, unreadable, weak or of the wrong kind, or the tolerance is impossible.
    """

    def __init__(self, proof: Asymmetric, spec: SourceSpec, settings: Mapping[str, str], ring: KeyRing) -> None:
        self._proof = proof
        self._settings = settings
        self._ring = ring
        self._keys = _configured(proof, spec)
        self._window = Window(spec, proof.stamp.tolerance_s, proof.stamp.unit) if proof.stamp else None
        self._decode = _DECODERS[proof.encoding]

    @property
    def evidence(self) -> frozenset[str]:
        """The headers needed to check a request again later."""
        places: list[Place] = [self._proof.stamp.place] if self._proof.stamp else []
        if isinstance(self._proof.key, Fetched):
            places.append(self._proof.key.place)
        return frozenset(self._proof.evidence) | {place.name for place in places if isinstance(place, Header)}

    def check(self, request: Request, now: float) -> Proven | KeyWanted | Rejected:
        """Check one request received at *now*, in seconds since 1970."""
        facts = Facts(request, self._settings)
        sent_at = read_stamp(self._proof.stamp, self._window, facts, now)
        if isinstance(sent_at, Rejected):
            return sent_at
        claims = read_claims(self._proof.state, self._proof.form, facts, "", most=_MAX_STATEMENTS)
        if isinstance(claims, Rejected):
            return claims
        scheme = self._scheme_of(facts)
        if isinstance(scheme, Rejected):
            return scheme
        keys = self._keys_for(facts, scheme, now)
        if isinstance(keys, Rejected | KeyWanted):
            return keys
        return self._judge(claims, keys, scheme) or Proven(sent_at, (once(claims),) if self._proof.signs_once else ())

    def _scheme_of(self, facts: Facts) -> Scheme | Rejected:
        scheme = self._proof.scheme
        if isinstance(scheme, Scheme):
            return scheme
        try:
            chosen = scheme(facts)
        except Exception as error:  # noqa: BLE001 - whatever a stranger sent, it is refused and never a fault of ours
            return refuse(Reason.UNKNOWN_SCHEME, f"the scheme cannot be read ({type(error).__name__})")
        return chosen if isinstance(chosen, Scheme) else refuse(Reason.UNKNOWN_SCHEME, chosen)

    def _keys_for(self, facts: Facts, scheme: Scheme, now: float) -> tuple[DatedKey, ...] | KeyWanted | Rejected:
        if isinstance(self._proof.key, Configured):
            keys = self._keys
        else:
            fetched = self._fetched(self._proof.key, facts, now)
            if not isinstance(fetched, DatedKey):
                return fetched
            keys = (fetched,)
        troubles = [key.trouble(now) or _kind_trouble(key, scheme) for key in keys]
        usable = tuple(key for key, trouble in zip(keys, troubles, strict=True) if trouble is None)
        if usable:
            return usable
        return refuse(Reason.KEY_UNAVAILABLE, f"no key can be used: {troubles[0]}", may_reverify=True)

    def _fetched(self, fetched: Fetched, facts: Facts, now: float) -> DatedKey | KeyWanted | Rejected:
        where = name_place(fetched.place)
        url = facts.text(fetched.place)
        if url is None:
            return refuse(Reason.SIGNATURE_MISSING, f"there is no certificate's address in {where}")
        if not is_pinned(url, fetched):
            detail = f"the address in {where} is not one where this sender keeps its certificates; it was not fetched"
            return refuse(Reason.SIGNATURE_MALFORMED, detail)
        content = self._ring.get(url, now)
        if content is None:
            return KeyWanted(url=url)
        try:
            return read_content(content)
        except ValueError as error:
            return refuse(Reason.KEY_UNAVAILABLE, f"what lies at the address in {where} is no key: {error}")

    def _judge(self, claims: Sequence[Claim], keys: Sequence[DatedKey], scheme: Scheme) -> Rejected | None:
        """Return why one of the claims is not signed; None where all are."""
        left = MAX_SIGNATURES
        for claim in claims:
            signatures = [raw for raw in map(self._decode, dict.fromkeys(claim.signatures)) if raw][:left]
            if not signatures:
                detail = f"no signature is {_WORDS[self._proof.encoding]}, or there are more than {MAX_SIGNATURES}"
                return refuse(Reason.SIGNATURE_MALFORMED, detail)
            left -= len(signatures)
            if not any(fits(key.key, scheme, raw, claim.signed) for raw, key in product(signatures, keys)):
                count = f"any of {len(keys)} keys" if len(keys) > 1 else "the key"
                detail = f"no signature fits what the request states under {count} ({scheme.value})"
                return refuse(Reason.SIGNATURE_MISMATCH, detail, may_reverify=True)
        return None


def is_pinned(url: str, fetched: Fetched) -> bool:
    """Return whether an address is one that the recipe allows to be fetched; a stranger wrote it."""
    is_plain = url.isascii() and url.isprintable() and _NOT_IN_ADDRESS.isdisjoint(url) and ".." not in url
    return (
        is_plain
        and len(url) <= MAX_ADDRESS
        and url.startswith("https://")
        and fetched.pattern.fullmatch(url) is not None
    )


def _configured(proof: Asymmetric, spec: SourceSpec) -> tuple[DatedKey, ...]:
    if not isinstance(proof.key, Configured):
        return ()
    keys = []
    for position, secret in enumerate(secrets_of(spec)):
        where = f"sources.{spec.name}.secrets[{position}]"
        try:
            key = read_key(secret, proof.key.text)
        except ValueError as error:
            want = f"{spec.provider} needs a public key as {proof.key.text.value}"
            raise ConfigError(f"{where}: {error}; {want}; copy it from the sender") from None
        if isinstance(proof.scheme, Scheme) and (trouble := _kind_trouble(key, proof.scheme)):
            raise ConfigError(f"{where}: {trouble}; copy the sender's own public key")
        keys.append(key)
    return tuple(keys)


def _kind_trouble(key: DatedKey, scheme: Scheme) -> str | None:
    return None if suits(key.key, scheme) else f"the key is not of the kind that signs with {scheme.value}"


def _read_base64(text: str) -> bytes | None:
    if len(text) > 2 * _MAX_SIGNATURE:
        return None
    try:
        return base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        return None


def _read_hex(text: str) -> bytes | None:
    if len(text) > 2 * _MAX_SIGNATURE:
        return None
    try:
        return binascii.unhexlify(text.encode("ascii"))
    except (binascii.Error, UnicodeEncodeError):
        return None


_DECODERS: Final[dict[Encoding, Callable[[str], bytes | None]]] = {
    Encoding.BASE64: _read_base64,
    Encoding.HEX: _read_hex,
}
_WORDS: Final = {Encoding.BASE64: "base64", Encoding.HEX: "hexadecimal"}
