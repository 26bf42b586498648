"""The data folder, which only its owner may enter, and the locks in it.

An account that may open a file may hold its flock(2), so a folder that others may read lets them stop boathook.
"""

import contextlib
import fcntl
import os
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Final

_PRIVATE: Final = 0o700
_PRIVATE_FILE: Final = 0o600
PASSABLE: Final = 0o710
"""Mode of a folder that a group may pass through: that of the account which runs the embedded PostgreSQL for root."""
_REPORT_AFTER_S: Final = 1.0
_LOCKS: Final = Path("/proc/locks")


def prepare_data_dir(folder: Path) -> None:
    """Create a folder for its owner alone; take others' permissions from one that an older boathook created.

    Raises OSError if it cannot be created.
    """
    folder.mkdir(mode=_PRIVATE, parents=True, exist_ok=True)
    status = folder.stat()
    mode = stat.S_IMODE(status.st_mode)
    if mode in {_PRIVATE, PASSABLE} or status.st_uid != os.geteuid() or _has_other_uses(folder, mode):
        return
    folder.chmod(_PRIVATE)


def _has_other_uses(folder: Path, mode: int) -> bool:
    """Return whether a folder is more than boathook's own: one for all, or one that contains the user's files."""
    inside = folder.resolve()
    return bool(mode & stat.S_ISVTX) or any(
        place.is_relative_to(inside) for place in (Path.cwd(), Path(os.environ.get("HOME", "/")))
    )


def open_lock(path: Path) -> IO[str]:
    """Open a lock file that only its owner may open; it is created if missing. Raises OSError."""
    # Path.open takes no mode for a new file.
    lock = open(path, "a", encoding="ascii", opener=lambda name, flags: os.open(name, flags, _PRIVATE_FILE))  # noqa: SIM115
    status = os.fstat(lock.fileno())
    if status.st_mode & 0o077 and status.st_uid == os.geteuid():
        os.fchmod(lock.fileno(), _PRIVATE_FILE)
    return lock


def take_lock(lock: IO[str], operation: int, report: Callable[[str], None]) -> None:
    """Wait for a lock; after a second, report once who holds it.

    Args:
        lock: a file of `open_lock`.
        operation: ``LOCK_EX`` or ``LOCK_SH`` of `fcntl`.
        report: called with a sentence.
    """
    waiting = threading.Timer(
        _REPORT_AFTER_S, lambda: report(f"waiting for the lock {lock.name}, held by {_holder(lock)}")
    )
    waiting.daemon = True
    waiting.start()
    try:
        fcntl.flock(lock, operation)
    finally:
        waiting.cancel()


def _holder(lock: IO[str]) -> str:
    """Return who holds a lock, by the system's list of locks (proc_locks(5))."""
    inode = str(os.fstat(lock.fileno()).st_ino)
    with contextlib.suppress(OSError):
        for line in _LOCKS.read_text(encoding="ascii").splitlines():
            fields = line.split()
            if fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == inode:
                return f"pid {fields[4]}"
    return "another process"
