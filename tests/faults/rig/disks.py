"""Disks for scenarios: a small one that can grow, and one with simulated power failures.

    disk = env.enter(small_disk("600k"))         # a tmpfs; disk.resize("8m") later, disk.fill() until nothing fits
    disk = env.enter(image(48))                  # ext4 on a loop device over a file in memory
    with still(host.processes("gateway")):      # no process writes, and nothing that was begun is finished
        copy = disk.cut(folder / "copy")        # what a power cut would leave at this moment
    with mounted(copy) as found:                # replays the file system's journal, as after the cut
        ...

A file system keeps in memory what was not synced. Its backing file has only what it sent to the disk, so a copy of
that is what is left when the power goes. It is copied until two copies are alike, as the kernel may write by itself.
"""

import contextlib
import ctypes
import filecmp
import functools
import os
import random
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import psutil

from tests.conftest import open_folder
from tests.faults.rig.postgres import OwnServer
from tests.support import until

_PAGE: Final = 4096
_WRITE_AND_WAIT: Final = 7
"""SYNC_FILE_RANGE_WAIT_BEFORE, _WRITE and _WAIT_AFTER of sync_file_range(2)."""
_NEEDED: Final = ("mount", "umount", "mkfs.ext4")


@functools.cache
def cannot_mount() -> str:
    """Return why no disk can be made here; empty where one can."""
    if missing := [name for name in _NEEDED if shutil.which(name) is None]:
        return f"there is no program {missing[0]}"
    with tempfile.TemporaryDirectory() as folder:
        done = _try("mount", "-t", "tmpfs", "none", folder)
        if done.returncode != 0:
            return f"no file system may be mounted here: {done.stderr.strip()}"
        _try("umount", folder)
    return "" if Path("/dev/loop-control").exists() else "there are no loop devices"


def cannot_trace() -> str:
    """Return why no system calls can be watched here; empty where they can."""
    if shutil.which("strace") is None:
        return "there is no program strace"
    done = _try("strace", "-o", os.devnull, "true")
    return "" if done.returncode == 0 else f"strace is not allowed here: {done.stderr.strip()}"


class SmallDisk:
    """A tmpfs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def resize(self, size: str) -> None:
        """Make it larger or smaller, such as ``8m``."""
        _do("mount", "-o", f"remount,size={size}", str(self.folder))

    def fill(self) -> None:
        """Fill the disk with another file until no page is free."""
        with self._ballast.open("ab", buffering=0) as ballast, contextlib.suppress(OSError):
            while ballast.write(b"\1" * _PAGE) == _PAGE:
                pass

    def clear(self) -> None:
        """Remove that file."""
        self._ballast.unlink(missing_ok=True)


@contextlib.contextmanager
def small_disk(size: str, *, inodes: int = 0) -> Iterator[SmallDisk]:
    """Mount a tmpfs of *size*, such as ``600k``, optionally with a limited number of files."""
    folder = open_folder()
    options = f"size={size},mode=755" + (f",nr_inodes={inodes}" if inodes else "")
    _do("mount", "-t", "tmpfs", "-o", options, "none", str(folder))
    try:
        yield SmallDisk(folder)
    finally:
        _unmount(folder)


class Image:
    """An ext4 file system in a file."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._path = path
        self.folder = folder

    def sync(self) -> None:
        """Sync all written data, such as what the scenario has prepared."""
        _do("sync", "--file-system", str(self.folder))

    def cut(self, copy: Path) -> Path:
        """Copy the data that reached the disk, and return the copy; no process may write meanwhile, see `still`."""
        again = copy.with_suffix(".again")
        _copy(self._path, copy)
        while True:
            _copy(self._path, again)
            if filecmp.cmp(copy, again, shallow=False):
                again.unlink()
                return copy
            again.rename(copy)

    def write_back(self, path: Path, dice: random.Random) -> None:
        """Send some pages of a file to the disk and not others, as the kernel may do at any time before a sync.

        The file system's own journal is made durable too, by another file's sync, so that the pages are found there.
        """
        with path.open("rb+") as file:
            for start in range(0, len(file.read().rstrip(b"\0")), _PAGE):
                if dice.random() < 0.5:
                    _write_range(file.fileno(), start)
        with (self.folder / "another").open("ab") as other:
            other.write(b"?")
            other.flush()
            os.fsync(other.fileno())


def _write_range(descriptor: int, start: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    place, count = ctypes.c_int64(start), ctypes.c_int64(_PAGE)
    if libc.sync_file_range(descriptor, place, count, _WRITE_AND_WAIT) != 0:
        raise OSError(ctypes.get_errno(), "sync_file_range failed")


@contextlib.contextmanager
def image(megabytes: int) -> Iterator[Image]:
    """Make an ext4 file system of this size in memory and mount it."""
    folder = open_folder()
    path = folder / "image"
    with path.open("wb") as file:
        file.truncate(megabytes << 20)
    _do("mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", str(path))
    try:
        with mounted(path) as place:
            yield Image(path, place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


_IMAGES: Final[dict[Path, Image]] = {}


def server_image(megabytes: int) -> Callable[[Path], AbstractContextManager[Path]]:
    """Return a *place* for a scenario with PostgreSQL on an image; see `image_under`."""

    @contextlib.contextmanager
    def place(_folder: Path) -> Iterator[Path]:
        with image(megabytes) as disk:
            _IMAGES[disk.folder] = disk
            try:
                yield disk.folder
            finally:
                del _IMAGES[disk.folder]

    return place


def image_under(folder: Path) -> Image:
    """Return the image that a server's folder is, see `server_image`."""
    return _IMAGES[folder]


def server_on_small_disk(size: str) -> Callable[[Path], AbstractContextManager[Path]]:
    """Return a *place* for a scenario with PostgreSQL on a tmpfs of this size."""

    @contextlib.contextmanager
    def place(_folder: Path) -> Iterator[Path]:
        with small_disk(size) as disk:
            yield disk.folder

    return place


@contextlib.contextmanager
def in_memory() -> Iterator[Path]:
    """Lend a folder that no disk is behind, which PostgreSQL may enter."""
    folder = open_folder()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def mounted(path: Path) -> Iterator[Path]:
    """Mount an image, or a copy of one."""
    folder = open_folder()
    _do("mount", "-o", "loop", str(path), str(folder))
    folder.chmod(0o755)
    try:
        yield folder
    finally:
        _unmount(folder)


@contextlib.contextmanager
def still(processes: Sequence[psutil.Process]) -> Iterator[None]:
    """Stop processes and wait until no thread is in the kernel; resume them in the end."""
    assert processes, "there is nobody to stop"
    for process in processes:
        process.send_signal(signal.SIGSTOP)
    try:
        for process in processes:
            until(functools.partial(is_still, process.pid), every=0.002)
        yield
    finally:
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)


def is_still(pid: int) -> bool:
    """Return whether every thread of a process is stopped, or the process is no more."""
    try:
        lines = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/stat")]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return all(line.rpartition(")")[2].split()[0] in "TtZX" for line in lines)


def copy_server(server: OwnServer, target: Path) -> Path:
    """Copy a PostgreSQL's folder at one point in time, like a disk backup, and return *target*."""
    pid = server.server.pid()
    server.freeze()
    try:
        assert pid is not None
        until(lambda: is_still(pid))
        target.mkdir(parents=True, exist_ok=True)
        target.chmod(0o755)
        subprocess.run(["cp", "-a", f"{server.folder}/postgres", str(target)], check=True)
    finally:
        server.thaw()
    return forget_life(target)


def forget_life(folder: Path) -> Path:
    """Remove from the copy of a PostgreSQL's folder what says that the original runs, and return the folder."""
    for path in [folder / "postgres/data/postmaster.pid", *(folder / "postgres/run").iterdir()]:
        path.unlink(missing_ok=True)
    return folder


def _copy(source: Path, target: Path) -> None:
    _do("cp", "--sparse=always", str(source), str(target))


def _unmount(folder: Path) -> None:
    done = _try("umount", str(folder))
    if done.returncode != 0:  # a process still uses it: it goes with the last of them
        _do("umount", "--lazy", str(folder))
    with contextlib.suppress(OSError):
        folder.rmdir()


def _do(*words: str) -> None:
    done = _try(*words)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"


def _try(*words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(words, capture_output=True, text=True, check=False)
