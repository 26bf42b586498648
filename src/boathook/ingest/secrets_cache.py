"""Secrets that operators have added to sources, as a gateway knows them: told by the journal, kept for a start without.

The file holds them as encrypted as the journal does, so that it tells nobody more than the database would.
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
    """The secrets of all sources that operators have added.

    Args:
        settings: where the file and the encryption keys are.
        known: the secrets; None: those of the file.
    """

    def __init__(self, settings: Settings, known: Sequence[SourceSecret] | None = None) -> None:
        self._settings = settings
        self._file = settings.server.data_dir / FILE_NAME
        self._secret_box: SecretBox | None = None
        self._opened: dict[UUID, str | None] = {}
        self.known = tuple(known) if known is not None else _read(self._file)
        """The youngest first; some may have ended."""

    def active_ids(self, source: str, now: float) -> tuple[UUID, ...]:
        """Return which secrets of a source prove its requests at *now*, in seconds since 1970."""
        moment = datetime.fromtimestamp(now, UTC)
        return tuple(one.id for one in self.known if one.source == source and one.is_valid_at(moment))

    def of(self, source: str, now: float) -> tuple[str, ...]:
        """Return the secrets of a source that prove its requests at *now*, the youngest first.

        One that cannot be opened with the encryption keys at hand proves nothing; the log says so once.
        """
        active_ids = frozenset(self.active_ids(source, now))
        opened = (self._open(one) for one in self.known if one.id in active_ids)
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

    def set_secrets(self, known: Sequence[SourceSecret]) -> None:
        """Know these secrets from now on, and no others."""
        self.known = tuple(known)
        ids = {one.id for one in self.known}
        self._opened = {id: text for id, text in self._opened.items() if id in ids}

    def save(self) -> None:
        """Put what is known into the file, whole or not at all. A disk that fails is told of and stops nothing."""
        try:
            if self.known or self._file.exists():
                _write(self._file, self.known)
        except OSError as error:
            note = "a start without PostgreSQL would not know the latest secrets"
            _LOG.error("source_secrets_not_kept", file=str(self._file), error=str(error), note=note)


class _Row(msgspec.Struct, frozen=True):
    id: str
    source: str
    encrypted: str
    ends_at: Annotated[datetime, msgspec.Meta(tz=True)] | None


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
        ends_at=row.ends_at,
    )


def _row(secret: SourceSecret) -> _Row:
    return _Row(
        id=show(SOURCE_SECRET, secret.id),
        source=secret.source,
        encrypted=base64.b64encode(secret.encrypted).decode(),
        ends_at=secret.ends_at,
    )


def _write(file: Path, known: Sequence[SourceSecret]) -> None:
    draft = file.with_name(f".{file.name}.{secrets.token_hex(6)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            opened.write(msgspec.json.format(msgspec.json.encode([_row(one) for one in known]), indent=1) + b"\n")
            opened.flush()
            os.fsync(descriptor)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)
    sync_folder(file.parent)
