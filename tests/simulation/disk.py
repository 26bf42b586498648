"""Simulated disk that keeps synced data, and loses, tears or reorders the rest at a power failure.

A killed process loses nothing that it has written, as the page cache outlives it. When the power goes, each write that
was not synced is kept or dropped on its own, a kept one may be torn, and what is missing in between reads as NULs; a file
that was being made, renamed or removed at that moment is found under either name.
"""

import errno
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from boathook.spool.segment import read_segment
from tests.simulation.loop import PROCESS, Process
from tests.simulation.sometimes import sometimes


@dataclass
class _Node:
    """A file's bytes, as they lie on the disk and as they were written since."""

    durable: bytearray
    pending: list[tuple[int, bytes]] = field(default_factory=list)
    changed_at: float = 0.0

    def now(self) -> bytes:
        data = bytearray(self.durable)
        for start, piece in self.pending:
            data[start : start + len(piece)] = piece
        return bytes(data)


@dataclass
class Trouble:
    """How often the disk fails, as chances for each call."""

    full: float = 0.0
    failing_sync: float = 0.0
    unreadable: float = 0.0
    died: float = 0.0
    """Chance that the process is killed between the two halves of a call."""


class Disk:
    """One host's file system; the port that `boathook.spool.disk.Disk` describes."""

    def __init__(
        self, rng: random.Random, clock: Callable[[], float], world: Process, kill: Callable[[Process], None]
    ) -> None:
        self.trouble = Trouble()
        self._rng = rng
        self._clock = clock
        self._world = world
        self._kill = kill
        self._files: dict[Path, _Node] = {}
        self._folders: dict[Path, float] = {}
        self._unsettled: list[tuple[Path, Callable[[], None]]] = []
        """Undoes a change of a folder that is not durable yet, as its process died before syncing the folder."""
        self._locks: dict[Path, tuple[Process, object]] = {}

    def lose_power(self) -> None:
        """Keep what was synced and a drawn part of the rest. The processes that used the disk must be dead already."""
        for _, undo in reversed(self._unsettled):
            if self._rng.random() < 0.5:
                undo()
        self._unsettled.clear()
        for node in self._files.values():
            for start, piece in node.pending:
                if self._rng.random() < 0.5:
                    continue
                if self._rng.random() < 0.5:
                    sometimes("a write was torn by a power cut")
                    kept = piece[: self._rng.randrange(len(piece) + 1)]
                else:
                    kept = piece
                node.durable[start : start + len(kept)] = kept
            node.pending.clear()
        self._locks.clear()

    def _maybe_die(self) -> None:
        if self.trouble.died and self._rng.random() < self.trouble.died:
            process = PROCESS.get(self._world)
            if process is not self._world:
                sometimes("a process died in the middle of a disk call")
                self._kill(process)

    def _change(self, folder: Path, do: Callable[[], None], undo: Callable[[], None]) -> None:
        do()
        self._unsettled.append((folder, undo))
        self._maybe_die()
        self._settle(folder)

    def _settle(self, folder: Path) -> None:
        """Sync a folder, which makes all changes in it durable."""
        self._unsettled = [one for one in self._unsettled if one[0] != folder]

    # The port

    def make_folder(self, path: Path) -> None:
        for folder in (path, *path.parents):
            self._folders.setdefault(folder, self._clock())

    def create(self, path: Path, size: int, head: bytes = b"") -> "File":
        if path.parent not in self._folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder")
        if path in self._files:
            raise FileExistsError(errno.EEXIST, "the file exists")
        if self.trouble.full and self._rng.random() < self.trouble.full:
            sometimes("the disk was full")
            if self._rng.random() < 0.5:
                sometimes("a file could neither be made whole nor be removed")
                self._files[path] = _Node(bytearray(), changed_at=self._clock())
            raise OSError(errno.ENOSPC, "no space left on device")
        sometimes("the spool began another segment", if_=any(name.endswith(".seg") for name in self.names(path.parent)))
        node = _Node(bytearray(head.ljust(size, b"\0")), changed_at=self._clock())
        self._change(path.parent, lambda: self._files.__setitem__(path, node), lambda: self._files.pop(path, None))
        return File(self, node, len(head))

    def read(self, path: Path) -> bytes:
        if self.trouble.unreadable and self._rng.random() < self.trouble.unreadable:
            raise OSError(errno.EIO, "input/output error")
        data = self._node(path).now()
        if path.suffix == ".seg":
            contents = read_segment(data)
            sometimes("a torn tail was passed over", if_=contents.torn > 0)
            sometimes("a segment that nobody had ended was drained", if_=not contents.is_sealed)
        return data

    def rename(self, old: Path, new: Path) -> None:
        node = self._node(old)

        def do() -> None:
            del self._files[old]
            self._files[new] = node

        def undo() -> None:
            self._files.pop(new, None)
            self._files[old] = node

        self._change(new.parent, do, undo)

    def remove(self, path: Path) -> None:
        node = self._files.get(path)
        if node is not None:
            self._change(path.parent, lambda: self._files.pop(path, None), lambda: self._files.__setitem__(path, node))

    def remove_folder(self, path: Path) -> None:
        if self.names(path):
            raise OSError(errno.ENOTEMPTY, "the folder is not empty")
        self._settle(path)
        self._folders.pop(path, None)

    def names(self, folder: Path) -> list[str]:
        inside = {path.name for path in (*self._files, *self._folders) if path.parent == folder and path != folder}
        return sorted(inside)

    def size(self, path: Path) -> int:
        return len(self._node(path).durable)

    def changed_at(self, path: Path) -> float:
        if path in self._folders:
            return self._folders[path]
        return self._node(path).changed_at

    def used(self, folder: Path) -> float:
        return 0.1

    def lock(self, folder: Path) -> "Lock | None":
        if folder not in self._folders:
            raise FileNotFoundError(errno.ENOENT, "no such folder")
        held = self._locks.get(folder)
        if held is not None and not held[0].is_dead:
            return None
        lock = Lock(self, folder)
        self._locks[folder] = (PROCESS.get(self._world), lock)
        return lock

    def unlock(self, folder: Path, lock: "Lock") -> None:
        held = self._locks.get(folder)
        if held is not None and held[1] is lock:
            del self._locks[folder]

    def waiting(self) -> list[tuple[Path, bytes]]:
        """Return the files that hold what was not drained, with what would be left of them without power."""
        return [(path, bytes(node.durable)) for path, node in self._files.items() if path.suffix == ".seg"]

    def _node(self, path: Path) -> _Node:
        node = self._files.get(path)
        if node is None:
            raise FileNotFoundError(errno.ENOENT, f"no such file: {path}")
        return node

    # What files use

    def write(self, node: _Node, start: int, data: bytes) -> None:
        if self.trouble.full and self._rng.random() < self.trouble.full:
            raise OSError(errno.ENOSPC, "no space left on device")
        if start + len(data) > len(node.durable):
            node.durable.extend(bytes(start + len(data) - len(node.durable)))
        node.pending.append((start, data))
        self._maybe_die()

    def sync(self, node: _Node) -> None:
        if self.trouble.failing_sync and self._rng.random() < self.trouble.failing_sync:
            sometimes("a sync failed")
            # After a failed sync the pages count as clean, whether they reached the disk or not.
            kept = [piece for piece in node.pending if self._rng.random() < 0.5]
            for start, piece in kept:
                node.durable[start : start + len(piece)] = piece
            node.pending.clear()
            raise OSError(errno.EIO, "input/output error")
        for start, piece in node.pending:
            node.durable[start : start + len(piece)] = piece
        node.pending.clear()
        self._maybe_die()


class File:
    """A file that is being written."""

    def __init__(self, disk: Disk, node: _Node, end: int) -> None:
        self._disk = disk
        self._node = node
        self._end = end

    def write(self, data: bytes) -> None:
        self._disk.write(self._node, self._end, data)
        self._end += len(data)

    def sync(self) -> None:
        self._disk.sync(self._node)

    def close(self, size: int | None = None) -> None:
        if size is not None:
            self._disk.sync(self._node)
            del self._node.durable[size:]


class Lock:
    """A folder that is held."""

    def __init__(self, disk: Disk, folder: Path) -> None:
        self._disk = disk
        self._folder = folder

    def release(self) -> None:
        self._disk.unlock(self._folder, self)
