"""Signs messages as specified by Standard Webhooks 1.0.0: HMAC-SHA256 (``v1``) or Ed25519 (``v1a``).

A symmetric secret is ``whsec_`` and base64 of 24 to 75 random bytes. An Ed25519 secret is ``whsk_`` and base64 of the
private key: its seed of 32 bytes, alone or followed by the public key. Receivers of Ed25519 signatures verify with
``whpk_`` and base64 of the public key. A signer is created once per secret and reused.
"""

import secrets
from collections.abc import Iterable
from typing import Final, Literal

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from boathook.domain.signing import (
    PRIVATE_PREFIX,
    PUBLIC_PREFIX,
    STANDARD_PREFIX,
    HmacKey,
    KeyFormat,
    decode_key,
    encode_base64,
)

SYMMETRIC_BYTES: Final = range(24, 76)
"""Valid lengths of a decoded symmetric key, in bytes; 75 is included."""
_SEED_BYTES: Final = 32
_ENTROPY_BYTES: Final = 24


class SymmetricSigner:
    """Signs with a key that it shares with the receiver."""

    __slots__ = ("_mac", "public")

    def __init__(self, secret: str, key: bytes) -> None:
        self._mac = HmacKey(key)
        self.public = secret
        """The receiver's verification key: the secret itself."""

    def sign(self, message_id: str, timestamp: int, body: bytes) -> str:
        """Return one signature, such as ``v1,g0hM...``; *timestamp* is in Unix seconds."""
        return "v1," + encode_base64(self._mac.digest((f"{message_id}.{timestamp}.".encode(), body)))


class AsymmetricSigner:
    """Signs with a private key; the receiver has only the public key."""

    __slots__ = ("_key", "public")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = PUBLIC_PREFIX + encode_base64(key.public_key().public_bytes_raw())
        """The receiver's verification key."""

    def sign(self, message_id: str, timestamp: int, body: bytes) -> str:
        """Return one signature, such as ``v1a,hnO3...``; *timestamp* is in Unix seconds."""
        return "v1a," + encode_base64(self._key.sign(f"{message_id}.{timestamp}.".encode() + body))


Signer = SymmetricSigner | AsymmetricSigner


def read_signer(secret: str) -> Signer:
    """Return a signer for *secret*.

    Raises:
        ValueError: it is not a secret of an endpoint; the message describes the format and does not repeat the secret.
    """
    if secret.startswith(STANDARD_PREFIX):
        key = decode_key(secret, KeyFormat.STANDARD)
        if len(key) not in SYMMETRIC_BYTES:
            raise ValueError(f"a {STANDARD_PREFIX} secret has 24 to 75 bytes before base64, not {len(key)}")
        return SymmetricSigner(secret, key)
    if secret.startswith(PRIVATE_PREFIX):
        return AsymmetricSigner(_read_private(decode_key(secret.removeprefix(PRIVATE_PREFIX), KeyFormat.BASE64)))
    raise ValueError(f"a secret starts with {STANDARD_PREFIX} or {PRIVATE_PREFIX}, base64 follows")


def read_signers(secrets: Iterable[str]) -> tuple[Signer, ...]:
    """Return a signer for each secret of an endpoint. Raises ValueError if there is none, or as `read_signer`."""
    signers = tuple(read_signer(secret) for secret in secrets)
    if not signers:
        raise ValueError("the endpoint has no secret")
    return signers


def signing_texts(signers: Iterable[Signer]) -> list[str]:
    """Return the texts that receivers must not repeat: shared secrets, whole and without their prefix."""
    texts = [signer.public for signer in signers if isinstance(signer, SymmetricSigner)]
    return [*texts, *(text.partition("_")[2] for text in texts)]


def _read_private(key: bytes) -> Ed25519PrivateKey:
    seed, public = key[:_SEED_BYTES], key[_SEED_BYTES:]
    if len(seed) != _SEED_BYTES or len(public) not in {0, _SEED_BYTES}:
        raise ValueError(f"a {PRIVATE_PREFIX} secret has 32 or 64 bytes before base64, not {len(key)}")
    private = Ed25519PrivateKey.from_private_bytes(seed)
    if public and private.public_key().public_bytes_raw() != public:
        raise ValueError(f"the second half of a {PRIVATE_PREFIX} secret must be the public key of the first")
    return private


def sign_message(
    prefixes: Iterable[str], signers: Iterable[Signer], message_id: str, timestamp: int, body: bytes
) -> list[tuple[str, str]]:
    """Return the headers of Standard Webhooks for a message, with the signature of each signer."""
    signature = " ".join([signer.sign(message_id, timestamp, body) for signer in signers])
    headers = []
    for prefix in prefixes:
        headers += [
            (f"{prefix}-id", message_id),
            (f"{prefix}-timestamp", str(timestamp)),
            (f"{prefix}-signature", signature),
        ]
    return headers


SignatureType = Literal["hmac256", "ed25519"]


def make_secret(signature_type: SignatureType = "hmac256") -> str:
    """Generate a secret of this type: a symmetric one of 24 random bytes, or an Ed25519 seed with its public key."""
    if signature_type == "ed25519":
        return make_ed25519_secret()
    return STANDARD_PREFIX + encode_base64(secrets.token_bytes(_ENTROPY_BYTES))


def make_ed25519_secret() -> str:
    """Generate an Ed25519 secret: seed and public key."""
    key = Ed25519PrivateKey.generate()
    return PRIVATE_PREFIX + encode_base64(key.private_bytes_raw() + key.public_key().public_bytes_raw())
