"""Parses public keys in the senders' formats, and verifies signatures with them.

RSA is PKCS#1 v1.5 (RFC 8017, section 8.2), ECDSA is DER (RFC 3279, section 2.2.3), Ed25519 is RFC 8032.
"""

import base64
import binascii
from functools import lru_cache
from typing import Final, assert_never

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from boathook.domain.signing import PUBLIC_PREFIX, STANDARD_PREFIX, VERSION_PREFIX
from boathook.providers.schemes import PublicKeyFormat, SignatureAlgorithm

MIN_RSA_BITS: Final = 2_048
MAX_RSA_BITS: Final = 8_192
"""Verifying a signature with a larger key costs too much CPU time for one request."""
MAX_TEXT: Final = 65_536

Key = RSAPublicKey | EllipticCurvePublicKey | Ed25519PublicKey

_BEGIN: Final = b"-----BEGIN "
_CERTIFICATE: Final = b"-----BEGIN CERTIFICATE-----"
_SHA1: Final = hashes.SHA1()  # noqa: S303 - one sender still signs with SHA-1
_SHA256: Final = hashes.SHA256()
_PKCS1: Final = padding.PKCS1v15()
_ECDSA: Final = ec.ECDSA(_SHA256)


class PublicKey(msgspec.Struct, frozen=True):
    """A public key and, if it came in a certificate, its validity period."""

    key: Key
    not_before: float | None = None
    """Seconds since 1970; None for a key without a certificate."""
    not_after: float | None = None

    def trouble(self, now: float) -> str | None:
        """Return why the key may not be used at *now*, or None if it may."""
        if self.not_before is not None and now < self.not_before:
            return "the certificate is not valid yet"
        if self.not_after is not None and now > self.not_after:
            return "the certificate has expired"
        return None


def read_public_key(text: str, form: PublicKeyFormat) -> PublicKey:
    """Return the public key from the configuration.

    Raises:
        ValueError: it is not a public key in this format, or a weak one; the message does not repeat it.
    """
    match form:
        case PublicKeyFormat.PEM:
            return read_pem(text.encode("utf-8", "replace"))
        case PublicKeyFormat.SPKI:
            if text.lstrip().startswith("-----BEGIN"):
                return read_pem(text.encode("utf-8", "replace"))
            return PublicKey(_checked(_load_der(_base64("".join(text.split())))))
        case PublicKeyFormat.HEX:
            return PublicKey(_ed25519(_hex(text.strip())))
        case PublicKeyFormat.STANDARD:
            key = text.strip().removeprefix("v1a,")
            if key.startswith((STANDARD_PREFIX, VERSION_PREFIX)):
                raise ValueError(f"this is a shared secret ({STANDARD_PREFIX}), which needs no scheme")
            return PublicKey(_ed25519(_base64(key.removeprefix(PUBLIC_PREFIX))))
        case _ as never:
            assert_never(never)


@lru_cache(maxsize=64)
def read_pem(content: bytes) -> PublicKey:
    """Return the public key of a PEM text: of its first certificate, which in a chain is the signer's, or a bare key.

    Raises:
        ValueError: there is no key, or a weak one.
    """
    if len(content) > MAX_TEXT:
        raise ValueError("it is too long to be a public key")
    if b"PRIVATE KEY-----" in content:
        raise ValueError("it is a private key, which only the sender may have")
    try:
        if _CERTIFICATE in content:
            certificate = x509.load_pem_x509_certificate(content)
            key = _checked(certificate.public_key())
            dates = (certificate.not_valid_before_utc, certificate.not_valid_after_utc)
            return PublicKey(key, dates[0].timestamp(), dates[1].timestamp())
        if _BEGIN in content:
            return PublicKey(_checked(serialization.load_pem_public_key(content)))
    except (UnsupportedAlgorithm, TypeError, OverflowError):
        raise ValueError("its type is not supported") from None
    raise ValueError("it is not PEM, which begins with -----BEGIN PUBLIC KEY----- or -----BEGIN CERTIFICATE-----")


def is_key_for_algorithm(key: Key, scheme: SignatureAlgorithm) -> bool:
    """Return whether signatures of *scheme* are made with this kind of key."""
    match scheme:
        case SignatureAlgorithm.RSA_SHA1 | SignatureAlgorithm.RSA_SHA256:
            return isinstance(key, RSAPublicKey)
        case SignatureAlgorithm.ECDSA_SHA256:
            return isinstance(key, EllipticCurvePublicKey)
        case SignatureAlgorithm.ED25519:
            return isinstance(key, Ed25519PublicKey)
        case _ as never:
            assert_never(never)


def is_valid_signature(key: Key, scheme: SignatureAlgorithm, signature: bytes, signed: bytes) -> bool:
    """Return whether *signature* over *signed* was made with the private key of *key*."""
    try:
        match scheme, key:
            case SignatureAlgorithm.RSA_SHA1, RSAPublicKey():
                key.verify(signature, signed, _PKCS1, _SHA1)
            case SignatureAlgorithm.RSA_SHA256, RSAPublicKey():
                key.verify(signature, signed, _PKCS1, _SHA256)
            case SignatureAlgorithm.ECDSA_SHA256, EllipticCurvePublicKey():
                key.verify(signature, signed, _ECDSA)
            case SignatureAlgorithm.ED25519, Ed25519PublicKey():
                key.verify(signature, signed)
            case _:
                return False
    except (InvalidSignature, ValueError, UnsupportedAlgorithm):
        return False
    return True


def _checked(key: object) -> Key:
    match key:
        case RSAPublicKey():
            if key.key_size < MIN_RSA_BITS:
                raise ValueError(f"it is an RSA key of {key.key_size} bits; the minimum is {MIN_RSA_BITS}")
            if key.key_size > MAX_RSA_BITS:
                raise ValueError(f"it is an RSA key of {key.key_size} bits; the maximum is {MAX_RSA_BITS}")
            return key
        case EllipticCurvePublicKey():
            if key.curve.name != ec.SECP256R1.name:
                raise ValueError(f"it is a key on the curve {key.curve.name}, but only P-256 is accepted")
            return key
        case Ed25519PublicKey():
            return key
        case _:
            raise ValueError("it is neither an RSA, nor a P-256, nor an Ed25519 key")


def _load_der(der: bytes) -> object:
    try:
        return serialization.load_der_public_key(der)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ValueError("it is not a SubjectPublicKeyInfo") from None


def _ed25519(raw: bytes) -> Ed25519PublicKey:
    if len(raw) != 32:
        raise ValueError(f"an Ed25519 key has 32 bytes, this one has {len(raw)}")
    return Ed25519PublicKey.from_public_bytes(raw)


def _base64(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError("it is not base64") from None


def _hex(text: str) -> bytes:
    try:
        return binascii.unhexlify(text.encode("ascii"))
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError("it is not hexadecimal") from None
