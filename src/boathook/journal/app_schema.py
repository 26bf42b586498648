"""Brings the tables of apps up to date, by the files ``NNNN_what.sql`` in each app's folder.

What was applied is remembered by its name with the hash of its text: a file is part of many databases once it is
released, so a change to it goes into a new file.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import asyncpg

from boathook.domain.errors import ConfigError, JournalError
from boathook.journal.database import Database, translated
from boathook.journal.revising import apply, connected, session, turn
from boathook.journal.statements import load

SQL = load(__file__)
_FILE: Final = re.compile(r"(\d{4})_\w+\.sql")


@dataclass(frozen=True, slots=True, kw_only=True)
class Revision:
    """One file of an app's."""

    app: str
    name: str
    """Of the file, without its ending."""
    sql: str

    @property
    def title(self) -> str:
        """What people see, such as ``billing/0001_first``."""
        return f"{self.app}/{self.name}"

    @property
    def sha256(self) -> bytes:
        """The hash of its text."""
        return hashlib.sha256(self.sql.encode()).digest()


async def migrate_apps(url: str, folders: Sequence[tuple[str, Path]]) -> list[str]:
    """Apply what the database lacks of the files in each app's folder; return their titles.

    Each is applied in a session of its own, and in one transaction unless it begins with ``-- concurrently``; processes
    that start together may all call it. Those of boathook itself come first. A file that was applied but is no longer
    there is left alone.

    Raises:
        ConfigError: there is no such folder, or a file in it has an impossible name, or cannot be read.
        JournalUnavailable: the server cannot be reached.
        JournalError: a file was refused by the database, or was changed after it had been applied; the message
            names it.
    """
    revisions = _read(folders)
    if not revisions:
        return []
    async with turn(url) as turn_of_ours:
        lacking = _lacking(revisions, await _applied(turn_of_ours))
        for revision in lacking:
            async with session(url) as connection:
                await _apply(url, connection, revision)
    return [revision.title for revision in lacking]


async def pending_apps(where: Database | str, folders: Sequence[tuple[str, Path]]) -> list[str]:
    """Return the titles of the files that a database, or the one at a URL, still lacks. Raises as `migrate_apps`."""
    revisions = _read(folders)
    if not revisions:
        return []
    if isinstance(where, Database):
        return [one.title for one in _lacking(revisions, await _applied(where))]
    async with connected(where) as connection:
        return [one.title for one in _lacking(revisions, await _applied(connection))]


def _read(folders: Sequence[tuple[str, Path]]) -> list[Revision]:
    return [revision for app, folder in folders for revision in _read_folder(app, folder)]


def _read_folder(app: str, folder: Path) -> list[Revision]:
    if not folder.is_dir():
        raise ConfigError(f"{app}: there is no folder {folder} with its migrations")
    numbers: dict[str, str] = {}
    revisions = []
    for path in sorted(folder.glob("*.sql")):
        named = _FILE.fullmatch(path.name)
        if named is None:
            raise ConfigError(f"{path}: call it NNNN_what.sql, such as 0001_first.sql")
        if (other := numbers.setdefault(named[1], path.name)) != path.name:
            raise ConfigError(f"{path} has the number of {other}; give the later one the next number")
        revisions.append(Revision(app=app, name=path.stem, sql=_read_file(path)))
    return revisions


def _read_file(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text; save it as UTF-8") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None


async def _applied(where: Database | asyncpg.Connection) -> dict[tuple[str, str], bytes]:
    with translated():
        if not await where.fetchval(SQL["find_app_revisions"]):
            return {}
        rows = await where.fetch(SQL["read_app_revisions"])
    return {(row["app"], row["name"]): row["sha256"] for row in rows}


def _lacking(revisions: Sequence[Revision], applied: Mapping[tuple[str, str], bytes]) -> list[Revision]:
    for revision in revisions:
        before = applied.get((revision.app, revision.name))
        if before is not None and before != revision.sha256:
            raise JournalError(
                f"migration {revision.title} was changed after it had been applied to this database:"
                " give the file its former text, and put the change into a new one"
            )
    return [revision for revision in revisions if (revision.app, revision.name) not in applied]


async def _apply(url: str, connection: asyncpg.Connection, revision: Revision) -> None:
    async def note() -> None:
        await connection.execute(SQL["note_app_revision"], revision.app, revision.name, revision.sha256)

    await apply(url, connection, revision.title, revision.sql, note)
