"""A look at what lies under a spool's root, whoever holds it: nothing is taken, changed or kept from anybody.

Whether a folder is held is asked by a shared lock that is let go at once. Who holds it does not notice, and who comes
to adopt it at that very moment tries again (`boathook.spool.disk`). A folder without segments is not asked about, so
the one that a process is about to make its own is never touched.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from boathook.spool.segment import SegmentContents, read_segment
from boathook.spool.segment_store import DAMAGED_SUFFIX, DONE_SUFFIX, PENDING_SUFFIX, REJECTED_FOLDER, is_spool_folder


class SegmentState(StrEnum):
    """What has become of a segment."""

    WAITING = "waiting"
    """It is to be brought to PostgreSQL."""
    DONE = "done"
    """It was, and is kept for a while."""
    BAD = "bad"
    """It was, as far as it can be read: events are lost."""
    REFUSED = "refused"
    """It holds one event that PostgreSQL refuses to take."""


_STATES: Final = {
    PENDING_SUFFIX: SegmentState.WAITING,
    DONE_SUFFIX: SegmentState.DONE,
    DAMAGED_SUFFIX: SegmentState.BAD,
}


@dataclass(frozen=True, slots=True)
class SegmentInfo:
    """A segment as it lies there."""

    path: Path
    life: str
    """The name of the folder it was written in."""
    state: SegmentState
    size: int
    """In bytes; while it is being written, with the room reserved for what is to come."""


@dataclass(frozen=True, slots=True)
class SpoolFolder:
    """What one process life has left, or is writing."""

    life: str
    path: Path
    is_held: bool
    """Whether a process holds it: the gateway whose it is, or one that drains it."""
    segments: tuple[SegmentInfo, ...]
    """In the order in which they were written."""


def list_folders(root: Path) -> list[SpoolFolder]:
    """Return the folders under *root* that hold segments, the oldest first; the refused events are a folder of theirs.

    Raises:
        OSError: the root cannot be read; where there is none, there is nothing.
    """
    return [folder for path in _children(root) if is_spool_folder(path.name) and (folder := _folder(path)) is not None]


def read_contents(lying: SegmentInfo) -> SegmentContents | None:
    """Return what is in a segment; None where it is gone, as it was drained or its time was up.

    Raises:
        OSError: the disk does not give it.
    """
    try:
        return read_segment(lying.path.read_bytes())
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
