"""Stores files: the interface of all storages, and a storage in a folder."""

import asyncio
import os
import re
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Final, Protocol

from boathook import BoathookError

PAGE: Final = 1_000
"""Objects per page, the maximum of S3."""
_KEY: Final = re.compile(r"(?!.*(^|/)\.{0,2}(/|$))[A-Za-z0-9._/-]{1,512}")
_UNFINISHED: Final = ".storing-"


class StorageFailed(BoathookError):
    """An object could not be stored, listed, read or deleted; a retry may help.

    Args:
        message: one sentence, without credentials.
        code: one word for machines, such as ``SlowDown``.
    """

    def __init__(self, message: str, code: str = "STORAGE_FAILED") -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Stored:
    """An object as a listing shows it."""

    key: str
    size: int
    modified_at: datetime


class Storage(Protocol):
    """Stores files by key; each call raises StorageFailed if it fails."""

    async def put(self, path: Path, key: str, *, content_type: str, sha256: str) -> None:
        """Store a file atomically, replacing the object with the same key."""
        ...

    async def head(self, key: str) -> Stored | None:
        """Return an object, or None if it does not exist."""
        ...

    async def delete(self, key: str) -> None:
        """Delete an object; it may already be gone."""
        ...

    def pages(self, prefix: str, *, size: int = PAGE) -> AsyncIterator[Sequence[Stored]]:
        """Yield all objects whose keys start with *prefix*, page by page in the order of their keys."""
        ...

    async def link(self, key: str, expires_s: int) -> str | None:
        """Return a URL with which anyone can read an object for *expires_s* seconds; None if it has none of its own."""
        ...


class LocalFolder:
    """Stores files in a folder, by the same keys.

    Args:
        root: the folder; created when the first file is stored.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, key: str) -> Path:
        """Return the path of an object, which may not exist. Raises StorageFailed: *key* is not one."""
        return self._place(key)

    async def put(self, path: Path, key: str, *, content_type: str, sha256: str) -> None:  # noqa: ARG002 - see Storage
        """Store a file; it appears under its key atomically, and is synced to disk."""
        await asyncio.to_thread(self._put, path, key)

    async def head(self, key: str) -> Stored | None:
        """Return an object, or None if it does not exist."""
        return await asyncio.to_thread(_look, self._place(key), key)

    async def delete(self, key: str) -> None:
        """Delete an object, and its folder if it is empty then."""
        await asyncio.to_thread(self._delete, key)

    async def pages(self, prefix: str, *, size: int = PAGE) -> AsyncIterator[Sequence[Stored]]:
        """Yield all objects whose keys start with *prefix*, page by page in the order of their keys."""
        walk = self._walk(self._root, "", prefix)
        while page := await asyncio.to_thread(lambda: list(islice(walk, size))):
            yield page

    async def link(self, key: str, expires_s: int) -> None:  # noqa: ARG002 - see Storage
        """Return None: a folder has no URLs."""
        return

    def _put(self, path: Path, key: str) -> None:
        target = self._place(key)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=target.parent)
            try:
                with os.fdopen(handle, "wb") as copy, path.open("rb") as source:
                    shutil.copyfileobj(source, copy, 1 << 20)
                    copy.flush()
                    os.fsync(copy.fileno())
                Path(name).chmod(0o644)
                Path(name).replace(target)
                _sync(target.parent)
            finally:
                Path(name).unlink(missing_ok=True)
        except OSError as error:
            raise StorageFailed(f"{key} cannot be stored in {self._root}: {error.strerror or error}") from None

    def _delete(self, key: str) -> None:
        target = self._place(key)
        try:
            target.unlink(missing_ok=True)
        except OSError as error:
            raise StorageFailed(f"{key} cannot be deleted: {error.strerror or error}") from None
        try:
            target.parent.rmdir()
        except OSError:  # the folder is not empty
            return

    def _place(self, key: str) -> Path:
        root = self._root.resolve()
        target = root / key
        if _KEY.fullmatch(key) is None or not target.parent.resolve().is_relative_to(root):
            raise StorageFailed(f"{key!r} is not the key of an object in {self._root}", "BAD_KEY")
        return target

    def _walk(self, folder: Path, path: str, prefix: str) -> Iterator[Stored]:
        try:
            # Folders sort like their keys: with a slash after the name.
            with os.scandir(folder) as entries:
                names = sorted(
                    entry.name + "/" if entry.is_dir(follow_symlinks=False) else entry.name for entry in entries
                )
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageFailed(f"{folder} cannot be read: {error.strerror or error}") from None
        for name in names:
            key = path + name
            if name.endswith("/"):
                if key.startswith(prefix) or prefix.startswith(key):
                    yield from self._walk(folder / name, key, prefix)
            elif key.startswith(prefix) and not name.startswith(_UNFINISHED):
                entry = _look(folder / name, key)
                if entry is not None:
                    yield entry


def _look(path: Path, key: str) -> Stored | None:
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise StorageFailed(f"{key} cannot be read: {error.strerror or error}") from None
    return Stored(key, status.st_size, datetime.fromtimestamp(status.st_mtime, UTC))


def _sync(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
