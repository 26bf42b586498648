"""The spool's folders: each process writes segments to its own, and adopts those of dead processes.

::

    <root>/<life>/00000000000000000001.seg    waits to be drained
    <root>/<life>/00000000000000000001.done   drained; kept for a while, to be offered to a restored database
    <root>/<life>/00000000000000000001.bad    drained as far as it can be read; kept until an operator inspects it
    <root>/refused/<life>-<sequence>.seg      an event that PostgreSQL rejects

A *life* is one run of a process. Its folder is locked while the process lives; the next process that gets the lock
drains it. All calls block: `boathook.spool.spool` makes them from one thread.
"""

import contextlib
import errno
import time
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec

from boathook.domain.errors import SpoolUnavailable
from boathook.spool.disk import Disk, File, Lock
from boathook.spool.segment import FRAME_BYTES, HEADER_BYTES, SegmentContents, SegmentEncoder, read_segment

PENDING_SUFFIX: Final = ".seg"
DONE_SUFFIX: Final = ".done"
DAMAGED_SUFFIX: Final = ".bad"
REJECTED_FOLDER: Final = "refused"
_PROBE_SUFFIX: Final = ".probe"

_MAX_FAILURES: Final = 2
_MAX_READS: Final = 5
_DISK_FULL_ERRORS: Final = {errno.ENOSPC, errno.EDQUOT}
_RESOURCE_ERRORS: Final = {errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors that say nothing about the file that cannot be read."""
_BACKOFF_S: Final = 5.0
_TYPICAL_EVENT_BYTES: Final = 1024
MIN_FOLDER_AGE_S: Final = 60.0
"""An empty folder younger than this may belong to a process that is about to use it."""


class SpoolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of the spool."""

    max_bytes: int = 1 << 30
    """Maximum bytes of waiting events."""
    segment_bytes: int = 8 << 20
    max_disk_used: float = 0.9
    """Share of the disk in use above which no event is accepted."""
    keep_s: float = 86_400.0
    """How long drained segments are kept."""


class Segment(msgspec.Struct, frozen=True):
    """A segment that waits to be drained; it is no longer written to."""

    path: Path
    contents: SegmentContents

    @property
    def is_damaged(self) -> bool:
        """Whether records that were durable can no longer be read."""
        return self.contents.lost > 0 or (not self.contents.is_readable and self.contents.torn > 0)


class _OpenSegment(msgspec.Struct):
    """The segment that is being written."""

    path: Path
    file: File
    framer: SegmentEncoder
    room: int
    size: int
    since: float
    """When its first events were written, in seconds since 1970."""
    records: int = 0


class _PendingSegment(msgspec.Struct):
    path: Path
    size: int
    since: float
    records: int | None
    """None for a segment of a dead process that has not been read yet."""
    failures: int = 0
    """Number of failed reads."""


class _ProcessFolder(msgspec.Struct):
    folder: Path
    lock: Lock
    segments: "deque[_PendingSegment]" = msgspec.field(default_factory=deque)


def is_spool_folder(name: str) -> bool:
    """Return whether this is the name of a life's folder or of the folder of rejected events."""
    return name == REJECTED_FOLDER or name.isdecimal()


class SegmentStore:
    """The folders under *root* that this process holds: its own, created at the first write, and adopted ones."""

    def __init__(self, root: Path, bounds: SpoolLimits, disk: Disk | None = None, *, name: str = "") -> None:
        self._root = root
        self._bounds = bounds
        self._disk = Disk() if disk is None else disk
        self._name = name or f"{time.time_ns():020d}"
        self.own: _ProcessFolder | None = None
        self._adopted: deque[_ProcessFolder] = deque()
        self._not_renamed: set[Path] = set()
        """Drained segments that cannot be renamed."""
        self._open: _OpenSegment | None = None
        self._next = 1
        self._synced = 0
        self._failures = 0
        self.backoff_until = 0.0

    @property
    def records(self) -> int:
        """Number of waiting events; estimated for adopted segments that have not been read yet."""
        records = sum(
            segment.size // _TYPICAL_EVENT_BYTES + 1 if segment.records is None else segment.records
            for segment in self._waiting()
        )
        return records + (self._open.records if self._open is not None else 0)

    @property
    def size(self) -> int:
        """Number of waiting bytes."""
        return sum(segment.size for segment in self._waiting()) + (self._open.size if self._open is not None else 0)

    @property
    def filled(self) -> float:
        """The used share of `SpoolLimits.max_bytes`."""
        return self.size / self._bounds.max_bytes

    @property
    def oldest_at(self) -> float | None:
        """When the oldest waiting event was written, in seconds since 1970; for adopted segments at the latest."""
        times = [segment.since for segment in self._waiting()]
        return min([*times, self._open.since] if self._open is not None else times, default=None)

    @property
    def is_empty(self) -> bool:
        """Whether no event is waiting."""
        return self._open is None and not any(self._waiting())

    @property
    def is_failing(self) -> bool:
        """Whether the disk has failed so often that it is not used for some seconds."""
        return self._failures >= _MAX_FAILURES

    def write(self, payloads: Sequence[bytes]) -> None:
        """Append events; all of them are durable when this returns.

        Raises:
            SpoolUnavailable: the spool is full, or the disk fails. None of the events counts as accepted, though some
                may be found later.
        """
        if self.is_failing and time.monotonic() < self.backoff_until:
            raise SpoolUnavailable("the spool's disk has failed twice, and is not used for some seconds")
        try:
            index = 0
            while index < len(payloads):
                index += self._write_some(payloads, index)
        except OSError as error:
            self._fail(error)
            raise SpoolUnavailable(f"the spool cannot be written: {error.strerror or error}") from error
        self._failures = 0

    def _write_some(self, payloads: Sequence[bytes], start: int) -> int:
        """Write and sync as many events as fit into the open segment, at least one; return the number."""
        segment = self._room_for(len(payloads[start]) + FRAME_BYTES)
        frames: list[bytes] = []
        size, synced = 0, self._synced
        for payload in payloads[start:]:
            framed = FRAME_BYTES + len(payload)
            if frames and segment.size + size + framed + FRAME_BYTES > segment.room:
                break
            frames.append(segment.framer.frame(self._next + len(frames), payload, synced))
            size += framed
        # Before the write, so that a sequence is never used twice, even if the write fails.
        self._next += len(frames)
        segment.file.write(b"".join(frames))
        segment.file.sync()
        segment.size += size
        segment.records += len(frames)
        self._synced = self._next - 1
        return len(frames)

    def _room_for(self, size: int) -> _OpenSegment:
        segment = self._open
        if segment is not None and segment.size + size + FRAME_BYTES <= segment.room:
            return segment
        self.seal()
        return self._begin(size)

    def _begin(self, size: int) -> _OpenSegment:
        room = max(min(self._bounds.segment_bytes, self._bounds.max_bytes), HEADER_BYTES + size + FRAME_BYTES)
        if self.size + room > self._bounds.max_bytes:
            raise SpoolUnavailable("the spool is full: spool.max_bytes of events wait for PostgreSQL already")
        life = self._own_folder()
        self._make_space(life.folder)
        framer = SegmentEncoder(self._next)
        path = life.folder / f"{self._next:020d}{PENDING_SUFFIX}"
        try:
            # The header is durable before the first record, so that a power cut leaves no file that looks damaged.
            file = self._disk.create(path, room, framer.header)
        except OSError:
            self._next += 1  # a leftover file may have this name, so the next file needs another one
            raise
        self._open = _OpenSegment(path, file, framer, room, len(framer.header), time.time())
        return self._open

    def _own_folder(self) -> _ProcessFolder:
        if self.own is None:
            self._name = self._next_folder_name()
            folder = self._root / self._name
            self._disk.make_folder(folder)
            lock = self._disk.lock(folder)
            if lock is None:
                raise SpoolUnavailable(f"another process holds {folder}")
            self.own = _ProcessFolder(folder, lock)
        return self.own

    def _next_folder_name(self) -> str:
        """Return a name after all existing ones: folders are drained in name order, and clocks may be set back."""
        last = max((name for name in self._names() if name != REJECTED_FOLDER), default="")
        return self._name if self._name > last else str(int(last) + 1).zfill(len(last))

    def _make_space(self, folder: Path) -> None:
        """Enforce the disk limit; delete the oldest drained segments first."""
        for path in self._kept():
            if self._disk.used(folder) < self._bounds.max_disk_used:
                return
            self._disk.remove(path)
        if self._disk.used(folder) >= self._bounds.max_disk_used:
            raise SpoolUnavailable("the disk of the spool is as full as spool.max_disk_used allows")

    def _fail(self, error: OSError) -> None:
        """Abandon the open segment: after a failed sync, the result of a later one is unreliable.

        Records that are durable remain to be drained; the others were never acknowledged.
        """
        self._failures += error.errno not in _DISK_FULL_ERRORS
        self.backoff_until = time.monotonic() + _BACKOFF_S
        broken, self._open = self._open, None
        if broken is not None:
            with contextlib.suppress(OSError):
                broken.file.close()
            self._leave(broken)
        if self.own is not None and error.errno == errno.ENOENT:  # the folder was removed
            self._adopted.append(self.own)
            self.own = None

    def _leave(self, broken: _OpenSegment) -> None:
        if not broken.records:  # no event was acknowledged, and many such files would fill a failing disk
            with contextlib.suppress(OSError):
                self._disk.remove(broken.path)
                return
        if self.own is not None:
            self.own.segments.append(_PendingSegment(broken.path, broken.size, broken.since, broken.records))

    def seal(self) -> None:
        """Seal the open segment, if there is one, so that it can be drained."""
        segment, self._open = self._open, None
        if segment is None:
            return
        assert self.own is not None
        self.own.segments.append(_PendingSegment(segment.path, segment.size, segment.since, segment.records))
        try:
            segment.file.write(segment.framer.seal(self._next - 1))
            segment.file.close(segment.size + FRAME_BYTES)
        except OSError:  # its records are durable anyway
            with contextlib.suppress(OSError):
                segment.file.close()

    def adopt(self) -> int:
        """Lock the folders of dead processes, oldest first; return the number of adopted folders.

        Raises:
            OSError: one of them cannot be read; the others are adopted.
        """
        in_use = {life.folder.name for life in self._folders()}
        adopted, failed = 0, None
        for name in self._names():
            if name == REJECTED_FOLDER or name in in_use or name == self._name:
                continue
            try:
                adopted += self._adopt(self._root / name)
            except OSError as error:
                failed = error
        if failed is not None:
            raise failed
        return adopted

    def _adopt(self, folder: Path) -> bool:
        if not self._left_in(folder):
            return False
        lock = self._disk.lock(folder)
        if lock is None:
            return False
        try:
            # Its last holder may have drained segments between the check and the lock.
            segments = deque(self._found(path) for path in self._left_in(folder))
        except OSError:
            lock.release()
            raise
        if not segments:
            lock.release()
            return False
        self._adopted.append(_ProcessFolder(folder, lock, segments))
        return True

    def _left_in(self, folder: Path) -> list[Path]:
        paths = (folder / name for name in self._disk.names(folder) if name.endswith(PENDING_SUFFIX))
        return [path for path in paths if path not in self._not_renamed]

    def _found(self, path: Path) -> _PendingSegment:
        return _PendingSegment(path, self._disk.size(path), self._disk.changed_at(path), None)

    def oldest(self) -> Segment | None:
        """Return the segment to drain next, sealing the open one if there is no other; None if nothing is waiting.

        Raises:
            OSError: it cannot be read; after several failures it is returned as unreadable.
        """
        self._release_drained()
        life = next((life for life in self._folders() if life.segments), None)
        if life is None:
            if self._open is None:
                return None
            self.seal()
            return self.oldest()
        waiting = life.segments[0]
        contents = self._read(waiting)
        waiting.records = len(contents.records)
        return Segment(waiting.path, contents)

    def _read(self, waiting: _PendingSegment) -> SegmentContents:
        try:
            return read_segment(self._disk.read(waiting.path))
        except OSError as error:
            waiting.failures += error.errno not in _RESOURCE_ERRORS
            if waiting.failures < _MAX_READS and error.errno != errno.ENOENT:
                raise
            # It must not block the segments behind it.
            return SegmentContents(records=(), torn=waiting.size, is_readable=False)

    def finish(self, segment: Segment) -> None:
        """Set aside a segment whose events are all in PostgreSQL or among the rejected ones.

        Raises:
            OSError: it cannot be renamed; this store does not return it again.
        """
        for life in self._folders():
            if life.segments and life.segments[0].path == segment.path:
                life.segments.popleft()
        self._not_renamed.add(segment.path)
        self._disk.rename(segment.path, segment.path.with_suffix(DAMAGED_SUFFIX if segment.is_damaged else DONE_SUFFIX))
        self._not_renamed.discard(segment.path)

    def refuse(self, segment: Segment, sequence: int, payload: bytes) -> None:
        """Store one event that PostgreSQL rejects in its own segment, for an operator to inspect."""
        folder = self._root / REJECTED_FOLDER
        self._disk.make_folder(folder)
        path = folder / f"{segment.path.parent.name}-{sequence:020d}{PENDING_SUFFIX}"
        if path.name in self._disk.names(folder):
            return
        framer = SegmentEncoder(sequence)
        data = framer.header + framer.frame(sequence, payload, 0) + framer.seal(sequence)
        unfinished = path.with_suffix(".new")
        self._disk.remove(unfinished)
        self._disk.create(unfinished, len(data), data).close()
        self._disk.rename(unfinished, path)

    def count_set_aside(self) -> tuple[int, int]:
        """Return the number of events that PostgreSQL rejects and of damaged segments, for an operator to inspect."""
        refused = sum(name.endswith(PENDING_SUFFIX) for name in self._inside(self._root / REJECTED_FOLDER))
        names = (name for life in self._names() for name in self._inside(self._root / life))
        return refused, sum(name.endswith(DAMAGED_SUFFIX) for name in names)

    def check_writable(self) -> None:
        """Test that a small file can be made durable and a folder can be locked."""
        self._disk.make_folder(self._root)
        path = self._root / f"{self._name}{_PROBE_SUFFIX}"
        self._disk.remove(path)
        file = self._disk.create(path, 1)
        try:
            file.write(b"?")
            file.sync()
        finally:
            file.close()
            self._disk.remove(path)
        lock = self._disk.lock(self._root)
        if lock is not None:
            lock.release()

    def tidy(self, now: float) -> None:
        """Delete drained segments that have expired and empty folders; errors are ignored."""
        for path in self._kept():
            with contextlib.suppress(OSError):  # another process may have been faster
                if now - self._disk.changed_at(path) >= self._bounds.keep_s:
                    self._disk.remove(path)
        for name in self._names():
            folder = self._root / name
            with contextlib.suppress(OSError):
                is_old = now - self._disk.changed_at(folder) > MIN_FOLDER_AGE_S
                if name != self._name and is_old and not self._disk.names(folder):
                    self._remove_unused(folder)

    def _remove_unused(self, folder: Path) -> None:
        """Remove an empty folder, unless a live process holds it and may write to it again."""
        lock = self._disk.lock(folder)
        if lock is not None:
            try:
                self._disk.remove_folder(folder)
            finally:
                lock.release()

    def close(self) -> None:
        """Seal the open segment and release all folders."""
        self.seal()
        for life in self._folders():
            life.lock.release()
        self.own = None
        self._adopted.clear()

    def _release_drained(self) -> None:
        """Release adopted folders that are drained."""
        while self._adopted and not self._adopted[0].segments:
            self._adopted.popleft().lock.release()

    def _folders(self) -> Iterator[_ProcessFolder]:
        yield from self._adopted
        if self.own is not None:
            yield self.own

    def _waiting(self) -> Iterator[_PendingSegment]:
        for life in self._folders():
            yield from life.segments

    def _names(self) -> list[str]:
        return [name for name in self._disk.names(self._root) if is_spool_folder(name)]

    def _inside(self, folder: Path) -> list[str]:
        """Return the names in a folder; empty if it cannot be read."""
        try:
            return self._disk.names(folder)
        except OSError:
            return []

    def _kept(self) -> list[Path]:
        """Return the drained segments of all folders, oldest first."""
        lives = [self._root / name for name in self._names()]
        return [folder / name for folder in lives for name in self._inside(folder) if name.endswith(DONE_SUFFIX)]
