"""Checks public-key signatures with keys from the configuration or keys that the sender publishes.

A request may choose one of the sender's certificates, but never an arbitrary location: the URL must match the recipe's
pattern before anything is fetched.
"""

import base64
import binascii
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Final

from msgspec.structs import replace

from boathook.domain.errors import ConfigError
from boathook.domain.signing import Encoding
from boathook.domain.verification import KeyRequired, Reason, Rejected, Request, SourceSpec
from boathook.providers.request_reader import Header, RequestReader, Selector
from boathook.providers.schemes import (
    MAX_SIGNATURES,
    Asymmetric,
    ConfiguredKey,
    FetchedKey,
    SignatureAlgorithm,
    present_headers,
)
from boathook.verification.keyring import KeyRing
from boathook.verification.public_keys import (
    PublicKey,
    is_key_for_algorithm,
    is_valid_signature,
    read_pem,
    read_public_key,
)
from boathook.verification.signed_content import (
    SignedMessage,
    TimestampWindow,
    describe_selector,
    join_signed,
    read_signed_messages,
    read_signed_timestamp,
)
from boathook.verification.tokens import ValidProof, reject, required_secrets

MAX_ADDRESS: Final = 1_000
_MAX_STATEMENTS: Final = 16
_MAX_SIGNATURE: Final = 1_024
"""Maximum bytes of one signature; an RSA key of 8,192 bits makes shorter ones."""
_NOT_IN_ADDRESS: Final = frozenset(' \\@#"<>{}|^`')
"""Characters that URL parsers disagree on when they find the host; no key URL needs them."""


class AsymmetricCheck:
    """Checks the public-key signatures of requests to one source.

    Raises:
        ConfigError: a key is missing, unreadable, weak or of the wrong kind, or the tolerance is impossible.
    """

    def __init__(self, proof: Asymmetric, spec: SourceSpec, settings: Mapping[str, str], ring: KeyRing) -> None:
        self._proof = proof
        self._settings = settings
        self._ring = ring
        self._keys = _configured_keys(proof, spec)
        self._window = (
            TimestampWindow(spec, proof.timestamp.tolerance_s, proof.timestamp.unit) if proof.timestamp else None
        )
        self._decode = _DECODERS[proof.encoding]

    @property
    def proof_headers(self) -> frozenset[str]:
        """The headers needed to check a request again later."""
        named_headers = {
            name for names in self._proof.headers for name in (names.signature, names.timestamp, names.id) if name
        }
        selectors: list[Selector] = [self._proof.timestamp.selector] if self._proof.timestamp else []
        if isinstance(self._proof.key, FetchedKey):
            selectors.append(self._proof.key.selector)
        return (
            frozenset(self._proof.proof_headers)
            | named_headers
            | {selector.name for selector in selectors if isinstance(selector, Header)}
        )

    def check(self, request: Request, now: float) -> ValidProof | KeyRequired | Rejected:
        """Check one request received at *now*, in seconds since 1970."""
        reader = RequestReader(request, self._settings)
        timestamp, identifier = self._proof.timestamp, None
        if self._proof.headers:
            # The time and the id of another set of names would not be signed.
            names = present_headers(self._proof.headers, request.headers)
            identifier = request.headers.get(names.id or "")
            if timestamp is not None and names.timestamp is not None:
                timestamp = replace(timestamp, selector=Header(names.timestamp))
        sent_at = read_signed_timestamp(timestamp, self._window, reader, now)
        if isinstance(sent_at, Rejected):
            return sent_at
        claims = read_signed_messages(
            self._proof.read_signed_parts, self._proof.form, reader, "", limit=_MAX_STATEMENTS
        )
        if isinstance(claims, Rejected):
            return claims
        scheme = self._scheme_of(reader)
        if isinstance(scheme, Rejected):
            return scheme
        keys = self._keys_for(reader, scheme, now)
        if isinstance(keys, Rejected | KeyRequired):
            return keys
        return self._check_keys(claims, keys, scheme) or ValidProof(
            sent_at, (join_signed(claims),) if self._proof.is_signed_once else (), identifier
        )

    def _scheme_of(self, reader: RequestReader) -> SignatureAlgorithm | Rejected:
        scheme = self._proof.scheme
        if isinstance(scheme, SignatureAlgorithm):
            return scheme
        try:
            algorithm = scheme(reader)
        except Exception as error:  # noqa: BLE001 - whatever was sent, it is rejected
            return reject(Reason.UNKNOWN_SCHEME, f"the scheme cannot be read ({type(error).__name__})")
        return algorithm if isinstance(algorithm, SignatureAlgorithm) else reject(Reason.UNKNOWN_SCHEME, algorithm)

    def _keys_for(
        self, reader: RequestReader, scheme: SignatureAlgorithm, now: float
    ) -> tuple[PublicKey, ...] | KeyRequired | Rejected:
        if isinstance(self._proof.key, ConfiguredKey):
            keys = self._keys
        else:
            fetched = self._fetched(self._proof.key, reader, now)
            if not isinstance(fetched, PublicKey):
                return fetched
            keys = (fetched,)
        troubles = [key.trouble(now) or _key_type_error(key, scheme) for key in keys]
        usable = tuple(key for key, trouble in zip(keys, troubles, strict=True) if trouble is None)
        if usable:
            return usable
        return reject(Reason.KEY_UNAVAILABLE, f"no key can be used: {troubles[0]}", may_reverify=True)

    def _fetched(self, fetched: FetchedKey, reader: RequestReader, now: float) -> PublicKey | KeyRequired | Rejected:
        location = describe_selector(fetched.selector)
        url = reader.text(fetched.selector)
        if url is None:
            return reject(Reason.SIGNATURE_MISSING, f"there is no certificate URL in {location}")
        if not is_allowed_url(url, fetched):
            detail = f"the URL in {location} is not a certificate URL of this sender, so it was not fetched"
            return reject(Reason.SIGNATURE_MALFORMED, detail)
        content = self._ring.get(url, now)
        if content is None:
            return KeyRequired(url=url)
        try:
            return read_pem(content)
        except ValueError as error:
            return reject(Reason.KEY_UNAVAILABLE, f"the content of the URL in {location} is not a key: {error}")

    def _check_keys(
        self, claims: Sequence[SignedMessage], keys: Sequence[PublicKey], scheme: SignatureAlgorithm
    ) -> Rejected | None:
        """Return why one of the claims is not validly signed, or None if all are."""
        budget = MAX_SIGNATURES
        for claim in claims:
            signatures = [raw for raw in map(self._decode, dict.fromkeys(claim.signatures)) if raw][:budget]
            if not signatures:
                detail = (
                    f"no signature is {_ENCODING_NAMES[self._proof.encoding]}, or there are more than {MAX_SIGNATURES}"
                )
                return reject(Reason.SIGNATURE_MALFORMED, detail)
            budget -= len(signatures)
            if not any(
                is_valid_signature(key.key, scheme, raw, claim.signed) for raw, key in product(signatures, keys)
            ):
                count = f"any of {len(keys)} keys" if len(keys) > 1 else "the key"
                detail = f"no signature of the signed content is valid under {count} ({scheme.value})"
                return reject(Reason.SIGNATURE_MISMATCH, detail, may_reverify=True)
        return None


def is_allowed_url(url: str, fetched: FetchedKey) -> bool:
    """Return whether the recipe allows this URL to be fetched; the URL comes from the unverified request."""
    is_plain = url.isascii() and url.isprintable() and _NOT_IN_ADDRESS.isdisjoint(url) and ".." not in url
    return (
        is_plain
        and len(url) <= MAX_ADDRESS
        and url.startswith("https://")
        and fetched.pattern.fullmatch(url) is not None
    )


def _configured_keys(proof: Asymmetric, spec: SourceSpec) -> tuple[PublicKey, ...]:
    if not isinstance(proof.key, ConfiguredKey):
        return ()
    keys = []
    for position, secret in enumerate(required_secrets(spec)):
        location = f"sources.{spec.name}.secrets[{position}]"
        try:
            key = read_public_key(secret, proof.key.text)
        except ValueError as error:
            want = f"{spec.provider} needs a public key as {proof.key.text.value}"
            raise ConfigError(f"{location}: {error}; {want}; copy it from the sender") from None
        if isinstance(proof.scheme, SignatureAlgorithm) and (trouble := _key_type_error(key, proof.scheme)):
            raise ConfigError(f"{location}: {trouble}; copy the sender's own public key")
        keys.append(key)
    return tuple(keys)


def _key_type_error(key: PublicKey, scheme: SignatureAlgorithm) -> str | None:
    return None if is_key_for_algorithm(key.key, scheme) else f"this type of key cannot sign with {scheme.value}"


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
_ENCODING_NAMES: Final = {Encoding.BASE64: "base64", Encoding.HEX: "hexadecimal"}
