"""File operations of the spool: each is durable when it returns, unless it says otherwise."""

import contextlib
import errno
import fcntl
import os
import shutil
import time
from pathlib import Path
from typing import Final

_PRIVATE_FOLDER: Final = 0o700
_PRIVATE_FILE: Final = 0o600
LOCK_TRIES: Final = 5
_LOCK_PAUSE_S: Final = 0.002
_NO_FALLOCATE_ERRORS: Final = {errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS}


class File:
    """A file that is written sequentially."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._is_open = True

    def write(self, data: bytes) -> None:
        """Append *data*; it is durable only after `sync`."""
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]

    def sync(self) -> None:
        """Make all written data durable."""
        os.fdatasync(self._descriptor)

    def close(self, size: int | None = None) -> None:
        """Close the file if it is open; with *size*, truncate it to that size and make that durable."""
        try:
            if size is not None:
                os.ftruncate(self._descriptor, size)
                os.fsync(self._descriptor)
        finally:
            if self._is_open:  # a closed descriptor's number may be in use again
                self._is_open = False
                os.close(self._descriptor)


class Lock:
    """A lock on a folder."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def release(self) -> None:
        """Release the lock."""
        os.close(self._descriptor)


class Disk:
    """The file system of this machine. Every method raises OSError on failure."""

    def make_folder(self, path: Path) -> None:
        """Create a folder and its parents, readable only by the owner."""
        missing = [folder for folder in (path, *path.parents) if not folder.exists()]
        for folder in reversed(missing):
            with contextlib.suppress(FileExistsError):
                folder.mkdir(mode=_PRIVATE_FOLDER)
            sync_folder(folder.parent)

    def create(self, path: Path, size: int, head: bytes = b"") -> File:
        """Create a new file that starts with *head*, and reserve *size* bytes if the file system can."""
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, _PRIVATE_FILE)
        file = File(descriptor)
        try:
            _reserve(descriptor, size)
            file.write(head)
            os.fsync(descriptor)
            sync_folder(path.parent)
        except BaseException:
            os.close(descriptor)
            with contextlib.suppress(OSError):
                path.unlink()
            raise
        return file

    def read(self, path: Path) -> bytes:
        """Return the contents of a file."""
        return path.read_bytes()

    def rename(self, old: Path, new: Path) -> None:
        """Rename a file within its folder."""
        old.rename(new)
        sync_folder(new.parent)

    def remove(self, path: Path) -> None:
        """Remove a file."""
        path.unlink(missing_ok=True)
        sync_folder(path.parent)

    def remove_folder(self, path: Path) -> None:
        """Remove an empty folder."""
        path.rmdir()
        sync_folder(path.parent)

    def names(self, folder: Path) -> list[str]:
        """Return the names in a folder, in alphabetical order; empty if there is no such folder."""
        try:
            return sorted(path.name for path in folder.iterdir())
        except FileNotFoundError:
            return []

    def size(self, path: Path) -> int:
        """Return the size of a file in bytes."""
        return path.stat().st_size

    def changed_at(self, path: Path) -> float:
        """Return when a file was last modified, in seconds since 1970."""
        return path.stat().st_mtime

    def used(self, folder: Path) -> float:
        """Return the share of the disk under *folder* that is in use, from 0 to 1."""
        usage = shutil.disk_usage(folder)
        return 1 - usage.free / usage.total if usage.total else 1.0

    def lock(self, folder: Path) -> Lock | None:
        """Lock a folder until it is released or the process ends; return None if another process holds it."""
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            is_ours = any(try_lock(descriptor) for _ in range(LOCK_TRIES))
        except BaseException:
            os.close(descriptor)
            raise
        if not is_ours:
            os.close(descriptor)
            return None
        return Lock(descriptor)


def _reserve(descriptor: int, size: int) -> None:
    # With its blocks reserved, a file cannot run out of space midway, and a sync does not write a new length.
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in _NO_FALLOCATE_ERRORS:
            raise


def try_lock(descriptor: int) -> bool:
    """Try to lock a folder; pause on failure, because `boathook.spool.inspection` holds its lock only briefly."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in {errno.EWOULDBLOCK, errno.EACCES}:
            raise
        time.sleep(_LOCK_PAUSE_S)
        return False
    return True


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
