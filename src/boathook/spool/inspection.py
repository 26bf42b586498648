"""Inspects the folders of a spool without changing them or blocking the processes that hold them.

A shared lock, released immediately, tests whether a folder is held. Its holder does not notice, and a process that
adopts the folder at the same time retries (`boathook.spool.disk`). A folder without segments is not tested, so the
new folder of a process is never locked here.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

from boathook.spool.segment import SegmentContents, read_segment
from boathook.spool.segment_store import DAMAGED_SUFFIX, DONE_SUFFIX, PENDING_SUFFIX, REJECTED_FOLDER, is_spool_folder


class SegmentState(StrEnum):
    """The state of a segment."""

    WAITING = "waiting"
    """Waits to be drained to PostgreSQL."""
    DONE = "done"
    """Drained; kept for a while."""
    BAD = "bad"
    """Drained as far as it can be read; events are lost."""
    REFUSED = "refused"
    """Holds one event that PostgreSQL rejects."""


_STATES: Final = {
    PENDING_SUFFIX: SegmentState.WAITING,
    DONE_SUFFIX: SegmentState.DONE,
    DAMAGED_SUFFIX: SegmentState.BAD,
}


class SegmentInfo(msgspec.Struct, frozen=True):
    """A segment file."""

    path: Path
    life: str
    """The name of the folder in which it was written."""
    state: SegmentState
    size: int
    """In bytes; includes the reserved space while the segment is being written."""


class SpoolFolder(msgspec.Struct, frozen=True):
    """The segments that one process has written or is writing."""

    life: str
    path: Path
    is_held: bool
    """Whether a process holds the folder: the gateway that owns it, or one that drains it."""
    segments: tuple[SegmentInfo, ...]
    """In the order in which they were written."""


def list_folders(root: Path) -> list[SpoolFolder]:
    """Return the folders under *root* that hold segments, oldest first; rejected events have a folder of their own.

    Raises:
        OSError: the root cannot be read. A missing root counts as empty.
    """
    return [folder for path in _children(root) if is_spool_folder(path.name) and (folder := _folder(path)) is not None]


def read_contents(segment_info: SegmentInfo) -> SegmentContents | None:
    """Read a segment; return None if it no longer exists, because it was drained or has expired.

    Raises:
        OSError: the file cannot be read.
    """
    try:
        return read_segment(segment_info.path.read_bytes())
    except FileNotFoundError:
        return None


def _folder(path: Path) -> SpoolFolder | None:
    segments = tuple(_segments(path))
    if not segments:
        return None
    return SpoolFolder(path.name, path, path.name != REJECTED_FOLDER and _is_held(path), segments)


def _segments(folder: Path) -> Iterator[SegmentInfo]:
    for path in _children(folder):
        state = _STATES.get(path.suffix)
        if state is None:
            continue
        life = folder.name
        if life == REJECTED_FOLDER:
            life = path.stem.rpartition("-")[0]
            state = SegmentState.REFUSED if state is SegmentState.WAITING else state
        with contextlib.suppress(FileNotFoundError):
            yield SegmentInfo(path, life, state, path.stat().st_size)


def _children(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _is_held(folder: Path) -> bool:
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in {errno.EWOULDBLOCK, errno.EACCES}:
            return True
        raise
    finally:
        os.close(descriptor)
    return False
