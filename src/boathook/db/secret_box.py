"""Encrypts stored secrets with a key that the database never sees; each one is bound to its context.

AES-256-GCM (NIST SP 800-38D) with a random nonce. The context, such as ``endpoint_secret:ep_…``, is authenticated, so
that a secret copied to another row cannot be decrypted there. Each encrypted secret names its key, so that keys can be
rotated: the first key encrypts, all keys decrypt.
"""

import base64
import contextlib
import hashlib
import os
import secrets
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from boathook.config import Settings
from boathook.config.data_dir import prepare_data_dir
from boathook.config.tables import MIN_KEY_CHARS
from boathook.domain.errors import ConfigError, SecretUnreadable

FILE_NAME: Final = "encryption.key"
_VERSION: Final = b"\x01"
_KEY_ID_BYTES: Final = 4
_NONCE_BYTES: Final = 12


class SecretBox:
    """Encrypts and decrypts secrets.

    Args:
        keys: texts of at least 16 characters; the first encrypts, all of them decrypt.

    Raises:
        ConfigError: there is no key, or one is too short.
    """

    def __init__(self, keys: Sequence[str]) -> None:
        if not keys or any(len(key) < MIN_KEY_CHARS for key in keys):
            raise ConfigError(
                f"outbound.encryption_keys: a key has at least {MIN_KEY_CHARS} characters; "
                "generate one with: python -c 'import secrets; print(secrets.token_urlsafe(32))'"
            )
        digests = [hashlib.sha256(b"boathook-vault\x00" + key.encode()).digest() for key in keys]
        self._keys = {_key_id(digest): AESGCM(digest) for digest in reversed(digests)}
        self._first = _key_id(digests[0])

    def encrypt(self, secret: str, context: str) -> bytes:
        """Encrypt *secret*; it can be decrypted only with the same *context*."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        encrypted = self._keys[self._first].encrypt(nonce, secret.encode(), context.encode())
        return _VERSION + self._first + nonce + encrypted

    def open(self, encrypted: bytes, context: str) -> str:
        """Decrypt a secret.

        Raises:
            SecretUnreadable: the key is missing, or *encrypted* was altered or has another context.
        """
        key_id, nonce = (
            encrypted[1 : 1 + _KEY_ID_BYTES],
            encrypted[1 + _KEY_ID_BYTES : 1 + _KEY_ID_BYTES + _NONCE_BYTES],
        )
        key = self._keys.get(key_id)
        if key is None or encrypted[:1] != _VERSION:
            raise SecretUnreadable(
                f"a secret is encrypted with key {key_id.hex()}, not among outbound.encryption_keys; add it there"
            )
        try:
            return key.decrypt(nonce, encrypted[1 + _KEY_ID_BYTES + _NONCE_BYTES :], context.encode()).decode()
        except InvalidTag:
            raise SecretUnreadable(f"a stored secret does not belong to {context}, or was altered") from None

    def is_current(self, encrypted: bytes) -> bool:
        """Return whether *encrypted* was encrypted with the first key."""
        return encrypted[1 : 1 + _KEY_ID_BYTES] == self._first


def open_secret_box(settings: Settings) -> SecretBox:
    """Return a box for `outbound.encryption_keys`, or for a key file in the data folder, created if missing.

    Raises:
        ConfigError: a key is too short or cannot be read.
    """
    keys = settings.encryption_keys()
    return SecretBox(keys or [_file_key(settings.server.data_dir / FILE_NAME)])


def _file_key(path: Path) -> str:
    try:
        prepare_data_dir(path.parent)
        with contextlib.suppress(FileExistsError):
            _make_key(path)
        return _read_key(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"cannot use {path}: {error}; set outbound.encryption_keys, or make the folder writable"
        ) from None


def _make_key(path: Path) -> None:
    """Create the key file atomically, unless it exists: processes that start concurrently use the same key."""
    draft = path.with_name(f"{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(base64.urlsafe_b64encode(secrets.token_bytes(32)) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        os.link(draft, path)
    finally:
        draft.unlink()


def _read_key(path: Path) -> str:
    key = path.read_text(encoding="ascii").strip()
    if not key:
        raise ConfigError(f"{path} is empty; restore the key that secrets are encrypted with, or delete it")
    return key


def _key_id(digest: bytes) -> bytes:
    return hashlib.sha256(digest).digest()[:_KEY_ID_BYTES]
