"""Keys, MACs and encodings over plain bytes, used for both signing and verification.

Standard Webhooks (https://github.com/standard-webhooks/standard-webhooks, version 1.0.0) is the only complete scheme
implemented here, because boathook also sends it. The signature schemes of other senders are data in the provider
recipes.
"""

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Callable, Iterable
from enum import StrEnum
from typing import Final

STANDARD_PREFIX: Final = "whsec_"
PUBLIC_PREFIX: Final = "whpk_"
PRIVATE_PREFIX: Final = "whsk_"
VERSION_PREFIX: Final = "v1,"
"""Supabase shows a secret with the version of its signatures, as ``v1,whsec_…``:
https://supabase.com/docs/guides/auth/auth-hooks."""
STANDARD_SECRET_BYTES: Final = range(24, 65)
"""Valid lengths of a decoded Standard Webhooks secret; 64 is included."""


class Algorithm(StrEnum):
    """The hash function of an HMAC, or a plain hash for senders that hash the secret with the body."""

    MD5 = "md5"
    """Broken; only for senders that offer nothing better by default."""
    SHA1 = "sha1"
    SHA256 = "sha256"
    SHA384 = "sha384"
    SHA512 = "sha512"


class Encoding(StrEnum):
    """How a signature is encoded as text."""

    HEX = "hex"
    BASE64 = "base64"


class KeyFormat(StrEnum):
    """How a configured secret is decoded to the bytes of a key."""

    TEXT = "text"
    """The characters as UTF-8, also for secrets that only look encoded."""
    HEX = "hex"
    BASE64 = "base64"
    STANDARD = "whsec"
    """Standard Webhooks: an optional ``v1,``, an optional ``whsec_``, then base64."""
    SHA1 = "sha1"
    """The SHA-1 of the characters, as Braintree uses."""


def decode_key(secret: str, form: KeyFormat) -> bytes:
    """Return the bytes of a key.

    Raises:
        ValueError: *secret* is empty or not in the format *form*; the message does not contain it.
    """
    key = _decode(secret, form)
    if not key:
        raise ValueError("the secret is empty")
    return key


def _decode(secret: str, form: KeyFormat) -> bytes:
    match form:
        case KeyFormat.TEXT:
            return secret.encode("utf-8", "surrogatepass")
        case KeyFormat.HEX:
            return _decode_hex(secret)
        case KeyFormat.BASE64:
            return _decode_base64(secret)
        case KeyFormat.STANDARD:
            if secret.startswith((PUBLIC_PREFIX, "v1a,")):
                raise ValueError(f'this is a public key ({PUBLIC_PREFIX}), which needs scheme = "v1a"')
            return _decode_base64(secret.removeprefix(VERSION_PREFIX).removeprefix(STANDARD_PREFIX))
        case KeyFormat.SHA1:
            # The sender's algorithm. A collision would not help an attacker who does not have the key.
            return hashlib.sha1(secret.encode("utf-8", "surrogatepass")).digest() if secret else b""  # noqa: S324


def _decode_hex(text: str) -> bytes:
    try:
        return binascii.unhexlify(text.encode("ascii"))
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError("the secret must be hexadecimal") from None


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text.encode("ascii") + b"=" * (-len(text) % 4), validate=True)
    except (binascii.Error, UnicodeEncodeError):
        raise ValueError("the secret must be base64") from None


def encode_base64(digest: bytes) -> str:
    """Encode *digest* in base64 with padding (RFC 4648, section 4)."""
    return binascii.b2a_base64(digest, newline=False).decode("ascii")


ENCODERS: Final[dict[Encoding, Callable[[bytes], str]]] = {
    Encoding.HEX: bytes.hex,
    Encoding.BASE64: encode_base64,
}
"""The function that encodes a digest, for each encoding."""


_VARIABLE: Final = re.compile(r"\$\{?(?P<marked>[A-Za-z_]\w*)\}?|(?P<plain>[A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)", re.ASCII)


def variable_name(secret: str) -> str | None:
    """Return the name of an environment variable in place of a secret; None if the text is something else."""
    match = _VARIABLE.fullmatch(secret.strip())
    return None if match is None else match["marked"] or match["plain"]


def describe_variable(name: str) -> str:
    """Return what is wrong with the name of a variable in place of a secret."""
    return f'{name!r} looks like the name of a variable, not its value; write "env:{name}"'


class HmacKey:
    """An HMAC (RFC 2104) with one key, initialized once and used for many messages."""

    __slots__ = ("_keyed",)

    def __init__(self, key: bytes, algorithm: Algorithm = Algorithm.SHA256) -> None:
        self._keyed = hmac.new(key, digestmod=algorithm.value)

    def digest(self, chunks: Iterable[bytes]) -> bytes:
        """Return the MAC over the concatenation of *chunks*, without joining them in memory."""
        running = self._keyed.copy()
        for chunk in chunks:
            running.update(chunk)
        return running.digest()


def equal_constant_time(left: str, right: str) -> bool:
    """Compare two signatures in constant time.

    Raises:
        TypeError: one of them is not ASCII.
    """
    return hmac.compare_digest(left, right)


def fingerprint(secret: bytes) -> bytes:
    """Return the SHA-256 of *secret*, so that secrets of different lengths compare in equal time."""
    return hashlib.sha256(secret).digest()


def equal_bytes_constant_time(left: bytes, right: bytes) -> bool:
    """Compare two fingerprints in constant time."""
    return hmac.compare_digest(left, right)


def sign_standard(secrets: Iterable[str], message_id: str, timestamp: int, body: bytes) -> str:
    """Return the value of ``webhook-signature``: one ``v1,`` signature for each secret, separated by spaces.

    Raises:
        ValueError: a secret is not base64, or *message_id* contains a dot, which would make the signed bytes ambiguous.
    """
    if not message_id or "." in message_id:
        raise ValueError(f"a message id is not empty and contains no dot, got {message_id!r}")
    head = f"{message_id}.{timestamp}.".encode()
    return " ".join(
        "v1," + encode_base64(HmacKey(decode_key(secret, KeyFormat.STANDARD)).digest((head, body)))
        for secret in secrets
    )
