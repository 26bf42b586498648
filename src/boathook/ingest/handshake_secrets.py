"""Stores secrets that senders pass in a handshake request, as files that all gateways of this host read.

An unauthenticated client that has the source's URL could send a secret before the real sender does. Therefore only the
first secret is accepted, and it verifies nothing until an operator has confirmed it. The operator shows it to the
sender, which rejects a secret it did not send.
"""

import os
import secrets
from pathlib import Path
from typing import Final
from urllib.parse import quote

from boathook.domain import signing
from boathook.domain.errors import ConfigError

FOLDER: Final = "captured"


class HandshakeSecrets:
    """The files under *data_dir*; each change is durable or does not happen."""

    def __init__(self, data_dir: Path) -> None:
        self._folder = data_dir / FOLDER

    def save(self, source: str, secret: str) -> bool:
        """Store a sender's secret; return False if a different secret was stored before."""
        earlier = self.confirmed(source) or _read(self._pending_file(source))
        if earlier is not None:
            return _is_same(earlier, secret)
        self._folder.mkdir(mode=0o700, exist_ok=True)
        draft = self._folder / f".{secrets.token_hex(8)}"
        _write(draft, secret)
        try:
            # A link is created completely or not at all, and never replaces another.
            os.link(draft, self._pending_file(source))
        except FileExistsError:
            first = _read(self._pending_file(source))
            return first is not None and _is_same(first, secret)
        finally:
            draft.unlink()
        sync_folder(self._folder)
        return True

    def confirmed(self, source: str) -> str | None:
        """Return the secret in use; None if none was received or the operator has not confirmed it."""
        return _read(self._confirmed_file(source))

    def confirm(self, source: str) -> str | None:
        """Confirm the received secret, so that it is used from now on, and return it; None if none was received."""
        if _read(self._pending_file(source)) is not None and self.confirmed(source) is None:
            self._pending_file(source).rename(self._confirmed_file(source))
            sync_folder(self._folder)
        return self.confirmed(source)

    def forget(self, source: str) -> bool:
        """Remove the secret, so that the sender can send a new one; return whether there was one."""
        files = [file for file in (self._pending_file(source), self._confirmed_file(source)) if file.exists()]
        for file in files:
            file.unlink()
        if files:
            sync_folder(self._folder)
        return bool(files)

    def _pending_file(self, source: str) -> Path:
        return self._folder / f"{quote(source, safe='')}.pending"

    def _confirmed_file(self, source: str) -> Path:
        return self._folder / f"{quote(source, safe='')}.secret"


def _is_same(own_secret: str, received: str) -> bool:
    """Compare in constant time: one may come from an unauthenticated client, and the other is the secret."""
    left, right = (signing.fingerprint(text.encode("utf-8", "surrogatepass")) for text in (own_secret, received))
    return signing.equal_bytes_constant_time(left, right)


def _read(file: Path) -> str | None:
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file} cannot be read: {error}; make it readable for boathook, or remove it") from None


def _write(file: Path, text: str) -> None:
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(descriptor)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that its file names are durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
