"""A file that is not whole yet: `NAME.part` beside where it will stand, and a note of what it is a part of.

Only one process and thread at a time works on it, by flock(2). What a killed process had written is still there, as the
kernel holds it; what a machine that lost power had written may be holes, so a note of an earlier boot is not believed.
"""

import fcntl
import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from io import FileIO
from pathlib import Path
from typing import Final, Self

import msgspec

from boathook.domain.errors import FetchFailed

LOCK_S: Final = 5.0
"""How long another download of the same file is waited for, which may just be giving up."""
_LOOK_S: Final = 0.02
_PIECE: Final = 1_048_576
_MOST_NOTE: Final = 262_144
_PRINTED: Final = re.compile(r"[ -~]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialMetadata:
    """What the bytes of a part belong to."""

    url: str
    """SHA-256 of the address, which may hold credentials."""
    validator: str
    """What If-Range says: a strong ETag, or else a Last-Modified; empty where it cannot be gone on with."""
    total: int | None
    """Bytes of the whole file."""
    content_type: str
    boot: str
    """The boot of the machine in which it was written."""


def make_metadata(url: str, *, validator: str, total: int | None, content_type: str) -> PartialMetadata:
    """Return the note of a file that begins to come from *url*."""
    digest = hashlib.sha256(url.encode()).hexdigest()
    return PartialMetadata(url=digest, validator=validator, total=total, content_type=content_type, boot=_boot())


@cache
def _boot() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


class PartialDownload:
    """The part of one file, open and locked.

    Args:
        target: where the whole file will stand.
        url: where it comes from; what came from elsewhere is thrown away.
        is_stopped: whether nobody waits for the lock any more.

    Raises:
        FetchFailed: another download of the same file is under way, or a file cannot be written.
    """

    def __init__(self, target: Path, url: str, is_stopped: Callable[[], bool]) -> None:
        self._target = target
        self._path = target.with_name(f"{target.name}.part")
        self._note_path = target.with_name(f"{target.name}.part.json")
        self._is_ours = True
        """Whether the name of the part still stands for what is locked, and not for another download's."""
        with _writing(self._target.name):
            self._file = self._open(is_stopped)
            try:
                self._begin(url)
            except BaseException:
                self._file.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self.size == 0:
                self.discard()
        finally:
            self._file.close()

    def _open(self, is_stopped: Callable[[], bool]) -> FileIO:
        ends_at = time.monotonic() + LOCK_S
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
            opened = FileIO(descriptor, "r+b")
            if self._lock(opened):
                return opened
            opened.close()
            if is_stopped() or time.monotonic() > ends_at:
                raise FetchFailed(f"another download to {self._target.name} is under way")
            time.sleep(_LOOK_S)

    def _lock(self, opened: FileIO) -> bool:
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # Whoever held it may have renamed the file meanwhile: the lock would be on what is whole.
            return os.path.samestat(os.fstat(opened.fileno()), self._path.stat())
        except (BlockingIOError, FileNotFoundError):
            return False

    def _begin(self, url: str) -> None:
        """Take stock of what an earlier download left."""
        self._hash = hashlib.sha256()
        self.size = 0
        self.note = self._read_note()
        wanted = make_metadata(url, validator="", total=None, content_type="")
        is_same = self.note is not None and (self.note.url, self.note.boot) == (wanted.url, wanted.boot)
        if self.note is None or not is_same or not self.note.validator:
            self.clear()
            return
        if self.note.total is not None and os.fstat(self._file.fileno()).st_size >= self.note.total:
            # The last byte is asked for again, so that the server says whether it still has this file.
            self._file.truncate(max(0, self.note.total - 1))
        while piece := self._file.read(_PIECE):
            self._hash.update(piece)
            self.size += len(piece)

    def _read_note(self) -> PartialMetadata | None:
        """Return what the note says; nothing where it is none of ours, whoever has put it there."""
        try:
            # A pipe would keep whoever opens it waiting for ever, and a link lead elsewhere.
            descriptor = os.open(self._note_path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
            with FileIO(descriptor) as opened:
                note = msgspec.json.decode(opened.read(_MOST_NOTE) or b"", type=PartialMetadata)
        except (OSError, ValueError, RecursionError):
            return None
        return note if _PRINTED.fullmatch(note.validator) else None

    def clear(self) -> None:
        """Throw away what came."""
        with _writing(self._target.name):
            self._file.seek(0)
            self._file.truncate()
        self._hash = hashlib.sha256()
        self.size, self.note = 0, None

    def begin(self, note: PartialMetadata) -> None:
        """Begin anew, and remember what the bytes to come belong to."""
        self.clear()
        self.note = note
        with _writing(self._target.name):
            self._note_path.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            with FileIO(os.open(self._note_path, flags, 0o644), "w") as opened:
                opened.write(msgspec.json.encode(note))

    def add(self, piece: bytes) -> None:
        """Write what came next."""
        with _writing(self._target.name):
            left = memoryview(piece)
            while left:
                left = left[self._file.write(left) :]
        self._hash.update(piece)
        self.size += len(piece)

    def finish(self) -> str:
        """Make it the whole file; return its SHA-256 in hexadecimal digits."""
        with _writing(self._target.name):
            os.fsync(self._file.fileno())
            self._note_path.unlink(missing_ok=True)
            self._path.replace(self._target)
            self._is_ours = False
            _sync_folder(self._target.parent)
        return self._hash.hexdigest()

    def discard(self) -> None:
        """Leave nothing behind."""
        if not self._is_ours:
            return
        with _writing(self._target.name):
            self._note_path.unlink(missing_ok=True)
            self._path.unlink(missing_ok=True)
        self._is_ours = False


@contextmanager
def _writing(name: str) -> Iterator[None]:
    """Make clear failures of what fails on the disk inside of the block."""
    try:
        yield
    except OSError as error:
        raise FetchFailed(f"{name} cannot be written: {error.strerror or error}") from error
    except ValueError as error:  # a name that no file can have
        raise FetchFailed(f"{name!r} cannot be written: {error}", is_final=True) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
