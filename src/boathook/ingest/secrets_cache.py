"""Caches the secrets that operators added to sources, in memory and in a file for starts without the database.

The file stores them encrypted, as the database does, so it discloses no more than the database.
"""

import base64
import os
import secrets
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Final
from uuid import UUID

import msgspec

from boathook.config import Settings
from boathook.db.secret_box import SecretBox, open_secret_box
from boathook.db.source_secrets import SourceSecret
from boathook.domain.errors import BoathookError
from boathook.domain.ids import SOURCE_SECRET, created_at, read, show
from boathook.ingest.handshake_secrets import sync_folder
from boathook.observability.log import get_logger

FILE_NAME: Final = "source-secrets.json"
_LOG = get_logger("ingest")


class SecretsCache:
    """The secrets that operators have added, of all sources.

    Args:
        settings: the path of the file and the encryption keys.
        known: the secrets; None reads them from the file.
    """

    def __init__(self, settings: Settings, source_secrets: Sequence[SourceSecret] | None = None) -> None:
        self._settings = settings
        self._file = settings.server.data_dir / FILE_NAME
        self._secret_box: SecretBox | None = None
        self._opened: dict[UUID, str | None] = {}
        self.known = tuple(source_secrets) if source_secrets is not None else _read(self._file)
        """Newest first; some may have expired."""

    def active_ids(self, source: str, now: float) -> tuple[UUID, ...]:
        """Return the ids of the secrets of a source that are valid at *now*, in seconds since 1970."""
        at = datetime.fromtimestamp(now, UTC)
        return tuple(secret.id for secret in self.known if secret.source == source and secret.is_valid_at(at))

    def of(self, source: str, now: float) -> tuple[str, ...]:
        """Return the secrets of a source that are valid at *now*, newest first.

        A secret that cannot be decrypted with the configured keys is left out and logged once.
        """
        active_ids = frozenset(self.active_ids(source, now))
        opened = (self._open(secret) for secret in self.known if secret.id in active_ids)
        return tuple(text for text in opened if text is not None)

    def _open(self, secret: SourceSecret) -> str | None:
        if secret.id not in self._opened:
            try:
                self._secret_box = self._secret_box or open_secret_box(self._settings)
                self._opened[secret.id] = self._secret_box.open(secret.encrypted, secret.context)
            except BoathookError as error:
                self._opened[secret.id] = None
                _LOG.error("source_secret_unreadable", source=secret.source, id=secret.shown_id, error=str(error))
        return self._opened[secret.id]

    def set_secrets(self, source_secrets: Sequence[SourceSecret]) -> None:
        """Replace all known secrets."""
        self.known = tuple(source_secrets)
        ids = {secret.id for secret in self.known}
        self._opened = {id: text for id, text in self._opened.items() if id in ids}

    def save(self) -> None:
        """Write the known secrets to the file atomically; a disk error is logged and ignored."""
        try:
            if self.known or self._file.exists():
                write_file(self._file, [_row(secret) for secret in self.known])
        except OSError as error:
            note = "a start without PostgreSQL would not have the latest secrets"
            _LOG.error("source_secrets_not_kept", file=str(self._file), error=str(error), note=note)


class _Row(msgspec.Struct, frozen=True):
    id: str
    source: str
    encrypted: str
    expires_at: Annotated[datetime, msgspec.Meta(tz=True)] | None


_ROWS: Final = msgspec.json.Decoder(list[_Row])


def _read(file: Path) -> tuple[SourceSecret, ...]:
    try:
        return tuple(_secret(row) for row in _ROWS.decode(file.read_bytes()))
    except FileNotFoundError:
        return ()
    except (OSError, ValueError, OverflowError) as error:
        _LOG.error("source_secrets_unreadable", file=str(file), error=str(error), note="it is written anew in time")
        return ()


def _secret(row: _Row) -> SourceSecret:
    id = read(SOURCE_SECRET, row.id)
    return SourceSecret(
        id=id,
        source=row.source,
        encrypted=base64.b64decode(row.encrypted),
        added_by="",
        added_at=created_at(id),
        expires_at=row.expires_at,
    )


def _row(secret: SourceSecret) -> _Row:
    return _Row(
        id=show(SOURCE_SECRET, secret.id),
        source=secret.source,
        encrypted=base64.b64encode(secret.encrypted).decode(),
        expires_at=secret.expires_at,
    )


def write_file(file: Path, rows: Sequence[msgspec.Struct]) -> None:
    """Replace a file by these rows as JSON; see `replace_file`."""
    replace_file(file, msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n")


def replace_file(file: Path, content: bytes) -> None:
    """Replace a file atomically, readable by its owner alone. Raises OSError."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(6)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(content)
            opened.flush()
            os.fsync(descriptor)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(file.parent)
