"""Saves the stored sources in a file, encrypted as in the database, for starts of a gateway without PostgreSQL."""

import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

import msgspec

from boathook.db.stored_sources import StoredSource
from boathook.ingest.secrets_cache import write_file
from boathook.observability.log import get_logger

FILE_NAME: Final = "stored-sources.json"
_LOG = get_logger("ingest")


class _Row(msgspec.Struct, frozen=True):
    name: str
    id: str
    paths: list[str]
    encrypted: str


_ROWS: Final = msgspec.json.Decoder(list[_Row])


def read_stored_sources(data_dir: Path) -> tuple[StoredSource, ...] | None:
    """Return the stored sources that a gateway of this host saved last; None if there is no readable file."""
    file = data_dir / FILE_NAME
    try:
        return tuple(_source(row) for row in _ROWS.decode(file.read_bytes()))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        _LOG.error("stored_sources_unreadable", file=str(file), error=str(error), note="it is replaced in time")
        return None


def save_stored_sources(data_dir: Path, rows: Sequence[StoredSource]) -> None:
    """Write the stored sources to the file atomically; a disk error is logged and ignored."""
    file = data_dir / FILE_NAME
    try:
        write_file(file, [_row(row) for row in rows])
    except OSError as error:
        note = "a start without PostgreSQL would not have the latest stored sources"
        _LOG.error("stored_sources_not_saved", file=str(file), error=str(error), note=note)


def _source(row: _Row) -> StoredSource:
    return StoredSource(
        name=row.name, id=UUID(row.id), paths=tuple(row.paths), encrypted=base64.b64decode(row.encrypted)
    )


def _row(row: StoredSource) -> _Row:
    return _Row(
        name=row.name, id=str(row.id), paths=list(row.paths), encrypted=base64.b64encode(row.encrypted).decode()
    )
